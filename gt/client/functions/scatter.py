"""Gather and scatter: reading and writing elements at index tensors."""

from __future__ import annotations

import math
from typing import Any

from gt.client.compat.checks import one_of, same_dtype
from gt.client.compat.dims import one_dim
from gt.client.functions import elementwise as ew
from gt.client.functions import shapes
from gt.client.functions.creation import full
from gt.client.programs import kinds
from gt.client.record.recorder import apply, unary
from gt.client.tensor import Tensor
from gt.errors import ArgumentError, ShapeError
from gt.ops.rules import broadcast

__all__ = [
    "gather", "index_add", "index_copy", "index_fill", "index_reduce", "index_select", "put", "scatter", "scatter_add",
    "scatter_reduce", "take", "take_along_dim",
]  # fmt: skip
METHODS = [*__all__]
INPLACE = [
    "index_add", "index_copy", "index_fill", "index_reduce", "put", "scatter", "scatter_add", "scatter_reduce"
]  # fmt: skip


def _line(x: Any) -> Any:
    """The tensor; a 0-dimensional one is treated as a vector of one element, as in torch."""
    return x if x.ndim else shapes.reshape(x, (1,))


def _back(made: Any, shape: tuple[int, ...]) -> Tensor:
    return made if made.shape == shape else shapes.reshape(made, shape)


def _nothing(x: Any) -> Any:
    """An empty vector that depends on the tensor, for gradients."""
    return shapes.reshape(x, (x.numel(),))[:0]


# --- an index for each element -----------------------------------------------------------------------


def gather(input: Any, dim: int, index: Any, *, sparse_grad: bool = False) -> Tensor:
    """The elements along dim at an index tensor, which has the shape of the result."""
    d = one_dim("gather", dim, input.ndim)
    if not index.numel():  # of any dtype and number of dimensions
        return shapes.reshape(_nothing(input), index.shape)
    return _back(apply(kinds.gather[d], (_line(input), _line(index))), index.shape)


def _source(op: str, index: Any, src: Any) -> Any:
    """The part of src that has the shape of the index."""
    src = _line(src)
    if src.shape == index.shape:
        return src
    if src.ndim != index.ndim or (index.numel() and any(n > m for n, m in zip(index.shape, src.shape, strict=True))):
        raise ShapeError(f"{op}: index of shape {tuple(index.shape)} is larger than src of shape {tuple(src.shape)}")
    if not index.numel():
        return shapes.reshape(_nothing(src), index.shape)
    return src[tuple(slice(n) for n in index.shape)]


def scatter(input: Any, dim: int, index: Any, src: Any = None, *, value: Any = None, reduce: Any = None) -> Tensor:
    """A copy of the tensor with src, or one number, written along dim at the index; reduce is 'add' or 'multiply'."""
    src = value if src is None else src
    if src is None:
        raise ArgumentError("scatter: expected src or value")
    one_of("scatter", "reduce", reduce, None, "add", "multiply")
    d, x, i = one_dim("scatter", dim, input.ndim), _line(input), _line(index)
    if isinstance(src, Tensor):
        src = _source("scatter", i, src)
    elif reduce is not None:
        src = full(i.shape, src, dtype=input.dtype)
    elif isinstance(src, float) and not input.dtype.is_differentiable:
        src = int(src)
    named = kinds.scatter if reduce is None else kinds.scatter_add
    kind = kinds.scatter_reduce[d, "prod", True] if reduce == "multiply" else named[d]
    return _back(apply(kind, (x, i, src)), input.shape)


def scatter_add(input: Any, dim: int, index: Any, src: Any) -> Tensor:
    """A copy of the tensor with src added along dim at the index."""
    i = _line(index)
    kind = kinds.scatter_add[one_dim("scatter_add", dim, input.ndim)]
    return _back(apply(kind, (_line(input), i, _source("scatter_add", i, src))), input.shape)


def scatter_reduce(input: Any, dim: int, index: Any, src: Any, reduce: str, *, include_self: bool = True) -> Tensor:
    """A copy of the tensor reduced with src along dim at the index: 'sum', 'prod', 'mean', 'amax' or 'amin'."""
    i = _line(index)
    kind = kinds.scatter_reduce[one_dim("scatter_reduce", dim, input.ndim), reduce, include_self]
    return _back(apply(kind, (_line(input), i, _source("scatter_reduce", i, src))), input.shape)


def take_along_dim(input: Any, indices: Any, dim: int | None = None) -> Tensor:
    """The elements along dim at indices that broadcast with the input; without dim, both are flattened."""
    if dim is None:
        flat = unary(kinds.wrap_index[input.numel()], shapes.reshape(indices, (indices.numel(),)))
        return gather(shapes.reshape(input, (input.numel(),)), 0, flat)
    if input.ndim != indices.ndim:
        raise ShapeError(
            f"take_along_dim: input {tuple(input.shape)} and indices {tuple(indices.shape)} differ in rank"
        )
    d = one_dim("take_along_dim", dim, input.ndim)
    indices = unary(kinds.wrap_index[input.shape[d] if input.ndim else 1], indices)
    others = broadcast("take_along_dim", _without(input.shape, d), _without(indices.shape, d))

    def widen(x: Any) -> Any:
        shape = (*others[:d], x.shape[d], *others[d:]) if x.ndim else ()
        return x if x.shape == shape else shapes.expand(x, shape)

    return gather(widen(input), d, widen(indices))


