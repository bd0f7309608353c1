"""Arguments of functions with spatial dimensions: an int or one int per dimension, with a batch or without."""

from __future__ import annotations

from typing import Any

from gt.client.compat.arguments import shown
from gt.errors import ArgumentError, ShapeError

Sizes = tuple[int, ...]


def per_dim(op: str, name: str, value: Any, n: int) -> Sizes:
    """One int per dimension, given as n ints or as one for all.

    >>> per_dim("conv2d", "stride", 2, 2)
    (2, 2)
    """
    if type(value) is int:
        return (value,) * n
    try:
        given = (value.__index__(),) if hasattr(value, "__index__") else tuple(int(v.__index__()) for v in value)
    except (AttributeError, TypeError):
        raise ArgumentError(f"{op}: {name} must be an int or {n} ints, got {value!r}") from None
    if len(given) == 1:
        return given * n
    if len(given) != n:
        raise ArgumentError(f"{op}: {name} must be an int or {n} ints, got {given}")
    return given


def batched(op: str, x: Any, n: int) -> tuple[Any, bool]:
    """The input with a batch dimension, and whether it had one."""
    ndim = getattr(x, "ndim", None)
    if ndim == n + 2:
        return x, True
    if ndim is None:
        raise ArgumentError(f"{op}: input must be a tensor, got {shown(x)}")
    if ndim != n + 1:
        raise ShapeError(
            f"{op}: expected an input of {n + 1} dimensions, or {n + 2} with a batch, got shape {tuple(x.shape)}"
        )
    return x.unsqueeze(0), False
