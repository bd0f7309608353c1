"""Combinations and pairwise distances."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from gt.client.compat.autocast import autocasts
from gt.client.compat.checks import at_least, floating, matrices, one_of, vectors
from gt.client.functions import elementwise as ew
from gt.client.functions import reductions as red
from gt.client.functions import shapes
from gt.client.functions.creation import empty, from_numpy
from gt.client.functions.linalg.matrices import matmul
from gt.client.programs import kinds
from gt.client.record.recorder import unary
from gt.client.tensor import Tensor
from gt.errors import ShapeError
from gt.ops.record import FLOAT32, FLOAT32_ON_CUDA

__all__ = ["cartesian_prod", "cdist", "combinations", "pdist"]

_FEW = 25  #: Up to this number of rows, torch computes differences even where a matrix product is allowed.
_MODES = ("use_mm_for_euclid_dist_if_necessary", "use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist")


def cartesian_prod(*tensors: Any) -> Tensor:
    """The Cartesian product of the vectors: one row per combination of their elements."""
    vectors("cartesian_prod", *tensors)
    if len(tensors) == 1:
        return tensors[0]
    sizes, columns = tuple(x.shape[0] for x in tensors), []
    for i, x in enumerate(tensors):
        along = shapes.reshape(x, tuple(n if d == i else 1 for d, n in enumerate(sizes)))
        columns.append(shapes.reshape(shapes.expand(along, sizes), math.prod(sizes)))
    return shapes.stack(columns, 1)


def combinations(input: Any, r: int = 2, with_replacement: bool = False) -> Tensor:
    """All combinations of r elements of a vector, one row each."""
    vectors("combinations", input)
    at_least("combinations", "r", r, 0)
    if r == 0:
        return empty(0, dtype=input.dtype)
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    places = np.array(list(choose(range(input.shape[0]), r)), np.int64).reshape(-1, r)
    return input[from_numpy(places)]


@autocasts(FLOAT32)
def cdist(x1: Any, x2: Any, p: float = 2.0, compute_mode: str | None = _MODES[0]) -> Tensor:
    """The p-norm distance between each row of x1 and each row of x2; leading dimensions are batches."""
    if x1.ndim < 2 or x2.ndim < 2 or x1.shape[-1] != x2.shape[-1]:
        raise ShapeError(f"cdist: expected matrices with the same number of columns, got {x1.shape} and {x2.shape}")
    floating("cdist", x1)
    floating("cdist", x2)
    at_least("cdist", "p", p, 0)
    mode = compute_mode or _MODES[0]
    one_of("cdist", "compute_mode", mode, *_MODES)
    many = x1.shape[-2] > _FEW or x2.shape[-2] > _FEW
    if p == 2 and (mode == _MODES[1] or (mode == _MODES[0] and many)):
        return _euclidean(x1, x2)
    return _length(shapes.unsqueeze(x1, -2) - shapes.unsqueeze(x2, -3), p)


@autocasts(FLOAT32_ON_CUDA)
def pdist(input: Any, p: float = 2.0) -> Tensor:
    """The p-norm distances between all pairs of rows of a matrix, as a vector."""
    matrices("pdist", input)
    at_least("pdist", "p", p, 0)
    i, j = np.triu_indices(input.shape[0], 1)
    return _length(input[from_numpy(i)] - input[from_numpy(j)], p)


def _euclidean(a: Any, b: Any) -> Tensor:
    """Euclidean distances by one matrix product, without storing the differences."""
    squares = red.sum(ew.mul(a, a), -1, True), red.sum(ew.mul(b, b), -1, True)
    apart = squares[0] + shapes.transpose(squares[1], -2, -1) - matmul(a, shapes.transpose(b, -2, -1)) * 2
    return _root(ew.clamp(apart, 0))


def _root(x: Any) -> Tensor:
    """The square root, with a gradient of 0 at 0."""
    zero = ew.eq(x, 0)
    return ew.where(zero, 0.0, ew.sqrt(ew.where(zero, 1.0, x)))


def _length(x: Any, p: float) -> Tensor:
    """The p-norm over the last dimension, with a gradient of 0 where it is 0."""
    if not x.shape[-1]:
        return red.sum(x, -1)
    return unary(kinds.vector_norm[float(p), (x.ndim - 1,), False], x)
