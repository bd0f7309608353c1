"""Sorting, order statistics, unique elements, searching sorted sequences."""

from __future__ import annotations

import math
from typing import Any

from gt import dtypes
from gt.client.compat.checks import one_of, vectors
from gt.client.compat.dims import one_dim
from gt.client.functions import elementwise as ew
from gt.client.functions import scatter, shapes
from gt.client.functions.creation import arange, full, ones, zeros
from gt.client.functions.reductions import ValuesAndIndices, amax, any, lifted, sum
from gt.client.functions.scans import cumsum
from gt.client.programs import kinds
from gt.client.record.recorder import apply, binary, unary
from gt.client.tensor import Tensor
from gt.errors import ArgumentError, ShapeError

__all__ = [
    "argsort", "bucketize", "isin", "kthvalue", "median", "mode", "msort", "nanmedian", "searchsorted", "sort", "topk",
    "unique", "unique_consecutive",
]  # fmt: skip
METHODS = [*{*__all__} - {"bucketize", "isin", "searchsorted"}]


def added_at(place: Any, weight: Any, n: int) -> Tensor:
    """A vector of n sums: of the weights at each index."""
    return scatter.scatter_add(zeros(n, dtype=weight.dtype), 0, place, weight)


def sort(input: Any, dim: int = -1, descending: bool = False, stable: Any = None) -> ValuesAndIndices:
    """Sort along dim; returns the values and their indices."""
    kind = kinds.sort[one_dim("sort", dim, input.ndim), bool(descending), bool(stable)]
    return ValuesAndIndices(*lifted(input, lambda x: apply(kind, (x,))))


def argsort(input: Any, dim: int = -1, descending: bool = False, stable: Any = None) -> Tensor:
    """The indices that sort the tensor along dim."""
    return sort(input, dim, descending, stable).indices


def msort(input: Any) -> Tensor:
    """Sort along the first dimension; returns the values."""
    return sort(input, 0).values


