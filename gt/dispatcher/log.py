"""The instruction log, as the dispatcher's loop sees it: a note of everything that passes, and no more.

A line of text takes several microseconds, which is too long for the loop: clients wait for it. So the loop notes what
came and what was sent (`__call__`) and packs its notes, a few at a time, for a process that makes the lines and writes
them (log_writer.py, lines.py). Ten times a second that process is given what was packed (`flush`). What only the
dispatcher knows is put into words here: the text of a new program, layouts, plans.

Law 1: it only reads, and keeps nothing but names and notes. A note never keeps a payload, only its length.
Law 2: what failed is handed on at once, with all that was noted before.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from gt.dispatcher import events
from gt.dispatcher.events import Peer
from gt.dispatcher.lines import (
    CLOSED,
    IDS,
    LOST,
    MAY_FAIL,
    RECV,
    SEEN,
    SEND,
    WORDS,
    Facts,
    Told,
    clean,
    failed,
    show_ids,
)
from gt.dispatcher.planner.plan import Planned
from gt.dispatcher.session import Session, Tensor, Upload
from gt.layout import Layout
from gt.ops.record import TABLE
from gt.places import Place, by_instruction, show
from gt.program import Program
from gt.transport import messages

RESULTS = 1000  #: Results of one instruction that are shown.
SHORT = 8  #: Instructions of a program whose ops are named on every line.
SPECS = 4  #: Results of a call whose shapes are shown,
HELD = 16  #: and tensors of a layout.
WAITING = 32  #: Notes that are packed together. Few: while messages are kept, others need memory that is in no cache.

#: Messages that are much longer than what is said of them,
LONG = frozenset([messages.Define, messages.Spans, messages.Stats, messages.UsePlan])
#: and events that are no messages. Both are handed on in words.
IN_WORDS = frozenset([
    events.BadFramesCame, events.PlanReady, events.Solve, events.PlanSolved, events.Decided, events.Noted,
])  # fmt: skip

#: When, which way, whose connection, what it was, the length of its payload, the shapes of what a call makes.
Note = tuple[float, int, Peer, object, int, str]

_pack = msgspec.msgpack.Encoder().encode


class Held(Protocol):
    """What the log reads of the dispatcher's state: gt.dispatcher.state.State."""

    @property
    def sessions(self) -> dict[int, Session]: ...


@dataclass(frozen=True, slots=True)
class Spread:
    """Tensors of a session that are on several workers, with their ids."""

    session: int
    tensors: list[tuple[int, Tensor]]


