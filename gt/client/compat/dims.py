"""Reading the arguments that users type for dimensions and shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gt.client.compat.arguments import shown
from gt.errors import ArgumentError, DimError


def one_dim(op: str, dim: Any, ndim: int) -> int:
    """A dimension as a non-negative number.

    >>> one_dim("sum", -1, 3)
    2
    """
    n = max(ndim, 1)
    try:
        d = dim.__index__()
    except AttributeError:
        raise ArgumentError(f"{op}: dim must be an int, not {shown(dim)}") from None
    if not -n <= d < n:
        raise DimError(f"{op}: dim {d} is out of range for a tensor of {ndim} dimensions (from {-n} to {n - 1})")
    return int(d % n)


def some_dims(op: str, dim: Any, ndim: int) -> tuple[int, ...]:
    """Dimensions as a tuple of different non-negative numbers; None means all.

    >>> some_dims("sum", None, 2), some_dims("sum", (-1, 0), 2)
    ((0, 1), (0, 1))
    """
    if dim is None or (isinstance(dim, Sequence) and not dim):
        return tuple(range(ndim))
    if not isinstance(dim, (tuple, list)):
        return (one_dim(op, dim, ndim),) if ndim else (one_dim(op, dim, ndim),)[:0]
    dims = sorted(one_dim(op, d, ndim) for d in dim)
    if len(set(dims)) != len(dims):
        raise DimError(f"{op}: dim {dim} names a dimension twice")
    return tuple(dims) if ndim else ()


def sizes(op: str, args: tuple[Any, ...]) -> tuple[int, ...]:
    """A shape given as numbers or as one sequence: f(2, 3) or f((2, 3))."""
    given = args[0] if len(args) == 1 and not hasattr(args[0], "__index__") else args
    try:
        return tuple([int(a.__index__()) for a in given])
    except (AttributeError, TypeError):
        raise ArgumentError(f"{op}: sizes must be ints, not {shown(given)}") from None


def alias(op: str, name: str, value: Any, other_name: str, kwargs: dict[str, Any], default: Any) -> Any:
    """The argument `name`, which numpy's users may also call `other_name`."""
    if other_name not in kwargs:
        return value
    if value is not default:
        raise ArgumentError(f"{op}: give {name} or {other_name}, not both")
    return kwargs[other_name]
