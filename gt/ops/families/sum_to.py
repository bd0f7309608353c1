"""The inverse of broadcasting: what the gradient of an operand that was broadcast is summed with."""

from __future__ import annotations

from typing import Any

import numpy as np

from gt import dtypes
from gt.errors import DTypeError, ShapeError
from gt.ops import rules
from gt.ops.record import FLOAT32_ON_CUDA, Site, ops
from gt.ops.sharding import letters, linear_op, same_shape
from gt.program import Spec, spec

Dims = tuple[int, ...]


def _infer_sum_to(x: Spec, *, shape: Any) -> Spec:
    rules.tensor("sum_to", x)
    if x.dtype is dtypes.bool_:
        raise DTypeError("sum_to: is not defined for bool; cast first, as in x.int()")
    target = rules.shape("sum_to", shape)
    try:
        rules.expands("sum_to", "a result", target, x.shape)
    except ShapeError:
        raise ShapeError(f"sum_to: {target} does not broadcast to {x.shape}") from None
    return spec(target, x.dtype)


def _summed(source: Dims, target: Dims) -> Dims:
    """The dimensions of `source` that broadcasting from `target` made or stretched."""
    offset = len(source) - len(target)
    stretched = (offset + i for i, n in enumerate(target) if n == 1 and source[offset + i] != 1)
    return (*range(offset), *stretched)


def _sum_to_torch(torch: Any, site: Site, *, shape: Any) -> Any:
    x, target = site.specs[0], tuple(shape)
    dims = _summed(x.shape, target)
    dtype = getattr(torch, x.dtype.name)
    if not dims:
        return torch.clone
    if dims == tuple(range(len(dims))) and len(x.shape) - len(dims) == len(target):
        return lambda x: torch.sum(x, dims, dtype=dtype)  # the usual case, a bias
    return lambda x: torch.sum(x, dims, True, dtype=dtype).reshape(target)


def _sum_to_array(xp: Any, x: Any, *, shape: Any) -> Any:
    target = tuple(shape)
    return xp.sum(x, axis=_summed(x.shape, target), keepdims=True).astype(x.dtype).reshape(target)


def _sum_to_rule(x: Spec, *, shape: Any) -> str:
    gone, names = set(_summed(x.shape, tuple(shape))), letters(x.ndim)
    kept = ["1" if d in gone or x.shape[d] == 1 else names[d] for d in range(x.ndim - len(shape), x.ndim)]
    return f"{' '.join(a if n != 1 else '1' for a, n in zip(names, x.shape, strict=True))} -> {' '.join(kept)}"


sum_to = linear_op(
    "sum_to",
    "x summed to `shape`, over the dimensions that broadcasting from `shape` adds: the gradient of expand.",
    infer=_infer_sum_to,
    factors=_sum_to_rule,
    local=same_shape,
    vjp=(lambda g, y, x, *, shape: ops.expand(g, shape=x.shape),),
    kernels={"array": _sum_to_array, "torch": _sum_to_torch},
    samples=lambda rng: (
        [((rng.normal(size=(2, 3, 4)),), {"shape": s}) for s in [(4,), (3, 1), (2, 1, 4), (1, 1), (), (2, 3, 4)]]
        + [
            ((np.zeros((0, 3)),), {"shape": (3,)}),
            ((np.array(1.5),), {"shape": ()}),
            ((rng.integers(0, 4, size=(2, 3), dtype=np.int32),), {"shape": (3,)}),
        ]
    ),
    autocast=FLOAT32_ON_CUDA,
)
