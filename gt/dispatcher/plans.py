"""Programs the dispatcher knows, and the plans made from them.

Law 1: a program is believed only after its check, which happens outside the event loop.
Law 2: `plan(entry, layouts)` is a pure function. It runs once per (program, layouts of the inputs);
       after that a call is a look-up. A plan for several workers takes longer, and is made outside the event loop.
Law 3: the cache is bounded in bytes. What a timer cut goes first, then the least recently used; what a
       call under way needs, and what was used last, stays.

Programs are shared by all sessions: one that knows the hash has the text. The local programs of a joint plan, one per
worker, belong to their plan; the text of one that two plans have is kept until both are gone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from gt.dispatcher.schedule import UNKNOWN_US
from gt.dispatcher.session import Session, Tensor
from gt.layout import Layout
from gt.ops.check import Checked
from gt.ops.record import TABLE
from gt.program import SCALAR_TYPES, Program, Spec, spec
from gt.transport.messages import Failure

PLANS_PER_PROGRAM = 64

_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """What one worker does of a joint plan."""

    program: Program
    hash: bytes
    constants: tuple[bool | int | float | bytes, ...]  #: scalars of its own, behind those of the call
    absent: tuple[int, ...]  #: inputs that it holds nothing of: it is given id 0 for them
    need_nbytes: int  #: memory a call takes there beside its inputs, at least
    origins: Sequence[int] = ()  #: the instruction of the client's program that each one of it is of; -1: of none


@dataclass(slots=True, eq=False)
class Plan:
    """A program made ready for given layouts of its inputs."""

    workers: tuple[int, ...]  #: who runs it: it takes credit on all of them or on none
    outputs: tuple[Tensor, ...]  #: the results if it succeeds
    output_nbytes: int
    #: Of a plan for one worker, the results if it fails: what replaces an input keeps its value, the rest has none.
    failed: tuple[Tensor, ...] = ()
    uses: int = 0  #: calls that are at the head of a queue or on workers
    parts: dict[int, Part] | None = None  #: of a joint plan: by worker
    kept: tuple[
        tuple[int, int], ...
    ] = ()  #: of a joint plan: (output, input) where a failed call keeps the input's value
    refused: Failure | None = None  #: there is no way to run it
    nbytes: int = 0  #: what it adds to its program's in the cache

    def all_parts(self) -> Iterable[Part]:
        return self.parts.values() if self.parts is not None else ()


@dataclass(slots=True, eq=False)
class Entry:
    """A program in the cache. Before its check only the first fields mean anything."""

    hash: bytes
    program: Program
    nbytes: int
    timed: bool
    compile: int  #: see Define
    checked: Checked | None = None
    error: str = ""  #: why it failed the check
    inputs: list[Spec] = field(default_factory=list)
    outputs: list[Spec] = field(default_factory=list)
    scalar_types: tuple[type, ...] = ()
    need_nbytes: int = 0  #: memory a call takes beside its inputs, at least
    plans: dict[tuple[object, ...], Plan] = field(default_factory=dict)
    planning: dict[tuple[object, ...], None] = field(default_factory=dict)  #: plans that were asked for
    uses: int = 0  #: calls that are at the head of a queue or on a worker
    cost_us: int = UNKNOWN_US
    runs: int = 0
    users: set[int] = field(default_factory=set)  #: sessions that called it; only membership is asked

    @property
    def finished(self) -> bool:
        """Its check is over, one way or the other."""
        return self.checked is not None or bool(self.error)

    @property
    def spare(self) -> bool:
        """Nobody would miss it now."""
        return self.finished and not self.uses and not self.planning

    def accept(self, checked: Checked) -> None:
        self.checked = checked
        self.nbytes += checked.text_nbytes
        self.inputs = [plain(s) for s in checked.specs[: len(self.program.inputs)]]
        self.outputs = [plain(checked.specs[o]) for o in self.program.outputs]
        self.scalar_types = tuple(SCALAR_TYPES[k] for k in self.program.scalars)
        self.need_nbytes = max(0, checked.peak_nbytes - _in_place_nbytes(checked))

    def plan(self, layouts: tuple[Layout, ...]) -> Plan:
        """The plan for these layouts: first the one where results go, then one per input."""
        found = self.plans.get(layouts)
        if found is None:
            if len(self.plans) >= PLANS_PER_PROGRAM:
                for key in [k for k, p in self.plans.items() if p.parts is None]:
                    del self.plans[key]  # layouts of workers that are gone, most likely
            found = self.plans[layouts] = plan(self, layouts)
        return found


def plan(entry: Entry, layouts: tuple[Layout, ...]) -> Plan:
    """One worker holds all inputs, runs the program and holds the results."""
    home = layouts[0]
    kept = {o for o, i in entry.program.updates if entry.outputs[o] is entry.inputs[i]}
    outputs = tuple(Tensor(s, s.nbytes, home) for s in entry.outputs)
    failed = tuple(t if o in kept else Tensor(t.spec, 0, home) for o, t in enumerate(outputs))
    return Plan(home.mesh.workers, outputs, sum(t.nbytes for t in outputs), failed)


def plain(s: Spec) -> Spec:
    """The spec of a value outside its program: a tensor that somebody holds is no Python number."""
    return spec(s.shape, s.dtype) if s.weak else s


def _in_place_nbytes(checked: Checked) -> int:
    """Bytes of results that an engine can write into the donated inputs they replace.

    Counting them would refuse a model of half the worker's memory, which trains well: its optimizer
    overwrites parameters and state.
    """
    program = checked.program
    wanted = {program.outputs[o]: i for o, i in program.updates if i in program.donate}
    if not wanted:
        return 0
    saved, number = 0, len(program.inputs)
    for ins in program.code:
        inplace = TABLE[ins.op].inplace
        for k in range(ins.results):
            if k < len(inplace) and number in wanted and ins.args[inplace[k]] == wanted[number]:
                saved += checked.specs[number].nbytes
            number += 1
    return saved


class Programs:
    """The cache, and who waits for what to arrive in it."""

    def __init__(self, limit_nbytes: int) -> None:
        self.limit_nbytes = limit_nbytes
        self.nbytes = 0  #: the sum over all entries
        self._kept: OrderedDict[bytes, Entry] = OrderedDict()  #: least recently used first
        self._timed: OrderedDict[bytes, Entry] = OrderedDict()
        self.last_used = b""  #: stays: one program over the limit would else be asked for for ever
        #: Program -> the sessions, by number, whose head waits for it to be sent, checked or planned.
        self.waiting: dict[bytes, dict[int, Session]] = {}
        self._locals: dict[bytes, tuple[Program, int]] = {}  #: texts of joint plans, and how many parts have them

    def __len__(self) -> int:
        return len(self._kept) + len(self._timed)

    def __contains__(self, name: bytes) -> bool:
        return name in self._kept or name in self._timed or name in self._locals

    def __iter__(self) -> Iterator[Entry]:
        yield from self._timed.values()
        yield from self._kept.values()

    def get(self, program: bytes) -> Entry | None:
        """The entry of this hash, which thereby is the last used."""
        for shelf in (self._kept, self._timed):
            entry = shelf.get(program)
            if entry is not None:
                shelf.move_to_end(program)
                self.last_used = program
                return entry
        return None

    def add(self, program_hash: bytes, program: Program, timed: bool, compile: int = 0) -> Entry:
        entry = Entry(program_hash, program, len(_encode(program)), timed, compile)
        (self._timed if timed else self._kept)[program_hash] = entry
        self.nbytes += entry.nbytes
        self.last_used = program_hash
        return entry

    def keep(self, entry: Entry) -> None:
        """It was cut by a timer once, now it ended by itself: it no longer goes first."""
        if entry.timed:
            entry.timed = False
            del self._timed[entry.hash]
            self._kept[entry.hash] = entry

    def finish(self, entry: Entry, checked: Checked | None, error: str) -> None:
        """The check is done."""
        if checked is None:
            entry.error = error or "no reason given"
            return
        before = entry.nbytes
        entry.accept(checked)
        self.nbytes += entry.nbytes - before

    def evict(self) -> list[Entry]:
        """Forget what is over the limit; returns it."""
        gone: list[Entry] = []
        for shelf in (self._timed, self._kept):
            if self.nbytes <= self.limit_nbytes:
                break
            for entry in list(shelf.values()):
                if self.nbytes <= self.limit_nbytes:
                    break
                if entry.spare and entry.hash != self.last_used:
                    del shelf[entry.hash]
                    self.nbytes -= entry.nbytes
                    gone.append(entry)
        return gone

    # --- joint plans ---

    def add_plan(self, entry: Entry, key: tuple[object, ...], made: Plan) -> list[bytes]:
        """Enter a joint plan; returns local programs that went for it."""
        gone: list[bytes] = []
        for old in list(entry.plans):
            if len(entry.plans) < PLANS_PER_PROGRAM:
                break
            if not entry.plans[old].uses:
                gone += self._drop_plan(entry, old)
        entry.plans[key] = made
        assert made.parts is not None
        for part in made.parts.values():
            text, count = self._locals.get(part.hash, (part.program, 0))
            self._locals[part.hash] = text, count + 1
            made.nbytes += len(_encode(text)) + 300 * len(text.code)
        entry.nbytes += made.nbytes
        self.nbytes += made.nbytes
        return gone

    def drop_plans(self, entry: Entry, worker: int = 0) -> list[bytes]:
        """Forget a program's plans, or those with this worker; returns local programs that nobody has any more."""
        chosen = [k for k, p in entry.plans.items() if not p.uses and (not worker or worker in p.workers)]
        return [name for key in chosen for name in self._drop_plan(entry, key)]

    def _drop_plan(self, entry: Entry, key: tuple[object, ...]) -> list[bytes]:
        old = entry.plans.pop(key)
        gone: list[bytes] = []
        for part in old.all_parts():
            text, count = self._locals[part.hash]
            self._locals[part.hash] = text, count - 1
            if count == 1:
                del self._locals[part.hash]
                gone.append(part.hash)
        entry.nbytes -= old.nbytes
        if entry.hash in self._kept or entry.hash in self._timed:
            self.nbytes -= old.nbytes
        return gone

    def text(self, name: bytes) -> Program | None:
        """The program of this hash: a client's that was checked, or one of a joint plan."""
        entry = self.get(name)
        if entry is not None and entry.checked is not None:
            return entry.program
        return self._locals[name][0] if name in self._locals else None

    def local_counts(self) -> dict[bytes, int]:
        """How many parts of plans have each local program."""
        return {name: count for name, (_, count) in self._locals.items()}

    def wait(self, session: Session, program: bytes) -> None:
        session.blocked_on = program
        self.waiting.setdefault(program, {})[session.number] = session

    def stop_waiting(self, session: Session) -> None:
        if session.blocked_on:
            waiters = self.waiting[session.blocked_on]
            del waiters[session.number]
            if not waiters:
                del self.waiting[session.blocked_on]
            session.blocked_on, session.asked = b"", False
