"""A recorded trace: what each process did, and the instructions of its calls."""

from __future__ import annotations

from dataclasses import dataclass, field

from gt.cli.top import plain
from gt.places import Place, by_instruction, show
from gt.tracing import unpack_steps
from gt.transport.messages import Span, Spans, TracedProgram


@dataclass(slots=True)
class Process:
    """What one process did."""

    who: str
    offset_ns: int = 0
    spans: list[Span] = field(default_factory=list)


@dataclass(slots=True)
class RecordedInstruction:
    """An instruction of a call."""

    op: str
    place: Place | None
    start_ns: int
    end_ns: int


@dataclass(slots=True)
class Recorded:
    """A whole trace."""

    processes: dict[str, Process] = field(default_factory=dict)
    programs: dict[str, TracedProgram] = field(default_factory=dict)
    left_out: int = 0
    missing: str = ""

    def take(self, m: Spans) -> bool:
        """Take in a message; whether it was the last one."""
        self.programs.update(m.programs)
        self.left_out += m.left_out
        if m.who:
            process = self.processes.setdefault(plain(m.who), Process(plain(m.who)))
            process.spans += m.spans
            process.offset_ns = m.offset_ns or process.offset_ns
        elif m.last:
            self.missing = m.error
            return True
        return False

    def in_order(self) -> list[Process]:
        """Clients, the dispatcher, workers; each in the order of their numbers. Clocks are the dispatcher's now."""
        for process in self.processes.values():
            if ahead := process.offset_ns:
                process.spans = [_moved(span, -ahead) for span in process.spans]
                process.offset_ns = 0
        kinds = {"session": 0, "dispatcher": 1, "worker": 2}
        words = {p.who: p.who.split() for p in self.processes.values()}
        return sorted(
            self.processes.values(),
            key=lambda p: (kinds.get(words[p.who][0], 3), *(int(w) for w in words[p.who][1:2] if w.isdecimal())),
        )

    def lines_of(self, span: Span) -> str:
        """Where a call's program comes from; its hash if nobody knows."""
        program = self.programs.get(span.program.hex())
        return plain(show(program.places)) if program is not None and program.places else span.program.hex()[:8]

    def steps_of(self, span: Span) -> list[RecordedInstruction]:
        """The instructions of a call. What stands behind each other and has one name and line is one."""
        program = self.programs.get(span.program.hex())
        if program is None:
            return []
        places = by_instruction(program.places)
        found: list[RecordedInstruction] = []
        begins = unpack_steps(span.steps)
        for k, (i, after_ns) in enumerate(begins):
            if not 0 <= i < len(program.ops):
                continue
            place = places[i] if i < len(places) and places[i].file else None
            last = k + 1 == len(begins)
            end_ns = span.end_ns if last else span.start_ns + begins[k + 1][1]
            found.append(RecordedInstruction(plain(program.ops[i]), place, span.start_ns + after_ns, end_ns))
        return found


def _moved(span: Span, ns: int) -> Span:
    where = (span.session, span.seq, span.program, span.tier, span.steps)
    return Span(span.lane, span.name, span.start_ns + ns, span.end_ns + ns, *where)
