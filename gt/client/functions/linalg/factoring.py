"""Matrices as products: QR, LU, eigenvectors, singular vectors; and what is read off them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from gt import dtypes
from gt.client.compat.autocast import autocasts
from gt.client.functions import elementwise as ew
from gt.client.functions import reductions as red
from gt.client.functions import shapes
from gt.client.functions.complexes import adjoint, conj
from gt.client.functions.creation import empty, eye, zeros
from gt.client.functions.linalg.matrices import matmul, nothing_of
from gt.client.functions.linalg.solving import solve_triangular, tolerances
from gt.client.record.recorder import apply, unary
from gt.client.record.tree import Kind, Kinds
from gt.errors import ArgumentError, ShapeError
from gt.ops import TABLE
from gt.ops.record import FLOAT32_ON_CPU, Autocast

if TYPE_CHECKING:
    from gt.client.tensor import Tensor

__all__ = ["lu", "lu_solve", "lu_unpack", "orgqr", "qr", "svd"]
METHODS = ["lu", "lu_solve", "orgqr", "qr", "svd"]

_QR = Kinds(TABLE["linalg_qr"], "mode")
_EIGH = Kinds(TABLE["linalg_eigh"], "upper")
_EIG = Kind(TABLE["linalg_eig"], {})
_SVD = Kinds(TABLE["linalg_svd"], "full_matrices")
_LU = Kinds(TABLE["linalg_lu_factor_ex"], "pivot")
_CHECK = Kinds(TABLE["linalg_check"], "what")
_PERMUTATION = Kinds(TABLE["lu_permutation"], "m", "dtype")


class QR(NamedTuple):
    """What qr returns."""

    Q: Tensor
    R: Tensor


class Eigen(NamedTuple):
    """What eig and eigh return."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class SVD(NamedTuple):
    """What linalg.svd returns."""

    U: Tensor
    S: Tensor
    Vh: Tensor


class OldSVD(NamedTuple):
    """What torch.svd returns."""

    U: Tensor
    S: Tensor
    V: Tensor


class Factors(NamedTuple):
    """What linalg.lu and lu_unpack return."""

    P: Tensor
    L: Tensor
    U: Tensor


class LUFactor(NamedTuple):
    """What lu_factor returns."""

    LU: Tensor
    pivots: Tensor


class LUFactorInfo(NamedTuple):
    """What lu_factor_ex returns."""

    LU: Tensor
    pivots: Tensor
    info: Tensor


# --- QR ------------------------------------------------------------------------------------------------


@autocasts(Autocast(cpu="float32", cuda="off"))
def linalg_qr(A: Any, mode: str = "reduced") -> QR:
    """A matrix as orthonormal columns times a triangle. Mode 'r' computes the triangle only."""
    if mode not in ("reduced", "complete", "r"):
        raise ArgumentError(f"linalg.qr: mode={mode!r} is not one of reduced, complete, r")
    if mode == "r":
        return QR(empty(0, dtype=A.dtype), apply(_QR["reduced"], (A,))[1])
    q, r = apply(_QR[mode], (A,))
    return QR(q, r)


@autocasts(Autocast(cpu="float32", cuda="off"))
def qr(input: Any, some: bool = True) -> QR:
    """A matrix as orthonormal columns times a triangle; see linalg.qr."""
    return linalg_qr(input, "reduced" if some else "complete")


@autocasts(Autocast(cpu="float32", cuda="off"))
def householder_product(A: Any, tau: Any) -> Tensor:
    """The first columns of a product of reflections: what geqrf leaves below the diagonal, and tau."""
    if A.ndim < 2 or A.shape[-1] > A.shape[-2] or tau.ndim != A.ndim - 1 or tau.shape[-1] > A.shape[-1]:
        raise ShapeError(f"linalg.householder_product: {A.shape} and tau {tau.shape} do not fit")
    m, n = A.shape[-2:]
    k = tau.shape[-1]
    below = shapes.tril(A, -1)
    v = ew.add(below, eye(m, n, dtype=A.dtype))
    made = shapes.expand(eye(m, n, dtype=A.dtype), A.shape)
    for i in range(k - 1, -1, -1):
        column = v[..., i : i + 1]  # (..., m, 1)
        scaled = ew.mul(column, tau[..., i : i + 1].unsqueeze(-1))
        made = ew.sub(made, matmul(scaled, matmul(adjoint(column), made)))
    return made if k else ew.add(made, nothing_of(A))


