"""Indexing and slicing: `x[...]` and `x[...] = y` with torch's rules, `narrow`, `select`.

Ints and slices become one `slice` op, which is a view; its start is passed by value, so a changing start makes no new
program. A 0-dimensional index tensor is a view too (`select_at`) and need not be fetched. Other index tensors become
`index`, which copies, as in torch. A mask stands for the positions where it is True: the dimensions that it covers
become one, and the worker is asked for the number of positions.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from gt import dtypes
from gt.client.compat.arguments import shown
from gt.client.compat.checks import positive
from gt.client.compat.dims import dim_of
from gt.client.compat.operands import coerce
from gt.client.functions import elementwise as ew
from gt.client.functions import masks, shapes
from gt.client.functions.constants import filled
from gt.client.functions.inplace import assign
from gt.client.programs import kinds
from gt.client.record.recorder import apply, unary
from gt.client.tensor import Tensor
from gt.client.views.aliases import reshaped, take, write
from gt.errors import ArgumentError, DimError, DTypeError, ShapeError
from gt.ops.rules import broadcast

__all__ = ["index_put", "narrow", "select", "select_scatter", "slice_scatter"]
METHODS = [*__all__]
INPLACE = ["index_put"]


class Selection(NamedTuple):
    """What a key selects: a view of the tensor, and index tensors for some of the view's dimensions."""

    view: Any
    dims: tuple[int, ...]
    indices: tuple[Any, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The selection's shape: the indices' common shape replaces their dimensions if adjacent, else comes first."""
        view, dims = self.view.shape, self.dims
        if not dims:
            return tuple(view)
        common = broadcast("index", *[i.shape for i in self.indices])
        rest = tuple(n for d, n in enumerate(view) if d not in dims)
        front = dims[0] if dims[-1] - dims[0] == len(dims) - 1 else 0
        return rest[:front] + common + rest[front:]


def getitem(x: Tensor, key: Any) -> Tensor:
    """x[key]."""
    place = _find(x, key)
    return apply(kinds.index[place.dims], (place.view, *place.indices)) if place.dims else place.view


def setitem(x: Tensor, key: Any, value: Any) -> None:
    """x[key] = value."""
    mask = _alone(key)
    if mask is not None and _fill_where(x, mask, value):
        return
    place = _find(x, key)
    view = place.view
    if not place.dims and _is_view(value, view):
        return  # the second half of `x[i] += 1`: the view has been written already
    if not isinstance(value, (bool, int, float)):
        value = _fitted(value, place.shape)
    if not place.dims:
        assign(view, value)
        return
    if isinstance(value, Tensor):
        value = ew.cast(value, x.dtype)
    write(view, apply(kinds.index_put[place.dims, False], (view, value, *place.indices)))


def index_put(input: Any, indices: Any, values: Any, accumulate: bool = False) -> Tensor:
    """A copy of the tensor with values written, or added, at the given indices; None selects a whole dimension."""
    key = tuple(slice(None) if k is None else k for k in indices)
    place = _find(input, key, views=False)
    if not place.dims:
        raise ArgumentError("index_put: expected at least one index tensor")
    values = _fitted(values, place.shape, "index_put") if isinstance(values, Tensor) else values
    made = apply(kinds.index_put[place.dims, bool(accumulate)], (place.view, values, *place.indices))
    return made if made.shape == input.shape else shapes.reshape(made, input.shape)


# --- slices along one dimension ----------------------------------------------------------------------


def narrow(input: Any, dim: int, start: Any, length: int) -> Tensor:
    """A view of `length` elements along dim, from `start` on."""
    d = dim_of("narrow", dim, input.shape)
    n = input.shape[d]
    start = start if hasattr(start, "_letter") else int(start)
    start = start + n if start < 0 else start
    if length < 0 or not 0 <= start <= n - length:
        raise DimError(f"narrow: start {start} and length {length} are out of range for dimension {d} of size {n}")
    return take(kinds.slice[(d,), (length,), (1,), ()], input, (start,))


def select(input: Any, dim: int, index: Any) -> Tensor:
    """The slice at an index along dim, as a view without that dimension."""
    return getitem(input, (slice(None),) * dim_of("select", dim, input.shape) + (index,))


def select_scatter(input: Any, src: Any, dim: int, index: int) -> Tensor:
    """A copy of the tensor with the slice at an index along dim replaced by src."""
    d = dim_of("select_scatter", dim, input.shape)
    n = input.shape[d]
    if not -n <= index < n:
        raise DimError(f"select_scatter: index {index} is out of range for dimension {d} of size {n}")
    return _put("select_scatter", input, src, d, index + n if index < 0 else index, 1, 1, (d,))


def slice_scatter(input: Any, src: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Tensor:
    """A copy of the tensor with the slice start:end:step along dim replaced by src."""
    d = dim_of("slice_scatter", dim, input.shape)
    positive("slice_scatter", "step", step)
    a, b, _ = slice(start, end, step).indices(input.shape[d])
    return _put("slice_scatter", input, src, d, a, len(range(a, b, step)), step, ())


def _put(op: str, input: Any, src: Any, dim: int, start: int, length: int, step: int, drop: tuple[int, ...]) -> Tensor:
    shape = (*input.shape[:dim], *(() if drop else (length,)), *input.shape[dim + 1 :])
    if src.shape != shape:
        raise ShapeError(f"{op}: src must have shape {shape}, got {tuple(src.shape)}")
    return apply(kinds.slice_put[(dim,), (length,), (step,), drop], (input, ew.cast(src, input.dtype), start))


# --- values ------------------------------------------------------------------------------------------


def _fitted(value: Any, shape: tuple[int, ...], op: str = "assignment") -> Any:
    """The value as a tensor that broadcasts to `shape`; extra leading dimensions of size 1 are dropped, as in torch."""
    if not isinstance(value, Tensor):
        value = coerce(op, value if hasattr(value, "_letter") else np.asarray(value))
        if not isinstance(value, Tensor):
            return value  # a number
    have = tuple(value.shape)
    while len(have) > len(shape) and have[0] == 1:
        have = have[1:]
    tail = shape[len(shape) - len(have) :]
    if len(have) > len(shape) or any(a not in (1, b) for a, b in zip(have, tail, strict=True)):
        raise ShapeError(f"{op}: a value of shape {tuple(value.shape)} does not broadcast to {shape}")
    return value if have == value.shape else shapes.reshape(value, have)


def _is_view(value: Any, view: Any) -> bool:
    """Whether the value is this same view, taken before."""
    a, b = getattr(value, "_x", None), view._x
    if a is None or a.base is None or b is None or a.base is not b.base or a.kind is not b.kind:
        return False
    return all(type(i) is int for i in a.args) and a.args == b.args


def _alone(key: Any) -> Any:
    """The mask, if the key is a single mask."""
    if isinstance(key, tuple):
        if len(key) != 1:
            return None
        key = key[0]
    if _is_tuple(key):
        return None
    key = _part(key) if isinstance(key, (list, np.ndarray)) else key
    return key if isinstance(key, Tensor) and key.dtype is dtypes.bool_ and key.ndim else None


def _fill_where(x: Any, mask: Any, value: Any) -> bool:
    """x[mask] = value if every position gets the same value: the number of positions is not needed."""
    n = mask.ndim
    rest = tuple(x.shape[n:])
    if n > x.ndim or mask.shape != x.shape[:n]:
        return False  # _find raises the error
    if not isinstance(value, Tensor):
        value = coerce("assignment", value if hasattr(value, "_letter") else np.asarray(value))
    if not isinstance(value, Tensor):
        value = filled((), value, x.dtype)
    have = tuple(value.shape)
    while len(have) > len(rest) and have[0] == 1:
        have = have[1:]
    if len(have) > len(rest):
        return False
    value = ew.cast(_fitted(value, (1, *rest)), x.dtype)
    if value.ndim > len(rest):
        value = shapes.reshape(value, have)
    wide = mask if not rest else shapes.reshape(mask, (*mask.shape, *[1] * len(rest)))
    write(x, ew.where(wide, value, x))
    return True


# --- keys --------------------------------------------------------------------------------------------


def _find(x: Any, key: Any, views: bool = True) -> Selection:
    """Parse a key. With `views`, a 0-dimensional index tensor is treated like an int."""
    keys = [_part(k) for k in key] if isinstance(key, tuple) or _is_tuple(key) else [_part(key)]
    used = sum([_width(k) for k in keys])
    if used > x.ndim:
        raise DimError(f"index: too many indices: {used} for a tensor of {x.ndim} dimensions")
    dots = [i for i, k in enumerate(keys) if k is Ellipsis]
    if len(dots) > 1:
        raise DimError("index: an index may contain only one ellipsis (...)")
    at = dots[0] if dots else len(keys)
    keys[at : at + 1] = [slice(None)] * (x.ndim - used)

    sliced: list[tuple[int, Any, int, int]] = []  # dimension, start, length, step
    drop: list[int] = []
    picked: list[tuple[int, Any]] = []  # dimension of the slice, index without dimensions
    dims: list[int] = []
    indices: list[Any] = []
    shape: list[int] = []  # of the view
    other = False  # whether the view has dimensions that the slice does not have
    dim = kept = 0  # dimensions of x read so far, and how many of them the slice keeps
    for k in keys:
        if k is None:
            shape.append(1)
            other = True
            continue
        if isinstance(k, bool):
            dims.append(len(shape))
            indices.append(filled((int(k),), 0, dtypes.int64))  # one position if True, none if False
            shape.append(1)
            other = True
            continue
        n = x.shape[dim]
        if isinstance(k, slice):
            start, length, step = _slice(k, n)
            if not (type(start) is int and start == 0 and length == n and step == 1):
                sliced.append((dim, start, length, step))
            shape.append(length)
        elif not isinstance(k, Tensor):
            if not -n <= k < n:
                raise DimError(f"index: {k} is out of range for dimension {dim} of size {n}")
            sliced.append((dim, k + n if k < 0 else k, 1, 1))
            drop.append(dim)
            kept -= 1
        elif k.dtype is dtypes.bool_:
            covered = tuple(x.shape[dim : dim + k.ndim])
            if k.shape != covered:
                raise DimError(f"index: a mask of shape {tuple(k.shape)} does not match dimensions of sizes {covered}")
            dims.append(len(shape))
            indices.append(masks.positions(k))
            shape.append(math.prod(covered))
            other = other or k.ndim != 1
            dim += k.ndim - 1
            kept += k.ndim - 1
        elif views and not k.ndim:
            picked.append((kept, unary(kinds.wrap_index[n], k)))
        else:
            dims.append(len(shape))
            indices.append(unary(kinds.wrap_index[n], k))
            shape.append(n)
        dim += 1
        kept += 1

    view = x
    if sliced:
        at_, starts, lengths, steps = zip(*sliced, strict=True)
        view = take(kinds.slice[at_, lengths, steps, tuple(drop)], x, starts)
    for d, i in reversed(picked):
        view = take(kinds.select_at[d], view, (i,))
    if other:
        view = reshaped(view, tuple(shape))
    elif view is x and not dims:
        view = reshaped(x, tuple(x.shape))  # x[:] is a new tensor on the same memory
    return Selection(view, tuple(dims), tuple(indices))


def _is_tuple(key: Any) -> bool:
    """Whether the key is a list that torch treats as a tuple: one that contains more than numbers."""
    return isinstance(key, list) and any(
        k is None or k is Ellipsis or isinstance(k, (slice, list, tuple, range, Tensor)) for k in key
    )


def _width(k: Any) -> int:
    """The number of dimensions that a part of a key covers."""
    if k is None or k is Ellipsis or isinstance(k, bool):
        return 0
    return k.ndim if isinstance(k, Tensor) and k.dtype is dtypes.bool_ else 1


def _part(k: Any) -> Any:
    """A part of a key as None, Ellipsis, a slice, an int (or a traced number), a bool or an index tensor."""
    if k is None or k is Ellipsis or type(k) is int or type(k) is slice or hasattr(k, "_letter"):
        return k
    if isinstance(k, (bool, np.bool_)):
        return bool(k)
    if isinstance(k, (list, tuple, range)) or (hasattr(k, "__array__") and not isinstance(k, Tensor)):
        try:
            array = np.asarray(k)
        except ValueError:
            raise DTypeError("index: a list in an index must contain ints or bools, in rows of equal length") from None
        if not array.size and isinstance(k, (list, tuple, range)):
            array = array.astype(np.int64)
        if not array.ndim:
            return _part(array.item())
        if array.dtype.kind not in "biu":
            raise DTypeError(f"index: an index must contain ints or bools, got {array.dtype}")
        k = coerce("index", array)
    if isinstance(k, Tensor):
        if k.dtype.is_differentiable:
            raise DTypeError(f"index: an index tensor must contain ints or bools, got {k.dtype.name}")
        if k.dtype is dtypes.uint8:
            k = ew.cast(k, dtypes.bool_)  # torch treats uint8 as a mask
        if k.dtype is dtypes.bool_:
            return k if k.ndim else bool(k)
        return k if k.dtype in (dtypes.int64, dtypes.int32) else ew.cast(k, dtypes.int64)
    if hasattr(k, "__index__"):
        return int(k.__index__())
    raise DTypeError(f"index: expected ints, slices, None, ... or tensors, got {shown(k)}")


def _slice(k: slice, n: int) -> tuple[Any, int, int]:
    """Start, length and step. The start may be a number argument of a traced function."""
    step = 1 if k.step is None else int(k.step)
    if step <= 0:
        raise ArgumentError(f"index: the step of a slice must be > 0, got {step}; use flip()")
    start, stop = k.start, k.stop
    if hasattr(start, "_letter") or hasattr(stop, "_letter"):
        start, stop = start if start is not None else 0, stop if stop is not None else n
        start = start + n if start < 0 else start
        stop = stop + n if stop < 0 else stop
        stop = n if stop > n else stop
        if start > n:
            start = n
        length = int((stop - start + step - 1) // step)
        return start, max(length, 0), step
    a, b, _ = k.indices(n)
    return a, len(range(a, b, step)), step
