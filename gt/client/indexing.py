"""`x[...]` and `x[...] = y`, and the functions that take index tensors.

Ints and slices are one `slice` op, a view; where it starts is passed by value, so a moving start makes no
new program. Index tensors are `index`, a copy, as in torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gt.client import elementwise as ew
from gt.client import recorder as recording
from gt.client import shapes
from gt.client.dims import one_dim
from gt.client.inplace import assign
from gt.client.recorder import apply, unary
from gt.client.tree import Kind, Kinds
from gt.client.views import take, write
from gt.errors import ArgumentError, DimError, DTypeError, ShapeError
from gt.ops import TABLE

if TYPE_CHECKING:
    from gt.client.tensor import Tensor

__all__ = ["embedding", "gather", "index_add", "index_select", "narrow", "one_hot", "scatter_add", "select"]
METHODS = [*{*__all__} - {"embedding", "one_hot"}]
INPLACE = ["index_add", "scatter_add"]

_SLICE = Kinds(TABLE["slice"], "dims", "lengths", "steps", "drop")
_INDEX = Kinds(TABLE["index"], "dims")
_INDEX_PUT = Kinds(TABLE["index_put"], "dims", "accumulate")
_WRAP = Kinds(TABLE["wrap_index"], "n")
_GATHER = Kinds(TABLE["gather"], "dim")
_SCATTER_ADD = Kinds(TABLE["scatter_add"], "dim")
_INDEX_SELECT = Kinds(TABLE["index_select"], "dim")
_INDEX_ADD = Kinds(TABLE["index_add"], "dim")
_EMBEDDING = Kind(TABLE["embedding"], {})
_ONE_HOT = Kinds(TABLE["one_hot"], "n")


def getitem(x: Tensor, key: Any) -> Tensor:
    """x[key]."""
    basic, tensors = _parse(x, key)
    if not tensors:
        return basic
    return _gather_at(basic, tensors)


def setitem(x: Tensor, key: Any, value: Any) -> None:
    """x[key] = value."""
    if hasattr(key, "dtype") and str(getattr(key.dtype, "name", "")) == "bool" and tuple(key.shape) == x.shape:
        assign(x, ew.where(key, value, x))
        return
    basic, tensors = _parse(x, key)
    if not tensors:
        value = value if hasattr(value, "_v") else _as_tensor(value, x)
        value = _drop_leading_ones(value, basic.ndim)
        _check_fits("assignment", value.shape, basic.shape)
        assign(basic, value)
        return
    dims = tuple(d for d, _ in tensors)
    value = value if hasattr(value, "_v") else _as_tensor(value, x)
    target = _gather_at(basic, tensors).shape
    _check_fits("assignment", value.shape, target)
    value = ew.cast(value, x.dtype)
    if value.shape != target:
        value = shapes.expand(value, target)
    write(basic, apply(_INDEX_PUT[dims, False], (basic, value, *[i for _, i in tensors])))


def _as_tensor(value: Any, like: Any) -> Any:
    if isinstance(value, (bool, int, float)) or hasattr(value, "_letter"):
        from gt.client.creation import full

        return full((), value, dtype=like.dtype)
    return recording.coerce("assignment", np.asarray(value))


def _check_fits(op: str, have: tuple[int, ...], want: tuple[int, ...]) -> None:
    tail = want[len(want) - len(have) :] if len(have) <= len(want) else None
    if tail is None or any(a not in (1, b) for a, b in zip(have, tail, strict=True)):
        raise ShapeError(f"{op}: a value of shape {have} does not fit into {want}")


def _drop_leading_ones(value: Any, ndim: int) -> Any:
    shape = value.shape
    while len(shape) > ndim and shape[0] == 1:
        shape = shape[1:]
    return value if shape == value.shape else shapes.reshape(value, shape)


def _parse(x: Any, key: Any) -> tuple[Tensor, list[tuple[int, Any]]]:
    """The part of an index that is a view (ints, slices, None, ...), taken; and the rest, index tensors
    with the dimension of that view they stand at."""
    keys = list(key) if isinstance(key, tuple) else [key]
    used = sum(1 for k in keys if k is not None and k is not Ellipsis)
    if used > x.ndim:
        raise DimError(f"index: {used} indices for a tensor of {x.ndim} dimensions")
    if sum(1 for k in keys if k is Ellipsis) > 1:
        raise DimError("index: an index can have only one ellipsis (...)")
    if not any(k is Ellipsis for k in keys):
        keys.append(Ellipsis)
    at = next(i for i, k in enumerate(keys) if k is Ellipsis)
    keys[at : at + 1] = [slice(None)] * (x.ndim - used)

    starts: list[Any] = []
    dims: list[int] = []
    lengths: list[int] = []
    steps: list[int] = []
    drop: list[int] = []
    shape: list[int] = []  # of the view, None's included
    tensors: list[tuple[int, Any]] = []
    new_axes = False
    dim = 0
    for k in keys:
        if k is None:
            shape.append(1)
            new_axes = True
            continue
        n = x.shape[dim]
        if isinstance(k, slice):
            start, length, step = _slice(k, n)
            shape.append(length)
            if not (type(start) is int and start == 0 and length == n and step == 1):
                dims.append(dim)
                starts.append(start)
                lengths.append(length)
                steps.append(step)
        elif hasattr(k, "_letter") or (hasattr(k, "__index__") and not _is_array(k)):
            i = k if hasattr(k, "_letter") else k.__index__()
            if isinstance(k, (bool, np.bool_)):
                raise DTypeError("index: a bool is not an index; use a bool tensor of the tensor's shape")
            if not -n <= i < n:
                raise DimError(f"index: {i} is out of range for dimension {dim} of size {n}")
            dims.append(dim)
            starts.append(i + n if i < 0 else i)
            lengths.append(1)
            steps.append(1)
            drop.append(dim)
        else:
            tensors.append((len(shape), _index_tensor(k, n, dim)))
            shape.append(n)
        dim += 1
    view = x
    if dims:
        view = take(_SLICE[tuple(dims), tuple(lengths), tuple(steps), tuple(drop)], x, tuple(starts))
    if new_axes:
        view = shapes.reshape(view, tuple(shape))
    elif not dims and not tensors:
        view = shapes.reshape(x, tuple(x.shape))  # x[:] is a new tensor on the same memory
    return view, tensors


def _slice(k: slice, n: int) -> tuple[Any, int, int]:
    """Start, length and step. The start may be a number that a traced function was given."""
    step = 1 if k.step is None else int(k.step)
    if step <= 0:
        raise ArgumentError("index: the step of a slice must be positive; use flip()")
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


def _is_array(k: Any) -> bool:
    return hasattr(k, "_v") or isinstance(k, (np.ndarray, list))


def _index_tensor(k: Any, n: int, dim: int) -> Any:
    if isinstance(k, (list, np.ndarray)):
        k = recording.coerce("index", np.asarray(k))
    if not hasattr(k, "_v"):
        raise DTypeError(f"index: {type(k).__name__} is not an index; use ints, slices, None, ... or tensors")
    if k.dtype.name == "bool":
        raise DTypeError("index: the size of x[mask] depends on data; use where(mask, x, other), or x[mask] = value")
    if k.dtype.is_floating_point:
        raise DTypeError(f"index: an index tensor must hold ints, not {k.dtype.name}")
    return unary(_WRAP[n], k)


def _gather_at(view: Any, tensors: list[tuple[int, Any]]) -> Tensor:
    return apply(_INDEX[tuple(d for d, _ in tensors)], (view, *[i for _, i in tensors]))


# --- functions ---------------------------------------------------------------------------------------


def gather(input: Any, dim: int, index: Any) -> Tensor:
    """Elements picked along dim by an index tensor of the result's shape."""
    return apply(_GATHER[one_dim("gather", dim, input.ndim)], (input, index))


