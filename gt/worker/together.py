"""Calls that several workers run together, each its own program: how they wait for each other.

Law 1: all workers succeed or all fail. Results are stored and inputs overwritten only after every worker has said that
       its program succeeded. A worker that fails before leaves the groups of the call, and so the others fail.
Law 2: the groups of a call are joined before anything of it can fail, so a failure always reaches those who wait.
Law 3: such calls run in the order in which they came, over all sessions (core.py): two workers never wait for each
       other in different calls.
Law 4: the runner is away from the desk (calls.py) while it computes or waits for other workers.

A call begins, ends and fails as in calls.py. In between its code is a generator of PeerResults. Between processes a
result is waited for, so `go` runs to the end. In one process (the simulator) `go` returns while a result is not ready,
and other work may be done in the meantime.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

from gt.errors import IndexOutOfRange
from gt.tracing import now_ns
from gt.transport.messages import Call, Failure
from gt.worker.calls import Calls, Out, out_of_range, takes_long
from gt.worker.run.collectives import Collective, Group, Groups, PeerResult, agree, start
from gt.worker.run.programs import Known
from gt.worker.run.store import NOTHING, Array
from gt.worker.session import QueuedWork, Running, WorkerSession

STALL_S = 0.25  #: After how long a call that waits for other workers lets all others go on.


class Together:
    """One such call, from its beginning to its end."""

    def __init__(
        self, calls: Calls, groups: Groups, work: QueuedWork, session: WorkerSession, call: Call, known: Known
    ) -> None:
        self.work = work
        self.session = session
        self._calls, self._groups, self._call, self._known = calls, groups, call, known
        self._joined: dict[tuple[int, ...], Group] = {}
        #: Its number among the calls that use its groups. Moves have groups of their own: their numbers count down.
        self._turn = (session.number, call.seq) if call.seq > 0 else (-session.number, -call.seq)
        self._running: Running | None = None
        self._handle: PeerResult | None = None  #: What it waits for.
        self._waits_s = 0.0  #: Since when.
        self._out: Out = []
        self._steps = self._run()

    @property
    def stalled(self) -> bool:
        """Whether it has waited for other workers for so long that other sessions should be served meanwhile."""
        since_s = self._waits_s
        return since_s > 0 and time.monotonic() - since_s > STALL_S

    @property
    def ready(self) -> bool:
        """Whether it can go on."""
        return self._handle is None or self._handle.ready()

    def go(self, out: Out) -> bool:
        """Go on as far as possible; whether the call is over."""
        self._calls.engine.use(self.session.number)
        self._calls.use_precision(self._known)
        self._out = out
        self._calls.desk.leave(takes_long(self._known))
        try:
            while self.ready:
                handle, self._handle = self._handle, None
                try:
                    try:
                        value = self._wait(handle) if handle is not None else None
                    except Exception as e:
                        self._handle = self._steps.throw(e)
                    else:
                        self._handle = self._steps.send(value)
                except StopIteration:
                    return True
            return False
        finally:
            self._calls.desk.come_back()

    def _wait(self, handle: PeerResult) -> Any:
        self._waits_s = time.monotonic()
        try:
            return handle.result()
        finally:
            self._waits_s = 0.0

    # --- what the generated code calls ---------------------------------------------------------------------

    def start(self, what: Collective, array: Array, private: bool) -> PeerResult:
        group = self._joined[what.workers]
        self._groups.sent_nbytes += what.sent_nbytes
        start_ns = now_ns() if self._calls.trace is not None else 0
        if group.devices is not None and self._on_devices:
            started = group.devices.start(what, array, private)
        else:
            started = start(self._calls.engine, group, what, array, private)
        return self._recorded(started, what, start_ns) if start_ns else started

    def _recorded(self, started: PeerResult, what: Collective, start_ns: int) -> PeerResult:
        """The same; how long it took, from its start until its result was there, is recorded for a trace."""
        lane, name = f"session {self.session.number} collectives", f"{what.name} {what.kind}".rstrip()

        def result() -> Any:
            value = started.result()
            trace = self._calls.trace
            if trace is not None:
                trace.add(lane, name, start_ns, now_ns(), self.session.number, self._call.seq, self._known.hash)
            return value

        return PeerResult(result, started.ready)

    @property
    def _on_devices(self) -> bool:
        """Whether each worker of the call has a GPU of its own. All workers get the same answer."""
        group = self._joined.get(self._known.workers)
        return group is not None and group.devices is not None

    def agree(self, flag: Array | None) -> PeerResult:
        """Everything that can fail has run. Here the host learns from the device whether an index was bad."""
        if self._on_devices:
            # A device cannot finish a collective that another worker did not start: ask before waiting for the device.
            agree(self._joined[self._known.workers]).result()
        if flag is not None and bool(flag):
            assert self._running is not None
            raise IndexOutOfRange(out_of_range(self._running.form.checks))
        group = self._joined.get(self._known.workers)
        said = self._calls.tiers.say(self._known)
        return PeerResult(lambda: said) if group is None else agree(group, said)

    def agreed(self, said: int) -> None:
        """All workers have agreed; `said` is the largest number that one of them said."""
        self._calls.tiers.hear(self._known, said)

    # --- the call -----------------------------------------------------------------------------------

    def _run(self) -> Generator[PeerResult, Any, None]:
        calls, session, call, known = self._calls, self.session, self._call, self._known
        alone = yield from self._join()
        with calls.desk.back():
            if 0 not in session.store.entries:
                session.store.put_nothing(calls.engine.from_bytes(b"", NOTHING))
            running = calls.begin(session, call, known, *calls.read(session, call), self._out, alone)
        if running is None:
            self._leave()
            return
        self._running = running
        failure: Failure | None = None
        try:
            results, _ = yield from running.form.run(calls.take(running), call.scalars, self)
        except Exception as e:
            failure = calls.stopped(running, e)
        if failure is not None:  # here and not in the except clause: the exception's frames held arrays
            self._leave()
        with calls.desk.back():
            if failure is not None:
                calls.fail(running, failure, call.seq, self._out)
                calls.recover(failure)
            else:
                calls.end(running, results, self._out)

    def _join(self) -> Generator[PeerResult, Any, Failure | None]:
        """Meet the other workers; returns why that was not possible."""
        known, (owner, number) = self._known, self._turn
        try:
            for workers in known.groups:
                group = yield self._groups.join(owner, workers, number)
                self._groups.joined(owner, workers, group)
                self._joined[workers] = group
        except Exception as e:
            return self._calls.failure(e, known.hash)
        return None

    def _leave(self) -> None:
        owner, number = self._turn
        self._joined.clear()
        self._groups.fail(owner, self._known.groups, number)
