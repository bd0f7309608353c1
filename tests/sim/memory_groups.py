"""Groups of workers that live in one process and take turns: for tests and the simulator.

Nothing waits here: a PeerResult is asked again until it is ready. What workers bring to a collective is compared, so
that programs that do not fit together fail with an error that names the workers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from gt import dtypes
from gt.errors import PeerFailed, ProgramError
from gt.worker.run.collectives import AGREE, Bytes, Collective, Devices, Group, GroupKey, PeerResult


class MemoryHub:
    """Where the workers of one process meet; each has a `network` of its own."""

    def __init__(self) -> None:
        self.meetings: dict[GroupKey, Meeting] = {}
        self.gone: set[int] = set()
        self.count: Counter[str] = Counter()  #: Collectives that were finished, by name.

    def network(self) -> MemoryNetwork:
        return MemoryNetwork(self)

    def meeting(self, key: GroupKey) -> Meeting:
        if key not in self.meetings:
            self.meetings[key] = Meeting(self, key)
        return self.meetings[key]

    def kill(self, worker: int) -> None:
        """This worker's process has died."""
        self.gone.add(worker)
        for meeting in self.meetings.values():
            if worker in meeting.key.workers:
                meeting.break_up()


class Meeting:
    """One group, with what all its workers have brought."""

    def __init__(self, hub: MemoryHub, key: GroupKey) -> None:
        self.hub = hub
        self.key = key
        self.broken = not hub.gone.isdisjoint(key.workers)
        self.here: set[int] = set()  #: Ranks.
        self.begun: Counter[int] = Counter()  #: Of each rank: how many collectives it has begun.
        self.brought: dict[int, dict[int, tuple[Collective, Bytes]]] = {}  #: By number of the collective, by rank.
        self.taken: Counter[int] = Counter()  #: Of each collective: how many workers have their result.

    def bring(self, rank: int, what: Collective, data: Bytes) -> int:
        """Add what a worker has for its next collective; returns the number of that collective."""
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
            raise ProgramError(f"{names} meet in {mine.name} of {mine.given!r} and {theirs.name} of {theirs.given!r}")
        if mine.name == "all_reduce":
            fits = mine.given.size == theirs.given.size
        else:
            fits = mine.sends[other] == theirs.takes[rank] and mine.takes[other] == theirs.sends[rank]
        if not fits:
            raise ProgramError(f"{mine.name}: {names} do not expect the sizes that they send to each other")

    def complete(self, number: int) -> bool:
        return len(self.brought.get(number, ())) == len(self.key.workers)

    def take(self, number: int) -> list[tuple[Collective, Bytes]]:
        """What all workers have brought, by rank. Each worker asks once."""
        brought = self.brought[number]
        self.taken[number] += 1
        if self.taken[number] == len(brought):
            del self.brought[number], self.taken[number]
            if (what := brought[0][0]) is not AGREE:
                self.hub.count[what.name] += 1
        return [brought[r] for r in range(len(brought))]

    def break_up(self) -> None:
        self.broken = True  # what all workers have brought can still be taken

    def check(self) -> None:
        if self.broken:
            raise PeerFailed(f"a worker of {list(self.key.workers)} failed in the same call, or is gone")


class MemoryNetwork:
    """One worker's way to meet the others: a Network."""

    def __init__(self, hub: MemoryHub) -> None:
        self._hub = hub

    def join(self, key: GroupKey, rank: int) -> PeerResult:
        meeting = self._hub.meeting(key)
        meeting.here.add(rank)

        def result() -> Group:
            meeting.check()
            return _MemoryGroup(meeting, rank)

        return PeerResult(result, lambda: meeting.broken or len(meeting.here) == len(key.workers))

    def give_up(self, key: GroupKey) -> None:
        self._hub.meeting(key).break_up()

    def know(self, addresses: Mapping[int, str]) -> None:
        pass


class _MemoryGroup:
    devices: Devices | None = None

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self._meeting, self._rank = meeting, rank

    def start(self, what: Collective, data: Bytes, out: Bytes) -> PeerResult:
        meeting, rank = self._meeting, self._rank
        meeting.check()
        number = meeting.bring(rank, what, data)

        def result() -> None:
            if not meeting.complete(number):
                meeting.check()
            out[:] = _result(meeting.take(number), rank)

        return PeerResult(result, lambda: meeting.broken or meeting.complete(number))

    def drop(self) -> None:
        self._meeting.break_up()


def _result(brought: list[tuple[Collective, Bytes]], rank: int) -> Bytes:
    """What a worker gets, of what all of them have brought."""
    what = brought[0][0]
    if what.name == "all_reduce":
        parts = [data.view(what.given.dtype.numpy) for what, data in brought]
        reduced: Bytes = _reduced(parts, what).view(np.uint8)
        return reduced
    found = []
    for what, data in brought:
        nbytes = what.nbytes(what.sends)
        first = sum(nbytes[:rank]) if what.name == "all_to_all" else 0
        found.append(data[first : first + nbytes[rank]])
    return np.concatenate(found)


def _reduced(parts: list[Any], what: Collective) -> Any:
    """Reduced in the order of the ranks, so that all workers get the same; 16-bit numbers are rounded once."""
    narrow = what.given.dtype in (dtypes.float16, dtypes.bfloat16)
    f: Any = {"sum": np.add, "max": np.maximum, "min": np.minimum}[what.kind]
    total = parts[0].astype(np.float32) if narrow else parts[0]
    for part in parts[1:]:
        total = f(total, part.astype(np.float32) if narrow else part)
    return np.ascontiguousarray(total, what.given.dtype.numpy)
