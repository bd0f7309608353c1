"""What workers do together: collectives, the groups that run them, and which group a call uses.

Law 1: a group belongs to one session. Its key is (session, workers, generation): after a call of it has failed, every
       worker of the group takes that call's number as the next generation, so all meet again in a new group without
       further messages. A group that was not used for IDLE calls is made anew in the same way, so any worker may
       drop it before.
Law 2: all groups of a call are joined before anything of it can fail, in one order on all workers. A worker that fails
       drops them: that wakes the others, which then fail too.
Law 3: an array is sent only if it has exactly the size that the program declares.

How workers reach each other is up to the network: sockets (engines/groups.py), or in tests the memory of one process
(tests/sim/memory_groups.py). Both send and receive host memory; an engine's arrays are copied there and back.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from gt import dtypes
from gt.errors import PeerFailed, ProgramError, WorkerError
from gt.ops.record import Op
from gt.program import Spec, spec
from gt.worker.run.engine import Engine
from gt.worker.run.store import Array

IDLE = 10_000  #: Calls of a session after which a group that none of them used is made anew.
GROUPS = 128  #: Groups of all sessions: each takes a few threads and sockets.

Bytes = np.ndarray[Any, np.dtype[np.uint8]]  #: Host memory.


@dataclass(frozen=True, slots=True)
class Collective:
    """One use of a collective op, as one worker has it."""

    name: str
    workers: tuple[int, ...]
    rank: int
    given: Spec
    made: Spec
    kind: str = ""  #: Of an all_reduce: sum, max or min.
    sends: tuple[int, ...] = ()  #: Elements sent to each worker of the group,
    takes: tuple[int, ...] = ()  #: and received from each.

    def nbytes(self, sizes: Sequence[int]) -> list[int]:
        return [n * self.given.dtype.itemsize for n in sizes]

    @property
    def sent_nbytes(self) -> int:
        """Bytes that this worker sends to the others, at least."""
        n = len(self.workers)
        if self.name == "all_reduce":  # a part of it to each worker, and the sum of one part
            return 2 * self.given.nbytes * (n - 1) // n
        return sum(self.nbytes(self.sends)) - self.nbytes(self.sends)[self.rank]


def collective(op: Op, attrs: Mapping[str, Any], given: Spec, made: Spec) -> Collective:
    """A use of a collective op; inference has checked its attributes."""
    workers, rank = tuple(attrs["workers"]), attrs["rank"]
    sends: tuple[int, ...] = ()
    takes: tuple[int, ...] = ()
    if op.name == "all_gather":
        takes = tuple(attrs["sizes"])
        sends = (takes[rank],) * len(workers)
    elif op.name == "all_to_all":
        sends, takes = tuple(attrs["sends"]), tuple(attrs["takes"])
    elif op.name != "all_reduce":
        raise ProgramError(f"{op.name}: unknown collective; expected all_reduce, all_gather or all_to_all")
    return Collective(op.name, workers, rank, given, made, attrs.get("kind", ""), sends, takes)


@dataclass(frozen=True, slots=True)
class PeerResult:
    """The result of something that other workers take part in."""

    #: Returns the result, and raises PeerFailed if another worker has failed. Called once, after `ready`.
    result: Callable[[], Any]
    #: Whether it is over, successful or not. Between processes always true: there `result` waits, with a deadline.
    ready: Callable[[], bool] = lambda: True


class Devices(Protocol):
    """Collectives on arrays on devices. They run in the order of the device's work: the host does not wait."""

    def start(self, what: Collective, array: Array, private: bool) -> PeerResult: ...

    def drop(self) -> None: ...


class Group(Protocol):
    """Workers that run collectives, each of them the same ones in the same order."""

    #: Where each worker has a GPU of its own: collectives from GPU to GPU, without the host. See nccl.py.
    devices: Devices | None

    def start(self, what: Collective, data: Bytes, out: Bytes) -> PeerResult:
        """Start a collective. `data` may be read and `out` written until it is over. For an all_reduce `out` and `data`
        are the same memory, which is overwritten with the result."""

    def drop(self) -> None:
        """Leave the group; workers that wait for this one fail. Any thread may call it, and more than once."""


class GroupKey(NamedTuple):
    session: int
    workers: tuple[int, ...]
    generation: int


class Network(Protocol):
    """How a worker meets others."""

    def join(self, key: GroupKey, rank: int) -> PeerResult:
        """Meet the other workers of a group; the result is the Group."""

    def give_up(self, key: GroupKey) -> None:
        """This worker will not join that group; workers that wait for it there fail. Any thread may call it."""

    def know(self, addresses: Mapping[int, str]) -> None:
        """The addresses of the workers now; those left out are gone."""


AGREE = Collective("all_reduce", (), 0, spec((1,), dtypes.uint8), spec((1,), dtypes.uint8), "max")


@dataclass(slots=True, eq=False)
class _Membership:
    """One group of a session."""

    generation: int = 0
    used: int = 0  #: The latest call that used it.
    group: Group | None = None


