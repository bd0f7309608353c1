"""Python's operators on tensors: `a + b`, `a[i]`, `a == b`, `-a`.

They call the recorder directly: of all that users write these run most often.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gt.client.compat.arguments import shown
from gt.client.compat.operands import comparable
from gt.client.functions import elementwise as ew
from gt.client.functions import indexing, shapes
from gt.client.programs.tree import Kind
from gt.client.record.recorder import apply, binary, unary
from gt.client.tensor import Tensor
from gt.errors import DTypeError
from gt.ops import TABLE

METHODS = [
    "__abs__", "__add__", "__and__", "__contains__", "__eq__", "__floordiv__", "__ge__", "__getitem__", "__gt__",
    "__invert__", "__iter__", "__le__", "__lshift__", "__lt__", "__matmul__", "__mod__", "__mul__", "__ne__",
    "__neg__", "__or__", "__pos__", "__pow__", "__radd__", "__rand__", "__rfloordiv__", "__rlshift__", "__rmatmul__",
    "__rmod__", "__rmul__", "__ror__", "__rpow__", "__rrshift__", "__rshift__", "__rsub__", "__rtruediv__", "__rxor__",
    "__setitem__", "__sub__", "__truediv__", "__xor__", "where",
]  # fmt: skip
_ADD, _SUB, _MUL, _DIV = (Kind(TABLE[n], {}) for n in ("add", "sub", "mul", "div"))
_POW, _MATMUL, _NEG = (Kind(TABLE[n], {}) for n in ("pow", "matmul", "neg"))
_EQ, _NE, _LT, _LE, _GT, _GE = (Kind(TABLE[n], {}) for n in ("eq", "ne", "lt", "le", "gt", "ge"))


def __add__(self: Tensor, other: Any) -> Tensor:
    return binary(_ADD, self, other)


def __radd__(self: Tensor, other: Any) -> Tensor:
    return binary(_ADD, self, other)


def __sub__(self: Tensor, other: Any) -> Tensor:
    return binary(_SUB, self, other)


def __rsub__(self: Tensor, other: Any) -> Tensor:
    return apply(_SUB, (other, self))


def __mul__(self: Tensor, other: Any) -> Tensor:
    return binary(_MUL, self, other)


def __rmul__(self: Tensor, other: Any) -> Tensor:
    return binary(_MUL, self, other)


def __truediv__(self: Tensor, other: Any) -> Tensor:
    return binary(_DIV, self, other)


def __rtruediv__(self: Tensor, other: Any) -> Tensor:
    return apply(_DIV, (other, self))


def __floordiv__(self: Tensor, other: Any) -> Tensor:
    return ew.floor_divide(self, other)


def __rfloordiv__(self: Tensor, other: Any) -> Tensor:
    return ew.floor_divide(other, self)


def __mod__(self: Tensor, other: Any) -> Tensor:
    return ew.remainder(self, other)


def __rmod__(self: Tensor, other: Any) -> Tensor:
    return ew.remainder(other, self)


def __pow__(self: Tensor, other: Any) -> Tensor:
    return ew.pow(self, other)


def __rpow__(self: Tensor, other: Any) -> Tensor:
    return apply(_POW, (other, self))


def __matmul__(self: Tensor, other: Any) -> Tensor:
    return binary(_MATMUL, self, other)


def __rmatmul__(self: Tensor, other: Any) -> Tensor:
    return apply(_MATMUL, (other, self))


def __neg__(self: Tensor) -> Tensor:
    return unary(_NEG, self)


def __pos__(self: Tensor) -> Tensor:
    return self


def __abs__(self: Tensor) -> Tensor:
    return ew.abs(self)


def __invert__(self: Tensor) -> Tensor:
    return ew.bitwise_not(self)


def __and__(self: Tensor, other: Any) -> Tensor:
    return ew.bitwise_and(self, other)


def __or__(self: Tensor, other: Any) -> Tensor:
    return ew.bitwise_or(self, other)


def __xor__(self: Tensor, other: Any) -> Tensor:
    return ew.bitwise_xor(self, other)


__rand__, __ror__, __rxor__ = __and__, __or__, __xor__


def __lshift__(self: Tensor, other: Any) -> Tensor:
    return ew.bitwise_left_shift(self, other)


def __rlshift__(self: Tensor, other: Any) -> Tensor:
    return ew.bitwise_left_shift(other, self)


def __rshift__(self: Tensor, other: Any) -> Tensor:
    return ew.bitwise_right_shift(self, other)


def __rrshift__(self: Tensor, other: Any) -> Tensor:
    return ew.bitwise_right_shift(other, self)


def __eq__(self: Tensor, other: Any) -> Tensor:
    return binary(_EQ, self, other) if comparable(other) else NotImplemented


def __ne__(self: Tensor, other: Any) -> Tensor:
    return binary(_NE, self, other) if comparable(other) else NotImplemented


def __lt__(self: Tensor, other: Any) -> Tensor:
    return binary(_LT, self, other)


def __le__(self: Tensor, other: Any) -> Tensor:
    return binary(_LE, self, other)


def __gt__(self: Tensor, other: Any) -> Tensor:
    return binary(_GT, self, other)


def __ge__(self: Tensor, other: Any) -> Tensor:
    return binary(_GE, self, other)


__getitem__ = indexing.getitem
__setitem__ = indexing.setitem


def where(self: Tensor, condition: Any, other: Any) -> Tensor:
    """This tensor where the condition holds, else the other."""
    return ew.where(condition, self, other)


def __iter__(self: Tensor) -> Iterator[Tensor]:
    if not self.shape:
        raise TypeError("iteration over a tensor of 0 dimensions")
    return iter(shapes.unbind(self))


def __contains__(self: Tensor, element: Any) -> bool:
    if not comparable(element):
        raise DTypeError(f"in: expected a number or a tensor, got {shown(element)}")
    return bool((self == element).any())
