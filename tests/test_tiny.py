"""The whole public story, top to bottom, in a few seconds: read this first.

It runs on a real private server, as a script would that does nothing but `import gt`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import gt
from gt import nn


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    """Nobody starts a server: the first tensor does. Here its worker computes with numpy, and it ends early."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("GT_ENGINE", "numpy")
        environment.delenv("GT_SERVER", raising=False)
        yield
        gt.disconnect()


def test_tensors_are_as_in_torch() -> None:
    x = gt.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert repr(x @ x.T) == "tensor([[ 5., 11.],\n        [11., 25.]])"
    assert x.shape == (2, 2)
    assert x.dtype is gt.float32
    assert (x[1, 0] + 1).item() == 4.0
    assert x.mean(0).tolist() == [2.0, 3.0]
    assert gt.where(x > 2, x, 0).sum().item() == 7.0
    np.testing.assert_array_equal(x.numpy(), [[1, 2], [3, 4]])


def test_writing_in_place_shows_in_every_view() -> None:
    x = gt.zeros(2, 3)
    row = x[1]
    row += 5
    x[:, 0] = -1
    assert x.tolist() == [[-1, 0, 0], [-1, 5, 5]]
    assert row.tolist() == [-1, 5, 5]


def test_gradients() -> None:
    w = gt.tensor([1.0, 2.0, 3.0], requires_grad=True)
    loss = (w**2).sum()
    loss.backward()
    assert w.grad.tolist() == [2, 4, 6]
    with gt.no_grad():
        w -= 0.5 * w.grad
    assert w.tolist() == [0, 0, 0]


def test_random_numbers_follow_the_seed() -> None:
    gt.manual_seed(1)
    a = gt.randn(1000)
    gt.manual_seed(1)
    assert (gt.randn(1000) == a).all()
    assert abs(a.mean().item()) < 0.2
    assert abs(a.std().item() - 1) < 0.1


def test_a_model_learns() -> None:
    gt.manual_seed(0)
    x = gt.randn(256, 2)
    before = gt.debug.get_client_stats()["programs_sent"]
    y = (x[:, 0] * x[:, 1] > 0).long()  # the four quarters: not linear
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))
    opt = gt.optim.AdamW(model.parameters(), lr=0.02)
    for i in range(200):
        batch = slice(i % 4 * 64, i % 4 * 64 + 64)
        loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
        opt.zero_grad()
        loss.backward()
        opt.step()
    with gt.no_grad():
        right = (model(x).argmax(1) == y).float().mean()
    assert right.item() > 0.9
    assert gt.debug.get_client_stats()["programs_sent"] - before < 10  # of 200 steps: nothing was sent twice


def test_a_function_is_replayed() -> None:
    w = gt.ones(3)

    @gt.function
    def step(x: gt.Tensor, rate: float) -> gt.Tensor:
        w.sub_(rate * x)
        return w.sum()

    assert [step(gt.ones(3), 0.25).item() for _ in range(3)] == [2.25, 1.5, 0.75]
    assert step.replays == 2


def test_mistakes_are_reported_where_they_are_made() -> None:
    with pytest.raises(RuntimeError, match=r"matmul: \(2, 3\) @ \(2, 3\): inner sizes 3 and 2 differ"):
        gt.ones(2, 3) @ gt.ones(2, 3)
    table = gt.arange(4)
    table.numpy()
    with pytest.raises(IndexError, match=r"made by index at .*test_tiny\.py:\d+"):
        table[gt.tensor([7])].numpy()
    assert table.tolist() == [0, 1, 2, 3]  # and the session goes on


def test_the_cluster_can_be_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    x = gt.ones(2, requires_grad=True)
    gt.debug.print_tape((x * 2).sum())
    assert "mul" in capsys.readouterr().out
    stats = gt.debug.get_worker_stats()
    assert stats["workers"]
