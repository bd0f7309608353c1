"""Rows of a table by number, and adding gradients up in those rows.

padding_idx is the row that learns nothing (-1: every row learns); with scale_grad_by_freq a row's gradient is
divided by how often it was used.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gt.errors import ShapeError
from gt.ops import rules
from gt.ops.families.placing import add_at
from gt.ops.record import Rng, Site, fill, ops
from gt.ops.sharding import linear_op, masked, spelled, within
from gt.program import Spec, spec


def _infer_embedding(weight: Spec, index: Spec, *, padding_idx: Any = -1, scale_grad_by_freq: Any = False) -> Spec:
    rules.tensor("embedding", weight)
    rules.index("embedding", index)
    rules.ints("embedding", "padding_idx", (padding_idx,))
    rules.flag("embedding", "scale_grad_by_freq", scale_grad_by_freq)
    if weight.ndim != 2:
        raise ShapeError(f"embedding: the weight must be a matrix, got shape {weight.shape}")
    return spec((*index.shape, weight.shape[1]), weight.dtype)


def _infer_embedding_dweight(
    g: Spec, index: Spec, *, n: Any, padding_idx: Any = -1, scale_grad_by_freq: Any = False
) -> Spec:
    rules.floats("embedding_dweight", g)
    rules.index("embedding_dweight", index)
    n = rules.size("embedding_dweight", "n", n)
    rules.ints("embedding_dweight", "padding_idx", (padding_idx,))
    rules.flag("embedding_dweight", "scale_grad_by_freq", scale_grad_by_freq)
    if not g.shape or g.shape[:-1] != index.shape:
        raise ShapeError(f"embedding_dweight: expected one row per index of {index.shape}, got {g.shape}")
    return spec((n, g.shape[-1]), g.dtype)


def _embedding_dweight_array(
    xp: Any, g: Any, index: Any, *, n: int, padding_idx: int = -1, scale_grad_by_freq: bool = False
) -> Any:
    if padding_idx >= 0:
        g = xp.where((index == padding_idx)[..., None], xp.zeros((), g.dtype), g)
    if scale_grad_by_freq:
        times = add_at(xp, xp.zeros(n, g.dtype), index, xp.ones((), g.dtype))
        g = g / times[index][..., None]
    return add_at(xp, xp.zeros((n, g.shape[-1]), g.dtype), index, g)


def _embedding_dweight_torch(
    torch: Any, site: Site, *, n: int, padding_idx: int = -1, scale_grad_by_freq: bool = False
) -> Any:
    f = torch.ops.aten.embedding_dense_backward.default
    return lambda g, index: f(g, index, n, padding_idx, scale_grad_by_freq)


def _embedding_dweight_dg(
    u: Any, z: Any, g: Any, index: Any, *, n: int, padding_idx: int = -1, scale_grad_by_freq: bool = False
) -> Any:
    d = ops.embedding(u, index)
    column = (*index.shape, 1)
    if padding_idx >= 0:
        d = ops.where(ops.reshape(ops.eq(index, padding_idx), shape=column), 0.0, d)
    if scale_grad_by_freq:
        flat = ops.reshape(index, shape=(math.prod(index.shape),))
        times = ops.index_select_dx(fill(u, 1.0, flat.shape, u.dtype), flat, shape=(n,), dim=0)
        d = d / ops.reshape(ops.index_select(times, flat, dim=0), shape=column)
    return d


def _embedding_samples(rng: Rng) -> list[tuple[Any, Any, dict[str, Any]]]:
    plain: dict[str, Any] = {}
    return [
        (rng.normal(size=(5, 3)), rng.integers(0, 5, size=(2, 4)), plain),
        (rng.normal(size=(5, 3)), np.array(2), plain),
        (rng.normal(size=(5, 3)), rng.integers(0, 5, size=4, dtype=np.int32), plain),
        (rng.normal(size=(5, 3)), np.zeros((0, 2), np.int64), plain),
        (rng.normal(size=(5, 3)), np.array([0, 2, 2, 1, 2, 1]), {"padding_idx": 1}),
    ]


def _local(shard: Any, weight: Any, index: Any, **attrs: Any) -> Any:
    """Rows that other shards have are zero here; the sum over shards has every row once."""
    if not shard.split("v"):
        return shard.again(weight, index, **attrs)
    inside, place = within(index, shard.start("v"), shard.size("v"))
    return masked(ops.reshape(inside, shape=(*index.shape, 1)), shard.again(weight, place, **attrs))


embedding = linear_op(
    "embedding",
    "The rows of a weight at `index`, a tensor of any shape.",
    infer=_infer_embedding,
    factors=lambda weight, index, **attrs: spelled("v@ d, * -> * d", index.ndim, "dv"),
    local=_local,
    vjp=(lambda g, y, weight, index, **attrs: ops.embedding_dweight(g, index, n=weight.shape[0], **attrs),),
    kernels={
        "array": lambda xp, weight, index, **attrs: weight[index],
        "torch": lambda torch, site, **attrs: torch.embedding,
    },
    indices=lambda weight, index, **attrs: {1: (weight.shape[0], None)},
    keeps=(0,),
    # Not the last: what it asks for is not the slope of the function.
    samples=lambda rng: [((w, i), attrs) for w, i, attrs in _embedding_samples(rng)[:-1]],
    flops=0,
)


def _dweight_rule(g: Spec, index: Spec, *, scale_grad_by_freq: bool = False, **attrs: Any) -> str | None:
    return None if scale_grad_by_freq else spelled("* d, * -> v@ d", index.ndim, "dv")


def _dweight_local(shard: Any, g: Any, index: Any, *, n: int, padding_idx: int = -1, **attrs: Any) -> Any:
    if shard.split("v"):
        start, n = shard.start("v"), shard.size("v")
        inside, index = within(index, start, n)
        g = masked(ops.reshape(inside, shape=(*index.shape, 1)), g)
        padding_idx = padding_idx - start if start <= padding_idx < start + n else -1
    return shard.again(g, index, n=n, padding_idx=padding_idx, **attrs)


embedding_dweight = linear_op(
    "embedding_dweight",
    "The gradient of embedding with respect to its weight of n rows.",
    infer=_infer_embedding_dweight,
    factors=_dweight_rule,
    local=_dweight_local,
    vjp=(_embedding_dweight_dg,),
    kernels={"array": _embedding_dweight_array, "torch": _embedding_dweight_torch},
    indices=lambda g, index, *, n, **attrs: {1: (n, None)},
    samples=lambda rng: [
        ((rng.normal(size=(*i.shape, w.shape[1])), i), {"n": w.shape[0], **attrs})
        for w, i, attrs in _embedding_samples(rng)
    ],
    flops=lambda g, index, **attrs: g.size,
)
