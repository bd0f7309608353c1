"""A server whose worker compiles, and one cache on disk for all tests: each program is compiled once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import gt
from tests.processes import running
from tests.processes.running import Process, children, said_by_workers, until, until_gone

COMPILED_S = 600.0  #: Until everything is compiled, on a machine that has much else to do.

Serve = Callable[..., Process]


class Server(running.Server):
    """A server with workers on the CPU: one, unless told otherwise."""

    def __init__(self, cache: Path, workers: int = 1, **settings: str) -> None:
        # Compilers that give way to all other tests would keep this one waiting for minutes.
        more = {"GT_AUTO_COMPILE": "1", "GT_COMPILE_NICE": "0", "GT_CACHE_DIR": str(cache)}
        more |= {"GT_THREADS": "1", "GT_DEVICE": "cpu", **settings}
        super().__init__("--workers", str(workers), "--engine", "torch", **more)
        self.worker = self.workers[0]

    def compilers(self) -> list[int]:
        return [pid for worker in self.workers for pid in children(worker)]

    def close(self) -> None:
        """End it and all it has started."""
        pids = [*self.workers, *self.compilers()]
        if self.popen.poll() is None:
            self.popen.terminate()
        self.popen.communicate()
        until_gone(pids, 10.0)


def said_when_done() -> list[dict[str, Any]]:
    """The statistics of each worker, when all have done all calls: a result is there before its call is counted."""
    gt.cpu.synchronize()
    return said_by_workers(gt.debug.get_worker_stats)


def programs() -> dict[str, dict[str, Any]]:
    """The worker's statistics by program."""
    (worker,) = said_when_done()
    found: dict[str, dict[str, Any]] = worker["programs"]
    return found


def hits(tier: int) -> int:
    """Calls that ran on a tier, of all programs."""
    return sum(p["tiers"].get(str(tier), {}).get("hits", 0) for p in programs().values())


def folders(cache: Path) -> set[str]:
    """The compiled programs on disk."""
    return {p.parent.name for p in cache.glob("compiled/*/program.so")}


def until_compiled(*steps: Callable[[], object]) -> None:
    """Take the steps, now and then, until all of them run on tier 3."""
    polls = itertools.count()

    def taken() -> bool:
        if next(polls) % 50:
            return False  # compilers need the time more than we do
        before = hits(3)
        for step in steps:
            step()
        given_up = [p["given_up"] for p in programs().values() if p["given_up"]]
        assert not given_up
        return hits(3) - before == len(steps)

    until(taken, "programs that are compiled", COMPILED_S)


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def long_lived(cache: Path) -> Iterator[Server]:
    """One server for all tests that do not kill it."""
    server = Server(cache)
    yield server
    server.close()


@pytest.fixture
def serve(cache: Path) -> Iterator[Callable[..., Server]]:
    """Servers of this test alone, connected to."""
    started: list[Server] = []

    def new(**settings: Any) -> Server:
        started.append(Server(**{"cache": cache, **settings}))
        gt.connect(started[-1].address)
        return started[-1]

    yield new
    gt.disconnect()
    for s in started:
        s.close()
