"""What the planner remembers between plans.

Every table of remembered results registers itself here, where it is defined. `forget` empties all of them.

Law: nothing is forgotten while a plan is being made. Within a plan equal states and layouts are the same object.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_clear: list[Callable[[], None]] = []


def memo(size: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A decorator: remember the last `size` results of a pure function.

    >>> @memo(16)
    ... def double(n):
    ...     print("computed")
    ...     return 2 * n
    >>> double(3), double(3)
    computed
    (6, 6)
    """

    def remember(function: Callable[P, T]) -> Callable[P, T]:
        cached: Any = lru_cache(size)(function)
        _clear.append(cached.cache_clear)
        made: Callable[P, T] = cached
        return made

    return remember


def table() -> dict[Any, Any]:
    """A dictionary that `forget` empties."""
    made: dict[Any, Any] = {}
    _clear.append(made.clear)
    return made


def forget() -> None:
    """Empty every table."""
    for clear in _clear:
        clear()