class Groups:
    """The groups of a worker. The runner joins and fails them; the reader may close those of a session.

    The network is made when it is first needed: it may have to import a library.
    """

    def __init__(self, make_network: Callable[[], Network] | None = None) -> None:
        self.me = 0  #: This worker's number.
        self.sent_nbytes = 0  #: Bytes sent to other workers so far.
        self._make_network = make_network
        self._network: Network | None = None
        self._addresses: Mapping[int, str] = {}
        self._lock = threading.Lock()
        self._of: dict[int, dict[tuple[int, ...], _Membership]] = {}
        #: Sessions that ended recently; a call of theirs may still be running.
        self._closed: deque[int] = deque(maxlen=512)

    def __len__(self) -> int:
        with self._lock:
            return sum(m.group is not None for table in self._of.values() for m in table.values())

    @property
    def on_devices(self) -> int:
        """How many of them send arrays from device to device."""
        with self._lock:
            groups = [m.group for table in self._of.values() for m in table.values()]
            return sum(group is not None and group.devices is not None for group in groups)

    def know(self, addresses: Mapping[int, str]) -> None:
        """The addresses of the workers now."""
        self._addresses = addresses
        if self._network is not None:
            self._network.know(addresses)

    def _reach(self) -> Network:
        """The network. The runner alone makes it."""
        if self._network is None:
            if self._make_network is None:
                raise WorkerError("a call with several workers needs torch on each of them: pip install 'gt[torch]'")
            network = self._make_network()
            network.know(self._addresses)
            self._network = network
            network.know(self._addresses)  # they may have changed meanwhile
        return self._network

    def join(self, session: int, workers: tuple[int, ...], seq: int) -> PeerResult:
        """The group of these workers for call `seq`. The result must be passed to `joined`."""
        if self.me not in workers:
            raise ProgramError(f"worker {self.me} is not one of the workers {list(workers)}")
        with self._lock:
            if session in self._closed:
                raise PeerFailed("the session was closed")
            table = self._of.setdefault(session, {})
            member = table.setdefault(workers, _Membership())
            if member.used and seq - member.used > IDLE:
                self._renew(member)
            member.used = seq
            if (group := member.group) is not None:
                return PeerResult(lambda: group)
            for other in table.values():
                if seq - other.used > IDLE:
                    self._renew(other)
            held = sum(m.group is not None for t in self._of.values() for m in t.values())
        if held >= GROUPS:
            raise WorkerError(f"this worker is in {held} groups of workers, the limit is {GROUPS}; close some sessions")
        return self._reach().join(GroupKey(session, workers, member.generation), workers.index(self.me))

    @staticmethod
    def _renew(member: _Membership) -> None:
        """Drop a group that no worker will use again: see Law 1."""
        member.generation = max(member.generation, member.used)
        group, member.group = member.group, None
        if group is not None:
            group.drop()

    def joined(self, session: int, workers: tuple[int, ...], group: Group) -> None:
        with self._lock:
            member = self._of.get(session, {}).get(workers)
            if member is not None:
                member.group = group
        if member is None:  # the session was closed meanwhile
            group.drop()
            raise PeerFailed("the session was closed")

    def fail(self, session: int, groups: Sequence[tuple[int, ...]], seq: int) -> None:
        """Call `seq`, which used these groups, failed."""
        for workers in groups:
            with self._lock:
                table = self._of.get(session)
                if table is None:
                    return
                member = table.setdefault(workers, _Membership())
                key = GroupKey(session, workers, member.generation)
                member.generation = member.used = seq
                group, member.group = member.group, None
            if group is not None:
                group.drop()
            elif self._make_network is not None:
                self._reach().give_up(key)

    def reopen(self, session: int) -> None:
        """A session comes; maybe it was here before, and has moved to another worker since."""
        with self._lock:
            for number in (session, -session):
                if number in self._closed:
                    self._closed.remove(number)

    def close(self, session: int) -> None:
        """The session has ended. Other workers may wait for calls of it that will not run here any more."""
        with self._lock:
            table = self._of.pop(session, {})
            self._closed.append(session)
        for workers, member in table.items():
            if member.group is not None:
                member.group.drop()
            elif self._network is not None:
                self._network.give_up(GroupKey(session, workers, member.generation))


# --- host memory -----------------------------------------------------------------------------------------------------


def start(engine: Engine, group: Group, what: Collective, array: Array, private: bool) -> PeerResult:
    """Start a collective on an engine's array, through host memory. If it is `private`, nothing reads it again."""
    data = _to_host(engine, array)
    if data.nbytes != what.given.nbytes:
        raise ProgramError(f"{what.name}: got {data.nbytes} bytes, the program declares {what.given!r}")
    out = data
    if what.name != "all_reduce":
        out = engine.host_buffer(what.made.nbytes)
    elif not (private and data.flags.writeable):
        out = engine.host_buffer(what.made.nbytes)
        out[:] = data
        data = out
    started = group.start(what, data, out)

    def result() -> Array:
        started.result()
        return engine.from_bytes(out.data, what.made, given=True)

    return PeerResult(result, started.ready)


def _to_host(engine: Engine, array: Array) -> Bytes:
    if not engine.deferred:
        return np.frombuffer(engine.to_bytes(array, borrow=True), np.uint8)
    coming = engine.start_fetch(array)
    engine.passed(coming.mark, wait=True)  # for the session's stream alone
    return np.frombuffer(engine.end_fetch(coming), np.uint8)


def agree(group: Group, said: int = 0) -> PeerResult:
    """Wait until all workers of the group have come this far. The result is the largest number that one has said."""
    word = np.full(1, said, np.uint8)
    started = group.start(AGREE, word, word)

    def result() -> int:
        started.result()
        return int(word[0])

    return PeerResult(result, started.ready)
