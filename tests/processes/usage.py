"""What processes hold of the machine (memory, threads, descriptors, shared memory), and how equally time is shared."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path


@dataclass(frozen=True)
class Usage:
    """Of one process, or the sum over some."""

    rss: int = 0  #: bytes
    threads: int = 0
    fds: int = 0
    rings: int = 0  #: files in shared memory that it has mapped

    def __add__(self, other: Usage) -> Usage:
        return Usage(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Usage)))


def usage_of(pid: int) -> Usage:
    at = Path(f"/proc/{pid}")
    status = dict(line.split(":", 1) for line in (at / "status").read_text().splitlines() if ":" in line)
    fds = len(os.listdir(at / "fd"))
    rings = {line.split(maxsplit=5)[5] for line in (at / "maps").read_text().splitlines() if "/memfd:gt-" in line}
    return Usage(int(status["VmRSS"].split()[0]) << 10, int(status["Threads"]), fds, len(rings))


def usage_of_all(pids: Iterable[int]) -> Usage:
    """Of those that are still there."""
    total = Usage()
    for pid in pids:
        with suppress(OSError):
            total += usage_of(pid)
    return total


def jain(shares: Sequence[float]) -> float:
    """Jain's index: 1 if all are equal, 1/n if one has everything.

    >>> jain([2, 2, 2, 2]), jain([1, 0, 0, 0])
    (1.0, 0.25)
    """
    total = sum(x * x for x in shares)
    return sum(shares) ** 2 / (len(shares) * total) if total else 0.0


def median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]
