"""Creating tensors: from data, filled with a number, ranges. Random tensors are in randoms.py."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gt import dtypes
from gt.client.compat.arguments import shown
from gt.client.compat.checks import at_least
from gt.client.compat.dims import sizes
from gt.client.compat.interop import is_torch, torch_array
from gt.client.functions import elementwise as ew
from gt.client.functions.constants import filled, upload
from gt.client.functions.shapes import expand
from gt.client.mesh import sharding
from gt.client.programs import kinds
from gt.client.record import recorder as recording
from gt.client.record.recorder import apply
from gt.client.tensor import Tensor, default_dtype, own
from gt.dtypes import DType
from gt.errors import ArgumentError, DTypeError

__all__ = [
    "arange", "as_tensor", "asarray", "empty", "empty_like", "empty_permuted", "empty_strided", "eye", "from_numpy",
    "frombuffer", "full", "full_like", "linspace", "logspace", "ones", "ones_like", "scalar_tensor", "tensor",
    "tril_indices", "triu_indices", "zeros", "zeros_like",
]  # fmt: skip
METHODS = ["new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros"]


#: Keywords of torch that are accepted without effect: the workers decide how memory is used.
_IGNORED = {"device", "layout", "memory_format", "pin_memory"}


def worker_layout(where: dict[str, Any]) -> Any:
    """The layout over workers that was passed as `layout`, if any; torch.strided is not one."""
    layout = where.get("layout")
    return None if layout is None or str(layout).endswith("strided") else layout


def ignored(op: str, where: dict[str, Any]) -> None:
    """Raise an error for unknown keywords, and for a layout over workers."""
    if isinstance(worker_layout(where), (str, dict)):
        raise ArgumentError(f"{op}() takes no layout=; use gt.shard(gt.{op}(...), {where['layout']!r})")
    if not _IGNORED.issuperset(where):
        unknown = ", ".join(sorted(where.keys() - _IGNORED))
        raise ArgumentError(f"{op}: unexpected argument {unknown}")


# --- from data ---------------------------------------------------------------------------------------


def tensor(data: Any, *, dtype: Any = None, requires_grad: bool = False, **where: Any) -> Tensor:
    """A tensor with a copy of the data: a number, nested lists, a NumPy array, a torch tensor or a tensor.

    >>> import gt
    >>> gt.tensor([[1, 2], [3, 4]])
    tensor([[1, 2],
            [3, 4]])

    With requires_grad=True, whole numbers become floating-point numbers.
    """
    layout = worker_layout(where)
    where.pop("layout", None)
    ignored("tensor", where)
    data = own(data)
    if requires_grad and dtype is None and _whole_numbers(data):
        dtype = default_dtype()  # torch refuses it; there is only one thing that it can mean
    if isinstance(data, Tensor):
        t = data.detach().clone()
        t = t if dtype is None else ew.cast(t, dtype)
        return finish(t if layout is None else sharding.shard(t, layout), requires_grad)
    return finish(from_numpy(_array("tensor", data, dtype), layout=layout), requires_grad)


def _whole_numbers(data: Any) -> bool:
    """Whether the data consists of Python's ints, in lists or alone."""
    if isinstance(data, (list, tuple)):
        return bool(data) and all(map(_whole_numbers, data))
    return type(data) is int


def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """Convert data to a tensor; a tensor is returned as it is."""
    data = own(data)
    if isinstance(data, Tensor):
        return data if dtype is None else ew.cast(data, dtype)
    return tensor(data, dtype=dtype)


def asarray(obj: Any, *, dtype: Any = None, copy: bool | None = None, requires_grad: bool = False, **where: Any) -> Any:
    """Convert an object to a tensor; a tensor is copied only if copy is True."""
    ignored("asarray", where)
    if copy:
        return tensor(obj, dtype=dtype, requires_grad=requires_grad)
    return finish(as_tensor(obj, dtype), requires_grad)


