"""Inverses, linear equations, Cholesky factors, determinants and powers of matrices.

Whether a matrix has an inverse (or a Cholesky factor) is known only on the worker: the call fails with LinAlgError if
it has none. The `_ex` forms never fail; they return `info`, which is 0 where the matrix has one.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from gt.client.compat.autocast import autocasts
from gt.client.compat.checks import batches, matrices, positive, same_dtype, square, vectors
from gt.client.functions import elementwise as ew
from gt.client.functions import reductions as red
from gt.client.functions import shapes
from gt.client.functions.complexes import conj
from gt.client.functions.creation import arange, eye
from gt.client.functions.linalg.matrices import matmul, multiply_chain, nothing_of
from gt.client.programs import kinds
from gt.client.record.recorder import apply, unary
from gt.client.tensor import Tensor
from gt.errors import ArgumentError, ShapeError
from gt.ops.record import FLOAT32_ON_CPU, LOWER, Autocast

__all__ = [
    "cholesky", "cholesky_inverse", "cholesky_solve", "det", "inverse", "logdet", "matrix_exp", "matrix_power",
    "pinverse", "slogdet", "triangular_solve", "vander",
]  # fmt: skip
METHODS = [*{*__all__} - {"vander"}]


class Inverse(NamedTuple):
    """The result of inv_ex."""

    inverse: Tensor
    info: Tensor


class Solution(NamedTuple):
    """The result of solve_ex."""

    result: Tensor
    info: Tensor


class Cholesky(NamedTuple):
    """The result of cholesky_ex."""

    L: Tensor
    info: Tensor


class SignLog(NamedTuple):
    """The result of slogdet."""

    sign: Tensor
    logabsdet: Tensor


class TriangularSolution(NamedTuple):
    """The result of triangular_solve."""

    solution: Tensor
    cloned_coefficient: Tensor


def _checked(x: Tensor, info: Tensor, what: str) -> Tensor:
    return apply(kinds.linalg_check[what], (x, info))


# --- inverses and linear equations ---------------------------------------------------------------------

_SINGULAR = "the matrix is singular, and has no inverse"


@autocasts(FLOAT32_ON_CPU)
def inv_ex(A: Any, *, check_errors: bool = False) -> Inverse:
    """The inverse of matrices, and info, which is 0 where the inverse exists."""
    y, info = apply(kinds.linalg_inv_ex, (A,))
    return Inverse(_checked(y, info, f"linalg.inv_ex: {_SINGULAR}") if check_errors else y, info)


@autocasts(FLOAT32_ON_CPU)
def inv(A: Any) -> Tensor:
    """The inverse of matrices."""
    y, info = apply(kinds.linalg_inv_ex, (A,))
    return _checked(y, info, f"linalg.inv: {_SINGULAR}")


@autocasts(FLOAT32_ON_CPU)
def inverse(input: Any) -> Tensor:
    """The inverse of matrices; see linalg.inv."""
    return inv(input)


def is_vector(A: Any, B: Any) -> bool:
    """Whether torch treats the right-hand side as a vector or a batch of vectors."""
    return B.ndim == 1 or (A.ndim - 1 == B.ndim and B.shape == A.shape[:-1])


def solve_ex(A: Any, B: Any, *, left: bool = True, check_errors: bool = False) -> Solution:
    """Solve A @ X = B (X @ A = B if not left); also returns info, which is 0 where the solution exists."""
    x, info = _solve("linalg.solve_ex", A, B, left)
    return Solution(_checked(x, info, f"linalg.solve_ex: {_SINGULAR}") if check_errors else x, info)


@autocasts(Autocast(cpu="float32", cuda="off"))
def solve(A: Any, B: Any, *, left: bool = True) -> Tensor:
    """Solve A @ X = B (X @ A = B if not left). B may be a vector."""
    x, info = _solve("linalg.solve", A, B, left)
    return _checked(x, info, f"linalg.solve: {_SINGULAR}")


def _solve(op: str, A: Any, B: Any, left: bool) -> tuple[Tensor, Tensor]:
    vector = is_vector(A, B)
    if vector and not left:
        raise ShapeError(f"{op}: left=False needs a matrix B, got shape {B.shape} (A has shape {A.shape})")
    if not left:
        x, info = apply(kinds.linalg_solve_ex, (shapes.transpose(A, -2, -1), shapes.transpose(B, -2, -1)))
        return shapes.transpose(x, -2, -1), info
    x, info = apply(kinds.linalg_solve_ex, (A, shapes.unsqueeze(B, -1) if vector else B))
    return shapes.squeeze(x, -1) if vector else x, info


def solve_triangular(A: Any, B: Any, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    """Solve A @ X = B (X @ A = B if not left) with a triangular matrix A."""
    return apply(kinds.linalg_solve_triangular[bool(upper), bool(left), bool(unitriangular)], (A, B))


@autocasts(Autocast(cpu="float32", cuda="off"))
def triangular_solve(
    b: Any, A: Any, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> TriangularSolution:
    """Solve A @ X = b with a triangular matrix A; also returns a copy of A."""
    whole = (*np.broadcast_shapes(b.shape[:-2], A.shape[:-2]), *A.shape[-2:])
    clone = shapes.expand(A, whole).clone()
    if transpose:
        A, upper = shapes.transpose(A, -2, -1), not upper
    return TriangularSolution(solve_triangular(A, b, upper=upper, unitriangular=unitriangular), clone)


@autocasts(FLOAT32_ON_CPU)
def tensorinv(A: Any, ind: int = 2) -> Tensor:
    """The inverse of a tensor as a matrix whose rows are the first ind dimensions."""
    positive("linalg.tensorinv", "ind", ind)
    rows, columns = tuple(A.shape[:ind]), tuple(A.shape[ind:])
    if math.prod(rows) != math.prod(columns):
        raise ShapeError(f"linalg.tensorinv: {A.shape} with ind={ind} is not a square matrix: {rows} and {columns}")
    return shapes.reshape(inv(shapes.reshape(A, (math.prod(rows), math.prod(columns)))), (*columns, *rows))


@autocasts(FLOAT32_ON_CPU)
def tensorsolve(A: Any, B: Any, dims: Any = None) -> Tensor:
    """Solve tensordot(A, X, X.ndim) = B."""
    if dims is not None:
        A = shapes.movedim(A, tuple(dims), tuple(range(A.ndim - len(dims), A.ndim)))
    rest = tuple(A.shape[B.ndim :])
    n = B.numel()
    if math.prod(rest) != n or A.numel() != n * n:
        raise ShapeError(f"linalg.tensorsolve: shapes {A.shape} and {B.shape} do not give a square matrix")
    return shapes.reshape(solve(shapes.reshape(A, (n, n)), shapes.reshape(B, (n,))), rest)


# --- Cholesky ------------------------------------------------------------------------------------------

_INDEFINITE = "the matrix is not positive definite"


@autocasts(FLOAT32_ON_CPU)
def cholesky_ex(A: Any, *, upper: bool = False, check_errors: bool = False) -> Cholesky:
    """The Cholesky factor L with A = L @ L.mH, and info, which is 0 where it exists."""
    y, info = apply(kinds.linalg_cholesky_ex[bool(upper)], (A,))
    return Cholesky(_checked(y, info, f"linalg.cholesky_ex: {_INDEFINITE}") if check_errors else y, info)


@autocasts(FLOAT32_ON_CPU)
def cholesky(input: Any, upper: bool = False) -> Tensor:
    """The Cholesky factor L with input = L @ L.mH, or its conjugate transpose if upper."""
    y, info = apply(kinds.linalg_cholesky_ex[bool(upper)], (input,))
    return _checked(y, info, f"linalg.cholesky: {_INDEFINITE}")


@autocasts(FLOAT32_ON_CPU)
def linalg_cholesky(A: Any, *, upper: bool = False) -> Tensor:
    """The Cholesky factor L with A = L @ L.mH, or its conjugate transpose if upper."""
    return cholesky(A, upper)


@autocasts(Autocast(cpu="float32", cuda="off"))
def cholesky_solve(B: Any, L: Any, upper: bool = False) -> Tensor:
    """Solve A @ X = B, given the Cholesky factor of A."""
    batches("cholesky_solve", B, L)
    return apply(kinds.cholesky_solve[bool(upper)], (B, L))


@autocasts(FLOAT32_ON_CPU)
def cholesky_inverse(L: Any, upper: bool = False) -> Tensor:
    """The inverse of A, given the Cholesky factor of A."""
    square("cholesky_inverse", L)
    return cholesky_solve(shapes.expand(eye(L.shape[-1], dtype=L.dtype), L.shape), L, upper)


# --- determinants --------------------------------------------------------------------------------------


def det(A: Any) -> Tensor:
    """The determinant of square matrices."""
    return unary(kinds.linalg_det, A)


def slogdet(A: Any) -> SignLog:
    """The sign of the determinant and the logarithm of its absolute value."""
    return SignLog(*apply(kinds.linalg_slogdet, (A,)))


def logdet(input: Any) -> Tensor:
    """The logarithm of the determinant; nan where the determinant is negative."""
    sign, log = slogdet(input)
    return ew.add(ew.log(sign), log)


# --- powers and exponential ----------------------------------------------------------------------------


def matrix_power(A: Any, n: int) -> Tensor:
    """The n-th power of square matrices; of the inverse if n is negative."""
    square("linalg.matrix_power", A)
    if n == 0:
        return ew.add(eye(A.shape[-1], dtype=A.dtype), nothing_of(A))
    factor, left = (inv(A) if n < 0 else A), abs(n)
    made: Any = None
    while left:
        if left % 2:
            made = factor if made is None else matmul(made, factor)
        left //= 2
        if left:
            factor = matmul(factor, factor)
    return made.clone() if made is A else made


def matrix_exp(A: Any) -> Tensor:
    """The matrix exponential of square matrices."""
    return unary(kinds.linalg_matrix_exp, A)


@autocasts(Autocast(cuda="lower"))
def multi_dot(tensors: Any) -> Tensor:
    """The product of several matrices in the cheapest order; the first and last may be vectors."""
    chain = list(tensors)
    if len(chain) < 2:
        raise ArgumentError(f"linalg.multi_dot: expected at least two tensors, got {len(chain)}")
    row, column = chain[0].ndim == 1, chain[-1].ndim == 1
    if row:
        chain[0] = shapes.unsqueeze(chain[0], 0)
    if column:
        chain[-1] = shapes.unsqueeze(chain[-1], 1)
    matrices("linalg.multi_dot", *chain)
    made = multiply_chain("linalg.multi_dot", chain)
    shape = tuple(made.shape[0 if row is False else 1 :][: 2 - row - column]) if row or column else made.shape
    return shapes.reshape(made, shape) if row or column else made


@autocasts(LOWER)
def vecdot(x: Any, y: Any, *, dim: int = -1) -> Tensor:
    """The dot product of vectors along a dimension; x is conjugated."""
    same_dtype("linalg.vecdot", x, y)
    return red.sum(ew.mul(conj(x), y), dim, dtype=x.dtype)


def linalg_vander(x: Any, *, N: int | None = None) -> Tensor:
    """The Vandermonde matrix: the powers 0, 1, ..., N - 1 of each element, in a new last dimension."""
    x = shapes.unsqueeze(x, 0) if not x.ndim else x
    if N is not None and N <= 1:
        raise ArgumentError(f"linalg.vander: N must be > 1, got {N}")
    return _powers(x, x.shape[-1] if N is None else N)


def vander(x: Any, N: int | None = None, increasing: bool = False) -> Tensor:
    """The Vandermonde matrix of a vector: a column for each power, the highest first unless increasing."""
    vectors("vander", x)
    made = _powers(x, x.shape[0] if N is None else N)
    return made if increasing else shapes.flip(made, 1)


def _powers(x: Any, n: int) -> Tensor:
    return ew.pow(shapes.unsqueeze(x, -1), arange(n))


# --- pseudo-inverse ------------------------------------------------------------------------------------


def epsilon(A: Any) -> float:
    """The difference between 1 and the next number of A's dtype."""
    return float(np.finfo(A.dtype.to_real().numpy).eps) if A.dtype.itemsize > 2 else float(2.0**-10)


