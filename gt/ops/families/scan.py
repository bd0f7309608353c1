"""Ops that walk along one dimension: every result is made of the elements up to it.

Gradients of products and of logcumsumexp are recurrences; `linear_scan` solves those in log2(n) steps,
without a division, so that zeros and infinities need no cases of their own.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from gt import dtypes
from gt.errors import ShapeError
from gt.ops import rules
from gt.ops.families.reduce import infer_along, some, wide
from gt.ops.record import FLOAT32_ON_CUDA, Op, Rng, Sample, conj, fill, op, ops
from gt.ops.sharding import along, letters, linear_op
from gt.program import Spec, spec


def _shifted(x: Any, dim: int, by: int, value: float) -> Any:
    """x moved along dim by so many places (back, if negative), with a number where nothing came from."""
    n = x.shape[dim]
    far = min(abs(by), n)
    room = fill(x, value, (*x.shape[:dim], far, *x.shape[dim + 1 :]), x.dtype)
    kept = ops.slice(x, far if by < 0 else 0, dims=(dim,), lengths=(n - far,), steps=(1,), drop=())
    return ops.cat(kept, room, dim=dim) if by < 0 else ops.cat(room, kept, dim=dim)


def _reversed(f: Any, x: Any, dim: int) -> Any:
    return ops.flip(f(ops.flip(x, dims=(dim,)), dim=dim), dims=(dim,))


def _samples(rng: Rng) -> list[Sample]:
    return [
        ((rng.normal(size=(2, 3, 4)),), {"dim": 1}),
        ((rng.normal(size=5),), {"dim": 0}),
        ((np.zeros((0, 2)),), {"dim": 0}),
        ((np.zeros((0, 2)),), {"dim": 1}),
    ]


def _complex_and_integers(rng: Rng) -> list[Sample]:
    return [
        ((rng.integers(0, 4, size=5, dtype=np.int32),), {"dim": 0}),
        ((np.array([True, True, False]),), {"dim": 0}),
        ((rng.normal(size=(2, 3)) + 1j * rng.normal(size=(2, 3)),), {"dim": 1}),
    ]


# -- sums and products -----------------------------------------------------------------------


def _infer_wide(name: str, x: Spec, *, dim: Any) -> Spec:
    rules.tensor(name, x)
    rules.dim(name, dim, x.ndim)
    return spec(x.shape, x.dtype if x.dtype.is_differentiable else dtypes.int64)


def _cumsum_first(shard: Any, x: Any, *, dim: int) -> Any:
    return (shard.again(x, dim=dim),), (ops.sum(x, dims=(dim,), keepdim=True),)


def _cumsum_last(shard: Any, kept: Any, gathered: Any, *, dim: int) -> Any:
    """What the parts before this one add up to is added to all of it."""
    before = shard.parts[letters(kept[0].ndim)[dim]].index
    if not before:
        return kept[0]
    cut = {"dims": (0,), "lengths": (before,), "steps": (1,), "drop": ()}
    return kept[0] + ops.sum(ops.slice(gathered[0], 0, **cut), dims=(0,), keepdim=False)


cumsum = linear_op(
    "cumsum",
    "The cumulative sum along dim.",
    infer=partial(_infer_wide, "cumsum"),
    merge=lambda x, *, dim: (letters(x.ndim)[dim], _cumsum_first, _cumsum_last) if x.ndim else None,
    factors=along("dim"),
    vjp=(lambda g, y, x, *, dim: _reversed(ops.cumsum, g, dim),),
    kernels={"array": lambda xp, x, *, dim: xp.cumsum(wide(x), axis=dim)},
    samples=lambda rng: [*_samples(rng), *_complex_and_integers(rng)],
    autocast=FLOAT32_ON_CUDA,
)


def _cumprod_dx(g: Any, y: Any, x: Any, *, dim: int) -> Any:
    # y[j] is, for every k up to j, x[k] times what comes before it times what comes between k and j.
    rest = ops.linear_scan(conj(_shifted(x, dim, -1, 0.0)), g, dim=dim, reverse=True)
    return rest * conj(_shifted(y, dim, 1, 1.0))


cumprod = op(
    "cumprod",
    "The cumulative product along dim.",
    infer=partial(_infer_wide, "cumprod"),
    factors=along("dim"),
    vjp=(_cumprod_dx,),
    kernels={"array": lambda xp, x, *, dim: xp.cumprod(wide(x), axis=dim)},
    samples=lambda rng: [
        *_samples(rng),
        *_complex_and_integers(rng),
        ((np.array([[2.0, 0.0, 3.0, 4.0], [0.0, 1.0, 0.0, 2.0]]),), {"dim": 1}),
    ],
    autocast=FLOAT32_ON_CUDA,
)


def _infer_linear_scan(a: Spec, b: Spec, *, dim: Any, reverse: Any) -> Spec:
    rules.tensor("linear_scan", a, b)
    rules.same_dtype("linear_scan", a, b)
    rules.dim("linear_scan", dim, a.ndim)
    rules.flag("linear_scan", "reverse", reverse)
    if a.shape != b.shape:
        raise ShapeError(f"linear_scan: expected operands of one shape, got {a.shape} and {b.shape}")
    return b


def _linear_scan(a: Any, b: Any, *, dim: int, reverse: bool) -> Any:
    """Every step combines each element with the one `by` places before it; `by` doubles at each step."""
    by = 1
    while by < a.shape[dim]:
        way = -by if reverse else by
        b = b + a * _shifted(b, dim, way, 0.0)
        by *= 2
        if by < a.shape[dim]:
            a = a * _shifted(a, dim, way, 1.0)
    return b + 0.0 if a.shape[dim] < 2 else b


def _linear_scan_db(g: Any, a: Any, dim: int, reverse: bool) -> Any:
    return ops.linear_scan(conj(_shifted(a, dim, 1 if reverse else -1, 0.0)), g, dim=dim, reverse=not reverse)


def _linear_scan_da(g: Any, y: Any, a: Any, dim: int, reverse: bool) -> Any:
    return _linear_scan_db(g, a, dim, reverse) * conj(_shifted(y, dim, -1 if reverse else 1, 0.0))


linear_scan = op(
    "linear_scan",
    "The recurrence y[t] = a[t] * y[t - 1] + b[t] along dim, with y = 0 before the first element; or in reverse.",
    infer=_infer_linear_scan,
    factors=along("dim"),
    linear=((1,),),
    vjp=(
        lambda g, y, a, b, *, dim, reverse: _linear_scan_da(g, y, a, dim, reverse),
        lambda g, y, a, b, *, dim, reverse: _linear_scan_db(g, a, dim, reverse),
    ),
    compose=_linear_scan,
    samples=lambda rng: [
        ((rng.normal(size=s), rng.normal(size=s)), {"dim": d, "reverse": r})
        for s, d in [((2, 5), 1), ((3, 2), 0), ((1,), 0), ((0, 2), 0)]
        for r in (False, True)
    ],
)

# -- logcumsumexp ----------------------------------------------------------------------------


def _logcumsumexp_dx(g: Any, y: Any, x: Any, *, dim: int) -> Any:
    if x.dtype in (dtypes.float16, dtypes.bfloat16):  # their differences say nothing: they are rounded
        g, x = ops.cast(g, dtype="float32"), ops.cast(x, dtype="float32")
        y = ops.logcumsumexp(x, dim=dim)
    # exp(x[k] - y[j]) for all j from k on, as a product of steps that are at most 1.
    step = y - _shifted(y, dim, -1, math.inf)
    step = ops.where(ops.isnan(step), 0.0, step)  # both are infinite
    return ops.linear_scan(ops.exp(step), g, dim=dim, reverse=True) * ops.exp(x - y)


logcumsumexp = op(
    "logcumsumexp",
    "log(cumsum(exp(x))) along dim, without overflow.",
    infer=partial(infer_along, "logcumsumexp"),
    factors=along("dim"),
    vjp=(_logcumsumexp_dx,),
    kernels={
        "numpy": lambda xp, x, *, dim: xp.logaddexp.accumulate(x, axis=dim),
        "jax_lib": lambda jax, x, *, dim: jax.lax.cumlogsumexp(x, axis=dim),
    },
    samples=lambda rng: [*_samples(rng), ((np.array([[1e3, 1e3, 0.0], [-1e3, 0.0, 5.0]]),), {"dim": 1})],
)

# -- the largest so far ----------------------------------------------------------------------


def _infer_extreme(name: str, x: Spec, *, dim: Any) -> tuple[Spec, Spec]:
    rules.tensor(name, x)
    rules.dim(name, dim, x.ndim)
    some(name, x, ())
    return x, spec(x.shape, dtypes.int64)


def _extreme(name: str, doc: str, better: str) -> Op:
    def array(xp: Any, x: Any, *, dim: int) -> Any:
        values = getattr(xp, better).accumulate(x, axis=dim) if x.shape[dim] else x
        places = xp.arange(x.shape[dim]).reshape([-1 if d == dim else 1 for d in range(x.ndim)])
        # The last of those that tie, as torch has it; a nan beats all before it.
        found = xp.where((x == values) | (x != x), places, 0)
        return values, xp.maximum.accumulate(found, axis=dim) if x.shape[dim] else found

    return op(
        name,
        doc,
        infer=partial(_infer_extreme, name),
        factors=along("dim"),
        ranges=lambda x, *, dim, **attrs: {1: x.shape[dim] if x.ndim else 1},
        keeps=(0,),
        vjp=(lambda g, y, x, *, dim: ops.gather_dx(g[0], y[1], shape=x.shape, dim=dim),),
        kernels={"array": array},
        samples=lambda rng: [
            *_samples(rng),
            ((np.array([[1.0, 3.0, 3.0, 2.0], [1.0, np.nan, 2.0, np.nan]]),), {"dim": 1}),
            ((rng.integers(-3, 4, size=(2, 6), dtype=np.int32),), {"dim": 1}),
            ((np.array([False, True, True]),), {"dim": 0}),
        ],
    )


cummax = _extreme("cummax", "The cumulative maximum along dim, and its indices.", "maximum")
cummin = _extreme("cummin", "The cumulative minimum along dim, and its indices.", "minimum")
