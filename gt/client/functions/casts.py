"""The tensor as another type (`x.float()`, `x.to(...)`), and questions about types.

Devices are the server's affair: naming one changes nothing.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable
from types import NoneType
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from gt import dtypes
from gt.client.compat.arguments import shown
from gt.client.compat.autocast import default_dtype
from gt.client.functions.elementwise import cast
from gt.client.functions.shapes import clone
from gt.dtypes import DType
from gt.errors import ArgumentError, DTypeError
from gt.program import spec

if TYPE_CHECKING:
    from gt.client.tensor import Tensor

#: Methods that cast, by name.
_CASTS = {
    "float": "float32", "double": "float64", "half": "float16", "bfloat16": "bfloat16", "long": "int64",
    "int": "int32", "short": "int16", "char": "int8", "byte": "uint8", "bool": "bool", "cfloat": "complex64",
    "cdouble": "complex128",
}  # fmt: skip
#: What torch's old constructors make, by name; see legacy.py.
OLD_NAMES = {
    "BoolTensor": "bool", "ByteTensor": "uint8", "CharTensor": "int8", "DoubleTensor": "float64",
    "FloatTensor": "float32", "HalfTensor": "float16", "IntTensor": "int32", "LongTensor": "int64",
    "ShortTensor": "int16", "BFloat16Tensor": "bfloat16",
}  # fmt: skip
__all__ = ["can_cast", "finfo", "iinfo", "is_floating_point", "is_nonzero", "is_tensor", "result_type"]
METHODS = [*_CASTS, "cpu", "cuda", "is_nonzero", "is_signed", "to", "type", "type_as"]


def _method(name: str, dtype: DType) -> Callable[..., Tensor]:
    def method(self: Any, memory_format: Any = None) -> Tensor:
        return cast(self, dtype)

    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"The tensor as {dtype.name}; itself if it is."
    return method


globals().update({name: _method(name, dtypes.dtype(to)) for name, to in _CASTS.items()})


#: What is taken for a device, and ignored.
_DEVICE = re.compile(r"(cpu|cuda|mps|xpu|meta)(:\d+)?")


def _is_dtype(x: Any) -> Any:
    if isinstance(x, (DType, np.dtype, builtins.type)):
        return True
    return str(x) in dtypes.BY_NAME or str(x).startswith("torch.")


def to(self: Any, *args: Any, dtype: Any = None, copy: Any = False, **where: Any) -> Tensor:
    """The tensor as another dtype, or that of another tensor."""
    for name in where.keys() - {"device", "memory_format", "non_blocking", "other"}:
        raise ArgumentError(f"to: does not take {name}")
    dtype = where["other"].dtype if "other" in where else dtype
    for a in args:
        if hasattr(a, "_v"):
            dtype = a.dtype
        elif _is_dtype(a):
            dtype = a
        elif not isinstance(a, (builtins.int, NoneType)) and not _DEVICE.fullmatch(str(a)):
            raise ArgumentError(f"to: takes a dtype, a device or a tensor, not {shown(a)}")
    made = self if dtype is None else cast(self, dtype)
    return clone(self) if copy and made is self else made


def type(self: Any, dtype: Any = None, non_blocking: Any = False) -> Any:
    """The tensor as another dtype; without one, the name of its type, as in torch."""
    if dtype is None:
        return f"gt.{self.dtype.name}"
    name = str(getattr(dtype, "__name__", dtype)).rpartition(".")[2]  # "torch.cuda.LongTensor", gt.LongTensor, ...
    return cast(self, OLD_NAMES.get(name, dtype))


def type_as(self: Any, other: Any) -> Tensor:
    """The tensor as the dtype of another."""
    return cast(self, other.dtype)


def cpu(self: Any, memory_format: Any = None) -> Tensor:
    """The tensor itself: where it lies is the server's affair."""
    return self


def cuda(self: Any, device: Any = None, non_blocking: Any = False, memory_format: Any = None) -> Tensor:
    """The tensor itself: where it lies is the server's affair."""
    return self


# --- questions ---------------------------------------------------------------------------------------


def is_tensor(obj: Any) -> Any:
    """Whether this is a tensor of GT's."""
    return hasattr(obj, "_v")


def is_floating_point(input: Any) -> Any:
    """Whether the elements are floats."""
    return input.dtype.is_floating_point


def is_signed(self: Any) -> Any:
    """Whether the elements can be negative."""
    return self.dtype.is_signed


def is_nonzero(input: Any) -> Any:
    """Whether the only element is not zero. Waits for it."""
    return builtins.bool(input)


def result_type(tensor1: Any, tensor2: Any) -> DType:
    """The type that an op on these two, tensors or numbers, would be computed in."""
    both = (tensor1, tensor2)
    return dtypes.promote([x._spec if is_tensor(x) else spec((), _number_type(x), weak=True) for x in both])


def _number_type(x: Any) -> DType:
    usual = default_dtype()
    types = {
        builtins.bool: dtypes.bool_,
        builtins.int: dtypes.int64,
        builtins.float: usual,
        complex: usual.to_complex(),
    }
    for kind, made in types.items():
        if isinstance(x, kind):
            return made
    raise DTypeError(f"result_type: expected a tensor or a number, got {shown(x)}")


def can_cast(from_: Any, to: Any) -> Any:
    """Whether torch's rules let a result of one type be written into another."""
    return dtypes.dtype(from_).category <= dtypes.dtype(to).category


class finfo:
    """The limits of a floating type.

    >>> import gt
    >>> gt.finfo(gt.float32).eps
    1.1920928955078125e-07
    """

    def __init__(self, type: Any = None) -> None:
        kind = default_dtype() if type is None else dtypes.dtype(type).to_real()
        if not kind.is_floating_point:
            raise DTypeError(f"finfo: a floating type, not {kind.name}; use iinfo")
        limits = ml_dtypes.finfo(kind.numpy)
        self.dtype, self.bits = kind.name, kind.itemsize * 8
        self.max, self.min, self.eps = (builtins.float(x) for x in (limits.max, limits.min, limits.eps))
        self.tiny = self.smallest_normal = builtins.float(limits.tiny)
        self.resolution = 10.0 ** -builtins.int(limits.precision)

    def __repr__(self) -> str:
        return f"finfo(min={self.min:g}, max={self.max:g}, eps={self.eps:g}, tiny={self.tiny:g}, dtype={self.dtype})"


class iinfo:
    """The limits of an integer type.

    >>> import gt
    >>> gt.iinfo(gt.int8).max
    127
    """

    def __init__(self, type: Any) -> None:
        kind = dtypes.dtype(type)
        if kind.is_differentiable or kind is dtypes.bool_:
            raise DTypeError(f"iinfo: an integer type, not {kind.name}; use finfo")
        limits = np.iinfo(kind.numpy)
        self.dtype, self.bits = kind.name, kind.itemsize * 8
        self.max, self.min = builtins.int(limits.max), builtins.int(limits.min)

    def __repr__(self) -> str:
        return f"iinfo(min={self.min}, max={self.max}, dtype={self.dtype})"
