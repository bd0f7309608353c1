"""Code of programs that will be called soon is made before their first call (Prepare)."""

from __future__ import annotations

import time
from threading import Lock

from gt.transport.messages import Prepare, Prepared
from gt.worker.calls import Out
from gt.worker.run.programs import Programs
from gt.worker.run.tiers import Tiers

LOOK_S = 0.05  #: How often it is looked whether programs were compiled.


class Preparing:
    """What was asked for and is not there; the runner's. `lock` guards the programs."""

    def __init__(self, programs: Programs, tiers: Tiers, lock: Lock) -> None:
        self.asked: list[Prepare] = []
        self._programs, self._tiers, self._lock = programs, tiers, lock
        self._look_at_s = 0.0

    def ask(self, asked: Prepare, out: Out) -> None:
        self.asked.append(asked)
        self._look_at_s = 0.0
        self.look(out)

    def look(self, out: Out) -> None:
        """Tell what is done. What a program does to the compiler is told at its first call."""
        if time.monotonic() < self._look_at_s:
            return
        for each in list(self.asked):
            with self._lock:
                known = self._programs.peek(each.program)
            if known is None or self._tiers.prepare(known):
                self.asked.remove(each)
                out.append((Prepared(each.session, each.program), None))
        self._look_at_s = time.monotonic() + LOOK_S
