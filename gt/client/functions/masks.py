"""Selecting by condition: `where`, positions of nonzero elements, masks.

The worker is asked for the number of selected elements, which becomes a size in the op that selects them. It is asked
once for each mask: a value never changes.
"""

from __future__ import annotations

import math
from typing import Any

from gt import dtypes
from gt.client.compat.checks import same_dtype
from gt.client.functions import elementwise as ew
from gt.client.functions import shapes
from gt.client.functions.constants import filled
from gt.client.programs import kinds
from gt.client.record.recorder import apply, recorder, unary
from gt.client.tensor import Tensor
from gt.errors import ArgumentError, DTypeError
from gt.ops.rules import broadcast

__all__ = ["argwhere", "masked_scatter", "masked_select", "nonzero", "nonzero_static", "where"]
METHODS = [*{*__all__} - {"where"}]
INPLACE = ["masked_scatter"]


def positions(x: Any) -> Tensor:
    """The flat indices of the nonzero elements. Waits for their number."""
    recorder().refuse_sync()  # also if the number is known: a replay may meet another mask
    v = x._v or x._read()
    if v.count < 0:
        truth = x if x.dtype is dtypes.bool_ else ew.ne(x, 0)
        v.count = int(truth.sum().item())
    return unary(kinds.flatnonzero[v.count], x)


def _coordinates(flat: Any, shape: tuple[int, ...]) -> list[Tensor]:
    """Convert flat indices into a tensor of this shape to one index per dimension."""
    if len(shape) == 1:
        return [flat]
    found, stride = [], math.prod(shape)
    for d, n in enumerate(shape):
        stride //= max(n, 1)
        i = ew.floor_divide(flat, stride) if stride > 1 else flat
        found.append(ew.remainder(i, n) if d and n else i)
    return found


def nonzero(input: Any, *, as_tuple: bool = False) -> Any:
    """The indices of the nonzero elements: one row per element, or (as_tuple) one index tensor per dimension."""
    x = shapes.reshape(input, (1,)) if as_tuple and not input.ndim else input
    flat = positions(x)
    if as_tuple:
        return tuple(_coordinates(flat, tuple(x.shape)))
    return _rows(flat, tuple(x.shape))


def _rows(flat: Any, shape: tuple[int, ...]) -> Tensor:
    if not shape:
        return shapes.reshape(flat, (flat.shape[0], 1))[:, :0]
    return shapes.stack(_coordinates(flat, shape), 1)


def nonzero_static(input: Any, *, size: int, fill_value: int = -1) -> Tensor:
    """The indices of the first `size` nonzero elements, one row each; missing rows are filled with fill_value."""
    rows = nonzero(input)[:size]
    missing = size - rows.shape[0]
    if missing <= 0:
        return rows
    return shapes.cat([rows, filled((missing, rows.shape[1]), fill_value, dtypes.int64)])


def argwhere(input: Any) -> Tensor:
    """The indices of the nonzero elements, one row per element."""
    return nonzero(input)


def where(condition: Any, input: Any = None, other: Any = None) -> Any:
    """input where the condition is True, else other; with a condition alone, nonzero(condition, as_tuple=True)."""
    if input is None and other is None:
        return nonzero(condition, as_tuple=True)
    return ew.where(condition, input, other)


def _aligned(op: str, input: Any, mask: Any) -> tuple[Any, Any, tuple[int, ...]]:
    """The input and the mask, expanded to the shape that they broadcast to, and that shape."""
    if mask.dtype is dtypes.uint8:
        mask = ew.cast(mask, dtypes.bool_)
    if mask.dtype is not dtypes.bool_:
        raise DTypeError(f"{op}: mask must be a bool tensor, got {mask.dtype.name}; compare first, as in x > 0")
    shape = broadcast(op, input.shape, mask.shape)
    x, mask = (t if t.shape == shape else shapes.expand(t, shape) for t in (input, mask))
    return x, mask, shape


def masked_select(input: Any, mask: Any) -> Tensor:
    """The elements where the mask is True, as a vector. Waits for their number."""
    x, mask, shape = _aligned("masked_select", input, mask)
    return apply(kinds.index[(0,)], (shapes.reshape(x, (math.prod(shape),)), positions(mask)))


def masked_scatter(input: Any, mask: Any, source: Any) -> Tensor:
    """A copy of the tensor with the elements of source, in order, where the mask is True."""
    x, mask, shape = _aligned("masked_scatter", input, mask)
    same_dtype("masked_scatter", input, source)
    count = math.prod(source.shape)
    if not count:
        if mask.any().item():
            raise ArgumentError("masked_scatter: source is empty, but the mask has True elements")
        kept = ew.where(mask, 0, x)
        return kept + source.sum() if source.requires_grad else kept  # its gradient is empty, and not missing
    # The k-th True position gets the k-th element; a mask with more True positions gives an index error.
    rank = shapes.reshape(mask, (math.prod(shape),)).cumsum(0)
    index = ew.where(shapes.reshape(mask, rank.shape), rank - 1, 0)
    picked = apply(kinds.index[(0,)], (shapes.reshape(source, (count,)), index))
    return ew.where(mask, shapes.reshape(picked, shape), x)
