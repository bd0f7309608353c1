"""Python's operators on tensors: `a + b`, `a[i]`, `a == b`, `-a`.

They call the recorder directly: of all that users write these run most often.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gt.client.compat.arguments import shown
from gt.client.compat.operands import comparable
from gt.client.functions import elementwise as ew
from gt.client.functions import indexing, shapes
from gt.client.programs import kinds
from gt.client.record.recorder import apply, binary, unary
from gt.client.tensor import Tensor
from gt.errors import DTypeError

METHODS = [
    "__abs__", "__add__", "__and__", "__contains__", "__eq__", "__floordiv__", "__ge__", "__getitem__", "__gt__",
    "__invert__", "__iter__", "__le__", "__lshift__", "__lt__", "__matmul__", "__mod__", "__mul__", "__ne__",
    "__neg__", "__or__", "__pos__", "__pow__", "__radd__", "__rand__", "__rfloordiv__", "__rlshift__", "__rmatmul__",
    "__rmod__", "__rmul__", "__ror__", "__rpow__", "__rrshift__", "__rshift__", "__rsub__", "__rtruediv__", "__rxor__",
    "__setitem__", "__sub__", "__truediv__", "__xor__", "where",
]  # fmt: skip


def _prefix(name: str) -> Callable[[Tensor], Tensor]:
    """The operator of one tensor that records this op."""
    kind = getattr(kinds, name)

    def operator(self: Tensor) -> Tensor:
        return unary(kind, self)

    return operator


def _infix(name: str) -> Callable[[Tensor, Any], Tensor]:
    """The operator of two operands, with the tensor on the left."""
    kind = getattr(kinds, name)

    def operator(self: Tensor, other: Any) -> Tensor:
        return binary(kind, self, other)

    return operator


def _reflected(name: str) -> Callable[[Tensor, Any], Tensor]:
    """The operator with the tensor on the right, for a left operand that is not a tensor."""
    kind = getattr(kinds, name)

    def operator(self: Tensor, other: Any) -> Tensor:
        return apply(kind, (other, self))

    return operator


def _comparison(name: str) -> Callable[[Tensor, Any], Tensor]:
    """== or !=: Python itself compares with what is neither a tensor nor a number."""
    kind = getattr(kinds, name)

    def operator(self: Tensor, other: Any) -> Tensor:
        return binary(kind, self, other) if comparable(other) else NotImplemented

    return operator


__neg__, __abs__, __invert__ = map(_prefix, ("neg", "abs", "bitwise_not"))
__add__ = __radd__ = _infix("add")
__mul__ = __rmul__ = _infix("mul")
__sub__, __truediv__, __floordiv__, __mod__ = map(_infix, ("sub", "div", "floor_divide", "remainder"))
__rsub__, __rtruediv__, __rfloordiv__, __rmod__ = map(_reflected, ("sub", "div", "floor_divide", "remainder"))
__matmul__, __lshift__, __rshift__ = map(_infix, ("matmul", "bitwise_left_shift", "bitwise_right_shift"))
__rmatmul__, __rlshift__, __rrshift__ = map(_reflected, ("matmul", "bitwise_left_shift", "bitwise_right_shift"))
__and__, __or__, __xor__ = map(_infix, ("bitwise_and", "bitwise_or", "bitwise_xor"))
__rand__, __ror__, __rxor__ = __and__, __or__, __xor__
__lt__, __le__, __gt__, __ge__ = map(_infix, ("lt", "le", "gt", "ge"))
__eq__, __ne__ = map(_comparison, ("eq", "ne"))
__rpow__ = _reflected("pow")
__getitem__, __setitem__ = indexing.getitem, indexing.setitem


def __pow__(self: Tensor, other: Any) -> Tensor:
    return ew.pow(self, other)


def __pos__(self: Tensor) -> Tensor:
    return self


def where(self: Tensor, condition: Any, other: Any) -> Tensor:
    """This tensor where the condition holds, else the other."""
    return ew.where(condition, self, other)


def __iter__(self: Tensor) -> Iterator[Tensor]:
    if not self.shape:
        raise TypeError("iteration over a tensor of 0 dimensions; use item() to read it")
    return iter(shapes.unbind(self))


def __contains__(self: Tensor, element: Any) -> bool:
    if not comparable(element):
        raise DTypeError(f"in: expected a number or a tensor, got {shown(element)}")
    return bool((self == element).any())
