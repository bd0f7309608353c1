"""The instruction log: every message that passes the dispatcher, one line each.

    12:00:00.123456  +1.034512      17  RECV         ann/train.py-17    Call           0.1  session 1 #3 7f3a01bc ...

Columns, with two spaces or more between them: time of day, seconds since the log began, running number, direction, who,
what, size in KB, details. RECV and SEND are the client side, WORKER_RECV and WORKER_SEND the workers'. `gt log` follows
a tensor, a session or a program through it (gt/cli/log.py).

A call tells its inputs, what it makes, replaces and frees by their ids; lists are capped. It names the ops of a short
program and counts those of a long one. When a program passes for the first time its instructions are listed below the
line, each with the user's line. PLAN is a plan for several workers: who runs which local program, the layouts of the
results, and below it the collectives and what no rule covers. SHARD tells which workers hold which tensor in which
layout; a tensor of a session on one worker is where the call was sent. What failed begins with ERROR.

Law 1: it only reads. It formats what the machine took in and gave out, and keeps nothing but names.
Law 2: a message is one line, whatever a client wrote into its name; tokens and tensor bytes are never written.
Law 3: formatting waits until the dispatcher has nothing better to do (`flush`), so that calls do not wait for it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gt.dispatcher import events
from gt.dispatcher.events import Peer
from gt.dispatcher.planner.plan import Planned
from gt.dispatcher.session import AnyTensor, Session, Tensor, Upload
from gt.layout import Layout
from gt.ops.record import TABLE
from gt.places import Place, by_instruction, show
from gt.program import Program
from gt.transport import messages
from gt.transport.messages import Buffer, unpack_ids

RESULTS = 1000  #: Results of one instruction that are shown.
SEEN = 1 << 16  #: Programs that are remembered.
SHORT = 8  #: Instructions of a program whose ops are named on every line.
IDS = 50  #: Ids, or ranges of ids, in one list.
SPECS = 4  #: Results of a call whose shapes are shown,
HELD = 16  #: and tensors of a layout.
WAITING = 256  #: Entries that may wait to be written.

LOGGED = frozenset([
    events.MessageCame, events.Send, events.BadFramesCame, events.PlanReady, events.Solve, events.PlanSolved,
    events.Decided, events.Noted, events.PeerLost, events.Disconnect,
])  # fmt: skip


class Held(Protocol):
    """What the log reads of the dispatcher's state: gt.dispatcher.state.State."""

    @property
    def sessions(self) -> dict[int, Session]: ...


@dataclass(frozen=True, slots=True)
class Facts:
    """What is remembered of a program."""

    name: str  #: as lines show it
    outputs: int
    donate: tuple[int, ...]
    updates: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class LogEntry:
    """Something that happened, until it is written."""

    now_s: float
    what: events.Event | events.Effect
    made: Sequence[AnyTensor | None] = ()  #: of a call that is sent to a worker: its results


