"""Writing into a part of an array, for the kernels that serve both numpy and jax.

An operand is never changed: numpy writes to a copy, jax's `.at` makes a new array by itself.
"""

from __future__ import annotations

from typing import Any


def put_at(x: Any, place: Any, value: Any) -> Any:
    """x with x[place] replaced by a value; which one wins where a place is named twice is open."""
    if hasattr(x, "at"):
        return x.at[place].set(value)
    result = x.copy()
    result[place] = value
    return result


def add_at(xp: Any, x: Any, place: Any, value: Any) -> Any:
    """x with a value added at x[place], as often as a place is named."""
    if hasattr(x, "at"):
        return x.at[place].max(value) if x.dtype == bool else x.at[place].add(value)
    result = x.copy()
    xp.add.at(result, place, value)
    return result