def scalar_tensor(s: Any, *, dtype: Any = None, requires_grad: bool = False, **where: Any) -> Tensor:
    """A tensor without dimensions that holds one number."""
    ignored("scalar_tensor", where)
    kind = default_dtype() if dtype is None and not isinstance(s, complex) else dtype
    return full((), s, dtype=kind, requires_grad=requires_grad)


def from_numpy(array: np.ndarray[Any, Any], *, layout: Any = None, requires_grad: bool = False) -> Tensor:
    """A tensor with a copy of a NumPy array; the array may be changed afterwards.

    With a `layout` (see `gt.shard`) each worker receives only its part of the array.
    """
    if not isinstance(array, (np.ndarray, np.generic)):
        raise DTypeError(f"from_numpy: expected a NumPy array, got {shown(array)}")
    return finish(upload("from_numpy", array, layout), requires_grad)


def frombuffer(buffer: Any, *, dtype: Any, count: int = -1, offset: int = 0, requires_grad: bool = False) -> Tensor:
    """A one-dimensional tensor with a copy of a buffer's bytes, read as dtype."""
    array = np.frombuffer(buffer, dtypes.dtype(dtype).numpy, count, offset)
    return finish(from_numpy(array), requires_grad)


def _array(op: str, data: Any, dtype: Any) -> np.ndarray[Any, Any]:
    """The data as a NumPy array of the dtype that torch would choose."""
    to = None if dtype is None else dtypes.dtype(dtype)
    found: set[DType] = set()
    data = _bare(op, data, found)
    if to is None:
        to = next(iter(found)) if found else default_dtype()
        for kind in found:
            to = dtypes.promote_types(to, kind)
    if isinstance(data, np.ndarray):
        return data if data.dtype == to.numpy else data.astype(to.numpy)
    try:
        return np.asarray(data, dtype=to.numpy)
    except (ValueError, TypeError):
        raise ArgumentError(f"{op}: expected nested lists of numbers, all rows of the same length") from None
    except OverflowError:
        raise ArgumentError(f"{op}: the data contains a number that {to.name} cannot represent") from None


def _bare(op: str, data: Any, found: set[DType]) -> Any:
    """The data in a form that NumPy understands. The dtypes of its elements are added to `found`."""
    if isinstance(data, (bool, int, float, complex)) and not isinstance(data, np.generic):
        found.add(number_dtype(data))
        return data
    if hasattr(data, "_letter"):
        return _bare(op, data.fixed(), found)
    if isinstance(data, Tensor):
        data = data.detach().numpy()
    elif is_torch(data):
        data = torch_array(data)
    if hasattr(data, "__array__") and not isinstance(data, (np.ndarray, np.generic)):
        data = np.asarray(data)
    if isinstance(data, (np.ndarray, np.generic)):
        array = np.asarray(data)
        try:
            found.add(dtypes.dtype(array.dtype))
        except DTypeError:
            raise DTypeError(f"{op}: elements of type {array.dtype} are not supported") from None
        return array
    if isinstance(data, (str, bytes)) or not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        raise DTypeError(f"{op}: expected numbers or nested lists of numbers, got {shown(data)}")
    types = set(map(type, data))
    if types <= {bool, int, float, complex}:
        found.update(number_dtype(kind()) for kind in types)
        return list(data)
    return [_bare(op, x, found) for x in data]


def number_dtype(x: Any) -> DType:
    """The dtype that torch gives to a Python number."""
    if isinstance(x, bool):
        return dtypes.bool_
    if isinstance(x, int):
        return dtypes.int64
    return default_dtype() if isinstance(x, float) else default_dtype().to_complex()


def finish(t: Tensor, requires_grad: bool) -> Tensor:
    """The tensor, with requires_grad set if asked for."""
    return t.requires_grad_() if requires_grad else t


def float_dtype(dtype: Any) -> DType:
    """The given dtype, or the default dtype."""
    return default_dtype() if dtype is None else dtypes.dtype(dtype)


# --- filled ------------------------------------------------------------------------------------------


