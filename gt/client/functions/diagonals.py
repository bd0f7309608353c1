"""Diagonals: reading them (views, as in torch), writing them, and building matrices from them."""

from __future__ import annotations

from typing import Any

from gt import dtypes
from gt.client.compat.autocast import autocasts
from gt.client.compat.checks import matrices
from gt.client.compat.dims import one_dim
from gt.client.functions import elementwise as ew
from gt.client.functions import reductions as red
from gt.client.functions import shapes
from gt.client.functions.creation import zeros
from gt.client.programs import kinds
from gt.client.record.recorder import apply
from gt.client.tensor import Tensor
from gt.client.views.aliases import take
from gt.errors import DimError, ShapeError
from gt.ops.record import Autocast

__all__ = [
    "block_diag", "diag", "diag_embed", "diagflat", "diagonal", "diagonal_copy", "diagonal_scatter", "trace"
]  # fmt: skip
METHODS = [*{*__all__} - {"block_diag", "diagonal_copy"}]


def _two_dims(op: str, dim1: Any, dim2: Any, ndim: int) -> tuple[int, int]:
    a, b = one_dim(op, dim1, ndim), one_dim(op, dim2, ndim)
    if a == b:
        raise DimError(f"{op}: dim1 and dim2 must differ, got dimension {a} twice")
    return a, b


def diagonal(input: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """A view of a diagonal of two dimensions, which are replaced by a new last one.

    >>> import gt
    >>> gt.diagonal(gt.arange(9).reshape(3, 3), 1)
    tensor([1, 5])
    """
    return take(kinds.diagonal[int(offset), *_two_dims("diagonal", dim1, dim2, input.ndim)], input)


def diagonal_copy(input: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Same as diagonal(), but returns a copy."""
    return apply(kinds.diagonal[int(offset), *_two_dims("diagonal_copy", dim1, dim2, input.ndim)], (input,))


def diagonal_scatter(input: Any, src: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """A copy of the tensor with a diagonal of two dimensions replaced by src."""
    kind = kinds.diagonal_scatter[int(offset), *_two_dims("diagonal_scatter", dim1, dim2, input.ndim)]
    return apply(kind, (input, ew.cast(src, input.dtype)))


def diag_embed(input: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Square matrices of zeros with the last dimension of input on a diagonal."""
    if not input.ndim:
        raise ShapeError("diag_embed: expected at least one dimension, got shape ()")
    a, b = _two_dims("diag_embed", dim1, dim2, input.ndim + 1)
    n = input.shape[-1] + abs(offset)
    shape = list(input.shape[:-1])
    for d in sorted((a, b)):
        shape.insert(d, n)
    return apply(kinds.diagonal_scatter[int(offset), a, b], (zeros(shape, dtype=input.dtype), input))


def diag(input: Any, diagonal: int = 0) -> Tensor:
    """A matrix of zeros with a vector on a diagonal; for a matrix, a copy of its diagonal."""
    if input.ndim == 1:
        return diag_embed(input, diagonal)
    if input.ndim == 2:
        return diagonal_copy(input, diagonal)
    raise ShapeError(f"diag: expected a vector or a matrix, got shape {input.shape}")


def diagflat(input: Any, offset: int = 0) -> Tensor:
    """A matrix of zeros with all elements of input on a diagonal."""
    return diag_embed(shapes.reshape(input, -1) if input.numel() else shapes.reshape(input, 0), offset)


@autocasts(Autocast(cpu="float32", cuda="off"))
def trace(input: Any) -> Tensor:
    """The sum of the diagonal of a matrix."""
    matrices("trace", input)
    return red.sum(diagonal_copy(input))


def block_diag(*tensors: Any) -> Tensor:
    """A block diagonal matrix of the given matrices; a vector is a row."""
    if not tensors:
        return zeros(1, 0)
    blocks, dtype = [], tensors[0].dtype
    for x in tensors:
        if x.ndim > 2:
            raise ShapeError(f"block_diag: expected tensors of at most 2 dimensions, got shape {x.shape}")
        dtype = dtypes.promote_types(dtype, x.dtype)
        blocks.append(shapes.reshape(x, (1, x.numel())) if x.ndim < 2 else x)
    width, left, rows = sum(x.shape[1] for x in blocks), 0, []
    for x in blocks:
        right = width - left - x.shape[1]
        sides = [zeros(x.shape[0], left, dtype=dtype), ew.cast(x, dtype), zeros(x.shape[0], right, dtype=dtype)]
        rows.append(shapes.cat(sides, 1))
        left += x.shape[1]
    return shapes.cat(rows, 0)
