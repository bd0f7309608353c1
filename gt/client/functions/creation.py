"""Making tensors: from data, filled, counting. Random ones are in randoms.py."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gt import dtypes
from gt.client.compat.arguments import shown
from gt.client.compat.autocast import default_dtype
from gt.client.compat.dims import sizes
from gt.client.compat.interop import is_torch, torch_array
from gt.client.functions import elementwise as ew
from gt.client.functions.shapes import expand
from gt.client.mesh import sharding
from gt.client.programs.tree import Kinds
from gt.client.record import recorder as recording
from gt.client.record.recorder import apply
from gt.client.tensor import Tensor
from gt.client.views.aliases import pinned
from gt.dtypes import DType
from gt.errors import ArgumentError, DTypeError
from gt.ops import TABLE
from gt.program import spec

__all__ = [
    "arange", "as_tensor", "asarray", "empty", "empty_like", "empty_permuted", "empty_strided", "eye", "from_numpy",
    "frombuffer", "full", "full_like", "linspace", "logspace", "ones", "ones_like", "scalar_tensor", "tensor",
    "tril_indices", "triu_indices", "zeros", "zeros_like",
]  # fmt: skip
METHODS = ["new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros"]

BY_VALUE_NBYTES = 1024  #: Host data up to this size travels with the call that uses it.

_DATA = Kinds(TABLE["data"], "shape", "dtype")
_FULL = Kinds(TABLE["full"], "shape", "dtype")
_ARANGE = Kinds(TABLE["arange"], "n", "dtype")

#: Where and how the memory lies is the workers' affair: these are accepted and change nothing.
_IGNORED = {"device", "layout", "memory_format", "pin_memory"}


def wished(where: dict[str, Any]) -> Any:
    """The layout over workers that was asked for, if any: torch's word for how elements lie is none."""
    layout = where.get("layout")
    return None if layout is None or str(layout).endswith("strided") else layout


def ignored(op: str, where: dict[str, Any]) -> None:
    """Refuse keywords that nobody knows."""
    if isinstance(wished(where), (str, dict)):
        raise ArgumentError(f"{op}: is laid out over workers by gt.shard({op}(...), {where['layout']!r})")
    if not _IGNORED.issuperset(where):
        unknown = ", ".join(sorted(where.keys() - _IGNORED))
        cure = "; out= is not supported, use the result" if "out" in where else ""
        raise ArgumentError(f"{op}: does not take {unknown}{cure}")


# --- from data ---------------------------------------------------------------------------------------


def tensor(data: Any, *, dtype: Any = None, requires_grad: bool = False, **where: Any) -> Tensor:
    """A tensor with a copy of this data: numbers, nested lists, arrays of numpy or torch, tensors.

    >>> import gt
    >>> gt.tensor([[1, 2], [3, 4]])
    tensor([[1, 2],
            [3, 4]])
    """
    layout = wished(where)
    where.pop("layout", None)
    ignored("tensor", where)
    if hasattr(data, "_v"):
        t = data.detach().clone()
        t = t if dtype is None else ew.cast(t, dtype)
        return finish(t if layout is None else sharding.shard(t, layout), requires_grad)
    return finish(from_numpy(_array("tensor", data, dtype), layout=layout), requires_grad)


def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """The tensor itself, or one made of this data."""
    if hasattr(data, "_v"):
        return data if dtype is None else ew.cast(data, dtype)
    return tensor(data, dtype=dtype)


def asarray(obj: Any, *, dtype: Any = None, copy: bool | None = None, requires_grad: bool = False, **where: Any) -> Any:
    """The tensor itself if it need not be copied, or one made of this object."""
    ignored("asarray", where)
    if copy:
        return tensor(obj, dtype=dtype, requires_grad=requires_grad)
    return finish(as_tensor(obj, dtype), requires_grad)


