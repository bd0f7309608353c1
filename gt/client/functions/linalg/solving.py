"""Inverses, solutions, determinants and powers of matrices: torch.linalg's names, and torch's older ones.

A matrix that has no inverse (or no Cholesky factor) is found on the worker: the call fails with LinAlgError.
The `_ex` forms never fail; they return `info`, which is 0 where all went well.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gt import dtypes
from gt.client.compat.autocast import autocasts
from gt.client.functions import elementwise as ew
from gt.client.functions import reductions as red
from gt.client.functions import shapes
from gt.client.functions.complexes import conj
from gt.client.functions.creation import arange, empty, eye
from gt.client.functions.linalg.matrices import matmul, multiply_chain, nothing_of
from gt.client.record.recorder import apply, unary
from gt.client.record.tree import Kind, Kinds
from gt.errors import ArgumentError, DTypeError, ShapeError
from gt.ops import TABLE
from gt.ops.record import FLOAT32_ON_CPU, LOWER, Autocast

if TYPE_CHECKING:
    from gt.client.tensor import Tensor

__all__ = [
    "cholesky", "cholesky_inverse", "cholesky_solve", "det", "inverse", "logdet", "matrix_exp", "matrix_power",
    "pinverse", "slogdet", "triangular_solve", "vander",
]  # fmt: skip
METHODS = [*{*__all__} - {"vander"}]

_INV, _SOLVE, _DET, _SLOGDET, _EXP = (
    Kind(TABLE[f"linalg_{n}"], {}) for n in ("inv_ex", "solve_ex", "det", "slogdet", "matrix_exp")
)
_CHECK = Kinds(TABLE["linalg_check"], "what")
_CHOLESKY = Kinds(TABLE["linalg_cholesky_ex"], "upper")
_CHOLESKY_SOLVE = Kinds(TABLE["cholesky_solve"], "upper")
_TRIANGULAR = Kinds(TABLE["linalg_solve_triangular"], "upper", "left", "unitriangular")
_PINV = Kinds(TABLE["linalg_pinv"], "hermitian")


class Inverse(NamedTuple):
    """What inv_ex returns."""

    inverse: Tensor
    info: Tensor


class Solution(NamedTuple):
    """What solve_ex returns."""

    result: Tensor
    info: Tensor


class Cholesky(NamedTuple):
    """What cholesky_ex returns."""

    L: Tensor
    info: Tensor


class SignLog(NamedTuple):
    """What linalg.slogdet returns."""

    sign: Tensor
    logabsdet: Tensor


class TriangularSolution(NamedTuple):
    """What triangular_solve returns."""

    solution: Tensor
    cloned_coefficient: Tensor


class LeastSquares(NamedTuple):
    """What lstsq returns."""

    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


def _checked(x: Tensor, info: Tensor, what: str) -> Tensor:
    made: Tensor = apply(_CHECK[what], (x, info))
    return made


# --- inverse and solution ------------------------------------------------------------------------------

_SINGULAR = "the matrix is singular, and has no inverse"


@autocasts(FLOAT32_ON_CPU)
def inv_ex(A: Any, *, check_errors: bool = False) -> Inverse:
    """The inverse of matrices, and 0 where there is one."""
    y, info = apply(_INV, (A,))
    return Inverse(_checked(y, info, f"linalg.inv_ex: {_SINGULAR}") if check_errors else y, info)


@autocasts(FLOAT32_ON_CPU)
def inv(A: Any) -> Tensor:
    """The inverse of matrices."""
    y, info = apply(_INV, (A,))
    return _checked(y, info, f"linalg.inv: {_SINGULAR}")


@autocasts(FLOAT32_ON_CPU)
def inverse(input: Any) -> Tensor:
    """The inverse of matrices; see linalg.inv."""
    return inv(input)


def is_vector(A: Any, B: Any) -> bool:
    """Whether torch takes the right-hand side for a vector, or a batch of them."""
    return B.ndim == 1 or (A.ndim - 1 == B.ndim and B.shape == A.shape[:-1])


def solve_ex(A: Any, B: Any, *, left: bool = True, check_errors: bool = False) -> Solution:
    """The X of A @ X = B (X @ A = B unless left), and 0 where there is one."""
    x, info = _solve("linalg.solve_ex", A, B, left)
    return Solution(_checked(x, info, f"linalg.solve_ex: {_SINGULAR}") if check_errors else x, info)


@autocasts(Autocast(cpu="float32", cuda="off"))
def solve(A: Any, B: Any, *, left: bool = True) -> Tensor:
    """The X of A @ X = B, or of X @ A = B unless left. B may be a vector."""
    x, info = _solve("linalg.solve", A, B, left)
    return _checked(x, info, f"linalg.solve: {_SINGULAR}")


def _solve(op: str, A: Any, B: Any, left: bool) -> tuple[Tensor, Tensor]:
    vector = is_vector(A, B)
    if vector and not left:
        raise ShapeError(f"{op}: {A.shape} and {B.shape}: left=False takes a matrix B, not a vector")
    if not left:
        x, info = apply(_SOLVE, (shapes.transpose(A, -2, -1), shapes.transpose(B, -2, -1)))
        return shapes.transpose(x, -2, -1), info
    x, info = apply(_SOLVE, (A, shapes.unsqueeze(B, -1) if vector else B))
    return shapes.squeeze(x, -1) if vector else x, info


def solve_triangular(A: Any, B: Any, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    """The X of A @ X = B (X @ A = B unless left), where only one triangle of A counts."""
    made: Tensor = apply(_TRIANGULAR[bool(upper), bool(left), bool(unitriangular)], (A, B))
    return made


@autocasts(Autocast(cpu="float32", cuda="off"))
def triangular_solve(
    b: Any, A: Any, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> TriangularSolution:
    """The X of A @ X = b where only one triangle of A counts; and a copy of A."""
    whole = (*np.broadcast_shapes(b.shape[:-2], A.shape[:-2]), *A.shape[-2:])
    clone = shapes.expand(A, whole).clone()
    if transpose:
        A, upper = shapes.transpose(A, -2, -1), not upper
    return TriangularSolution(solve_triangular(A, b, upper=upper, unitriangular=unitriangular), clone)


@autocasts(FLOAT32_ON_CPU)
def tensorinv(A: Any, ind: int = 2) -> Tensor:
    """The inverse of a tensor whose first ind dimensions are the rows of a matrix."""
    if ind <= 0:
        raise ArgumentError(f"linalg.tensorinv: ind is positive, not {ind}")
    rows, columns = tuple(A.shape[:ind]), tuple(A.shape[ind:])
    if math.prod(rows) != math.prod(columns):
        raise ShapeError(f"linalg.tensorinv: {A.shape} with ind={ind} is no square matrix: {rows} and {columns}")
    return shapes.reshape(inv(shapes.reshape(A, (math.prod(rows), math.prod(columns)))), (*columns, *rows))


@autocasts(FLOAT32_ON_CPU)
def tensorsolve(A: Any, B: Any, dims: Any = None) -> Tensor:
    """The X of tensordot(A, X, X.ndim) = B."""
    if dims is not None:
        A = shapes.movedim(A, tuple(dims), tuple(range(A.ndim - len(dims), A.ndim)))
    rest = tuple(A.shape[B.ndim :])
    n = B.numel()
    if math.prod(rest) != n or A.numel() != n * n:
        raise ShapeError(f"linalg.tensorsolve: {A.shape} and {B.shape} make no square matrix")
    return shapes.reshape(solve(shapes.reshape(A, (n, n)), shapes.reshape(B, (n,))), rest)


# --- Cholesky ------------------------------------------------------------------------------------------

_INDEFINITE = "the matrix is not positive definite"


@autocasts(FLOAT32_ON_CPU)
def cholesky_ex(A: Any, *, upper: bool = False, check_errors: bool = False) -> Cholesky:
    """The triangle L with A = L @ L.mH, and 0 where there is one."""
    y, info = apply(_CHOLESKY[bool(upper)], (A,))
    return Cholesky(_checked(y, info, f"linalg.cholesky_ex: {_INDEFINITE}") if check_errors else y, info)


@autocasts(FLOAT32_ON_CPU)
def cholesky(input: Any, upper: bool = False) -> Tensor:
    """The triangle L with input = L @ L.mH; or its conjugate transpose, if upper."""
    y, info = apply(_CHOLESKY[bool(upper)], (input,))
    return _checked(y, info, f"linalg.cholesky: {_INDEFINITE}")


@autocasts(FLOAT32_ON_CPU)
def linalg_cholesky(A: Any, *, upper: bool = False) -> Tensor:
    """The triangle L with A = L @ L.mH; or its conjugate transpose, if upper."""
    return cholesky(A, upper)


@autocasts(Autocast(cpu="float32", cuda="off"))
def cholesky_solve(B: Any, L: Any, upper: bool = False) -> Tensor:
    """The X of A @ X = B, given A's Cholesky factor."""
    if B.ndim < 2 or L.ndim < 2:
        raise ShapeError(f"cholesky_solve: takes matrices, not {B.shape} and {L.shape}")
    made: Tensor = apply(_CHOLESKY_SOLVE[bool(upper)], (B, L))
    return made


