"""The worker as a state machine: messages in, messages out, an engine in between.

Law 1: `receive` only queues work or answers what needs no array. `step` does the next piece of work, at the desk
       (calls.py), and is the only one to use the engine. `copy` copies uploaded bytes out of shared memory, so that no
       other work waits behind a large upload; `move` copies tensors of idle sessions (spilling.py). Each may run in a
       thread of its own.
Law 2: the lock is held for bookkeeping only, never while a kernel runs.
Law 3: work is done in the order it came, except that a fetch is served as soon as its value exists:
       at once, or right after the call that makes the value, never after later calls.
Law 4: a call of an unknown program, and all later work of its session, is held until the program's text comes;
       other sessions go on.
Law 5: short work goes before the queue: short calls of users who ask for little, uploads, frees. Another thread does it
       while the runner computes (`step(beside=True)`). It never overtakes other work of its session: as long as there
       is some in the queue, it is queued too.
Law 6: calls that several workers run together begin in the order in which they came, over all sessions, and each is
       over before the next begins: so two workers never wait for each other in different calls.

How calls run and fail is in calls.py, those run together in together.py; transfers are in fetches.py and uploads.py.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from gt.config import Config
from gt.transport import messages as msg
from gt.worker.calls import Calls, Desk, Out, free, is_quick, unpack
from gt.worker.fetches import Fetches, is_untold
from gt.worker.preparing import Preparing
from gt.worker.run.collectives import Groups, Network
from gt.worker.run.copies import Copies
from gt.worker.run.engine import Engine
from gt.worker.run.programs import Known, Programs
from gt.worker.session import QueuedWork, WorkerSession
from gt.worker.spilling import Spilling, outside_of
from gt.worker.stats import stats_of
from gt.worker.together import Together
from gt.worker.transfers import Arrived, Outgoing, Pieces
from gt.worker.uploads import Uploads

IN_FLIGHT = 8  #: Calls of one session that may be on a device at once.
DESK_S = 0.002  #: How long a thread beside the runner waits for the desk.
POLL_S = 50e-6  #: How often a busy device is asked whether it is done.


class WorkerCore:
    """See the file's header."""

    def __init__(
        self, engine: Engine, config: Config, log: Callable[[str], None] = lambda line: None,
        network: Callable[[], Network] | None = None,
    ) -> None:  # fmt: skip
        self.engine, self.config, self.log = engine, config, log
        self.programs = Programs(config.cache_bytes)
        self.sessions: dict[int, WorkerSession] = {}
        self._lock = threading.Lock()
        self._bell = threading.Lock()  #: Free while there may be something to do; see `wait`.
        self.desk = Desk(engine.beside and not engine.deferred)
        self.spilling = Spilling(engine, outside_of(engine, config), self._lock)
        self._calls = Calls(engine, config, self._lock, self.desk, log, self.spilling)
        self._urgent: deque[QueuedWork] = deque()  #: Goes before the queue.
        self.fetches = Fetches(engine, self._calls, self._lock, self._urgent)
        self._short: deque[QueuedWork] = deque()  #: Also goes before the queue: see law 5.
        self._queue: deque[QueuedWork] = deque()
        put = partial(self._enqueue, short=True)
        self.uploads = Uploads(engine, config, self._calls, self.spilling, self._lock, put)
        self._behind: dict[int, WorkerSession] = {}  #: Sessions with work that waits for a call to be done.
        self._told: Out = []  #: Outcomes that are sent with the next value; see `_with_values`.
        self._running: list[QueuedWork | None] = [None, None]  #: What the runner does, and what is done beside it.
        self._groups = Groups(network)
        self._shared: set[bytes] = set()  #: Programs that several workers run together,
        self._order: deque[QueuedWork] = deque()  #: their calls, in the order in which they came,
        self._together: Together | None = None  #: and the one that has begun: the first of them.
        self._needed: set[bytes] = set()  #: Programs that were asked for.
        self._preparing = Preparing(self.programs, self._calls.tiers, self._lock)

    # --- the reader's side ---------------------------------------------------------------

    def receive(self, message: msg.Message, payload: msg.Buffer | None = None) -> Out:
        """Take in a message; returns what can be answered at once."""
        out: Out = []
        if isinstance(message, msg.Chunk):
            with self._lock:
                session = self._session(message.session)
            out = self.uploads.chunk_came(session, message, payload)
            self.ring()
            return out
        if isinstance(message, msg.Share):
            with self._lock:
                session = self._session(message.session)
                others = sum(s.ring is not None for s in self.sessions.values() if s is not session)
            return [(self.uploads.share(session, message, others), None)]
        going: Outgoing | None = None
        pieces: Pieces = []
        with self._lock:
            match message:
                case msg.Call():
                    work = QueuedWork(self._session(message.session), message)
                    self._enqueue(work, message.beside)
                    if message.program in self._shared:
                        self._give_turn(work)
                case msg.Free():
                    self._enqueue(QueuedWork(self._session(message.session), message), short=True)
                case msg.Spill() | msg.Return():
                    self._enqueue(QueuedWork(self._session(message.session), message), short=False)
                case msg.Fetch():
                    self._place_fetch(message)
                case msg.Copy():
                    work = QueuedWork(self._session(message.source), message)
                    work.target = self._session(message.session)
                    work.target.copying.append(work)
                    self._enqueue(work, short=False)
                case msg.Rename():
                    self._rename(self._session(message.session), message)
                case msg.ChunkAck():
                    going, pieces = self.fetches.send_more(self.sessions.get(message.session), message)
                case msg.Prepare():
                    self._urgent.append(QueuedWork(None, message))
                case msg.Define():
                    self._urgent.append(QueuedWork(None, message))
                    if message.program.workers:
                        self._shared.add(message.program.hash())
                case msg.Forget():
                    self._queue.append(QueuedWork(None, message))
                    self._shared.discard(message.program)
                case msg.Cancel():
                    self.fetches.cancel(self.sessions.get(message.session), message)
                case msg.CloseSession():
                    self._close(message.session)
                case msg.Trace():
                    out += self._calls.record(message)
                case msg.GetStats():
                    data = stats_of(self, self._calls, self._groups, message.programs)
                    out.append((msg.Stats(message.request, data), None))
                case msg.WorkerWelcome():
                    self._groups.me = message.worker
                    self._calls.tiers.get_ready()
                case msg.Peers():
                    self._groups.know(message.addresses)
                case _:
                    pass  # other greetings are handled in main.py
        if going is not None:
            out.extend(going.fill(pieces))
        self.ring()
        return out

    def copy(self, wait: bool = False) -> Out | None:
        """Copy the next chunk of an upload out of shared memory; returns what to answer; None: no chunk. In a thread
        of its own."""
        out = self.uploads.copy(wait)
        self.ring()
        return out

    def move(self, wait: bool = False) -> Out | None:
        """Move the next tensors of an idle session out of the device, or back; returns what to answer. None: there are
        none. In a thread of its own, as `copy`."""
        return self.spilling.work(wait)

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
        return self._calls.in_flight + len(self.fetches)

    @property
    def waiting(self) -> bool:
        """Whether something waits for the device: a fetch, or work behind a call whose outcome is on the device."""
        return bool(self._behind or self.fetches)

    @property
    def busy(self) -> bool:
        """Whether `step` would do something now. For tests with many workers in one thread; calls and fetches on a
        device are not counted."""
        if self._queue or self._short or self._urgent or (self._together is not None and self._together.ready):
            return True
        return any(self._may_begin(s.behind[0]) for s in self._behind.values())

    @property
    def next_is_quick(self) -> bool:
        """Whether what is done next is a call that takes next to no time."""
        with self._lock:
            queue = self._short or self._queue
            if self._urgent or not queue:
                return False
            message = queue[0].message
            known = self.programs.peek(message.program) if type(message) is msg.Call else None
        return known is not None and is_quick(known)

    @property
    def queued(self) -> int:
        """Pieces of work that wait."""
        return len(self._queue) + len(self._short) + len(self._urgent)

    @property
    def has_short(self) -> bool:
        """Whether there may be something to do for a thread beside the runner."""
        return self.desk.shared and bool(self._urgent or self._short or (self._queue and self._is_stalled))

    @property
    def _is_stalled(self) -> bool:
        """Whether the runner waits for a worker that does not come: then others do not wait with it."""
        return self._together is not None and self._together.stalled

    def wait(self, timeout_s: float) -> bool:
        """Sleep until there may be something to do; False if nothing came in time."""
        if self.in_flight:  # the device does not wake us: poll
            self._bell.acquire(timeout=POLL_S)
            return True
        return self._bell.acquire(timeout=timeout_s)

    def _enqueue(self, work: QueuedWork, short: bool) -> None:
        session = work.session
        assert session is not None
        if session.short or (short and not session.queued):
            session.short += 1
            self._short.append(work)
        else:
            session.queued += 1
            self._queue.append(work)

    def _session(self, number: int) -> WorkerSession:
        session = self.sessions.get(number)
        if session is None:
            session = self.sessions[number] = WorkerSession(number)
            self._groups.reopen(number)
        return session

    def _place_fetch(self, fetch: msg.Fetch) -> None:
        session = self._session(fetch.session)
        work = self.fetches.take_in(session, fetch)
        if fetch.id in session.store.entries:
            self._urgent.append(work)
        elif (maker := self._maker(session, fetch.id)) is not None:
            maker.fetches = (*maker.fetches, work)
        elif session.uploads.get(fetch.id) is not None:
            session.upload_fetches.setdefault(fetch.id, []).append(work)
        else:
            self._urgent.append(work)  # nothing will make it: the fetch fails

    def _rename(self, session: WorkerSession, rename: msg.Rename) -> None:
        """Put tensors in the place of others. Nothing of the session is under way but transfers, so it is done at once:
        a fetch behind it must see the new ones, a fetch before it the old ones."""
        entries, ids = session.store.entries, unpack(rename.ids)
        moved = set(ids)
        for work in session.fetches.values():
            if isinstance(work.message, msg.Fetch) and work.message.id in moved and work.entry is None:
                work.entry = entries.get(work.message.id)
        for k, id in enumerate(ids):
            new = entries.pop(rename.first + k, None)
            if new is not None:
                entries[id] = new
            else:  # no part of it is on this worker any more
                entries.pop(id, None)
        session.replays.clear()

    def _maker(self, session: WorkerSession, id: int) -> QueuedWork | None:
        """The work that will make this value. How many results a call has is only known with its program:
        for lack of a better one, the last call of an unknown program that may make it is taken."""
        guess: QueuedWork | None = None
        running = [work for work in self._running if work is not None]
        if self._together is not None:
            running.append(self._together.work)
        for work in (*running, *session.behind, *session.held, *self._queue, *self._short):
            message: object = work.message
            if work.session is not session:
                continue
            if isinstance(message, msg.Call) and message.outputs <= id:
                known = self.programs.peek(message.program)
                if known is None:
                    guess = work
                elif id < message.outputs + len(known.outputs):
                    return work
            elif isinstance(message, Arrived) and message.id == id:
                return work
        return guess

    def _close(self, number: int) -> None:
        session = self.sessions.pop(number, None)
        if session is not None:
            if all(s.waits_for != session.waits_for for s in self.sessions.values()):
                self._needed.discard(session.waits_for)  # the next call of it asks again
            self._behind.pop(number, None)
            self._order = deque(w for w in self._order if w.session is not session)
            for each in self.sessions.values():
                each.copying = [w for w in each.copying if w.session is not session]
            self.engine.leave(number)
            session.close()
            self._groups.close(number)
            self._groups.close(-number)

    # --- the runner's side ---------------------------------------------------------------

    def step(self, beside: bool = False) -> Out | None:
        """Do the next piece of work; returns what to send. None: there is nothing to do now. With `beside`: do short
        work while the runner is away from the desk; if it stays there, it will do that itself."""
        lock = self.desk.lock
        if not beside:
            with lock:
                out = self._step(False)
                return self._with_values(out) if self.engine.deferred else out
        if not lock.acquire(timeout=DESK_S):
            return None
        try:
            return self._step(True)
        finally:
            lock.release()

    def _step(self, beside: bool) -> Out | None:
        out: Out = []
        if not beside:
            if self._calls.flying:
                self._calls.look(out, in_a_hurry=not (self._queue or self._short or self._urgent))
            if self.fetches.coming:
                self.fetches.look(out)
            if self._preparing.asked:
                self._preparing.look(out)
            if self._together is not None:
                self._go_on(self._together, out)
        with self._lock:
            work = self._running[beside] = self._next(beside)
        if work is None:
            return out or None
        session, message = work.session, work.message
        if session is not None:
            self.engine.use(session.number)
        held = False
        match message:
            case msg.Call() if session is not None:
                held = self._do_call(work, session, message, out, beside)
            case msg.Fetch() if session is not None:
                self.fetches.serve(work, session, message, out)
            case msg.Free() if session is not None:
                with self._lock:
                    ids = unpack(message.ids)
                    free(session, ids)
                    for each in session.copying:  # it may be waiting for its source, and comes later
                        each.freed = {*(each.freed or ()), *ids}
            case msg.Spill() | msg.Return() if session is not None:
                self.spilling.take(session, message, list(unpack(message.ids)))
            case Arrived() if session is not None:
                self.uploads.put(session, message)
            case msg.Copy() if session is not None:
                self._do_copy(work, session, message, out)
            case msg.Define():
                self._do_define(message)
            case msg.Prepare():
                self._preparing.ask(message, out)
            case msg.Forget():
                with self._lock:
                    self.programs.forget(message.program)
            case _:
                pass
        with self._lock:
            self._running[beside] = None
            if not held:
                self._end_turn(work)
        if work.fetches and not held:
            self._serve_fetches(work, out)
        if self.fetches.coming and not beside:
            self.fetches.look(out)
        return out

    def _with_values(self, out: Out | None) -> Out | None:
        """What to send now. If all calls of a session are done, and the device is copying a small value of it to the
        host, their outcomes are sent with that value: two messages would wake every process on the way twice."""
        if not (out or self._told):
            return out
        self._told += out or ()
        if len(self.fetches) and all(type(m) is msg.CallDone and self._answers_soon(m.session) for m, _ in self._told):
            return [] if out else None
        out, self._told = self._told, []
        return out

    def _answers_soon(self, number: int) -> bool:
        session = self.sessions.get(number)
        return session is not None and session.answering > 0 and not session.flying

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

    def _give_turn(self, work: QueuedWork) -> None:
        work.together = True
        self._order.append(work)

    def _end_turn(self, work: QueuedWork) -> None:
        if self._order and self._order[0] is work:
            self._order.popleft()

    def _may_begin(self, work: QueuedWork) -> bool:
        """Whether it is this work's turn: within its session, and among the calls that several workers run."""
        s = work.session
        if s is not None:
            if s.paused or s.computing or len(s.flying) >= IN_FLIGHT:
                return False  # the device has enough to do
            if s.flagged and not self._may_continue(s, work):
                return False  # it waits for the outcome of a call
            if isinstance(work.message, msg.Fetch) and is_untold(s):
                return False
        return not work.together or self._order[0] is work

    def _may_continue(self, session: WorkerSession, work: QueuedWork) -> bool:
        """Whether this work may begin before the outcome of the session's last call is known."""
        message = work.message
        if isinstance(message, msg.Call):
            return not work.waits and self._calls.may_continue(session, message.program)
        return isinstance(message, (msg.Free, Arrived))

    def _serve_fetches(self, work: QueuedWork, out: Out) -> None:
        """Serve the fetches of what this work has made, at once: their answers are sent with the call's."""
        with self._lock:
            fetches, work.fetches = work.fetches, ()
        for fetch in fetches:
            if fetch.session is not None and isinstance(fetch.message, msg.Fetch):
                if fetch.session.flagged or is_untold(fetch.session):  # whether the call failed is not known yet
                    with self._lock:
                        self._put_behind(fetch)
                    continue
                self.fetches.serve(fetch, fetch.session, fetch.message, out)

    def _put_behind(self, work: QueuedWork) -> None:
        """Queue work of a session that has to wait: for the device, or for other workers."""
        session = work.session
        assert session is not None
        # The value of a fetch exists, or is made by the call that is waited for: it goes before later calls.
        session.behind.appendleft(work) if isinstance(work.message, msg.Fetch) else session.behind.append(work)
        self._behind[session.number] = session

    def _hold(self, session: WorkerSession, work: QueuedWork) -> None:
        """Keep a call until the text of its program comes, and all later work of its session, but no fetch: that waits
        for what is under way."""
        assert isinstance(work.message, msg.Call)
        session.waits_for = work.message.program
        session.held.append(work)
        session.held += [w for w in session.behind if not isinstance(w.message, msg.Fetch)]
        session.behind = deque(w for w in session.behind if isinstance(w.message, msg.Fetch))
        if not session.behind:
            self._behind.pop(session.number, None)

    def _first_behind(self) -> QueuedWork | None:
        """Work of a session that had to wait and need not any more."""
        for session in self._behind.values():
            if self._may_begin(session.behind[0]):
                work = session.behind.popleft()
                del self._behind[session.number]
                if session.behind:
                    self._behind[session.number] = session  # at the end: other sessions have their turn
                return work
        return None

    def _next(self, beside: bool) -> QueuedWork | None:
        if not beside and self._behind and (waited := self._first_behind()) is not None:
            return waited
        while self._urgent or self._short or (self._queue and (not beside or self._is_stalled)):
            urgent, short = bool(self._urgent), bool(self._short)
            work = (self._urgent if urgent else self._short if short else self._queue).popleft()
            session = work.session
            if session is None:
                return work
            if beside and not urgent and not short and self._would_disturb(work):
                self._queue.appendleft(work)
                return None
            if not urgent and short:
                session.short -= 1
            elif not urgent:
                session.queued -= 1
            if session.closed:
                continue
            if session.computing and isinstance(work.message, msg.Fetch) and work.message.id in session.store.entries:
                return work  # what is being computed does not change it
            if not urgent and short and (session.queued or not self._is_short(work)):
                session.queued += 1
                self._queue.append(work)
            elif not urgent and session.waits_for:
                session.held.append(work)
            elif session.behind or not self._may_begin(work):
                self._put_behind(work)
            else:
                return work
        return None

    def _is_short(self, work: QueuedWork) -> bool:
        """Whether this work, of the queue for short work, need not go to the other one."""
        if not isinstance(work.message, msg.Call):
            return True
        known = self.programs.peek(work.message.program)
        if known is not None and (known.workers or self._would_disturb(work)):
            return False
        return work.message.beside and not work.together

    def _would_disturb(self, work: QueuedWork) -> bool:
        """Whether a call must not run beside the one that the runner has begun."""
        known = self.programs.peek(work.message.program) if isinstance(work.message, msg.Call) else None
        return known is not None and self._calls.would_disturb(known)

    def _do_call(self, work: QueuedWork, session: WorkerSession, call: msg.Call, out: Out, beside: bool) -> bool:
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
                    out.append((msg.Need(call.program), None))
                self._hold(session, work)
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
            if not self._calls.run(session, call, known, out, beside):
                work.waits = True
                session.behind.appendleft(work)
                self._behind[session.number] = session
                return True
        elif call.refused is not None:
            session.failed = max(session.failed, call.seq)
            out.append((msg.CallFailed(call.session, call.seq, call.seq, call.refused), None))
        return False

    def _do_copy(self, work: QueuedWork, session: WorkerSession, copy: msg.Copy, out: Out) -> None:
        """Copy some of a session's tensors for another session; the rest has its turn after what others want."""
        target = work.target
        assert target is not None
        if target.closed:
            return
        if work.copies is None:
            with self._lock:
                work.copies = Copies(session.store.entries, unpack(copy.ids), copy.first, copy.session, self._lock)
        try:
            failure = work.copies.go_on(self.engine)
        except Exception as e:
            failure = self._calls.failure(e)
        with self._lock:
            if failure is None and work.copies.left:
                session.queued += 1
                self._queue.append(work)
                return
            if failure is None and not target.closed:
                work.copies.put(target.store)
                free(target, work.freed or ())
            work.copies = None
            target.copying.remove(work)
        out.append((msg.Copied(copy.request, failure), None))
        if failure is not None:
            self._calls.recover(failure)

    def _do_define(self, define: msg.Define) -> None:
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
            freed: list[QueuedWork] = []
            for session in self.sessions.values():
                if session.waits_for == known.hash:
                    session.waits_for = b""
                    freed += session.held
                    session.held.clear()
            self._queue.extendleft(reversed(freed))
            for work in freed:
                assert work.session is not None
                work.session.queued += 1
