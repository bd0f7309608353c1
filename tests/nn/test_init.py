"""First values: bounds and moments of what is random, the rest as torch's; and every layer's own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.errors import ArgumentError, ShapeError


@pytest.fixture(autouse=True)
def _seeded() -> None:
    gt.manual_seed(0)


@pytest.mark.parametrize(
    ("name", "param"),
    [("linear", None), ("sigmoid", None), ("conv_transpose2d", None), ("tanh", None), ("relu", None), ("selu", None),
     ("leaky_relu", None), ("leaky_relu", 0.3), ("leaky_relu", 2)],
)  # fmt: skip
def test_gains(name: str, param: Any) -> None:
    assert gt.nn.init.calculate_gain(name, param) == pytest.approx(torch.nn.init.calculate_gain(name, param))


def test_gains_that_are_not_known() -> None:
    with pytest.raises(ArgumentError, match="unknown nonlinearity 'cube'; expected one of linear,"):
        gt.nn.init.calculate_gain("cube")
    with pytest.raises(ArgumentError, match="the slope of leaky_relu must be a number, got 'a'"):
        gt.nn.init.calculate_gain("leaky_relu", "a")


#: Name: the call, and the mean, deviation and largest magnitude (None: no bound) of what it gives.
RANDOM: dict[str, tuple[Callable[[Any], Any], float, float, float | None]] = {
    "uniform": (lambda t: gt.nn.init.uniform_(t, -1, 3), 1.0, 4 / math.sqrt(12), 3.0),
    "normal": (lambda t: gt.nn.init.normal_(t, 2.0, 0.5), 2.0, 0.5, None),
    "xavier uniform": (
        lambda t: gt.nn.init.xavier_uniform_(t, 2.0), 0.0, 2 * math.sqrt(2 / 500), 2 * math.sqrt(6 / 500)
    ),
    "xavier normal": (gt.nn.init.xavier_normal_, 0.0, math.sqrt(2 / 500), None),
    "kaiming uniform": (
        lambda t: gt.nn.init.kaiming_uniform_(t, nonlinearity="relu"), 0.0, math.sqrt(2 / 300), math.sqrt(6 / 300)
    ),
    "kaiming normal": (
        lambda t: gt.nn.init.kaiming_normal_(t, 1.0, "fan_out"), 0.0, math.sqrt(1 / 200), None
    ),
}  # fmt: skip


@pytest.mark.parametrize(("call", "mean", "deviation", "bound"), RANDOM.values(), ids=RANDOM)
def test_moments(call: Any, mean: Any, deviation: Any, bound: Any) -> None:
    t = gt.nn.Parameter(gt.empty(200, 300))
    assert call(t) is t
    assert t.requires_grad
    assert t.grad_fn is None
    a = t.detach().numpy()
    assert a.mean() == pytest.approx(mean, abs=0.02 * deviation)
    assert a.std() == pytest.approx(deviation, rel=0.02)
    if bound is not None:
        assert 0.99 * bound < np.abs(a).max() <= bound


def test_normal_between_bounds() -> None:
    a = gt.nn.init.trunc_normal_(gt.empty(300, 300), 1.0, 2.0, -1.0, 2.5).numpy()
    assert -1.0 <= a.min() < -0.99
    assert 2.49 < a.max() <= 2.5
    b = torch.nn.init.trunc_normal_(torch.empty(300, 300), 1.0, 2.0, -1.0, 2.5).numpy()
    assert a.mean() == pytest.approx(b.mean(), abs=0.02)
    assert a.std() == pytest.approx(b.std(), rel=0.02)


@pytest.mark.parametrize("shape", [(5, 8), (8, 5), (4, 2, 3)])
def test_right_angles(shape: tuple[int, ...]) -> None:
    t = gt.nn.init.orthogonal_(gt.empty(*shape), gain=2.0).numpy().reshape(shape[0], -1)
    small = t @ t.T if t.shape[0] <= t.shape[1] else t.T @ t
    np.testing.assert_allclose(small, 4 * np.eye(len(small)), atol=1e-5)


def test_sparse_columns() -> None:
    a = gt.nn.init.sparse_(gt.empty(50, 40), 0.3, std=2.0).numpy()
    assert ((a == 0).sum(0) == 15).all()
    assert len({tuple(column) for column in (a == 0).T}) > 30
    assert a[a != 0].std() == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize(
    "call",
    [
        lambda lib: lib.nn.init.constant_(lib.empty(2, 3), 4.5), lambda lib: lib.nn.init.ones_(lib.empty(3)),
        lambda lib: lib.nn.init.zeros_(lib.ones(3)), lambda lib: lib.nn.init.eye_(lib.empty(3, 5)),
        lambda lib: lib.nn.init.dirac_(lib.empty(4, 3, 3)), lambda lib: lib.nn.init.dirac_(lib.empty(6, 2, 3, 4), 2),
    ],
)  # fmt: skip
def test_values(call: Callable[[Any], Any]) -> None:
    np.testing.assert_array_equal(call(gt).numpy(), call(torch).numpy())


def test_refusals() -> None:
    init, x = gt.nn.init, gt.ones(3)
    vectors = (init.eye_, x), (init.xavier_uniform_, x), (init.orthogonal_, x), (init.sparse_, x, 0.1)
    for fill, *given in (*vectors, (init.dirac_, gt.ones(3, 3))):
        with pytest.raises(ShapeError):
            fill(*given)
    with pytest.raises(ArgumentError, match="mode must be 'fan_in' or 'fan_out', got 'fan'"):
        gt.nn.init.kaiming_uniform_(gt.ones(3, 3), mode="fan")


def test_a_generator_decides() -> None:
    a, b = (gt.nn.init.normal_(gt.empty(4), generator=gt.Generator().manual_seed(3)).tolist() for _ in range(2))
    assert a == b


LAYERS: list[Callable[[Any], Any]] = [
    lambda nn: nn.Linear(100, 300),
    lambda nn: nn.Bilinear(30, 40, 50),
    lambda nn: nn.Embedding(300, 100),
    lambda nn: nn.EmbeddingBag(300, 100),
    lambda nn: nn.Conv2d(20, 60, 5),
    lambda nn: nn.Conv1d(40, 80, 3, groups=4),
    lambda nn: nn.ConvTranspose2d(20, 60, 5),
    lambda nn: nn.LSTM(30, 50, 2, proj_size=20),
    lambda nn: nn.GRUCell(30, 50),
    lambda nn: nn.MultiheadAttention(64, 4, add_bias_kv=True, kdim=32, vdim=48),
    lambda nn: nn.BatchNorm2d(5),
    lambda nn: nn.LayerNorm((5, 3)),
    lambda nn: nn.GroupNorm(2, 4),
    lambda nn: nn.PReLU(4),
    lambda nn: nn.Transformer(32, 4, 1, 1, 64),
]


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize("build", LAYERS)
def test_layers_begin_as_torchs_do(build: Callable[[Any], Any]) -> None:
    torch.manual_seed(0)
    ours, theirs = build(gt.nn).state_dict(), build(torch.nn).state_dict()
    for name, want in theirs.items():
        a, b = ours[name].numpy().astype(float), want.numpy().astype(float)
        few = 4 / math.sqrt(b.size)  # how far moments of so many numbers lie apart
        assert a.mean() == pytest.approx(b.mean(), abs=few * max(b.std(), 1e-6)), name
        assert a.std() == pytest.approx(b.std(), rel=few, abs=1e-6), name
        if b.std() and b.size > 1000 and "mbedding" not in str(build(gt.nn)):
            assert np.abs(a).max() == pytest.approx(np.abs(b).max(), rel=0.05), name
