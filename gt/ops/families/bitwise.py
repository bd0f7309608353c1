"""Ops on integers: bit by bit, shifts, divisors."""

from __future__ import annotations

from typing import Any

import numpy as np

from gt import dtypes
from gt.dtypes import DType
from gt.errors import DTypeError
from gt.ops import rules
from gt.ops.families.binary import binary
from gt.ops.record import Op, Rng, Sample, op
from gt.ops.sharding import pointwise
from gt.program import Spec


def _integers(name: str, bools: bool) -> Any:
    def result(d: DType) -> DType:
        if d.is_differentiable or (d is dtypes.bool_ and not bools):
            raise DTypeError(f"{name}: takes integers{' or bools' if bools else ''}, not {d.name}; cast first")
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


def _bits(name: str, doc: str, array: Any) -> Op:
    return binary(
        name, doc, array, None, result=_integers(name, bools=True), samples=_with_bools, swapped=name, number_left=False
    )


bitwise_and = _bits("bitwise_and", "The bits that both have.", lambda xp, a, b: xp.bitwise_and(a, b))
bitwise_or = _bits("bitwise_or", "The bits that one has.", lambda xp, a, b: xp.bitwise_or(a, b))
bitwise_xor = _bits("bitwise_xor", "The bits that just one has.", lambda xp, a, b: xp.bitwise_xor(a, b))


def _infer_not(x: Spec) -> Spec:
    rules.tensor("bitwise_not", x)
    _integers("bitwise_not", bools=True)(x.dtype)
    return x


bitwise_not = op(
    "bitwise_not",
    "Every bit turned; of bools, not x.",
    infer=_infer_not,
    factors=pointwise,
    vjp=None,
    kernels={"array": lambda xp, x: xp.logical_not(x) if x.dtype.kind == "b" else xp.invert(x)},
    samples=lambda rng: [
        ((rng.integers(-9, 10, size=(2, 3)),), {}),
        ((np.array([True, False]),), {}),
        ((np.array(7, np.uint8),), {}),
        ((np.zeros((0, 2), np.int64),), {}),
    ],
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
        array,
        None,
        result=_integers(name, bools=False),
        samples=lambda rng: [*_pairs(rng, 0, 6), ((np.array([-5, 5, 1]), np.array([2, 70, -1])), {})],
        number_left=True,
    )


bitwise_left_shift = _shift("bitwise_left_shift", "a * 2 ** b, by moving bits.", _shift_left)
bitwise_right_shift = _shift("bitwise_right_shift", "a / 2 ** b rounded down, by moving bits.", _shift_right)


def _divisors(name: str, doc: str, array: Any) -> Op:
    return binary(
        name, doc, array, None, result=_integers(name, bools=False), samples=_pairs, swapped=name, number_right=False
    )


gcd = _divisors("gcd", "The greatest common divisor.", lambda xp, a, b: xp.gcd(a, b))
lcm = _divisors("lcm", "The least common multiple.", lambda xp, a, b: xp.lcm(a, b))
