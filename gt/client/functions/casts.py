"""Dtype conversion and inspection: `x.float()`, `x.to(...)`, `gt.finfo`.

The server decides where tensors are stored, so passing a device has no effect.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable
from types import NoneType
from typing import Any

import ml_dtypes
import numpy as np

from gt import dtypes
from gt.client.compat.arguments import called, shown
from gt.client.compat.interop import is_torch
from gt.client.functions.creation import number_dtype
from gt.client.functions.elementwise import cast
from gt.client.functions.shapes import clone
from gt.client.tensor import Tensor, default_dtype
from gt.dtypes import DType
from gt.errors import ArgumentError, DTypeError
from gt.program import spec

#: The methods that cast, with their dtypes.
_CASTS = {
    "float": "float32", "double": "float64", "half": "float16", "bfloat16": "bfloat16", "long": "int64",
    "int": "int32", "short": "int16", "char": "int8", "byte": "uint8", "bool": "bool", "cfloat": "complex64",
    "cdouble": "complex128",
}  # fmt: skip
#: The dtypes of torch's constructors by type; see legacy.py.
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

    return called(method, name, f"Cast to {dtype.name}; returns the tensor itself if it has that dtype.")


globals().update({name: _method(name, dtypes.dtype(to)) for name, to in _CASTS.items()})


#: Names of devices, which are ignored.
_DEVICE = re.compile(r"(cpu|cuda|mps|xpu|meta)(:\d+)?")


def _is_dtype(x: Any) -> Any:
    if isinstance(x, (DType, np.dtype, builtins.type)):
        return True
    return str(x) in dtypes.BY_NAME or str(x).startswith("torch.")


def to(self: Any, *args: Any, dtype: Any = None, copy: Any = False, **where: Any) -> Tensor:
    """Cast to a dtype, or to the dtype of another tensor."""
    for name in where.keys() - {"device", "memory_format", "non_blocking", "other"}:
        raise ArgumentError(f"to: unexpected argument {name!r}")
    dtype = where["other"].dtype if "other" in where else dtype
    for a in args:
        if isinstance(a, Tensor) or is_torch(a):
            dtype = a.dtype
        elif _is_dtype(a):
            dtype = a
        elif not isinstance(a, (builtins.int, NoneType)) and not _DEVICE.fullmatch(str(a)):
            raise ArgumentError(f"to: expected a dtype, a device or a tensor, got {shown(a)}")
    made = self if dtype is None else cast(self, dtype)
    return clone(self) if copy and made is self else made


def type(self: Any, dtype: Any = None, non_blocking: Any = False) -> Any:
    """Cast to a dtype; without one, return the name of the tensor's type."""
    if dtype is None:
        return f"gt.{self.dtype.name}"
    name = str(getattr(dtype, "__name__", dtype)).rpartition(".")[2]  # "torch.cuda.LongTensor", gt.LongTensor, ...
    return cast(self, OLD_NAMES.get(name, dtype))


def type_as(self: Any, other: Any) -> Tensor:
    """Cast to the dtype of another tensor."""
    return cast(self, other.dtype)


def cpu(self: Any, memory_format: Any = None) -> Tensor:
    """Return the tensor itself: the server decides where it is stored."""
    return self


def cuda(self: Any, device: Any = None, non_blocking: Any = False, memory_format: Any = None) -> Tensor:
    """Return the tensor itself: the server decides where it is stored."""
    return self


# --- inspection --------------------------------------------------------------------------------------


def is_tensor(obj: Any) -> Any:
    """Whether obj is a GT tensor."""
    return isinstance(obj, Tensor)


def is_floating_point(input: Any) -> Any:
    """Whether the dtype is a floating-point type."""
    return input.dtype.is_floating_point


def is_signed(self: Any) -> Any:
    """Whether the dtype is signed."""
    return self.dtype.is_signed


def is_nonzero(input: Any) -> Any:
    """Whether the single element is not zero. Waits for the value."""
    return builtins.bool(input)


def result_type(tensor1: Any, tensor2: Any) -> DType:
    """The dtype of an arithmetic operation on two tensors or numbers."""
    both = (tensor1, tensor2)
    for x in both:
        if not is_tensor(x) and not isinstance(x, (builtins.bool, builtins.int, builtins.float, complex)):
            raise DTypeError(f"result_type: expected a tensor or a number, got {shown(x)}")
    return dtypes.promote([x._spec if is_tensor(x) else spec((), number_dtype(x), weak=True) for x in both])


def can_cast(from_: Any, to: Any) -> Any:
    """Whether torch's type promotion rules allow a cast from one dtype to another."""
    return dtypes.dtype(from_).category <= dtypes.dtype(to).category


class finfo:
    """The limits of a floating-point dtype.

    >>> import gt
    >>> gt.finfo(gt.float32).eps
    1.1920928955078125e-07
    """

    def __init__(self, type: Any = None) -> None:
        kind = default_dtype() if type is None else dtypes.dtype(type).to_real()
        if not kind.is_floating_point:
            raise DTypeError(f"finfo: expected a floating-point dtype, got {kind.name}; use iinfo")
        limits = ml_dtypes.finfo(kind.numpy)
        self.dtype, self.bits = kind.name, kind.itemsize * 8
        self.max, self.min, self.eps = (builtins.float(x) for x in (limits.max, limits.min, limits.eps))
        self.tiny = self.smallest_normal = builtins.float(limits.tiny)
        self.resolution = 10.0 ** -builtins.int(limits.precision)

    def __repr__(self) -> str:
        return f"finfo(min={self.min:g}, max={self.max:g}, eps={self.eps:g}, tiny={self.tiny:g}, dtype={self.dtype})"


class iinfo:
    """The limits of an integer dtype.

    >>> import gt
    >>> gt.iinfo(gt.int8).max
    127
    """

    def __init__(self, type: Any) -> None:
        kind = dtypes.dtype(type)
        if kind.is_differentiable or kind is dtypes.bool_:
            raise DTypeError(f"iinfo: expected an integer dtype, got {kind.name}; use finfo")
        limits = np.iinfo(kind.numpy)
        self.dtype, self.bits = kind.name, kind.itemsize * 8
        self.max, self.min = builtins.int(limits.max), builtins.int(limits.min)

    def __repr__(self) -> str:
        return f"iinfo(min={self.min}, max={self.max}, dtype={self.dtype})"
