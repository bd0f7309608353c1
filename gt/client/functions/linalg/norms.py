"""Norms of vectors and matrices, as torch.linalg has them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from gt.client.compat.autocast import autocasts
from gt.client.compat.dims import one_dim, some_dims
from gt.client.functions import elementwise as ew
from gt.client.functions import reductions as red
from gt.client.functions import shapes
from gt.client.functions.linalg.factoring import svdvals
from gt.client.functions.linalg.solving import inv_ex
from gt.client.record.recorder import unary
from gt.client.record.tree import Kinds
from gt.errors import ArgumentError, DimError, DTypeError, ShapeError
from gt.ops import TABLE
from gt.ops.record import FLOAT32_ON_CPU, FLOAT32_ON_CUDA

if TYPE_CHECKING:
    from gt.client.tensor import Tensor

_NORM = Kinds(TABLE["vector_norm"], "ord", "dims", "keepdim")


def _typed(op: str, x: Any, dtype: Any) -> Any:
    if dtype is not None:
        x = ew.cast(x, dtype)
    if not x.dtype.is_differentiable:
        raise DTypeError(f"{op}: needs a floating or complex type, not {x.dtype.name}; cast first, as in x.float()")
    return x


def vector_norm(x: Any, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The norm of order ord over dims; over all of them, if none is named."""
    x = _typed("linalg.vector_norm", x, dtype)
    return unary(_NORM[float(ord), some_dims("linalg.vector_norm", dim, x.ndim), bool(keepdim)], x)


@autocasts(FLOAT32_ON_CUDA)
def matrix_norm(A: Any, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The norm of matrices in two dimensions: 'fro', 'nuc', or 1, -1, 2, -2, inf, -inf."""
    A = _typed("linalg.matrix_norm", A, dtype)
    if A.ndim < 2:
        raise ShapeError(f"linalg.matrix_norm: takes matrices, not {A.shape}")
    dims = tuple(one_dim("linalg.matrix_norm", d, A.ndim) for d in dim)
    if len(dims) != 2 or dims[0] == dims[1]:
        raise DimError(f"linalg.matrix_norm: dim={tuple(dim)} does not name two dimensions")
    if ord == "fro":
        return vector_norm(A, 2, dims, keepdim)
    if ord in ("nuc", 2, -2):
        values = svdvals(shapes.movedim(A, dims, (-2, -1)))
        made = red.sum(values, -1) if ord == "nuc" else (red.amax if ord == 2 else red.amin)(values, -1)
        return _restored(made, A, dims) if keepdim else made
    if ord not in (1, -1, math.inf, -math.inf):
        raise ArgumentError(f"linalg.matrix_norm: ord={ord!r} is not 'fro', 'nuc', 1, -1, 2, -2, inf or -inf")
    along, across = dims if abs(ord) == 1 else dims[::-1]
    sums = red.sum(ew.abs(A), along, True)
    made = (red.amax if ord > 0 else red.amin)(sums, across, True)
    return made if keepdim else shapes.squeeze(made, dims)


def _restored(x: Tensor, A: Any, dims: tuple[int, ...]) -> Tensor:
    return shapes.reshape(x, tuple(1 if d in dims else n for d, n in enumerate(A.shape)))


def norm(A: Any, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """A vector's norm over one dimension, a matrix's over two; without ord, the 2-norm of all elements."""
    dims = (dim,) if hasattr(dim, "__index__") else dim
    if ord is None:
        return vector_norm(A, 2, dims, keepdim, dtype=dtype)
    count = A.ndim if dims is None else len(dims)
    if not isinstance(ord, str) and (count == 1 or (dims is None and A.ndim == 1)):
        return vector_norm(A, ord, dims, keepdim, dtype=dtype)
    if count != 2:
        raise DimError(
            f"linalg.norm: ord={ord!r} is of a vector or a matrix; {A.shape} needs dim to name 1 or 2 of them"
        )
    return matrix_norm(A, ord, (-2, -1) if dims is None else dims, keepdim, dtype=dtype)


@autocasts(FLOAT32_ON_CPU)
def cond(A: Any, p: Any = None) -> Tensor:
    """How much the solution of a linear equation may magnify an error: norm(A) * norm(inverse of A)."""
    if A.ndim < 2:
        raise ShapeError(f"linalg.cond: takes matrices, not {A.shape}")
    if p is None or p in (2, -2):
        values = svdvals(A)
        largest, smallest = values[..., 0], values[..., -1]
        return ew.div(smallest, largest) if p == -2 else ew.div(largest, smallest)
    if A.shape[-1] != A.shape[-2]:
        raise ShapeError(f"linalg.cond: p={p!r} takes square matrices, not {A.shape}")
    inverse, info = inv_ex(A)
    bad = shapes.unsqueeze(shapes.unsqueeze(ew.ne(info, 0), -1), -1)
    return ew.mul(matrix_norm(A, p), matrix_norm(ew.where(bad, math.inf, inverse), p))
