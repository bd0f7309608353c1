"""Optimizer steps that torch has no fused kernel for: one instruction per parameter, and compositions.

All tensors are of one shape and dtype; the numbers come with the call. What can be computed of numbers alone (bias
corrections, decayed learning rates, `1 - beta`) is computed by whoever records the step, and passed.

They are not written in place: their kernels would need memory for intermediate values, and a commit may allocate none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from gt.ops import rules
from gt.ops.families.update import infer_step
from gt.ops.record import Op, Rng, Sample, op, ops
from gt.ops.sharding import pointwise, pointwise_op
from gt.program import Spec


def _step(name: str, doc: str, compose: Callable[..., Any], tensors: int, numbers: Sequence[float]) -> Op:
    """A step; see infer_step. `numbers` are those of the samples."""
    infer = partial(infer_step, name, tensors, len(numbers))

    def samples(rng: Rng) -> list[Sample]:
        return [((*_arrays(rng, size, tensors), *numbers), {}) for size in [(3, 4), (), (0, 2)]]

    return op(name, doc, infer=infer, factors=pointwise, vjp=None, compose=compose, samples=samples)


def _arrays(rng: Rng, size: tuple[int, ...], tensors: int) -> list[Any]:
    """A parameter, a gradient, and a state that may be taken for sums of squares."""
    state = [np.asarray(rng.uniform(0.5, 1.0, size)) for _ in range(tensors - 2)]
    return [rng.normal(size=size), rng.normal(size=size), *state]


# -- moments of the gradient -----------------------------------------------------------------


def _moments(g: Any, m: Any, v: Any, rest1: Any, beta2: Any, rest2: Any) -> tuple[Any, Any]:
    return m + (g - m) * rest1, v * beta2 + g * g * rest2


def _nadam(
    p: Any, g: Any, m: Any, v: Any,
    rest1: Any, beta2: Any, rest2: Any, slope: Any, eps: Any, along_g: Any, along_m: Any,
) -> Any:  # fmt: skip
    m, v = _moments(g, m, v, rest1, beta2, rest2)
    return p - (g * along_g + m * along_m) / (ops.sqrt(v) * slope + eps), m, v


def _radam(
    p: Any, g: Any, m: Any, v: Any, rest1: Any, beta2: Any, rest2: Any, slope: Any, offset: Any, along_m: Any
) -> Any:
    m, v = _moments(g, m, v, rest1, beta2, rest2)
    return p - m * along_m / (ops.sqrt(v) * slope + offset), m, v


def _adamax(p: Any, g: Any, m: Any, u: Any, rest1: Any, beta2: Any, eps: Any, along_m: Any) -> Any:
    m = m + (g - m) * rest1
    u = ops.maximum(u * beta2, ops.abs(g) + eps)
    return p - m / u * along_m, m, u


nadam = _step(
    "nadam", "One step of NAdam: the new parameter, first and second moment.", _nadam, 4,
    (0.1, 0.999, 0.001, 30.0, 1e-8, 0.01, 0.02),
)  # fmt: skip
radam = _step(
    "radam", "One step of RAdam: the new parameter, first and second moment.", _radam, 4,
    (0.1, 0.999, 0.001, 30.0, 1e-8, 0.02),
)  # fmt: skip
adamax = _step(
    "adamax", "One step of Adamax: the new parameter, first moment and largest gradient.", _adamax, 4,
    (0.1, 0.999, 1e-8, 0.02),
)  # fmt: skip

# -- means of squares ------------------------------------------------------------------------


def _adadelta(p: Any, g: Any, square: Any, delta: Any, lr: Any, rho: Any, rest: Any, eps: Any) -> Any:
    square = square * rho + g * g * rest
    move = ops.sqrt(delta + eps) / ops.sqrt(square + eps) * g
    return p - move * lr, square, delta * rho + move * move * rest


adadelta = _step(
    "adadelta", "One step of Adadelta: the new parameter, mean square gradient and mean square update.", _adadelta, 4,
    (0.5, 0.9, 0.1, 1e-6),
)  # fmt: skip


def _infer_rmsprop(*operands: Spec, centered: Any, momentum: Any) -> Any:
    tensors = 3 + rules.flag("rmsprop", "centered", centered) + rules.flag("rmsprop", "momentum", momentum)
    return infer_step("rmsprop", tensors, 5, *operands)


def _rmsprop(p: Any, g: Any, square: Any, *rest: Any, centered: bool, momentum: bool) -> Any:
    lr, alpha, other, eps, mu = rest[-5:]
    square = square * alpha + g * g * other
    state = [square]
    if centered:
        mean = rest[0] + (g - rest[0]) * other
        state.append(mean)
        square = square - mean * mean
    move = g / (ops.sqrt(square) + eps)
    if momentum:
        move = rest[centered] * mu + move
        state.append(move)
    return p - move * lr, *state


def _rmsprop_samples(rng: Rng) -> list[Sample]:
    cases: list[Sample] = []
    for size in [(3, 4), (), (0, 2)]:
        for centered in (False, True):
            for momentum in (False, True):
                p, g, square, *rest = _arrays(rng, size, 3 + centered + momentum)
                if centered:  # a mean that fits to the mean square: no root of a negative number
                    rest[0] = np.asarray(rest[0] * 0.1)
                numbers = (0.01, 0.99, 0.01, 1e-8, 0.9)
                cases.append(((p, g, square, *rest, *numbers), {"centered": centered, "momentum": momentum}))
    return cases


rmsprop = pointwise_op(
    "rmsprop",
    "One step of RMSprop: the new parameter and mean square; optionally the mean and the momentum buffer.",
    infer=_infer_rmsprop,
    vjp=None,
    compose=_rmsprop,
    samples=_rmsprop_samples,
)

# -- others ----------------------------------------------------------------------------------


def _asgd(p: Any, g: Any, mean: Any, shrink: Any, eta: Any, rest: Any) -> Any:
    p = p * shrink - g * eta
    return p, p - (p - mean) * rest


def _rprop(
    p: Any, g: Any, before: Any, size: Any, first: Any, shrink: Any, grow: Any, smallest: Any, largest: Any
) -> Any:
    turn = g * before
    size = size + first
    size = ops.where(turn > 0, size * grow, ops.where(turn < 0, size * shrink, size))
    size = ops.minimum(ops.maximum(size, smallest), largest)
    g = ops.where(turn < 0, 0.0, g)
    return p - ops.sign(g) * size, g, size


asgd = _step(
    "asgd", "One step of averaged gradient descent: the new parameter and mean of parameters.", _asgd, 3,
    (0.999, 0.01, 0.5),
)  # fmt: skip
rprop = _step(
    "rprop", "One step of Rprop: the new parameter, previous gradient and step sizes.", _rprop, 4,
    (0.0, 0.5, 1.2, 1e-6, 50.0),
)  # fmt: skip
