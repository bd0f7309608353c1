"""The instruction log: every message that passes the dispatcher, one line each.

    12:00:00.123456     17  RECV         train.py@ann     Call     94  #3 7f3a01bc (12 instructions) ...

Columns: time, running number, direction, who, what, size in bytes, details. RECV and SEND are the client
side, WORKER_RECV and WORKER_SEND the workers'. When a program passes for the first time its instructions
are listed below the line. PLAN is a plan for several workers: who runs which local program, the layouts of the
results, and below it what no rule covers.

Law 1: it only reads. It formats what the machine took in and gave out, and keeps nothing but names.
Law 2: a message is one line, whatever a client wrote into its name; tokens and tensor bytes are never written.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from gt.dispatcher.events import BadFramesCame, Disconnect, Effect, Event, MessageCame, Peer, PeerLost, PlanReady, Send
from gt.program import Program
from gt.transport import messages
from gt.transport.messages import Buffer

RESULTS = 1000  #: Results of one instruction that are shown.
SEEN = 1 << 16  #: Programs whose length is remembered.


class InstructionLog:
    """Give it every event and every action, in order; it writes lines, each with its line end."""

    def __init__(self, write: Callable[[str], object], clock: Callable[[], float] = time.time) -> None:
        self._write = write
        self._clock = clock
        self._number = 0
        self._names: dict[Peer, str] = {}
        self._workers: set[Peer] = set()
        self._lengths: dict[bytes, int] = {}  #: program -> its number of instructions

    def __call__(self, what: Event | Effect) -> None:
        if isinstance(what, MessageCame):
            message = what.message
            if isinstance(message, messages.Hello):
                self._names.setdefault(what.peer, clean(message.name) or "client")
            elif isinstance(message, messages.WorkerHello) and what.peer not in self._names:
                self._workers.add(what.peer)
                self._names[what.peer] = "worker ?"
            self._message("RECV", what.peer, message, what.payload)
        elif isinstance(what, Send):
            if isinstance(what.message, messages.WorkerWelcome):
                self._names[what.peer] = f"worker {what.message.worker}"
            self._message("SEND", what.peer, what.message, what.payload)
            if isinstance(what.message, messages.Welcome):
                self._line("CONNECT", what.peer, "client", 0, f"session {what.message.session}")
            elif isinstance(what.message, messages.WorkerWelcome):
                self._line("CONNECT", what.peer, "worker", 0, "")
        elif isinstance(what, BadFramesCame):
            self._line("RECV", what.peer, "(not a message)", 0, clean(what.text))
        elif isinstance(what, PlanReady):
            self._plan(what)
        elif isinstance(what, PeerLost | Disconnect):
            self._line("DISCONNECT", what.peer, "lost" if isinstance(what, PeerLost) else "closed", 0, "")
            self._names.pop(what.peer, None)
            self._workers.discard(what.peer)

    def _message(self, way: str, peer: Peer, message: messages.Message, payload: Buffer | None) -> None:
        program = message.program if isinstance(message, messages.Define) else None
        name = program_hash(program) if program is not None else b""
        new = program is not None and name not in self._lengths
        if program is not None and new:
            if len(self._lengths) >= SEEN:
                self._lengths.clear()
            self._lengths[name] = len(program.code)
        nbytes = sum(len(frame) for frame in messages.encode(message, payload))
        way = f"WORKER_{way}" if peer in self._workers else way
        self._line(way, peer, type(message).__name__, nbytes, self._details(message, name))
        if program is not None and new:
            self._write("".join(f"    | {clean(line, 1000)}\n" for line in program_text(program)))

    def _plan(self, made: PlanReady) -> None:
        planned = made.planned
        if planned is None:
            text = "" if made.failure is None else f"{made.failure.kind}: {made.failure.text}"
            self._line("PLAN", b"", "Plan", 0, clean(f"{self._program(made.program)} {text}"))
            return
        who = " ".join(f"{n}:{planned.locals[n].program.hash().hex()[:8]}" for n in planned.workers)
        layouts = " ".join(map(repr, planned.outputs))
        text = f"{self._program(made.program)} workers {who} results {layouts}"
        self._line("PLAN", b"", "Plan", 0, clean(text, 1000))
        self._write("".join(f"    | {clean(note, 1000)}\n" for note in planned.notes))

    def _line(self, way: str, peer: Peer, what: str, nbytes: int, details: str) -> None:
        self._number += 1
        who = self._names.get(peer) or (f"peer {peer.hex()[:16]}" if peer else "dispatcher")
        now_s = self._clock()
        clock = time.strftime("%H:%M:%S", time.localtime(now_s)) + f".{int(now_s % 1 * 1e6):06d}"
        line = f"{clock} {self._number:6d}  {way:<12} {who:<16} {what:<12} {nbytes:8d}  {details}"
        self._write(line.rstrip() + "\n")

    def _program(self, name: bytes) -> str:
        count = self._lengths.get(name)
        return f"{name.hex()[:8]} ({'?' if count is None else count} instructions)"

    def _details(self, m: messages.Message, name: bytes) -> str:
        match m:
            case messages.Call():
                text = f"#{m.seq} {self._program(m.program)} {len(m.inputs) // 8} in, results from {m.outputs}"
                if m.scalars:
                    text += f", {len(m.scalars)} scalars"
                if m.frees:
                    text += f", frees {len(m.frees) // 8}"
                if m.refused is not None:
                    text += f", refused: {m.refused.kind}: {m.refused.text}"
            case messages.Define():
                text = self._program(name) + (" timed" if m.timed else "")
                text += {1: " compile", -1: " never compile"}.get(m.compile, "")
            case messages.Need() | messages.Forget():
                text = self._program(m.program)
            case messages.Chunk():
                text = f"{m.key}: from {m.offset} of {m.total}"
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
                text = f"{'upload' if m.upload else 'fetch'} {m.key}"
            case messages.Fetch():
                text = f"request {m.request}: tensor {m.id}" + (f", {len(m.slots)} slots lent" if m.slots else "")
            case messages.Cancel():
                text = f"request {m.request}"
            case messages.Free():
                text = f"{len(m.ids) // 8} tensors"
            case messages.FetchFailed():
                text = f"request {m.request}: {m.error.kind}: {m.error.text}"
            case messages.CallDone():
                text = f"#{m.seq} {m.run_us} us"
            case messages.CallFailed():
                text = f"#{m.seq} because of #{m.root}: {m.error.kind}: {m.error.text}"
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
            case messages.GetStats() | messages.Stats():
                text = f"request {m.request}"
            case messages.Hello():
                text = f"version {m.version}"
            case messages.WorkerHello():
                which = "control" if m.control else "results"
                text = f"version {m.version}, {which}, {m.engine} {m.device} {m.memory} bytes {m.host} {m.pid}"
            case messages.Welcome():
                text = f"session {m.session}"
            case messages.CloseSession():
                text = f"session {m.session}"
            case _:
                text = ""
        session = getattr(m, "session", 0)
        if session and not isinstance(m, messages.Welcome | messages.CloseSession):
            text = f"session {session} {text}"
        return clean(text)


def clean(text: str, limit: int = 300) -> str:
    """Text that stays on its line."""
    text = "".join(c if c.isprintable() else "?" for c in text[: limit + 1])
    return text if len(text) <= limit else text[:limit] + "..."


def program_hash(program: Program) -> bytes:
    try:
        return program.hash()
    except Exception:  # it was not checked yet
        return b""


def program_text(program: Program) -> list[str]:
    """The lines of a program, which may not be a valid one."""
    if any(ins.results > RESULTS for ins in program.code):
        return ["(not readable: too many results)"]  # a client may declare any number
    try:
        return program.text().split("\n")
    except Exception as e:
        return [f"(not readable: {type(e).__name__}: {e})"]
