"""Reading the arguments of functions over space: one number or one per dimension, batched or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from gt.client.compat.arguments import shown
from gt.errors import ArgumentError, ShapeError

Sizes = tuple[int, ...]
F = TypeVar("F", bound=Callable[..., Any])


def called(function: F, name: str, doc: str) -> F:
    """A function made for a number of dimensions, under its own name."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


def per_dim(op: str, name: str, value: Any, n: int) -> Sizes:
    """An int for each of n dimensions, given as such or as one for all.

    >>> per_dim("conv2d", "stride", 2, 2)
    (2, 2)
    """
    if type(value) is int:
        return (value,) * n
    try:
        given = (value.__index__(),) if hasattr(value, "__index__") else tuple(int(v.__index__()) for v in value)
    except (AttributeError, TypeError):
        raise ArgumentError(f"{op}: {name} is an int or {n} ints, not {value!r}") from None
    if len(given) == 1:
        return given * n
    if len(given) != n:
        raise ArgumentError(f"{op}: {name} is one int or {n} ints, not {given}")
    return given


def batched(op: str, x: Any, n: int) -> tuple[Any, bool]:
    """The input with a batch dimension, and whether it had one."""
    ndim = getattr(x, "ndim", None)
    if ndim == n + 2:
        return x, True
    if ndim is None:
        raise ArgumentError(f"{op}: the input is a tensor, not {shown(x)}")
    if ndim != n + 1:
        raise ShapeError(
            f"{op}: the input has {n + 1} dimensions, or {n + 2} with a batch in front; not the shape {tuple(x.shape)}"
        )
    return x.unsqueeze(0), False