def scalar_tensor(s: Any, *, dtype: Any = None, requires_grad: bool = False, **where: Any) -> Tensor:
    """A tensor without dimensions, of one number."""
    ignored("scalar_tensor", where)
    kind = default_dtype() if dtype is None and not isinstance(s, complex) else dtype
    return full((), s, dtype=kind, requires_grad=requires_grad)


def from_numpy(array: np.ndarray[Any, Any], *, layout: Any = None) -> Tensor:
    """A tensor with a copy of the array. When this returns, the array may change.

    With a `layout` (see `gt.shard`) each worker gets its part of it, and no more.
    """
    if not isinstance(array, (np.ndarray, np.generic)):
        raise DTypeError(f"from_numpy: expected a numpy array, got {shown(array)}")
    try:
        kind = dtypes.dtype(array.dtype)
    except DTypeError:
        raise DTypeError(f"from_numpy: a tensor cannot hold elements of type {array.dtype}") from None
    shape = tuple(array.shape)
    wish = "" if layout is None else sharding.layout_text("from_numpy", shape, layout)
    if array.nbytes <= BY_VALUE_NBYTES:
        made: Tensor = apply(_DATA[shape, kind.name], (array.tobytes(),))
        return made if layout is None else pinned(made, wish)
    return Tensor(recording.recorder().session.upload(array, spec(shape, kind), wish))


def frombuffer(buffer: Any, *, dtype: Any, count: int = -1, offset: int = 0, requires_grad: bool = False) -> Tensor:
    """A tensor with a copy of the bytes of a buffer."""
    array = np.frombuffer(buffer, dtypes.dtype(dtype).numpy, count, offset)
    return finish(from_numpy(array), requires_grad)


def _array(op: str, data: Any, dtype: Any) -> np.ndarray[Any, Any]:
    """Data as an array, of the dtype that torch would give it."""
    to = None if dtype is None else dtypes.dtype(dtype)
    kinds: set[DType] = set()
    data = _bare(op, data, kinds)
    if to is None:
        to = next(iter(kinds)) if kinds else default_dtype()
        for kind in kinds:
            to = dtypes.promote_types(to, kind)
    if isinstance(data, np.ndarray):
        return data if data.dtype == to.numpy else data.astype(to.numpy)
    try:
        return np.asarray(data, dtype=to.numpy)
    except (ValueError, TypeError):
        raise ArgumentError(f"{op}: the rows of the data have different lengths, or hold no numbers") from None
    except OverflowError:
        raise ArgumentError(f"{op}: a number of the data does not fit into {to.name}") from None


def _bare(op: str, data: Any, kinds: set[DType]) -> Any:
    """The data as numpy understands it. What its elements are is added to `kinds`."""
    if isinstance(data, (bool, int, float, complex)) and not isinstance(data, np.generic):
        kinds.add(_number_type(data))
        return data
    if hasattr(data, "_letter"):
        return _bare(op, data.fixed(), kinds)
    if hasattr(data, "_v"):
        data = data.detach().numpy()
    elif is_torch(data):
        data = torch_array(data)
    if hasattr(data, "__array__") and not isinstance(data, (np.ndarray, np.generic)):
        data = np.asarray(data)
    if isinstance(data, (np.ndarray, np.generic)):
        array = np.asarray(data)
        try:
            kinds.add(dtypes.dtype(array.dtype))
        except DTypeError:
            raise DTypeError(f"{op}: a tensor cannot hold elements of type {array.dtype}") from None
        return array
    if isinstance(data, (str, bytes)) or not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        raise DTypeError(f"{op}: a tensor cannot hold elements like {shown(data)}")
    found = set(map(type, data))
    if found <= {bool, int, float, complex}:
        kinds.update(_number_type(kind()) for kind in found)
        return list(data)
    return [_bare(op, x, kinds) for x in data]


def _number_type(x: Any) -> DType:
    if isinstance(x, bool):
        return dtypes.bool_
    if isinstance(x, int):
        return dtypes.int64
    return default_dtype() if isinstance(x, float) else default_dtype().to_complex()


def finish(t: Tensor, requires_grad: bool) -> Tensor:
    """The tensor, as a leaf if it shall require a gradient."""
    return t.requires_grad_() if requires_grad else t


