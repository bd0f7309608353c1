"""Matrix decompositions: QR, LU, eigenvalues, singular values; rank and least squares."""

from __future__ import annotations

from typing import Any, NamedTuple

from gt import dtypes
from gt.client.compat.autocast import autocasts
from gt.client.compat.checks import batches, one_of
from gt.client.functions import elementwise as ew
from gt.client.functions import reductions as red
from gt.client.functions import shapes
from gt.client.functions.complexes import adjoint, conj
from gt.client.functions.creation import empty, eye, zeros
from gt.client.functions.linalg.matrices import matmul, nothing_of
from gt.client.functions.linalg.solving import epsilon, is_vector, pinv, solve_triangular, tolerances
from gt.client.programs import kinds
from gt.client.record.recorder import apply, unary
from gt.client.tensor import Tensor
from gt.errors import ShapeError
from gt.ops.record import FLOAT32_ON_CPU, Autocast

__all__ = ["lu", "lu_solve", "lu_unpack", "orgqr", "qr", "svd"]
METHODS = ["lu", "lu_solve", "orgqr", "qr", "svd"]


class QR(NamedTuple):
    """The result of qr."""

    Q: Tensor
    R: Tensor


class Eigen(NamedTuple):
    """The result of eig and eigh."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class SVD(NamedTuple):
    """The result of linalg.svd."""

    U: Tensor
    S: Tensor
    Vh: Tensor


class OldSVD(NamedTuple):
    """The result of svd."""

    U: Tensor
    S: Tensor
    V: Tensor


class Factors(NamedTuple):
    """The result of linalg.lu and lu_unpack."""

    P: Tensor
    L: Tensor
    U: Tensor


class LeastSquares(NamedTuple):
    """The result of lstsq."""

    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


class LUFactor(NamedTuple):
    """The result of lu_factor."""

    LU: Tensor
    pivots: Tensor


class LUFactorInfo(NamedTuple):
    """The result of lu_factor_ex."""

    LU: Tensor
    pivots: Tensor
    info: Tensor


# --- QR ------------------------------------------------------------------------------------------------


@autocasts(Autocast(cpu="float32", cuda="off"))
def linalg_qr(A: Any, mode: str = "reduced") -> QR:
    """The QR decomposition: A = Q @ R with orthonormal columns Q and upper triangular R; mode 'r' computes R only."""
    one_of("linalg.qr", "mode", mode, "reduced", "complete", "r")
    if mode == "r":
        return QR(empty(0, dtype=A.dtype), apply(kinds.linalg_qr["reduced"], (A,))[1])
    return QR(*apply(kinds.linalg_qr[mode], (A,)))


@autocasts(Autocast(cpu="float32", cuda="off"))
def qr(input: Any, some: bool = True) -> QR:
    """The QR decomposition; see linalg.qr."""
    return linalg_qr(input, "reduced" if some else "complete")


@autocasts(Autocast(cpu="float32", cuda="off"))
def householder_product(A: Any, tau: Any) -> Tensor:
    """The first columns of a product of Householder reflections, given as geqrf returns them."""
    if A.ndim < 2 or A.shape[-1] > A.shape[-2] or tau.ndim != A.ndim - 1 or tau.shape[-1] > A.shape[-1]:
        raise ShapeError(f"linalg.householder_product: shapes {A.shape} of A and {tau.shape} of tau do not match")
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
    """Same as linalg.householder_product()."""
    return householder_product(input, tau)


# --- eigenvalues ---------------------------------------------------------------------------------------


@autocasts(Autocast(cpu="float32", cuda="off"))
def eigh(A: Any, UPLO: str = "L") -> Eigen:
    """The eigenvalues, in ascending order, and eigenvectors of symmetric or Hermitian matrices."""
    one_of("linalg.eigh", "UPLO", UPLO, "L", "U", "l", "u")
    return Eigen(*apply(kinds.linalg_eigh[UPLO in "Uu"], (A,)))


@autocasts(Autocast(cpu="float32", cuda="off"))
def eigvalsh(A: Any, UPLO: str = "L") -> Tensor:
    """The eigenvalues, in ascending order, of symmetric or Hermitian matrices."""
    return eigh(A, UPLO).eigenvalues


@autocasts(Autocast(cpu="float32", cuda="off"))
def eig(A: Any) -> Eigen:
    """The complex eigenvalues and eigenvectors of square matrices."""
    return Eigen(*apply(kinds.linalg_eig, (A,)))


@autocasts(Autocast(cpu="float32", cuda="off"))
def eigvals(A: Any) -> Tensor:
    """The complex eigenvalues of square matrices."""
    return eig(A).eigenvalues


# --- singular values -----------------------------------------------------------------------------------


@autocasts(Autocast(cpu="float32", cuda="off"))
def linalg_svd(A: Any, full_matrices: bool = True, *, driver: str | None = None) -> SVD:
    """The singular value decomposition: A = U @ diag(S) @ Vh, with S in descending order."""
    return SVD(*apply(kinds.linalg_svd[bool(full_matrices)], (A,)))


@autocasts(Autocast(cpu="float32", cuda="off"))
def svd(input: Any, some: bool = True, compute_uv: bool = True) -> OldSVD:
    """The singular value decomposition: input = U @ diag(S) @ V.mH; see linalg.svd."""
    if not compute_uv:
        m, n, batch = input.shape[-2], input.shape[-1], tuple(input.shape[:-2])
        return OldSVD(zeros(*batch, m, m, dtype=input.dtype), svdvals(input), zeros(*batch, n, n, dtype=input.dtype))
    u, s, vh = linalg_svd(input, not some)
    return OldSVD(u, s, adjoint(vh))


@autocasts(Autocast(cpu="float32", cuda="off"))
def svdvals(A: Any, *, driver: str | None = None) -> Tensor:
    """The singular values of matrices, in descending order."""
    return linalg_svd(A, False).S


@autocasts(Autocast(cpu="float32", cuda="off"))
def matrix_rank(A: Any, tol: Any = None, hermitian: bool = False, *, atol: Any = None, rtol: Any = None) -> Tensor:
    """The rank of matrices: the number of singular values larger than max(atol, rtol * the largest one)."""
    batches("linalg.matrix_rank", A)
    if tol is not None:
        atol, rtol = tol, 0.0
    low, relative = tolerances(A, atol, rtol)
    A = A.detach()
    values = ew.abs(eigvalsh(A)) if hermitian else svdvals(A)
    if not values.shape[-1]:
        return zeros(*A.shape[:-2], dtype=dtypes.int64)
    least = ew.maximum(ew.mul(red.amax(values, -1), relative), low)
    return red.sum(ew.gt(values, shapes.unsqueeze(least, -1)), -1)


@autocasts(Autocast(cpu="float32", cuda="off"))
def lstsq(A: Any, B: Any, rcond: float | None = None, *, driver: str | None = None) -> LeastSquares:
    """The least-squares solution X of A @ X = B, of minimal norm. The drivers gelsd and gelss wait for the rank."""
    driver = driver or "gelsy"
    one_of("linalg.lstsq", "driver", driver, "gels", "gelsy", "gelsd", "gelss")
    vector = is_vector(A, B)
    if vector:
        B = shapes.unsqueeze(B, -1)
    if A.ndim < 2 or B.ndim < 2 or A.shape[-2] != B.shape[-2]:
        raise ShapeError(f"linalg.lstsq: A and B must have the same number of rows, got shapes {A.shape} and {B.shape}")
    m, n = A.shape[-2:]
    cut = epsilon(A) * max(m, n) if rcond is None or rcond < 0 else rcond
    x = matmul(pinv(A, rtol=cut), B)
    rank = empty(0, dtype=dtypes.int64) if driver == "gels" else matrix_rank(A.detach(), rtol=cut)
    values = svdvals(A.detach()) if driver in ("gelsd", "gelss") else empty(0, dtype=A.dtype.to_real())
    if m > n and driver != "gelsy" and (driver == "gels" or bool(red.all(ew.eq(rank, n)))):
        size = ew.abs(ew.sub(matmul(A, x), B))
        residuals = red.sum(ew.mul(size, size), -2)
    else:
        residuals = ew.abs(shapes.reshape(x, (x.numel(),))[:0])
    return LeastSquares(shapes.squeeze(x, -1) if vector else x, residuals, rank, values)


# --- LU ------------------------------------------------------------------------------------------------


def lu_factor_ex(A: Any, *, pivot: bool = True, check_errors: bool = False) -> LUFactorInfo:
    """The LU factors in one matrix, the pivots, and info, which is 0 where A is not singular."""
    made, pivots, info = apply(kinds.linalg_lu_factor_ex[bool(pivot)], (A,))
    if check_errors:
        made = apply(kinds.linalg_check["linalg.lu_factor_ex: the matrix is singular"], (made, info))
    return LUFactorInfo(made, pivots, info)


def lu_factor(A: Any, *, pivot: bool = True) -> LUFactor:
    """The LU factors in one matrix, and the pivots."""
    made = lu_factor_ex(A, pivot=pivot)
    return LUFactor(made.LU, made.pivots)


@autocasts(FLOAT32_ON_CPU)
def lu(A: Any, pivot: bool = True, get_infos: bool = False) -> tuple[Tensor, ...]:
    """Same as linalg.lu_factor(); with get_infos, also returns info, which is 0 where A is not singular."""
    made = lu_factor_ex(A, pivot=pivot)
    return (made.LU, made.pivots, made.info) if get_infos else (made.LU, made.pivots)


def linalg_lu(A: Any, *, pivot: bool = True) -> Factors:
    """The LU decomposition: A = P @ L @ U with a permutation and two triangular matrices."""
    made = lu_factor_ex(A, pivot=pivot)
    return lu_unpack(made.LU, made.pivots)


def _permutation(pivots: Any, m: int, dtype: Any) -> Tensor:
    return unary(kinds.lu_permutation[m, dtype.name], ew.sub(pivots, 1))


def lu_unpack(LU_data: Any, LU_pivots: Any, unpack_data: bool = True, unpack_pivots: bool = True) -> Factors:
    """The matrices P, L and U of a result of lu_factor."""
    batches("lu_unpack", LU_data)
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
    """Solve A @ X = B (X @ A = B if not left; with A.mH if adjoint), given the result of lu_factor(A)."""
    n = LU.shape[-1] if LU.ndim > 1 else -1
    if n < 0 or B.ndim < 2 or LU.shape[-2] != n or B.shape[-2 if left else -1] != n:
        raise ShapeError(f"linalg.lu_solve: shapes {LU.shape} of LU and {B.shape} of B do not match (left={left})")
    p = _permutation(pivots, n, LU.dtype)
    factors = conj(shapes.transpose(LU, -2, -1)) if adjoint else LU

    def through_low(x: Any) -> Tensor:
        return solve_triangular(factors, x, upper=adjoint, left=left, unitriangular=True)

    def through_up(x: Any) -> Tensor:
        return solve_triangular(factors, x, upper=not adjoint, left=left)

    if left:
        if adjoint:
            return matmul(p, through_low(through_up(B)))
        return through_up(through_low(matmul(shapes.transpose(p, -2, -1), B)))
    if adjoint:
        return through_up(through_low(matmul(B, p)))
    return matmul(through_low(through_up(B)), shapes.transpose(p, -2, -1))


@autocasts(Autocast(cpu="float32", cuda="off"))
def lu_solve(b: Any, LU_data: Any, LU_pivots: Any) -> Tensor:
    """Solve A @ X = b, given the result of lu(A)."""
    return linalg_lu_solve(LU_data, LU_pivots, b)
