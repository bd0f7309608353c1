"""The largest element of each part, where a dimension is cut into a given number of equal shares (they may overlap).

Their mean is `interpolate` with mode "area" (resize.py).
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from gt import dtypes
from gt.errors import ShapeError
from gt.ops import rules
from gt.ops.families.pool import at_positions
from gt.ops.record import FLOAT32_ON_CPU, Autocast, Site, op
from gt.program import Spec, spec

Sizes = tuple[int, ...]


def _infer(x: Spec, *, sizes: Any) -> tuple[Spec, Spec]:
    name = f"adaptive_max_pool{x.ndim - 2}d"
    rules.floats(name, x)
    if not 3 <= x.ndim <= 5 or 0 in x.shape[2:]:
        raise ShapeError(f"{name}: expected an input (batch, channels, 1 to 3 sizes > 0), got shape {x.shape}")
    shape = (*x.shape[:2], *rules.shape(name, rules.ints(name, "output_size", sizes, x.ndim - 2)))
    return spec(shape, x.dtype), spec(shape, dtypes.int64)


def _array(xp: Any, x: Any, *, sizes: Sizes) -> tuple[Any, Any]:
    shape = (*x.shape[:2], *sizes)
    if 0 in shape:
        return xp.zeros(shape, x.dtype), xp.zeros(shape, "int64")
    parts = []  # of each dimension: the elements of every share, its last one repeated where it has fewer
    for n, out in zip(x.shape[2:], sizes, strict=True):
        i = np.arange(out)
        start, end = i * n // out, -(-(i + 1) * n // out)
        parts.append([np.minimum(start + k, end - 1) for k in range(int((end - start).max()))])
    values, positions = [], []
    for at in itertools.product(*parts):
        value, position = x, np.zeros((), np.int64)
        for axis, (where, n) in enumerate(zip(at, x.shape[2:], strict=True), 2):
            value = xp.take(value, xp.asarray(where), axis=axis)
            position = position[..., None] * n + where
        values.append(value)
        positions.append(position)
    stacked = xp.stack(values)
    best = xp.argmax(stacked, 0)[None]
    where = xp.broadcast_to(xp.asarray(np.stack(positions))[:, None, None], stacked.shape)
    return xp.take_along_axis(stacked, best, 0)[0], xp.take_along_axis(where, best, 0)[0]


def _torch(torch: Any, site: Site, *, sizes: Any) -> Any:
    values, positions = site.results
    if 0 in values.shape:
        return lambda x: (x.new_empty(values.shape), x.new_empty(positions.shape, dtype=torch.int64))
    if len(sizes) == 1:
        f, wide = torch.ops.aten.adaptive_max_pool2d.default, (1, *sizes)
        return lambda x: tuple(t.squeeze(-2) for t in f(x.unsqueeze(-2), wide))
    f = torch.ops.aten.adaptive_max_pool2d if len(sizes) == 2 else torch.ops.aten.adaptive_max_pool3d
    return lambda x, f=f.default: f(x, sizes)


adaptive_max_pool = op(
    "adaptive_max_pool",
    "The largest element of each of `sizes` windows of about equal size, and its position in the channel.",
    infer=_infer,
    factors="n c ... -> n c ...",
    ranges=lambda x, **attrs: {1: math.prod(x.shape[2:])},
    vjp=(lambda g, y, x, **attrs: None if g[0] is None else at_positions(g[0], y[1], sizes=x.shape[2:]),),
    kernels={"array": _array, "torch": _torch},
    samples=lambda rng: [
        ((rng.permutation(14).reshape(1, 2, 7) / 4.0,), {"sizes": (3,)}),
        ((rng.permutation(30).reshape(1, 2, 5, 3) / 4.0,), {"sizes": (3, 4)}),
        ((rng.permutation(24).reshape(1, 1, 3, 2, 4) / 4.0,), {"sizes": (2, 2, 3)}),
        ((rng.normal(size=(0, 2, 5, 3)),), {"sizes": (3, 2)}),
    ],
    autocast=lambda sizes: FLOAT32_ON_CPU if len(sizes) == 3 else Autocast(),
)