def float_dtype(dtype: Any) -> DType:
    """The dtype asked for, or the default."""
    return default_dtype() if dtype is None else dtypes.dtype(dtype)


# --- filled ------------------------------------------------------------------------------------------


def shape_of(op: str, size: tuple[Any, ...], where: dict[str, Any]) -> tuple[int, ...]:
    """The sizes, given one by one, as a sequence or by name; and nothing unknown beside them."""
    if "size" in where and not size:
        size = (where.pop("size"),)
    ignored(op, where)
    shape = sizes(op, size)
    if any(n < 0 for n in shape):
        raise ArgumentError(f"{op}: a size cannot be negative: {shape}")
    return shape


def full(size: Any, fill_value: Any, *, dtype: Any = None, requires_grad: bool = False, **where: Any) -> Tensor:
    """A tensor of this size, every element the same."""
    shape = shape_of("full", (size,), where)
    if hasattr(fill_value, "_v") or isinstance(fill_value, (complex, np.complexfloating)):
        one = tensor(fill_value, dtype=dtype)
        if one.shape:
            raise ArgumentError(f"full: the value is one number, not a tensor of shape {one.shape}")
        return finish(expand(one, shape).clone(), requires_grad)
    if dtype is None:
        whole = getattr(fill_value, "_letter", "") == "i" or isinstance(fill_value, (int, np.integer))
        is_bool = isinstance(fill_value, (bool, np.bool_))
        dtype = dtypes.bool_ if is_bool else dtypes.int64 if whole else default_dtype()
    return finish(apply(_FULL[shape, dtypes.dtype(dtype).name], (fill_value,)), requires_grad)


def _filled(op: str, value: float, size: tuple[Any, ...], dtype: DType, grad: bool, where: dict[str, Any]) -> Tensor:
    return finish(apply(_FULL[shape_of(op, size, where), dtype.name], (value,)), grad)


def zeros(*size: Any, dtype: Any = None, requires_grad: bool = False, **where: Any) -> Tensor:
    """A tensor of zeros.

    >>> import gt
    >>> gt.zeros(2, 3)
    tensor([[0., 0., 0.],
            [0., 0., 0.]])
    """
    return _filled("zeros", 0.0, size, float_dtype(dtype), requires_grad, where)


def ones(*size: Any, dtype: Any = None, requires_grad: bool = False, **where: Any) -> Tensor:
    """A tensor of ones."""
    return _filled("ones", 1.0, size, float_dtype(dtype), requires_grad, where)


def empty(*size: Any, dtype: Any = None, requires_grad: bool = False, **where: Any) -> Tensor:
    """A tensor with any content; here, zeros."""
    return _filled("empty", 0.0, size, float_dtype(dtype), requires_grad, where)


def empty_permuted(
    size: Any, physical_layout: Any, *, dtype: Any = None, requires_grad: bool = False, **where: Any
) -> Tensor:
    """A tensor with any content; the order of its dimensions in memory is the workers' affair."""
    return _filled("empty_permuted", 0.0, (size,), float_dtype(dtype), requires_grad, where)


def empty_strided(size: Any, stride: Any, *, dtype: Any = None, requires_grad: bool = False, **where: Any) -> Tensor:
    """A tensor with any content; its strides in memory are the workers' affair."""
    return _filled("empty_strided", 0.0, (size,), float_dtype(dtype), requires_grad, where)


def zeros_like(input: Any, *, dtype: Any = None, requires_grad: bool = False, **where: Any) -> Tensor:
    """Zeros in the shape and dtype of another tensor."""
    return _filled("zeros_like", 0.0, (input.shape,), like(input, dtype), requires_grad, where)


def ones_like(input: Any, *, dtype: Any = None, requires_grad: bool = False, **where: Any) -> Tensor:
    """Ones in the shape and dtype of another tensor."""
    return _filled("ones_like", 1.0, (input.shape,), like(input, dtype), requires_grad, where)


