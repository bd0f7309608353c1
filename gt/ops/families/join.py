"""Joining tensors, and cutting one into pieces, which are views of it."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from gt import dtypes
from gt.errors import ArgumentError, ShapeError
from gt.ops import rules
from gt.ops.record import Autocast, Site, each_of, fill, op, ops
from gt.ops.sharding import letters, with_place
from gt.program import Spec, spec

MAX_PIECES = 1 << 16  #: results that one instruction may have

# -- cat, split ------------------------------------------------------------------------------


def _infer_cat(*xs: Spec, dim: Any) -> Spec:
    if not xs:
        raise ArgumentError("cat: expected at least one tensor")
    rules.tensor("cat", *xs)
    first = xs[0].shape
    dim = rules.dim("cat", dim, len(first))
    total = 0
    for x in xs:
        if x.ndim != len(first) or x.shape[:dim] != first[:dim] or x.shape[dim + 1 :] != first[dim + 1 :]:
            raise ShapeError(f"cat: shapes must be equal except in dimension {dim}, got {first} and {x.shape}")
        total += x.shape[dim]
    return spec((*first[:dim], total, *first[dim + 1 :]), dtypes.promote(xs))


def _cat_torch(torch: Any, site: Site, *, dim: int) -> Any:
    f = torch.cat
    return lambda *xs: f(xs, dim)


def _cat_rule(*xs: Spec, dim: int) -> str:
    value = partial(with_place, letters(xs[0].ndim, "hs"), dim)
    if len({x.shape[dim] for x in xs}) == 1 and xs[0].shape[dim] > 1:  # each stays split as it is
        return f"{', '.join([value('h')] * len(xs))} -> {value(f'(!s={len(xs)} h)')}"
    return f"{', '.join([value('h~')] * len(xs))} -> {value('h')}"


def _cat_window(*xs: Spec, dim: int) -> Any:
    starts = [sum(x.shape[dim] for x in xs[:k]) for k in range(len(xs))]
    return {"h": lambda k, lo, hi: (lo - starts[k], hi - starts[k], "clip")}


cat = op(
    "cat",
    "Tensors joined along one dimension.",
    infer=_infer_cat,
    factors=_cat_rule,
    moves=True,
    window=_cat_window,
    vjp=lambda g, y, *xs, dim: (
        (g,) if len(xs) == 1 else tuple(ops.split(g, sizes=tuple(x.shape[dim] for x in xs), dim=dim))
    ),
    kernels={"array": lambda xp, *xs, dim: xp.concatenate(xs, axis=dim), "torch": _cat_torch},
    promote=True,
    samples=lambda rng: [
        ((rng.normal(size=(2, 3)), rng.normal(size=(1, 3))), {"dim": 0}),
        ((rng.normal(size=(2, 3)), rng.normal(size=(2, 0)), rng.normal(size=(2, 1))), {"dim": 1}),
        ((rng.normal(size=(2,)),), {"dim": 0}),
        ((rng.normal(size=(2,)), rng.integers(0, 3, size=(2,))), {"dim": 0}),
    ],
    autocast=Autocast(cpu="widest"),
)


def _infer_split(x: Spec, *, sizes: Any, dim: Any) -> tuple[Spec, ...]:
    rules.tensor("split", x)
    dim = rules.dim("split", dim, x.ndim)
    pieces = rules.ints("split", "sizes", sizes)
    if not pieces or any(n < 0 for n in pieces) or sum(pieces) != x.shape[dim]:
        raise ShapeError(f"split: sizes must add up to {x.shape[dim]}, the size of dimension {dim} of shape {x.shape}")
    return tuple(spec((*x.shape[:dim], n, *x.shape[dim + 1 :]), x.dtype) for n in pieces)


def _split_array(xp: Any, x: Any, *, sizes: Any, dim: int) -> Any:
    pieces = tuple(xp.split(x, list(np.cumsum(sizes[:-1], dtype=np.int64)), axis=dim))
    return pieces if len(pieces) > 1 else pieces[0]


def _split_torch(torch: Any, site: Site, *, sizes: Any, dim: int) -> Any:
    pieces = list(sizes)
    if len(pieces) == 1:
        return lambda x: x.narrow(dim, 0, pieces[0])
    return lambda x: x.split_with_sizes(pieces, dim)


def _split_dx(g: Any, y: Any, x: Any, *, sizes: Any, dim: int) -> Any:
    if len(sizes) == 1:
        return g
    some = next(piece for piece in g if piece is not None)
    shape, dtype = x.shape, some.dtype
    pieces = [
        fill(some, 0.0, (*shape[:dim], n, *shape[dim + 1 :]), dtype) if piece is None else piece
        for n, piece in zip(sizes, g, strict=True)
    ]
    return ops.cat(*pieces, dim=dim)


def _split_put(base: Any, new: Any, k: int, *, sizes: Any, dim: int) -> Any:
    if len(sizes) == 1:
        return new
    return ops.slice_put(base, new, sum(sizes[:k]), dims=(dim,), lengths=(sizes[k],), steps=(1,), drop=())


def _split_rule(x: Spec, *, sizes: Any, dim: int) -> str:
    value = partial(with_place, letters(x.ndim, "hs"), dim)
    if len(set(sizes)) == 1 and sizes[0] > 1:
        return f"{value(f'(!s={len(sizes)} h)')} -> {value('h')}"
    return f"{value('!h')} -> {', '.join(value(f'!s{k}') for k in range(len(sizes)))}"


split = op(
    "split",
    "x split along one dimension into pieces of the given sizes.",
    infer=_infer_split,
    factors=_split_rule,
    moves=True,
    local=lambda shard, x, *, sizes, dim: shard.again(x, sizes=tuple(r.shape[dim] for r in shard.results), dim=dim),
    vjp=(_split_dx,),
    kernels={"array": _split_array, "torch": _split_torch},
    put=_split_put,
    samples=lambda rng: [
        ((rng.normal(size=(2, 5)),), {"sizes": (2, 3), "dim": 1}),
        ((rng.normal(size=(4, 2)),), {"sizes": (1, 0, 3), "dim": 0}),
        ((rng.normal(size=(4,)),), {"sizes": (4,), "dim": 0}),
    ],
)

# -- stack, unbind ---------------------------------------------------------------------------


def _infer_stack(*xs: Spec, dim: Any) -> Spec:
    if not xs:
        raise ArgumentError("stack: expected at least one tensor")
    rules.tensor("stack", *xs)
    first = xs[0].shape
    dim = rules.dim("stack", dim, len(first) + 1)
    for x in xs:
        if x.shape != first:
            raise ShapeError(f"stack: all tensors must have one shape, got {first} and {x.shape}")
    # Tensors without dimensions get one before they are joined: their widths count.
    common = dtypes.promote([spec((1, *x.shape), x.dtype) for x in xs])
    return spec((*first[:dim], len(xs), *first[dim:]), common)


def _stack_torch(torch: Any, site: Site, *, dim: int) -> Any:
    f, kind = torch.stack, getattr(torch, site.results[0].dtype.name)
    if len({x.dtype for x in site.specs}) == 1:
        return lambda *xs: f(xs, dim)
    return lambda *xs: f([x.to(kind) for x in xs], dim)


def _stack_array(xp: Any, *xs: Any, dim: int) -> Any:
    return xp.concatenate([xp.expand_dims(x, dim) for x in xs], axis=dim)


def _stack_dxs(g: Any, y: Any, *xs: Any, dim: int) -> tuple[Any, ...]:
    pieces = ops.unbind(g, dim=dim)
    return tuple(pieces) if len(xs) > 1 else (pieces,)


def _stack_rule(*xs: Spec, dim: int) -> str:
    names = letters(xs[0].ndim, "s")
    return f"{', '.join([' '.join(names)] * len(xs))} -> {' '.join([*names[:dim], '!s', *names[dim:]])}"


stack = op(
    "stack",
    "Tensors of one shape joined along a new dimension.",
    infer=_infer_stack,
    factors=_stack_rule,
    moves=True,
    vjp=_stack_dxs,
    kernels={"array": _stack_array, "torch": _stack_torch},
    samples=lambda rng: [
        ((rng.normal(size=(2, 3)), rng.normal(size=(2, 3))), {"dim": 1}),
        ((rng.normal(size=(2,)), rng.integers(0, 3, size=(2,))), {"dim": 0}),
        ((np.array(1.5), np.array(2)), {"dim": 0}),
        ((rng.normal(size=(2,)),), {"dim": 1}),
        ((np.zeros((0, 3)), np.zeros((0, 3))), {"dim": 2}),
    ],
    autocast=Autocast(cpu="widest"),
)


def _infer_unbind(x: Spec, *, dim: Any) -> tuple[Spec, ...]:
    rules.tensor("unbind", x)
    dim = rules.dim("unbind", dim, x.ndim)
    n = x.shape[dim]
    if not 0 < n <= MAX_PIECES:
        raise ShapeError(f"unbind: dimension {dim} must have a size from 1 to {MAX_PIECES}, got shape {x.shape}")
    return (spec((*x.shape[:dim], *x.shape[dim + 1 :]), x.dtype),) * n


def _unbind_array(xp: Any, x: Any, *, dim: int) -> Any:
    pieces = tuple(xp.moveaxis(x, dim, 0))
    return pieces if len(pieces) > 1 else pieces[0]


def _unbind_torch(torch: Any, site: Site, *, dim: int) -> Any:
    if site.specs[0].shape[dim] == 1:
        return lambda x: x.select(dim, 0)
    return lambda x: x.unbind(dim)


def _unbind_dx(g: Any, y: Any, x: Any, *, dim: int) -> Any:
    if x.shape[dim] == 1:
        return ops.stack(g, dim=dim)
    some = next(piece for piece in g if piece is not None)
    zero = None if all(piece is not None for piece in g) else fill(some, 0.0, some.shape, some.dtype)
    return ops.stack(*[zero if piece is None else piece for piece in g], dim=dim)


def _unbind_rule(x: Spec, *, dim: int) -> str:
    names = letters(x.ndim - 1, "s")
    return f"{' '.join([*names[:dim], '!s', *names[dim:]])} -> {' '.join(names)}"


unbind = op(
    "unbind",
    "The slices of x along one dimension, which is removed.",
    infer=_infer_unbind,
    factors=_unbind_rule,
    moves=True,
    vjp=(_unbind_dx,),
    kernels={"array": _unbind_array, "torch": _unbind_torch},
    put=lambda base, new, k, *, dim: ops.slice_put(base, new, k, dims=(dim,), lengths=(1,), steps=(1,), drop=(dim,)),
    samples=lambda rng: [
        ((rng.normal(size=(2, 3)),), {"dim": 1}),
        *each_of(rng.normal(size=(2, 3, 2)), rng.normal(size=(1,)), np.zeros((2, 0)), dim=0),
    ],
)