def topk(input: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> ValuesAndIndices:
    """The k largest (or smallest) elements along dim, and their indices."""
    kind = kinds.topk[int(k), one_dim("topk", dim, input.ndim), bool(largest), bool(sorted)]
    return ValuesAndIndices(*lifted(input, lambda x: apply(kind, (x,))))


def kthvalue(input: Any, k: int, dim: int = -1, keepdim: bool = False) -> ValuesAndIndices:
    """The k-th smallest element along dim, counted from 1, and its index."""
    kind = kinds.kthvalue[int(k), one_dim("kthvalue", dim, input.ndim), bool(keepdim)]
    return ValuesAndIndices(*lifted(input, lambda x: apply(kind, (x,))))


def mode(input: Any, dim: int = -1, keepdim: bool = False) -> ValuesAndIndices:
    """The most frequent element along dim, and the index of its last occurrence."""
    return _choice("mode", input, dim, keepdim)


def _choice(name: str, input: Any, dim: Any, keepdim: bool) -> ValuesAndIndices:
    kind = getattr(kinds, name)[one_dim(name, dim, input.ndim), bool(keepdim)]
    return ValuesAndIndices(*lifted(input, lambda x: apply(kind, (x,))))


def _middle(name: str, input: Any, dim: Any, keepdim: bool) -> Any:
    if dim is not None:
        return _choice(name, input, dim, keepdim)
    if input.dtype.is_floating_point and not input.numel():
        return full((), math.nan, dtype=input.dtype)
    value = _choice(name, shapes.reshape(input, (-1,)), 0, False).values
    if not input.requires_grad:
        return value
    # All elements that are equal to the median share its gradient, as in amax.
    value = value.detach()
    same = ew.logical_or(ew.eq(input, value), ew.logical_and(ew.isnan(value), ew.isnan(input)))
    return amax(ew.where(same, input, -math.inf))


def median(input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """The median, the lower of two; with dim, the medians along it and their indices."""
    return _middle("median", input, dim, keepdim)


def nanmedian(input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """The median of the elements that are not nan; with dim, the medians along it and their indices."""
    return _middle("nanmedian", input, dim, keepdim)


# --- unique elements ---------------------------------------------------------------------------------


def _begins(rows: Any) -> Tensor:
    """Which rows differ from the row before."""
    n = rows.shape[0]
    first = ones((1,) if n else (0,), dtype=dtypes.bool_)
    if n < 2:
        return first
    differ = ew.ne(rows[1:], rows[:-1])
    return shapes.cat([first, any(differ, 1) if rows.ndim > 1 else differ])


def _distinct(rows: Any, begins: Any, order: Any, return_inverse: bool, return_counts: bool) -> tuple[Any, Any, Any]:
    """The first row of every run, the run of every row, the length of every run. Waits for the number of runs."""
    n = rows.shape[0]
    group = ew.sub(cumsum(begins, 0), 1)
    count = int(sum(begins).item())
    starts = binary(kinds.searchsorted[False], group, arange(count))
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
        raise ShapeError(f"{op}: a tensor of shape {input.shape} has no elements to compare along dim {d}")
    return shapes.reshape(moved, (moved.shape[0], math.prod(moved.shape[1:]))), tuple(moved.shape[1:]), d


def _from_rows(values: Any, rest: tuple[int, ...], d: int) -> Any:
    return shapes.movedim(shapes.reshape(values, (values.shape[0], *rest)), 0, d)


def unique(
    input: Any, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False, dim: Any = None
) -> Any:
    """The unique elements (or slices along dim), sorted; optionally the inverse indices and the counts."""
    if dim is None:
        rows, order = sort(shapes.reshape(input, (-1,)), 0, stable=True)
        values, inverse, counts = _distinct(rows, _begins(rows), order, return_inverse, return_counts)
        return _answer((values, None if inverse is None else shapes.reshape(inverse, input.shape), counts))
    rows, rest, d = _as_rows("unique", input, dim)
    order = unary(kinds.lexsort, rows)
    rows = scatter.index_select(rows, 0, order)
    values, inverse, counts = _distinct(rows, _begins(rows), order, return_inverse, return_counts)
    return _answer((_from_rows(values, rest, d), inverse, counts))


def unique_consecutive(input: Any, return_inverse: bool = False, return_counts: bool = False, dim: Any = None) -> Any:
    """The elements (or slices along dim) without consecutive repetitions; optionally the inverse indices and counts."""
    if dim is None:
        rows = shapes.reshape(input, (-1,))
        values, inverse, counts = _distinct(rows, _begins(rows), None, return_inverse, return_counts)
        return _answer((values, None if inverse is None else shapes.reshape(inverse, input.shape), counts))
    rows, rest, d = _as_rows("unique_consecutive", input, dim)
    values, inverse, counts = _distinct(rows, _begins(rows), None, return_inverse, return_counts)
    return _answer((_from_rows(values, rest, d), inverse, counts))


# --- searching sorted sequences ----------------------------------------------------------------------


def searchsorted(
    sorted_sequence: Any, input: Any, *, out_int32: bool = False, right: bool = False, side: str | None = None,
    sorter: Any = None,
) -> Tensor:  # fmt: skip
    """The indices at which the input would be inserted into sorted sequences, before (or after) equal elements."""
    if side is not None:
        one_of("searchsorted", "side", side, "left", "right")
        if right and side == "left":
            raise ArgumentError("searchsorted: got both side='left' and right=True")
        right = side == "right"
    rows = sorted_sequence
    if sorter is not None:
        rows = scatter.gather(rows, -1, sorter)
    if not isinstance(input, Tensor):
        input = full((), input, dtype=rows.dtype)
    at = binary(kinds.searchsorted[bool(right)], rows, input)
    return ew.cast(at, dtypes.int32) if out_int32 else at


def bucketize(input: Any, boundaries: Any, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """The index of the bucket between the boundaries that each element belongs to."""
    vectors("bucketize", boundaries)
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


def isin(elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    """Whether each element is in test_elements."""
    if not isinstance(test_elements, Tensor):
        found = ew.eq(elements, test_elements)
    elif not isinstance(elements, Tensor):
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
