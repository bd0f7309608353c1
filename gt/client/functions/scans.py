"""Cumulative functions along one dimension: sums, products, extremes; differences and integrals."""

from __future__ import annotations

from typing import Any

from gt import dtypes
from gt.client.compat.checks import at_least
from gt.client.compat.dims import dim_of, one_dim
from gt.client.functions import elementwise as ew
from gt.client.functions import shapes
from gt.client.functions.reductions import ValuesAndIndices, lifted, sum
from gt.client.programs import kinds
from gt.client.record.recorder import apply, unary
from gt.client.tensor import Tensor
from gt.errors import ArgumentError, ShapeError

__all__ = [
    "cummax", "cummin", "cumprod", "cumsum", "cumulative_trapezoid", "diff", "logcumsumexp", "trapezoid", "trapz",
]  # fmt: skip
METHODS = ["cummax", "cummin", "cumprod", "cumsum", "diff", "logcumsumexp"]
INPLACE = ["cumprod", "cumsum"]


def _along(name: str, input: Any, dim: Any, dtype: Any = None) -> Tensor:
    if dtype is not None:
        input = ew.cast(input, dtype)
    kind = getattr(kinds, name)[one_dim(name, dim, input.ndim)]
    out = lifted(input, lambda x: unary(kind, x))
    return out if dtype is None else ew.cast(out, dtype)


def cumsum(input: Any, dim: Any = None, *, dtype: Any = None, axis: Any = None) -> Tensor:
    """The cumulative sum along dim."""
    return _along("cumsum", input, dim if axis is None else axis, dtype)


def cumprod(input: Any, dim: Any = None, *, dtype: Any = None, axis: Any = None) -> Tensor:
    """The cumulative product along dim."""
    return _along("cumprod", input, dim if axis is None else axis, dtype)


def logcumsumexp(input: Any, dim: int) -> Tensor:
    """log(cumsum(exp(input))) along dim, computed without overflow."""
    return _along("logcumsumexp", input, dim)


def cummax(input: Any, dim: int) -> ValuesAndIndices:
    """The cumulative maximum along dim, and its indices."""
    kind = kinds.cummax[one_dim("cummax", dim, input.ndim)]
    return ValuesAndIndices(*lifted(input, lambda x: apply(kind, (x,))))


def cummin(input: Any, dim: int) -> ValuesAndIndices:
    """The cumulative minimum along dim, and its indices."""
    kind = kinds.cummin[one_dim("cummin", dim, input.ndim)]
    return ValuesAndIndices(*lifted(input, lambda x: apply(kind, (x,))))


def _ends(x: Any, dim: int) -> tuple[Any, Any]:
    """All elements along dim but the last, and all but the first."""
    before = (slice(None),) * dim
    return x[(*before, slice(None, -1))], x[(*before, slice(1, None))]


def diff(input: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Tensor:
    """The n-th forward difference along dim."""
    d = dim_of("diff", dim, input.shape, ShapeError)
    at_least("diff", "n", n, 0)
    x = input
    if n and (prepend is not None or append is not None):
        x = shapes.cat([p for p in (prepend, input, append) if p is not None], d)
    for _ in range(min(n, x.shape[d])):
        if x.shape[d] == 0:
            break
        low, high = _ends(x, d)
        x = ew.logical_xor(high, low) if x.dtype is dtypes.bool_ else ew.sub(high, low)
    return x


def _check_points(op: str, x: Any, dx: Any) -> None:
    if x is not None and dx is not None:
        raise ArgumentError(f"{op}: got both x and dx; pass one of them")


def _widths(op: str, y: Any, x: Any, d: int) -> Tensor:
    """The distances between the points x, in a shape that broadcasts with y."""
    if x.ndim == 1:
        if x.shape[0] != y.shape[d]:
            raise ShapeError(f"{op}: x must have {y.shape[d]} points, the size of dim {d} of y, got {x.shape[0]}")
        x = shapes.reshape(x, tuple(-1 if k == d else 1 for k in range(y.ndim)))
    elif x.ndim < y.ndim:
        x = shapes.reshape(x, (1,) * (y.ndim - x.ndim) + tuple(x.shape))
    left, right = _ends(x, d)
    return ew.sub(right, left)


def trapezoid(y: Any, x: Any = None, *, dx: Any = None, dim: int = -1) -> Tensor:
    """The integral along dim by the trapezoidal rule."""
    _check_points("trapezoid", x, dx)
    d = dim_of("trapezoid", dim, y.shape)
    if y.shape[d] == 0:
        return ew.mul(sum(y, d), 0.5)
    if x is None:
        before = (slice(None),) * d
        ends = ew.mul(ew.add(y[(*before, 0)], y[(*before, -1)]), 0.5)
        return ew.mul(ew.sub(sum(y, d), ends), 1 if dx is None else dx)
    low, high = _ends(y, d)
    return ew.div(sum(ew.mul(_widths("trapezoid", y, x, d), ew.add(low, high)), d), 2)


trapz = trapezoid


def cumulative_trapezoid(y: Any, x: Any = None, *, dx: Any = None, dim: int = -1) -> Tensor:
    """The cumulative integral along dim by the trapezoidal rule."""
    _check_points("cumulative_trapezoid", x, dx)
    d = one_dim("cumulative_trapezoid", dim, y.ndim)
    low, high = _ends(y, d)
    width: Any = (1 if dx is None else dx) if x is None else _widths("cumulative_trapezoid", y, x, d)
    return ew.div(cumsum(ew.mul(ew.add(low, high), width), d), 2)
