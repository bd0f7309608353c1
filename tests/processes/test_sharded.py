"""Sessions over several real workers: how they come to them, and tensors that go to them in chunks."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pytest

import gt
from gt.errors import ArgumentError, StateError

from .running import Serve, Server, output_of

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("own_settings")]

ROWS = np.random.default_rng(0).normal(size=(101, 40))


@pytest.fixture(scope="module")
def four() -> Iterator[str]:
    """The address of a server with four workers."""
    server = Server("--engine", "numpy", "--workers", "4")
    yield server.address
    server.stop()


# --- meshes -------------------------------------------------------------------------------------------


def test_a_session_comes_to_several_workers(four: str) -> None:
    session = gt.connect(four)
    x = gt.from_numpy(ROWS)
    assert len(gt.mesh(x=2).workers) == 2
    np.testing.assert_array_equal(x.numpy(), ROWS)
    np.testing.assert_allclose(gt.shard(x, {0: "x"}).sum(dim=0).numpy(), ROWS.sum(0))
    assert len(gt.mesh(x=2, y=2).workers) == 4, "more workers keep what there is"
    np.testing.assert_array_equal(x.numpy(), ROWS)
    gt.connect(four, mesh={"x": 4})
    assert gt.mesh().axes == {"x": 4}
    assert session.closed


def test_too_many_are_refused(serve: Serve) -> None:
    gt.connect(serve("--workers", "1", GT_WORKER_TIMEOUT="0.5")[1])
    with pytest.raises(ArgumentError, match="gt serve --workers"):
        gt.mesh(**dict.fromkeys("abcde", 2))
    assert gt.ones(2).sum().item() == 2


PRIVATE = """
import gt
try:
    gt.mesh(x=2)
except gt.GTError as e:
    print(e)
try:
    gt.gpu_workers(2)
except gt.GTError as e:
    print(type(e).__name__)
gt.disconnect()
gt.gpu_workers(2)
print(gt.mesh(x=2))
print(gt.shard(gt.ones(4), {0: "x"}).sum().item())
"""


def test_the_private_server_has_as_many_as_are_asked_for() -> None:
    few, late, mesh, total = output_of(["-c", PRIVATE], GT_ENGINE="numpy").splitlines()
    assert "this server has 1; set GT_WORKERS=2" in few
    assert late == StateError.__name__
    assert re.fullmatch(r"<mesh x=2: workers \d+ \d+>", mesh)
    assert total == "4.0"


AUTO = """
import gt, numpy as np
big, small = gt.from_numpy(np.ones((100, 1000))), gt.from_numpy(np.ones((10, 20)))
print(big.layout, small.layout, (big * 2).layout, big.sum().item())
"""


def test_auto_shard_splits_what_is_uploaded() -> None:
    out = output_of(["-c", AUTO], GT_ENGINE="numpy", GT_AUTO_SHARD="1", GT_WORKERS="2")
    assert out == "[100@x] [] [100@x] 100000.0\n"


# --- tensors ------------------------------------------------------------------------------------------


def test_large_ones_go_in_chunks(four: str) -> None:
    gt.connect(four, mesh={"x": 3})
    a = np.random.default_rng(0).integers(0, 1 << 30, size=(1001, 777))
    for layout in ({0: "x"}, {1: "x"}, ""):
        np.testing.assert_array_equal(gt.from_numpy(a, layout=layout).numpy(), a)
