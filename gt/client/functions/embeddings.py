"""Embeddings: rows of a table by index, bags of rows, one-hot vectors."""

from __future__ import annotations

from typing import Any

from gt import dtypes
from gt.client.compat.checks import one_of
from gt.client.functions import elementwise as ew
from gt.client.functions import shapes
from gt.client.functions.creation import arange, ones, zeros
from gt.client.functions.linalg.norms import vector_norm
from gt.client.grad.modes import set_grad
from gt.client.programs import kinds
from gt.client.record.recorder import apply, unary
from gt.client.tensor import Tensor
from gt.errors import ArgumentError, ShapeError


def one_hot(tensor: Any, num_classes: int = -1) -> Tensor:
    """One-hot vectors of class indices, in a new last dimension of size num_classes."""
    if num_classes < 0:
        if not tensor.numel():
            raise ArgumentError("one_hot: the tensor is empty; pass num_classes")
        num_classes = int(tensor.max().item()) + 1
    return unary(kinds.one_hot[num_classes], tensor)


def embedding(
    input: Any, weight: Any, padding_idx: int | None = None, max_norm: float | None = None, norm_type: float = 2.0,
    scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Tensor:  # fmt: skip
    """The rows of weight at the indices in input."""
    pad = _padding("embedding", padding_idx, weight)
    if max_norm is not None:
        _renormalize(weight, input, max_norm, norm_type)
    return apply(kinds.embedding[pad, bool(scale_grad_by_freq)], (weight, input))


def _padding(op: str, padding_idx: int | None, weight: Any) -> int:
    if padding_idx is None:
        return -1
    n = weight.shape[0]
    if not -n <= padding_idx < n:
        raise ArgumentError(f"{op}: padding_idx {padding_idx} is out of range for a weight with {n} rows")
    return int(padding_idx % n)


def _renormalize(weight: Any, input: Any, max_norm: float, norm_type: float) -> None:
    """Scale the rows at the indices in input to a norm of at most max_norm, in place, as torch does."""
    with set_grad(False):
        table = weight.detach()
        flat = shapes.reshape(input, (input.numel(),))
        used = zeros(table.shape[0], dtype=dtypes.bool_).index_fill(0, flat, True)
        norm = vector_norm(table, norm_type, 1)
        scale = ew.where(ew.logical_and(used, norm > max_norm), max_norm / (norm + 1e-7), 1.0)
        table.mul_(shapes.unsqueeze(scale, 1))


def embedding_bag(
    input: Any, weight: Any, offsets: Any = None, max_norm: float | None = None, norm_type: float = 2,
    scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False, per_sample_weights: Any = None,
    include_last_offset: bool = False, padding_idx: int | None = None,
) -> Tensor:  # fmt: skip
    """The sum, mean or maximum of the embeddings in each bag: a row of a matrix, or a run that begins at an offset."""
    one_of("embedding_bag", "mode", mode, "sum", "mean", "max")
    if per_sample_weights is not None and mode != "sum":
        raise ArgumentError(f"embedding_bag: per_sample_weights needs mode='sum', got {mode!r}")
    if input.ndim == 2:
        if offsets is not None:
            raise ArgumentError("embedding_bag: offsets must be None if input is a matrix, whose rows are the bags")
        bags, width = input.shape
        bag = shapes.reshape(shapes.expand(arange(bags).unsqueeze(1), (bags, width)), (bags * width,))
    elif input.ndim == 1:
        if offsets is None or offsets.ndim != 1:
            raise ArgumentError("embedding_bag: offsets must be a vector if input is a vector")
        bags = offsets.shape[0] - bool(include_last_offset)
        bag = _bags(offsets[:bags], input.shape[0])
    else:
        raise ShapeError(f"embedding_bag: input must be a vector or a matrix, got shape {tuple(input.shape)}")
    if per_sample_weights is not None and per_sample_weights.shape != input.shape:
        raise ShapeError(
            f"embedding_bag: per_sample_weights {tuple(per_sample_weights.shape)} and input {tuple(input.shape)} differ"
        )
    flat = shapes.reshape(input, (input.numel(),))
    rows = embedding(flat, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq)
    counted = None if padding_idx is None else ew.ne(flat, _padding("embedding_bag", padding_idx, weight))
    return _reduce(rows, bag, bags, mode, counted, per_sample_weights)


def _bags(offsets: Any, n: int) -> Any:
    """The bag of each of n indices: the number of offsets at or before it, minus one."""
    begins = zeros(n + 1, dtype=dtypes.int64).index_add(0, offsets, ones(offsets.shape[0], dtype=dtypes.int64))
    return begins[:n].cumsum(0) - 1


def _reduce(rows: Any, bag: Any, bags: int, mode: str, counted: Any, weights: Any) -> Tensor:
    start = zeros(bags, rows.shape[1], dtype=rows.dtype)
    keep = None if counted is None else shapes.unsqueeze(counted, 1)
    if mode == "max":
        index = shapes.expand(shapes.unsqueeze(bag, 1), rows.shape)
        if keep is None:
            return start.scatter_reduce(0, index, rows, "amax", include_self=False)
        # Padding is -inf, below everything; a bag that contains only padding is zero.
        low = start.scatter_reduce(0, index, ew.where(keep, rows, float("-inf")), "amax", include_self=False)
        return ew.where(ew.isneginf(low), 0.0, low)
    if weights is not None:
        rows = rows * shapes.reshape(weights, (rows.shape[0], 1))
    if keep is not None:
        rows = ew.where(keep, rows, 0.0)
    total = start.index_add(0, bag, rows)
    if mode == "sum":
        return total
    one = ones(rows.shape[0], dtype=rows.dtype) if counted is None else ew.cast(counted, rows.dtype)
    n = zeros(bags, dtype=rows.dtype).index_add(0, bag, one)
    return total / shapes.unsqueeze(ew.clamp(n, min=1.0), 1)