@autocasts(FLOAT32_ON_CPU)
def cholesky_inverse(L: Any, upper: bool = False) -> Tensor:
    """The inverse of A, given its Cholesky factor."""
    if L.ndim < 2 or L.shape[-1] != L.shape[-2]:
        raise ShapeError(f"cholesky_inverse: takes square matrices, not {L.shape}")
    return cholesky_solve(shapes.expand(eye(L.shape[-1], dtype=L.dtype), L.shape), L, upper)


# --- determinants --------------------------------------------------------------------------------------


def det(A: Any) -> Tensor:
    """The determinant of square matrices."""
    return unary(_DET, A)


def slogdet(A: Any) -> SignLog:
    """The sign of the determinant, and the logarithm of its absolute value."""
    sign, log = apply(_SLOGDET, (A,))
    return SignLog(sign, log)


def logdet(input: Any) -> Tensor:
    """The logarithm of the determinant; nan where that is negative."""
    sign, log = slogdet(input)
    return ew.add(ew.log(sign), log)


# --- powers and exponential ----------------------------------------------------------------------------


def matrix_power(A: Any, n: int) -> Tensor:
    """A square matrix multiplied by itself n times; by its inverse, if n is negative."""
    if A.ndim < 2 or A.shape[-1] != A.shape[-2]:
        raise ShapeError(f"linalg.matrix_power: takes square matrices, not {A.shape}")
    if n == 0:
        return ew.add(eye(A.shape[-1], dtype=A.dtype), nothing_of(A))
    square, left = (inv(A) if n < 0 else A), abs(n)
    made: Any = None
    while left:
        if left % 2:
            made = square if made is None else matmul(made, square)
        left //= 2
        if left:
            square = matmul(square, square)
    return made.clone() if made is A else made


