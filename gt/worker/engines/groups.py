"""Groups of workers between processes: torch.distributed's gloo, built directly and without its global state.

Law 1: nothing waits longer than the deadline. If a worker fails or dies its sockets close, and the others know
       within milliseconds. One that hangs, or is cut off, is waited for until the dispatcher has given it up. One that
       is only slow (it compiles, or the machine is busy) is waited for much longer.
Law 2: a group that is dropped closes its sockets in a thread of its own: gloo finishes running collectives first, and
       that may have to wait until the others have left too. A worker without running collectives closes at once, so at
       least one always does.
Law 3: gloo ends the process if an array is smaller than what arrives. So all sizes are those that the program declares,
       and the caller has checked them.

Law 4: between machines the store and gloo listen on loopback addresses, and are reached through the doors of the
       workers (reach.py), where workers prove that they are of the same server.

Workers meet at the first of them, which has a store (torch's TCPStore) on the socket that it has listened on since its
start.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from gt.errors import PeerFailed
from gt.worker.engines.nccl import on_devices
from gt.worker.engines.reducing import narrowed, reduce_op, widened
from gt.worker.run.collectives import Bytes, Collective, Devices, Group, GroupKey, PeerResult
from gt.worker.run.reach import Reach
from gt.worker.run.tunnel import home

MEETING = timedelta(seconds=30)  #: For making the sockets, when all workers are known to be there.
LOOK = timedelta(seconds=0.2)  #: How often a worker that waits for others looks whether they are still there.
POLL_S = 0.001  #: How often a worker that waits looks whether the others have come.


class Sockets:
    """How this worker meets others over sockets: a Network."""

    def __init__(self, listening: socket.socket, timeout_s: float, device: str, reach: Reach | None = None) -> None:
        self._listening = listening
        self._reach = reach
        self._engine_device = device
        self._timeout = timedelta(seconds=timeout_s)
        self._addresses: dict[int, str] = {}
        self._stores: dict[int, Any] = {}  #: By the worker that has the store.
        self._device: Any = None
        self._given_up: deque[GroupKey] = deque(maxlen=256)
        self._lock = threading.Lock()  #: For this worker's own store, which two threads may make.

    def know(self, addresses: Mapping[int, str]) -> None:
        self._addresses = dict(addresses)

    def join(self, key: GroupKey, rank: int) -> PeerResult:
        return PeerResult(lambda: self._meet(key, rank))

    def give_up(self, key: GroupKey) -> None:
        self._given_up.append(key)

        def tell() -> None:
            with suppress(Exception):  # the worker with the store may be gone: then the others know anyway
                self.store(key.workers[0]).set(f"{name(key)}/broken", "1")

        threading.Thread(target=tell, name="giving up", daemon=True).start()

    def store(self, worker: int) -> Any:
        """The store of the groups whose first worker this is."""
        if worker in self._stores:
            return self._stores[worker]
        host, port = self._store_of(worker)
        if (host, port) == self._listening.getsockname():
            with self._lock:
                if worker not in self._stores:
                    fd = self._listening.fileno()
                    self._stores[worker] = dist.TCPStore(
                        host, port, None, True, self._timeout, wait_for_workers=False, master_listen_fd=fd
                    )
                return self._stores[worker]
        # torch would keep trying where nothing listens any more.
        socket.create_connection((host, port), self._timeout.total_seconds()).close()
        for gone in self.missing(tuple(self._stores)):
            self._stores.pop(gone, None)
        made = dist.TCPStore(host, port, None, False, self._timeout, wait_for_workers=False)
        return self._stores.setdefault(worker, made)

    def _store_of(self, worker: int) -> tuple[str, int]:
        """Where the store of a worker is, as this worker reaches it."""
        host, _, text = self._addresses.get(worker, "").rpartition(":")
        if not text:
            raise PeerFailed(f"worker {worker} is gone")
        if self._reach is None:
            return host, int(text)
        return self._listening.getsockname() if worker == self._reach.me else self._reach.store_of(worker)

    def missing(self, workers: tuple[int, ...]) -> list[int]:
        return [w for w in workers if w not in self._addresses]

    def _meet(self, key: GroupKey, rank: int) -> Group:
        """Wait for the other workers and make the group; raises PeerFailed."""
        if gone := self.missing(key.workers):
            raise PeerFailed(f"worker {gone[0]} is gone")
        meeting = _Meeting(lambda: self._make_group(key, rank))
        while not meeting.over.wait(LOOK.total_seconds()):
            if gone := self.missing(key.workers):
                meeting.leave()
                raise PeerFailed(f"worker {gone[0]} is gone")
        try:
            return meeting.result()
        except PeerFailed:
            raise
        except (RuntimeError, OSError) as e:  # a connection that was refused or lost, a timeout
            first = str(e).partition("\n")[0][:200]
            raise PeerFailed(f"the workers {list(key.workers)} cannot meet: {first}") from None

    def _make_group(self, key: GroupKey, rank: int) -> Group:
        deadline_s = time.monotonic() + self._timeout.total_seconds()
        store = dist.PrefixStore(name(key), self.store(key.workers[0]))
        store.set(str(rank), "1")
        everyone = [str(r) for r in range(len(key.workers))]
        while not store.check(everyone):
            if gone := self.missing(key.workers):
                raise PeerFailed(f"worker {gone[0]} is gone")
            if key in self._given_up or store.check(["broken"]):
                raise PeerFailed(f"a worker of {list(key.workers)} failed before the call began")
            if time.monotonic() > deadline_s:
                absent = [w for r, w in enumerate(key.workers) if not store.check([str(r)])]
                seconds = self._timeout.total_seconds()
                raise PeerFailed(f"workers {absent} did not join the call within {seconds:g} s (GT_PEER_TIMEOUT)")
            time.sleep(POLL_S)  # the store does not notify
        if self._device is None:
            here = self._listening.getsockname()[0] if self._reach is None else home(self._reach.me)
            self._device = dist.ProcessGroupGloo.create_device(hostname=here)
            _let_send()
        options = dist.ProcessGroupGloo._Options()
        options._devices = [self._device]
        options._timeout = min(self._timeout, MEETING)
        used = store if self._reach is None else _Translated(store, self._reach)
        gloo = dist.ProcessGroupGloo(used, rank, len(key.workers), options)
        gloo._set_default_timeout(self._timeout)
        devices = on_devices(
            store, gloo, rank, len(key.workers), self._engine_device, self._timeout, min(self._timeout, MEETING)
        )
        return _GlooGroup(key, gloo, devices, self)


def _let_send() -> None:
    """gloo's thread for sockets polls while another one sends: it must not keep that one from its core."""
    for task in Path("/proc/self/task").glob("*"):
        with suppress(OSError):  # it has ended
            if (task / "comm").read_text() == "gloo_tcp_loop\n":
                os.setpriority(os.PRIO_PROCESS, int(task.name), 10)  # a search has 19