def _without(shape: tuple[int, ...], dim: int) -> tuple[int, ...]:
    return tuple(shape[:dim]) + tuple(shape[dim + 1 :])


# --- an index for each slice along dim ---------------------------------------------------------------


def index_select(input: Any, dim: int, index: Any) -> Tensor:
    """The slices along dim at the given indices."""
    made = apply(kinds.index_select[one_dim("index_select", dim, input.ndim)], (_line(input), _line(index)))
    return made if input.ndim or made.shape != (1,) else shapes.reshape(made, ())


def _rows(op: str, input: Any, dim: int, index: Any, source: Any) -> tuple[int, Any, Any, Any]:
    """dim, input, index and source, each with at least one dimension and of shapes that fit."""
    d = one_dim(op, dim, input.ndim)
    x, i = _line(input), _line(index)
    if i.ndim != 1:
        raise ShapeError(f"{op}: index must be a vector, got shape {tuple(index.shape)}")
    want = (*x.shape[:d], i.shape[0], *x.shape[d + 1 :])
    if source.ndim + 1 == len(want) and want[d] == 1:
        source = shapes.reshape(source, want)  # a single slice may lack the dimension
    source = _line(source)
    if source.shape != want:
        raise ShapeError(f"{op}: source must have shape {want}, got {tuple(source.shape)}")
    return d, x, i, source


def index_add(input: Any, dim: int, index: Any, source: Any, *, alpha: Any = 1) -> Tensor:
    """A copy of the tensor with alpha * source added along dim at the given indices."""
    d, x, i, source = _rows("index_add", input, dim, index, source)
    if alpha != 1:
        source = ew.cast(ew.mul(source, alpha), source.dtype)
    return _back(apply(kinds.index_add[d], (x, i, source)), input.shape)


def index_copy(input: Any, dim: int, index: Any, source: Any) -> Tensor:
    """A copy of the tensor with source written along dim at the given indices."""
    d, x, i, source = _rows("index_copy", input, dim, index, source)
    same_dtype("index_copy", input, source)
    return _back(apply(kinds.index_put[(d,), False], (x, source, i)), input.shape)


def index_fill(input: Any, dim: int, index: Any, value: Any) -> Tensor:
    """A copy of the tensor with one number written along dim at the given indices."""
    d, x = one_dim("index_fill", dim, input.ndim), _line(input)
    if isinstance(value, Tensor) and value.ndim:
        raise ShapeError(f"index_fill: value must be 0-dimensional, got shape {tuple(value.shape)}")
    place = unary(kinds.wrap_index[x.shape[d]], _line(index))
    if not isinstance(value, Tensor):
        return _back(apply(kinds.index_put[(d,), False], (x, value, place)), input.shape)
    # By a mask, so that an index that occurs twice counts once in the value's gradient.
    chosen = apply(kinds.index_put[(0,), False], (full((x.shape[d],), False), True, place))
    chosen = shapes.reshape(chosen, (x.shape[d], *[1] * (x.ndim - d - 1)))
    return _back(ew.where(chosen, ew.cast(value, x.dtype), x), input.shape)


def index_reduce(input: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True) -> Tensor:
    """A copy of the tensor reduced with source along dim at the given indices: 'prod', 'mean', 'amax' or 'amin'."""
    one_of("index_reduce", "reduce", reduce, "prod", "mean", "amax", "amin")
    d, x, i, source = _rows("index_reduce", input, dim, index, source)
    column = shapes.reshape(i, (*[1] * d, i.shape[0], *[1] * (x.ndim - d - 1)))
    kind = kinds.scatter_reduce[d, reduce, include_self]
    return _back(apply(kind, (x, shapes.expand(column, source.shape), source)), input.shape)


# --- an index into the flattened tensor --------------------------------------------------------------


def take(input: Any, index: Any) -> Tensor:
    """The elements at the given indices of the flattened tensor."""
    n = math.prod(input.shape)
    return apply(kinds.index[(0,)], (shapes.reshape(input, (n,)), unary(kinds.wrap_index[n], index)))


def put(input: Any, index: Any, source: Any, accumulate: bool = False) -> Tensor:
    """A copy of the tensor with source written, or added, at the given indices of the flattened tensor."""
    n = math.prod(input.shape)
    if index.numel() != source.numel():
        raise ShapeError(
            f"put: index has {index.numel()} elements, source has {source.numel()}; expected the same number"
        )
    same_dtype("put", input, source)
    flat = shapes.reshape(source, (source.numel(),))
    place = unary(kinds.wrap_index[n], shapes.reshape(index, (source.numel(),)))
    made = apply(kinds.index_put[(0,), bool(accumulate)], (shapes.reshape(input, (n,)), flat, place))
    return shapes.reshape(made, input.shape)