def tolerances(A: Any, atol: Any, rtol: Any) -> tuple[Any, Any]:
    """The absolute and relative tolerances, with torch.linalg's defaults."""
    if rtol is None:
        unset = atol is None or (not isinstance(atol, Tensor) and atol == 0)
        rtol = epsilon(A) * max(A.shape[-2:]) if unset else 0.0
        if isinstance(atol, Tensor):
            rtol = ew.where(ew.gt(atol, 0), 0.0, epsilon(A) * max(A.shape[-2:]))
    return 0.0 if atol is None else atol, rtol


def pinv(A: Any, rcond: Any = None, hermitian: bool = False, *, atol: Any = None, rtol: Any = None) -> Tensor:
    """The pseudoinverse of matrices; singular values up to max(atol, rtol * the largest one) are treated as zero."""
    batches("linalg.pinv", A)
    low, relative = tolerances(A, atol, rcond if rtol is None else rtol)
    numbers = [float(t) if isinstance(t, (int, float)) else t for t in (low, relative)]
    return apply(kinds.linalg_pinv[bool(hermitian)], (A, *numbers))


@autocasts(Autocast(cpu="float32", cuda="off"))
def pinverse(input: Any, rcond: Any = 1e-15) -> Tensor:
    """The pseudoinverse of matrices; see linalg.pinv."""
    return pinv(input, rcond)