def scatter_add(input: Any, dim: int, index: Any, src: Any) -> Tensor:
    """The tensor with the elements of src added where the index says."""
    return apply(_SCATTER_ADD[one_dim("scatter_add", dim, input.ndim)], (input, index, src))


def index_select(input: Any, dim: int, index: Any) -> Tensor:
    """Rows (or other slices along dim) by number."""
    return apply(_INDEX_SELECT[one_dim("index_select", dim, input.ndim)], (input, index))


def index_add(input: Any, dim: int, index: Any, source: Any) -> Tensor:
    """The tensor with slices of source added at the numbers given."""
    return apply(_INDEX_ADD[one_dim("index_add", dim, input.ndim)], (input, index, source))


def embedding(input: Any, weight: Any) -> Tensor:
    """Rows of weight by number; the numbers come first, as in torch.nn.functional."""
    return apply(_EMBEDDING, (weight, input))


def one_hot(tensor: Any, num_classes: int = -1) -> Tensor:
    """Ones where the number says, zeros elsewhere, along a new last dimension."""
    if num_classes < 0:
        num_classes = int(tensor.max().item()) + 1
    return unary(_ONE_HOT[num_classes], tensor)


def narrow(input: Any, dim: int, start: int, length: int) -> Tensor:
    """A view of `length` elements from `start` along dim."""
    d = one_dim("narrow", dim, input.ndim)
    n = input.shape[d]
    start = start + n if start < 0 else start
    if not 0 <= start <= n - length:
        raise DimError(f"narrow: {length} elements from {start} do not fit into dimension {d} of size {n}")
    return take(_SLICE[(d,), (length,), (1,), ()], input, (start,))


def select(input: Any, dim: int, index: int) -> Tensor:
    """One slice along dim, as a view without that dimension."""
    d = one_dim("select", dim, input.ndim)
    return getitem(input, (slice(None),) * d + (index,))