class InstructionLog:
    """Give it every event and every action, in order. It hands on what was noted, packed for lines.LogLines. With b""
    the receiver is told to go on with what it was given."""

    def __init__(
        self, hand_on: Callable[[bytes], object], clock: Callable[[], float] = time.time, held: Held | None = None
    ) -> None:
        self._hand_on, self._clock, self._held = hand_on, clock, held
        self._notes: list[Note] = []
        self._wordless: list[int] = []  #: Which of the notes have yet to be put into words.
        self._begun = False
        self._ended = False  #: Nothing can be handed on any more: the disk is full, for example.
        self._outputs: dict[bytes, int] = {}  #: How many results a program has,
        self._names: dict[bytes, str] = {}  #: how lines name it,
        self._shapes: dict[bytes, str] = {}  #: and what it makes where a session has one worker.
        self._workers: dict[Peer, int] = {}

    def __call__(self, what: events.Event | events.Effect) -> None:
        if self._ended:
            return
        now_s, shapes, spread = self._clock(), "", None
        if type(what) is events.MessageCame:
            way = RECV
        elif type(what) is events.Send:
            way = SEND
            if type(what.message) is messages.Call or type(what.message) is messages.Chunk:
                shapes, spread = self._makes(what.peer, what.message)
            elif type(what.message) is messages.WorkerWelcome:
                self._workers[what.peer] = what.message.worker
        else:
            self._other(now_s, what)
            return
        message, payload = what.message, what.payload
        if type(message) in LONG:
            self._wordless.append(len(self._notes))
            if type(message) is messages.Define:
                if len(self._outputs) >= SEEN:
                    self._outputs.clear()
                self._outputs[program_hash(message.program)] = len(message.program.outputs)
        self._notes.append((now_s, way, what.peer, message, 0 if payload is None else len(payload), shapes))
        if spread is not None:
            self._note(now_s, spread)
        if type(message) in MAY_FAIL and failed(message):
            self.flush()
        elif len(self._notes) >= WAITING:
            self._pack()

    def _other(self, now_s: float, what: events.Event | events.Effect) -> None:
        """Something that is no message."""
        if type(what) in IN_WORDS:
            self._note(now_s, what)
            self.flush()
        elif isinstance(what, events.PeerLost | events.Disconnect):
            self._notes.append((now_s, LOST if isinstance(what, events.PeerLost) else CLOSED, what.peer, None, 0, ""))
            if self._workers.pop(what.peer, None) is not None:
                self.flush()

    def _note(self, now_s: float, what: object) -> None:
        """Note what will be put into words."""
        self._wordless.append(len(self._notes))
        self._notes.append((now_s, WORDS, b"", what, 0, ""))

    def _makes(self, peer: Peer, message: messages.Call | messages.Chunk) -> tuple[str, Spread | None]:
        """What a message to a worker makes there: the shapes of a call's results, and what is on several workers. That
        has to be asked now: it may be gone when the notes are handed on."""
        session = self._held.sessions.get(message.session) if self._held is not None else None
        if session is None:
            return "", None
        one = len(session.workers) == 1
        if type(message) is messages.Call:
            if one and message.refused is None and message.program in self._shapes:
                return self._shapes[message.program], None
            first, count = message.outputs, min(self._outputs.get(message.program, 0), IDS)
        elif type(message) is messages.Chunk and not one and not message.offset:
            first, count = message.key, 1
        else:
            return "", None
        made = [session.tensors.get(first + i) for i in range(count)]
        tensors = [each.becomes if isinstance(each, Upload) else each for each in made]
        spread = [(first + i, t) for i, t in enumerate(tensors) if isinstance(t, Tensor) and len(t.parts) > 1]
        # Told once, with the first of the workers.
        spread = [(i, t) for i, t in spread if next(iter(t.parts)) == self._workers.get(peer)]
        shapes = ""
        if type(message) is messages.Call:
            alone = [t for t in made if isinstance(t, Tensor) and len(t.parts) == 1]
            shapes = " ".join(repr(t.spec) for t in alone[:SPECS]) + " ..." * (len(alone) > SPECS)
            if one and made and len(alone) == count:
                if len(self._shapes) >= SEEN:
                    self._shapes.clear()
                self._shapes[message.program] = shapes
        return shapes, Spread(session.number, spread) if spread else None

    def flush(self) -> None:
        """Hand on what was noted, to be written now."""
        if not self._ended:
            self._pack(b"")

    def _pack(self, *more: bytes) -> None:
        notes, self._notes = self._notes, []
        wordless, self._wordless = self._wordless, []
        at = 0
        for i in wordless:
            try:
                worded = self._in_words(*notes[i + at])
            except Exception as e:
                worded = [_unreadable(notes[i + at], e)]
            notes[i + at : i + at + 1] = worded
            at += len(worded) - 1
        if notes and not self._begun:
            self._begun = True
            notes.insert(0, (notes[0][0], WORDS, b"", Told("START", "log", f"process {os.getpid()}"), 0, ""))
        self._ended = True  # unless it can be handed on
        for packed in [_packed(notes), *more] if notes else more:
            self._hand_on(packed)
        self._ended = False

    # --- in words ----------------------------------------------------------------------------------------------------

    def _in_words(self, now_s: float, way: int, peer: Peer, what: object, nbytes: int, _: str) -> list[Note]:
        """The same, in words."""
        if isinstance(what, messages.Message):
            nbytes += len(messages.encode(what)[0])
            return [(now_s, way, peer, self._message(what), nbytes, "")]
        if isinstance(what, Spread):
            return [(now_s, WORDS, b"", told, size, "") for told, size in _spread(what)]
        if isinstance(what, events.BadFramesCame):
            told = Told("RECV", "(not a message)", f"ERROR {clean(what.text)}")
            peer = what.peer
        elif isinstance(what, events.PlanReady):
            told = self._plan(what)
        elif isinstance(what, events.Solve):
            told = Told("PLAN", "Solve", f"session {what.session} {self._name(what.program)}")
        elif isinstance(what, events.PlanSolved):
            found = ", ".join(f"{show_axes(each.axes)} {each.time_us:,.0f} us" for each in what.plans)
            says = what.error or f"predicted: {found}; {what.current_us:,.0f} us for the plan that runs"
            text = f"session {what.session} {self._name(what.program)} {says}"
            below = tuple(clean(line, 200) for each in what.plans[:1] for line in each.text.splitlines())
            told = Told("PLAN", "Solved", clean(text, 1000), below)
        elif isinstance(what, events.Decided):
            told = Told("PLAN", "Decided", clean(f"session {what.session} {self._name(what.program)} {what.text}"))
        elif isinstance(what, events.Noted):
            told = Told("SESSION", "noted", clean(f"session {what.session} {what.text}"))
        else:
            raise AssertionError(what)
        return [(now_s, WORDS, peer, told, 0, "")]

    def _message(self, m: messages.Message) -> Told:
        """What is said of a long message."""
        what = type(m).__name__
        if isinstance(m, messages.Define):
            return self._define(m)
        if isinstance(m, messages.Spans):
            says = f"trace {m.request}: {m.error or f'{len(m.spans)} spans'}" + (f" of {m.who}" if m.who else "")
        elif isinstance(m, messages.UsePlan):
            says = f"body {m.body[:8]}: {len(m.choices)} choices for {len(m.ways)} instructions on {show_axes(m.axes)}"
        else:
            says = f"request {getattr(m, 'request', 0)}"
        return Told("", what, says)

    def _define(self, m: messages.Define) -> Told:
        """A program; what passes for the first time is written out below the line."""
        name = program_hash(m.program)
        facts: Facts | None = None
        below: tuple[str, ...] = ()
        if name not in self._names:
            if len(self._names) >= SEEN:
                self._names.clear()
            facts = facts_of(m.program, name, m.places)
            self._names[name] = facts.name
            below = tuple(clean(line, 1000) for line in program_text(m.program, m.places))
        says = self._name(name) + (" timed" if m.timed else "")
        says += {1: " compile", -1: " never compile"}.get(m.compile, "")
        return Told("", "Define", says, below, facts, name)

    def _plan(self, made: events.PlanReady) -> Told:
        planned = made.planned
        if planned is None:
            why = "" if made.failure is None else f"{made.failure.kind}: {made.failure.text}"
            return Told("PLAN", "plan", clean(f"ERROR {self._name(made.program)} {why}"))
        who = " ".join(f"{n}:{planned.locals[n].program.hash().hex()[:8]}" for n in planned.workers)
        layouts = " ".join(map(repr, planned.outputs))
        text = f"{self._name(made.program)} workers {who} results {layouts}"
        notes = (*collectives(planned), *planned.notes)
        return Told("PLAN", "plan", clean(text, 1000), tuple(clean(note, 1000) for note in notes))

    def _name(self, program: bytes) -> str:
        return self._names.get(program) or f"{program.hex()[:8]} (?)"


