"""The p-norm over dimensions, with torch's gradients where it has a kink: none at zero, shared at ties."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gt.errors import ArgumentError, ShapeError
from gt.ops import rules
from gt.ops.families.reduce import count, floating_or_complex, reduced, restore
from gt.ops.record import FLOAT32_ON_CUDA, Rng, Sample, Site, op, ops
from gt.ops.sharding import reducing
from gt.program import Spec, spec


def _infer(x: Spec, *, ord: Any, dims: Any, keepdim: Any) -> Spec:
    rules.tensor("vector_norm", x)
    floating_or_complex("vector_norm", x)
    if type(ord) not in (int, float) or math.isnan(ord):
        raise ArgumentError(f"vector_norm: ord must be a number, got {rules.shown(ord)}")
    dims = rules.dims("vector_norm", dims, x.ndim)
    if (ord < 0 or ord == math.inf) and not count(x.shape, dims):
        raise ShapeError(f"vector_norm: the norm of order {ord} is not defined for no elements, got shape {x.shape}")
    return spec(reduced(x.shape, dims, rules.flag("vector_norm", "keepdim", keepdim)), x.dtype.to_real())


def _vector_norm(x: Any, *, ord: float, dims: Any, keepdim: bool) -> Any:
    over = {"dims": tuple(dims), "keepdim": keepdim}
    if ord == 0:
        return ops.cast(ops.sum(ops.ne(x, 0), **over), dtype=x.dtype.to_real().name)
    if ord == 2 and not x.dtype.is_complex:
        return ops.sqrt(ops.sum(ops.square(x), **over))
    size = ops.abs(x)
    if ord == math.inf:
        return ops.amax(size, **over)
    if ord == -math.inf:
        return ops.amin(size, **over)
    if ord == 1:
        return ops.sum(size, **over)
    if ord == 2:
        return ops.sqrt(ops.sum(size * size, **over))
    return ops.pow(ops.sum(ops.pow(size, float(ord)), **over), 1.0 / ord)


def _unless_zero(a: Any, b: Any) -> Any:
    """a / b, and 0 where b is 0; there its gradients are 0 too."""
    zero = ops.eq(b, 0)
    return ops.where(zero, 0.0, a / ops.where(zero, 1.0, b))


def _direction(x: Any) -> Any:
    return _unless_zero(x, ops.abs(x)) if x.dtype.is_complex else ops.sign(x)


def _power(x: Any, p: float) -> Any:
    """x ** p, and 0 where x is 0."""
    zero = ops.eq(x, 0)
    return ops.where(zero, 0.0, ops.pow(ops.where(zero, 1.0, x), p))


def _dx(g: Any, y: Any, x: Any, *, ord: float, dims: Any, keepdim: bool) -> Any:
    dims = tuple(dims)
    if ord == 0:
        return ops.expand(restore(g * 0.0, x.shape, dims, keepdim), shape=x.shape)
    g = restore(g, x.shape, dims, keepdim)
    if ord == 1:
        return _direction(x) * g
    size = ops.abs(x)
    if math.isinf(ord):
        # Not y: torch's kernel rounds the size of a complex number in another way than its abs.
        top = (ops.amax if ord > 0 else ops.amin)(size, dims=dims, keepdim=True)
        chosen = ops.cast(ops.logical_or(ops.eq(size, top), ops.isnan(size)), dtype=g.dtype.name)
        return _direction(x) * (g / ops.sum(chosen, dims=dims, keepdim=True) * chosen)
    y = restore(y, x.shape, dims, keepdim)
    if ord == 2:
        return x * _unless_zero(g, y)
    if ord < 1:
        return _direction(x) * _power(size, ord - 1.0) * (g * ops.pow(y, 1.0 - ord))
    return _direction(x) * _power(size, ord - 1.0) * _unless_zero(g, _power(y, ord - 1.0))


def _torch(torch: Any, site: Site, *, ord: float, dims: Any, keepdim: bool) -> Any:
    f, dims = torch.linalg.vector_norm, tuple(dims)
    if not dims:  # torch takes all of them then
        return lambda x: f(x.unsqueeze(-1), ord, -1)
    return lambda x: f(x, ord, dims, keepdim)


def _samples(rng: Rng) -> list[Sample]:
    x = rng.normal(size=(2, 3, 4))
    z = rng.normal(size=(2, 3)) + 1j * rng.normal(size=(2, 3))
    orders = (0, 0.5, 1, 1.5, 2, 3, math.inf, -math.inf, -1.5)
    return [
        *[((x,), {"ord": p, "dims": (0, 2), "keepdim": False}) for p in orders],
        *[((z,), {"ord": p, "dims": (1,), "keepdim": True}) for p in orders],
        ((x,), {"ord": 2, "dims": (), "keepdim": False}),
        ((np.array(-1.5),), {"ord": 3, "dims": (), "keepdim": False}),
        ((np.zeros((0, 3)),), {"ord": 2, "dims": (0,), "keepdim": False}),
        ((np.zeros((0, 3)),), {"ord": math.inf, "dims": (1,), "keepdim": False}),
    ]


vector_norm = op(
    "vector_norm",
    "sum(abs(x) ** ord) ** (1 / ord) over dims, and its limits for ord 0 and infinity.",
    infer=_infer,
    factors=reducing("whole"),
    vjp=(_dx,),
    compose=_vector_norm,
    kernels={"torch": _torch},
    samples=_samples,
    autocast=FLOAT32_ON_CUDA,
)
