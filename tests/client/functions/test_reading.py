"""Reading small tensors: each is fetched once, its parts are computed by the client, and programs stay few."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gt
from gt.client.session.session import Session
from gt.errors import IndexOutOfRange, ShapeError
from tests.sim.cluster import Cluster, using

RNG = np.random.default_rng(0)


class Counts:
    """What a piece of code costs: calls, new programs, and values that were fetched."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.before = self._now()

    def _now(self) -> tuple[int, int, int]:
        return self.session.seq, self.session.defined, self.session.reads.requests

    @property
    def calls(self) -> int:
        return self._now()[0] - self.before[0]

    @property
    def programs(self) -> int:
        return self._now()[1] - self.before[1]

    @property
    def waits(self) -> int:
        return self._now()[2] - self.before[2]


def test_what_was_read_is_not_fetched_again(session: Session) -> None:
    x = gt.from_numpy(RNG.normal(size=(10, 10)).astype(np.float32)) * 2
    counts = Counts(session)
    a, b = x.numpy(), x.numpy()
    assert (counts.calls, counts.waits) == (1, 1)
    a[:] = 0  # an array of the caller's own
    assert (b == x.numpy()).all()
    assert b.any()
    assert repr(x)
    assert counts.waits == 1


def test_what_is_written_is_read_again(session: Session) -> None:
    x = gt.arange(4).float() / 2
    view = x[1:]
    assert x.tolist() == [0, 0.5, 1, 1.5]
    assert view.tolist() == [0.5, 1, 1.5]
    x += 1
    assert x.tolist() == [1, 1.5, 2, 2.5]
    assert view.tolist() == [1.5, 2, 2.5]
    view[0] = 9
    assert x[1].item() == 9
    assert x.tolist() == [1, 9, 2, 2.5]


def test_large_tensors_are_not_kept(session: Session) -> None:
    x = gt.zeros(10_000) + 1
    counts = Counts(session)
    assert x[5].item() == x[6].item() == 1
    assert x.sum().item() == x.sum().item() == 10_000
    assert counts.waits == 4
    assert x._v is None or x._v.host is None


def test_masks_of_one_tensor_are_counted_here_from_the_second_on(session: Session) -> None:
    """As in k-means: the rows of each cluster, of more labels than are fetched at once."""
    data, labels = RNG.normal(size=(2000, 3)), RNG.integers(0, 6, 2000)
    x, y = gt.from_numpy(data), gt.from_numpy(labels)
    counts = Counts(session)
    means = [x[y == k].mean(0) for k in range(6)]
    assert counts.waits == 2
    for k, mean in enumerate(means):
        np.testing.assert_allclose(mean.numpy(), data[labels == k].mean(0))


def test_samples_that_the_host_knows_are_joined_here(session: Session) -> None:
    """A replay buffer: which samples a batch consists of makes no new program, nor whether workers have had them."""
    rng, memory = np.random.default_rng(3), []
    w, programs = gt.ones(4, 2), []
    for _ in range(12):
        state = gt.from_numpy(rng.normal(size=4)).unsqueeze(0)
        action = (state.float() @ w).argmax(1, keepdim=True)
        memory.append((state, action, gt.tensor([float(action.item())])))
        if len(memory) >= 5:
            states, actions, rewards = zip(*[memory[i] for i in rng.integers(0, len(memory), 5)], strict=True)
            batch = gt.cat(states), gt.cat(actions), gt.stack(rewards, 1)
            (batch[0].sum() + batch[1] + batch[2]).mean().item()
            assert batch[0].tolist() == [s.tolist()[0] for s in states]
            assert batch[1].tolist() == [a.tolist()[0] for a in actions]
            assert batch[2].tolist() == [[r.item() for r in rewards]]
            programs.append(session.defined)
    assert programs[-1] == programs[2]


def test_what_cannot_be_joined_here_is_recorded(session: Session) -> None:
    parts = [gt.tensor([1, 2]), gt.tensor([3]), gt.tensor([4.5]), gt.tensor([6])]
    assert gt.cat(parts).tolist() == [1, 2, 3, 4.5, 6]
    with pytest.raises(ShapeError, match="stack"):
        gt.stack([gt.tensor([1, 2]), *parts[1:]])
    x = gt.tensor([1.0], requires_grad=True)
    gt.cat([gt.tensor([2.0]), x * 1, gt.tensor([3.0]), x]).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0]


def test_what_was_read_is_there_whatever_fails_later(session: Session) -> None:
    x, w = gt.tensor([1.0, 2.0, 3.0]), gt.ones(3)
    assert x.tolist() == [1, 2, 3]
    with pytest.raises(IndexOutOfRange):
        (x * w[(x * 5).long()]).tolist()
    assert (x + 1).tolist() == [2, 3, 4]


def test_comparing_every_element_takes_one_wait(session: Session) -> None:
    data = RNG.normal(size=(10, 10)).astype(np.float32) * 60
    x = gt.from_numpy(data) + 0.0
    x.sum().item()
    counts = Counts(session)
    found = sum(1 for i in range(10) for j in range(10) if x[i, j] > 50)
    assert found == (data > 50).sum()
    assert counts.waits <= 2
    assert counts.calls <= 1


