"""Python's operators on anything that ops can be applied to: tensors and symbols.

Gradients and compositions are written with these, so that they read as maths.
"""

from __future__ import annotations

from typing import Any

from gt.ops.record import TABLE


class Operators:
    """`a + b` is the op `add`, and so on; the op asks its operands who records it."""

    __slots__ = ()

    def __add__(self, other: Any) -> Any:
        return TABLE["add"](self, other)

    def __radd__(self, other: Any) -> Any:
        return TABLE["add"](self, other)

    def __sub__(self, other: Any) -> Any:
        return TABLE["sub"](self, other)

    def __rsub__(self, other: Any) -> Any:
        return TABLE["sub"](other, self)

    def __mul__(self, other: Any) -> Any:
        return TABLE["mul"](self, other)

    def __rmul__(self, other: Any) -> Any:
        return TABLE["mul"](self, other)

    def __truediv__(self, other: Any) -> Any:
        return TABLE["div"](self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return TABLE["div"](other, self)

    def __pow__(self, other: Any) -> Any:
        return TABLE["pow"](self, other)

    def __rpow__(self, other: Any) -> Any:
        return TABLE["pow"](other, self)

    def __matmul__(self, other: Any) -> Any:
        return TABLE["matmul"](self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return TABLE["matmul"](other, self)

    def __neg__(self) -> Any:
        return TABLE["neg"](self)

    def __lt__(self, other: Any) -> Any:
        return TABLE["lt"](self, other)

    def __le__(self, other: Any) -> Any:
        return TABLE["le"](self, other)

    def __gt__(self, other: Any) -> Any:
        return TABLE["gt"](self, other)

    def __ge__(self, other: Any) -> Any:
        return TABLE["ge"](self, other)
