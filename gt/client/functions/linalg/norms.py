"""Norms and distances of vectors and matrices."""

from __future__ import annotations

import math
from typing import Any

from gt.client.compat.autocast import autocasts
from gt.client.compat.checks import batches, one_of, square
from gt.client.compat.dims import one_dim, some_dims
from gt.client.functions import elementwise as ew
from gt.client.functions import reductions as red
from gt.client.functions import shapes
from gt.client.functions.linalg.factoring import svdvals
from gt.client.functions.linalg.solving import inv_ex
from gt.client.programs import kinds
from gt.client.record.recorder import unary
from gt.client.tensor import Tensor
from gt.errors import ArgumentError, DimError, DTypeError
from gt.ops.record import FLOAT32_ON_CPU, FLOAT32_ON_CUDA

__all__ = ["dist", "norm"]
METHODS = [*__all__]


@autocasts(FLOAT32_ON_CUDA)
def norm(input: Any, p: Any = "fro", dim: Any = None, keepdim: bool = False, dtype: Any = None, **names: Any) -> Tensor:
    """The p-norm over dims: p is a number, inf, -inf, 'fro' (p = 2), or 'nuc' for matrices."""
    if names:
        dim, keepdim = red.renamed("norm", dim, keepdim, names)
    if dtype is not None:
        input = ew.cast(input, dtype)
    if p == "nuc":
        return matrix_norm(input, "nuc", (0, 1) if dim is None else dim, keepdim)
    if p is None or p == "fro":
        p = 2
    if isinstance(p, str):
        raise ArgumentError(f"norm: p must be a number, 'fro' or 'nuc', got {p!r}")
    p = p if isinstance(p, (int, float)) and not math.isinf(p) else float(p)
    return unary(kinds.vector_norm[p, some_dims("norm", dim, input.ndim), bool(keepdim)], input)


@autocasts(FLOAT32_ON_CUDA)
def dist(input: Any, other: Any, p: float = 2) -> Tensor:
    """The p-norm of input - other."""
    return norm(ew.sub(input, other), p)


# --- torch.linalg --------------------------------------------------------------------------------------


def _typed(op: str, x: Any, dtype: Any) -> Any:
    if dtype is not None:
        x = ew.cast(x, dtype)
    if not x.dtype.is_differentiable:
        raise DTypeError(f"{op}: expected a floating-point or complex tensor, got {x.dtype.name}; use x.float() first")
    return x


def vector_norm(x: Any, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The vector norm of order ord over dims; over all dimensions if dim is None."""
    x = _typed("linalg.vector_norm", x, dtype)
    return unary(kinds.vector_norm[float(ord), some_dims("linalg.vector_norm", dim, x.ndim), bool(keepdim)], x)


@autocasts(FLOAT32_ON_CUDA)
def matrix_norm(A: Any, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The matrix norm over two dimensions; ord is 'fro', 'nuc', 1, -1, 2, -2, inf or -inf."""
    A = _typed("linalg.matrix_norm", A, dtype)
    batches("linalg.matrix_norm", A)
    dims = tuple(one_dim("linalg.matrix_norm", d, A.ndim) for d in dim)
    if len(dims) != 2 or dims[0] == dims[1]:
        raise DimError(f"linalg.matrix_norm: dim must be two different dimensions, got {tuple(dim)}")
    if ord == "fro":
        return vector_norm(A, 2, dims, keepdim)
    if ord in ("nuc", 2, -2):
        values = svdvals(shapes.movedim(A, dims, (-2, -1)))
        made = red.sum(values, -1) if ord == "nuc" else (red.amax if ord == 2 else red.amin)(values, -1)
        return shapes.reshape(made, [1 if d in dims else n for d, n in enumerate(A.shape)]) if keepdim else made
    one_of("linalg.matrix_norm", "ord", ord, "fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf)
    along, across = dims if abs(ord) == 1 else dims[::-1]
    sums = red.sum(ew.abs(A), along, True)
    made = (red.amax if ord > 0 else red.amin)(sums, across, True)
    return made if keepdim else shapes.squeeze(made, dims)


def linalg_norm(A: Any, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The vector norm over one dimension or the matrix norm over two; without ord, the 2-norm of all elements."""
    dims = (dim,) if hasattr(dim, "__index__") else dim
    if ord is None:
        return vector_norm(A, 2, dims, keepdim, dtype=dtype)
    count = A.ndim if dims is None else len(dims)
    if not isinstance(ord, str) and (count == 1 or (dims is None and A.ndim == 1)):
        return vector_norm(A, ord, dims, keepdim, dtype=dtype)
    if count != 2:
        raise DimError(f"linalg.norm: ord={ord!r} needs 1 or 2 dimensions; pass dim for a tensor of shape {A.shape}")
    return matrix_norm(A, ord, (-2, -1) if dims is None else dims, keepdim, dtype=dtype)


@autocasts(FLOAT32_ON_CPU)
def cond(A: Any, p: Any = None) -> Tensor:
    """The condition number of matrices: norm(A) * norm(inv(A))."""
    batches("linalg.cond", A)
    if p is None or p in (2, -2):
        values = svdvals(A)
        largest, smallest = values[..., 0], values[..., -1]
        return ew.div(smallest, largest) if p == -2 else ew.div(largest, smallest)
    square("linalg.cond", A)
    inverse, info = inv_ex(A)
    bad = shapes.unsqueeze(shapes.unsqueeze(ew.ne(info, 0), -1), -1)
    return ew.mul(matrix_norm(A, p), matrix_norm(ew.where(bad, math.inf, inverse), p))
