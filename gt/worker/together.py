"""Calls that several workers run together, each its own program: how they wait for each other.

Law 1: all workers succeed or all fail. Results are stored and inputs overwritten only after every worker has said that
       its program succeeded. A worker that fails before leaves the groups of the call, and so the others fail.
Law 2: the groups of a call are joined before anything of it can fail, so a failure always reaches those who wait.
Law 3: such calls run in the order in which they came, over all sessions (core.py): two workers never wait for each
       other in different calls.

A call begins, ends and fails as in calls.py. In between its code is a generator of PeerResults. Between processes a
result is waited for, so `go` runs to the end. In one process (the simulator) `go` returns while a result is not ready,
and other work may be done in the meantime.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from gt.errors import IndexOutOfRange
from gt.transport.messages import Call, Failure
from gt.worker.calls import Calls, Out, out_of_range
from gt.worker.run.collectives import Collective, Group, Groups, PeerResult, agree, start
from gt.worker.run.programs import Known
from gt.worker.run.store import NOTHING, Array
from gt.worker.session import Running, Work, WorkerSession


class Together:
    """One such call, from its beginning to its end."""

    def __init__(
        self, calls: Calls, groups: Groups, work: Work, session: WorkerSession, call: Call, known: Known
    ) -> None:
        self.work = work
        self.session = session
        self._calls, self._groups, self._call, self._known = calls, groups, call, known
        self._joined: dict[tuple[int, ...], Group] = {}
        self._running: Running | None = None
        self._handle: PeerResult | None = None  #: What it waits for.
        self._out: Out = []
        self._steps = self._run()

    @property
    def ready(self) -> bool:
        """Whether it can go on."""
        return self._handle is None or self._handle.ready()

    def go(self, out: Out) -> bool:
        """Go on as far as possible; whether the call is over."""
        self._calls.use(self.session, self._known)
        self._out = out
        while self.ready:
            handle, self._handle = self._handle, None
            try:
                try:
                    value = handle.result() if handle is not None else None
                except Exception as e:
                    self._handle = self._steps.throw(e)
                else:
                    self._handle = self._steps.send(value)
            except StopIteration:
                return True
        return False

    # --- what the generated code calls ---------------------------------------------------------------------

    def start(self, what: Collective, array: Array, private: bool) -> PeerResult:
        group = self._joined[what.workers]
        self._groups.sent_nbytes += what.sent_nbytes
        if group.devices is not None and self._on_devices:
            return group.devices.start(what, array, private)
        return start(self._calls.engine, group, what, array, private)

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
            calls.fail(running, failure, call.seq, self._out)
            calls.recover(failure)
            return
        calls.end(running, results, self._out)

    def _join(self) -> Generator[PeerResult, Any, Failure | None]:
        """Meet the other workers; returns why that was not possible."""
        session, known = self.session, self._known
        try:
            for workers in known.groups:
                group = yield self._groups.join(session.number, workers, self._call.seq)
                self._groups.joined(session.number, workers, group)
                self._joined[workers] = group
        except Exception as e:
            return self._calls.failure(e, known.hash)
        return None

    def _leave(self) -> None:
        self._joined.clear()
        self._groups.fail(self.session.number, self._known.groups, self._call.seq)
