"""Ops that pick and place elements along one dimension, by an index of the picked elements' shape.

gather reads, scatter writes, scatter_add and scatter_reduce combine what meets in one place. Indices are
never negative, as in torch, and never out of range: `indices` tells the worker what to check.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from gt import dtypes
from gt.errors import ShapeError
from gt.ops import rules
from gt.ops.families.index_shards import picked_local
from gt.ops.families.placing import add_at, put_at
from gt.ops.record import Autocast, Rng, Sample, Site, fill, op, ops
from gt.ops.sharding import letters, linear_op, masked, within
from gt.program import Spec, spec

REDUCTIONS = ("sum", "prod", "mean", "amax", "amin")

# -- gather ----------------------------------------------------------------------------------


def _fits(name: str, shape: tuple[int, ...], index: Spec, dim: Any) -> None:
    rules.dim(name, dim, len(shape))
    if index.ndim != len(shape):
        raise ShapeError(f"{name}: index {index.shape} must have as many dimensions as the tensor, {len(shape)}")
    if not index.size:
        return
    for d, n in enumerate(index.shape):
        if d != dim and n > shape[d]:
            raise ShapeError(f"{name}: index {index.shape} is larger than {shape} in dimension {d}")


def _infer_gather(x: Spec, index: Spec, *, dim: Any) -> Spec:
    rules.tensor("gather", x)
    rules.index("gather", index)
    _fits("gather", x.shape, index, dim)
    return spec(index.shape, x.dtype)


def _mesh(xp: Any, index: Any, dim: int) -> tuple[Any, ...]:
    """numpy's index for what torch calls gather: every position, `index` along dim."""
    places = []
    for d, n in enumerate(index.shape):
        shape = [1] * index.ndim
        shape[d] = n
        places.append(index if d == dim else xp.arange(n).reshape(shape))
    return tuple(places)


def _gather_array(xp: Any, x: Any, index: Any, *, dim: int) -> Any:
    if not index.size:  # numpy would not look into a dimension without elements
        return xp.zeros(index.shape, x.dtype)
    return x[_mesh(xp, index, dim)]


def _gather_samples(rng: Rng) -> list[tuple[Any, Any, int]]:
    return [
        (rng.normal(size=(3, 4)), rng.integers(0, 4, size=(3, 2)), 1),
        (rng.normal(size=(3, 4)), rng.integers(0, 3, size=(5, 2)), 0),
        (rng.normal(size=(2, 3, 2)), rng.integers(0, 3, size=(2, 4, 1), dtype=np.int32), 1),
        (rng.normal(size=(3, 4)), np.zeros((0, 4), np.int64), 0),
        (np.zeros((3, 0)), np.zeros((2, 0), np.int64), 0),
    ]


def _rule(text: str, shape: tuple[int, ...], index: Spec, dim: int, marks: tuple[str, str] = ("v@", "i")) -> str:
    """A rule of the factors of the tensor, the whole, and of the index, a part: one along dim each; elsewhere the same,
    where sizes agree."""
    whole, part = [], []
    for d, (a, n, m) in enumerate(zip(letters(len(shape), "iv"), shape, index.shape, strict=True)):
        mine = marks if d == dim else (a, a) if n == m else (f"!v{d}", f"!i{d}")
        whole.append(mine[0])
        part.append(mine[1])
    return text.format(whole=" ".join(whole), part=" ".join(part))


def _scattered(shard: Any, index: Any, src: Any) -> tuple[Any, Any]:
    """Where to add what: what belongs to other shards becomes zero."""
    if not shard.split("v"):
        return index, src
    inside, place = within(index, shard.start("v"), shard.size("v"))
    return place, masked(inside, src)


gather = linear_op(
    "gather",
    "The elements at `index` along dim.",
    infer=_infer_gather,
    factors=lambda x, index, *, dim: _rule("{whole}, {part} -> {part}", x.shape, index, dim),
    local=picked_local,
    vjp=(lambda g, y, x, index, *, dim: ops.gather_dx(g, index, shape=x.shape, dim=dim),),
    kernels={
        "array": _gather_array,
        "torch": lambda torch, site, *, dim: lambda x, index: torch.gather(x, dim, index.long()),
    },
    indices=lambda x, index, *, dim: {1: (x.shape[dim], None)},
    keeps=(0,),
    samples=lambda rng: [((x, i), {"dim": d}) for x, i, d in _gather_samples(rng)],
    flops=0,
)