class InstructionLog:
    """Give it every event and every action, in order; `flush` writes lines, each with its line end."""

    def __init__(
        self, write: Callable[[str], object], clock: Callable[[], float] = time.time, held: Held | None = None
    ) -> None:
        self._write, self._clock, self._held = write, clock, held
        self._start_s = 0.0
        self._number = 0
        self._second, self._clock_text = -1, ""  #: The time of day, which is formatted once a second.
        self._names: dict[Peer, str] = {}
        self._workers: set[Peer] = set()
        self._sessions: dict[Peer, int] = {}
        self._facts: dict[bytes, Facts] = {}
        self._waiting: list[LogEntry] = []
        self._ended = False  #: It could not be written, on a full disk for example.
        self._lines: list[str] = []

    def __call__(self, what: events.Event | events.Effect) -> None:
        if self._ended:
            return
        if type(what) in LOGGED:
            made = self._made(what) if type(what) is events.Send and self._held is not None else ()
            self._waiting.append(LogEntry(self._clock(), what, made))
            if len(self._waiting) >= WAITING:
                self.flush()

    def flush(self) -> None:
        """Write what has happened since the last time."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        if not self._number:
            self._start_s = waiting[0].now_s
            self._line(self._start_s, "START", b"", "log", 0, f"process {os.getpid()}")
        for entry in waiting:
            self._take(entry)
        text, self._lines = "".join(self._lines), []
        self._ended = True  # unless it can be written
        self._write(text)
        self._ended = False

    def _made(self, sent: events.Send) -> Sequence[AnyTensor | None]:
        """The records of what a message to a worker makes there: they may be gone when it is written."""
        message = sent.message
        if isinstance(message, messages.Call):
            count = self._facts[message.program].outputs if message.program in self._facts else 0
            first = message.outputs
        elif isinstance(message, messages.Chunk) and message.session and not message.offset:
            count, first = 1, message.key
        else:
            return ()
        assert self._held is not None
        session = self._held.sessions.get(message.session)
        if not count and isinstance(message, messages.Call):  # its program waits to be written as well
            self.flush()
            count = self._facts[message.program].outputs if message.program in self._facts else 0
        return [session.tensors.get(first + i) for i in range(min(count, IDS))] if session is not None else ()

    def _take(self, entry: LogEntry) -> None:
        what, now_s = entry.what, entry.now_s
        if type(what) is events.MessageCame:
            message = what.message
            if isinstance(message, messages.Hello):
                self._names.setdefault(what.peer, clean(" ".join(message.name.split()), 60) or "client")
            elif isinstance(message, messages.WorkerHello | messages.Alive) and what.peer not in self._names:
                self._workers.add(what.peer)
                self._names[what.peer] = "worker ?"
            self._message(now_s, "RECV", what.peer, message, what.payload, ())
        elif type(what) is events.Send:
            if isinstance(what.message, messages.WorkerWelcome):
                self._names[what.peer] = f"worker {what.message.worker}"
            self._message(now_s, "SEND", what.peer, what.message, what.payload, entry.made)
            if isinstance(what.message, messages.Welcome):
                self._sessions[what.peer] = what.message.session
                self._line(now_s, "CONNECT", what.peer, "client", 0, f"session {what.message.session}")
            elif isinstance(what.message, messages.WorkerWelcome):
                self._line(now_s, "CONNECT", what.peer, "worker", 0, "")
        elif isinstance(what, events.BadFramesCame):
            self._line(now_s, "RECV", what.peer, "(not a message)", 0, f"ERROR {clean(what.text)}")
        elif isinstance(what, events.PlanReady):
            self._plan(now_s, what)
        elif isinstance(what, events.Solve):
            self._line(now_s, "PLAN", b"", "Solve", 0, f"session {what.session} {self._program(what.program)}")
        elif isinstance(what, events.PlanSolved):
            self._solved(now_s, what)
        elif isinstance(what, events.Decided):
            text = f"session {what.session} {self._program(what.program)} {what.text}"
            self._line(now_s, "PLAN", b"", "Decided", 0, clean(text))
        elif isinstance(what, events.Noted):
            self._line(now_s, "SESSION", b"", "named", 0, clean(f"session {what.session} {what.text}"))
        elif isinstance(what, events.PeerLost | events.Disconnect):
            text = f"session {self._sessions[what.peer]}" if what.peer in self._sessions else ""
            if isinstance(what, events.PeerLost) and what.peer in self._workers:
                text = f"ERROR the connection of {self._names[what.peer]} is lost"
            how = "lost" if isinstance(what, events.PeerLost) else "closed"
            self._line(now_s, "DISCONNECT", what.peer, how, 0, text)
            self._names.pop(what.peer, None)
            self._sessions.pop(what.peer, None)
            self._workers.discard(what.peer)

    def _message(
        self, now_s: float, way: str, peer: Peer, message: messages.Message, payload: Buffer | None,
        made: Sequence[AnyTensor | None],
    ) -> None:  # fmt: skip
        program = message.program if isinstance(message, messages.Define) else None
        places: Sequence[Place] = ()
        name = program_hash(program) if program is not None else b""
        new = program is not None and name not in self._facts
        if program is not None and new:
            if len(self._facts) >= SEEN:
                self._facts.clear()
            places = message.places if isinstance(message, messages.Define) else ()
            self._facts[name] = facts_of(program, name, places)
        nbytes = sum(len(frame) for frame in messages.encode(message, payload))
        upload = (way == "RECV") != (peer in self._workers)
        details = self._details(message, name, upload)
        session = getattr(message, "session", 0) or self._sessions.get(peer, 0)
        if isinstance(message, messages.Welcome):
            details = f"session {message.session}"
        elif session:
            details = f"session {session} {details}".rstrip()
        if _failed(message):
            details = f"ERROR {details}"
        alone = [t for t in made if isinstance(t, Tensor) and len(t.parts) == 1]
        if alone and isinstance(message, messages.Call):
            details += f", as {' '.join(repr(t.spec) for t in alone[:SPECS])}" + (" ..." if len(alone) > SPECS else "")
        way = f"WORKER_{way}" if peer in self._workers else way
        self._line(now_s, way, peer, type(message).__name__, nbytes, clean(details, 1500))
        if program is not None and new:
            self._lines += [f"    | {clean(line, 1000)}\n" for line in program_text(program, places)]
        if made:
            self._shards(now_s, peer, message, made)

    def _shards(self, now_s: float, peer: Peer, message: messages.Message, made: Sequence[AnyTensor | None]) -> None:
        """Who holds what a call or an upload makes on several workers; told once, with the first of them."""
        first = message.outputs if isinstance(message, messages.Call) else getattr(message, "key", 0)
        session = getattr(message, "session", 0)
        alike: dict[Layout, list[tuple[int, Tensor]]] = {}
        for i, each in enumerate(made):
            tensor = each.becomes if isinstance(each, Upload) else each
            if isinstance(tensor, Tensor) and len(tensor.parts) > 1:
                if self._names.get(peer) == f"worker {next(iter(tensor.parts))}":
                    alike.setdefault(tensor.layout, []).append((first + i, tensor))
        for at, found in alike.items():
            specs = " ".join(repr(t.spec) for _, t in found[:HELD]) + (" ..." if len(found) > HELD else "")
            text = (
                f"session {session} holds {show_ids(i for i, _ in found)}, as {specs}, layout {at!r} on {at.mesh!r}: "
            )
            text += "workers " + " ".join(f"{n}" for n in found[0][1].parts)
            self._line(now_s, "SHARD", b"", "tensors", sum(t.nbytes for _, t in found), clean(text, 1000))

    def _plan(self, now_s: float, made: events.PlanReady) -> None:
        planned = made.planned
        if planned is None:
            text = "" if made.failure is None else f"{made.failure.kind}: {made.failure.text}"
            self._line(now_s, "PLAN", b"", "plan", 0, clean(f"ERROR {self._program(made.program)} {text}"))
            return
        who = " ".join(f"{n}:{planned.locals[n].program.hash().hex()[:8]}" for n in planned.workers)
        layouts = " ".join(map(repr, planned.outputs))
        text = f"{self._program(made.program)} workers {who} results {layouts}"
        self._line(now_s, "PLAN", b"", "plan", 0, clean(text, 1000))
        self._lines += [f"    | {clean(note, 1000)}\n" for note in (*collectives(planned), *planned.notes)]

    def _solved(self, now_s: float, made: events.PlanSolved) -> None:
        axes = " ".join(f"{axis}={n}" for axis, n in made.axes)
        says = made.error or f"{axes}: {made.time_us:,.0f} us predicted, {made.current_us:,.0f} for the plan that runs"
        text = f"session {made.session} {self._program(made.program)} {says}"
        self._line(now_s, "PLAN", b"", "Solved", 0, clean(text, 1000))
        self._lines += [f"    | {clean(line, 200)}\n" for line in made.text.splitlines()]

    def _line(self, now_s: float, way: str, peer: Peer, what: str, nbytes: int, details: str) -> None:
        self._number += 1
        who = self._names.get(peer) or (f"peer {peer.hex()[:16]}" if peer else "dispatcher")
        second = int(now_s)
        if second != self._second:
            self._second, self._clock_text = second, time.strftime("%H:%M:%S", time.localtime(second))
        clock = f"{self._clock_text}.{int(now_s % 1 * 1e6):06d}"
        line = (
            f"{clock}  {now_s - self._start_s:+.6f}  {self._number:6d}  {way:<12}  {who:<18}  {what:<12}  "
            f"{nbytes / 1000:8.1f}  {details}"
        )
        self._lines.append(line.rstrip() + "\n")

    def _program(self, name: bytes) -> str:
        found = self._facts.get(name)
        return f"{name.hex()[:8]} (?)" if found is None else found.name

    def _call(self, m: messages.Call) -> str:
        known = self._facts.get(m.program)
        inputs, frees = _unpacked(m.inputs), _unpacked(m.frees)
        text = f"#{m.seq} {self._program(m.program)} in {show_ids(inputs) or 'none'}"
        if known is None:
            text += f", makes {m.outputs}..."
        elif known.outputs:
            text += f", makes {show_ids(range(m.outputs, m.outputs + known.outputs))}"
            replaced = [(inputs[i], m.outputs + o) for o, i in known.updates if i < len(inputs)]
            if replaced:
                text += ", replaces " + " ".join(f"{a}->{b}" for a, b in replaced[:IDS])
                text += " ..." if len(replaced) > IDS else ""
        gone = [*frees, *(inputs[i] for i in (known.donate if known else ()) if i < len(inputs))]
        if gone:
            text += f", frees {show_ids(gone)}"
        if m.scalars:
            text += f", {len(m.scalars)} scalars"
        if m.refused is not None:
            text += f", refused because of #{m.root or m.seq}: {self._why(m.refused)}"
        return text + ", beside others" * m.beside

    def _why(self, failure: messages.Failure) -> str:
        text = f"{failure.kind}: {failure.text}"
        if failure.program and failure.instruction >= 0:
            text += f" (instruction {failure.instruction} of {self._program(failure.program)})"
        return text

    def _details(self, m: messages.Message, name: bytes, upload: bool) -> str:
        match m:
            case messages.Call():
                text = self._call(m)
            case messages.Define():
                text = self._program(name) + (" timed" if m.timed else "")
                text += {1: " compile", -1: " never compile"}.get(m.compile, "")
            case messages.Need() | messages.Forget() | messages.Prepare() | messages.Prepared():
                text = self._program(m.program)
            case messages.Chunk():
                text = f"upload of tensor {m.key}" if upload else f"answer to request {m.key}"
                text += f": {m.offset / 1000:.1f} of {m.total / 1000:.1f} KB"
                if m.dtype:
                    text += f", {m.dtype}{list(m.shape)}"
                if m.slot >= 0:
                    text += f", in slot {m.slot}"
                if m.part or m.layout:
                    text += f", part {m.part}" if m.part else f", as {m.layout}"
            case messages.Share():
                text = f"ring {m.ring}: file {m.fd} of process {m.pid}"
            case messages.Shared():
                text = f"ring {m.ring}: {'yes' if m.ok else 'no'}"
            case messages.ChunkAck():
                text = f"upload of tensor {m.key}" if m.upload else f"answer to request {m.key}"
            case messages.Fetch():
                text = f"request {m.request}: tensor {m.id}" + (f", {len(m.slots)} slots lent" if m.slots else "")
                text += ", its layout" if m.layout else ""
            case messages.Free():
                text = f"frees {show_ids(_unpacked(m.ids))}"
            case messages.Spill():
                text = f"moves {show_ids(_unpacked(m.ids))} out of its device"
            case messages.Spilled():
                kept = f", but {show_ids(_unpacked(m.kept))} stayed: {m.why or 'in use'}" if m.kept else ""
                text = f"{show_ids(_unpacked(m.ids))} moved out{kept}"
            case messages.Return():
                text = f"moves {show_ids(_unpacked(m.ids))} back"
            case messages.Returned():
                text = f"{show_ids(_unpacked(m.ids))} moved back"
            case messages.Rename():
                ids = _unpacked(m.ids)
                text = f"{show_ids(ids)} are now what was made as {show_ids(range(m.first, m.first + len(ids)))}"
            case messages.Copy():
                ids = _unpacked(m.ids)
                made = show_ids(range(m.first, m.first + len(ids)))
                text = f"copy {m.request}: {show_ids(ids) or 'none'} of session {m.source}, as {made or 'none'}"
            case messages.Copied():
                text = f"copy {m.request}" + (f": {self._why(m.error)}" if m.error is not None else "")
            case messages.Keep():
                text = f"request {m.request}: {m.name!r} has {show_ids(_unpacked(m.ids)) or 'no tensors'}"
                if m.published:
                    text += f", published for {' '.join(m.readers) or 'all'}"
            case messages.Take():
                text = f"request {m.request}: {m.owner + '/' if m.owner else ''}{m.name!r} as {m.first}..."
            case messages.Drop():
                text = f"request {m.request}: {m.name!r}" if m.name else f"request {m.request}: everything"
            case messages.Kept():
                text = f"request {m.request}: {' '.join(repr(t.name) for t in m.things)}"
                if m.error is not None:
                    text = f"request {m.request}: {self._why(m.error)}"
            case messages.FetchFailed():
                text = f"request {m.request}: {self._why(m.error)}"
            case messages.CallDone():
                text = f"#{m.seq} {m.run_us} us"
            case messages.CallFailed():
                text = f"#{m.seq} because of #{m.root}: {self._why(m.error)}"
            case messages.Refused() | messages.Rejected():
                text = m.text
            case messages.SetMesh():
                axes = " ".join(f"{axis}={n}" for axis, n in m.axes)
                text = f"request {m.request}: {m.name or 'its own'} {axes}" + (f" of {m.members}" if m.members else "")
            case messages.UsePlan():
                axes = " ".join(f"{axis}={n}" for axis, n in m.axes)
                text = f"body {m.body[:8]}: {len(m.choices)} choices for {len(m.ways)} instructions on {axes}"
            case messages.MeshSet():
                text = f"request {m.request}: {m.error or f'workers {m.workers}'}"
            case messages.Sharded():
                text = f"request {m.request}: {m.layout} of {m.dtype}{list(m.shape)} on {m.workers}, parts {m.parts}"
            case messages.Peers():
                text = " ".join(f"{n}:{address}" for n, address in m.addresses.items())
            case messages.Reached():
                text = f"worker {m.worker} {m.error or 'answers'}"
            case messages.Cancel() | messages.GetKept() | messages.GetStats() | messages.Stats():
                text = f"request {m.request}"
            case messages.Trace():
                text = f"trace {m.request} " + (f"for {m.duration_us / 1e6:g} s" if m.duration_us else "is over")
            case messages.Spans():
                text = f"trace {m.request}: {m.error or f'{len(m.spans)} spans'}" + (f" of {m.who}" if m.who else "")
            case messages.Hello():
                text = f"version {m.version}" + (f", session {m.session!r}" if m.session else "")
            case messages.WorkerHello():
                which = "control" if m.control else "results"
                memory = f"{m.memory / 1000:.0f} KB"
                text = f"version {m.version}, {which}, {m.engine} {m.device} {memory} {m.host} {m.pid}"
            case _:
                text = ""
        return text


FAILURES = frozenset([messages.CallFailed, messages.FetchFailed, messages.Refused, messages.Rejected])


def _failed(message: messages.Message) -> bool:
    """Whether a message says that something failed."""
    kind = type(message)
    if kind in FAILURES:
        return True
    if isinstance(message, messages.Call):
        return message.refused is not None
    return isinstance(message, messages.MeshSet | messages.Kept | messages.Copied) and bool(message.error)


def _unpacked(packed: bytes) -> list[int]:
    return unpack_ids(packed) if len(packed) % 8 == 0 else []


def show_ids(ids: Iterable[int]) -> str:
    """A list of ids, capped; neighbours as ranges.

    >>> show_ids([3, 4, 5, 9, 1, 2])
    '3-5 9 1-2'
    """
    ranges: list[list[int]] = []
    for i in ids:
        if ranges and i == ranges[-1][1] + 1:
            ranges[-1][1] = i
        else:
            ranges.append([i, i])
    shown = " ".join(f"{a}-{b}" if b > a else f"{a}" for a, b in ranges[:IDS])
    return shown + (f" ... ({sum(b - a + 1 for a, b in ranges)} in all)" if len(ranges) > IDS else "")


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
    return Facts(clean(f"{name.hex()[:8]} {shown}", 200), outputs, donate, updates)


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


def clean(text: str, limit: int = 300) -> str:
    """Text that stays on its line."""
    if len(text) <= limit and text.isprintable():
        return text
    text = "".join(c if c.isprintable() else "?" for c in text[: limit + 1])
    return text if len(text) <= limit else text[:limit] + "..."


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
