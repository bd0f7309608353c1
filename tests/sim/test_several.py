"""A client on several workers, in one process: values move with it; a failure on one worker leaves nobody waiting."""

from __future__ import annotations

import numpy as np
import pytest

import gt
from gt import config
from gt.client.record.recorder import new_recorder, recorder
from gt.client.session.placing import set_mesh
from gt.errors import GTError, IndexOutOfRange, LostError, OutOfMemory
from gt.ops import TABLE

from .cluster import Cluster, using

SEEDS = range(5)
DATA = np.arange(21.0).reshape(7, 3)


@pytest.mark.parametrize("seed", SEEDS)
def test_values_are_kept_when_a_session_gets_workers_or_moves(seed: int) -> None:
    cluster = Cluster(1, seed)
    session = cluster.client()
    with using(session):
        x = gt.tensor(DATA)
        y = x * 2
        y.numpy()
        for _ in range(3):
            cluster.add_worker()
        for axes in ({"x": 2}, {"x": 4}, {"x": 3}, {"x": 2, "y": 2}):
            set_mesh(session, "", axes)
            y = gt.shard(y + 1, {0: "x"})
            assert session.layout_of(y._v).mesh.sizes == axes
        np.testing.assert_array_equal((y + x).numpy(), 3 * DATA + 4)
        set_mesh(session, "last", {"x": 2}, [3, 2])
        moved = gt.shard(y, {1: "x"}, "last")
        assert session.layout_of(moved._v).mesh.workers == session.meshes.by_name["last"].workers
        del y
        np.testing.assert_array_equal(moved.numpy(), 2 * DATA + 4)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_memory_on_one_worker_leaves_nobody_waiting(seed: int) -> None:
    """In the middle of collectives: the step fails, the model is the one before, the next program runs."""
    cluster = Cluster(2, seed)
    cluster.add_worker(config.replace(cluster.settings, fake_memory=3000))
    session = cluster.client()
    with using(session):
        set_mesh(session, "", {"x": 3})
        w = gt.shard(gt.ones(30, dtype=gt.float64), {0: "x"})
        w.numpy()
        for large in (True, False):
            g = gt.shard(gt.ones(2000 if large else 20, dtype=gt.float64), {0: "x"})
            total = (g.sum() + w.sum()).reshape(1).expand(30).contiguous()
            w._write(TABLE["sgd"](w, total, 0.5, 0.0))
            if large:
                with pytest.raises(OutOfMemory):
                    w.numpy()
                np.testing.assert_array_equal(w.numpy(), np.ones(30))
        np.testing.assert_array_equal(w.numpy(), np.full(30, 1 - 0.5 * 50.0))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_session_goes_on_after_one_of_its_workers_is_gone(seed: int) -> None:
    cluster = Cluster(3, seed)
    session = cluster.client()
    with using(session):
        set_mesh(session, "", {"x": 3})
        copied, cut = gt.shard(gt.tensor(DATA), "[]"), gt.shard(gt.tensor(DATA), {0: "x"})
        gt.stack([copied, cut]).numpy()  # not each by itself: what was read is known
        cluster.kill_worker(cluster.workers[2])
        cluster.run()
        np.testing.assert_array_equal(copied.numpy(), DATA)
        with pytest.raises(LostError):
            cut.numpy()
        with pytest.raises(GTError, match="set a new one"):
            (copied + 1).numpy()
        set_mesh(session, "", {"x": 2})
        np.testing.assert_array_equal((copied + 1).sum(0).numpy(), (DATA + 1).sum(0))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_call_that_fails_takes_no_tensor_with_it_that_was_placed_beside_it(seed: int) -> None:
    cluster = Cluster(2, seed)
    session = cluster.client()
    with using(session):
        set_mesh(session, "", {"x": 2})
        data = np.arange(2100.0).reshape(700, 3)  # so much that it is uploaded
        w = gt.tensor(data)
        bad = gt.gather(w, 0, gt.full((7, 3), 700, dtype=gt.int64))
        w.mul_(2)
        with pytest.raises(IndexOutOfRange):
            gt.shard_(w, {0: "x"})
        np.testing.assert_array_equal(w.numpy(), data)
        gt.shard_(w, {0: "x"})
        worse = gt.gather(w, 0, gt.full((7, 3), 700, dtype=gt.int64))
        with pytest.raises(IndexOutOfRange):
            worse.numpy()
        assert repr(w.layout) == "[700@x]"
        np.testing.assert_array_equal(w.numpy(), data)
        del bad


def test_tensors_that_are_placed_keep_their_values_if_another_program_was_to_create_them() -> None:
    """One that has ended and is not sent yet, as after an optimizer's step; or one of another thread."""
    cluster = Cluster(2)
    session = cluster.client()
    with using(session):
        set_mesh(session, "", {"x": 2})
        index = gt.tensor([9] * 8)
        index.numpy()
        ended = gt.ones(8) * 2
        recorder().mark()
        with using(session, new_recorder(session)):
            other = gt.ones(8) * 3
        for w, value in ((ended, 2), (other, 3)):
            gt.shard_(w, {0: "x"})
            with pytest.raises(IndexOutOfRange):
                gt.gather(w, 0, index).numpy()
            np.testing.assert_array_equal(w.numpy(), np.full(8, value))
            assert repr(w.layout) == "[8@x]"
