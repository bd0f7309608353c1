"""The namespace gt.linalg: torch.linalg's functions under their names. What GT lacks, torch runs on the worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gt.client.compat import arguments as _arguments
from gt.client.functions import diagonals as _diagonals
from gt.client.functions.linalg import matrices as _matrices
from gt.client.functions.linalg.factoring import (
    eig,
    eigh,
    eigvals,
    eigvalsh,
    householder_product,
    lu_factor,
    lu_factor_ex,
    matrix_rank,
    svdvals,
)
from gt.client.functions.linalg.factoring import linalg_lu as lu
from gt.client.functions.linalg.factoring import linalg_lu_solve as lu_solve
from gt.client.functions.linalg.factoring import linalg_qr as qr
from gt.client.functions.linalg.factoring import linalg_svd as svd
from gt.client.functions.linalg.matrices import matmul
from gt.client.functions.linalg.norms import cond, matrix_norm, norm, vector_norm
from gt.client.functions.linalg.solving import (
    cholesky_ex,
    det,
    inv,
    inv_ex,
    lstsq,
    matrix_exp,
    matrix_power,
    multi_dot,
    pinv,
    slogdet,
    solve,
    solve_ex,
    solve_triangular,
    tensorinv,
    tensorsolve,
    vecdot,
)  # fmt: skip
from gt.client.functions.linalg.solving import linalg_cholesky as cholesky
from gt.client.functions.linalg.solving import linalg_vander as vander
from gt.errors import LinAlgError

if TYPE_CHECKING:
    from gt.client.tensor import Tensor

__all__ = [
    "LinAlgError", "cholesky", "cholesky_ex", "cond", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh",
    "householder_product", "inv", "inv_ex", "lstsq", "lu", "lu_factor", "lu_factor_ex", "lu_solve", "matmul",
    "matrix_exp", "matrix_norm", "matrix_power", "matrix_rank", "multi_dot", "norm", "pinv", "qr", "slogdet", "solve",
    "solve_ex", "solve_triangular", "svd", "svdvals", "tensorinv", "tensorsolve", "vander", "vecdot", "vector_norm",
]  # fmt: skip


def cross(input: Any, other: Any, *, dim: int = -1) -> Tensor:
    """The cross product of vectors of three elements along a dimension."""
    return _matrices.cross_along("linalg.cross", input, other, dim)


def diagonal(A: Any, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """A diagonal of matrices, as a view."""
    return _diagonals.diagonal(A, offset, dim1, dim2)


_arguments.explain_all(globals())


def __getattr__(name: str) -> Any:
    from gt.client.compat.fallback import find

    found = None if name.startswith("_") else find(f"linalg.{name}")
    if found is None:
        raise AttributeError(f"module 'gt.linalg' has no attribute {name!r}")
    return found
