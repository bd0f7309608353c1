"""Ops on integers: bit by bit, shifts, divisors."""

from __future__ import annotations

from typing import Any

import numpy as np

from gt import dtypes
from gt.dtypes import DType
from gt.errors import DTypeError
from gt.ops import rules
from gt.ops.families.binary import binary
from gt.ops.record import Op, Rng, Sample, each_of
from gt.ops.sharding import pointwise_op
from gt.program import Spec


def _integers(name: str, bools: bool) -> Any:
    def result(d: DType) -> DType:
        if d.is_differentiable or (d is dtypes.bool_ and not bools):
            raise DTypeError(f"{name}: expected integers{' or bools' if bools else ''}, got {d.name}; cast first")
        return d

    return result


def _pairs(rng: Rng, low: int = -9, high: int = 10) -> list[Sample]:
    def draw(*size: int) -> Any:
        return rng.integers(low, high, size=size)

    return [
        ((draw(3, 4), draw(3, 4)), {}),
        ((draw(3, 1).astype(np.int32), draw(4).astype(np.int8)), {}),
        ((draw(3), 3), {}),
        ((5, draw(3)), {}),
        ((draw(0, 2), draw(2)), {}),
    ]


def _with_bools(rng: Rng) -> list[Sample]:
    a, b = np.array([True, True, False]), np.array([True, False, False])
    return [*_pairs(rng), ((a, b), {}), ((a, False), {})]


def _bits(name: str, doc: str) -> Op:
    return binary(name, doc, None, result=_integers(name, bools=True), samples=_with_bools, swapped=name)


bitwise_and = _bits("bitwise_and", "The bitwise AND.")
bitwise_or = _bits("bitwise_or", "The bitwise OR.")
bitwise_xor = _bits("bitwise_xor", "The bitwise XOR.")


def _infer_not(x: Spec) -> Spec:
    rules.tensor("bitwise_not", x)
    _integers("bitwise_not", bools=True)(x.dtype)
    return x


bitwise_not = pointwise_op(
    "bitwise_not",
    "The bitwise NOT; for bools, the logical NOT.",
    infer=_infer_not,
    vjp=None,
    kernels={"array": lambda xp, x: xp.logical_not(x) if x.dtype.kind == "b" else xp.invert(x)},
    samples=lambda rng: each_of(
        rng.integers(-9, 10, size=(2, 3)), np.array([True, False]), np.array(7, np.uint8), np.zeros((0, 2), np.int64)
    ),
)


def _shift_left(xp: Any, a: Any, b: Any) -> Any:
    width = a.dtype.itemsize * 8
    outside = (b < 0) | (b >= width)
    return xp.where(outside, xp.zeros((), a.dtype), xp.left_shift(a, xp.where(outside, xp.zeros((), b.dtype), b)))


def _shift_right(xp: Any, a: Any, b: Any) -> Any:
    last = a.dtype.itemsize * 8 - 1  # shifts nothing but the sign in
    far = xp.where((b < 0) | (b > last), xp.asarray(last, b.dtype), b)
    if a.dtype.kind == "u":
        return xp.where((b < 0) | (b > last), xp.zeros((), a.dtype), xp.right_shift(a, far))
    return xp.right_shift(a, far)


def _shift(name: str, doc: str, array: Any) -> Op:
    return binary(
        name,
        doc,
        None,
        array,
        result=_integers(name, bools=False),
        samples=lambda rng: [*_pairs(rng, 0, 6), ((np.array([-5, 5, 1]), np.array([2, 70, -1])), {})],
        number_left=True,
    )


bitwise_left_shift = _shift("bitwise_left_shift", "a with its bits shifted left by b.", _shift_left)
bitwise_right_shift = _shift(
    "bitwise_right_shift", "a with its bits shifted right by b; the sign is kept.", _shift_right
)


def _divisors(name: str, doc: str) -> Op:
    result = _integers(name, bools=False)
    return binary(name, doc, None, result=result, samples=_pairs, swapped=name, number_right=False)


gcd = _divisors("gcd", "The greatest common divisor.")
lcm = _divisors("lcm", "The least common multiple.")