@autocasts(Autocast(cpu="float32", cuda="off"))
def orgqr(input: Any, tau: Any) -> Tensor:
    """See linalg.householder_product."""
    return householder_product(input, tau)


# --- eigenvectors --------------------------------------------------------------------------------------


@autocasts(Autocast(cpu="float32", cuda="off"))
def eigh(A: Any, UPLO: str = "L") -> Eigen:
    """The eigenvalues, ascending, and eigenvectors of a symmetric or Hermitian matrix."""
    if UPLO not in ("L", "U", "l", "u"):
        raise ArgumentError(f"linalg.eigh: UPLO={UPLO!r} is not 'L' or 'U'")
    values, vectors = apply(_EIGH[UPLO in "Uu"], (A,))
    return Eigen(values, vectors)


@autocasts(Autocast(cpu="float32", cuda="off"))
def eigvalsh(A: Any, UPLO: str = "L") -> Tensor:
    """The eigenvalues, ascending, of a symmetric or Hermitian matrix."""
    return eigh(A, UPLO).eigenvalues


@autocasts(Autocast(cpu="float32", cuda="off"))
def eig(A: Any) -> Eigen:
    """The eigenvalues and eigenvectors of a square matrix; complex."""
    values, vectors = apply(_EIG, (A,))
    return Eigen(values, vectors)


@autocasts(Autocast(cpu="float32", cuda="off"))
def eigvals(A: Any) -> Tensor:
    """The eigenvalues of a square matrix; complex."""
    return eig(A).eigenvalues


# --- singular vectors ----------------------------------------------------------------------------------


@autocasts(Autocast(cpu="float32", cuda="off"))
def linalg_svd(A: Any, full_matrices: bool = True, *, driver: str | None = None) -> SVD:
    """A matrix as U @ diag(S) @ Vh, with orthonormal U and Vh, and S descending."""
    u, s, vh = apply(_SVD[bool(full_matrices)], (A,))
    return SVD(u, s, vh)


@autocasts(Autocast(cpu="float32", cuda="off"))
def svd(input: Any, some: bool = True, compute_uv: bool = True) -> OldSVD:
    """A matrix as U @ diag(S) @ V.mH; see linalg.svd."""
    if not compute_uv:
        m, n, batch = input.shape[-2], input.shape[-1], tuple(input.shape[:-2])
        return OldSVD(zeros(*batch, m, m, dtype=input.dtype), svdvals(input), zeros(*batch, n, n, dtype=input.dtype))
    u, s, vh = linalg_svd(input, not some)
    return OldSVD(u, s, adjoint(vh))


@autocasts(Autocast(cpu="float32", cuda="off"))
def svdvals(A: Any, *, driver: str | None = None) -> Tensor:
    """The singular values of a matrix, descending."""
    return linalg_svd(A, False).S


@autocasts(Autocast(cpu="float32", cuda="off"))
def matrix_rank(A: Any, tol: Any = None, hermitian: bool = False, *, atol: Any = None, rtol: Any = None) -> Tensor:
    """How many singular values are larger than max(atol, rtol * the largest)."""
    if A.ndim < 2:
        raise ShapeError(f"linalg.matrix_rank: takes matrices, not {A.shape}")
    if tol is not None:
        atol, rtol = tol, 0.0
    low, relative = tolerances(A, atol, rtol)
    A = A.detach()
    values = ew.abs(eigvalsh(A)) if hermitian else svdvals(A)
    if not values.shape[-1]:
        return zeros(*A.shape[:-2], dtype=dtypes.int64)
    least = ew.maximum(ew.mul(red.amax(values, -1), relative), low)
    return red.sum(ew.gt(values, shapes.unsqueeze(least, -1)), -1)


# --- LU ------------------------------------------------------------------------------------------------


