"""The product of matrices, vectors and batches of matrices; and a linear layer in one instruction."""

from __future__ import annotations

import math
from typing import Any

from gt.errors import ArgumentError, ShapeError
from gt.ops import rules
from gt.ops.families.linalg import turned
from gt.ops.record import LOWER, Rng, Sample, Site, conj, op, ops
from gt.ops.sharding import letters, spelled
from gt.program import Spec, spec


def _infer(a: Spec, b: Spec) -> Spec:
    rules.tensor("matmul", a, b)
    rules.same_dtype("matmul", a, b)
    if not a.shape or not b.shape:
        raise ShapeError(f"matmul: {a.shape} @ {b.shape}: both need at least one dimension; use * for scalars")
    rules.not_bool("matmul", a.dtype)
    inner = b.shape[-2] if b.ndim > 1 else b.shape[0]
    if a.shape[-1] != inner:
        raise ShapeError(f"matmul: {a.shape} @ {b.shape}: inner sizes {a.shape[-1]} and {inner} differ")
    try:
        batch = rules.broadcast("matmul", a.shape[:-2], b.shape[:-2])
    except ShapeError:
        raise ShapeError(
            f"matmul: {a.shape} @ {b.shape}: batches {a.shape[:-2]} and {b.shape[:-2]} do not broadcast"
        ) from None
    rows = a.shape[-2:-1]  # () for a vector
    columns = b.shape[-1:] if b.ndim > 1 else ()
    return spec(batch + rows + columns, a.dtype)


def _row(x: Any) -> Any:
    return ops.reshape(x, shape=(*x.shape[:-1], 1, x.shape[-1]))


def _column(x: Any) -> Any:
    return ops.reshape(x, shape=(*x.shape, 1))


def _da(g: Any, y: Any, a: Any, b: Any) -> Any:
    b = conj(b)
    if len(b.shape) == 1:  # y: (..., n)
        return _scale(g, b) if len(a.shape) == 1 else ops.matmul(_column(g), ops.reshape(b, shape=(1, b.shape[0])))
    if len(a.shape) > 1:
        return ops.matmul(g, turned(b))
    da = ops.matmul(_row(g), turned(b))  # (..., 1, k)
    return ops.reshape(da, shape=(*da.shape[:-2], da.shape[-1]))


def _db(g: Any, y: Any, a: Any, b: Any) -> Any:
    a = conj(a)
    if len(b.shape) == 1:
        if len(a.shape) == 1:
            return _scale(g, a)
        db = ops.matmul(turned(a), _column(g))  # (..., k, 1)
        return ops.reshape(db, shape=db.shape[:-1])
    if len(a.shape) == 1:
        return ops.matmul(_column(a), _row(g))
    if len(b.shape) == 2 and len(a.shape) > 2:
        # One product over all rows, rather than one per batch and a sum: the summands together
        # would be as large as the batch times the weight.
        a, g = _flat(a), _flat(g)
    return ops.matmul(turned(a), g)


def _scale(g: Any, x: Any) -> Any:
    return x * g  # g: ()


def _torch(torch: Any, site: Site) -> Any:
    a, b = site.specs
    if not a.dtype.is_differentiable and site.device != "cpu":
        # CUDA multiplies no integer matrices; float64 is exact up to 2**53.
        target = getattr(torch, a.dtype.name)
        return lambda a, b: torch.matmul(a.double(), b.double()).to(target)
    if a.ndim == b.ndim == 2:
        return torch.mm
    if a.ndim == b.ndim == 3 and a.shape[0] == b.shape[0]:
        return torch.bmm
    return torch.matmul


def _samples(rng: Rng) -> list[Sample]:
    shapes = [
        ((3, 4), (4, 2)),
        ((4,), (4,)),
        ((4,), (4, 2)),
        ((3, 4), (4,)),
        ((2, 3, 4), (2, 4, 2)),
        ((2, 3, 4), (4, 5)),
        ((2, 1, 3, 4), (5, 4, 2)),
        ((3, 4), (2, 4, 2)),
        ((4,), (2, 4, 3)),
        ((2, 3, 4), (4,)),
        ((0, 4), (4, 2)),
        ((3, 0), (0, 2)),
    ]
    samples: list[Sample] = [((rng.normal(size=a), rng.normal(size=b)), {}) for a, b in shapes]
    whole = (rng.integers(0, 5, size=(2, 3)), rng.integers(0, 5, size=(3, 2)))
    turning = (rng.normal(size=(2, 3)) * (1 + 2j), rng.normal(size=(3, 2)) + 1j)
    return [*samples, (whole, {}), (turning, {})]


