"""Order: sorting, the k largest, choosing one element along a dimension, and finding places in sorted rows.

What chooses elements also says where they are: values and indices. A gradient goes to the elements that
were chosen, and to no others. Where several are equal, which of them is named is the engine's choice,
except for sort, which keeps their order. A nan is larger than everything.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from gt import dtypes
from gt.errors import ArgumentError, ShapeError
from gt.ops import rules
from gt.ops.families.reduce import reduced, restore, some
from gt.ops.record import Op, Rng, Site, each_of, op, ops
from gt.ops.sharding import along, beside, spelled
from gt.program import Spec, spec

# -- sort and topk ---------------------------------------------------------------------------


def _argsort(xp: Any, x: Any, dim: int) -> Any:
    return xp.argsort(x, axis=dim, kind="stable") if xp is np else xp.argsort(x, axis=dim, stable=True)


def _order(xp: Any, x: Any, dim: int, descending: bool) -> Any:
    """Where the elements are, in order; equal ones in the order they had."""
    if not descending:
        return _argsort(xp, x, dim)
    return x.shape[dim] - 1 - xp.flip(_argsort(xp, xp.flip(x, axis=dim), dim), axis=dim)


def _infer_sort(x: Spec, *, dim: Any, descending: Any, stable: Any) -> tuple[Spec, Spec]:
    rules.tensor("sort", x)
    rules.dim("sort", dim, x.ndim)
    rules.flag("sort", "descending", descending)
    rules.flag("sort", "stable", stable)
    some("sort", x, ())
    return x, spec(x.shape, dtypes.int64)


def _sort_array(xp: Any, x: Any, *, dim: int, descending: bool, stable: bool) -> Any:
    order = _order(xp, x, dim, descending)
    return xp.take_along_axis(x, order, axis=dim), order


def _taken_dx(g: Any, y: Any, x: Any, *, dim: int, **attrs: Any) -> Any:
    return ops.gather_dx(g[0], y[1], shape=x.shape, dim=dim)


def _rows(rng: Rng) -> list[tuple[Any, int]]:
    """Nothing twice: which of several equal elements is named is not the same everywhere."""
    return [
        (rng.normal(size=(3, 5)), 1),
        (rng.normal(size=(4, 2, 2)), 0),
        (rng.permutation(12).reshape(3, 4), 1),
        (np.array([[2.0, np.nan, -np.inf, 1.0]]), 1),
        (np.zeros((0, 3)), 1),
    ]


sort = op(
    "sort",
    "The elements sorted along dim, and their indices.",
    infer=_infer_sort,
    factors=along("dim"),
    ranges=lambda x, *, dim, **attrs: {1: x.shape[dim] if x.ndim else 1},
    keeps=(0,),
    vjp=(_taken_dx,),
    kernels={"array": _sort_array},
    samples=lambda rng: [
        *[((x,), {"dim": d, "descending": down, "stable": True}) for x, d in _rows(rng) for down in (False, True)],
        ((np.array([1, 0, 1, 0, 1]),), {"dim": 0, "descending": True, "stable": True}),
        ((np.array([True, False, True]),), {"dim": 0, "descending": False, "stable": True}),
        ((np.zeros((2, 0)),), {"dim": 1, "descending": False, "stable": False}),
    ],
    flops=0,
)


def _infer_topk(x: Spec, *, k: Any, dim: Any, largest: Any, sorted: Any) -> tuple[Spec, Spec]:
    rules.tensor("topk", x)
    rules.not_bool("topk", x.dtype)
    dim = rules.dim("topk", dim, x.ndim)
    some("topk", x, ())
    rules.flag("topk", "largest", largest)
    rules.flag("topk", "sorted", sorted)
    if type(k) is not int or not 0 <= k <= x.shape[dim]:
        raise ArgumentError(f"topk: k must be from 0 to {x.shape[dim]}, got {rules.shown(k)}")
    shape = (*x.shape[:dim], k, *x.shape[dim + 1 :])
    return spec(shape, x.dtype), spec(shape, dtypes.int64)


def _topk_array(xp: Any, x: Any, *, k: int, dim: int, largest: bool, sorted: bool) -> Any:
    first = (slice(None),) * dim + (slice(k),)
    order = _order(xp, x, dim, largest)[first]
    return xp.take_along_axis(x, order, axis=dim), order


topk = op(
    "topk",
    "The k largest (or smallest) elements along dim, and their indices.",
    infer=_infer_topk,
    factors=beside("dim"),
    ranges=lambda x, *, dim, **attrs: {1: x.shape[dim] if x.ndim else 1},
    keeps=(0,),
    vjp=(_taken_dx,),
    kernels={"array": _topk_array},
    samples=lambda rng: [
        ((x,), {"k": k, "dim": d, "largest": most, "sorted": True})
        for x, d in _rows(rng)
        for k in (0, 2)
        for most in (True, False)
    ],
    flops=0,
)

# -- one element along a dimension -----------------------------------------------------------


def _infer_choice(name: str, x: Spec, *, dim: Any, keepdim: Any) -> tuple[Spec, Spec]:
    rules.tensor(name, x)
    if name in ("kthvalue", "median", "nanmedian"):
        rules.not_bool(name, x.dtype)
    dim = rules.dim(name, dim, x.ndim)
    some(name, x, (dim,))
    shape = reduced(x.shape, (dim,), rules.flag(name, "keepdim", keepdim))
    return spec(shape, x.dtype), spec(shape, dtypes.int64)


def _infer_kthvalue(x: Spec, *, k: Any, dim: Any, keepdim: Any) -> tuple[Spec, Spec]:
    result = _infer_choice("kthvalue", x, dim=dim, keepdim=keepdim)
    if type(k) is not int or not 1 <= k <= x.shape[dim]:
        raise ArgumentError(f"kthvalue: k must be from 1 to {x.shape[dim]}, got {rules.shown(k)}")
    return result


def _choice_dx(g: Any, y: Any, x: Any, *, dim: int, keepdim: bool, **attrs: Any) -> Any:
    at = restore(y[1], x.shape, (dim,), keepdim)
    return ops.gather_dx(restore(g[0], x.shape, (dim,), keepdim), at, shape=x.shape, dim=dim)


def _extreme_parts(name: str, x: Any, *, dim: int, keepdim: bool) -> Any:
    """Of max and min, on shards: the value and its place apart."""
    ordered = ops.cast(x, dtype="uint8") if x.dtype is dtypes.bool_ else x
    value = getattr(ops, f"a{name}")(x, dims=(dim,), keepdim=keepdim)
    return value, getattr(ops, f"arg{name}")(ordered, dim=dim, keepdim=keepdim)


def _choice(name: str, doc: str, place: Any, **attrs: Any) -> Op:
    """`place(xp, x, dim)` is where the element is that is chosen, with the dimension kept."""

    def array(xp: Any, x: Any, *, dim: int, keepdim: bool, **attrs: Any) -> Any:
        at = place(xp, x, dim, **attrs)
        values = xp.take_along_axis(x, at, axis=dim)
        return (values, at) if keepdim else (xp.squeeze(values, axis=dim), xp.squeeze(at, axis=dim))

    return op(
        name,
        doc,
        infer=_infer_kthvalue if name == "kthvalue" else partial(_infer_choice, name),
        factors=beside("dim"),
        parts=partial(_extreme_parts, name) if name in ("max", "min") else None,
        ranges=lambda x, *, dim, **attrs: {1: x.shape[dim] if x.ndim else 1},
        keeps=(0,),
        vjp=(_choice_dx,),
        kernels={"array": array},
        samples=lambda rng: [
            ((x,), {"dim": d, "keepdim": keep, **attrs})
            for x, d in _rows(rng)
            for keep in (False, True)
            if not (name in ("kthvalue", "median", "mode") and x.dtype.kind == "f" and np.isnan(x).any())
        ],
    )


def _at(xp: Any, order: Any, place: Any, dim: int) -> Any:
    """The entry of `order` along dim at `place`, a number or a tensor with the dimension kept."""
    if isinstance(place, int):
        return order[(slice(None),) * dim + (slice(place, place + 1),)]
    return xp.take_along_axis(order, place, axis=dim)


def _median(xp: Any, x: Any, dim: int) -> Any:
    nan = x != x
    middle = _at(xp, _order(xp, x, dim, False), (x.shape[dim] - 1) // 2, dim)
    return xp.where(xp.any(nan, axis=dim, keepdims=True), xp.argmax(nan, axis=dim, keepdims=True), middle)


def _nanmedian(xp: Any, x: Any, dim: int) -> Any:
    numbers = xp.sum(x == x, axis=dim, keepdims=True)
    return _at(xp, _order(xp, x, dim, False), xp.maximum(numbers - 1, 0) // 2, dim)


def _mode(xp: Any, x: Any, dim: int) -> Any:
    order = _order(xp, x, dim, False)
    rows = xp.moveaxis(xp.take_along_axis(x, order, axis=dim), dim, -1)
    begins = xp.concatenate([xp.ones_like(rows[..., :1], dtype=bool), rows[..., 1:] != rows[..., :-1]], axis=-1)
    places = xp.arange(rows.shape[-1])
    length = places - xp.maximum.accumulate(xp.where(begins, places, 0), axis=-1)
    # The end of the first of the longest runs: the smallest value, where it stands last.
    return _at(xp, order, xp.moveaxis(xp.argmax(length, axis=-1, keepdims=True), -1, dim), dim)


max_ = _choice(
    "max", "The largest element along dim, and its index.", lambda xp, x, dim: xp.argmax(x, axis=dim, keepdims=True)
)
min_ = _choice(
    "min", "The smallest element along dim, and its index.", lambda xp, x, dim: xp.argmin(x, axis=dim, keepdims=True)
)
kthvalue = _choice(
    "kthvalue",
    "The k-th smallest element along dim, counted from 1, and its index.",
    lambda xp, x, dim, *, k: _at(xp, _order(xp, x, dim, False), k - 1, dim),
    k=2,
)
median = _choice("median", "The median along dim (the lower of two), nan if an element is nan, and its index.", _median)
nanmedian = _choice("nanmedian", "The median along dim of the elements that are not nan, and its index.", _nanmedian)
mode = _choice("mode", "The most frequent element along dim (the smallest of several), and its last index.", _mode)

# -- places in sorted rows, rows in order ----------------------------------------------------


def _infer_searchsorted(rows: Spec, x: Spec, *, right: Any) -> Spec:
    rules.tensor("searchsorted", rows, x)
    rules.same_dtype("searchsorted", rows, x)
    rules.flag("searchsorted", "right", right)
    some("searchsorted", rows, ())
    if not rows.ndim or (rows.ndim > 1 and (rows.ndim != x.ndim or rows.shape[:-1] != x.shape[:-1])):
        raise ShapeError(
            f"searchsorted: sorted rows of shape {rows.shape} for values {x.shape}: one row, or all sizes but the "
            "last must agree"
        )
    return spec(x.shape, dtypes.int64)


def _searchsorted_array(xp: Any, rows: Any, x: Any, *, right: bool) -> Any:
    side = "right" if right else "left"
    if rows.ndim == 1:
        return xp.searchsorted(rows, x, side=side)
    if not rows.size or not x.size:
        return xp.zeros(x.shape, "int64")
    return xp.vectorize(lambda r, v: xp.searchsorted(r, v, side=side), signature="(n),(m)->(m)")(rows, x)


def _searchsorted_torch(torch: Any, site: Site, *, right: bool) -> Any:
    return lambda rows, x: torch.searchsorted(rows.contiguous(), x.contiguous(), right=right)


searchsorted = op(
    "searchsorted",
    "The indices at which x is inserted into sorted rows: left of equal elements, or right of them.",
    infer=_infer_searchsorted,
    factors=lambda rows, x, *, right: spelled("* !r", rows.ndim - 1, "r") + spelled(", * -> *", x.ndim, "r"),
    vjp=None,
    kernels={"array": _searchsorted_array, "torch": _searchsorted_torch},
    samples=lambda rng: [
        *[((np.sort(rng.normal(size=5)), rng.normal(size=(2, 3))), {"right": r}) for r in (False, True)],
        *[((np.array([1, 2, 2, 4]), np.array([0, 2, 4, 9])), {"right": r}) for r in (False, True)],
        ((np.sort(rng.normal(size=(3, 5))), rng.normal(size=(3, 2))), {"right": False}),
        ((np.zeros((2, 0)), rng.normal(size=(2, 3))), {"right": False}),
        ((np.array([1.0, 2.0]), np.array(1.5)), {"right": True}),
    ],
)


def _infer_lexsort(x: Spec) -> Spec:
    rules.tensor("lexsort", x)
    some("lexsort", x, ())
    if x.ndim != 2:
        raise ShapeError(f"lexsort: expected a matrix, got shape {x.shape}")
    return spec((x.shape[0],), dtypes.int64)


def _lexsort_array(xp: Any, x: Any) -> Any:
    return xp.lexsort(tuple(x.T[::-1])) if x.shape[1] else xp.arange(x.shape[0])


def _lexsort_torch(torch: Any, site: Site) -> Any:
    def kernel(x: Any) -> Any:
        order = torch.arange(x.shape[0], device=x.device)
        for column in reversed(x.unbind(1)):  # the first column is sorted by last, and so decides
            order = order[torch.argsort(column[order], stable=True)]
        return order

    return kernel


lexsort = op(
    "lexsort",
    "The indices that sort the rows of a matrix, by the first column, then by the next.",
    infer=_infer_lexsort,
    ranges=lambda x, **attrs: {0: x.shape[0]},
    vjp=None,
    kernels={"array": _lexsort_array, "torch": _lexsort_torch},
    samples=lambda rng: each_of(
        rng.integers(0, 2, size=(6, 3)), rng.normal(size=(4, 2)), np.zeros((3, 0)), np.zeros((0, 2))
    ),
)