def show_axes(axes: Sequence[tuple[str, int]]) -> str:
    return " ".join(f"{axis}={n}" for axis, n in axes)


def _packed(notes: list[Note]) -> bytes:
    try:
        return _pack(notes)
    except Exception:  # one of them was made by a client and cannot be encoded
        return _pack([*map(_packable, notes)])


def _packable(note: Note) -> Note:
    try:
        _pack(note)
        return note
    except Exception as e:
        return _unreadable(note, e)


def _unreadable(note: Note, why: Exception) -> Note:
    now_s, way, peer, what, nbytes, _ = note
    says = clean(f"ERROR not readable: {type(why).__name__}: {why}")
    return now_s, way, peer, Told("" if way != WORDS else "PLAN", type(what).__name__, says), nbytes, ""


def _spread(made: Spread) -> list[tuple[Told, int]]:
    """Which workers hold what: a line for each layout, with its size."""
    alike: dict[Layout, list[tuple[int, Tensor]]] = {}
    for i, tensor in made.tensors:
        alike.setdefault(tensor.layout, []).append((i, tensor))
    lines = []
    for at, found in alike.items():
        specs = " ".join(repr(t.spec) for _, t in found[:HELD]) + (" ..." if len(found) > HELD else "")
        text = (
            f"session {made.session} holds {show_ids(i for i, _ in found)}, as {specs}, layout {at!r} on {at.mesh!r}: "
        )
        text += "workers " + " ".join(f"{n}" for n in found[0][1].parts)
        lines.append((Told("SHARD", "tensors", clean(text, 1000)), sum(t.nbytes for _, t in found)))
    return lines


def facts_of(program: Program, name: bytes, places: Sequence[Place]) -> Facts:
    """What is remembered of a program, which may not be a valid one."""
    ops = [ins.op for ins in program.code]
    if len(ops) <= SHORT:
        shown = f"({' '.join(ops)})"
    else:
        together = sum(op in TABLE and TABLE[op].collective for op in ops)
        shown = f"({len(ops)} instructions{f', {together} collectives' if together else ''})"
    if places:
        shown += f" at {show(places)}"
    outputs = len(program.outputs)
    updates = tuple((o, i) for o, i in program.updates if 0 <= o < outputs and i >= 0)
    donate = tuple(i for i in program.donate if i >= 0)
    lines = tuple((clean(str(p), 100), p.instructions) for p in places)
    return Facts(clean(f"{name.hex()[:8]} {shown}", 200), outputs, donate, updates, lines)


def collectives(planned: Planned) -> list[str]:
    """What the workers of a plan do together, a line for each group and kind, in the order of the first."""
    found: dict[str, int] = {}
    for n in planned.workers:
        for ins in planned.locals[n].program.code:
            if ins.op in TABLE and TABLE[ins.op].collective and n == ins.attrs["workers"][0]:
                kind = " ".join([ins.op, *([ins.attrs["kind"]] if "kind" in ins.attrs else [])])
                line = f"collective: {kind} of workers {show_ids(ins.attrs['workers'])}"
                found[line] = found.get(line, 0) + 1
    return [f"{line}, {count} times" if count > 1 else line for line, count in found.items()]


def program_hash(program: Program) -> bytes:
    try:
        return program.hash()
    except Exception:  # it was not checked yet
        return b""


def program_text(program: Program, places: Sequence[Place] = ()) -> list[str]:
    """The lines of a program, which may not be a valid one, each with the user's line."""
    if any(ins.results > RESULTS for ins in program.code):
        return ["(not readable: too many results)"]  # a client may declare any number
    try:
        lines = program.text().split("\n")
        where = by_instruction(places) if sum(p.instructions for p in places) == len(program.code) else []
        for i, place in enumerate(where, 1):
            lines[i] = f"{lines[i]:<60}  {place} {place.called}".rstrip()
        return lines
    except Exception as e:
        return [f"(not readable: {type(e).__name__}: {e})"]
