"""Reads the arguments that users give for dimensions and shapes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gt.client.compat.arguments import shown
from gt.errors import ArgumentError, DimError, GTError


def one_dim(op: str, dim: Any, ndim: int) -> int:
    """A dimension as a non-negative number.

    >>> one_dim("sum", -1, 3)
    2
    """
    n = max(ndim, 1)
    try:
        d = dim.__index__()
    except AttributeError:
        raise ArgumentError(f"{op}: dim must be an int, got {shown(dim)}") from None
    if not -n <= d < n:
        raise DimError(f"{op}: dim {d} is out of range for a tensor of {ndim} dimensions (expected {-n} to {n - 1})")
    return int(d % n)


def dim_of(op: str, dim: Any, shape: tuple[int, ...], error: type[GTError] = DimError) -> int:
    """A dimension of a shape, as a non-negative number; raises the error if the shape has none."""
    if not shape:
        raise error(f"{op}: expected at least one dimension, got shape ()")
    return one_dim(op, dim, len(shape))


def some_dims(op: str, dim: Any, ndim: int) -> tuple[int, ...]:
    """Dimensions as a sorted tuple of different non-negative numbers; None means all.

    >>> some_dims("sum", None, 2), some_dims("sum", (-1, 0), 2)
    ((0, 1), (0, 1))
    """
    if dim is None or (isinstance(dim, Sequence) and not dim):
        return tuple(range(ndim))
    if not isinstance(dim, (tuple, list)):
        d = one_dim(op, dim, ndim)
        return (d,) if ndim else ()
    dims = different_dims(op, dim, ndim)
    return tuple(sorted(dims)) if ndim else ()


def different_dims(op: str, dims: Iterable[Any], ndim: int) -> tuple[int, ...]:
    """Dimensions as non-negative numbers, in the order given; none of them twice."""
    dims = tuple(dims)
    found = tuple([one_dim(op, d, ndim) for d in dims])
    if len(set(found)) != len(found):
        raise DimError(f"{op}: dimensions {dims} contain a dimension twice")
    return found


def sizes(op: str, args: tuple[Any, ...]) -> tuple[int, ...]:
    """A shape given as numbers or as one sequence: f(2, 3) or f((2, 3))."""
    given = args[0] if len(args) == 1 and not hasattr(args[0], "__index__") else args
    try:
        return tuple([int(a.__index__()) for a in given])
    except (AttributeError, TypeError):
        raise ArgumentError(f"{op}: sizes must be ints, got {shown(given)}") from None
