"""Order: sorting, the k-th and the middle one, what occurs and how often, places in sorted rows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from gt import dtypes
from gt.client.compat.dims import one_dim
from gt.client.functions import elementwise as ew
from gt.client.functions import scatter, shapes
from gt.client.functions.reductions import Chosen, amax, any, lifted, sum
from gt.client.functions.scans import cumsum
from gt.client.programs.tree import Kind, Kinds
from gt.client.record.recorder import apply, binary, unary
from gt.errors import ArgumentError, ShapeError
from gt.ops import TABLE

if TYPE_CHECKING:
    from gt.client.tensor import Tensor

__all__ = [
    "argsort", "bucketize", "isin", "kthvalue", "median", "mode", "msort", "nanmedian", "searchsorted", "sort", "topk",
    "unique", "unique_consecutive",
]  # fmt: skip
METHODS = [*{*__all__} - {"bucketize", "isin", "searchsorted"}]

_SORT = Kinds(TABLE["sort"], "dim", "descending", "stable")
_TOPK = Kinds(TABLE["topk"], "k", "dim", "largest", "sorted")
_KTH = Kinds(TABLE["kthvalue"], "k", "dim", "keepdim")
_CHOICE = {name: Kinds(TABLE[name], "dim", "keepdim") for name in ("median", "nanmedian", "mode")}
_SEARCH = Kinds(TABLE["searchsorted"], "right")
_LEXSORT = Kind(TABLE["lexsort"], {})


def added_at(place: Any, weight: Any, n: int) -> Tensor:
    """n sums: of the weights at each place."""
    from gt.client.functions.creation import zeros

    return scatter.scatter_add(zeros(n, dtype=weight.dtype), 0, place, weight)


def sort(input: Any, dim: int = -1, descending: bool = False, stable: Any = None) -> Chosen:
    """The elements in order along dim, and where they were."""
    kind = _SORT[one_dim("sort", dim, input.ndim), bool(descending), bool(stable)]
    return Chosen(*lifted(input, lambda x: apply(kind, (x,))))


def argsort(input: Any, dim: int = -1, descending: bool = False, stable: Any = None) -> Tensor:
    """Where the elements are, in order along dim."""
    return sort(input, dim, descending, stable).indices


def msort(input: Any) -> Tensor:
    """The elements in order along the first dimension."""
    return sort(input, 0).values


def topk(input: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Chosen:
    """The k largest (or smallest) along dim, and where they are."""
    kind = _TOPK[int(k), one_dim("topk", dim, input.ndim), bool(largest), bool(sorted)]
    return Chosen(*lifted(input, lambda x: apply(kind, (x,))))


def kthvalue(input: Any, k: int, dim: int = -1, keepdim: bool = False) -> Chosen:
    """The k-th smallest along dim, counted from 1, and where they are."""
    kind = _KTH[int(k), one_dim("kthvalue", dim, input.ndim), bool(keepdim)]
    return Chosen(*lifted(input, lambda x: apply(kind, (x,))))


def mode(input: Any, dim: int = -1, keepdim: bool = False) -> Chosen:
    """The most frequent along dim, and where they are last."""
    return _choice("mode", input, dim, keepdim)


def _choice(name: str, input: Any, dim: Any, keepdim: bool) -> Chosen:
    kind = _CHOICE[name][one_dim(name, dim, input.ndim), bool(keepdim)]
    return Chosen(*lifted(input, lambda x: apply(kind, (x,))))


def _middle(name: str, input: Any, dim: Any, keepdim: bool) -> Any:
    if dim is not None:
        return _choice(name, input, dim, keepdim)
    if input.dtype.is_floating_point and not input.numel():
        from gt.client.functions.creation import full

        return full((), math.nan, dtype=input.dtype)
    value = _choice(name, shapes.reshape(input, (-1,)), 0, False).values
    if not input.requires_grad:
        return value
    # All elements that equal it share its gradient, as the largest do.
    value = value.detach()
    same = ew.logical_or(ew.eq(input, value), ew.logical_and(ew.isnan(value), ew.isnan(input)))
    return amax(ew.where(same, input, -math.inf))


def median(input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """The middle element, the lower of two; with dim, those along it and where they are."""
    return _middle("median", input, dim, keepdim)


def nanmedian(input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """The middle of the elements that are numbers; with dim, those along it and where they are."""
    return _middle("nanmedian", input, dim, keepdim)


# --- what occurs -------------------------------------------------------------------------------------


def _begins(rows: Any) -> Tensor:
    """Which rows differ from the one before."""
    from gt.client.functions.creation import ones

    n = rows.shape[0]
    first = ones((1,) if n else (0,), dtype=dtypes.bool_)
    if n < 2:
        return first
    differ = ew.ne(rows[1:], rows[:-1])
    return shapes.cat([first, any(differ, 1) if rows.ndim > 1 else differ])


def _distinct(rows: Any, begins: Any, order: Any, return_inverse: bool, return_counts: bool) -> tuple[Any, Any, Any]:
    """The first row of every run; of every row, its run; of every run, its length. Waits for their number."""
    from gt.client.functions.creation import arange, full

    n = rows.shape[0]
    group = ew.sub(cumsum(begins, 0), 1)
    count = int(sum(begins).item())
    starts = binary(_SEARCH[False], group, arange(count))
    inverse = counts = None
    if return_inverse:
        inverse = group if order is None else added_at(order, group, n)
    if return_counts:
        ends = shapes.cat([starts[1:], full((1,), n, dtype=dtypes.int64)]) if count else starts
        counts = ew.sub(ends, starts)
    return scatter.index_select(rows, 0, starts), inverse, counts


def _answer(out: tuple[Any, Any, Any]) -> Any:
    wanted = tuple(x for x in out if x is not None)
    return wanted[0] if len(wanted) == 1 else wanted


def _as_rows(op: str, input: Any, dim: int) -> tuple[Any, tuple[int, ...], int]:
    d = one_dim(op, dim, input.ndim)
    moved = shapes.movedim(input, d, 0)
    if moved.shape[0] and not input.numel():
        raise ShapeError(f"{op}: {input.shape} has no elements to compare along dim {d}")
    return shapes.reshape(moved, (moved.shape[0], math.prod(moved.shape[1:]))), tuple(moved.shape[1:]), d


def _from_rows(values: Any, rest: tuple[int, ...], d: int) -> Any:
    return shapes.movedim(shapes.reshape(values, (values.shape[0], *rest)), 0, d)


def unique(
    input: Any, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False, dim: Any = None
) -> Any:
    """The distinct elements (or slices along dim) in order; where each one went; how often each is there."""
    if dim is None:
        rows, order = sort(shapes.reshape(input, (-1,)), 0, stable=True)
        values, inverse, counts = _distinct(rows, _begins(rows), order, return_inverse, return_counts)
        return _answer((values, None if inverse is None else shapes.reshape(inverse, input.shape), counts))
    rows, rest, d = _as_rows("unique", input, dim)
    order = unary(_LEXSORT, rows)
    rows = scatter.index_select(rows, 0, order)
    values, inverse, counts = _distinct(rows, _begins(rows), order, return_inverse, return_counts)
    return _answer((_from_rows(values, rest, d), inverse, counts))


def unique_consecutive(input: Any, return_inverse: bool = False, return_counts: bool = False, dim: Any = None) -> Any:
    """The elements (or slices along dim) that differ from the one before; where each went; how long each run is."""
    if dim is None:
        rows = shapes.reshape(input, (-1,))
        values, inverse, counts = _distinct(rows, _begins(rows), None, return_inverse, return_counts)
        return _answer((values, None if inverse is None else shapes.reshape(inverse, input.shape), counts))
    rows, rest, d = _as_rows("unique_consecutive", input, dim)
    values, inverse, counts = _distinct(rows, _begins(rows), None, return_inverse, return_counts)
    return _answer((_from_rows(values, rest, d), inverse, counts))


# --- places in sorted rows ---------------------------------------------------------------------------


def searchsorted(
    sorted_sequence: Any,
    input: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> Tensor:
    """Where to put the input into sorted rows: before equal elements, or to their right."""
    if side is not None:
        if side not in ("left", "right"):
            raise ArgumentError(f"searchsorted: side is 'left' or 'right', not {side!r}")
        if right and side == "left":
            raise ArgumentError("searchsorted: side='left' and right=True contradict each other")
        right = side == "right"
    rows = sorted_sequence
    if sorter is not None:
        rows = scatter.gather(rows, -1, sorter)
    if not hasattr(input, "_v"):
        from gt.client.functions.creation import full

        input = full((), input, dtype=rows.dtype)
    at = binary(_SEARCH[bool(right)], rows, input)
    return ew.cast(at, dtypes.int32) if out_int32 else at


def bucketize(input: Any, boundaries: Any, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """Which of the buckets between the boundaries each element is in."""
    if boundaries.ndim != 1:
        raise ShapeError(f"bucketize: boundaries have one dimension, not the shape {boundaries.shape}")
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


def isin(elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    """Whether each element is among the test elements."""
    if not hasattr(test_elements, "_v"):
        found = ew.eq(elements, test_elements)
    elif not hasattr(elements, "_v"):
        found = any(ew.eq(test_elements, elements))
    elif test_elements.numel() <= 16:
        flat = shapes.reshape(test_elements, (-1,))
        found = any(ew.eq(shapes.unsqueeze(elements, -1), flat), -1)
    else:
        common = dtypes.promote_types(elements.dtype, test_elements.dtype)
        x = ew.cast(elements, common)
        rows = sort(ew.cast(shapes.reshape(test_elements, (-1,)), common)).values
        at = ew.clamp(searchsorted(rows, x), max=rows.shape[0] - 1)
        found = ew.eq(shapes.reshape(scatter.index_select(rows, 0, shapes.reshape(at, (-1,))), x.shape), x)
    return ew.logical_not(found) if invert else found