def empty_like(input: Any, *, dtype: Any = None, requires_grad: bool = False, **where: Any) -> Tensor:
    """Any content, here zeros, in the shape and dtype of another tensor."""
    return _filled("empty_like", 0.0, (input.shape,), like(input, dtype), requires_grad, where)


def full_like(input: Any, fill_value: Any, *, dtype: Any = None, requires_grad: bool = False, **where: Any) -> Tensor:
    """One number in the shape and dtype of another tensor."""
    return full(input.shape, fill_value, dtype=like(input, dtype), requires_grad=requires_grad, **where)


def like(input: Any, dtype: Any) -> DType:
    """The dtype asked for, or that of a tensor."""
    given: DType = input.dtype
    return given if dtype is None else dtypes.dtype(dtype)


# --- new_zeros and its kin: methods only -------------------------------------------------------------


def new_zeros(self: Any, *size: Any, dtype: Any = None, requires_grad: bool = False, **where: Any) -> Tensor:
    """Zeros of this size, in the tensor's dtype."""
    return _filled("new_zeros", 0.0, size, like(self, dtype), requires_grad, where)


def new_ones(self: Any, *size: Any, dtype: Any = None, requires_grad: bool = False, **where: Any) -> Tensor:
    """Ones of this size, in the tensor's dtype."""
    return _filled("new_ones", 1.0, size, like(self, dtype), requires_grad, where)


def new_empty(self: Any, *size: Any, dtype: Any = None, requires_grad: bool = False, **where: Any) -> Tensor:
    """Any content of this size, in the tensor's dtype."""
    return _filled("new_empty", 0.0, size, like(self, dtype), requires_grad, where)


def new_empty_strided(
    self: Any, size: Any, stride: Any, *, dtype: Any = None, requires_grad: bool = False, **where: Any
) -> Tensor:
    """Any content of this size, in the tensor's dtype; strides are the workers' affair."""
    return _filled("new_empty_strided", 0.0, (size,), like(self, dtype), requires_grad, where)


def new_full(
    self: Any, size: Any, fill_value: Any, *, dtype: Any = None, requires_grad: bool = False, **where: Any
) -> Tensor:
    """One number, of this size, in the tensor's dtype."""
    return full(size, fill_value, dtype=like(self, dtype), requires_grad=requires_grad, **where)


def new_tensor(self: Any, data: Any, *, dtype: Any = None, requires_grad: bool = False, **where: Any) -> Tensor:
    """A tensor with a copy of this data, in the tensor's dtype."""
    return tensor(data, dtype=like(self, dtype), requires_grad=requires_grad, **where)


# --- counting ----------------------------------------------------------------------------------------


def _number(x: Any) -> Any:
    """A number that may have been given as a tensor."""
    return x.item() if hasattr(x, "_v") or isinstance(x, (np.generic, np.ndarray)) else x


def _is_whole(x: Any) -> bool:
    return isinstance(x, int) or getattr(x, "_letter", "") in ("i", "b")


