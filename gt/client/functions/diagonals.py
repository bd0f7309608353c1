"""Diagonals: reading them (views, as in torch), writing them, and matrices that are made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gt import dtypes
from gt.client.compat.autocast import autocasts
from gt.client.compat.dims import one_dim
from gt.client.functions import elementwise as ew
from gt.client.functions import reductions as red
from gt.client.functions import shapes
from gt.client.record.recorder import apply
from gt.client.record.tree import Kinds
from gt.client.views.aliases import take
from gt.errors import DimError, ShapeError
from gt.ops import TABLE
from gt.ops.record import Autocast

if TYPE_CHECKING:
    from gt.client.tensor import Tensor

__all__ = [
    "block_diag", "diag", "diag_embed", "diagflat", "diagonal", "diagonal_copy", "diagonal_scatter", "trace"
]  # fmt: skip
METHODS = [*{*__all__} - {"block_diag", "diagonal_copy"}]

_DIAGONAL = Kinds(TABLE["diagonal"], "offset", "dim1", "dim2")
_SCATTER = Kinds(TABLE["diagonal_scatter"], "offset", "dim1", "dim2")


def _two_dims(op: str, dim1: Any, dim2: Any, ndim: int) -> tuple[int, int]:
    a, b = one_dim(op, dim1, ndim), one_dim(op, dim2, ndim)
    if a == b:
        raise DimError(f"{op}: dim1 and dim2 are both {a}; a diagonal needs two dimensions")
    return a, b


def diagonal(input: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """A diagonal of two dimensions, as a new last one: a view.

    >>> import gt
    >>> gt.diagonal(gt.arange(9).reshape(3, 3), 1)
    tensor([1, 5])
    """
    out: Tensor = take(_DIAGONAL[int(offset), *_two_dims("diagonal", dim1, dim2, input.ndim)], input)
    return out


def diagonal_copy(input: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """diagonal, in memory of its own."""
    out: Tensor = apply(_DIAGONAL[int(offset), *_two_dims("diagonal_copy", dim1, dim2, input.ndim)], (input,))
    return out


def diagonal_scatter(input: Any, src: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """The tensor with a diagonal of two dimensions replaced by src."""
    kind = _SCATTER[int(offset), *_two_dims("diagonal_scatter", dim1, dim2, input.ndim)]
    out: Tensor = apply(kind, (input, ew.cast(src, input.dtype)))
    return out


def diag_embed(input: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Square matrices of zeros with the last dimension of input on a diagonal."""
    from gt.client.functions.creation import zeros

    if not input.ndim:
        raise ShapeError("diag_embed: a tensor of at least one dimension, not ()")
    a, b = _two_dims("diag_embed", dim1, dim2, input.ndim + 1)
    n = input.shape[-1] + abs(offset)
    shape = list(input.shape[:-1])
    for d in sorted((a, b)):
        shape.insert(d, n)
    out: Tensor = apply(_SCATTER[int(offset), a, b], (zeros(shape, dtype=input.dtype), input))
    return out


def diag(input: Any, diagonal: int = 0) -> Tensor:
    """A vector as the diagonal of a matrix of zeros; of a matrix, a copy of its diagonal."""
    if input.ndim == 1:
        return diag_embed(input, diagonal)
    if input.ndim == 2:
        return diagonal_copy(input, diagonal)
    raise ShapeError(f"diag: a vector or a matrix, not {input.shape}")


def diagflat(input: Any, offset: int = 0) -> Tensor:
    """A matrix of zeros with all elements of input on a diagonal."""
    return diag_embed(shapes.reshape(input, -1) if input.numel() else shapes.reshape(input, 0), offset)


@autocasts(Autocast(cpu="float32", cuda="off"))
def trace(input: Any) -> Tensor:
    """The sum of a matrix's diagonal."""
    if input.ndim != 2:
        raise ShapeError(f"trace: a matrix, not {input.shape}")
    return red.sum(diagonal_copy(input))


def block_diag(*tensors: Any) -> Tensor:
    """A matrix of zeros with these matrices along its diagonal; a vector is a row."""
    from gt.client.functions.creation import zeros

    if not tensors:
        return zeros(1, 0)
    blocks, dtype = [], tensors[0].dtype
    for x in tensors:
        if x.ndim > 2:
            raise ShapeError(f"block_diag: takes tensors of at most 2 dimensions, not {x.shape}")
        dtype = dtypes.promote_types(dtype, x.dtype)
        blocks.append(shapes.reshape(x, (1, x.numel())) if x.ndim < 2 else x)
    width, left, rows = sum(x.shape[1] for x in blocks), 0, []
    for x in blocks:
        right = width - left - x.shape[1]
        sides = [zeros(x.shape[0], left, dtype=dtype), ew.cast(x, dtype), zeros(x.shape[0], right, dtype=dtype)]
        rows.append(shapes.cat(sides, 1))
        left += x.shape[1]
    return shapes.cat(rows, 0)
