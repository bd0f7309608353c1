"""Parts of a tensor along one dimension, and putting such a part back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gt.client.compat.dims import one_dim
from gt.client.functions import elementwise as ew
from gt.client.programs.tree import Kinds
from gt.client.record.recorder import apply
from gt.client.views.aliases import take
from gt.errors import ArgumentError, DimError, ShapeError
from gt.ops import TABLE

if TYPE_CHECKING:
    from gt.client.tensor import Tensor

__all__ = ["narrow", "select", "select_scatter", "slice_scatter"]
METHODS = [*__all__]

SLICE = Kinds(TABLE["slice"], "dims", "lengths", "steps", "drop")
_SLICE_PUT = Kinds(TABLE["slice_put"], "dims", "lengths", "steps", "drop")


def _along(op: str, dim: int, ndim: int) -> int:
    if not ndim:
        raise DimError(f"{op}: a tensor without dimensions has no part")
    return one_dim(op, dim, ndim)


def narrow(input: Any, dim: int, start: Any, length: int) -> Tensor:
    """A view of `length` elements from `start` along dim."""
    d = _along("narrow", dim, input.ndim)
    n = input.shape[d]
    start = start if hasattr(start, "_letter") else int(start)
    start = start + n if start < 0 else start
    if length < 0 or not 0 <= start <= n - length:
        raise DimError(f"narrow: {length} elements from {start} do not fit into dimension {d} of size {n}")
    return take(SLICE[(d,), (length,), (1,), ()], input, (start,))


def select(input: Any, dim: int, index: Any) -> Tensor:
    """One slice along dim, as a view without that dimension."""
    from gt.client.functions.indexing import getitem

    d = _along("select", dim, input.ndim)
    return getitem(input, (slice(None),) * d + (index,))


def select_scatter(input: Any, src: Any, dim: int, index: int) -> Tensor:
    """The tensor with src in place of one slice along dim."""
    d = _along("select_scatter", dim, input.ndim)
    n = input.shape[d]
    if not -n <= index < n:
        raise DimError(f"select_scatter: {index} is out of range for dimension {d} of size {n}")
    return _put("select_scatter", input, src, d, index + n if index < 0 else index, 1, 1, (d,))


def slice_scatter(input: Any, src: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Tensor:
    """The tensor with src in place of the elements from start up to end along dim, a step apart."""
    d = _along("slice_scatter", dim, input.ndim)
    if step < 1:
        raise ArgumentError(f"slice_scatter: step must be positive, not {step}")
    a, b, _ = slice(start, end, step).indices(input.shape[d])
    return _put("slice_scatter", input, src, d, a, len(range(a, b, step)), step, ())


def _put(op: str, input: Any, src: Any, dim: int, start: int, length: int, step: int, drop: tuple[int, ...]) -> Tensor:
    shape = (*input.shape[:dim], *(() if drop else (length,)), *input.shape[dim + 1 :])
    if src.shape != shape:
        raise ShapeError(f"{op}: src of shape {tuple(src.shape)} does not fill the part of shape {shape}")
    return apply(_SLICE_PUT[(dim,), (length,), (step,), drop], (input, ew.cast(src, input.dtype), start))
