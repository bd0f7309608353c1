"""Running calls: what a call reads from the store, what it leaves there, and how it fails.

Law 1: a failed call changes nothing. Each result that should replace an input keeps that input's value
       under its new id; the other results are poisoned; donated inputs are gone either way.
Law 2: a call that uses a poisoned value, or a kept one before the client knows of that failure, fails
       the same way: same failure, same root.
Law 3: completion is reported when the device is done. A call whose outcome is on the device (a flag) is
       finished before its session's next work begins (core.py), so no call reads a result of one that failed. Only the
       same call again, which updates what that one updated, may begin before: on the device it fails if that one has.
Law 4: nothing a program does ends the worker, except a device error after which the engine is unusable.
Law 5: whoever does a piece of work has the desk: one thread at a time uses sessions, stores and programs.
Law 6: the runner leaves the desk while it computes, if the engine can compute in two threads and it is worth it;
       nobody else leaves it. Meanwhile another thread may do short work (core.py). So at most two programs run at the
       same time.
Law 7: while a call is computed, work of its session waits, except fetches of values that exist.

A call begins (`begin`), runs, and ends (`end`, `fail`), whether this worker runs it alone (`run`) or with others:
together.py only adds how workers wait for each other in between.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Lock
from typing import Any

from gt.config import Config
from gt.errors import BY_NAME, IndexOutOfRange
from gt.program import Precision
from gt.tracing import Recording, now_ns
from gt.transport.messages import Buffer, Call, CallDone, CallFailed, Failure, Message, Trace, unpack_ids
from gt.worker.run.engine import Engine
from gt.worker.run.origins import ranges_of
from gt.worker.run.programs import Known
from gt.worker.run.replays import Replay
from gt.worker.run.store import Array, Entry
from gt.worker.run.threads import Threads
from gt.worker.run.tiers import Tiers
from gt.worker.session import Running, WorkerSession
from gt.worker.spilling import Spilling

Out = list[tuple[Message, Buffer | None]]

LONG_US = 2_000  #: While a call that takes longer is computed, another thread does other work.
QUICK_US = 100  #: For a call that takes less the runner does not leave the desk, and asks no clock for its CPU time.
LOOK_NS = 150_000  #: How often the device is asked what is done, while there is more work for it.
MAX_TEXT = 2_000  #: Characters of an error's text that are sent.


class EngineLost(Exception):
    """The engine itself is broken (a sticky device error): this worker cannot go on."""


class Desk:
    """Who may do a piece of work now: see laws 5 to 7."""

    def __init__(self, shared: bool) -> None:
        self.lock = Lock()  #: Whoever is at the desk holds it.
        self.shared = shared  #: It is left while something is computed.
        self.left = False  #: The runner has left it,
        self.long = False  #: for what is known to take long.
        self._called = Event()

    def leave(self, long: bool) -> None:
        """Called by the runner, which has the desk: whether it is about to compute something long."""
        if self.shared:
            self.left, self.long = True, long
            if long:
                self._called.set()
            self.lock.release()

    def come_back(self) -> None:
        if self.shared:
            self.lock.acquire()
            self.left = self.long = False

    @contextmanager
    def back(self) -> Iterator[None]:
        """The runner needs the desk for a moment, in the middle of what it computes."""
        long = self.long
        self.come_back()
        try:
            yield
        finally:
            self.leave(long)

    def wait_until_called(self, timeout_s: float) -> None:
        """Wait until the runner leaves it for long."""
        if self._called.wait(timeout_s):
            self._called.clear()


class Calls:
    """The calls of all sessions; used by the thread that has the desk. `lock` guards the stores."""

    def __init__(
        self, engine: Engine, config: Config, lock: Lock, desk: Desk, log: Callable[[str], None], spilling: Spilling
    ) -> None:
        self.engine = engine
        self.spilling = spilling
        self._missing: Failure | None = None  #: Why an input of the call at hand is not on the device.
        self.config = config
        self.log = log
        self.count = 0
        self.beside = 0  #: Those of them that ran while the runner computed another one.
        self.run_us = 0
        self.flying: dict[int, WorkerSession] = {}  #: Sessions with calls on the device.
        self.tiers = Tiers(engine, config, log)
        self._threads = Threads(engine.threads, engine.use_threads) if engine.threads > 1 else None
        self._lock = lock
        self.desk = desk
        self._looked_ns = 0
        self._precision: Precision | None = None  #: The engine's, as the last call set it.
        self.trace: Recording | None = None  #: Set while somebody records what workers do.

    def run(self, session: WorkerSession, call: Call, known: Known, out: Out, beside: bool = False) -> bool:
        """Run a call that this worker runs alone, as far as the host is concerned; `look` reports the rest. The runner
        leaves the desk meanwhile; who runs a call `beside` stays there. False: it must wait for the outcome of the call
        before."""
        ids, entries = self.read(session, call)
        if (replay := session.replays.get(known.hash)) is not None:
            if self._run_again(replay, session, call, known, ids, entries, out):
                return True
            if session.flagged:
                return False
            del session.replays[known.hash]
        running = self.begin(session, call, known, ids, entries, out)
        if running is None:
            return True
        failure: Failure | None = None
        try:
            self.use_precision(known)
            if self.engine.deferred:
                running.began = self.engine.stamp()
            arrays = self.take(running)
            if beside:
                self.beside += 1
                results, running.flag = running.form.run(arrays, call.scalars)
            elif running.is_quick:
                results, running.flag = self._run_code(running, arrays)
            else:
                results, running.flag = self._compute(running, arrays)
        except Exception as e:
            failure = self.stopped(running, e)
        if failure is not None:  # here and not in the except clause: the exception's frames held arrays
            self.fail(running, failure, call.seq, out)
            self.recover(failure)
            return True
        self.end(running, results, out)
        return True

    def may_continue(self, session: WorkerSession, program: bytes) -> bool:
        """Whether a call of this program may be the last one again, whose outcome is not known yet."""
        replay = session.replays.get(program)
        return replay is not None and bool(replay.moved) and session.flagged[-1].known.hash == program

    def _compute(self, running: Running, arrays: list[Array]) -> tuple[Sequence[Array], Any]:
        """Run the code of a call, away from the desk."""
        session = running.session
        session.computing = True
        self.desk.leave(takes_long(running.known))
        try:
            return self._run_code(running, arrays)
        finally:
            self.desk.come_back()
            session.computing = False

    def _run_code(self, running: Running, arrays: list[Array]) -> tuple[Sequence[Array], Any]:
        """Run the code of a call, with as many threads as suit its program."""
        form, threads = running.form, self._threads
        made: tuple[Sequence[Array], Any]
        if threads is None:
            made = form.run(arrays, running.call.scalars)
            return made
        standing = running.known.standing
        assert standing is not None
        pace = standing.pace(form.ran)
        threads.begin(pace)
        made = form.run(arrays, running.call.scalars)
        threads.end(pace)
        return made

    def read(self, session: WorkerSession, call: Call) -> tuple[Sequence[int], list[Entry | None]]:
        """The ids and entries of a call's inputs."""
        ids = unpack(call.inputs)
        with self._lock:
            entries = [*map(session.store.entries.get, ids)]
        self._missing = None
        if session.out and call.refused is None:
            self._missing = self.spilling.bring_now(session, entries)
        return ids, entries

    def begin(
        self, session: WorkerSession, call: Call, known: Known, ids: Sequence[int], entries: list[Entry | None],
        out: Out, alone: Failure | None = None,
    ) -> Running | None:  # fmt: skip
        """Choose the code for a call; None if the call cannot run, which is then reported. `alone`: why the other
        workers of the call cannot be reached."""
        running = Running(session, call, known, ids, entries, is_quick(known))
        form = self.tiers.choose(known, entries, call.scalars, session.captures)
        # What is wrong with this worker's part says more than that another worker is gone.
        alone = self._missing or alone
        failure, root = _trouble(known, call, entries) or (alone if form is not None else _NO_CODE, call.seq)
        if failure is not None or form is None:
            assert failure is not None
            self.fail(running, failure, root, out)
            return None
        running.form = form
        if known.bounds:
            # Now: inputs may be gone when the outputs are there.
            running.ranges = ranges_of(known.bounds, entries, call.scalars)
        if not running.is_quick:
            running.cpu_ns = time.thread_time_ns()
        running.start_ns = time.perf_counter_ns()
        return running

    def use_precision(self, known: Known) -> None:
        """What follows is computed with the precision that its program says."""
        if known.precision != self._precision:
            self._precision = known.precision
            self.engine.set_precision(known.precision)

    def record(self, trace: Trace) -> Out:
        """Begin to record what calls do, or tell it."""
        heard_ns = now_ns()
        made = self.trace
        self.trace = self.tiers.trace = Recording() if trace.duration_us else None
        if trace.duration_us:
            return []
        return [(each, None) for each in (made or Recording()).answer(trace.request, heard_ns)]

    def would_disturb(self, known: Known) -> bool:
        """Whether a call of this program would change how exactly the runner computes."""
        return self.desk.left and known.precision != self._precision

    def take(self, running: Running) -> list[Array]:
        """The arrays that a program may consume. The store drops those whose value no failed call keeps."""
        ids, entries, takes, early = running.ids, running.entries, running.form.takes, running.known.early
        arrays = [e.array for e in entries if e is not None]
        if takes or early:
            named = [i for i in ids if i]
            twice = len(set(named)) < len(named)
            for i in takes:
                entry = entries[i]
                if twice or entry.shared or entry.lent:  # type: ignore[union-attr]  # none is missing
                    arrays[i] = self.engine.own(arrays[i])
            with self._lock:
                free(running.session, [ids[i] for i in early])
            for i in early:
                entries[i] = None  # or this list would keep it alive while the program runs
        return arrays

    def stopped(self, running: Running, error: Exception) -> Failure:
        """The failure of a call whose code raised this error."""
        form = running.form
        instruction, committing = form.where(error)
        if instruction < 0 and isinstance(error, IndexOutOfRange):
            instruction = _only_check(form.checks)
        running.touched = form.takes if committing else ()
        return self.failure(error, running.known.hash, instruction)

    def end(self, running: Running, results: Sequence[Array], out: Out) -> None:
        """A call has run, as far as the host is concerned: put its results into the store."""
        session, known, ids, form = running.session, running.known, running.ids, running.form
        running.tier = form.ran
        end_ns = time.perf_counter_ns()
        took_ns = end_ns - running.start_ns
        running.issue_us = took_ns // 1000
        cpu_ns = took_ns if running.is_quick else time.thread_time_ns() - running.cpu_ns
        session.cpu_ns += cpu_ns
        session.recent.append((running.call.seq, cpu_ns, took_ns, end_ns))
        made = [*map(Entry, known.outputs, results)]
        for k, n in running.ranges:
            made[k].below = n
        with self._lock:
            if known.donate:
                free(session, [ids[i] for i in known.donate])
            if not session.closed:
                session.store.entries.update(enumerate(made, running.call.outputs))
        if form.lends:
            form.lend(made)
            self._expect(running, made)
        del made  # what is lent must be held by the store alone
        self.launched(running, out)

    def _expect(self, running: Running, made: list[Entry]) -> None:
        """The next call of this program may be the same again."""
        session, known, ids = running.session, running.known, running.ids
        capture = session.captures.get(known.hash)
        if capture is not running.form or capture.captured is None or capture.ran != capture.tier:
            return
        if self.tiers.settled(known, capture) and len(set(ids)) == len(ids):
            replay = Replay(capture, capture.captured, known)
            if replay.expect(running.entries, made, session.store):
                session.replays[known.hash] = replay

    def _run_again(
        self, replay: Replay, session: WorkerSession, call: Call, known: Known, ids: Sequence[int],
        entries: list[Entry | None], out: Out,
    ) -> bool:  # fmt: skip
        """Run a call that is the same again, by a replay; False if it is not."""
        store = session.store
        if (
            call.refused is not None
            or not replay.fits(entries, call.scalars, store, known)
            or tuple(map(type, call.scalars)) != known.scalars
            or not self.tiers.settled(known, replay.capture)
        ):
            return False
        running = Running(session, call, known, ids, [])
        running.start_ns = time.perf_counter_ns()
        capture = replay.capture
        ranges = dict(ranges_of(known.bounds, entries, call.scalars)) if replay.indices else {}
        self.engine.use(session.number)
        try:
            arrays = [None if e is None else e.array for e in entries] if replay.captured.copied else ()
            made = capture.again(arrays, call.scalars, bool(session.flagged))
        except Exception as e:
            raise EngineLost(str(e)) from None  # it was launched successfully before
        if made is None:
            return False
        running.flag = made.pop() if capture.form.flagged else None
        running.tier = replay.tier
        first, held = call.outputs, store.entries
        new = [Entry(spec, array) for (_, spec), array in zip(replay.new, made, strict=True)]
        with self._lock:
            for i, k in replay.moved:
                held[first + k] = held.pop(ids[i])
            for i in replay.dropped:
                held.pop(ids[i], None)
            for (k, _), entry in zip(replay.new, new, strict=True):
                held[first + k] = entry
            for k in replay.indices:
                held[first + k].below = ranges.get(k, -1)
        if new:
            capture.lent(new)
            del entry  # what is lent must be held by the store alone
        del made, new
        self.launched(running, out)
        return True

    def launched(self, running: Running, out: Out) -> None:
        """The device has the call. It is reported now if that is done, else by `look`."""
        running.entries = []  # or donated inputs would be held, and lent ones moved, until the device is done
        try:
            if running.flag is not None:
                running.flag = self.engine.send_flag(running.flag)
                running.session.flagged.append(running)
            running.mark = self.engine.mark() if running.began is None else self.engine.stamp()
        except Exception as e:
            raise EngineLost(str(e)) from None
        session = running.session
        if not session.flying and self.passed(running.mark):
            now_ns = time.perf_counter_ns()
            self._done(running, _since_us(running, now_ns), now_ns, out)
            return
        session.flying.append(running)
        self.flying[session.number] = session

    def look(self, out: Out, in_a_hurry: bool = True) -> None:
        """Report the calls that are done, in order within each session. Unless `in_a_hurry`, ask the device only every
        LOOK_NS: asking costs as much as launching work."""
        if not self.flying:
            return
        now_ns = time.perf_counter_ns()
        if not in_a_hurry and now_ns - self._looked_ns < LOOK_NS:
            return
        self._looked_ns = now_ns
        for number, session in list(self.flying.items()):
            flying, done = session.flying, 0
            while done < len(flying) and self.passed(flying[done].mark):
                done += 1
            if done:  # when each of them was is not known
                now_ns = time.perf_counter_ns()
                each_us = _since_us(flying[0], now_ns) // done
                for _ in range(done):
                    self._done(flying.popleft(), each_us, now_ns, out)
            if not flying:
                del self.flying[number]

    @property
    def in_flight(self) -> int:
        """Calls on the device."""
        return sum(len(s.flying) for s in self.flying.values())

    def passed(self, mark: Any) -> bool:
        """Whether the device has reached this point of its work."""
        try:
            return self.engine.passed(mark)
        except Exception as e:
            raise EngineLost(str(e)) from None

    def _done(self, running: Running, run_us: int, now_ns: int, out: Out) -> None:
        session, call, known = running.session, running.call, running.known
        session.last_done_ns = now_ns
        self.count += 1
        self.run_us += run_us
        known.hits += 1
        known.run_us += run_us
        # The host sees late that a call is done, and takes the next one for shorter: the device's clock is right.
        device_us = run_us if running.began is None else self.engine.between_us(running.began, running.mark)
        self.tiers.note(known, running.tier, run_us, running.issue_us, device_us)
        if self.trace is not None:
            self._record(self.trace, running)
        if self.config.debug_worker:
            self.log(f"session {session.number} call {call.seq}: {known.hash.hex()[:8]} {run_us} us")
        if running.flag is not None:
            session.flagged.popleft()
        if session.closed:
            return
        if running.flag is not None and self.engine.raised(running.flag):
            self._fail_late(running, out)
        else:
            out.append((CallDone(call.session, call.seq, run_us, running.tier), None))
        if not session.flagged:
            session.why_late = None

    def _record(self, trace: Recording, running: Running, name: str = "call") -> None:
        session, call, steps = running.session, running.call, trace.take_steps(running.start_ns)
        where = (session.number, call.seq, running.known.hash, running.tier, steps)
        trace.add(f"session {session.number}", name, running.start_ns, now_ns(), *where)

    def fail(self, running: Running, failure: Failure, root: int, out: Out) -> None:
        """A call failed on the host."""
        session, call, known, ids, touched = running.session, running.call, running.known, running.ids, running.touched
        with self._lock:
            store = session.store
            old = {k: store.entries.get(ids[i]) for k, i in known.updates.items() if i < len(ids) and i not in touched}
            sources = [ids[known.updates[k]] for k in old]
            donated = {ids[i] for i in known.donate if i < len(ids)}
            free(session, donated)
            for k, spec in enumerate(known.outputs):
                entry = old.get(k)
                if session.closed:
                    break
                if entry is None or entry.spec is not spec:
                    store.poison(call.outputs + k, spec, failure, root)
                else:
                    source = ids[known.updates[k]]
                    shared = source not in donated or sources.count(source) > 1
                    new = store.keep(call.outputs + k, entry, call.seq, failure, root, shared)
                    if new is not None and new.lent:
                        for capture in session.captures.values():
                            capture.lend_too(entry, new)
        if self.trace is not None and running.start_ns:
            self._record(self.trace, running, f"{failure.kind}")
        if not session.closed:
            self._report(session, call, root, failure, out)

    def _fail_late(self, running: Running, out: Out) -> None:
        """A call failed on the device: the results that replace inputs hold the old values already."""
        session, call, known = running.session, running.call, running.known
        if session.why_late is None:
            checks = known.runnable.checks if known.runnable is not None else ()
            failure = Failure("IndexOutOfRange", out_of_range(checks), known.hash, _only_check(checks))
            session.why_late = failure, call.seq
        failure, root = session.why_late
        with self._lock:
            for k, spec in enumerate(known.outputs):
                if k in known.updates:
                    session.store.taint(call.outputs + k, call.seq, failure, root)
                elif call.outputs + k in session.store.entries:  # a call that continued this one may have freed it
                    session.store.poison(call.outputs + k, spec, failure, root)
        self._report(session, call, root, failure, out)

    def _report(self, session: WorkerSession, call: Call, root: int, failure: Failure, out: Out) -> None:
        session.failed = max(session.failed, call.seq)
        if self.config.debug_worker:
            self.log(f"session {call.session} call {call.seq} failed: {failure.kind}: {failure.text}")
        out.append((CallFailed(call.session, call.seq, root, failure), None))

    def failure(self, error: Exception, program: bytes = b"", instruction: int = -1) -> Failure:
        """An error as it is sent."""
        name = type(error).__name__
        if isinstance(error, MemoryError) or self.engine.out_of_memory(error):
            return Failure("OutOfMemory", str(error)[:MAX_TEXT] or "out of memory", program, instruction)
        if name in BY_NAME:
            return Failure(name, str(error)[:MAX_TEXT], program, instruction)
        return Failure("WorkerError", f"{name}: {error}"[:MAX_TEXT], program, instruction)

    def recover(self, failure: Failure) -> None:
        """After a failure in the engine: free cached memory, or find out that the engine is broken."""
        if failure.kind == "OutOfMemory":
            self.engine.release()
        elif failure.kind == "WorkerError":
            try:
                self.engine.passed(self.engine.mark(), wait=True)
            except Exception as e:
                raise EngineLost(str(e)) from None


