"""Products of matrices and vectors, and what is built of them: torch's names outside torch.linalg."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gt.client.compat.autocast import autocasts
from gt.client.compat.dims import one_dim
from gt.client.functions import elementwise as ew
from gt.client.functions import reductions as red
from gt.client.functions import shapes
from gt.client.functions.complexes import conj
from gt.client.record.recorder import binary
from gt.client.record.tree import Kind
from gt.errors import ArgumentError, DimError, DTypeError, ShapeError
from gt.ops import TABLE
from gt.ops.record import LOWER, Autocast

if TYPE_CHECKING:
    from gt.client.tensor import Tensor

__all__ = [
    "addbmm", "addmm", "addmv", "addr", "baddbmm", "bmm", "chain_matmul", "cross", "dot", "ger", "inner", "kron",
    "matmul", "mm", "mv", "outer", "tensordot", "vdot",
]  # fmt: skip
METHODS = [*{*__all__} - {"chain_matmul", "tensordot"}]
INPLACE = ["addbmm", "addmm", "addmv", "addr", "baddbmm"]

_MATMUL = Kind(TABLE["matmul"], {})


def matmul(input: Any, other: Any) -> Tensor:
    """The matrix product, with torch's rules for vectors and batches."""
    return binary(_MATMUL, input, other)


def _product(name: str, left: int, right: int, what: str) -> Callable[[Any, Any], Tensor]:
    """A product of tensors with exactly so many dimensions; batches do not broadcast."""

    def check(input: Any, other: Any) -> None:
        if input.ndim != left or other.ndim != right or (left == 3 and input.shape[0] != other.shape[0]):
            raise ShapeError(f"{name}: takes {what}, not {input.shape} and {other.shape}")

    def function(input: Any, other: Any) -> Tensor:
        check(input, other)
        return binary(_MATMUL, input, other)

    function.__name__ = function.__qualname__ = name
    return function


_mm = _product("mm", 2, 2, "two matrices")
_bmm = _product("bmm", 3, 3, "two batches of as many matrices")
_mv = _product("mv", 2, 1, "a matrix and a vector")
_dot = _product("dot", 1, 1, "two vectors")


def mm(input: Any, mat2: Any) -> Tensor:
    """The product of two matrices."""
    return _mm(input, mat2)


def bmm(input: Any, mat2: Any) -> Tensor:
    """The products of two batches of matrices."""
    return _bmm(input, mat2)


@autocasts(Autocast(cpu="off", cuda="lower"))
def mv(input: Any, vec: Any) -> Tensor:
    """A matrix times a vector."""
    return _mv(input, vec)


@autocasts(Autocast(cpu="off", cuda="widest"))
def dot(input: Any, tensor: Any) -> Tensor:
    """The sum of the products of two vectors' elements."""
    return _dot(input, tensor)


@autocasts(Autocast(cpu="off", cuda="widest"))
def vdot(input: Any, other: Any) -> Tensor:
    """dot, with the first vector conjugated."""
    return _dot(conj(input), other)


def inner(input: Any, other: Any) -> Tensor:
    """The sum of products over the last dimension of both."""
    if not input.ndim or not other.ndim:
        return ew.mul(input, other)
    if input.shape[-1] != other.shape[-1]:
        raise ShapeError(f"inner: {input.shape} and {other.shape}: last sizes differ")
    return tensordot(input, other, ([-1], [-1]))


def outer(input: Any, vec2: Any) -> Tensor:
    """Every element of one vector times every element of another."""
    if input.ndim != 1 or vec2.ndim != 1:
        raise ShapeError(f"outer: takes two vectors, not {input.shape} and {vec2.shape}")
    return ew.mul(shapes.unsqueeze(input, 1), vec2)


ger = outer


# --- sums with products --------------------------------------------------------------------------------


def _plus(op: str, input: Any, product: Tensor, beta: Any, alpha: Any, same: bool = True) -> Tensor:
    """beta * input + alpha * product; where beta is 0 nothing of input is read, not even a nan."""
    if same and input.dtype is not product.dtype:
        raise DTypeError(f"{op}: {input.dtype.name} and {product.dtype.name} differ; cast one to the other")
    if not product.dtype.is_differentiable and any(isinstance(x, float) for x in (beta, alpha)):
        if op == "addmm":
            raise DTypeError(f"{op}: beta and alpha must be ints for {product.dtype.name} tensors")
        if same:
            beta, alpha = int(beta), int(alpha)  # torch cuts them off
    lead = product.ndim - input.ndim
    if lead < 0 or any(n not in (1, product.shape[lead + i]) for i, n in enumerate(input.shape)):
        raise ShapeError(f"{op}: input {input.shape} does not expand to the product's {product.shape}")
    if not (isinstance(alpha, (int, float)) and alpha == 1):
        product = ew.mul(product, alpha)
    if isinstance(beta, (int, float)) and beta == 0:
        return ew.add(nothing_of(input), product) if input.requires_grad else product
    return ew.add(input if isinstance(beta, (int, float)) and beta == 1 else ew.mul(input, beta), product)