def arange(
    start: Any = None, end: Any = None, step: Any = 1, *, dtype: Any = None, requires_grad: bool = False, **where: Any
) -> Tensor:
    """start (0 if not given), start + step, ... below end.

    >>> import gt
    >>> gt.arange(2, 10, 3)
    tensor([2, 5, 8])
    """
    ignored("arange", where)
    if start is None or end is None:
        start, end = 0, start if end is None else end
    if end is None:
        raise ArgumentError("arange: give an end, as in arange(10)")
    start, end, step = _number(start), _number(end), _number(step)
    whole = _is_whole(start) and _is_whole(end) and _is_whole(step)
    kind = dtypes.dtype(dtype) if dtype is not None else dtypes.int64 if whole else default_dtype()
    if not kind.is_floating_point and not whole:  # torch rounds before it counts
        start, end, step = int(start), int(end), int(step)
        whole = True
    if step == 0:
        raise ArgumentError("arange: step must not be zero")
    n = int(-((start - end) // step)) if whole else math.ceil((end - start) / step)
    if n < 0:
        raise ArgumentError(f"arange: from {start} to {end} does not go with a step of {step}")
    return finish(apply(_ARANGE[n, kind.name], (start, step)), requires_grad)


def _places(op: str, start: Any, end: Any, steps: Any, dtype: DType, wide: DType) -> Tensor:
    """`steps` numbers from start to end, in a wide type."""
    n = int(_number(steps))
    if n < 0:
        raise ArgumentError(f"{op}: the number of steps cannot be negative: {n}")
    if not dtype.is_differentiable:  # torch rounds before it counts
        start, end = int(start), int(end)
    i = arange(n, dtype=wide)
    step = (end - start) / (n - 1) if n > 1 else 0.0
    # Counted from both ends, as torch does: so the last one is `end` itself.
    return ew.where(i < max(n // 2, 1), i * step + start, (i - (n - 1)) * step + end)


def linspace(
    start: Any, end: Any, steps: Any, *, dtype: Any = None, requires_grad: bool = False, **where: Any
) -> Tensor:
    """So many numbers from start to end, evenly spaced."""
    ignored("linspace", where)
    start, end = _number(start), _number(end)
    kind = _spaced(start, end, dtype)
    return finish(ew.cast(_places("linspace", start, end, steps, kind, dtypes.float64), kind), requires_grad)


def logspace(
    start: Any, end: Any, steps: Any, base: float = 10.0, *, dtype: Any = None, requires_grad: bool = False,
    **where: Any,
) -> Tensor:  # fmt: skip
    """So many powers of base, whose exponents go from start to end, evenly spaced."""
    ignored("logspace", where)
    start, end = _number(start), _number(end)
    kind = _spaced(start, end, dtype)
    wide = dtypes.float64 if kind.is_differentiable else dtypes.float32  # as torch: what is cut off differs
    powers = ew.pow(base, _places("logspace", start, end, steps, kind, wide))
    return finish(ew.cast(powers, kind), requires_grad)


def _spaced(start: Any, end: Any, dtype: Any) -> DType:
    if dtype is None and (isinstance(start, complex) or isinstance(end, complex)):
        return default_dtype().to_complex()
    return float_dtype(dtype)


def eye(n: int, m: int | None = None, *, dtype: Any = None, requires_grad: bool = False, **where: Any) -> Tensor:
    """Ones on the diagonal, zeros elsewhere."""
    ignored("eye", where)
    shape = shape_of("eye", (n, n if m is None else m), {})
    rows, columns = arange(shape[0]).unsqueeze(1), arange(shape[1])
    return finish(ew.cast(ew.eq(rows, columns), float_dtype(dtype)), requires_grad)


def _triangle(keep: np.ndarray[Any, Any], dtype: Any) -> Tensor:
    return from_numpy(np.stack(np.nonzero(keep)).astype(dtypes.dtype(dtype).numpy))


def tril_indices(row: int, col: int, offset: int = 0, *, dtype: Any = dtypes.int64, **where: Any) -> Tensor:
    """Row and column of every element on and below a diagonal."""
    ignored("tril_indices", where)
    return _triangle(np.tri(row, col, offset, dtype=bool), dtype)


def triu_indices(row: int, col: int, offset: int = 0, *, dtype: Any = dtypes.int64, **where: Any) -> Tensor:
    """Row and column of every element on and above a diagonal."""
    ignored("triu_indices", where)
    return _triangle(~np.tri(row, col, offset - 1, dtype=bool), dtype)


# --- seeds -------------------------------------------------------------------------------------------


def next_seed(generator: Any = None) -> Any:
    """The seed of a random op; in a traced function, one that a replay draws anew."""
    rec = recording.recorder()
    trace = rec.trace
    if generator is not None:
        draw = generator.next_seed if trace is None else lambda: trace.live(generator.next_seed)
    else:
        draw = rec.session.next_seed if trace is None else trace.seed
    return draw() if rec.tape is None else rec.tape.next(draw)