def _infer_gather_dx(g: Spec, index: Spec, *, shape: Any, dim: Any) -> Spec:
    rules.tensor("gather_dx", g)
    rules.index("gather_dx", index)
    shape = rules.shape("gather_dx", shape)
    _fits("gather_dx", shape, index, dim)
    if g.shape != index.shape:
        raise ShapeError(f"gather_dx: gradient must have the shape of the index, got {g.shape} and {index.shape}")
    return spec(shape, g.dtype)


def _gather_dx_local(shard: Any, g: Any, index: Any, *, shape: Any, dim: int) -> Any:
    index, g = _scattered(shard, index, g)
    return shard.again(g, index, shape=shard.results[0].shape, dim=dim)


gather_dx = linear_op(
    "gather_dx",
    "The gradient of gather: g is added at `index` along dim.",
    infer=_infer_gather_dx,
    factors=lambda g, index, *, shape, dim: _rule("{part}, {part} -> {whole}", shape, index, dim),
    local=_gather_dx_local,
    vjp=(lambda u, z, g, index, *, shape, dim: ops.gather(u, index, dim=dim),),
    kernels={
        "array": lambda xp, g, index, *, shape, dim: _add_array(xp, xp.zeros(tuple(shape), g.dtype), index, g, dim=dim),
        "torch": lambda torch, site, *, shape, dim: (
            lambda g, index: g.new_zeros(shape).scatter_add_(dim, index.long(), g)
        ),
    },
    indices=lambda g, index, *, shape, dim: {1: (shape[dim], None)},
    samples=lambda rng: [
        ((rng.normal(size=i.shape), i), {"shape": x.shape, "dim": d}) for x, i, d in _gather_samples(rng)
    ],
    flops=lambda g, index, **attrs: g.size,
)

# -- scatter, scatter_add --------------------------------------------------------------------


def _infer_add(name: str, x: Spec, index: Spec, src: Spec, *, dim: Any) -> Spec:
    rules.tensor(name, x, src)
    rules.same_dtype(name, x, src)
    rules.index(name, index)
    _fits(name, x.shape, index, dim)
    if src.shape != index.shape:
        raise ShapeError(f"{name}: src {src.shape} must have the shape of the index, {index.shape}; slice src first")
    return x


def _infer_scatter(x: Spec, index: Spec, src: Spec, *, dim: Any) -> Spec:
    if not src.weak:
        return _infer_add("scatter", x, index, src, dim=dim)
    rules.tensor("scatter", x)
    rules.number("scatter", src)
    rules.index("scatter", index)
    _fits("scatter", x.shape, index, dim)
    return x


def _scatter_graph(torch: Any, site: Site, *, dim: int) -> Any:
    f, shape = torch.scatter, site.specs[1].shape
    return lambda x, i, src: f(x, dim, i.long(), src.to(x.dtype).expand(shape))


def _scatter_dx(g: Any, y: Any, x: Any, index: Any, src: Any, *, dim: int) -> Any:
    return ops.scatter(g, index, 0.0, dim=dim)


def _apart(rng: Rng) -> list[tuple[Any, Any, int]]:
    """Indices that name no place twice: who would win is not defined."""
    return [
        (rng.normal(size=(3, 4)), np.array([[0, 3], [2, 1], [1, 0]]), 1),
        (rng.normal(size=(3, 4)), np.array([[2, 0, 1, 1]]), 0),
        (rng.normal(size=(2, 3, 2)), np.array([[[0, 1], [2, 0]]], np.int32), 1),
        (rng.normal(size=(3, 4)), np.zeros((0, 4), np.int64), 0),
    ]


def _scatter_rule(x: Spec, index: Spec, src: Spec, *, dim: int, **attrs: Any) -> str:
    """Along dim all is whole: a shard cannot leave out what other shards write."""
    text = f"{{whole}}, {{part}}, {'' if src.weak else '{part}'} -> {{whole}}"
    return _rule(text, x.shape, index, dim, ("!v", "!i"))


