"""Real processes: a server, workers that meet over gloo, and every op's samples on their shards.

A worker is forked from a process that has imported torch already, so that one more costs little; what runs in it is all
of `gt worker`. Results are compared with those of one worker of the same server.

`python -m tests.sharding --real` runs everything; tests/processes/test_sharded_training.py has a part of it.
"""

from __future__ import annotations

import multiprocessing
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

import gt
from gt.client.programs.tree import Kind
from gt.client.record.recorder import apply
from gt.config import prepare_torch
from gt.errors import GTError
from gt.layout import Mesh, layout, mesh
from gt.ops import TABLE
from gt.program import as_tuple
from tests.processes import running
from tests.processes.running import alive, until
from tests.sharding.cases import cases
from tests.sharding.checking import kinds_of
from tests.sharding.layouts import drawn
from tests.sharding.simulate import close, place

MESHES: list[dict[str, int]] = [{"x": 2}, {"x": 3}, {"x": 4}, {"x": 2, "y": 2}]


# -- processes -------------------------------------------------------------------------------


def work(address: str, engine: str, settings: dict[str, str]) -> None:
    """A worker's process."""
    for variable in [v for v in os.environ if v.startswith("GT_")]:
        del os.environ[variable]
    os.environ.update(GT_THREADS="1", GT_AUTO_COMPILE="0", **settings)
    from gt.worker.main import main

    main(["--address", address, "--engine", engine, "--device", "cpu" if engine == "torch" else ""])


class Server:
    """A dispatcher in a process of its own, and workers that join it."""

    def __init__(self, workers: int = 0, engine: str = "torch", **settings: str) -> None:
        self._workers: list[Any] = []
        self._process = running.Server(**settings)
        self.address = self._process.address
        try:
            for _ in range(workers):
                self.add(engine)
        except BaseException:
            self.end()
            raise

    def add(self, engine: str = "torch", **settings: str) -> int:
        """One more worker; its process id. It joins when it is ready."""
        prepare_torch(quiet=True)  # it is imported in the process that workers are forked from
        fork = multiprocessing.get_context("forkserver")
        fork.set_forkserver_preload(["tests.sharding.real", "gt.worker.main", "torch", "torch.distributed"])
        worker = fork.Process(target=work, args=(self.address, engine, settings), daemon=True)
        worker.start()
        self._workers.append(worker)
        assert worker.pid is not None
        return worker.pid

    def end(self) -> None:
        """End the server and, before it, its workers."""
        for worker in self._workers:
            worker.kill()
            worker.join()
        if alive(self._process.pid):
            self._process.popen.kill()
        self._process.popen.communicate()


@contextmanager
def serving(workers: int = 0, engine: str = "torch", **settings: str) -> Iterator[Server]:
    server = Server(workers, engine, **settings)
    try:
        yield server
    finally:
        gt.disconnect()
        server.end()


def joined(count: int) -> None:
    """Wait until this session's server has so many workers."""
    until(lambda: len(gt.debug.get_worker_stats()["workers"]) == count, f"{count} workers")


# -- every op --------------------------------------------------------------------------------

Sample = tuple[tuple[Any, ...], dict[str, Any]]


def samples_of(name: str) -> list[Sample]:
    more = [(args, attrs) for n, args, attrs in cases() if n == name]
    return [*TABLE[name].samples(np.random.default_rng(0)), *more]


def laid_out(a: np.ndarray, m: Mesh, rng: random.Random, said: list[str]) -> Any:
    """An operand in a layout drawn at random, or as a reduction along an axis that the program has yet to do."""
    kinds = kinds_of(a) if a.dtype.kind != "b" else ()
    if kinds and rng.random() < 0.3:
        (axis, n), kind = rng.choice(m.axes), rng.choice(kinds)
        draws = np.random.default_rng(rng.randrange(1 << 30))
        shares = np.stack(place(a, layout(mesh(x=n), (), {"x": kind}), draws).parts)
        said.append(f"{kind} {axis}")
        given = gt.from_numpy(shares, layout={0: axis})
        return {"sum": given.sum, "max": given.amax, "min": given.amin}[kind](0)
    one = drawn(rng, m, a.shape, ())
    said.append(repr(one))
    return gt.from_numpy(a, layout=one)


def recorded(name: str, args: Sequence[Any], attrs: dict[str, Any]) -> tuple[Any, ...]:
    return as_tuple(apply(Kind(TABLE[name], attrs), tuple(args)))


def unsharded(samples: Mapping[str, Sequence[Sample]]) -> dict[str, list[list[np.ndarray]]]:
    """What one worker makes of them: of every op, sample and result."""
    found = {}
    for name, all_of_it in samples.items():
        made = [
            recorded(name, [gt.from_numpy(a) if isinstance(a, np.ndarray) else a for a in args], attrs)
            for args, attrs in all_of_it
        ]
        found[name] = [[t.detach().numpy() for t in results] for results in made]
    return found


def mistakes_real(name: str, samples: Sequence[Sample], wanted: Sequence[Sequence[np.ndarray]], seed: str) -> list[str]:
    """What went wrong on this session's mesh, with operands in layouts drawn at random: all samples in one program, and
    if that fails one by one."""
    m = gt.mesh().grid

    def begun(k: int) -> tuple[tuple[Any, ...], list[str]]:
        rng, said = random.Random(f"{seed} {k}"), list[str]()
        args, attrs = samples[k]
        operands = [laid_out(a, m, rng, said) if isinstance(a, np.ndarray) else a for a in args]
        return recorded(name, operands, attrs), said

    def wrong(k: int, results: tuple[Any, ...], said: list[str]) -> list[str]:
        good: list[bool | str]
        try:
            good = [close(t.detach().numpy(), w, t.dtype) for t, w in zip(results, wanted[k], strict=True)]
        except GTError as e:
            good = [f"{type(e).__name__}: {str(e)[:300]}"]
        shapes = [np.shape(a) for a in samples[k][0]]
        return (
            [] if all(each is True for each in good) else [f"{name} {shapes} {samples[k][1]} on {m!r}: {said}: {good}"]
        )

    together = [begun(k) for k in range(len(samples))]
    found = [line for k, each in enumerate(together) for line in wrong(k, *each)]
    if not found:
        return []
    alone = [line for k in range(len(samples)) for line in wrong(k, *begun(k))]
    return alone or [f"only together: {line}" for line in found]


def check_ops(address: str, meshes: Sequence[dict[str, int]], names: Sequence[str], most: int, seed: str) -> list[str]:
    """What went wrong with these ops: of each at most so many samples, drawn by the seed, on every mesh."""
    samples: dict[str, list[Sample]] = {}
    for name in names:
        every = samples_of(name)
        samples[name] = random.Random(f"{seed} {name}").sample(every, min(most, len(every)))
    gt.connect(address)
    wanted = unsharded(samples)
    found = []
    for axes in meshes:
        gt.connect(address, mesh=axes)
        for name in names:
            found += mistakes_real(name, samples[name], wanted[name], f"{seed} {name} {axes}")
    return found