def _rule(a: Spec, b: Spec) -> str:
    names = letters(max(a.ndim, b.ndim, 2) - 2, "kmn")
    sizes = rules.broadcast("matmul", a.shape[:-2], b.shape[:-2])

    def batch(shape: tuple[int, ...]) -> list[str]:
        mine = zip(names[len(names) - len(shape) :], shape, sizes[len(sizes) - len(shape) :], strict=True)
        return [name if n == m != 1 else "1" for name, n, m in mine]

    left = [*batch(a.shape[:-2]), *"mk"[-a.ndim :]]
    right = [*batch(b.shape[:-2]), *("kn" if b.ndim > 1 else "k")]
    result = [*batch(sizes), *("m" if a.ndim > 1 else ""), *("n" if b.ndim > 1 else "")]
    return f"{' '.join(left)}, {' '.join(right)} -> {' '.join(result)}"


matmul = op(
    "matmul",
    "The matrix product; leading dimensions are batches and broadcast.",
    infer=_infer,
    factors=_rule,
    linear=((0,), (1,)),
    flops=lambda a, b: 2 * a.shape[-1] * _infer(a, b).size,
    vjp=(_da, _db),
    kernels={"array": lambda xp, a, b: xp.matmul(a, b), "torch": _torch},
    samples=_samples,
    autocast=LOWER,
)

# -- linear ----------------------------------------------------------------------------------


def _infer_linear(x: Spec, weight: Spec, *bias: Spec) -> Spec:
    rules.tensor("linear", x, weight, *bias)
    rules.floating("linear", x)
    for other in (weight, *bias):
        rules.same_dtype("linear", x, other)
    if len(bias) > 1:
        raise ArgumentError(f"linear: expected at most one bias, got {len(bias)}")
    if weight.ndim != 2:
        raise ShapeError(f"linear: the weight must be a matrix, got shape {weight.shape}")
    if not x.shape or x.shape[-1] != weight.shape[1]:
        raise ShapeError(f"linear: the last sizes of input {x.shape} and weight {weight.shape} must be equal")
    if bias and bias[0].shape != weight.shape[:1]:
        raise ShapeError(f"linear: the first sizes of bias {bias[0].shape} and weight {weight.shape} must be equal")
    return spec((*x.shape[:-1], weight.shape[0]), x.dtype)


def _flat(x: Any) -> Any:
    return x if len(x.shape) == 2 else ops.reshape(x, shape=(math.prod(x.shape[:-1]), x.shape[-1]))


def _linear(x: Any, weight: Any, *bias: Any) -> Any:
    y = ops.matmul(x, turned(weight))
    return y + bias[0] if bias else y


def _linear_torch(torch: Any, site: Site) -> Any:
    # Without detours: for matrices torch's linear is this product, behind more layers.
    if len(site.specs) == 3 and site.specs[0].ndim == 2:
        return lambda x, weight, bias: torch.addmm(bias, x, weight.t())
    return torch.nn.functional.linear


linear = op(
    "linear",
    "x @ weight.T, plus an optional bias.",
    infer=_infer_linear,
    factors=lambda x, weight, *bias: spelled(f"* k, n k{', n' if bias else ''} -> * n", x.ndim - 1, "kn"),
    linear=((0, 2), (1, 2)),
    vjp=(
        lambda g, y, x, weight, *bias: ops.matmul(g, weight),
        # As g.T @ x, the gradient has the memory format of the weight.
        lambda g, y, x, weight, *bias: ops.matmul(turned(_flat(g)), _flat(x)),
        lambda g, y, x, weight, *bias: g,
    ),
    compose=_linear,
    kernels={"torch": _linear_torch},
    samples=lambda rng: [
        ((rng.normal(size=s), rng.normal(size=(3, 4)), *(rng.normal(size=3) for _ in range(b))), {})
        for s in [(5, 4), (4,), (2, 5, 4), (0, 4)]
        for b in (0, 1)
    ],
    autocast=LOWER,
)
