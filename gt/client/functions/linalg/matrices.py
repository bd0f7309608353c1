"""Matrix products: matmul, sums with products, tensordot, kron, cross."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from gt.client.compat import checks
from gt.client.compat.autocast import autocasts
from gt.client.compat.dims import different_dims, one_dim
from gt.client.functions import elementwise as ew
from gt.client.functions import reductions as red
from gt.client.functions import shapes
from gt.client.functions.complexes import conj
from gt.client.functions.creation import full
from gt.client.programs import kinds
from gt.client.record.recorder import binary
from gt.client.tensor import Tensor
from gt.errors import ArgumentError, DTypeError, ShapeError
from gt.ops.record import LOWER, Autocast

__all__ = [
    "addbmm", "addmm", "addmv", "addr", "baddbmm", "bmm", "chain_matmul", "cross", "dot", "ger", "inner", "kron",
    "matmul", "mm", "mv", "outer", "tensordot", "vdot",
]  # fmt: skip
METHODS = [*{*__all__} - {"chain_matmul", "tensordot"}]
INPLACE = ["addbmm", "addmm", "addmv", "addr", "baddbmm"]


def matmul(input: Any, other: Any) -> Tensor:
    """The matrix product; vectors and batches are handled as in torch."""
    return binary(kinds.matmul, input, other)


def _product(op: str, a: Any, b: Any, left: int, right: int, what: str) -> Tensor:
    """The product of tensors with exactly these numbers of dimensions; batches do not broadcast."""
    if a.ndim != left or b.ndim != right or (left == 3 and a.shape[0] != b.shape[0]):
        raise ShapeError(f"{op}: expected {what}, got shapes {a.shape} and {b.shape}")
    return binary(kinds.matmul, a, b)


def mm(input: Any, mat2: Any) -> Tensor:
    """The product of two matrices."""
    return _product("mm", input, mat2, 2, 2, "two matrices")


def bmm(input: Any, mat2: Any) -> Tensor:
    """The products of two batches of matrices."""
    return _product("bmm", input, mat2, 3, 3, "two batches of the same number of matrices")


@autocasts(Autocast(cpu="off", cuda="lower"))
def mv(input: Any, vec: Any) -> Tensor:
    """The product of a matrix and a vector."""
    return _product("mv", input, vec, 2, 1, "a matrix and a vector")


@autocasts(Autocast(cpu="off", cuda="widest"))
def dot(input: Any, tensor: Any) -> Tensor:
    """The dot product of two vectors."""
    return _product("dot", input, tensor, 1, 1, "two vectors")


@autocasts(Autocast(cpu="off", cuda="widest"))
def vdot(input: Any, other: Any) -> Tensor:
    """The dot product of two vectors; the first is conjugated."""
    return dot(conj(input), other)


def inner(input: Any, other: Any) -> Tensor:
    """The sum of products over the last dimension of both tensors."""
    if not input.ndim or not other.ndim:
        return ew.mul(input, other)
    if input.shape[-1] != other.shape[-1]:
        raise ShapeError(f"inner: the last dimensions must have the same size, got {input.shape} and {other.shape}")
    return tensordot(input, other, ([-1], [-1]))


def outer(input: Any, vec2: Any) -> Tensor:
    """The outer product of two vectors."""
    checks.vectors("outer", input, vec2)
    return ew.mul(shapes.unsqueeze(input, 1), vec2)


ger = outer


# --- sums with products --------------------------------------------------------------------------------


def _plus(op: str, input: Any, product: Tensor, beta: Any, alpha: Any, same: bool = True) -> Tensor:
    """beta * input + alpha * product; if beta is 0, nan and inf in input are ignored."""
    if same:
        checks.same_dtype(op, input, product)
    if not product.dtype.is_differentiable and any(isinstance(x, float) for x in (beta, alpha)):
        if op == "addmm":
            raise DTypeError(f"{op}: beta and alpha must be ints for {product.dtype.name} tensors")
        if same:
            beta, alpha = int(beta), int(alpha)  # as in torch
    lead = product.ndim - input.ndim
    if lead < 0 or any(n not in (1, product.shape[lead + i]) for i, n in enumerate(input.shape)):
        raise ShapeError(
            f"{op}: input of shape {input.shape} does not broadcast to the product's shape {product.shape}"
        )
    if not (isinstance(alpha, (int, float)) and alpha == 1):
        product = ew.mul(product, alpha)
    if isinstance(beta, (int, float)) and beta == 0:
        return ew.add(nothing_of(input), product) if input.requires_grad else product
    return ew.add(input if isinstance(beta, (int, float)) and beta == 1 else ew.mul(input, beta), product)


def nothing_of(x: Any) -> Tensor:
    """Zeros of x's shape through which x gets a gradient of zeros; nan and inf in x are ignored."""
    return ew.where(ew.eq(full((), 1), 0), x, 0)


