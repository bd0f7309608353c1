"""How busy the machine is, and whether a process may poll instead of sleeping.

To be woken costs more than a small program: 20 to 100 us for each process that a message passes through. So after
each message of an interactive user, server and workers poll for a moment before they sleep.

Law 1: no process polls for long while nothing happens, or where others need the cores.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from gt.transport.channel import Patience

LOOK_S = 0.1  #: How often the machine's load is read, by those who use it.
CALM = 3  #: So many looks in a row must have seen a core free before it is used.
AWAKE_S = 0.003  #: How long to stay awake, if nobody says another time. Most pauses of a loop are shorter.
CORES = 4  #: Nobody stays awake on a machine with fewer,
FREE = 3  #: nor where fewer are free, counting the one that is used for it.


def usable_cpus() -> float:
    """How many cores this process may use: those that it may run on, or fewer, where a container limits its time."""
    count = float(len(os.sched_getaffinity(0)))
    with suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()  # int("max") raises: no limit
        count = min(count, int(quota) / int(period))
    return count


class Load:
    """How many cores are free, counting those that this process uses itself."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._cpus = {b"cpu%d" % i for i in os.sched_getaffinity(0)}
        self._hz = os.sysconf("SC_CLK_TCK")
        self._calm = 0
        self._last = (0.0, 0.0, 0.0)  #: When it was read, and the seconds that cores were idle and that were ours.
        self.free = most
        self.known = False  #: Whether the system tells it.
        with suppress(OSError, ValueError):
            self._last = self._read()
            self.known = True

    def _read(self) -> tuple[float, float, float]:
        idle = 0
        with open("/proc/stat", "rb") as file:
            for line in file:
                if not line.startswith(b"cpu"):
                    break
                name, _, nice, _, waiting, io = line.split()[:6]
                if name in self._cpus:
                    idle += int(waiting) + int(io) + int(nice)  # a process of low priority gives way to us
        return time.monotonic(), idle / self._hz, time.process_time()

    def look(self) -> int:
        """The number of free cores. It rises only when more cores have been free for a while."""
        if time.monotonic() - self._last[0] < LOOK_S:
            return self.free
        try:
            then_s, idle_s, own_s = self._last
            self._last = now_s, idle, own = self._read()
        except (OSError, ValueError):
            return self.free  # the system does not say: every number of threads is tried
        share = (idle - idle_s + own - own_s) / (now_s - then_s)
        free = min(self.most, max(1, int(share + 0.5)))
        self._calm = self._calm + 1 if free > self.free else 0
        if free < self.free or self._calm >= CALM:
            self.free, self._calm = free, 0
        return self.free


class Awake:
    """Whether to poll for the next message of an interactive exchange, and for how long."""

    def __init__(self, awake_us: int) -> None:
        """`awake_us`: how long to poll, on any machine; -1: as long as the load of the machine allows."""
        cores = int(usable_cpus())
        self._for_s = AWAKE_S if awake_us < 0 else awake_us * 1e-6
        self._load = Load(cores) if awake_us < 0 and cores >= CORES else None
        if awake_us < 0 and (self._load is None or not self._load.known):
            self._for_s = 0.0
        self._until_s = 0.0
        self.patience = Patience()

    def exchanged(self) -> None:
        """A message of an interactive exchange has passed."""
        if self._for_s:
            self._until_s = time.perf_counter() + self._for_s

    def left_s(self) -> float:
        """How long to poll; 0: not at all."""
        if not self._until_s:
            return 0.0
        left_s = self._until_s - time.perf_counter()
        if left_s <= 0.0:
            self._until_s = 0.0
            return 0.0
        return left_s if self._load is None or self._load.look() >= FREE else 0.0
