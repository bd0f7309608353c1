"""The lines of the instruction log: every message that passes the dispatcher, one line each.

    12:00:00.123456  +1.034512      17  RECV         ann/train.py-17    Call           0.1  session 1 #3 7f3a01bc ...

Columns, with two spaces or more between them: time of day, seconds since the log began, running number, direction, who,
what, size in KB, details. RECV and SEND are the client side, WORKER_RECV and WORKER_SEND the workers'. `gt log` follows
a tensor, a session or a program through it (gt/cli/log.py).

A call tells its inputs, what it makes, replaces and frees by their ids; lists are capped. It names the ops of a short
program and counts those of a long one. When a program passes for the first time its instructions are listed below the
line, each with the user's line. PLAN is a plan for several workers: who runs which local program, the layouts of the
results, and below it the collectives and what no rule covers. SHARD tells which workers hold which tensor in which
layout; a tensor of a session on one worker is where the call was sent. What failed begins with ERROR.

The dispatcher's notes (log.py) become lines in another process (log_writer.py).

Law 1: a message is one line, whatever a client wrote into its name; tokens and tensor bytes are never written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import msgspec

from gt.dispatcher.events import Peer
from gt.transport import messages
from gt.transport.messages import unpack_ids

SEEN = 1 << 16  #: Programs that are remembered.
SIZES = 1 << 12  #: Sizes whose text is remembered.
PACE = 2  #: Lines that are made without a pause.
IDS = 50  #: Ids, or ranges of ids, in one list.

#: What a note is: a message that came or was sent, words of any kind, or the end of a connection.
RECV, SEND, WORDS, LOST, CLOSED = range(5)


class Facts(msgspec.Struct, frozen=True, array_like=True):
    """What is remembered of a program."""

    name: str  #: as lines show it
    outputs: int
    donate: tuple[int, ...]
    updates: tuple[tuple[int, int], ...]
    lines: tuple[tuple[str, int], ...] = ()  #: the user's lines, each with how many instructions in a row it has

    def line_of(self, instruction: int) -> str:
        """The user's line that an instruction comes from; "" if it is not known."""
        for line, count in self.lines:
            instruction -= count
            if instruction < 0:
                return line
        return ""


