"""The search for better plans, in a process of its own.

`python -m gt.solver.background` reads a `Solve` from its standard input and writes a `PlanSolved`. It gives way to
others, and once the workers are measured to all of them; one search runs at a time. Whatever happens to it is an
answer: the dispatcher never waits for ever.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock, Thread

import msgspec

from gt import config
from gt.dispatcher.events import PlanSolved, Solve

LIMIT_S = 300.0  #: The longest that a search may take, with the measuring of the workers before the first one.
NICE = 10  #: How much it gives way from its first moment on: to load its libraries takes a second of a core.


class Solving:
    """Searches for the server at this address, one after the other; each answer is given to `done`, in a thread."""

    def __init__(self, address: str, token: str) -> None:
        self.done: Callable[[PlanSolved], None] = lambda answer: None
        self._environment = config.environment(server=address, token=token, auto_shard=0, signals="", workers=0)
        self._jobs: SimpleQueue[Solve | None] = SimpleQueue()
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._thread: Thread | None = None

    def start(self, job: Solve) -> None:
        """Search; the answer comes later."""
        self._jobs.put(job)
        if self._thread is None:
            self._thread = Thread(target=self._run, name="gt-solve", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End what is under way."""
        self._jobs.put(None)
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.kill()
        if self._thread is not None:
            self._thread.join(1.0)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None and not self._closed:
            try:
                answer = self._solve(job)
            except Exception as e:  # no memory, no process, an invalid answer: there is no plan
                answer = PlanSolved(job.session, job.program, error=f"{type(e).__name__}: {e}")
            self.done(answer)

    def _solve(self, job: Solve) -> PlanSolved:
        with self._lock:
            if self._closed:
                return PlanSolved(job.session, job.program, error="the server ends")
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gt.solver.background"],
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        process = self._process
        with suppress(OSError):  # it may have ended
            os.setpriority(os.PRIO_PROCESS, process.pid, NICE)
        try:
            out, said = process.communicate(msgspec.msgpack.encode(job), LIMIT_S)
        except subprocess.TimeoutExpired:
            return PlanSolved(job.session, job.program, error=f"nothing was found within {LIMIT_S:g} s")
        finally:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()
            with self._lock:
                self._process = None
        if process.returncode:
            lines = said.decode(errors="replace").strip().splitlines()
            return PlanSolved(job.session, job.program, error=lines[-1][:500] if lines else "the search ended early")
        return msgspec.msgpack.decode(out, type=PlanSolved)
