"""The dispatcher's process: the sockets, the clock and a background thread around the state machine.

Law 1: only the loop's thread touches the machine.
Law 2: no event ends the loop. One that the machine cannot handle is dropped and reported on stderr, and
       the peer that sent it is cut off.
Law 3: time enters the machine every TICK_S and at no other moment.

The loop reads what has come, hands each message to `handle`, does what that asks for, and sleeps when
nothing is left. New programs are checked, and planned for several workers, in one background thread, so that one
user's programs do not hold up the others' calls. Small ones of the only user are checked at once: to wake that thread,
and to be woken by it, would take longer. Better plans are searched for in another process (solving.py).
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol

import msgspec

from gt.awake import Awake
from gt.dispatcher import events
from gt.dispatcher.plans import work_off
from gt.dispatcher.recording import LoopRecorder
from gt.dispatcher.solving import Solving
from gt.dispatcher.stopped import Stopped
from gt.transport import messages
from gt.transport.messages import MAX_FRAMES
from gt.transport.plain_router import PlainRouter
from gt.transport.router import Router

TICK_S = 0.1
FLUSH_EVERY = 8  #: Messages handled before what they caused is sent.
BURST = 256  #: Messages handled before the loop looks at anything else.
#: How long a check may hold the interpreter while the loop wants it; Python's own choice is 5 ms.
SWITCH_S = 0.0005
#: How long the loop looks for a worker's answer before it sleeps. Where there is one CPU the worker needs it.
SPIN_S = 80e-6 if len(os.sched_getaffinity(0)) > 1 else 0.0


_EXCHANGED = (messages.Fetch, messages.Chunk)  #: Messages whose sender expects an answer soon, or gives one.
_HELLOS = (messages.Hello, messages.WorkerHello, messages.Alive)


class Handler(Protocol):
    """The state machine, as the loop sees it: `gt.dispatcher.machine.Machine`."""

    def handle(self, event: events.Event) -> list[events.Effect]: ...

    def busy(self) -> bool:
        """Whether a worker has calls that are not done."""


#: Sees every event and every action, for the instruction log and for debugging.
Observer = Callable[[events.Event | events.Effect], None]


class Server:
    """See the file's header."""

    def __init__(
        self, router: Router | PlainRouter, machine: Handler, observers: list[Observer] | None = None,
        solving: Solving | None = None, awake: Awake | None = None,
    ) -> None:  # fmt: skip
        self.router = router
        #: Called about every TICK_S and when a worker joins; may call `stop`. What it raises ends `run`.
        self.on_tick: Callable[[], None] | None = None
        self.workers: dict[events.Peer, int] = {}  #: Connections of workers that joined: which worker it is.
        #: Called every TICK_S and at the end: what was logged is handed on.
        self.flush_log: Callable[[], None] | None = None
        self._handle, self._busy = machine.handle, machine.busy
        self._observers = tuple(observers or ())
        self._recorder = LoopRecorder()  #: of a trace
        self._awake = awake or Awake(0)
        self._at_work = 0  #: Jobs of the background thread.
        self._stopped = Stopped()
        self._stopping = False
        self._out: dict[events.Peer, list[Any]] = {}  #: Frames to send, by peer; see `_flush`.
        self._jobs: SimpleQueue[events.CheckProgram | events.MakePlan | None] = SimpleQueue()
        #: Written by the background threads, read by the loop.
        self._ready: deque[events.ProgramChecked | events.PlanReady | events.PlanSolved] = deque()
        self._solving = solving
        if solving is not None:
            solving.done = self._solved
        self._woken = False
        self._wake_r, self._wake_w = os.pipe()
        os.set_blocking(self._wake_r, False)
        os.set_blocking(self._wake_w, False)
        router.watch(self._wake_r)

    def stop(self) -> None:
        """Make `run` return soon. Safe in a signal handler and in other threads."""
        self._stopping = True
        self._wake()

    def tell(self, event: events.Event) -> None:
        """Something happened beside the connections; to be called in `on_tick`."""
        self._feed(event)
        self._flush()

    def joined(self) -> int:
        """How many workers are there with both of their connections."""
        return sum(n == 2 for n in Counter(self.workers.values()).values())

    def run(self) -> None:
        """Serve until `stop`; then tell the workers and close the sockets."""
        switch_s = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_S)
        background = Thread(target=self._work_off_jobs, name="gt-plan", daemon=True)
        background.start()
        try:
            self._loop()
        finally:
            sys.setswitchinterval(switch_s)
            self._jobs.put(None)
            if self._solving is not None:
                self._solving.close()
            self._flush_log()
            for peer in self.workers:
                self.router.send(peer, messages.encode(messages.Goodbye()))
            self.router.close()
            background.join(1.0)
            os.close(self._wake_r)
            if not background.is_alive():  # else it may still write there; the process ends now anyway
                wake_w, self._wake_w = self._wake_w, -1  # a late `stop` must not write to another file with this number
                os.close(wake_w)

    def _loop(self) -> None:
        router, receive = self.router, self.router.receive
        news = True
        tick_at = 0.0
        while not self._stopping:
            got = None
            for i in range(BURST):
                got = receive()
                if got is None:
                    break
                peer, frames = got
                try:
                    decoded = messages.decode_all(frames)
                except messages.BadMessage as e:
                    self._feed(events.BadFramesCame(peer, str(e)), peer)
                else:
                    for message, payload in decoded:
                        if type(message) is messages.Share:  # a process id that a peer sends is checked
                            message = msgspec.structs.replace(message, pid=router.pid(peer, message.pid))
                        elif type(message) is messages.WorkerHello:
                            router.pid(peer, message.pid)
                        elif type(message) is messages.Spans:
                            message = self._recorder.with_offset(peer, message)
                        elif type(message) in _EXCHANGED:
                            self._awake.exchanged()
                        user = router.user(peer) if type(message) in _HELLOS else None
                        self._feed(events.MessageCame(peer, message, payload, user), peer)
                if i % FLUSH_EVERY == 0 or len(frames) > 1:  # tensor bytes take long enough to be sent at once
                    self._flush()
            while self._ready:
                self._take_in(self._ready.popleft())
            self._flush()
            now = time.monotonic()
            if now >= tick_at or news:
                for peer in router.lost():
                    self._feed_lost(peer)
            if now >= tick_at:
                tick_at = now + TICK_S
                self._feed(events.TimePassed(now))
                for peer in self._stopped.look(now, self.workers, router.pid):
                    router.disconnect(peer)
                    self._feed_lost(peer)
                self._flush()
                self._flush_log()
                if self.on_tick is not None:
                    self.on_tick()
            if got is None and not self._stopping:
                news = self._wait(tick_at - now)
            if self._woken:
                self._woken = False
                with suppress(BlockingIOError):
                    os.read(self._wake_r, 64)

    def _wait(self, timeout_s: float) -> bool:
        """Sleep until something happens; see `Router.wait`. While something is due soon it polls first, because to be
        woken takes longer than most calls; but not while the background thread works, which needs the interpreter."""
        spin_s = 0.0 if self._at_work else self._awake.left_s()
        if self._busy():
            return self.router.wait(timeout_s, spin_s or SPIN_S)
        return self.router.wait(timeout_s, spin_s, self._awake.patience)

    def _take_in(self, result: events.ProgramChecked | events.PlanReady | events.PlanSolved) -> None:
        if type(result) is not events.PlanSolved:
            self._at_work -= 1
        self._feed(result)

    def _feed(self, event: events.Event, peer: events.Peer | None = None) -> None:
        if self._observers:
            self._observe(event)
        try:
            if self._recorder.recording is None:
                actions = self._handle(event)
            else:
                actions = self._recorder.handle(self._handle, event)
        except Exception:
            _say(f"gt: the dispatcher dropped {event!r:.500}\n{traceback.format_exc()}")
            if peer is not None:
                self.router.disconnect(peer)
                self._feed_lost(peer)
            return
        for action in actions:
            self._act(action)

    def _observe(self, what: events.Event | events.Effect) -> None:
        for observe in self._observers:
            try:
                observe(what)
            except Exception as e:  # a full disk, say: the log ends, the server does not
                self._observers = tuple(each for each in self._observers if each is not observe)
                _say(f"gt: logging stopped: {type(e).__name__}: {e}")

    def _flush_log(self) -> None:
        if self.flush_log is None:
            return
        try:
            self.flush_log()
        except Exception as e:  # as in _observe
            self.flush_log = None
            _say(f"gt: logging stopped: {type(e).__name__}: {e}")

    def _feed_lost(self, peer: events.Peer) -> None:
        self.workers.pop(peer, None)
        self._feed(events.PeerLost(peer))

    def _act(self, action: events.Effect) -> None:
        if self._observers:
            self._observe(action)
        if type(action) is events.Send:
            message = action.message
            if type(message) is messages.Trace:
                self._recorder.asks(action.peer, message)
            if type(message) is messages.WorkerWelcome:
                self.workers[action.peer] = message.worker
                if self.on_tick is not None:
                    self.on_tick()
            try:
                frames = messages.encode(message, action.payload)
            except Exception:  # what cannot be encoded; its receiver would wait for it forever
                _say(f"gt: cannot send {action!r:.500}\n{traceback.format_exc()}")
                self._flush()
                self.router.disconnect(action.peer)
                self._feed_lost(action.peer)
                return
            held = self._out.get(action.peer)
            if held is None:
                self._out[action.peer] = frames
            else:
                held += frames
                if len(held) > MAX_FRAMES - 2:
                    self._flush()
        elif type(action) is events.CheckProgram or type(action) is events.MakePlan:
            self._at_work += 1
            if type(action) is events.CheckProgram and action.at_once:
                self._ready.append(self._recorder.work_off(action, work_off))
            else:
                self._jobs.put(action)
        elif type(action) is events.Solve and self._solving is not None:
            self._solving.start(action)
        elif type(action) is events.RecordLoop:
            recorded = self._recorder.record(action)
            if recorded is not None:
                self._feed(recorded)
        elif type(action) is events.Disconnect:
            self._flush()
            self.workers.pop(action.peer, None)
            self.router.disconnect(action.peer)

    def _flush(self) -> None:
        """Send what the last few events made; to each peer as one, so that it wakes once."""
        if self._out:
            out, self._out = self._out, {}
            for peer, frames in out.items():
                self.router.send(peer, frames)

    def _work_off_jobs(self) -> None:
        """The background thread."""
        while (job := self._jobs.get()) is not None:
            self._ready.append(self._recorder.work_off(job, work_off))
            self._wake()

    def _solved(self, answer: events.PlanSolved) -> None:
        """A search is over; called in its thread."""
        self._ready.append(answer)
        self._wake()

    def _wake(self) -> None:
        with suppress(OSError):  # full: it is awake already; closed: it has ended
            os.write(self._wake_w, b"x")
        self._woken = True  # after the write: once it is seen there is something to read


def _say(text: str) -> None:
    with suppress(OSError):  # the reader may be gone: a closed terminal, the other end of a pipe
        print(text, file=sys.stderr, flush=True)


def print_event(what: events.Event | events.Effect) -> None:
    """The observer of GT_DEBUG_DISPATCHER."""
    if type(what) is not events.TimePassed:
        print(f"gt dispatcher: {what!r:.1000}", file=sys.stderr, flush=True)


def print_arrivals(what: events.Event | events.Effect) -> None:
    """The observer of GT_VERBOSE: who joins and who leaves."""
    if type(what) is events.PeerLost:
        print(f"gt: connection {what.peer.hex()} ended", file=sys.stderr, flush=True)
    elif type(what) is events.Send:
        message, who = what.message, what.peer.hex()
        if type(message) is messages.Welcome:
            print(f"gt: connection {who} is session {message.session}", file=sys.stderr, flush=True)
        elif type(message) is messages.WorkerWelcome:
            print(f"gt: connection {who} is worker {message.worker}", file=sys.stderr, flush=True)
        elif type(message) is messages.Refused:
            print(f"gt: connection {who} was refused: {message.text}", file=sys.stderr, flush=True)