def is_quick(known: Known) -> bool:
    """Whether calls of this program have taken so little time that others can wait for one."""
    return known.hits > 2 and known.run_us <= QUICK_US * known.hits and not known.workers


def takes_long(known: Known) -> bool:
    """Whether calls of this program have taken so long that others should not wait for one, or nobody knows."""
    return not known.hits or known.run_us > LONG_US * known.hits


def _since_us(running: Running, now_ns: int) -> int:
    """The time since the device could start this call: when it was launched, or when the one before was done."""
    return (now_ns - max(running.start_ns, running.session.last_done_ns)) // 1000


_NO_CODE = Failure("WorkerError", "no code could be generated for the program")


def _trouble(known: Known, call: Call, entries: list[Entry | None]) -> tuple[Failure, int] | None:
    """Why a call cannot run, and the call that failed first."""
    failure = call.refused or known.failure
    if failure is not None:
        return failure, call.root or call.seq
    if len(entries) != len(known.inputs):
        return _wrong(known, f"got {len(entries)} inputs, expected {len(known.inputs)}"), call.seq
    if tuple(map(type, call.scalars)) != known.scalars:
        return _wrong(known, f"scalars {call.scalars} do not have the program's types"), call.seq
    acked = call.acked
    for i, (entry, want) in enumerate(zip(entries, known.inputs, strict=True)):
        if entry is None:
            return _wrong(known, f"input {i} is not a tensor of this session"), call.seq
        if entry.taint > acked and entry.failure is not None:
            return entry.failure, entry.root or call.seq
        if entry.spec is not want:
            return _wrong(known, f"input {i} is {entry.spec!r}, expected {want!r}"), call.seq
    return None


Checks = tuple[tuple[int, str], ...]  #: (instruction, op) of index checks.


def out_of_range(checks: Checks) -> str:
    """The message of a failed check, of which only the device knows which one it was."""
    return f"{', '.join(sorted({name for _, name in checks}))}: an index is out of range"


def _only_check(checks: Checks) -> int:
    """The instruction of these checks; -1 if they are of several."""
    instructions = {i for i, _ in checks}
    return instructions.pop() if len(instructions) == 1 else -1


def _wrong(known: Known, text: str) -> Failure:
    return Failure("ProgramError", text, known.hash)


def free(session: WorkerSession, ids: Iterable[int]) -> None:
    """Drop these tensors, but never id 0; unknown ids are ignored. The caller has the lock."""
    entries = session.store.entries
    for id in ids:
        if id:
            entries.pop(id, None)
            if session.keep_out:
                session.keep_out.discard(id)


def unpack(packed: bytes) -> Sequence[int]:
    """The ids in a packed list; none if its length is not a multiple of 8."""
    return unpack_ids(packed) if len(packed) % 8 == 0 else ()
