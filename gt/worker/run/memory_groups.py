"""Groups of workers that live in one process and take turns: for tests and the simulator.

Nothing waits here: a handle is asked again until it is ready. What workers bring to a collective is compared, so that
a plan whose parts do not fit together is found out with the names of the workers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from gt import dtypes
from gt.errors import PeerFailed, ProgramError
from gt.worker.run.collectives import AGREE, Bytes, Collective, Devices, Group, Key, PeerResult


class Hall:
    """Where the workers of one process meet; each comes in by a `door` of its own."""

    def __init__(self) -> None:
        self.tables: dict[Key, Table] = {}
        self.gone: set[int] = set()
        self.count: Counter[str] = Counter()  #: Collectives that were finished, by name.

    def door(self) -> Door:
        return Door(self)

    def table(self, key: Key) -> Table:
        if key not in self.tables:
            self.tables[key] = Table(self, key)
        return self.tables[key]

    def kill(self, worker: int) -> None:
        """This worker's process has died."""
        self.gone.add(worker)
        for table in self.tables.values():
            if worker in table.key.workers:
                table.break_up()


class Table:
    """One group, as all its workers see it."""

    def __init__(self, hall: Hall, key: Key) -> None:
        self.hall = hall
        self.key = key
        self.broken = not hall.gone.isdisjoint(key.workers)
        self.here: set[int] = set()  #: Ranks.
        self.begun: Counter[int] = Counter()  #: Of each rank: how many collectives it has begun.
        self.brought: dict[int, dict[int, tuple[Collective, Bytes]]] = {}  #: By number of the collective, by rank.
        self.taken: Counter[int] = Counter()  #: Of each collective: how many have their result.

    def bring(self, rank: int, what: Collective, data: Bytes) -> int:
        """What a worker has for its next collective, and the number of that."""
        number = self.begun[rank]
        self.begun[rank] += 1
        brought = self.brought.setdefault(number, {})
        for other, (theirs, _) in brought.items():
            self._compare(rank, what, other, theirs)
        brought[rank] = what, data.copy()
        return number

    def _compare(self, rank: int, mine: Collective, other: int, theirs: Collective) -> None:
        names = f"workers {self.key.workers[rank]} and {self.key.workers[other]}"
        if (mine.name, mine.kind, mine.given.dtype) != (theirs.name, theirs.kind, theirs.given.dtype):
            raise ProgramError(f"{names} meet in {mine.name} {mine.given!r} and {theirs.name} {theirs.given!r}")
        if mine.name == "all_reduce":
            fits = mine.given.size == theirs.given.size
        else:
            fits = mine.sends[other] == theirs.takes[rank] and mine.takes[other] == theirs.sends[rank]
        if not fits:
            raise ProgramError(f"{names} expect different sizes of each other in {mine.name}")

    def complete(self, number: int) -> bool:
        return len(self.brought.get(number, ())) == len(self.key.workers)

    def take(self, number: int) -> list[tuple[Collective, Bytes]]:
        """What all workers have brought, by rank. Each worker asks once."""
        brought = self.brought[number]
        self.taken[number] += 1
        if self.taken[number] == len(brought):
            del self.brought[number], self.taken[number]
            if (what := brought[0][0]) is not AGREE:
                self.hall.count[what.name] += 1
        return [brought[r] for r in range(len(brought))]

    def break_up(self) -> None:
        self.broken = True  # what all have brought can still be taken

    def check(self) -> None:
        if self.broken:
            raise PeerFailed(f"a worker of {list(self.key.workers)} failed in the same call, or is gone")


class Door:
    """One worker's way in: its Network."""

    def __init__(self, hall: Hall) -> None:
        self._hall = hall

    def join(self, key: Key, rank: int) -> PeerResult:
        table = self._hall.table(key)
        table.here.add(rank)
        return _MemoryJoining(table, rank)

    def give_up(self, key: Key) -> None:
        self._hall.table(key).break_up()

    def know(self, addresses: Mapping[int, str]) -> None:
        pass


class _MemoryJoining:
    def __init__(self, table: Table, rank: int) -> None:
        self._table, self._rank = table, rank

    def ready(self) -> bool:
        return self._table.broken or len(self._table.here) == len(self._table.key.workers)

    def result(self) -> Group:
        self._table.check()
        return _MemoryGroup(self._table, self._rank)


class _MemoryGroup:
    devices: Devices | None = None

    def __init__(self, table: Table, rank: int) -> None:
        self._table, self._rank = table, rank

    def start(self, what: Collective, data: Bytes, out: Bytes) -> PeerResult:
        self._table.check()
        return _MemoryWork(self._table, self._rank, self._table.bring(self._rank, what, data), out)

    def drop(self) -> None:
        self._table.break_up()


class _MemoryWork:
    def __init__(self, table: Table, rank: int, number: int, out: Bytes) -> None:
        self._table, self._rank, self._number, self._out = table, rank, number, out

    def ready(self) -> bool:
        return self._table.broken or self._table.complete(self._number)

    def result(self) -> None:
        if not self._table.complete(self._number):
            self._table.check()
        parts = []
        for what, data in self._table.take(self._number):
            if what.name == "all_reduce":
                parts.append(data.view(what.given.dtype.numpy))
                continue
            nbytes = what.nbytes(what.sends)
            first = sum(nbytes[: self._rank]) if what.name == "all_to_all" else 0
            parts.append(data[first : first + nbytes[self._rank]])
        if what.name == "all_reduce":
            self._out[:] = _reduced(parts, what).view(np.uint8)
        else:
            self._out[:] = np.concatenate(parts)


def _reduced(parts: list[Any], what: Collective) -> Any:
    """In the order of the ranks, so that all workers get the same; 16-bit numbers are rounded once."""
    narrow = what.given.dtype in (dtypes.float16, dtypes.bfloat16)
    f: Any = {"sum": np.add, "max": np.maximum, "min": np.minimum}[what.kind]
    total = parts[0].astype(np.float32) if narrow else parts[0]
    for part in parts[1:]:
        total = f(total, part.astype(np.float32) if narrow else part)
    return np.ascontiguousarray(total, what.given.dtype.numpy)