@pytest.mark.parametrize(
    "walk",
    [
        lambda x: [float(v) for row in x for v in row],
        lambda x: [x[i, j].item() for i in range(6) for j in range(5)],
        lambda x: [v.item() for v in x.flatten()],
        lambda x: [x.t()[j][i].item() for i in range(6) for j in range(5)],
        lambda x: [v.item() for part in x.split(2) for v in part.reshape(-1)],
        lambda x: [float(v) for row in x.tolist() for v in row],
    ],
    ids=["rows", "elements", "flat", "transposed", "split", "list"],
)  # fmt: skip
def test_walking_through_a_small_tensor_takes_one_wait(walk: Callable[[Any], list[float]], session: Session) -> None:
    data = RNG.normal(size=(6, 5))
    x = gt.from_numpy(data) * 1.0
    counts = Counts(session)
    assert walk(x) == [float(v) for v in data.reshape(-1)]
    assert counts.waits == 1


def test_batches_cut_by_random_positions_are_one_call(session: Session) -> None:
    """nanoGPT's get_batch."""
    data = gt.arange(5000)
    data.sum().item()

    def batch() -> Any:
        ix = gt.randint(4900, (16,))
        x = gt.stack([data[i : i + 8] for i in ix])
        y = gt.stack([data[i + 1 : i + 9] for i in ix])
        return ix, x, y

    batch()[1].sum().item()
    counts = Counts(session)
    ix, x, y = batch()
    total = (x + y).sum().item()
    assert (counts.calls, counts.waits, counts.programs) == (1, 1, 1)  # ix lives longer than in the first call
    starts = np.array(ix.tolist())[:, None] + np.arange(8)
    assert x.tolist() == starts.tolist()
    assert total == (2 * starts + 1).sum()
    batch()[1].sum().item()
    assert counts.programs == 1


def test_loops_that_branch_on_elements_send_few_programs(session: Session) -> None:
    """What Python does between two reads depends on the data; the programs must not."""
    counts = Counts(session)
    for k in range(12):
        flags = gt.from_numpy(np.random.default_rng(k).random(8)) > 0.5
        y = gt.zeros(2000)
        for i in range(8):
            if flags[i]:
                y = y + 1
        assert y[0].item() == flags.sum().item()
    assert counts.programs <= 16


@pytest.mark.parametrize("op", [operator.add, operator.mul, operator.sub, operator.floordiv, operator.mod])
def test_integers_are_the_workers(op: Any, session: Session) -> None:
    a, b = np.array([7, -7, 9, 2**62]), np.array([2, 2, -4, 3])
    x, y = gt.from_numpy(a), gt.from_numpy(b)
    for i in range(4):
        known = op(x[i], y[i]).item()
        assert known == op(x, y)[i].item() == op(a, b)[i]
    assert [op(x[i], 3).item() for i in range(4)] == op(a, 3).tolist()


def test_a_value_that_the_client_computed_can_be_used(session: Session) -> None:
    x = gt.tensor([3, 1, 2])
    i = x[0] - 1
    assert i.item() == 2
    assert (x * i).tolist() == [6, 2, 4]
    assert x[i].item() == 2
    assert gt.stack([i, x[1]]).tolist() == [2, 1]
    w = gt.tensor([1.0, 2.0], requires_grad=True)
    part = w[1]
    assert part.item() == 2
    (part * part).backward()
    assert w.grad.tolist() == [0, 4]


def test_a_count_that_was_read_can_be_used_with_others(session: Session) -> None:
    x, count = gt.ones(3), gt.tensor(0)
    count.copy_(gt.zeros(2).sum())  # the worker has it
    gt.ones(1).tolist()
    for k in range(3):
        count += 1
        assert count.item() == k + 1  # computed here: no longer the update of an input
        assert (x * count).tolist() == [k + 1] * 3
        assert count.tolist() == k + 1


def test_a_value_that_the_client_computed_in_a_function(session: Session) -> None:
    @gt.function
    def scaled(x: Any, k: Any) -> Any:
        return x * k

    table = gt.tensor([1, 2, 3])
    for i in range(3):
        k = table[i]
        assert k.item() == i + 1
        assert scaled(gt.ones(2), k).tolist() == [i + 1, i + 1]


def test_a_failure_is_raised_once_and_reading_goes_on(session: Session) -> None:
    x = gt.arange(3) * 2
    assert x[1].item() == 2
    with pytest.raises(gt.GTError):
        x[gt.tensor([7])].numpy()
    assert x[2].item() == 4


def test_sharded_tensors_are_read_the_same() -> None:
    with using(Cluster(2).client()) as session:
        gt.mesh(x=2)
        data = RNG.normal(size=(8, 4)).astype(np.float32)
        x = gt.from_numpy(data, layout={0: "x"}) * 1
        counts = Counts(session)
        assert [[float(v) for v in row] for row in x] == data.tolist()
        assert counts.waits == 1


def test_values_of_a_closed_session_are_gone() -> None:
    with using(Cluster().client()) as session:
        x = gt.ones(2) + 1
        x.numpy()
        session.close()
    with using(Cluster().client()), pytest.raises(gt.GTError):
        x.numpy()