def shape_of(op: str, size: tuple[Any, ...], where: dict[str, Any]) -> tuple[int, ...]:
    """The shape, given as f(2, 3), f((2, 3)) or f(size=(2, 3)); raises an error for unknown keywords."""
    if "size" in where and not size:
        size = (where.pop("size"),)
    ignored(op, where)
    shape = sizes(op, size)
    if any(n < 0 for n in shape):
        raise ArgumentError(f"{op}: sizes must be >= 0, got {shape}")
    return shape


def full(size: Any, fill_value: Any, *, dtype: Any = None, requires_grad: bool = False, **where: Any) -> Tensor:
    """A tensor of the given size filled with fill_value."""
    shape = shape_of("full", (size,), where)
    if isinstance(fill_value, (Tensor, complex, np.complexfloating)):
        one = tensor(fill_value, dtype=dtype)
        if one.shape:
            raise ArgumentError(f"full: fill_value must be a number, got a tensor of shape {one.shape}")
        return finish(expand(one, shape).clone(), requires_grad)
    if dtype is None:
        whole = getattr(fill_value, "_letter", "") == "i" or isinstance(fill_value, (int, np.integer))
        is_bool = isinstance(fill_value, (bool, np.bool_))
        dtype = dtypes.bool_ if is_bool else dtypes.int64 if whole else default_dtype()
    return finish(filled(shape, fill_value, dtypes.dtype(dtype)), requires_grad)


def _filled(op: str, value: float, size: tuple[Any, ...], dtype: DType, grad: bool, where: dict[str, Any]) -> Tensor:
    return finish(filled(shape_of(op, size, where), value, dtype), grad)


def zeros(*size: Any, dtype: Any = None, requires_grad: bool = False, **where: Any) -> Tensor:
    """A tensor filled with zeros.

    >>> import gt
    >>> gt.zeros(2, 3)
    tensor([[0., 0., 0.],
            [0., 0., 0.]])
    """
    return _filled("zeros", 0.0, size, float_dtype(dtype), requires_grad, where)


def ones(*size: Any, dtype: Any = None, requires_grad: bool = False, **where: Any) -> Tensor:
    """A tensor filled with ones."""
    return _filled("ones", 1.0, size, float_dtype(dtype), requires_grad, where)


def empty(*size: Any, dtype: Any = None, requires_grad: bool = False, **where: Any) -> Tensor:
    """A tensor of the given size with unspecified content (zeros, in GT)."""
    return _filled("empty", 0.0, size, float_dtype(dtype), requires_grad, where)


def empty_permuted(
    size: Any, physical_layout: Any, *, dtype: Any = None, requires_grad: bool = False, **where: Any
) -> Tensor:
    """A tensor of the given size with unspecified content; physical_layout has no effect."""
    return _filled("empty_permuted", 0.0, (size,), float_dtype(dtype), requires_grad, where)


def empty_strided(size: Any, stride: Any, *, dtype: Any = None, requires_grad: bool = False, **where: Any) -> Tensor:
    """A tensor of the given size with unspecified content; stride has no effect."""
    return _filled("empty_strided", 0.0, (size,), float_dtype(dtype), requires_grad, where)


def zeros_like(input: Any, *, dtype: Any = None, requires_grad: bool = False, **where: Any) -> Tensor:
    """A tensor of zeros with the shape and dtype of input."""
    return _filled("zeros_like", 0.0, (input.shape,), like(input, dtype), requires_grad, where)


def ones_like(input: Any, *, dtype: Any = None, requires_grad: bool = False, **where: Any) -> Tensor:
    """A tensor of ones with the shape and dtype of input."""
    return _filled("ones_like", 1.0, (input.shape,), like(input, dtype), requires_grad, where)


def empty_like(input: Any, *, dtype: Any = None, requires_grad: bool = False, **where: Any) -> Tensor:
    """A tensor with the shape and dtype of input and unspecified content (zeros, in GT)."""
    return _filled("empty_like", 0.0, (input.shape,), like(input, dtype), requires_grad, where)