@autocasts(LOWER)
def addmm(input: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta * input + alpha * (mat1 @ mat2)."""
    return _plus("addmm", input, _product("addmm", mat1, mat2, 2, 2, "two matrices"), beta, alpha)


@autocasts(Autocast(cpu="off", cuda="lower"))
def addmv(input: Any, mat: Any, vec: Any, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta * input + alpha * (mat @ vec)."""
    return _plus("addmv", input, _product("addmv", mat, vec, 2, 1, "a matrix and a vector"), beta, alpha)


@autocasts(LOWER)
def baddbmm(input: Any, batch1: Any, batch2: Any, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta * input + alpha * (batch1 @ batch2)."""
    return _plus("baddbmm", input, bmm(batch1, batch2), beta, alpha)


@autocasts(LOWER)
def addbmm(input: Any, batch1: Any, batch2: Any, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta * input + alpha * (batch1 @ batch2).sum(0)."""
    return _plus("addbmm", input, red.sum(bmm(batch1, batch2), 0, dtype=batch1.dtype), beta, alpha)


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
    """The sum of products over the last dims dimensions of a and the first of b, or over two lists of dimensions."""
    ours, theirs = _paired_dims(a, b, dims)
    for i, j in zip(ours, theirs, strict=True):
        if a.shape[i] != b.shape[j]:
            if a.shape[i] == 1:
                b = red.sum(b, j, True, dtype=b.dtype)
            elif b.shape[j] == 1:
                a = red.sum(a, i, True, dtype=a.dtype)
            else:
                raise ShapeError(f"tensordot: sizes of dimension {i} of {a.shape} and {j} of {b.shape} differ")
    rows = [d for d in range(a.ndim) if d not in ours]
    columns = [d for d in range(b.ndim) if d not in theirs]
    inside = math.prod(a.shape[d] for d in ours)
    height, width = math.prod(a.shape[d] for d in rows), math.prod(b.shape[d] for d in columns)
    left = shapes.reshape(shapes.permute(a, *rows, *ours), height, inside)
    right = shapes.reshape(shapes.permute(b, *theirs, *columns), inside, width)
    made = matmul(left, right) if height != 1 or width != 1 else dot(left[0], right[:, 0])
    return shapes.reshape(made, (*(a.shape[d] for d in rows), *(b.shape[d] for d in columns)))


def _paired_dims(a: Any, b: Any, dims: Any) -> tuple[list[int], list[int]]:
    if isinstance(dims, Tensor):
        dims = dims.tolist()
    if hasattr(dims, "__index__"):
        n = int(dims)
        if not 0 <= n <= min(a.ndim, b.ndim):
            raise ArgumentError(f"tensordot: dims={n} is out of range for shapes {a.shape} and {b.shape}")
        return list(range(a.ndim - n, a.ndim)), list(range(n))
    if not isinstance(dims, Sequence) or len(dims) != 2:
        raise ArgumentError(f"tensordot: dims must be an int or two lists of dimensions, got {dims}")
    first, second = ([x] if hasattr(x, "__index__") else list(x) for x in dims)
    if len(first) != len(second):
        raise ArgumentError(f"tensordot: dims must be two lists of the same length, got {first} and {second}")
    return list(different_dims("tensordot", first, a.ndim)), list(different_dims("tensordot", second, b.ndim))


def kron(input: Any, other: Any) -> Tensor:
    """The Kronecker product: each element of input times the whole of other."""
    n = max(input.ndim, other.ndim)
    a = (1,) * (n - input.ndim) + tuple(input.shape)
    b = (1,) * (n - other.ndim) + tuple(other.shape)
    left = shapes.reshape(input, tuple(s for k in a for s in (k, 1)))
    right = shapes.reshape(other, tuple(s for k in b for s in (1, k)))
    return shapes.reshape(ew.mul(left, right), tuple(p * q for p, q in zip(a, b, strict=True)))


@autocasts(Autocast(cuda="widest"))
def cross(input: Any, other: Any, dim: int | None = None) -> Tensor:
    """The cross product of vectors of 3 elements along a dimension; by default, the first of size 3."""
    if dim is None:
        fits = [d for d, n in enumerate(input.shape) if n == 3]
        if not fits:
            raise ShapeError(f"cross: expected a dimension of size 3, got shape {input.shape}")
        dim = fits[0]
    return cross_along("cross", input, other, dim)


def cross_along(op: str, a: Any, b: Any, dim: int) -> Tensor:
    """The cross product along a dimension of both tensors."""
    if a.ndim != b.ndim:
        raise ShapeError(f"{op}: expected the same number of dimensions, got shapes {a.shape} and {b.shape}")
    d = one_dim(op, dim, a.ndim)
    if not a.ndim or a.shape[d] != 3 or b.shape[d] != 3:
        raise ShapeError(f"{op}: dimension {d} must have size 3, got shapes {a.shape} and {b.shape}")
    if a.dtype.name == "bool" or b.dtype.name == "bool":
        raise DTypeError(f"{op}: not defined for bool; cast first, as in x.int()")
    a1, a2, a3 = shapes.split(a, 1, d)
    b1, b2, b3 = shapes.split(b, 1, d)
    return shapes.cat([a2 * b3 - a3 * b2, a3 * b1 - a1 * b3, a1 * b2 - a2 * b1], d)


@autocasts(Autocast(cuda="lower"))
def chain_matmul(*matrices: Any) -> Tensor:
    """The product of several matrices, multiplied in the order that takes the fewest operations."""
    chain = list(matrices[0]) if len(matrices) == 1 and isinstance(matrices[0], (list, tuple)) else list(matrices)
    if not chain:
        raise ArgumentError("chain_matmul: expected at least one matrix, got none")
    checks.matrices("chain_matmul", *chain)
    return multiply_chain("chain_matmul", chain)


def multiply_chain(op: str, chain: Sequence[Any]) -> Tensor:
    """The product of matrices in the order that takes the fewest multiplications."""
    for a, b in itertools.pairwise(chain):
        if a.shape[1] != b.shape[0]:
            raise ShapeError(f"{op}: inner sizes {a.shape[1]} and {b.shape[0]} of {a.shape} @ {b.shape} differ")
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

    return product(0, n - 1)
