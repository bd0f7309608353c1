"""Ops that move elements and compute nothing.

reshape, permute, expand, split and slice (slice.py) are views, as in torch: `put` says what the
base becomes when the view is written to; an expanded tensor cannot be.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gt import dtypes
from gt.errors import ArgumentError, ShapeError
from gt.ops import rules
from gt.ops.record import Op, Site, fill, op, ops
from gt.program import Spec, spec

Rng = np.random.Generator

# -- reshape, permute, expand ----------------------------------------------------------------


def _infer_reshape(x: Spec, *, shape: Any) -> Spec:
    rules.tensor("reshape", x)
    target = rules.shape("reshape", shape)
    if math.prod(target) != x.size:
        raise ShapeError(f"reshape: {x.shape} has {x.size} elements, {target} has {math.prod(target)}")
    return spec(target, x.dtype)


def _reshape_torch(torch: Any, site: Site, *, shape: Any) -> Any:
    target = tuple(shape)
    return lambda x: x.reshape(target)


reshape = op(
    "reshape",
    "The same elements in another shape.",
    infer=_infer_reshape,
    vjp=(lambda g, y, x, *, shape: ops.reshape(g, shape=x.shape),),
    kernels={"array": lambda xp, x, *, shape: xp.reshape(x, tuple(shape)), "torch": _reshape_torch},
    put=lambda base, new, k, *, shape: ops.reshape(new, shape=base.shape),
    aliases=True,
    samples=lambda rng: [
        ((rng.normal(size=(2, 6)),), {"shape": (3, 4)}),
        ((rng.normal(size=(2, 6)),), {"shape": (12,)}),
        ((np.array(1.5),), {"shape": (1, 1)}),
        ((np.array([1.5]),), {"shape": ()}),
        ((np.zeros((0, 3)),), {"shape": (5, 0)}),
    ],
)


def _infer_permute(x: Spec, *, dims: Any) -> Spec:
    rules.tensor("permute", x)
    order = rules.dims("permute", dims, x.ndim)
    if len(order) != x.ndim:
        raise ShapeError(f"permute: {x.shape} has {x.ndim} dimensions, {order} orders {len(order)}")
    return spec(tuple(x.shape[d] for d in order), x.dtype)


def _inverse(dims: Any) -> tuple[int, ...]:
    return tuple(sorted(range(len(dims)), key=lambda i: int(dims[i])))


def _permute_torch(torch: Any, site: Site, *, dims: Any) -> Any:
    order = tuple(dims)
    if order == (1, 0):
        return torch.t
    return lambda x: x.permute(order)


permute = op(
    "permute",
    "The dimensions in another order.",
    infer=_infer_permute,
    vjp=(lambda g, y, x, *, dims: ops.permute(g, dims=_inverse(dims)),),
    kernels={"array": lambda xp, x, *, dims: xp.transpose(x, tuple(dims)), "torch": _permute_torch},
    put=lambda base, new, k, *, dims: ops.permute(new, dims=_inverse(dims)),
    aliases=True,
    samples=lambda rng: [
        ((rng.normal(size=(2, 3)),), {"dims": (1, 0)}),
        ((rng.normal(size=(2, 3, 4)),), {"dims": (2, 0, 1)}),
        ((np.array(1.5),), {"dims": ()}),
        ((np.zeros((0, 3)),), {"dims": (1, 0)}),
    ],
)


def _infer_expand(x: Spec, *, shape: Any) -> Spec:
    rules.tensor("expand", x)
    target = rules.shape("expand", shape)
    rules.expands("expand", "a tensor", x.shape, target)
    return spec(target, x.dtype)


def _expand_torch(torch: Any, site: Site, *, shape: Any) -> Any:
    target = tuple(shape)
    return lambda x: x.expand(target)


expand = op(
    "expand",
    "x repeated along new dimensions and those of size 1.",
    infer=_infer_expand,
    vjp=(lambda g, y, x, *, shape: ops.sum_to(g, shape=x.shape),),
    kernels={"array": lambda xp, x, *, shape: xp.broadcast_to(x, tuple(shape)), "torch": _expand_torch},
    aliases=True,
    samples=lambda rng: [
        ((rng.normal(size=(3, 1)),), {"shape": (2, 3, 4)}),
        ((rng.normal(size=(3, 4)),), {"shape": (3, 4)}),
        ((np.array(1.5),), {"shape": (2,)}),
        ((rng.normal(size=(1, 2)),), {"shape": (0, 2)}),
    ],
)

# -- cat, split ------------------------------------------------------------------------------


def _infer_cat(*xs: Spec, dim: Any) -> Spec:
    if not xs:
        raise ArgumentError("cat: nothing to join")
    rules.tensor("cat", *xs)
    first = xs[0].shape
    dim = rules.dim("cat", dim, len(first))
    total = 0
    for x in xs:
        if x.ndim != len(first) or x.shape[:dim] != first[:dim] or x.shape[dim + 1 :] != first[dim + 1 :]:
            raise ShapeError(f"cat: {first} and {x.shape} differ outside dimension {dim}")
        total += x.shape[dim]
    return spec((*first[:dim], total, *first[dim + 1 :]), dtypes.promote(xs))


def _cat_dxs(g: Any, y: Any, *xs: Any, dim: int) -> tuple[Any, ...]:
    if len(xs) == 1:
        return (g,)
    return tuple(ops.split(g, sizes=tuple(x.shape[dim] for x in xs), dim=dim))


def _cat_torch(torch: Any, site: Site, *, dim: int) -> Any:
    f = torch.cat
    return lambda *xs: f(xs, dim)


cat = op(
    "cat",
    "Tensors joined along one dimension.",
    infer=_infer_cat,
    vjp=_cat_dxs,
    kernels={"array": lambda xp, *xs, dim: xp.concatenate(xs, axis=dim), "torch": _cat_torch},
    promote=True,
    samples=lambda rng: [
        ((rng.normal(size=(2, 3)), rng.normal(size=(1, 3))), {"dim": 0}),
        ((rng.normal(size=(2, 3)), rng.normal(size=(2, 0)), rng.normal(size=(2, 1))), {"dim": 1}),
        ((rng.normal(size=(2,)),), {"dim": 0}),
        ((rng.normal(size=(2,)), rng.integers(0, 3, size=(2,))), {"dim": 0}),
    ],
)


def _infer_split(x: Spec, *, sizes: Any, dim: Any) -> tuple[Spec, ...]:
    rules.tensor("split", x)
    dim = rules.dim("split", dim, x.ndim)
    pieces = rules.ints("split", "sizes", sizes)
    if not pieces or any(n < 0 for n in pieces) or sum(pieces) != x.shape[dim]:
        raise ShapeError(f"split: {x.shape} along dimension {dim}: sizes do not add up to {x.shape[dim]}")
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


split = op(
    "split",
    "x cut along one dimension into pieces of these sizes.",
    infer=_infer_split,
    vjp=(_split_dx,),
    kernels={"array": _split_array, "torch": _split_torch},
    put=_split_put,
    aliases=True,
    samples=lambda rng: [
        ((rng.normal(size=(2, 5)),), {"sizes": (2, 3), "dim": 1}),
        ((rng.normal(size=(4, 2)),), {"sizes": (1, 0, 3), "dim": 0}),
        ((rng.normal(size=(4,)),), {"sizes": (4,), "dim": 0}),
    ],
)

# -- flip, tril, triu ------------------------------------------------------------------------


def _infer_flip(x: Spec, *, dims: Any) -> Spec:
    rules.tensor("flip", x)
    rules.dims("flip", dims, x.ndim)
    return x


flip = op(
    "flip",
    "x with the order along these dimensions reversed.",
    infer=_infer_flip,
    vjp=(lambda g, y, x, *, dims: ops.flip(g, dims=dims),),
    kernels={
        "array": lambda xp, x, *, dims: xp.flip(x, axis=tuple(dims)),
        "torch": lambda torch, site, *, dims: lambda x: torch.flip(x, tuple(dims)),
    },
    aliases=True,  # numpy's is a view
    samples=lambda rng: [
        ((rng.normal(size=(2, 3)),), {"dims": (1,)}),
        ((rng.normal(size=(2, 3, 2)),), {"dims": (2, 0)}),
        ((np.array(1.5),), {"dims": ()}),
        ((np.zeros((0, 3)),), {"dims": (0,)}),
    ],
)


def _infer_triangle(name: str) -> Any:
    def infer(x: Spec, *, diagonal: Any) -> Spec:
        rules.tensor(name, x)
        rules.ints(name, "diagonal", (diagonal,))
        if abs(diagonal) >= 1 << 62:
            raise ArgumentError(f"{name}: diagonal {rules.shown(diagonal)} is out of reach")
        if x.ndim < 2:
            raise ShapeError(f"{name}: needs a matrix, not {x.shape}")
        return x

    return infer


def _triangle(name: str, doc: str) -> Op:
    def array(xp: Any, x: Any, *, diagonal: int) -> Any:
        below = xp.arange(x.shape[-1]) - xp.arange(x.shape[-2])[:, None]
        keep = below <= diagonal if name == "tril" else below >= diagonal
        return xp.where(keep, x, xp.zeros((), x.dtype))

    return op(
        name,
        doc,
        infer=_infer_triangle(name),
        vjp=(lambda g, y, x, *, diagonal: getattr(ops, name)(g, diagonal=diagonal),),
        kernels={"array": array, "torch": lambda torch, site, *, diagonal: lambda x: getattr(torch, name)(x, diagonal)},
        samples=lambda rng: [
            ((rng.normal(size=(3, 4)),), {"diagonal": 0}),
            ((rng.normal(size=(2, 3, 3)),), {"diagonal": -1}),
            ((rng.normal(size=(3, 3)),), {"diagonal": 9}),
            ((np.zeros((0, 3)),), {"diagonal": 1}),
            ((np.ones((3, 3), bool),), {"diagonal": 0}),
        ],
    )


tril = _triangle("tril", "The part of x on and below a diagonal, zeros elsewhere.")
triu = _triangle("triu", "The part of x on and above a diagonal, zeros elsewhere.")
