"""Slices along one dimension: reading and replacing them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gt.client.compat.checks import positive
from gt.client.compat.dims import one_dim
from gt.client.functions import elementwise as ew
from gt.client.record.recorder import apply
from gt.client.record.tree import Kinds
from gt.client.views.aliases import take
from gt.errors import DimError, ShapeError
from gt.ops import TABLE

if TYPE_CHECKING:
    from gt.client.tensor import Tensor

__all__ = ["narrow", "select_scatter", "slice_scatter"]
METHODS = [*__all__]

SLICE = Kinds(TABLE["slice"], "dims", "lengths", "steps", "drop")
_SLICE_PUT = Kinds(TABLE["slice_put"], "dims", "lengths", "steps", "drop")


def dim_of(op: str, dim: int, ndim: int) -> int:
    """The dimension as a non-negative number; the tensor must have at least one."""
    if not ndim:
        raise DimError(f"{op}: expected at least one dimension, got shape ()")
    return one_dim(op, dim, ndim)


def narrow(input: Any, dim: int, start: Any, length: int) -> Tensor:
    """A view of `length` elements along dim, from `start` on."""
    d = dim_of("narrow", dim, input.ndim)
    n = input.shape[d]
    start = start if hasattr(start, "_letter") else int(start)
    start = start + n if start < 0 else start
    if length < 0 or not 0 <= start <= n - length:
        raise DimError(f"narrow: start {start} and length {length} are out of range for dimension {d} of size {n}")
    return take(SLICE[(d,), (length,), (1,), ()], input, (start,))


def select_scatter(input: Any, src: Any, dim: int, index: int) -> Tensor:
    """A copy of the tensor with the slice at an index along dim replaced by src."""
    d = dim_of("select_scatter", dim, input.ndim)
    n = input.shape[d]
    if not -n <= index < n:
        raise DimError(f"select_scatter: index {index} is out of range for dimension {d} of size {n}")
    return _put("select_scatter", input, src, d, index + n if index < 0 else index, 1, 1, (d,))


def slice_scatter(input: Any, src: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Tensor:
    """A copy of the tensor with the slice start:end:step along dim replaced by src."""
    d = dim_of("slice_scatter", dim, input.ndim)
    positive("slice_scatter", "step", step)
    a, b, _ = slice(start, end, step).indices(input.shape[d])
    return _put("slice_scatter", input, src, d, a, len(range(a, b, step)), step, ())


def _put(op: str, input: Any, src: Any, dim: int, start: int, length: int, step: int, drop: tuple[int, ...]) -> Tensor:
    shape = (*input.shape[:dim], *(() if drop else (length,)), *input.shape[dim + 1 :])
    if src.shape != shape:
        raise ShapeError(f"{op}: src must have shape {shape}, got {tuple(src.shape)}")
    return apply(_SLICE_PUT[(dim,), (length,), (step,), drop], (input, ew.cast(src, input.dtype), start))
