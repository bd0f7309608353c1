"""Two workers on one GPU. They meet through the host's memory; or over NCCL, which takes one GPU for two if it is told
of two hosts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.errors import GTError
from tests.processes.running import Process, environment, until
from tests.sharding.real import Server, check_ops, joined, serving
from tests.sharding.real_training import losses, same
from tests.tiers.conftest import COMPILED_S
from tests.tiers.models import Mlp
from tests.tiers.test_together import SPLIT, compiled_hits

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("fresh"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

TWO = {"x": 2}


class Pair:
    """A server and two workers on one GPU, each in the host of this name as far as NCCL knows."""

    def __init__(self, server: Server, hosts: Sequence[str], **settings: str) -> None:
        self.server = server
        self.address = server.address
        host, _, port = server.address.rpartition(":")
        arguments = ["-m", "gt.worker", "--host", host, "-p", port, "--engine", "torch", "--device", "cuda:0"]
        lo = {"NCCL_SOCKET_IFNAME": "lo", "GT_AUTO_COMPILE": "0", **settings}
        self.workers = [Process(arguments, environment(NCCL_HOSTID=host, **lo)) for host in hosts]

    def end(self) -> None:
        for worker in self.workers:
            worker.popen.kill()
            worker.popen.communicate()


@contextmanager
def two_workers(*hosts: str, **settings: str) -> Iterator[Pair]:
    with serving() as server:
        made = Pair(server, hosts, **settings)
        try:
            gt.connect(server.address)
            joined(2)
            yield made
        finally:
            gt.disconnect()
            made.end()


@pytest.fixture
def pair() -> Iterator[Pair]:
    """They meet over NCCL."""
    with two_workers("one", "other") as made:
        yield made


def groups_on_devices() -> bool:
    return all(about["groups_on_devices"] for about in gt.debug.get_worker_stats()["workers"].values())


@pytest.mark.parametrize("name", ["mlp", "gpt"])
def test_through_the_host_too_the_losses_are_those_of_one_worker(name: str) -> None:
    with two_workers("same", "same") as pair:
        alone = losses(pair.address, name, None)
        for way in ("data", "weights", "both"):
            same(losses(pair.address, name, TWO, way), alone)
            assert not groups_on_devices(), "NCCL cannot be used between workers on one GPU"


@pytest.mark.parametrize("name", ["mlp", "gpt"])
def test_the_losses_of_one_worker(pair: Pair, name: str) -> None:
    alone = losses(pair.address, name, None)
    for way in ("data", "weights", "both", "drawn"):
        same(losses(pair.address, name, TWO, way), alone)
        assert groups_on_devices(), "they have met over NCCL"


def test_numbers_of_every_kind(pair: Pair) -> None:
    """Reduced, gathered and exchanged, of even and uneven sizes."""
    names = ["sum", "amax", "amin", "matmul", "softmax", "cat", "logical_and", "all", "any", "index_add", "sort"]
    assert not check_ops(pair.address, [TWO], names, 12, "nccl")
    assert groups_on_devices()
    gt.connect(pair.address, mesh=TWO)
    rng = np.random.default_rng(0)
    for dtype in (gt.float16, gt.bfloat16, gt.float32, gt.int64, gt.int16, gt.int8, gt.uint8, gt.complex64):
        a = rng.integers(0, 5, size=(7, 6)).astype(np.float32)
        x = gt.from_numpy(a, layout={0: "x"}).to(dtype)
        np.testing.assert_array_equal(x.sum(0, dtype=dtype).to(gt.float32).numpy(), a.sum(0))
        if not dtype.is_complex:
            np.testing.assert_array_equal(x.amax(0).to(gt.float32).numpy(), a.max(0))
    a[3, 2] = np.nan
    x = gt.from_numpy(a, layout={0: "x"})
    np.testing.assert_array_equal(x.amax(0).numpy(), a.max(0))


def test_a_bad_index_fails_only_its_call(pair: Pair) -> None:
    gt.connect(pair.address, mesh=TWO)
    table = gt.from_numpy(np.arange(12.0).reshape(6, 2), layout={0: "x"})
    good, bad = (gt.from_numpy(np.array(rows), layout={0: "x"}) for rows in ([5, 0, 3], [1, 99, 2]))
    assert float(gt.nn.functional.embedding(good, table).sum()) == 35.0
    begin = time.monotonic()
    with pytest.raises((GTError, IndexError), match="out of range"):
        gt.nn.functional.embedding(bad, table).numpy()
    assert time.monotonic() - begin < 20
    assert float(gt.nn.functional.embedding(good, table).sum()) == 35.0


def test_a_worker_that_is_killed_leaves_nobody_waiting(pair: Pair) -> None:
    gt.connect(pair.address, mesh=TWO)
    x: Any = gt.from_numpy(np.ones((64, 64), np.float32), layout={0: "x"})
    total = x
    for _ in range(5):
        total = (total @ x) / 64
    assert float(total.sum()) == 64 * 64
    for k in range(200):
        total = (total @ x.T) / 64
        if k == 20:
            pair.workers[1].popen.kill()
    begin = time.monotonic()
    with pytest.raises(GTError):
        float(total.sum())
    assert time.monotonic() - begin < 20
    assert pair.workers[0].popen.poll() is None, "the other one lives"
    gt.connect(pair.address)
    assert float(gt.ones(3).sum()) == 3.0


@pytest.mark.timeout(COMPILED_S + 60)
@pytest.mark.parametrize("hosts", [("same", "same"), ("one", "other")])
def test_a_step_is_compiled_in_parts(hosts: tuple[str, str], tmp_path: Path) -> None:
    with two_workers(*hosts, GT_AUTO_COMPILE="1", GT_CACHE_DIR=str(tmp_path)) as pair:
        want = Mlp(compile=False).losses(20)
        gt.connect(pair.address, mesh=TWO)
        model = Mlp()
        gt.shard_(model.model, SPLIT)
        assert model.losses(20) == pytest.approx(want, rel=1e-4)
        until(lambda: model.losses(2) and all(compiled_hits()), "compiled parts", COMPILED_S)
        assert len(set(compiled_hits())) == 1
        model = Mlp()
        gt.shard_(model.model, SPLIT)
        was = compiled_hits()
        assert model.losses(15) == pytest.approx(want[:15], rel=1e-4)
        assert compiled_hits() != was
        assert groups_on_devices() == (hosts[0] != hosts[1])