def full_like(input: Any, fill_value: Any, *, dtype: Any = None, requires_grad: bool = False, **where: Any) -> Tensor:
    """A tensor with the shape and dtype of input, filled with fill_value."""
    return full(input.shape, fill_value, dtype=like(input, dtype), requires_grad=requires_grad, **where)


def like(input: Any, dtype: Any) -> DType:
    """The given dtype, or that of a tensor."""
    given: DType = input.dtype
    return given if dtype is None else dtypes.dtype(dtype)


# --- x.new_zeros(...) and similar methods ------------------------------------------------------------


def new_zeros(self: Any, *size: Any, dtype: Any = None, requires_grad: bool = False, **where: Any) -> Tensor:
    """A tensor of zeros of the given size, with this tensor's dtype."""
    return _filled("new_zeros", 0.0, size, like(self, dtype), requires_grad, where)


def new_ones(self: Any, *size: Any, dtype: Any = None, requires_grad: bool = False, **where: Any) -> Tensor:
    """A tensor of ones of the given size, with this tensor's dtype."""
    return _filled("new_ones", 1.0, size, like(self, dtype), requires_grad, where)


def new_empty(self: Any, *size: Any, dtype: Any = None, requires_grad: bool = False, **where: Any) -> Tensor:
    """A tensor of the given size with this tensor's dtype and unspecified content."""
    return _filled("new_empty", 0.0, size, like(self, dtype), requires_grad, where)


def new_empty_strided(
    self: Any, size: Any, stride: Any, *, dtype: Any = None, requires_grad: bool = False, **where: Any
) -> Tensor:
    """A tensor of the given size with this tensor's dtype and unspecified content; stride has no effect."""
    return _filled("new_empty_strided", 0.0, (size,), like(self, dtype), requires_grad, where)


def new_full(
    self: Any, size: Any, fill_value: Any, *, dtype: Any = None, requires_grad: bool = False, **where: Any
) -> Tensor:
    """A tensor of the given size filled with fill_value, with this tensor's dtype."""
    return full(size, fill_value, dtype=like(self, dtype), requires_grad=requires_grad, **where)


def new_tensor(self: Any, data: Any, *, dtype: Any = None, requires_grad: bool = False, **where: Any) -> Tensor:
    """A tensor with a copy of the data, with this tensor's dtype."""
    return tensor(data, dtype=like(self, dtype), requires_grad=requires_grad, **where)


# --- ranges ------------------------------------------------------------------------------------------


def _number(x: Any) -> Any:
    """A Python number, which may be given as a tensor or a NumPy number."""
    return x.item() if isinstance(x, (Tensor, np.generic, np.ndarray)) else x


def _is_whole(x: Any) -> bool:
    return isinstance(x, int) or getattr(x, "_letter", "") in ("i", "b")


