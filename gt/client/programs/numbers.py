"""Numbers that are more than their value: those a traced function was given or reads anew at each call, and those
that several instructions take.

Of both it holds that one object is one number: a call carries it once, however many instructions name it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

#: Where a replay finds something, given the call's arguments.
Finder = Callable[[list[Any]], Any]
#: What must be as it was for a replay to be right: where a replay finds it, and what it was.
Guards = list[tuple[Finder, Any]]


class SharedNumber:
    """A number that several instructions of a program take, outside of a trace."""

    __slots__ = ("_letter", "value")

    def __init__(self, value: float | int) -> None:
        self.value = value
        self._letter = "i" if type(value) is int else "f"


def _arithmetic(f: Callable[[Any, Any], Any]) -> Callable[[Number, Any], Any]:
    """An operator of a Number and another number, which gives a Number."""

    def method(self: Number, other: Any) -> Any:
        if not isinstance(other, (Number, int, float)):
            return NotImplemented
        mine = self.now
        if isinstance(other, Number):
            its = other.now
            return Number(self.guards, f(self.value, other.value), lambda args: f(mine(args), its(args)))
        return Number(self.guards, f(self.value, other), lambda args: f(mine(args), other))

    return method


def _reflected(f: Callable[[Any, Any], Any]) -> Callable[[Number, Any], Any]:
    """The operator with the Number on the right."""
    return _arithmetic(lambda a, b: f(b, a))


def _comparison(f: Callable[[Any, Any], bool]) -> Callable[[Number, object], bool]:
    """Only the outcome is fixed, not the number: `if i < 0` holds for many i."""

    def method(self: Number, other: object) -> bool:
        if not isinstance(other, (Number, int, float)):
            return NotImplemented
        its = other.now if isinstance(other, Number) else lambda args: other
        result, mine = f(self.value, other.value if isinstance(other, Number) else other), self.now
        self.guards.append((lambda args: f(mine(args), its(args)), result))
        return result

    return method


class Number:
    """A Python number that a replay will read anew. Arithmetic on it gives such numbers again; any other
    look at it (a comparison, int(), a size) fixes it: a replay then needs it to be the same."""

    __slots__ = ("_letter", "guards", "now", "value")

    def __init__(self, guards: Guards, value: Any, now: Finder) -> None:
        self.guards = guards  #: of the trace that it belongs to
        self.value = value
        self.now = now  #: the number for a call with these arguments
        self._letter = "b" if isinstance(value, bool) else "i" if isinstance(value, int) else "f"

    def fixed(self) -> Any:
        self.guards.append((self.now, self.value))
        return self.value

    __add__ = __radd__ = _arithmetic(operator.add)
    __mul__ = __rmul__ = _arithmetic(operator.mul)
    __sub__, __rsub__ = _arithmetic(operator.sub), _reflected(operator.sub)
    __truediv__, __rtruediv__ = _arithmetic(operator.truediv), _reflected(operator.truediv)
    __pow__, __rpow__ = _arithmetic(operator.pow), _reflected(operator.pow)
    __floordiv__, __mod__ = _arithmetic(operator.floordiv), _arithmetic(operator.mod)
    __lt__, __le__ = _comparison(operator.lt), _comparison(operator.le)
    __gt__, __ge__ = _comparison(operator.gt), _comparison(operator.ge)
    __eq__, __ne__ = _comparison(operator.eq), _comparison(operator.ne)

    def __neg__(self) -> Any:
        mine = self.now
        return Number(self.guards, -self.value, lambda args: -mine(args))

    def __hash__(self) -> int:
        return hash(self.fixed())

    def __bool__(self) -> bool:
        return bool(self.fixed())

    def __int__(self) -> int:
        return int(self.fixed())

    __index__ = __int__

    def __float__(self) -> float:
        return float(self.fixed())

    def __repr__(self) -> str:
        return repr(self.fixed())