def nothing_of(x: Any) -> Tensor:
    """Zeros that x has a gradient of zeros from: nothing of it is read, not even a nan."""
    from gt.client.functions.creation import full

    return ew.where(ew.eq(full((), 1), 0), x, 0)


@autocasts(LOWER)
def addmm(input: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta * input + alpha * (mat1 @ mat2)."""
    if mat1.ndim != 2 or mat2.ndim != 2:
        raise ShapeError(f"addmm: takes two matrices, not {mat1.shape} and {mat2.shape}")
    return _plus("addmm", input, matmul(mat1, mat2), beta, alpha)


@autocasts(Autocast(cpu="off", cuda="lower"))
def addmv(input: Any, mat: Any, vec: Any, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta * input + alpha * (mat @ vec)."""
    if mat.ndim != 2 or vec.ndim != 1:
        raise ShapeError(f"addmv: takes a matrix and a vector, not {mat.shape} and {vec.shape}")
    return _plus("addmv", input, matmul(mat, vec), beta, alpha)


@autocasts(LOWER)
def baddbmm(input: Any, batch1: Any, batch2: Any, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta * input + alpha * (batch1 @ batch2)."""
    return _plus("baddbmm", input, _bmm(batch1, batch2), beta, alpha)


@autocasts(LOWER)
def addbmm(input: Any, batch1: Any, batch2: Any, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta * input + alpha * the sum of a batch of products."""
    return _plus("addbmm", input, red.sum(_bmm(batch1, batch2), 0, dtype=batch1.dtype), beta, alpha)


@autocasts(Autocast(cuda="lower"))
def addr(input: Any, vec1: Any, vec2: Any, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta * input + alpha * outer(vec1, vec2)."""
    if input.dtype.name == "bool" and outer(vec1, vec2).dtype.name == "bool":
        made = ew.logical_and(outer(vec1, vec2), bool(alpha))
        return ew.logical_or(ew.logical_and(input, bool(beta)), made)
    return _plus("addr", input, outer(vec1, vec2), beta, alpha, same=False)


# --- of any number of dimensions -----------------------------------------------------------------------


@autocasts(Autocast(cuda="widest"))
def tensordot(a: Any, b: Any, dims: Any = 2) -> Tensor:
    """The sum of products over some dimensions of both: the last and first so many, or those named."""
    ours, theirs = _paired_dims(a, b, dims)
    for i, j in zip(ours, theirs, strict=True):
        if a.shape[i] != b.shape[j]:
            if a.shape[i] == 1:
                b = red.sum(b, j, True, dtype=b.dtype)
            elif b.shape[j] == 1:
                a = red.sum(a, i, True, dtype=a.dtype)
            else:
                raise ShapeError(f"tensordot: {a.shape} and {b.shape}: sizes {a.shape[i]} and {b.shape[j]} differ")
    rows = [d for d in range(a.ndim) if d not in ours]
    columns = [d for d in range(b.ndim) if d not in theirs]
    inside = math.prod(a.shape[d] for d in ours)
    height, width = math.prod(a.shape[d] for d in rows), math.prod(b.shape[d] for d in columns)
    left = shapes.reshape(shapes.permute(a, *rows, *ours), height, inside)
    right = shapes.reshape(shapes.permute(b, *theirs, *columns), inside, width)
    made = matmul(left, right) if height != 1 or width != 1 else dot(left[0], right[:, 0])
    return shapes.reshape(made, (*(a.shape[d] for d in rows), *(b.shape[d] for d in columns)))


def _paired_dims(a: Any, b: Any, dims: Any) -> tuple[list[int], list[int]]:
    if hasattr(dims, "_v"):
        dims = dims.tolist()
    if hasattr(dims, "__index__"):
        n = int(dims)
        if not 0 <= n <= min(a.ndim, b.ndim):
            raise ArgumentError(f"tensordot: dims={n} does not fit {a.shape} and {b.shape}")
        return list(range(a.ndim - n, a.ndim)), list(range(n))
    if not isinstance(dims, Sequence) or len(dims) != 2:
        raise ArgumentError(f"tensordot: dims is a number or two lists of dimensions, not {dims}")
    first, second = ([x] if hasattr(x, "__index__") else list(x) for x in dims)
    if len(first) != len(second):
        raise ArgumentError(f"tensordot: {len(first)} dimensions of one and {len(second)} of the other")
    ours = [one_dim("tensordot", d, a.ndim) for d in first]
    theirs = [one_dim("tensordot", d, b.ndim) for d in second]
    for found in (ours, theirs):
        if len(set(found)) != len(found):
            raise DimError(f"tensordot: {found} names a dimension twice")
    return ours, theirs


def kron(input: Any, other: Any) -> Tensor:
    """The Kronecker product: every element of one times the whole of the other."""
    n = max(input.ndim, other.ndim)
    a = (1,) * (n - input.ndim) + tuple(input.shape)
    b = (1,) * (n - other.ndim) + tuple(other.shape)
    left = shapes.reshape(input, tuple(s for k in a for s in (k, 1)))
    right = shapes.reshape(other, tuple(s for k in b for s in (1, k)))
    return shapes.reshape(ew.mul(left, right), tuple(p * q for p, q in zip(a, b, strict=True)))


@autocasts(Autocast(cuda="widest"))
def cross(input: Any, other: Any, dim: int | None = None) -> Tensor:
    """The cross product of vectors of three elements along a dimension; by default, the first of size 3."""
    if dim is None:
        fits = [d for d, n in enumerate(input.shape) if n == 3]
        if not fits:
            raise ShapeError(f"cross: no dimension of {input.shape} has size 3")
        dim = fits[0]
    return cross_along("cross", input, other, dim)


def cross_along(op: str, a: Any, b: Any, dim: int) -> Tensor:
    """The cross product along a dimension of both."""
    if a.ndim != b.ndim:
        raise ShapeError(f"{op}: {a.shape} and {b.shape} have different numbers of dimensions")
    d = one_dim(op, dim, a.ndim)
    if not a.ndim or a.shape[d] != 3 or b.shape[d] != 3:
        raise ShapeError(f"{op}: {a.shape} and {b.shape}: dimension {d} must have size 3 in both")
    if a.dtype.name == "bool" or b.dtype.name == "bool":
        raise DTypeError(f"{op}: is not defined for bool; cast first, as in x.int()")
    a1, a2, a3 = shapes.split(a, 1, d)
    b1, b2, b3 = shapes.split(b, 1, d)
    return shapes.cat([a2 * b3 - a3 * b2, a3 * b1 - a1 * b3, a1 * b2 - a2 * b1], d)


@autocasts(Autocast(cuda="lower"))
def chain_matmul(*matrices: Any) -> Tensor:
    """The product of a chain of matrices, multiplied in the cheapest order."""
    chain = list(matrices[0]) if len(matrices) == 1 and isinstance(matrices[0], (list, tuple)) else list(matrices)
    if not chain:
        raise ArgumentError("chain_matmul: expected at least one matrix")
    for m in chain:
        if m.ndim != 2:
            raise ShapeError(f"chain_matmul: takes matrices, not {m.shape}")
    return multiply_chain("chain_matmul", chain)


def multiply_chain(op: str, chain: Sequence[Any]) -> Tensor:
    """Matrices multiplied in the order that takes the fewest multiplications."""
    for a, b in itertools.pairwise(chain):
        if a.shape[1] != b.shape[0]:
            raise ShapeError(f"{op}: {a.shape} @ {b.shape}: inner sizes {a.shape[1]} and {b.shape[0]} differ")
    n = len(chain)
    size = [chain[0].shape[0], *(m.shape[1] for m in chain)]
    cost = [[0] * n for _ in range(n)]
    cut = [[0] * n for _ in range(n)]
    for length in range(1, n):
        for i in range(n - length):
            j = i + length
            options = [(cost[i][k] + cost[k + 1][j] + size[i] * size[k + 1] * size[j + 1], k) for k in range(i, j)]
            cost[i][j], cut[i][j] = min(options)

    def product(i: int, j: int) -> Any:
        return chain[i] if i == j else matmul(product(i, cut[i][j]), product(cut[i][j] + 1, j))

    made: Tensor = product(0, n - 1)
    return made