scatter = op(
    "scatter",
    "x with src, a tensor or a number, written at `index` along dim.",
    infer=_infer_scatter,
    factors=_scatter_rule,
    vjp=(_scatter_dx, None, lambda g, y, x, index, src, *, dim: ops.gather(g, index, dim=dim)),
    kernels={
        "array": lambda xp, x, index, src, *, dim: put_at(x, _mesh(xp, index, dim), src) if index.size else x.copy(),
        "torch": lambda torch, site, *, dim: lambda x, i, src: torch.scatter(x, dim, i.long(), src),
        "torch_graph": _scatter_graph,
    },
    indices=lambda x, index, src, *, dim: {1: (x.shape[dim], None)},
    keeps=(0, 2),
    samples=lambda rng: [
        *[((x, i, rng.normal(size=i.shape)), {"dim": d}) for x, i, d in _apart(rng)],
        *[((x, i, 1.5), {"dim": d}) for x, i, d in _apart(rng)],
    ],
    flops=0,
)


def _add_array(xp: Any, x: Any, index: Any, src: Any, *, dim: int) -> Any:
    return add_at(xp, x, _mesh(xp, index, dim), src) if index.size else x.copy()


scatter_add = op(
    "scatter_add",
    "x with src added at `index` along dim.",
    infer=partial(_infer_add, "scatter_add"),
    factors=lambda x, index, src, *, dim: _rule("{whole}, {part}, {part} -> {whole}", x.shape, index, dim),
    linear=((0, 2),),
    local=lambda shard, x, index, src, *, dim: shard.again(x, *_scattered(shard, index, src), dim=dim),
    vjp=(
        lambda g, y, x, index, src, *, dim: g,
        None,
        lambda g, y, x, index, src, *, dim: ops.gather(g, index, dim=dim),
    ),
    kernels={
        "array": _add_array,
        "torch": lambda torch, site, *, dim: lambda x, i, src: torch.scatter_add(x, dim, i.long(), src),
    },
    indices=lambda x, index, src, *, dim: {1: (x.shape[dim], None)},
    samples=lambda rng: [
        *[((x, i, rng.normal(size=i.shape)), {"dim": d}) for x, i, d in _gather_samples(rng)],
        ((np.array([True, False, False]), np.array([1, 1, 2]), np.array([True, True, False])), {"dim": 0}),
    ],
    autocast=Autocast(cuda="widest"),
    flops=lambda x, index, src, **attrs: index.size,
)

# -- scatter_reduce --------------------------------------------------------------------------


def _infer_scatter_reduce(x: Spec, index: Spec, src: Spec, *, dim: Any, reduce: Any, include_self: Any) -> Spec:
    rules.choice("scatter_reduce", "reduce", reduce, REDUCTIONS)
    rules.flag("scatter_reduce", "include_self", include_self)
    return _infer_add("scatter_reduce", x, index, src, dim=dim)


def _start(reduce: str, dtype: Any) -> Any:
    """What changes nothing when it is combined."""
    if reduce in ("sum", "mean"):
        return 0
    if reduce == "prod":
        return 1
    name = dtypes.dtype(dtype).name
    if name == "bool":
        return reduce == "amin"
    if name.startswith(("int", "uint")):
        limits = np.iinfo(dtype)
        return limits.min if reduce == "amax" else limits.max
    return -np.inf if reduce == "amax" else np.inf


def _mean(xp: Any, total: Any, count: Any) -> Any:
    count = xp.maximum(count, 1)
    return total / count.astype(total.dtype) if total.dtype.kind in "fcV" else total // count


def _reduce_numpy(xp: Any, x: Any, index: Any, src: Any, *, dim: int, reduce: str, include_self: bool) -> Any:
    result = x.copy()
    if not index.size:
        return result
    place = _mesh(xp, index, dim)
    if not include_self:
        result[place] = _start(reduce, x.dtype)
    combine = {"prod": xp.multiply, "amax": xp.maximum, "amin": xp.minimum}.get(reduce, xp.add)
    combine.at(result, place, src)
    if reduce != "mean":
        return result
    count = xp.full(x.shape, int(include_self))
    xp.add.at(count, place, 1)
    return _mean(xp, result, count)


def _reduce_jax(xp: Any, x: Any, index: Any, src: Any, *, dim: int, reduce: str, include_self: bool) -> Any:
    if not index.size:
        return x
    place = _mesh(xp, index, dim)
    if x.dtype == bool:  # has no sum or product there
        reduce = {"sum": "amax", "prod": "amin"}.get(reduce, reduce)
    if not include_self:
        x = x.at[place].set(_start(reduce, x.dtype))
    at = x.at[place]
    if reduce == "prod":
        return at.multiply(src)
    if reduce in ("amax", "amin"):
        return at.max(src) if reduce == "amax" else at.min(src)
    total = at.add(src)
    if reduce == "sum":
        return total
    return _mean(xp, total, xp.full(x.shape, int(include_self)).at[place].add(1))