class Told(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A line whose text is known already: of something that is no message, or of a message that is much longer."""

    way: str  #: "": of a message
    what: str
    says: str
    below: tuple[str, ...] = ()  #: lines that follow
    facts: Facts | None = None  #: of the program that the message defines
    program: bytes = b""  #: and its hash


GREETINGS = frozenset([messages.Hello, messages.WorkerHello, messages.Alive, messages.WorkerWelcome])

_Packed = tuple[float, int, Peer, msgspec.Raw, int, str]
_unpack = msgspec.msgpack.Decoder(list[_Packed]).decode
_read = msgspec.msgpack.Decoder(messages.Message | Told).decode


class LogLines:
    """The lines of one log. `pause` is called every PACE lines, with the time of the next."""

    def __init__(self, pause: Callable[[float], object] | None = None) -> None:
        self._pause = pause
        self._start_s = 0.0
        self._number = 0
        self._second, self._clock_text = -1, ""  #: The time of day, which is formatted once a second.
        self._names: dict[Peer, str] = {}
        self._workers: set[Peer] = set()
        self._sessions: dict[Peer, int] = {}
        self._facts: dict[bytes, Facts] = {}
        self._lines: list[str] = []
        #: Parts of lines that return: direction, peer and message, until a peer comes or goes; sizes.
        self._middles: dict[tuple[str, Peer, str], str] = {}
        self._sizes: dict[int, str] = {}

    def text(self, packed: bytes) -> str:
        """The lines of these notes, each with its end."""
        for n, (now_s, way, peer, raw, nbytes, shapes) in enumerate(_unpack(packed)):
            if self._pause is not None and not n % PACE:
                self._pause(now_s)
            if way == LOST or way == CLOSED:
                self._gone(now_s, way == LOST, peer)
                continue
            what = _read(raw)
            if type(what) is not Told:
                self._message(now_s, way, peer, what, nbytes + len(raw), shapes)
            else:
                self._told(now_s, way, peer, what, nbytes)
        text, self._lines = "".join(self._lines), []
        return text

    def _gone(self, now_s: float, lost: bool, peer: Peer) -> None:
        """A connection has ended."""
        text = f"session {self._sessions[peer]}" if peer in self._sessions else ""
        if lost and peer in self._workers:
            text = f"ERROR the connection of {self._names[peer]} is lost"
        self._line(now_s, "DISCONNECT", peer, "lost" if lost else "closed", 0, text)
        self._middles.clear()
        self._names.pop(peer, None)
        self._sessions.pop(peer, None)
        self._workers.discard(peer)

    def _told(self, now_s: float, way: int, peer: Peer, told: Told, nbytes: int) -> None:
        says = told.says
        if told.way == "START":
            self._start_s = now_s
        if told.facts is not None:
            if len(self._facts) >= SEEN:
                self._facts.clear()
            self._facts[told.program] = told.facts
        if not told.way and peer in self._sessions:
            says = f"session {self._sessions[peer]} {says}".rstrip()
        self._line(now_s, told.way or self._way(way, peer), peer, told.what, nbytes, clean(says, 1500))
        self._lines += [f"    | {line}\n" for line in told.below]

    def _way(self, way: int, peer: Peer) -> str:
        if peer in self._workers:
            return "WORKER_SEND" if way == SEND else "WORKER_RECV"
        return "SEND" if way == SEND else "RECV"

    def _message(self, now_s: float, way: int, peer: Peer, message: messages.Message, nbytes: int, shapes: str) -> None:
        kind = type(message)
        if kind in GREETINGS:
            self._greet(peer, message)
        details = self._details(message, (way == RECV) != (peer in self._workers))
        session = getattr(message, "session", 0) or self._sessions.get(peer, 0)
        if kind is messages.Welcome:
            details = f"session {session}"
        elif session:
            details = f"session {session} {details}".rstrip()
        if kind in MAY_FAIL and failed(message):
            details = f"ERROR {details}"
        if shapes:
            details += f", as {shapes}"
        self._line(now_s, self._way(way, peer), peer, kind.__name__, nbytes, clean(details, 1500))
        if kind is messages.Welcome:
            self._sessions[peer] = session
            self._line(now_s, "CONNECT", peer, "client", 0, f"session {session}")
        elif kind is messages.WorkerWelcome:
            self._line(now_s, "CONNECT", peer, "worker", 0, "")

    def _greet(self, peer: Peer, message: messages.Message) -> None:
        """Learn whose connection it is."""
        self._middles.clear()
        if isinstance(message, messages.Hello):
            self._names.setdefault(peer, clean(" ".join(message.name.split()), 60) or "client")
        elif isinstance(message, messages.WorkerWelcome):
            self._names[peer] = f"worker {message.worker}"
        elif peer not in self._names:
            self._workers.add(peer)
            self._names[peer] = "worker ?"

    def _line(self, now_s: float, way: str, peer: Peer, what: str, nbytes: int, details: str) -> None:
        self._number += 1
        second = int(now_s)
        if second != self._second:
            self._second, self._clock_text = second, time.strftime("%H:%M:%S", time.localtime(second))
        middle = self._middles.get((way, peer, what))
        if middle is None:
            who = self._names.get(peer) or (f"peer {peer.hex()[:16]}" if peer else "dispatcher")
            middle = self._middles[way, peer, what] = f"{way:<12}  {who:<18}  {what:<12}"
        size = self._sizes.get(nbytes)
        if size is None:
            if len(self._sizes) >= SIZES:
                self._sizes.clear()
            size = self._sizes[nbytes] = f"{nbytes / 1000:8.1f}"
        clock = f"{self._clock_text}.{int(now_s % 1 * 1e6):06d}  {now_s - self._start_s:+.6f}"
        details = f"  {details}".rstrip()
        self._lines.append(f"{clock}  {self._number:6d}  {middle}  {size}{details}\n")

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
            found = self._facts.get(failure.program)
            at = "" if found is None else found.line_of(failure.instruction)
            text += f" ({at + ', ' if at else ''}instruction {failure.instruction} of {self._program(failure.program)})"
        return text

    def _details(self, m: messages.Message, upload: bool) -> str:
        match m:  # what passes most often comes first
            case messages.Call():
                text = self._call(m)
            case messages.CallDone():
                text = f"#{m.seq} {m.run_us} us"
            case messages.Fetch():
                text = f"request {m.request}: tensor {m.id}" + (f", {len(m.slots)} slots lent" if m.slots else "")
                text += ", its layout" if m.layout else ""
            case messages.ChunkAck():
                text = f"upload of tensor {m.key}" if m.upload else f"answer to request {m.key}"
            case messages.Chunk():
                text = f"upload of tensor {m.key}" if upload else f"answer to request {m.key}"
                text += f": {m.offset / 1000:.1f} of {m.total / 1000:.1f} KB"
                if m.dtype:
                    text += f", {m.dtype}{list(m.shape)}"
                if m.slot >= 0:
                    text += f", in slot {m.slot}"
                if m.part or m.layout:
                    text += f", part {m.part}" if m.part else f", as {m.layout}"
            case messages.Free():
                text = f"frees {show_ids(_unpacked(m.ids))}"
            case messages.Need() | messages.Forget() | messages.Prepare() | messages.Prepared():
                text = self._program(m.program)
            case messages.Share():
                text = f"ring {m.ring}: file {m.fd} of process {m.pid}"
            case messages.Shared():
                text = f"ring {m.ring}: {'yes' if m.ok else 'no'}"
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
            case messages.CallFailed():
                text = f"#{m.seq} because of #{m.root}: {self._why(m.error)}"
            case messages.Refused() | messages.Rejected():
                text = m.text
            case messages.SetMesh():
                axes = " ".join(f"{axis}={n}" for axis, n in m.axes)
                text = f"request {m.request}: {m.name or 'its own'} {axes}" + (f" of {m.members}" if m.members else "")
            case messages.MeshSet():
                text = f"request {m.request}: {m.error or f'workers {m.workers}'}"
            case messages.Sharded():
                text = f"request {m.request}: {m.layout} of {m.dtype}{list(m.shape)} on {m.workers}, parts {m.parts}"
            case messages.Peers():
                text = " ".join(f"{n}:{address}" for n, address in m.addresses.items())
            case messages.Reached():
                text = f"worker {m.worker} {m.error or 'answers'}"
            case messages.Cancel() | messages.GetKept() | messages.GetStats():
                text = f"request {m.request}"
            case messages.Trace():
                text = f"trace {m.request} " + (f"for {m.duration_us / 1e6:g} s" if m.duration_us else "is over")
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
MAY_FAIL = FAILURES | {messages.Call, messages.MeshSet, messages.Kept, messages.Copied}  #: and some of these


def failed(message: messages.Message) -> bool:
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
    ids = [*ids]
    if len(ids) == 1:
        return str(ids[0])
    ranges: list[list[int]] = []
    for i in ids:
        if ranges and i == ranges[-1][1] + 1:
            ranges[-1][1] = i
        else:
            ranges.append([i, i])
    shown = " ".join(f"{a}-{b}" if b > a else f"{a}" for a, b in ranges[:IDS])
    return shown + (f" ... ({sum(b - a + 1 for a, b in ranges)} in all)" if len(ranges) > IDS else "")


def clean(text: str, limit: int = 300) -> str:
    """Text that stays on its line."""
    if len(text) <= limit and text.isprintable():
        return text
    text = "".join(c if c.isprintable() else "?" for c in text[: limit + 1])
    return text if len(text) <= limit else text[:limit] + "..."
