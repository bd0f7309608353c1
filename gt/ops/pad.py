"""Padding with a constant. The other ways to pad are joined from slices, in gt/client/padding.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from gt.errors import ShapeError
from gt.ops import rules
from gt.ops.record import Site, op, ops
from gt.program import Spec, spec


def _infer_pad(x: Spec, value: Spec, *, pads: Any) -> Spec:
    rules.tensor("pad", x)
    rules.number("pad", value)
    given = rules.ints("pad", "pads", pads, 2 * x.ndim)
    shape = tuple(n + a + b for n, a, b in zip(x.shape, given[::2], given[1::2], strict=True))
    for n, a, b, m in zip(x.shape, given[::2], given[1::2], shape, strict=True):
        if m < 0 or n + min(a, 0) < 0 or n + min(b, 0) < 0:
            raise ShapeError(f"pad: {a} before and {b} after leave nothing of a dimension of size {n}")
    return spec(rules.shape("pad", shape), x.dtype)


def _pad_array(xp: Any, x: Any, value: Any, *, pads: Any) -> Any:
    sides = list(zip(pads[::2], pads[1::2], strict=True))
    x = x[tuple(slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in zip(x.shape, sides, strict=True))]
    wide = tuple((max(a, 0), max(b, 0)) for a, b in sides)
    return xp.pad(x, wide, constant_values=value)


def _pad_torch(torch: Any, site: Site, *, pads: Any) -> Any:
    sides = [n for k in range(len(pads) - 2, -1, -2) for n in pads[k : k + 2]]  # torch begins at the last dimension
    return lambda x, value: torch.constant_pad_nd(x, sides, value)


pad = op(
    "pad",
    "x with so many elements of one value before and after it in each dimension; a negative number takes some away.",
    infer=_infer_pad,
    vjp=(lambda g, y, x, value, *, pads: ops.pad(g, 0, pads=tuple(-n for n in pads)),),
    kernels={"array": _pad_array, "torch": _pad_torch},
    samples=lambda rng: [
        ((rng.normal(size=(2, 3)), 1.5), {"pads": (0, 0, 1, 2)}),
        ((rng.normal(size=(3, 4)), 0), {"pads": (-1, 2, 1, -2)}),
        ((rng.normal(size=(3,)), 0.0), {"pads": (0, 0)}),
        ((rng.integers(0, 9, size=(3,)), 7), {"pads": (1, 0)}),
        ((np.array([True]), True), {"pads": (1, 1)}),
        ((np.zeros((0, 2)), 2.0), {"pads": (1, 0, 0, 0)}),
    ],
)
