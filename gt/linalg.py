"""torch.linalg: functions of matrices. torch runs those that GT does not implement, on the worker."""

from __future__ import annotations

from typing import Any

from gt.client.compat import arguments as _arguments
from gt.client.compat.outs import write_out as _write_out
from gt.client.compat.fallback import namespace as _namespace
from gt.client.functions import diagonals as _diagonals
from gt.client.functions.linalg import matrices as _matrices
from gt.client.functions.linalg.factoring import (
    eig, eigh, eigvals, eigvalsh, householder_product, linalg_lu as lu, linalg_lu_solve as lu_solve, linalg_qr as qr,
    linalg_svd as svd, lstsq, lu_factor, lu_factor_ex, matrix_rank, svdvals,
)  # fmt: skip
from gt.client.functions.linalg.matrices import matmul
from gt.client.functions.linalg.norms import cond, linalg_norm as norm, matrix_norm, vector_norm
from gt.client.functions.linalg.solving import (
    cholesky_ex, det, inv, inv_ex, linalg_cholesky as cholesky, linalg_vander as vander, matrix_exp, matrix_power,
    multi_dot, pinv, slogdet, solve, solve_ex, solve_triangular, tensorinv, tensorsolve, vecdot,
)  # fmt: skip
from gt.client.tensor import Tensor as _Tensor
from gt.errors import LinAlgError

__all__ = [
    "LinAlgError", "cholesky", "cholesky_ex", "cond", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh",
    "householder_product", "inv", "inv_ex", "lstsq", "lu", "lu_factor", "lu_factor_ex", "lu_solve", "matmul",
    "matrix_exp", "matrix_norm", "matrix_power", "matrix_rank", "multi_dot", "norm", "pinv", "qr", "slogdet", "solve",
    "solve_ex", "solve_triangular", "svd", "svdvals", "tensorinv", "tensorsolve", "vander", "vecdot", "vector_norm",
]  # fmt: skip


def cross(input: Any, other: Any, *, dim: int = -1) -> _Tensor:
    """The cross product of vectors of 3 elements along a dimension."""
    return _matrices.cross_along("linalg.cross", input, other, dim)


def diagonal(A: Any, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> _Tensor:
    """A view of a diagonal of matrices."""
    return _diagonals.diagonal(A, offset, dim1, dim2)


_arguments.explain_all(globals(), _write_out)
__getattr__ = _namespace("linalg")