class _Meeting:
    """Makes a group in a thread of its own: what torch waits for meanwhile, it would wait for until the deadline, also
    for a worker that hangs and was given up."""

    def __init__(self, make: Callable[[], Group]) -> None:
        self._make = make
        self._group: Group | None = None
        self._error: Exception | None = None
        self._left = False
        self._lock = threading.Lock()
        self.over = threading.Event()
        threading.Thread(target=self._run, name="meeting", daemon=True).start()

    def _run(self) -> None:
        try:
            self._group = self._make()
        except Exception as e:
            self._error = e
        with self._lock:
            self.over.set()
            late = self._left
        if late and self._group is not None:
            self._group.drop()

    def leave(self) -> None:
        """The group is not wanted any more."""
        with self._lock:
            self._left = True
            over = self.over.is_set()
        if over and self._group is not None:
            self._group.drop()

    def result(self) -> Group:
        """The group, once it is over; raises what was wrong."""
        if self._error is not None:
            raise self._error
        assert self._group is not None
        return self._group


class _Translated(dist.Store):  # type: ignore[misc]
    """A store in which gloo finds the addresses of others as this worker reaches them."""

    def __init__(self, inner: Any, reach: Reach) -> None:
        super().__init__()
        self._inner, self._reach = inner, reach

    def set(self, key: str, value: bytes) -> None:
        self._inner.set(key, self._reach.told(value))

    def get(self, key: str) -> bytes:
        return self._reach.heard(self._inner.get(key))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        if timeout is None:
            self._inner.wait(keys)
        else:
            self._inner.wait(keys, timeout)

    def check(self, keys: list[str]) -> bool:
        return bool(self._inner.check(keys))

    def add(self, key: str, value: int) -> int:
        return int(self._inner.add(key, value))


