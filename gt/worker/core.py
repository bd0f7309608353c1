"""The worker as a state machine: messages in, messages out, an engine in between.

Law 1: `receive` only queues work or answers what needs no array. `step` does the next piece of work and
       is the only one to use the engine. `copy` copies uploaded bytes out of shared memory, so that no other work
       waits behind a large upload. Each may run in a thread of its own.
Law 2: the lock is held for bookkeeping only, never while a kernel runs.
Law 3: work is done in the order it came, except that a fetch is served as soon as its value exists:
       at once, or right after the call that makes the value, never after later calls.
Law 4: a call of an unknown program, and all later work of its session, is held until the program's text comes;
       other sessions go on.
Law 5: calls that several workers run together begin in the order in which they came, over all sessions, and each is
       over before the next begins: so two workers never wait for each other in different calls.

How calls run and fail is in calls.py, those run together in together.py; fetches are in fetches.py.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from gt.config import Config
from gt.errors import ProgramError
from gt.transport.messages import (
    Buffer,
    Call,
    CallFailed,
    Cancel,
    Chunk,
    ChunkAck,
    CloseSession,
    Define,
    Failure,
    Fetch,
    Forget,
    Free,
    GetStats,
    Message,
    Need,
    Peers,
    Share,
    Shared,
    Stats,
    WorkerWelcome,
)  # fmt: skip
from gt.transport.shared import SLOTS, Ring, nbytes_of, open_ring
from gt.worker.calls import Calls, Out, free, unpack
from gt.worker.fetches import Fetches
from gt.worker.run.collectives import Groups, Network
from gt.worker.run.engine import Engine
from gt.worker.run.programs import Known, Programs
from gt.worker.run.store import NOTHING
from gt.worker.session import Work, WorkerSession
from gt.worker.together import Together
from gt.worker.transfers import Arrived, Incoming, Outgoing, Pieces, below

IN_FLIGHT = 8  #: Calls of one session that may be on a device at once.
RINGS = 256  #: Rings of clients that may be open here: each takes a file descriptor.
POLL_S = 50e-6  #: How often a busy device is asked whether it is done.


class WorkerCore:
    """See the file's header."""

    def __init__(
        self,
        engine: Engine,
        config: Config,
        log: Callable[[str], None] = lambda line: None,
        network: Callable[[], Network] | None = None,
    ) -> None:
        self.engine = engine
        self.config = config
        self.log = log
        self.programs = Programs(config.cache_bytes)
        self.sessions: dict[int, WorkerSession] = {}
        self._lock = threading.Lock()
        self._bell = threading.Lock()  #: Free while there may be something to do; see `wait`.
        self._calls = Calls(engine, config, self._lock, log)
        self._urgent: deque[Work] = deque()  #: Goes before the queue.
        self._fetches = Fetches(engine, self._calls, self._lock, self._urgent)
        self._queue: deque[Work] = deque()
        self._behind: dict[int, WorkerSession] = {}  #: Sessions with work that waits for a call to be done.
        self._running: Work | None = None
        self._groups = Groups(network)
        self._shared: set[bytes] = set()  #: Programs that several workers run together,
        self._order: deque[Work] = deque()  #: their calls, in the order in which they came,
        self._together: Together | None = None  #: and the one that has begun: the first of them.
        self._needed: set[bytes] = set()  #: Programs that were asked for.
        self.copying = False  #: A large upload is being copied: polling for work would slow it down.
        #: Chunks whose bytes are in a ring.
        self._copies: SimpleQueue[tuple[WorkerSession, Chunk, Ring]] = SimpleQueue()

    # --- the reader's side ---------------------------------------------------------------

    def receive(self, message: Message, payload: Buffer | None = None) -> Out:
        """Take in a message; returns what can be answered at once."""
        out: Out = []
        if isinstance(message, Chunk):
            return self._chunk_came(message, payload)
        if isinstance(message, Share):
            return [(self._share(message), None)]
        going: Outgoing | None = None
        pieces: Pieces = []
        with self._lock:
            match message:
                case Call() | Free():
                    work = Work(self._session(message.session), message)
                    self._queue.append(work)
                    if isinstance(message, Call) and message.program in self._shared:
                        self._give_turn(work)
                case Fetch():
                    self._place_fetch(message)
                case ChunkAck():
                    going, pieces = self._fetches.send_more(self.sessions.get(message.session), message)
                case Define():
                    self._urgent.append(Work(None, message))
                    if message.program.workers:
                        self._shared.add(message.program.hash())
                case Forget():
                    self._queue.append(Work(None, message))
                    self._shared.discard(message.program)
                case Cancel():
                    self._fetches.cancel(self.sessions.get(message.session), message)
                case CloseSession():
                    self._close(message.session)
                case GetStats():
                    out.append((Stats(message.request, self._stats()), None))
                case WorkerWelcome():
                    self._groups.me = message.worker
                case Peers():
                    self._groups.know(message.addresses)
                case _:
                    pass  # other greetings are handled in main.py
        if going is not None:
            out.extend(going.fill(pieces))
        self.ring()
        return out

    def copy(self, wait: bool = False) -> Out | None:
        """Copy the next chunk out of a ring; returns what to answer. None: there is none."""
        try:
            session, chunk, ring = self._copies.get(wait)
        except Empty:
            return None
        self.copying = True
        self._take_chunk(session, chunk, ring.slot(chunk.slot, nbytes_of(chunk)))
        self.copying = not self._copies.empty()
        self.ring()
        return [(ChunkAck(chunk.session, chunk.key, upload=True), None)]

    def ring(self) -> None:
        """Wake the thread in `wait`."""
        if self._bell.locked():
            with suppress(RuntimeError):  # another thread has released it
                self._bell.release()

    @property
    def number(self) -> int:
        """The number that the dispatcher gave this worker; 0: not known yet."""
        return self._groups.me

    @property
    def in_flight(self) -> int:
        """Calls and fetches on the device; `step` has to be called again to learn that they are done."""
        return self._calls.in_flight + len(self._fetches)

    @property
    def waiting(self) -> bool:
        """Whether something waits for the device: a fetch, or work behind a call whose outcome is on the device."""
        return bool(self._behind or self._fetches)

    @property
    def busy(self) -> bool:
        """Whether `step` would do something now. For tests with many workers in one thread; calls and fetches on a
        device are not counted."""
        if self._queue or self._urgent or (self._together is not None and self._together.ready):
            return True
        return any(self._may_begin(s.behind[0]) for s in self._behind.values())

    def wait(self, timeout_s: float) -> bool:
        """Sleep until there may be something to do; False if nothing came in time."""
        if self.in_flight:  # the device does not wake us: poll
            self._bell.acquire(timeout=POLL_S)
            return True
        return self._bell.acquire(timeout=timeout_s)

    def _session(self, number: int) -> WorkerSession:
        session = self.sessions.get(number)
        if session is None:
            session = self.sessions[number] = WorkerSession(number)
        return session

    def _place_fetch(self, fetch: Fetch) -> None:
        session = self._session(fetch.session)
        work = self._fetches.take_in(session, fetch)
        if fetch.id in session.store.entries:
            self._urgent.append(work)
        elif (maker := self._maker(session, fetch.id)) is not None:
            maker.fetches.append(work)
        elif session.uploads.get(fetch.id) is not None:
            session.upload_fetches.setdefault(fetch.id, []).append(work)
        else:
            self._urgent.append(work)  # nothing will make it: the fetch fails

    def _maker(self, session: WorkerSession, id: int) -> Work | None:
        """The work that will make this value. How many results a call has is only known with its program:
        for lack of a better one, the last call of an unknown program that may make it is taken."""
        guess: Work | None = None
        running = [self._running] if self._running is not None else []
        if self._together is not None:
            running.append(self._together.work)
        for work in (*running, *session.behind, *session.held, *self._queue):
            message: object = work.message
            if work.session is not session:
                continue
            if isinstance(message, Call) and message.outputs <= id:
                known = self.programs.peek(message.program)
                if known is None:
                    guess = work
                elif id < message.outputs + len(known.outputs):
                    return work
            elif isinstance(message, Arrived) and message.id == id:
                return work
        return guess

    def _share(self, share: Share) -> Shared:
        """Open a client's ring; it replaces the one before."""
        ring = open_ring(share)
        with self._lock:
            session = self._session(share.session)
            others = sum(s.ring is not None for s in self.sessions.values() if s is not session)
            session.ring = ring if others < RINGS else None
            return Shared(share.session, share.ring, session.ring is not None)

    def _chunk_came(self, chunk: Chunk, payload: Buffer | None) -> Out:
        with self._lock:
            session = self._session(chunk.session)
            ring = session.ring
        if ring is not None and 0 <= chunk.slot < SLOTS:
            self._copies.put((session, chunk, ring))
            return []
        self._take_chunk(session, chunk, b"" if payload is None else payload)
        self.ring()
        return [(ChunkAck(chunk.session, chunk.key, upload=True), None)]

    def _take_chunk(self, session: WorkerSession, chunk: Chunk, data: Any) -> None:
        """Copy a chunk in. The lock is not held: only one thread at a time handles the chunks of an upload."""
        key = chunk.key
        try:
            upload = session.uploads.get(key)
            if chunk.offset == 0:
                limit = self.config.worker_memory or self.engine.memory
                upload = session.uploads[key] = Incoming(chunk, limit, self.engine.host_buffer)
            if upload is None or not upload.take(chunk, data):
                return  # more will come; or it is the rest of an upload that failed
            upload.cut()
            # To check an index on a device costs a wait; on the host it costs little.
            limit = below(upload.data, upload.spec) if self.engine.deferred else -1
            arrived = Arrived(key, upload.spec, upload.data.data, None, limit)
        except (ProgramError, MemoryError) as e:
            kind = "OutOfMemory" if isinstance(e, MemoryError) else "ProgramError"
            arrived = Arrived(key, NOTHING, None, Failure(kind, f"upload of tensor {key}: {e}"))
        with self._lock:
            session.uploads.pop(key, None)
            work = Work(session, arrived)
            work.fetches = session.upload_fetches.pop(key, [])
            self._queue.append(work)

    def _close(self, number: int) -> None:
        session = self.sessions.pop(number, None)
        if session is not None:
            if all(s.waits_for != session.waits_for for s in self.sessions.values()):
                self._needed.discard(session.waits_for)  # the next call of it asks again
            self._behind.pop(number, None)
            self._order = deque(w for w in self._order if w.session is not session)
            self.engine.leave(number)
            session.close()
            self._groups.close(number)

    def _stats(self) -> dict[str, Any]:
        sessions = {
            str(s.number): {"nbytes": s.store.nbytes, "tensors": len(s.store.entries) - (0 in s.store.entries)}
            for s in self.sessions.values()
        }
        programs = {
            k.hash.hex(): {
                "instructions": k.instructions,
                "hits": k.hits,
                "run_us": k.run_us,
                **(k.standing.stats() if k.standing is not None else {"tier": 1}),
            }
            for k in self.programs
        }
        return {
            "engine": self.engine.name,
            "device": self.engine.device,
            "calls": self._calls.count,
            "run_us": self._calls.run_us,
            "queued": len(self._queue) + len(self._urgent),
            "groups": len(self._groups),
            "groups_on_devices": self._groups.on_devices,
            "sent_to_peers": self._groups.sent_nbytes,
            "sessions": sessions,
            "programs": programs,
            "programs_nbytes": self.programs.nbytes,
            **self.engine.usage(),  # bytes; "memory" is what the device has, which the dispatcher adds
        }

    # --- the runner's side ---------------------------------------------------------------

    def step(self) -> Out | None:
        """Do the next piece of work; returns what to send. None: there is nothing to do now."""
        out: Out = []
        self._calls.look(out, in_a_hurry=not (self._queue or self._urgent))
        self._fetches.look(out)
        if self._together is not None:
            self._go_on(self._together, out)
        with self._lock:
            work = self._running = self._next()
        if work is None:
            return out or None
        session, message = work.session, work.message
        if session is not None:
            self.engine.use(session.number)
        held = False
        match message:
            case Call() if session is not None:
                held = self._do_call(work, session, message, out)
            case Fetch() if session is not None:
                self._fetches.serve(work, session, message, out)
            case Free() if session is not None:
                with self._lock:
                    free(session, unpack(message.ids))
            case Arrived() if session is not None:
                self._do_arrived(session, message)
            case Define():
                self._do_define(message)
            case Forget():
                with self._lock:
                    self.programs.forget(message.program)
            case _:
                pass
        with self._lock:
            self._running = None
            if not held:
                self._end_turn(work)
        if not held:
            self._serve_fetches(work, out)
        self._fetches.look(out)
        return out

    def _go_on(self, together: Together, out: Out) -> bool:
        """Run a call that several workers run together as far as possible; whether it is over."""
        if not together.go(out):
            return False
        with self._lock:
            self._together = None
            together.session.paused = False
            self._end_turn(together.work)
        self._serve_fetches(together.work, out)
        return True

    def _give_turn(self, work: Work) -> None:
        work.together = True
        self._order.append(work)

    def _end_turn(self, work: Work) -> None:
        if self._order and self._order[0] is work:
            self._order.popleft()

    def _may_begin(self, work: Work) -> bool:
        """Whether it is this work's turn: within its session, and among the calls that several workers run."""
        s = work.session
        if s is not None and (s.flagged is not None or s.paused or len(s.flying) >= IN_FLIGHT):
            return False  # it waits for the outcome of a call, or the device has enough to do
        return not work.together or self._order[0] is work

    def _serve_fetches(self, work: Work, out: Out) -> None:
        """Serve the fetches of what this work has made, at once: their answers are sent with the call's."""
        with self._lock:
            fetches, work.fetches = work.fetches, []
        for fetch in fetches:
            if fetch.session is not None and isinstance(fetch.message, Fetch):
                if fetch.session.flagged is not None:  # whether the call failed is not known yet
                    with self._lock:
                        self._put_behind(fetch)
                    continue
                self._fetches.serve(fetch, fetch.session, fetch.message, out)

    def _put_behind(self, work: Work) -> None:
        """Queue work of a session that has to wait: for the device, or for other workers."""
        session = work.session
        assert session is not None
        # The value of a fetch exists, or is made by the call that is waited for: it goes before later calls.
        session.behind.appendleft(work) if isinstance(work.message, Fetch) else session.behind.append(work)
        self._behind[session.number] = session

    def _first_behind(self) -> Work | None:
        """Work of a session that had to wait and need not any more."""
        for session in self._behind.values():
            if self._may_begin(session.behind[0]):
                work = session.behind.popleft()
                del self._behind[session.number]
                if session.behind:
                    self._behind[session.number] = session  # at the end: other sessions have their turn
                return work
        return None

    def _next(self) -> Work | None:
        if self._behind and (waited := self._first_behind()) is not None:
            return waited
        while self._urgent or self._queue:
            urgent = bool(self._urgent)
            work = self._urgent.popleft() if urgent else self._queue.popleft()
            session = work.session
            if session is None:
                return work
            if session.closed:
                continue
            if not urgent and session.waits_for:
                session.held.append(work)
            elif session.behind or not self._may_begin(work):
                self._put_behind(work)
            else:
                return work
        return None

    def _do_call(self, work: Work, session: WorkerSession, call: Call, out: Out) -> bool:
        """Run a call; True if it has not ended: its program is missing, or other workers are waited for."""
        with self._lock:
            if call.frees:
                free(session, unpack(call.frees))
            session.acked = call.acked
            known = self.programs.get(call.program)
            # A program that was refused as invalid will never be sent: the call fails without it.
            if known is None and (call.refused is None or call.refused.kind != "ProgramError"):
                if call.program not in self._needed:
                    self._needed.add(call.program)
                    out.append((Need(call.program), None))
                session.waits_for = call.program
                session.held.append(work)
                return True
            if known is not None and known.workers and not work.together:  # its text came after the call
                self._give_turn(work)
                if not self._may_begin(work):
                    self._put_behind(work)
                    return True
        if known is not None and known.workers:
            self._together = Together(self._calls, self._groups, work, session, call, known)
            session.paused = True
            return not self._go_on(self._together, out)
        if known is not None:
            self._calls.run(session, call, known, out)
        elif call.refused is not None:
            session.failed = call.seq
            out.append((CallFailed(call.session, call.seq, call.seq, call.refused), None))
        return False

    def _do_define(self, define: Define) -> None:
        known = Known(define.program, define.timed, define.compile)
        if self.config.debug_worker:
            self.log(f"program {known.hash.hex()[:8]} has {known.instructions} instructions")
        with self._lock:
            before = self.programs.peek(known.hash)
            if before is None:
                self.programs.add(known)
            else:  # a client may ask for more than those before
                before.compile = max(before.compile, define.compile)
            self._needed.discard(known.hash)
            freed: list[Work] = []
            for session in self.sessions.values():
                if session.waits_for == known.hash:
                    session.waits_for = b""
                    freed += session.held
                    session.held.clear()
            self._queue.extendleft(reversed(freed))

    def _do_arrived(self, session: WorkerSession, arrived: Arrived) -> None:
        failure, array = arrived.failure, None
        if arrived.data is not None:
            try:
                array = self.engine.from_bytes(arrived.data, arrived.spec, given=True)
            except Exception as e:
                failure = self._calls.failure(e)
        with self._lock:
            if session.closed:
                return
            if failure is None:
                session.store.put(arrived.id, arrived.spec, array, arrived.below)
            else:
                session.store.poison(arrived.id, arrived.spec, failure, root=0)
        if failure is not None:
            self._calls.recover(failure)