def arange(
    start: Any = None, end: Any = None, step: Any = 1, *, dtype: Any = None, requires_grad: bool = False, **where: Any
) -> Tensor:
    """The numbers from start (default 0) up to but not including end, in steps of step.

    >>> import gt
    >>> gt.arange(2, 10, 3)
    tensor([2, 5, 8])
    """
    ignored("arange", where)
    if start is None or end is None:
        start, end = 0, start if end is None else end
    if end is None:
        raise ArgumentError("arange: expected an end, as in arange(10)")
    start, end, step = _number(start), _number(end), _number(step)
    whole = _is_whole(start) and _is_whole(end) and _is_whole(step)
    kind = dtypes.dtype(dtype) if dtype is not None else dtypes.int64 if whole else default_dtype()
    if not kind.is_floating_point and not whole:  # torch truncates first
        start, end, step = int(start), int(end), int(step)
        whole = True
    if step == 0:
        raise ArgumentError("arange: step must not be 0")
    n = int(-((start - end) // step)) if whole else math.ceil((end - start) / step)
    if n < 0:
        raise ArgumentError(f"arange: step {step} does not lead from {start} to {end}")
    return finish(apply(kinds.arange[n, kind.name], (start, step)), requires_grad)


def _places(op: str, start: Any, end: Any, steps: Any, dtype: DType, wide: DType) -> Tensor:
    """`steps` evenly spaced numbers from start to end, in a wide dtype."""
    n = int(_number(steps))
    at_least(op, "steps", n, 0)
    if not dtype.is_differentiable:  # torch truncates first
        start, end = int(start), int(end)
    i = arange(n, dtype=wide)
    step = (end - start) / (n - 1) if n > 1 else 0.0
    # Computed from both ends, as in torch, so that the last number is exactly `end`.
    return ew.where(i < max(n // 2, 1), i * step + start, (i - (n - 1)) * step + end)


def linspace(
    start: Any, end: Any, steps: Any, *, dtype: Any = None, requires_grad: bool = False, **where: Any
) -> Tensor:
    """steps evenly spaced numbers from start to end, both included."""
    ignored("linspace", where)
    start, end = _number(start), _number(end)
    kind = _spaced(start, end, dtype)
    return finish(ew.cast(_places("linspace", start, end, steps, kind, dtypes.float64), kind), requires_grad)


def logspace(
    start: Any, end: Any, steps: Any, base: float = 10.0, *, dtype: Any = None, requires_grad: bool = False,
    **where: Any,
) -> Tensor:  # fmt: skip
    """steps numbers from base ** start to base ** end, evenly spaced on a logarithmic scale."""
    ignored("logspace", where)
    start, end = _number(start), _number(end)
    kind = _spaced(start, end, dtype)
    wide = dtypes.float64 if kind.is_differentiable else dtypes.float32  # as in torch, whose truncation depends on it
    powers = ew.pow(base, _places("logspace", start, end, steps, kind, wide))
    return finish(ew.cast(powers, kind), requires_grad)


def _spaced(start: Any, end: Any, dtype: Any) -> DType:
    if dtype is None and (isinstance(start, complex) or isinstance(end, complex)):
        return default_dtype().to_complex()
    return float_dtype(dtype)


def eye(n: int, m: int | None = None, *, dtype: Any = None, requires_grad: bool = False, **where: Any) -> Tensor:
    """A matrix with ones on the diagonal and zeros elsewhere."""
    ignored("eye", where)
    shape = shape_of("eye", (n, n if m is None else m), {})
    rows, columns = arange(shape[0]).unsqueeze(1), arange(shape[1])
    return finish(ew.cast(ew.eq(rows, columns), float_dtype(dtype)), requires_grad)


def _triangle(keep: np.ndarray[Any, Any], dtype: Any) -> Tensor:
    return from_numpy(np.stack(np.nonzero(keep)).astype(dtypes.dtype(dtype).numpy))


def tril_indices(row: int, col: int, offset: int = 0, *, dtype: Any = dtypes.int64, **where: Any) -> Tensor:
    """The row and column indices of the elements on and below a diagonal of a row x col matrix."""
    ignored("tril_indices", where)
    return _triangle(np.tri(row, col, offset, dtype=bool), dtype)


def triu_indices(row: int, col: int, offset: int = 0, *, dtype: Any = dtypes.int64, **where: Any) -> Tensor:
    """The row and column indices of the elements on and above a diagonal of a row x col matrix."""
    ignored("triu_indices", where)
    return _triangle(~np.tri(row, col, offset - 1, dtype=bool), dtype)


# --- seeds -------------------------------------------------------------------------------------------


def next_seed(generator: Any = None) -> Any:
    """The seed of a random op; in a traced function, every replay draws a new one."""
    rec = recording.recorder()
    trace = rec.trace
    if generator is not None:
        draw = generator.next_seed if trace is None else lambda: trace.live(generator.next_seed)
    else:
        draw = rec.session.next_seed if trace is None else trace.seed
    return draw() if rec.tape is None else rec.tape.next(draw)
