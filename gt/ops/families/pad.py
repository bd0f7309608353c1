"""Padding with a constant. The other ways to pad are joined from slices, in gt/client/functions/padding.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from gt.errors import ShapeError
from gt.ops import rules
from gt.ops.record import Site, op, ops
from gt.ops.sharding import letters
from gt.program import Spec, spec


def _infer_pad(x: Spec, value: Spec, *, pads: Any) -> Spec:
    rules.tensor("pad", x)
    rules.number("pad", value)
    given = rules.ints("pad", "pads", pads, 2 * x.ndim)
    shape = tuple(n + a + b for n, a, b in zip(x.shape, given[::2], given[1::2], strict=True))
    for n, a, b, m in zip(x.shape, given[::2], given[1::2], shape, strict=True):
        if m < 0 or n + min(a, 0) < 0 or n + min(b, 0) < 0:
            raise ShapeError(f"pad: {a} before and {b} after remove more than a dimension of size {n}")
    return spec(rules.shape("pad", shape), x.dtype)


def _pad_array(xp: Any, x: Any, value: Any, *, pads: Any) -> Any:
    sides = list(zip(pads[::2], pads[1::2], strict=True))
    x = x[tuple(slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in zip(x.shape, sides, strict=True))]
    wide = tuple((max(a, 0), max(b, 0)) for a, b in sides)
    return xp.pad(x, wide, constant_values=value)


def _pad_torch(torch: Any, site: Site, *, pads: Any) -> Any:
    sides = [n for k in range(len(pads) - 2, -1, -2) for n in pads[k : k + 2]]  # torch begins at the last dimension
    return lambda x, value: torch.constant_pad_nd(x, sides, value)


def _pad_graph(torch: Any, site: Site, *, pads: Any) -> Any:
    x, kind = site.specs[0], getattr(torch, site.specs[0].dtype.name)
    plain = _pad_torch(torch, site, pads=pads)
    if max(pads, default=0) <= 0:
        return lambda x, value: plain(x, 0)
    # Which elements are there: known in the padded dimensions alone, the others broadcast.
    around = [a > 0 or b > 0 for a, b in zip(pads[::2], pads[1::2], strict=True)]
    shape = [n if wider else 1 for n, wider in zip(x.shape, around, strict=True)]
    sides = [n if around[k // 2] else 0 for k, n in enumerate(pads)]
    mask = _pad_torch(torch, site, pads=sides)

    def kernel(x: Any, value: Any) -> Any:
        there = mask(torch.ones(shape, dtype=torch.bool, device=site.device), False)
        return torch.where(there, plain(x, 0), value.to(kind))

    return kernel


def _rule(x: Spec, value: Spec, *, pads: Any) -> str:
    names = letters(x.ndim)
    left = [a if pads[2 * d] == pads[2 * d + 1] == 0 else a + "~" for d, a in enumerate(names)]
    return f"{' '.join(left)}, -> {' '.join(names)}"


def _window(x: Spec, value: Spec, *, pads: Any) -> dict[str, Any]:
    def along(before: int) -> Any:
        return lambda operand, lo, hi: (lo - before, hi - before, "clip")

    return {a: along(pads[2 * d]) for d, a in enumerate(letters(x.ndim))}


def _local(shard: Any, x: Any, value: Any, *, pads: Any) -> Any:
    """A shard of the result: what there is of x in it, and padding at the ends of the whole only."""
    sides = list(pads)
    for d, a in enumerate(letters(x.ndim)):
        if shard.split(a) and (pads[2 * d] or pads[2 * d + 1]):
            lo, n = shard.start(a), shard.size(a)
            before = min(max(pads[2 * d] - lo, 0), n - x.shape[d])
            sides[2 * d : 2 * d + 2] = before, n - x.shape[d] - before
    return shard.again(x, value, pads=tuple(sides))


pad = op(
    "pad",
    "x padded with one value before and after each dimension; a negative number removes elements.",
    infer=_infer_pad,
    factors=_rule,
    window=_window,
    local=_local,
    keeps=(0, 1),
    vjp=(lambda g, y, x, value, *, pads: ops.pad(g, 0, pads=tuple(-n for n in pads)),),
    kernels={"array": _pad_array, "torch": _pad_torch, "torch_graph": _pad_graph},
    samples=lambda rng: [
        ((rng.normal(size=(2, 3)), 1.5), {"pads": (0, 0, 1, 2)}),
        ((rng.normal(size=(3, 4)), 0), {"pads": (-1, 2, 1, -2)}),
        ((rng.normal(size=(3,)), 0.0), {"pads": (0, 0)}),
        ((rng.integers(0, 9, size=(3,)), 7), {"pads": (1, 0)}),
        ((np.array([True]), True), {"pads": (1, 1)}),
        ((np.zeros((0, 2)), 2.0), {"pads": (1, 0, 0, 0)}),
    ],
    flops=0,
)
