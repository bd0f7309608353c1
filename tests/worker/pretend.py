"""A GPU that is played by the CPU: torch's engine with captures whose replays run the function again.

What it plays is what a capture is for: nothing happens when a function is captured; a replay reads and writes the
captured memory, whoever holds it, and its results are where they were before. Captures share their memory: a replay
leaves garbage in the results of the others.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from gt.worker.engines.torch import TorchEngine


class Replayed:
    """A capture."""

    def __init__(self, f: Callable[[], list[Any]], results: list[Any], others: list[weakref.ref[Replayed]]) -> None:
        self.f, self.results, self.others = f, results, others
        others.append(weakref.ref(self))

    def replay(self) -> None:
        new = self.f()
        for other in [o for ref in self.others if (o := ref()) is not None and o is not self]:
            for r in other.results:
                r.fill_(77)
        for old, value in zip(self.results, new, strict=True):
            old.copy_(value)


class Pretend(TorchEngine):
    """See the file's header."""

    def __init__(self) -> None:
        super().__init__("cpu", threads=1)
        self.deferred = True
        self.compiles_with = None
        self.captured = 0
        self.refuses: Callable[[], None] | None = None  #: Called before each capture; what it raises, the capture does.
        self.graphs: list[weakref.ref[Replayed]] = []

    def capture(self, f: Callable[[], list[Any]], changed: list[Any]) -> tuple[Any, list[Any]]:
        self.captured += 1
        if self.refuses is not None:
            self.refuses()
        before = [a.clone() for a in changed]
        results = f()
        for a, old in zip(changed, before, strict=True):
            a.copy_(old)
        for r in results:
            r.fill_(0)  # a capture computes nothing
        return Replayed(f, results, self.graphs), results

    def staging(self, slots: int) -> Any:
        return torch.zeros(slots, dtype=torch.int64)

    def mark(self) -> Any:
        return None

    def send_flag(self, flag: Any) -> Any:
        return flag.clone()

    def raised(self, flag: Any) -> bool:
        return bool(flag)


class Late(Pretend):
    """Its host learns late what it has done: as much as a test says, or waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.marks = self.done = 0

    def mark(self) -> int:
        self.marks += 1
        return self.marks

    stamp = mark

    def between_us(self, before: int, after: int) -> int:
        return 10

    def passed(self, mark: int, wait: bool = False) -> bool:
        if wait:
            self.done = max(self.done, mark)
        return mark <= self.done
