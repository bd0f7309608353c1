"""Ops that move elements and compute nothing.

reshape, permute, expand, unfold, diagonal, split (join.py) and slice (slice.py) are views, as in torch: `put` says
what the base becomes when the view is written to; an expanded tensor cannot be.
"""

from __future__ import annotations

import math
from functools import partial
from operator import methodcaller
from typing import Any

import numpy as np

from gt import dtypes
from gt.errors import ArgumentError, DimError, ShapeError
from gt.ops import rules
from gt.ops.record import Op, Rng, Sample, Site, each_of, fill, op, ops
from gt.ops.sharding import letters, linear_op, pointwise, pointwise_op, reshaping, same_shape, spelled, with_place
from gt.program import Spec, spec

# -- reshape, permute, expand, clone ---------------------------------------------------------


def _infer_reshape(x: Spec, *, shape: Any) -> Spec:
    rules.tensor("reshape", x)
    target = rules.shape("reshape", shape)
    if math.prod(target) != x.size:
        raise ShapeError(f"reshape: {x.shape} has {x.size} elements, but {target} has {math.prod(target)}")
    return spec(target, x.dtype)


reshape = op(
    "reshape",
    "The same elements in another shape.",
    infer=_infer_reshape,
    factors=lambda x, *, shape: reshaping(x.shape, shape),
    moves=True,
    local=same_shape,
    vjp=(lambda g, y, x, *, shape: ops.reshape(g, shape=x.shape),),
    kernels={
        "array": lambda xp, x, *, shape: xp.reshape(x, tuple(shape)),
        "torch": lambda torch, site, *, shape: methodcaller("reshape", tuple(shape)),
    },
    put=lambda base, new, k, *, shape: ops.reshape(new, shape=base.shape),
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
        raise ShapeError(f"permute: expected an order of {x.ndim} dimensions for shape {x.shape}, got {order}")
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
    factors=lambda x, *, dims: spelled(f"* -> {' '.join(letters(x.ndim)[d] for d in dims)}", x.ndim),
    moves=True,
    vjp=(lambda g, y, x, *, dims: ops.permute(g, dims=_inverse(dims)),),
    kernels={"array": lambda xp, x, *, dims: xp.transpose(x, tuple(dims)), "torch": _permute_torch},
    put=lambda base, new, k, *, dims: ops.permute(new, dims=_inverse(dims)),
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


def _expand_rule(x: Spec, *, shape: Any) -> str:
    names = letters(len(shape))
    kept = zip(names[len(shape) - x.ndim :], x.shape, shape[len(shape) - x.ndim :], strict=True)
    return f"{' '.join(a if n == m != 1 else '1' for a, n, m in kept)} -> {' '.join(names)}"


expand = op(
    "expand",
    "x repeated along new dimensions and those of size 1.",
    infer=_infer_expand,
    factors=_expand_rule,
    moves=True,
    local=same_shape,
    vjp=(lambda g, y, x, *, shape: ops.sum_to(g, shape=x.shape),),
    kernels={
        "array": lambda xp, x, *, shape: xp.broadcast_to(x, tuple(shape)),
        "torch": lambda torch, site, *, shape: methodcaller("expand", tuple(shape)),
    },
    aliases=True,
    samples=lambda rng: [
        ((rng.normal(size=(3, 1)),), {"shape": (2, 3, 4)}),
        ((rng.normal(size=(3, 4)),), {"shape": (3, 4)}),
        ((np.array(1.5),), {"shape": (2,)}),
        ((rng.normal(size=(1, 2)),), {"shape": (0, 2)}),
    ],
)

clone = pointwise_op(
    "clone",
    "A copy of x.",
    infer=rules.unary("clone"),
    moves=True,
    vjp=(lambda g, y, x: g,),
    kernels={"array": lambda xp, x: xp.array(x), "torch": lambda torch, site: lambda x: x.clone()},
    samples=lambda rng: each_of(rng.normal(size=(2, 3)), rng.integers(0, 9, size=(3,)), np.zeros((0, 3), bool)),
)

# -- unfold, bitcast -------------------------------------------------------------------------


def _infer_unfold(x: Spec, *, dim: Any, size: Any, step: Any) -> Spec:
    rules.tensor("unfold", x)
    dim = rules.dim("unfold", dim, x.ndim)
    size = rules.size("unfold", "size", size)
    if size > x.shape[dim]:
        raise ShapeError(f"unfold: a window of {size} is larger than dimension {dim} of size {x.shape[dim]}")
    if type(step) is not int or not 0 < step < 1 << 62:
        raise ArgumentError(f"unfold: step must be an int > 0, got {rules.shown(step)}")
    return spec((*x.shape[:dim], (x.shape[dim] - size) // step + 1, *x.shape[dim + 1 :], size), x.dtype)


def _unfold_array(xp: Any, x: Any, *, dim: int, size: int, step: int) -> Any:
    starts = xp.arange(0, x.shape[dim] - size + 1, step)
    windows = xp.take(x, starts[:, None] + xp.arange(size), axis=dim)  # the window's own dimension is dim + 1
    return xp.moveaxis(windows, dim + 1, -1)


def _windows(like: Any, shape: tuple[int, ...], dim: int, size: int, step: int) -> Any:
    """The positions in the base of the elements of each window: (windows, size)."""
    n = (shape[dim] - size) // step + 1
    starts, steps = (like._apply(ops.arange, (0, by), {"n": k, "dtype": "int64"}) for by, k in ((step, n), (1, size)))
    return ops.add(ops.reshape(starts, shape=(n, 1)), steps)


def _beside(x: Any, dim: int) -> Any:
    """The last dimension moved to the place after `dim`, where an index of two dimensions puts it."""
    order = list(range(x.ndim - 1))
    order.insert(dim + 1, x.ndim - 1)
    return ops.permute(x, dims=tuple(order))


def _unfold_dx(g: Any, y: Any, x: Any, *, dim: int, size: int, step: int) -> Any:
    return ops.index_dx(_beside(g, dim), _windows(g, x.shape, dim, size, step), shape=x.shape, dims=(dim,))


def _unfold_put(base: Any, new: Any, k: int, *, dim: int, size: int, step: int) -> Any:
    index = _windows(new, base.shape, dim, size, step)
    return ops.index_put(base, _beside(new, dim), index, dims=(dim,), accumulate=False)


def _unfold_rule(x: Spec, dim: int) -> str:
    before, after = (with_place(letters(x.ndim, "vw"), dim, mine) for mine in ("v~", "v"))
    return f"{before} -> {after} !w"


unfold = op(
    "unfold",
    "The windows of one dimension, `step` apart; the position in the window is a new last dimension.",
    infer=_infer_unfold,
    factors=lambda x, *, dim, **attrs: _unfold_rule(x, dim),
    window=lambda x, *, dim, size, step: {"v": lambda operand, lo, hi: (lo * step, (hi - 1) * step + size, "clip")},
    moves=True,
    vjp=(_unfold_dx,),
    kernels={
        "array": _unfold_array,
        "torch": lambda torch, site, *, dim, size, step: lambda x: x.unfold(dim, size, step),
    },
    put=_unfold_put,
    samples=lambda rng: [
        ((rng.normal(size=(2, 6)),), {"dim": 1, "size": 2, "step": 2}),
        ((rng.normal(size=(5, 2)),), {"dim": 0, "size": 2, "step": 3}),
        ((rng.normal(size=(4,)),), {"dim": 0, "size": 4, "step": 1}),
        ((np.zeros((0, 3)),), {"dim": 1, "size": 2, "step": 2}),
    ],
)


def _infer_bitcast(x: Spec, *, dtype: Any) -> Spec:
    rules.tensor("bitcast", x)
    to = rules.dtype("bitcast", dtype)
    if to.itemsize == x.dtype.itemsize:
        return spec(x.shape, to)
    nbytes = x.shape[-1] * x.dtype.itemsize if x.ndim else 0
    if not x.ndim or nbytes % to.itemsize:
        raise ShapeError(f"bitcast: {x.dtype.name} of shape {x.shape} cannot be read as {to.name}")
    return spec((*x.shape[:-1], nbytes // to.itemsize), to)


def _bitcast_torch(torch: Any, site: Site, *, dtype: str) -> Any:
    kind, shape = getattr(torch, dtype), site.results[0].shape
    # torch wants the last dimension in order, and cannot see empty tensors as anything.
    return lambda x: x.contiguous().view(kind) if x.numel() else torch.empty(shape, dtype=kind, device=x.device)


def _bitcast_array(xp: Any, x: Any, *, dtype: str) -> Any:
    kind = dtypes.BY_NAME[dtype].numpy
    if x.ndim == 0:
        return x.reshape(1).view(kind).reshape(())
    shape = (*x.shape[:-1], x.shape[-1] * x.dtype.itemsize // kind.itemsize)
    return x.copy().view(kind) if x.size else xp.zeros(shape, kind)


def _bitcast_rule(x: Spec, *, dtype: str) -> str:
    if dtypes.BY_NAME[dtype].itemsize == x.dtype.itemsize:
        return pointwise(x)
    return spelled("* ... -> * ...", x.ndim - 1)


bitcast = op(
    "bitcast",
    "The same bytes as another dtype.",
    infer=_infer_bitcast,
    factors=_bitcast_rule,
    vjp=None,
    kernels={"array": _bitcast_array, "torch": _bitcast_torch},
    aliases=True,
    samples=lambda rng: [
        ((rng.integers(0, 99, size=(2, 4)),), {"dtype": "int32"}),
        ((rng.integers(0, 99, size=(2, 4), dtype=np.int16),), {"dtype": "int64"}),
        ((np.array(3, np.int32),), {"dtype": "float32"}),
        ((np.zeros((0, 4), np.int32),), {"dtype": "uint8"}),
    ],
)

# -- roll, flip, tril, triu ------------------------------------------------------------------


def _infer_roll(x: Spec, *, shifts: Any, dims: Any) -> Spec:
    rules.tensor("roll", x)
    places = rules.dims("roll", dims, x.ndim)
    if any(abs(n) >= 1 << 62 for n in rules.ints("roll", "shifts", shifts, len(places))):
        raise ArgumentError(f"roll: shifts must be ints of less than 64 bits, got {rules.shown(shifts)}")
    return x


def _shifted_rule(x: Spec, dims: Any) -> str:
    """The named dimensions are windows of the result's."""
    names = letters(x.ndim)
    return f"{' '.join(a + '~' if d in dims else a for d, a in enumerate(names))} -> {' '.join(names)}"


def _roll_window(x: Spec, *, shifts: Any, dims: Any) -> dict[str, Any]:
    def along(by: int) -> Any:
        return lambda operand, lo, hi: (lo - by, hi - by, "wrap")

    return {letters(x.ndim)[d]: along(by) for by, d in zip(shifts, dims, strict=True)}


def _roll_local(shard: Any, x: Any, *, shifts: Any, dims: Any) -> Any:
    names = letters(x.ndim)
    left = [(by, d) for by, d in zip(shifts, dims, strict=True) if not shard.split(names[d])]
    return shard.again(x, shifts=tuple(by for by, _ in left), dims=tuple(d for _, d in left))


def _mirrored(n: int) -> Any:
    return lambda operand, lo, hi: (n - hi, n - lo, "clip")


roll = op(
    "roll",
    "x shifted along dims; elements shifted beyond the end come back at the start.",
    infer=_infer_roll,
    factors=lambda x, *, dims, **attrs: _shifted_rule(x, dims),
    moves=True,
    window=_roll_window,
    local=_roll_local,
    vjp=(lambda g, y, x, *, shifts, dims: ops.roll(g, shifts=tuple(-n for n in shifts), dims=dims),),
    kernels={
        "array": lambda xp, x, *, shifts, dims: xp.roll(x, tuple(shifts), axis=tuple(dims)),
        "torch": lambda torch, site, *, shifts, dims: (
            (lambda x: torch.roll(x, tuple(shifts), tuple(dims))) if dims else torch.clone  # which roll refuses
        ),
    },
    samples=lambda rng: [
        ((rng.normal(size=(2, 3)),), {"shifts": (1,), "dims": (1,)}),
        ((rng.normal(size=(2, 3, 2)),), {"shifts": (-4, 1), "dims": (1, 0)}),
        ((np.zeros((0, 3)),), {"shifts": (1,), "dims": (0,)}),
        ((rng.normal(size=(3,)),), {"shifts": (0,), "dims": (0,)}),
        ((rng.normal(size=(2, 3)),), {"shifts": (), "dims": ()}),
    ],
)


def _infer_flip(x: Spec, *, dims: Any) -> Spec:
    rules.tensor("flip", x)
    rules.dims("flip", dims, x.ndim)
    return x


flip = op(
    "flip",
    "x with the order of elements reversed along dims.",
    infer=_infer_flip,
    factors=lambda x, *, dims: _shifted_rule(x, dims),
    moves=True,
    window=lambda x, *, dims: {letters(x.ndim)[d]: _mirrored(x.shape[d]) for d in dims},
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


def _infer_triangle(name: str, x: Spec, *, diagonal: Any) -> Spec:
    rules.tensor(name, x)
    rules.ints(name, "diagonal", (diagonal,))
    if abs(diagonal) >= 1 << 62:
        raise ArgumentError(f"{name}: diagonal must be an int of less than 64 bits, got {rules.shown(diagonal)}")
    if x.ndim < 2:
        raise ShapeError(f"{name}: expected a matrix, got shape {x.shape}")
    return x


def _triangle(name: str, doc: str) -> Op:
    def array(xp: Any, x: Any, *, diagonal: int) -> Any:
        below = xp.arange(x.shape[-1]) - xp.arange(x.shape[-2])[:, None]
        keep = below <= diagonal if name == "tril" else below >= diagonal
        return xp.where(keep, x, xp.zeros((), x.dtype))

    return linear_op(
        name,
        doc,
        infer=partial(_infer_triangle, name),
        factors=lambda x, *, diagonal: spelled("* r@ c@ -> * r c", x.ndim - 2, "rc"),
        local=lambda shard, x, *, diagonal: shard.again(x, diagonal=diagonal + shard.start("r") - shard.start("c")),
        flops=0,
        vjp=(lambda g, y, x, *, diagonal: getattr(ops, name)(g, diagonal=diagonal),),
        kernels={"array": array},
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

# -- diagonal, diagonal_scatter --------------------------------------------------------------


def _infer_diagonal(name: str, x: Spec, offset: Any, dim1: Any, dim2: Any) -> Spec:
    rules.tensor(name, x)
    rules.ints(name, "offset", (offset,))
    if abs(offset) >= 1 << 62:
        raise ArgumentError(f"{name}: offset must be an int of less than 64 bits, got {rules.shown(offset)}")
    a, b = rules.dim(name, dim1, x.ndim), rules.dim(name, dim2, x.ndim)
    if a == b:
        raise DimError(f"{name}: dim1 and dim2 are both {a}; a diagonal needs two dimensions")
    rows, columns = x.shape[a], x.shape[b]
    length = max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))
    return spec((*(n for d, n in enumerate(x.shape) if d not in (a, b)), length), x.dtype)


def _infer_diagonal_scatter(base: Spec, src: Spec, *, offset: Any, dim1: Any, dim2: Any) -> Spec:
    rules.tensor("diagonal_scatter", base, src)
    rules.same_dtype("diagonal_scatter", base, src)
    there = _infer_diagonal("diagonal_scatter", base, offset, dim1, dim2)
    if there.shape != src.shape:
        raise ShapeError(f"diagonal_scatter: src has shape {src.shape}, the diagonal has {there.shape}")
    return base


def _diagonal_scatter_array(xp: Any, base: Any, src: Any, *, offset: int, dim1: int, dim2: int) -> Any:
    last = xp.moveaxis(base, (dim1, dim2), (-2, -1))
    if not src.shape[-1]:
        return base + xp.zeros((), base.dtype)
    rows, columns = np.arange(last.shape[-2]), np.arange(last.shape[-1])
    on = rows[:, None] + offset == columns
    place = np.clip(rows - max(0, -offset), 0, src.shape[-1] - 1)  # of each row in the diagonal
    return xp.moveaxis(xp.where(on, src[..., place][..., None], last), (-2, -1), (dim1, dim2))


def _diagonal_samples(rng: Rng) -> list[Sample]:
    return [
        ((rng.normal(size=(3, 4)),), {"offset": 0, "dim1": 0, "dim2": 1}),
        ((rng.normal(size=(3, 4)),), {"offset": 2, "dim1": 0, "dim2": 1}),
        ((rng.normal(size=(4, 2, 3)),), {"offset": -1, "dim1": 2, "dim2": 0}),
        ((rng.normal(size=(2, 3)),), {"offset": 7, "dim1": 0, "dim2": 1}),
        ((np.zeros((0, 3)),), {"offset": 1, "dim1": 0, "dim2": 1}),
        ((rng.integers(0, 5, size=(3, 3)),), {"offset": 0, "dim1": 1, "dim2": 0}),
    ]


def _diagonal_scatter_samples(rng: Rng) -> list[Sample]:
    made: list[Sample] = []
    for (x,), attrs in _diagonal_samples(rng):
        made.append(((x, np.diagonal(x, attrs["offset"], attrs["dim1"], attrs["dim2"])[::-1] * 2), attrs))
    return made


def _diagonal_rule(text: str, x: Spec, dim1: int, dim2: int) -> str:
    """A rule of the factors of the tensor, the whole, and of its diagonal."""
    names = letters(x.ndim)
    rest = [a for d, a in enumerate(names) if d not in (dim1, dim2)]
    whole = " ".join(a if a in rest else "!" + a for a in names)
    return text.format(whole=whole, diagonal=" ".join([*rest, "!o"]))


diagonal = op(
    "diagonal",
    "A diagonal of two dimensions, as a new last dimension.",
    infer=lambda x, *, offset, dim1, dim2: _infer_diagonal("diagonal", x, offset, dim1, dim2),
    factors=lambda x, *, dim1, dim2, **attrs: _diagonal_rule("{whole} -> {diagonal}", x, dim1, dim2),
    moves=True,
    vjp=(lambda g, y, x, **attrs: ops.diagonal_scatter(fill(g, 0.0, x.shape, g.dtype), g, **attrs),),
    kernels={"array": lambda xp, x, *, offset, dim1, dim2: xp.diagonal(x, offset, dim1, dim2)},
    put=lambda base, new, k, **attrs: ops.diagonal_scatter(base, new, **attrs),
    samples=_diagonal_samples,
)

diagonal_scatter = op(
    "diagonal_scatter",
    "The tensor with a diagonal of two dimensions replaced.",
    infer=_infer_diagonal_scatter,
    factors=lambda base, src, *, dim1, dim2, **attrs: _diagonal_rule(
        "{whole}, {diagonal} -> {whole}", base, dim1, dim2
    ),
    moves=True,
    vjp=(
        lambda g, y, base, src, **attrs: ops.diagonal_scatter(g, fill(g, 0.0, src.shape, g.dtype), **attrs),
        lambda g, y, base, src, **attrs: ops.diagonal(g, **attrs),
    ),
    kernels={"array": _diagonal_scatter_array},
    samples=_diagonal_scatter_samples,
)
