"""Python's operators on anything that ops can be applied to: tensors and symbols.

Gradients and compositions are written with these, so that they read as maths.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.ops.record import TABLE


def _infix(name: str) -> Callable[[Any, Any], Any]:
    return lambda self, other: TABLE[name](self, other)


def _reflected(name: str) -> Callable[[Any, Any], Any]:
    return lambda self, other: TABLE[name](other, self)


class Operators:
    """`a + b` is the op `add`, and so on; the op asks its operands who records it."""

    __slots__ = ()

    __add__, __radd__ = _infix("add"), _infix("add")
    __mul__, __rmul__ = _infix("mul"), _infix("mul")
    __sub__, __rsub__ = _infix("sub"), _reflected("sub")
    __truediv__, __rtruediv__ = _infix("div"), _reflected("div")
    __pow__, __rpow__ = _infix("pow"), _reflected("pow")
    __matmul__, __rmatmul__ = _infix("matmul"), _reflected("matmul")
    __lt__, __le__, __gt__, __ge__ = map(_infix, ("lt", "le", "gt", "ge"))

    def __neg__(self) -> Any:
        return TABLE["neg"](self)
