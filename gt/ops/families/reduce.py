"""Ops that take dimensions away: sums and their kin.

`dims` names the dimensions to reduce; with none the op acts on each element by itself.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from gt import dtypes
from gt.dtypes import DType
from gt.errors import ArgumentError, DimError, DTypeError, ShapeError
from gt.ops import rules
from gt.ops.record import FLOAT32, FLOAT32_ON_CUDA, Op, Rng, Sample, Site, conj, fill, op, ops
from gt.ops.sharding import letters, linear_op, reducing, same_shape
from gt.program import Spec, spec

Dims = tuple[int, ...]

# -- shapes ----------------------------------------------------------------------------------


def reduced(shape: Dims, dims: Dims, keepdim: bool) -> Dims:
    gone = set(dims)
    if keepdim:
        return tuple(1 if i in gone else n for i, n in enumerate(shape))
    return tuple(n for i, n in enumerate(shape) if i not in gone)


def count(shape: Dims, dims: Dims) -> int:
    return math.prod(shape[d] for d in dims)


def _infer(name: str, x: Spec, dims: Any, keepdim: Any, dtype: DType) -> Spec:
    rules.tensor(name, x)
    dims = rules.dims(name, dims, x.ndim)
    return spec(reduced(x.shape, dims, rules.flag(name, "keepdim", keepdim)), dtype)


def infer_along(name: str, x: Spec, *, dim: Any) -> Spec:
    """The inference of an op on floats along one dimension, whose result is like its operand."""
    rules.floats(name, x)
    rules.dim(name, dim, x.ndim)
    return x


def restore(x: Any, shape: Dims, dims: Dims, keepdim: bool) -> Any:
    """A reduced value with its dimensions back, of size 1."""
    return x if keepdim or not dims else ops.reshape(x, shape=reduced(shape, tuple(dims), True))


def _spread(g: Any, x: Any, dims: Dims, keepdim: bool) -> Any:
    """A gradient of the result for every element that went into it."""
    return ops.expand(restore(g, x.shape, dims, keepdim), shape=x.shape)


# -- kernels ---------------------------------------------------------------------------------


def _torch(name: str, torch: Any, site: Site, *, dims: Any, keepdim: bool) -> Any:
    f = getattr(torch, name)
    dims = tuple(dims)
    if not dims:  # torch reduces all of them then
        return lambda x: f(x.unsqueeze(-1), -1)
    if name in ("sum", "mean") and len(dims) == site.specs[0].ndim and not keepdim:
        return f
    if name == "prod":  # torch multiplies along one dimension at a time
        return lambda x: _prod_torch(torch, x, dims, keepdim)
    return lambda x: f(x, dims, keepdim)


def _prod_torch(torch: Any, x: Any, dims: Dims, keepdim: bool) -> Any:
    for d in sorted(dims, reverse=True):
        x = torch.prod(x, d, keepdim)
    return x


def _array(f: Any, xp: Any, x: Any, *, dims: Any, keepdim: bool) -> Any:
    return f(xp, x, tuple(dims), keepdim)


# -- samples ---------------------------------------------------------------------------------


def _samples(rng: Rng, empty: bool = True, integers: bool = True) -> list[Sample]:
    x = rng.normal(size=(2, 3, 4))
    cases: list[Sample] = [
        ((x,), {"dims": (0, 1, 2), "keepdim": False}),
        ((x,), {"dims": (1,), "keepdim": True}),
        ((x,), {"dims": (2, 0), "keepdim": False}),
        ((x,), {"dims": (), "keepdim": False}),
        ((np.array(1.5),), {"dims": (), "keepdim": False}),
        ((np.zeros((0, 3)),), {"dims": (1,), "keepdim": False}),
    ]
    if empty:
        cases.append(((np.zeros((0, 3)),), {"dims": (0,), "keepdim": True}))
    if integers:
        cases.append(((rng.integers(-3, 4, size=(2, 3), dtype=np.int32),), {"dims": (0,), "keepdim": False}))
    return cases


def _complex_samples(rng: Rng) -> list[Sample]:
    x = rng.normal(size=(2, 3)) + 1j * rng.normal(size=(2, 3))
    return [((x,), {"dims": (1,), "keepdim": False}), ((x,), {"dims": (0, 1), "keepdim": True})]


# -- sums ------------------------------------------------------------------------------------


def _infer_sum(name: str, x: Spec, *, dims: Any, keepdim: Any) -> Spec:
    return _infer(name, x, dims, keepdim, x.dtype if x.dtype.is_differentiable else dtypes.int64)


def wide(x: Any) -> Any:
    """Integers are added up as int64."""
    return x.astype("int64") if x.dtype.kind in "biu" else x


sum_ = linear_op(
    "sum",
    "The sum over dims; integers give int64.",
    infer=partial(_infer_sum, "sum"),
    factors=reducing("sum"),
    vjp=(lambda g, y, x, *, dims, keepdim: _spread(g, x, dims, keepdim),),
    kernels={
        "array": partial(_array, lambda xp, x, dims, keepdim: xp.sum(wide(x), axis=dims, keepdims=keepdim)),
        "torch": partial(_torch, "sum"),
    },
    samples=lambda rng: [*_samples(rng), *_complex_samples(rng)],
    autocast=FLOAT32_ON_CUDA,
)


def _prod_dx(g: Any, y: Any, x: Any, *, dims: Any, keepdim: bool) -> Any:
    """The product of the others, for every element: of those before it times those after it. Nothing is
    divided, so it holds at zeros, and so do its own gradients."""
    dims, n = tuple(dims), count(x.shape, dims)
    if n == 0:
        return _spread(g, x, dims, keepdim)
    order = (*(d for d in range(x.ndim) if d not in dims), *dims)
    moved = tuple(x.shape[d] for d in order)
    rows = ops.reshape(ops.permute(conj(x), dims=order), shape=(*moved[: x.ndim - len(dims)], n))
    last = rows.ndim - 1
    one = fill(g, 1.0, (*rows.shape[:-1], 1), x.dtype)
    cut = {"dims": (last,), "lengths": (n - 1,), "steps": (1,), "drop": ()}
    before = ops.cumprod(ops.cat(one, ops.slice(rows, 0, **cut), dim=last), dim=last)
    after = ops.flip(ops.cat(ops.slice(rows, 1, **cut), one, dim=last), dims=(last,))
    after = ops.flip(ops.cumprod(after, dim=last), dims=(last,))
    back = tuple(sorted(range(x.ndim), key=order.__getitem__))
    others = ops.permute(ops.reshape(before * after, shape=moved), dims=back)
    return restore(g, x.shape, dims, keepdim) * others


prod = op(
    "prod",
    "The product over dims; integers give int64.",
    infer=partial(_infer_sum, "prod"),
    factors=reducing("whole"),
    vjp=(_prod_dx,),
    kernels={
        "array": partial(_array, lambda xp, x, dims, keepdim: xp.prod(wide(x), axis=dims, keepdims=keepdim)),
        "torch": partial(_torch, "prod"),
    },
    samples=lambda rng: [
        *_samples(rng),
        *_complex_samples(rng),
        ((np.array([[0.0, 2.0, 3.0], [0.0, 0.0, 3.0]]),), {"dims": (1,), "keepdim": False}),
    ],
    autocast=FLOAT32,
)


def floating_or_complex(name: str, x: Spec) -> None:
    if not x.dtype.is_complex:
        rules.floating(name, x)


def _infer_mean(x: Spec, *, dims: Any, keepdim: Any) -> Spec:
    rules.tensor("mean", x)
    floating_or_complex("mean", x)
    return _infer("mean", x, dims, keepdim, x.dtype)


def _mean_local(shard: Any, x: Any, *, dims: Any, keepdim: bool) -> Any:
    names, shape = letters(x.ndim), shard.specs[0].shape
    if not any(shard.split(names[d]) for d in dims):
        return shard.again(x, dims=dims, keepdim=keepdim)
    # By the number of all elements: the mean of means is the mean only where shards are even.
    total = ops.sum(x, dims=dims, keepdim=keepdim)
    return total * _inverse(count(shape, dims), 1.0)  # of no elements: 0 * inf is the NaN that their mean is


mean = linear_op(
    "mean",
    "The mean over dims.",
    infer=_infer_mean,
    factors=reducing("sum"),
    local=_mean_local,
    vjp=(lambda g, y, x, *, dims, keepdim: _spread(g * (1.0 / max(count(x.shape, dims), 1)), x, dims, keepdim),),
    kernels={
        "array": partial(
            _array,
            lambda xp, x, dims, keepdim: xp.divide(
                xp.sum(x, axis=dims, keepdims=keepdim), xp.asarray(count(x.shape, dims), x.dtype)
            ),
        ),
        "torch": partial(_torch, "mean"),
    },
    samples=lambda rng: [*_samples(rng, integers=False), *_complex_samples(rng)],
    flops=lambda x, *, dims, **attrs: x.size + x.size // max(count(x.shape, dims), 1),
)


def _infer_var(name: str, x: Spec, *, dims: Any, correction: Any, keepdim: Any) -> Spec:
    rules.tensor(name, x)
    floating_or_complex(name, x)
    if type(correction) not in (int, float):
        raise ArgumentError(f"{name}: correction must be a number, got {rules.shown(correction)}")
    return _infer(name, x, dims, keepdim, x.dtype.to_real())


def _freedom(x: Any, dims: Any, correction: float) -> float:
    return max(float(count(x.shape, dims) - correction), 0.0)


def _inverse(freedom: float, scale: float) -> float:
    return scale / freedom if freedom else math.inf


def _var(x: Any, *, dims: Any, correction: float, keepdim: bool) -> Any:
    d = x - ops.mean(x, dims=dims, keepdim=True)
    squares = ops.real(d * ops.conj(d)) if x.dtype.is_complex else d * d
    return ops.sum(squares, dims=dims, keepdim=keepdim) * _inverse(_freedom(x, dims, correction), 1.0)


def _var_dx(g: Any, y: Any, x: Any, *, dims: Any, correction: float, keepdim: bool) -> Any:
    g = restore(g, x.shape, dims, keepdim) * _inverse(_freedom(x, dims, correction), 2.0)
    return g * (x - ops.mean(x, dims=dims, keepdim=True))


def _std_dx(g: Any, y: Any, x: Any, **attrs: Any) -> Any:
    still = ops.eq(y, 0)  # nothing varies: no gradient, rather than nan
    return _var_dx(ops.where(still, 0.0, g / ops.where(still, 1.0, y * 2.0)), y, x, **attrs)


def _var_torch(name: str, torch: Any, site: Site, *, dims: Any, correction: float, keepdim: bool) -> Any:
    dims = tuple(dims)
    x = site.specs[0]
    f = getattr(torch, name)
    if not x.size or not _freedom(x, dims, correction):  # torch would print a warning with its nan
        mean, total = partial(_torch, "mean"), partial(_torch, "sum")
        center = mean(torch, site, dims=dims, keepdim=True)
        add_up = total(torch, site, dims=dims, keepdim=keepdim)
        last = torch.sqrt if name == "std" else torch.clone
        return lambda x: last(add_up((x - center(x)).abs().square()) * math.inf)
    if not dims:
        return lambda x: f(x.unsqueeze(-1), -1, correction=correction)
    return lambda x: f(x, dims, correction=correction, keepdim=keepdim)


def _spreads(rng: Rng) -> list[Sample]:
    samples = [*_samples(rng, integers=False), *_complex_samples(rng)]
    return [(args, {**attrs, "correction": c}) for args, attrs in samples for c in (0, 1)]


def _variation(name: str, doc: str, dx: Any, compose: Any) -> Op:
    return op(
        name,
        doc,
        infer=partial(_infer_var, name),
        factors=reducing("whole"),
        vjp=(dx,),
        compose=compose,
        kernels={"torch": partial(_var_torch, name)},
        samples=_spreads,
    )


var = _variation(
    "var",
    "The variance over dims: the sum of squared deviations, divided by their number minus the correction.",
    _var_dx,
    _var,
)
std = _variation(
    "std", "The square root of the variance over dims.", _std_dx, lambda x, **attrs: ops.sqrt(ops.var(x, **attrs))
)

# -- extremes --------------------------------------------------------------------------------


def some(name: str, x: Spec, dims: Any) -> None:
    """Refuse to choose among complex numbers, or among none."""
    if x.dtype.is_complex:
        raise DTypeError(f"{name}: complex numbers are not ordered; use x.abs()")
    if any(x.shape[d] == 0 for d in dims):
        raise DimError(f"{name}: expected at least one element, got shape {x.shape}")


def _infer_extreme(name: str, x: Spec, *, dims: Any, keepdim: Any) -> Spec:
    result = _infer(name, x, dims, keepdim, x.dtype)
    some(name, x, dims)
    return result


def _extreme_dx(g: Any, y: Any, x: Any, *, dims: Any, keepdim: bool) -> Any:
    """Shared evenly among those that tie."""
    winners = ops.eq(x, restore(y, x.shape, dims, keepdim))
    count = ops.sum(ops.cast(winners, dtype=g.dtype.name), dims=dims, keepdim=True)
    return ops.where(winners, restore(g, x.shape, dims, keepdim) / count, 0.0)


def _extreme(name: str, doc: str, kind: str) -> Op:
    return op(
        name,
        doc,
        infer=partial(_infer_extreme, name),
        factors=reducing(kind),
        keeps=(0,),
        vjp=(_extreme_dx,),
        kernels={
            "array": partial(_array, lambda xp, x, d, k: getattr(xp, kind)(x, axis=d, keepdims=k)),
            "torch": partial(_torch, name),
        },
        samples=lambda rng: [
            *_samples(rng, empty=False),
            ((np.array([[1.0, np.nan], [2.0, 3.0]]),), {"dims": (1,), "keepdim": False}),
            ((np.array([True, False]),), {"dims": (0,), "keepdim": False}),
        ],
    )


amax = _extreme("amax", "The largest element over dims; nan if one of them is nan.", "max")
amin = _extreme("amin", "The smallest element over dims; nan if one of them is nan.", "min")


def _infer_place(name: str, x: Spec, *, dim: Any, keepdim: Any) -> Spec:
    rules.tensor(name, x)
    rules.not_bool(name, x.dtype)
    dims = tuple(range(x.ndim)) if dim is None else (rules.dim(name, dim, x.ndim),)
    some(name, x, dims)
    return spec(reduced(x.shape, dims, rules.flag(name, "keepdim", keepdim)), dtypes.int64)


def _place_parts(extreme: Op, x: Any, *, dim: int | None, keepdim: bool) -> Any:
    """The first place of those that have the extreme, or are nan."""
    dims = tuple(range(x.ndim)) if dim is None else (dim,)
    hit = ops.logical_or(ops.eq(x, extreme(x, dims=dims, keepdim=True)), ops.isnan(x))
    places, step = None, 1
    for d in reversed(dims):
        n = x.shape[d]
        mine = x._apply(ops.arange, (0, step), {"n": n, "dtype": "int64"})
        mine = ops.reshape(mine, shape=tuple(n if i == d else 1 for i in range(x.ndim)))
        places, step = mine if places is None else places + mine, step * n
    if places is None:  # no dimension, one element
        return ops.cast(x * 0, dtype="int64")
    return ops.amin(ops.where(hit, places, step), dims=dims, keepdim=keepdim)


def _place(name: str, doc: str) -> Op:
    return op(
        name,
        doc,
        infer=partial(_infer_place, name),
        factors=lambda x, *, dim, keepdim: reducing("whole")(
            x, dims=range(x.ndim) if dim is None else (dim,), keepdim=keepdim
        ),
        parts=lambda x, **attrs: _place_parts(ops.amax if name == "argmax" else ops.amin, x, **attrs),
        vjp=None,
        ranges=lambda x, *, dim, keepdim: {0: x.size if dim is None else x.shape[dim] if x.ndim else 1},
        kernels={"array": lambda xp, x, *, dim, keepdim: getattr(xp, name)(x, axis=dim, keepdims=keepdim)},
        samples=lambda rng: [
            ((rng.normal(size=(3, 4)),), {"dim": 1, "keepdim": False}),
            ((rng.normal(size=(3, 4)),), {"dim": 0, "keepdim": True}),
            ((rng.normal(size=(3, 4)),), {"dim": None, "keepdim": False}),
            ((rng.permutation(12).reshape(3, 4),), {"dim": None, "keepdim": True}),
            ((np.array([[1.0, np.nan, 2.0], [3.0, 4.0, np.nan]]),), {"dim": 1, "keepdim": False}),
            ((np.array(1.5),), {"dim": None, "keepdim": False}),
            ((np.zeros((0, 3)),), {"dim": 1, "keepdim": False}),
        ],
    )


argmax = _place("argmax", "The index of the largest element along dim, or with dim=None in the flattened tensor.")
argmin = _place("argmin", "The index of the smallest element along dim, or with dim=None in the flattened tensor.")

# -- logic -----------------------------------------------------------------------------------


def _infer_logic(name: str, x: Spec, *, dims: Any, keepdim: Any) -> Spec:
    # uint8 was torch's bool once, and still is here.
    return _infer(name, x, dims, keepdim, dtypes.uint8 if x.dtype is dtypes.uint8 else dtypes.bool_)


def _logic(name: str, doc: str) -> Op:
    return op(
        name,
        doc,
        infer=partial(_infer_logic, name),
        factors=reducing("max" if name == "any" else "min"),
        vjp=None,
        kernels={
            "array": partial(
                _array, lambda xp, x, dims, keepdim: getattr(xp, name)(x != 0, axis=dims, keepdims=keepdim)
            ),
            "torch": partial(_torch, name),
        },
        samples=lambda rng: [
            *_samples(rng),
            ((rng.integers(0, 2, size=(3, 4)).astype(bool),), {"dims": (1,), "keepdim": False}),
            ((rng.integers(0, 2, size=(3, 4)).astype(np.uint8),), {"dims": (0, 1), "keepdim": True}),
        ],
    )


any_ = _logic("any", "Whether at least one element over dims is not zero.")
all_ = _logic("all", "Whether all elements over dims are not zero.")

# -- sum_to: the inverse of broadcasting, by which the gradient of a broadcast operand is summed


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