def matrix_exp(A: Any) -> Tensor:
    """The exponential of square matrices."""
    return unary(_EXP, A)


@autocasts(Autocast(cuda="lower"))
def multi_dot(tensors: Any) -> Tensor:
    """A chain of matrices multiplied in the cheapest order; the first and the last may be vectors."""
    chain = list(tensors)
    if len(chain) < 2:
        raise ArgumentError(f"linalg.multi_dot: takes at least two tensors, not {len(chain)}")
    row, column = chain[0].ndim == 1, chain[-1].ndim == 1
    if row:
        chain[0] = shapes.unsqueeze(chain[0], 0)
    if column:
        chain[-1] = shapes.unsqueeze(chain[-1], 1)
    for m in chain:
        if m.ndim != 2:
            raise ShapeError(f"linalg.multi_dot: takes matrices, and vectors at the ends, not {m.shape}")
    made = multiply_chain("linalg.multi_dot", chain)
    shape = tuple(made.shape[0 if row is False else 1 :][: 2 - row - column]) if row or column else made.shape
    return shapes.reshape(made, shape) if row or column else made


@autocasts(LOWER)
def vecdot(x: Any, y: Any, *, dim: int = -1) -> Tensor:
    """The dot products of vectors along a dimension; x is conjugated."""
    if x.dtype is not y.dtype:
        raise DTypeError(f"linalg.vecdot: {x.dtype.name} and {y.dtype.name} differ; cast one to the other")
    return red.sum(ew.mul(conj(x), y), dim, dtype=x.dtype)


