"""Optimizer steps are torch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from gt import dtypes
from gt.ops import TABLE
from gt.program import SCALARS, spec
from tests.ops.cases import NUMPY

SHAPE = (5, 7)


def gradients() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=SHAPE) for _ in range(4)]


def by_torch(make: Any, start: np.ndarray) -> np.ndarray:
    p = torch.from_numpy(start.copy()).requires_grad_()
    optimizer = make([p])
    for g in gradients():
        p.grad = torch.from_numpy(g)
        optimizer.step()
    return p.detach().numpy()


def by_op(name: str, state: int, scalars: Any, attrs: dict[str, Any], start: np.ndarray, engine: Any) -> np.ndarray:
    """Four steps; `scalars(step)` are the numbers of each. On torch the state is overwritten."""
    tensors = [start, *(np.zeros(SHAPE) for _ in range(state))]
    s = spec(SHAPE, dtypes.float64)
    arrays = [engine.from_bytes(x.tobytes(), s) for x in tensors]
    for step, g in enumerate(gradients(), 1):
        numbers = scalars(step)
        specs = [s] * (2 + state) + [SCALARS["f"]] * len(numbers)
        kernel = engine.kernel(TABLE[name], attrs, specs, inplace=engine is not NUMPY)
        made = kernel(arrays[0], engine.from_bytes(g.tobytes(), s), *arrays[1:], *numbers)
        arrays = list(made) if isinstance(made, tuple) else [made]
    return np.frombuffer(engine.to_bytes(arrays[0])).reshape(SHAPE)


START = np.random.default_rng(1).normal(size=SHAPE)


def test_adamw(engine: Any) -> None:
    expected = by_torch(lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.8, 0.95), weight_decay=0.1), START)
    for maker in (NUMPY, engine):
        got = by_op("adamw", 2, lambda step: (0.01, 0.8, 0.95, 1e-8, 0.1, step), {}, START, maker)
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12)


def test_sgd(engine: Any) -> None:
    expected = by_torch(lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01), START)
    for maker in (NUMPY, engine):
        got = by_op("sgd", 0, lambda step: (0.1, 0.01), {}, START, maker)
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("dampening", "nesterov"), [(0.0, False), (0.3, False), (0.0, True)])
def test_sgd_with_momentum(dampening: float, nesterov: bool, engine: Any) -> None:
    expected = by_torch(
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=dampening, nesterov=nesterov), START
    )

    def scalars(step: int) -> tuple[float, ...]:
        return 0.1, 0.0, 0.9, dampening if step > 1 else 0.0  # torch starts with the gradient itself

    for maker in (NUMPY, engine):
        got = by_op("sgd_momentum", 1, scalars, {"nesterov": nesterov}, START, maker)
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12)