def lu_factor_ex(A: Any, *, pivot: bool = True, check_errors: bool = False) -> LUFactorInfo:
    """The triangles of linalg.lu in one matrix, the exchanges of rows, and 0 where A is not singular."""
    made, pivots, info = apply(_LU[bool(pivot)], (A,))
    if check_errors:
        made = apply(_CHECK["linalg.lu_factor_ex: the matrix is singular"], (made, info))
    return LUFactorInfo(made, pivots, info)


def lu_factor(A: Any, *, pivot: bool = True) -> LUFactor:
    """The triangles of linalg.lu in one matrix, and the exchanges of rows."""
    made = lu_factor_ex(A, pivot=pivot)
    return LUFactor(made.LU, made.pivots)


@autocasts(FLOAT32_ON_CPU)
def lu(A: Any, pivot: bool = True, get_infos: bool = False) -> tuple[Tensor, ...]:
    """linalg.lu_factor; with get_infos, also 0 where A is not singular."""
    made = lu_factor_ex(A, pivot=pivot)
    return (made.LU, made.pivots, made.info) if get_infos else (made.LU, made.pivots)


def linalg_lu(A: Any, *, pivot: bool = True) -> Factors:
    """A matrix as P @ L @ U: a permutation and two triangles."""
    made = lu_factor_ex(A, pivot=pivot)
    return lu_unpack(made.LU, made.pivots)


def _permutation(pivots: Any, m: int, dtype: Any) -> Tensor:
    return unary(_PERMUTATION[m, dtype.name], ew.sub(pivots, 1))


def lu_unpack(LU_data: Any, LU_pivots: Any, unpack_data: bool = True, unpack_pivots: bool = True) -> Factors:
    """P, L and U of what lu_factor returned."""
    if LU_data.ndim < 2:
        raise ShapeError(f"lu_unpack: LU_data has at least 2 dimensions, not the shape {LU_data.shape}")
    m, n = LU_data.shape[-2:]
    k = min(m, n)
    nothing = empty(0, dtype=LU_data.dtype)
    p = _permutation(LU_pivots, m, LU_data.dtype) if unpack_pivots else nothing
    if not unpack_data:
        return Factors(p, nothing, nothing)
    low = ew.add(shapes.tril(LU_data[..., :k], -1), eye(m, k, dtype=LU_data.dtype))
    return Factors(p, low, shapes.triu(LU_data[..., :k, :]))


@autocasts(Autocast(cpu="off", cuda="off"))
def linalg_lu_solve(LU: Any, pivots: Any, B: Any, *, left: bool = True, adjoint: bool = False) -> Tensor:
    """The X of A @ X = B (X @ A = B unless left), given what lu_factor returned for A, or for A.mH."""
    n = LU.shape[-1] if LU.ndim > 1 else -1
    if n < 0 or B.ndim < 2 or LU.shape[-2] != n or B.shape[-2 if left else -1] != n:
        raise ShapeError(f"linalg.lu_solve: LU {LU.shape} and B {B.shape} do not fit with left={left}")
    p = _permutation(pivots, n, LU.dtype)
    low, up = (_flip(LU), _flip(LU)) if adjoint else (LU, LU)

    def through_low(x: Any) -> Tensor:
        return solve_triangular(low, x, upper=adjoint, left=left, unitriangular=True)

    def through_up(x: Any) -> Tensor:
        return solve_triangular(up, x, upper=not adjoint, left=left)

    if left:
        if adjoint:
            return matmul(p, through_low(through_up(B)))
        return through_up(through_low(matmul(_flip(p), B)))
    if adjoint:
        return through_up(through_low(matmul(B, p)))
    return matmul(through_low(through_up(B)), _flip(p))


def _flip(x: Any) -> Tensor:
    return conj(shapes.transpose(x, -2, -1))


@autocasts(Autocast(cpu="float32", cuda="off"))
def lu_solve(b: Any, LU_data: Any, LU_pivots: Any) -> Tensor:
    """The X of A @ X = b, given what lu returned for A."""
    return linalg_lu_solve(LU_data, LU_pivots, b)