def name(key: GroupKey) -> str:
    """The prefix of a group's keys in a store."""
    return f"{key.session}/{'-'.join(map(str, key.workers))}/{key.generation}"


class _GlooGroup:
    def __init__(self, key: GroupKey, gloo: Any, devices: Devices | None, network: Sockets) -> None:
        self._key = key
        self._network = network
        self._gloo = gloo
        self.devices = devices
        self._running: set[_GlooWork] = set()

    def start(self, what: Collective, data: Bytes, out: Bytes) -> PeerResult:
        gloo = self._gloo
        if gloo is None:
            raise PeerFailed(f"this worker has left the group of {list(self._key.workers)}")
        flying = _GlooWork(self, what, data, out)
        self._running.add(flying)
        try:
            flying.begin(gloo)
        except RuntimeError as e:
            raise self.failure(e) from None
        return PeerResult(flying.result)

    def failure(self, error: Exception) -> PeerFailed:
        workers = list(self._key.workers)
        if "imed out" in str(error):
            return PeerFailed(f"a worker of {workers} did not answer in time (GT_PEER_TIMEOUT)")
        return PeerFailed(f"a worker of {workers} failed in the same call, or is gone")

    def wait(self, work: Any) -> None:
        """Wait for a collective, as long as all workers are there."""
        while True:
            try:
                work.wait(LOOK)
                return
            except RuntimeError:
                if work.is_completed():
                    work.wait(LOOK)  # raises why it failed; it may also have ended well just after the wait did
                    return
            if gone := self._network.missing(self._key.workers):
                raise PeerFailed(f"worker {gone[0]} is gone")

    def over(self, flying: _GlooWork) -> None:
        self._running.discard(flying)

    def drop(self) -> None:
        gloo, self._gloo = self._gloo, None
        if gloo is None:
            return
        if self.devices is not None:
            self.devices.drop()
        # Running collectives hold the sockets too.
        holds = [gloo, *[f.let_go() for f in list(self._running)]]
        self._running.clear()
        del gloo
        threading.Thread(target=holds.clear, name="leaving a group", daemon=True).start()


class _GlooWork:
    """A collective that has started."""

    def __init__(self, group: _GlooGroup, what: Collective, data: Bytes, out: Bytes) -> None:
        self._group, self._what, self._data, self._out = group, what, data, out
        self._work: Any = None
        self._reduced: Any = None

    def begin(self, gloo: Any) -> None:
        what = self._what
        if what.name != "all_reduce":
            data = self._data
            if what.name == "all_gather":
                data = np.tile(data, len(what.workers))
            if not data.flags.writeable:  # torch needs writable memory; an empty array is tiled without a copy
                data = data.copy()
            takes, sends = what.nbytes(what.takes), what.nbytes(what.sends)
            self._work = gloo.alltoall_base(torch.from_numpy(self._out), torch.from_numpy(data), takes, sends)
        elif len(self._data):
            self._reduced = widened(torch.from_numpy(self._data), what)
            options = dist.AllreduceOptions()
            options.reduceOp = reduce_op(what)
            self._work = gloo.allreduce([self._reduced], options)

    def let_go(self) -> Any:
        work, self._work = self._work, None
        return work

    def result(self) -> None:
        work = self._work
        try:
            if work is not None:
                self._group.wait(work)
            elif self._group._gloo is None:
                raise PeerFailed("this worker has left the group")
        except RuntimeError as e:
            raise self._group.failure(e) from None
        finally:
            self._work = None
            self._group.over(self)
        if self._reduced is not None:
            narrowed(self._reduced, torch.from_numpy(self._out), self._what)
