"""Every element with every other: products of sets, combinations, distances."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from gt.client.compat.autocast import autocasts
from gt.client.functions import elementwise as ew
from gt.client.functions import reductions as red
from gt.client.functions import shapes
from gt.client.functions.linalg.matrices import matmul
from gt.client.record.recorder import unary
from gt.client.record.tree import Kinds
from gt.errors import ArgumentError, DTypeError, ShapeError
from gt.ops import TABLE
from gt.ops.record import FLOAT32, FLOAT32_ON_CUDA

if TYPE_CHECKING:
    from gt.client.tensor import Tensor

__all__ = ["cartesian_prod", "cdist", "combinations", "pdist"]
METHODS: list[str] = []

_NORM = Kinds(TABLE["vector_norm"], "ord", "dims", "keepdim")
_FEW = 25  #: up to so many rows torch computes differences even where it may use a matrix product
_MODES = ("use_mm_for_euclid_dist_if_necessary", "use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist")


def cartesian_prod(*tensors: Any) -> Tensor:
    """All ways to take one element of each vector, a row for each."""
    for x in tensors:
        if x.ndim != 1:
            raise ShapeError(f"cartesian_prod: takes vectors, not {x.shape}")
    if len(tensors) == 1:
        one: Tensor = tensors[0]
        return one
    sizes, columns = tuple(x.shape[0] for x in tensors), []
    for i, x in enumerate(tensors):
        along = shapes.reshape(x, tuple(n if d == i else 1 for d, n in enumerate(sizes)))
        columns.append(shapes.reshape(shapes.expand(along, sizes), math.prod(sizes)))
    return shapes.stack(columns, 1)


def combinations(input: Any, r: int = 2, with_replacement: bool = False) -> Tensor:
    """All ways to take r elements of a vector, in its order."""
    from gt.client.functions.creation import empty, from_numpy

    if input.ndim != 1:
        raise ShapeError(f"combinations: takes a vector, not {input.shape}")
    if r < 0:
        raise ArgumentError(f"combinations: r is not negative, not {r}")
    if r == 0:
        return empty(0, dtype=input.dtype)
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    places = np.array(list(choose(range(input.shape[0]), r)), np.int64).reshape(-1, r)
    return input[from_numpy(places)]


@autocasts(FLOAT32)
def cdist(x1: Any, x2: Any, p: float = 2.0, compute_mode: str | None = _MODES[0]) -> Tensor:
    """The p-norm distance of every row of x1 to every row of x2; leading dimensions are batches."""
    if x1.ndim < 2 or x2.ndim < 2 or x1.shape[-1] != x2.shape[-1]:
        raise ShapeError(f"cdist: takes matrices with rows of one size, not {x1.shape} and {x2.shape}")
    for x in (x1, x2):
        if not x.dtype.is_floating_point:
            raise DTypeError(f"cdist: needs a floating type, not {x.dtype.name}; cast first, as in x.float()")
    if p < 0:
        raise ArgumentError(f"cdist: p is not negative, not {p}")
    mode = compute_mode or _MODES[0]
    if mode not in _MODES:
        raise ArgumentError(f"cdist: compute_mode={mode!r} is not one of {', '.join(_MODES)}")
    many = x1.shape[-2] > _FEW or x2.shape[-2] > _FEW
    if p == 2 and (mode == _MODES[1] or (mode == _MODES[0] and many)):
        return _euclidean(x1, x2)
    return _length(shapes.unsqueeze(x1, -2) - shapes.unsqueeze(x2, -3), p)


@autocasts(FLOAT32_ON_CUDA)
def pdist(input: Any, p: float = 2.0) -> Tensor:
    """The p-norm distance of every two rows of a matrix."""
    from gt.client.functions.creation import from_numpy

    if input.ndim != 2:
        raise ShapeError(f"pdist: takes a matrix, not {input.shape}")
    if p < 0:
        raise ArgumentError(f"pdist: p is not negative, not {p}")
    i, j = np.triu_indices(input.shape[0], 1)
    return _length(input[from_numpy(i)] - input[from_numpy(j)], p)


def _euclidean(a: Any, b: Any) -> Tensor:
    """By one matrix product: no differences in memory."""
    squares = red.sum(ew.mul(a, a), -1, True), red.sum(ew.mul(b, b), -1, True)
    apart = squares[0] + shapes.transpose(squares[1], -2, -1) - matmul(a, shapes.transpose(b, -2, -1)) * 2
    return _root(ew.clamp(apart, 0))


def _root(x: Any) -> Tensor:
    """The square root; at 0 its gradient is 0."""
    zero = ew.eq(x, 0)
    return ew.where(zero, 0.0, ew.sqrt(ew.where(zero, 1.0, x)))


def _length(x: Any, p: float) -> Tensor:
    """The p-norm of the last dimension; where it is 0, so is its gradient."""
    if not x.shape[-1]:
        return red.sum(x, -1)
    return unary(_NORM[float(p), (x.ndim - 1,), False], x)