def _reduce_torch(torch: Any, site: Site, *, dim: int, reduce: str, include_self: bool) -> Any:
    if not site.specs[1].size:
        return lambda x, index, src: x.clone()
    f = torch.scatter_reduce
    if site.specs[0].dtype is dtypes.bool_:  # which CUDA does not reduce
        i32 = torch.int32
        return lambda x, index, src: f(
            x.to(i32), dim, index.long(), src.to(i32), reduce, include_self=include_self
        ).bool()
    return lambda x, index, src: f(x, dim, index.long(), src, reduce, include_self=include_self)


def _reduce_vjp(
    g: Any, y: Any, x: Any, index: Any, src: Any, *, dim: int, reduce: str, include_self: bool
) -> tuple[Any, None, Any]:
    """torch's own rules: what ties for the largest shares its gradient; a product without its one zero is
    what that zero is multiplied with."""

    def again(x: Any, src: Any) -> Any:
        return ops.scatter_reduce(x, index, src, dim=dim, reduce=reduce, include_self=include_self)

    def at(a: Any) -> Any:
        return ops.gather(a, index, dim=dim)

    def count(mask: Any, start: Any) -> Any:
        return ops.scatter_add(start, index, ops.cast(mask, dtype=g.dtype.name), dim=dim)

    if reduce == "sum":
        dx, dsrc = g, at(g)
    elif reduce == "mean":
        ones = fill(g, 1.0, src.shape, g.dtype)
        n = ops.scatter_add(fill(g, float(include_self), x.shape, g.dtype), index, ones, dim=dim)
        dx = g / ops.where(n < 0.5, 1.0, n)
        dsrc = at(dx)
    elif reduce == "prod":
        zero = ops.eq(x, 0.0)
        safe = ops.where(zero, 1.0, x)
        dx = g * again(safe, src) / safe
        empty = ops.eq(src, 0.0)
        single = ops.logical_and(empty, at(count(empty, fill(g, 0.0, x.shape, g.dtype))) < 1.5)
        others = at(g * again(x, ops.where(single, 1.0, src)))
        dsrc = ops.where(single, others, at(g * y) / ops.where(empty, 1.0, src))
    else:
        mine, theirs = ops.eq(x, y), ops.eq(src, at(y))
        share = g / count(theirs, ops.cast(mine, dtype=g.dtype.name))
        dx = ops.where(mine, share, 0.0)
        dsrc = ops.where(theirs, at(share), 0.0)
    return dx if include_self else ops.scatter(dx, index, 0.0, dim=dim), None, dsrc


def _reduce_samples(rng: Rng) -> list[Sample]:
    def attrs(dim: int, reduce: str, include_self: bool) -> dict[str, Any]:
        return {"dim": dim, "reduce": reduce, "include_self": include_self}

    cases: list[Sample] = []
    for reduce in REDUCTIONS:
        for i, (x, index, dim) in enumerate(_gather_samples(rng)):
            cases.append(((x, index, rng.normal(size=index.shape)), attrs(dim, reduce, bool(i % 2))))
        whole, index = rng.integers(1, 9, size=5), np.array([0, 3, 3])
        cases.append(((whole, index, np.array([4, 2, 3])), attrs(0, reduce, reduce != "mean")))
    mask = np.array([True, False, True])
    cases.append(((mask, np.array([0, 1]), np.array([False, True])), attrs(0, "amin", True)))
    return cases


scatter_reduce = op(
    "scatter_reduce",
    "x with src reduced at `index` along dim, together with x or (include_self=False) without it.",
    infer=_infer_scatter_reduce,
    factors=_scatter_rule,
    vjp=_reduce_vjp,
    kernels={"numpy": _reduce_numpy, "jax": _reduce_jax, "torch": _reduce_torch},
    indices=lambda x, index, src, *, dim, reduce, include_self: {1: (x.shape[dim], None)},
    samples=_reduce_samples,
    flops=lambda x, index, src, **attrs: index.size,
)
