"""Writing ops down without a client: symbols that record what is done to them.

Used to expand a composition into its parts, and to find out which values a gradient reads
(`reads`): shapes are not values, so `g * x.shape[0]` reads nothing of x.
"""

from __future__ import annotations

from typing import Any

from gt.dtypes import DType
from gt.ops.operators import Operators
from gt.ops.record import Op
from gt.program import SCALARS, Spec, as_tuple


class Symbol(Operators):
    """A value that exists on paper only."""

    __slots__ = ("number", "spec", "trace")

    def __init__(self, trace: OpTrace, number: int, spec: Spec) -> None:
        self.trace = trace
        self.number = number
        self.spec = spec

    @property
    def shape(self) -> tuple[int, ...]:
        return self.spec.shape

    @property
    def ndim(self) -> int:
        return len(self.spec.shape)

    @property
    def dtype(self) -> DType:
        return self.spec.dtype

    def _apply(self, op: Op, args: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
        return self.trace.add(op, args, attrs)


class OpTrace:
    """The instructions done to a set of symbols."""

    def __init__(self) -> None:
        self.count = 0
        #: (op, operands, attributes, numbers of the results); an operand is a Symbol or a number.
        self.code: list[tuple[Op, tuple[Any, ...], dict[str, Any], tuple[int, ...]]] = []

    def symbol(self, spec: Spec) -> Symbol:
        s = Symbol(self, self.count, spec)
        self.count += 1
        return s

    def add(self, op: Op, args: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
        specs = [a.spec if isinstance(a, Symbol) else SCALARS[scalar_kind(a)] for a in args]
        results = tuple(self.symbol(s) for s in as_tuple(op.infer(*specs, **attrs)))
        self.code.append((op, args, attrs, tuple(r.number for r in results)))
        return results if len(results) > 1 else results[0]

    def reads(self) -> set[int]:
        """The numbers of all symbols that some instruction takes as an operand."""
        return {a.number for _, args, _, _ in self.code for a in args if isinstance(a, Symbol)}


def scalar_kind(x: Any) -> str:
    """The letter of a by-value operand; bool before int, because it is one."""
    if isinstance(x, bool):
        return "b"
    if isinstance(x, int):
        return "i"
    if isinstance(x, float):
        return "f"
    if isinstance(x, bytes):
        return "d"
    raise TypeError(f"expected a number, got {type(x).__name__}")