def linalg_vander(x: Any, *, N: int | None = None) -> Tensor:
    """The powers 0, 1, ... of every element, in a new last dimension."""
    x = shapes.unsqueeze(x, 0) if not x.ndim else x
    if N is not None and N <= 1:
        raise ArgumentError(f"linalg.vander: N is larger than 1, not {N}")
    return _powers(x, x.shape[-1] if N is None else N)


def vander(x: Any, N: int | None = None, increasing: bool = False) -> Tensor:
    """The powers of every element of a vector, a column for each; the highest first unless increasing."""
    if x.ndim != 1:
        raise ShapeError(f"vander: takes a vector, not {x.shape}")
    made = _powers(x, x.shape[0] if N is None else N)
    return made if increasing else shapes.flip(made, 1)


def _powers(x: Any, n: int) -> Tensor:
    return ew.pow(shapes.unsqueeze(x, -1), arange(n))


# --- pseudo-inverse and least squares ------------------------------------------------------------------


def epsilon(A: Any) -> float:
    """The step between 1 and the next number of A's type."""
    return float(np.finfo(A.dtype.to_real().numpy).eps) if A.dtype.itemsize > 2 else float(2.0**-10)


def tolerances(A: Any, atol: Any, rtol: Any) -> tuple[Any, Any]:
    """What torch.linalg counts as zero, where nothing else is said."""
    if rtol is None:
        unset = atol is None or (not hasattr(atol, "_v") and atol == 0)
        rtol = epsilon(A) * max(A.shape[-2:]) if unset else 0.0
        if hasattr(atol, "_v"):
            rtol = ew.where(ew.gt(atol, 0), 0.0, epsilon(A) * max(A.shape[-2:]))
    return 0.0 if atol is None else atol, rtol


def pinv(A: Any, rcond: Any = None, hermitian: bool = False, *, atol: Any = None, rtol: Any = None) -> Tensor:
    """The pseudo-inverse of matrices; singular values up to max(atol, rtol * the largest) count as zero."""
    if A.ndim < 2:
        raise ShapeError(f"linalg.pinv: takes matrices, not the shape {A.shape}")
    low, relative = tolerances(A, atol, rcond if rtol is None else rtol)
    numbers = [float(t) if isinstance(t, (int, float)) else t for t in (low, relative)]
    made: Tensor = apply(_PINV[bool(hermitian)], (A, *numbers))
    return made


@autocasts(Autocast(cpu="float32", cuda="off"))
def pinverse(input: Any, rcond: Any = 1e-15) -> Tensor:
    """The pseudo-inverse of matrices; see linalg.pinv."""
    return pinv(input, rcond)


@autocasts(Autocast(cpu="float32", cuda="off"))
def lstsq(A: Any, B: Any, rcond: float | None = None, *, driver: str | None = None) -> LeastSquares:
    """The X that makes A @ X - B least in its 2-norm, and the smallest of those. Some drivers wait for the rank."""
    from gt.client.functions.linalg.factoring import matrix_rank, svdvals

    drivers = ("gels", "gelsy", "gelsd", "gelss")
    driver = driver or "gelsy"
    if driver not in drivers:
        raise ArgumentError(f"linalg.lstsq: driver={driver!r} is not one of {', '.join(drivers)}")
    vector = is_vector(A, B)
    if vector:
        B = shapes.unsqueeze(B, -1)
    if A.ndim < 2 or B.ndim < 2 or A.shape[-2] != B.shape[-2]:
        raise ShapeError(f"linalg.lstsq: {A.shape} and {B.shape}: row counts differ")
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
