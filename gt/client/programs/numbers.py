"""Numbers that are more than their value: those a traced function was given or reads anew at each call, and those
that several instructions take.

Of both it holds that one object is one number: a call carries it once, however many instructions name it.
"""

from __future__ import annotations

import functools
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

    def _with(self, f: Callable[[Any, Any], Any], other: Any, swap: bool = False) -> Any:
        if not isinstance(other, (Number, int, float)):
            return NotImplemented
        if swap:
            f = functools.partial(_swapped, f)
        mine = self.now
        if isinstance(other, Number):
            its = other.now
            return Number(self.guards, f(self.value, other.value), lambda args: f(mine(args), its(args)))
        return Number(self.guards, f(self.value, other), lambda args: f(mine(args), other))

    def __add__(self, o: Any) -> Any:
        return self._with(operator.add, o)

    __radd__ = __add__

    def __sub__(self, o: Any) -> Any:
        return self._with(operator.sub, o)

    def __rsub__(self, o: Any) -> Any:
        return self._with(operator.sub, o, swap=True)

    def __mul__(self, o: Any) -> Any:
        return self._with(operator.mul, o)

    __rmul__ = __mul__

    def __truediv__(self, o: Any) -> Any:
        return self._with(operator.truediv, o)

    def __rtruediv__(self, o: Any) -> Any:
        return self._with(operator.truediv, o, swap=True)

    def __floordiv__(self, o: Any) -> Any:
        return self._with(operator.floordiv, o)

    def __mod__(self, o: Any) -> Any:
        return self._with(operator.mod, o)

    def __pow__(self, o: Any) -> Any:
        return self._with(operator.pow, o)

    def __rpow__(self, o: Any) -> Any:
        return self._with(operator.pow, o, swap=True)

    def __neg__(self) -> Any:
        mine = self.now
        return Number(self.guards, -self.value, lambda args: -mine(args))

    def _compare(self, f: Callable[[Any, Any], bool], o: Any) -> bool:
        if not isinstance(o, (Number, int, float)):
            return NotImplemented
        # Only the outcome is fixed, not the number: `if i < 0` holds for many i.
        its = o.now if isinstance(o, Number) else lambda args: o
        result, mine = f(self.value, o.value if isinstance(o, Number) else o), self.now
        self.guards.append((lambda args: f(mine(args), its(args)), result))
        return result

    def __lt__(self, o: Any) -> bool:
        return self._compare(operator.lt, o)

    def __le__(self, o: Any) -> bool:
        return self._compare(operator.le, o)

    def __gt__(self, o: Any) -> bool:
        return self._compare(operator.gt, o)

    def __ge__(self, o: Any) -> bool:
        return self._compare(operator.ge, o)

    def __eq__(self, o: object) -> bool:
        return self._compare(operator.eq, o)

    def __ne__(self, o: object) -> bool:
        return self._compare(operator.ne, o)

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


def _swapped(f: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    return f(b, a)
