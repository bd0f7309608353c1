"""Statistics: quantiles, covariance, histograms; and renorm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from gt import dtypes
from gt.client.compat.autocast import autocasts
from gt.client.compat.checks import at_least, floating, one_of, positive
from gt.client.compat.dims import one_dim
from gt.client.functions import elementwise as ew
from gt.client.functions import scatter, shapes
from gt.client.functions.complexes import complex
from gt.client.functions.creation import arange, full, ones, zeros
from gt.client.functions.linalg.norms import norm
from gt.client.functions.reductions import amax, amin, any, sum
from gt.client.functions.sorting import added_at, searchsorted, sort
from gt.client.tensor import Tensor
from gt.errors import ArgumentError, DTypeError, ShapeError
from gt.ops.record import FLOAT32_ON_CPU, FLOAT32_ON_CUDA

__all__ = [
    "bincount", "corrcoef", "cov", "histc", "histogram", "histogramdd", "nanquantile", "quantile", "renorm",
]  # fmt: skip
METHODS = [*{*__all__} - {"histogramdd"}]
INPLACE = ["renorm"]


class Histogram(NamedTuple):
    """The result of histogram and histogramdd; for the latter, bin_edges is a tuple."""

    hist: Tensor
    bin_edges: Any


# --- quantiles ---------------------------------------------------------------------------------------


def _quantile(name: str, input: Any, q: Any, dim: Any, keepdim: bool, interpolation: str, ignore_nan: bool) -> Tensor:
    if input.dtype not in (dtypes.float32, dtypes.float64):
        raise DTypeError(f"{name}: expected a float32 or float64 tensor, got {input.dtype.name}")
    one_of(name, "interpolation", interpolation, "linear", "lower", "higher", "midpoint", "nearest")
    if not isinstance(q, Tensor):
        if not 0 <= q <= 1:
            raise ArgumentError(f"{name}: q must be between 0 and 1, got {q}")
        q = full((), q, dtype=input.dtype)
    if q.ndim > 1 or q.dtype is not input.dtype:
        got = f"{q.dtype.name} of shape {q.shape}"
        raise ArgumentError(f"{name}: q must be a number or a vector of {input.dtype.name}, got {got}")
    d = one_dim(name, 0 if dim is None else dim, input.ndim)
    if dim is None or not input.ndim:
        rows = shapes.reshape(input, (-1,))
        shape: tuple[int, ...] = (1,) * input.ndim if keepdim else ()
    else:
        rows = shapes.movedim(input, d, -1)
        shape = tuple(1 if i == d else n for i, n in enumerate(input.shape) if keepdim or i != d)
    n = rows.shape[-1]
    if not n:
        raise ShapeError(f"{name}: expected at least one element along dim, got shape {input.shape}")
    rows = sort(rows, -1).values
    nan = ew.isnan(rows)
    if ignore_nan:
        last = ew.sub(sum(ew.logical_not(nan), -1, True), 1)
        ranks = ew.clamp(ew.mul(shapes.reshape(q, (-1,)), ew.cast(last, input.dtype)), min=0)
    else:
        ranks = ew.where(any(nan, -1, True), float(n - 1), ew.mul(shapes.reshape(q, (-1,)), n - 1))
    ranks = ew.cast(ranks, input.dtype)
    if interpolation in ("lower", "higher", "nearest"):
        ranks = {"lower": ew.floor, "higher": ew.ceil, "nearest": ew.round}[interpolation](ranks)
    below = ew.cast(ranks, dtypes.int64)
    values = scatter.gather(rows, -1, below)  # (..., quantiles)
    if interpolation in ("linear", "midpoint"):
        weight: Any = 0.5 if interpolation == "midpoint" else ew.sub(ranks, below)
        values = ew.lerp(values, scatter.gather(rows, -1, ew.cast(ew.ceil(ranks), dtypes.int64)), weight)
    if not q.ndim:
        return shapes.reshape(values, shape)
    return shapes.reshape(shapes.movedim(values, -1, 0), (q.shape[0], *shape))


@autocasts(FLOAT32_ON_CPU)
def quantile(input: Any, q: Any, dim: Any = None, keepdim: bool = False, *, interpolation: str = "linear") -> Tensor:
    """The q-th quantiles, of all elements or along dim; nan if an element is nan."""
    return _quantile("quantile", input, q, dim, keepdim, interpolation, False)


@autocasts(FLOAT32_ON_CPU)
def nanquantile(input: Any, q: Any, dim: Any = None, keepdim: bool = False, *, interpolation: str = "linear") -> Tensor:
    """The q-th quantiles of the elements that are not nan, of all or along dim."""
    return _quantile("nanquantile", input, q, dim, keepdim, interpolation, True)


# --- covariance --------------------------------------------------------------------------------------


def cov(input: Any, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> Tensor:
    """The covariance matrix of the rows; fweights and aweights are weights of the columns."""
    if input.ndim > 2:
        raise ShapeError(f"cov: expected at most 2 dimensions, got shape {input.shape}")
    x = shapes.reshape(input, (1, -1)) if input.ndim < 2 else input  # (variables, observations)
    n = x.shape[1]
    w = fweights
    if aweights is not None:
        w = aweights if w is None else ew.mul(w, aweights)
    total: Any = n if w is None else sum(w)
    mean = ew.div(sum(x if w is None else ew.mul(x, w), 1, True), total)
    freedom: Any = max(n - correction, 0)
    if aweights is not None:
        freedom = ew.sub(total, ew.div(ew.mul(sum(ew.mul(w, aweights)), correction), total))
    elif w is not None:
        freedom = ew.sub(total, correction)
    if w is not None:
        freedom = ew.clamp(freedom, min=0)
    x = ew.sub(x, mean)
    right = shapes.transpose(x if w is None else ew.mul(x, w), 0, 1)
    product = x @ (right.conj() if right.dtype.is_complex else right)
    return shapes.squeeze(ew.div(product, freedom))


def corrcoef(input: Any) -> Tensor:
    """The correlation coefficients of the rows."""
    c = cov(input)
    if not c.ndim:
        return ew.div(c, c)
    diagonal = shapes.reshape(c, (-1,))[:: c.shape[0] + 1]
    size = ew.sqrt(diagonal.real if c.dtype.is_complex else diagonal)
    c = ew.div(ew.div(c, shapes.unsqueeze(size, 1)), shapes.unsqueeze(size, 0))
    if c.dtype.is_complex:
        return complex(ew.clamp(c.real, -1, 1), ew.clamp(c.imag, -1, 1))
    return ew.clamp(c, -1, 1)


# --- counting ----------------------------------------------------------------------------------------


def bincount(input: Any, weights: Any = None, minlength: int = 0) -> Tensor:
    """The number of occurrences of each non-negative integer, or the sum of its weights. Waits for the largest."""
    if input.ndim != 1 or input.dtype.is_differentiable or input.dtype is dtypes.bool_:
        raise ArgumentError(f"bincount: expected a vector of integers, got {input.dtype.name} of shape {input.shape}")
    if weights is not None and weights.shape != input.shape:
        raise ShapeError(f"bincount: weights must have shape {input.shape}, got {weights.shape}")
    at_least("bincount", "minlength", minlength, 0)
    if not input.numel():
        return zeros(minlength, dtype=dtypes.int64)
    low, high = shapes.stack([amin(input), amax(input)]).tolist()
    if low < 0:
        raise ArgumentError(f"bincount: elements must be >= 0, got {low}")
    if weights is None:
        weights = ones(input.shape, dtype=dtypes.int64)
    elif weights.dtype is not dtypes.float32:
        weights = ew.cast(weights, dtypes.float64)
    return added_at(ew.cast(input, dtypes.int64), weights, max(high + 1, minlength))


def _bounds(x: Any, low: Any, high: Any, margin: float) -> tuple[Any, Any]:
    """The given range or, if it is empty, the range of the data, widened if all elements are equal."""
    if low == high:
        if not x.numel():
            low, high = 0.0, 1.0
        else:
            low, high = amin(x), amax(x)
            flat = ew.eq(low, high)
            return ew.where(flat, ew.sub(low, margin), low), ew.where(flat, ew.add(high, margin), high)
    return low, high


def histc(input: Any, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """The number of elements in each of `bins` equal bins between min and max."""
    floating("histc", input)
    positive("histc", "bins", bins)
    if max < min:
        raise ArgumentError(f"histc: min must be <= max, got {min} and {max}")
    x = shapes.reshape(input, (-1,))
    low, high = _bounds(x, min, max, 1.0)
    inside = ew.logical_and(ew.ge(x, low), ew.le(x, high))
    at = ew.div(ew.mul(ew.sub(ew.where(inside, x, low), low), float(bins)), high - low)
    at = ew.clamp(ew.cast(at, dtypes.int64), 0, bins - 1)
    return added_at(at, ew.cast(inside, input.dtype), bins)


def _edges(x: Any, bins: Any, low: Any, high: Any) -> Any:
    """The edges of the bins: those given, or those of a number of equal bins."""
    if isinstance(bins, Tensor):
        return bins
    low, high = _bounds(x, low, high, 0.5)
    k = arange(bins + 1, dtype=x.dtype)
    step = (high - low) / bins
    # Computed from both ends, so that the last edge is exact too.
    ends = ew.where(
        ew.lt(k, (bins + 1) // 2), ew.add(ew.mul(k, step), low), ew.sub(high, ew.mul(ew.sub(bins, k), step))
    )
    return ew.cast(ends, x.dtype)


def _counted(rows: list[Any], edges: list[Any], weight: Any, density: bool) -> Tensor:
    """The number of points, given by their coordinates, in each cell between the edges."""
    sizes = [e.shape[0] - 1 for e in edges]
    cell: Any = 0
    inside: Any = None
    for x, e, n in zip(rows, edges, sizes, strict=True):
        fits = ew.logical_and(ew.ge(x, e[0]), ew.le(x, e[n]))
        inside = fits if inside is None else ew.logical_and(inside, fits)
        # The last bin includes its right edge.
        at = ew.clamp(ew.sub(searchsorted(e, x, right=True), 1), 0, n - 1)
        cell = ew.add(at, ew.mul(cell, n)) if isinstance(cell, Tensor) else at
    weight = ones(rows[0].shape, dtype=rows[0].dtype) if weight is None else shapes.reshape(weight, (-1,))
    hist = shapes.reshape(added_at(cell, ew.where(inside, weight, 0), math.prod(sizes)), tuple(sizes))
    if density:
        hist = ew.div(hist, sum(hist))
        for d, e in enumerate(edges):
            width = ew.sub(e[1:], e[:-1])
            hist = ew.div(hist, shapes.reshape(width, tuple(-1 if k == d else 1 for k in range(len(edges)))))
    return hist


def histogram(input: Any, bins: Any, *, range: Any = None, weight: Any = None, density: bool = False) -> Histogram:
    """The number of elements (or their total weight) in each bin, and the edges of the bins."""
    x = shapes.reshape(input, (-1,))
    edges = _edges(x, bins, *((0.0, 0.0) if range is None else range))
    return Histogram(_counted([x], [edges], weight, density), edges)


def histogramdd(input: Any, bins: Any, *, range: Any = None, weight: Any = None, density: bool = False) -> Histogram:
    """The number of points (rows), or their total weight, in each cell of a grid, and the edges of the bins."""
    if input.ndim < 2:
        raise ShapeError(f"histogramdd: expected at least 2 dimensions, got shape {input.shape}")
    points = shapes.reshape(input, (-1, input.shape[-1]))
    each: Sequence[Any] = [bins] * points.shape[1] if isinstance(bins, int) else list(bins)
    if len(each) != points.shape[1]:
        raise ShapeError(f"histogramdd: bins must have {points.shape[1]} entries, one per coordinate, got {len(each)}")
    rows = list(shapes.unbind(points, 1))
    limits = [0.0] * (2 * len(rows)) if range is None else list(range)
    edges = [_edges(x, b, *limits[2 * i : 2 * i + 2]) for i, (x, b) in enumerate(zip(rows, each, strict=True))]
    return Histogram(_counted(rows, edges, weight, density), tuple(edges))


# --- renorm ------------------------------------------------------------------------------------------


@autocasts(FLOAT32_ON_CUDA)
def renorm(input: Any, p: float, dim: int, maxnorm: float) -> Tensor:
    """A copy of the tensor whose slices along dim are scaled to a p-norm of at most maxnorm."""
    d = one_dim("renorm", dim, input.ndim)
    narrow = input.dtype in (dtypes.float16, dtypes.bfloat16)
    others = tuple(k for k in range(input.ndim) if k != d)
    sizes = norm(input, p, others, True, dtypes.float32 if narrow else None)
    small = ew.le(sizes, maxnorm)
    scale = ew.where(small, 1.0, ew.div(maxnorm, ew.add(ew.where(small, 1.0, sizes), 1e-7)))
    return ew.mul(input, ew.cast(scale, input.dtype) if narrow else scale)
