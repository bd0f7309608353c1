"""Pooling: the largest element or the mean of each window, of windows of one size or of parts of equal share.

Windows slide over all dimensions but the first two (batch and channels). A position that max_pool returns counts
through the elements of a channel.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from gt import dtypes
from gt.errors import ArgumentError, DTypeError, ShapeError
from gt.ops import rules
from gt.ops.families import pool_shards, windows
from gt.ops.families.channels_last import empty, order_of
from gt.ops.record import FLOAT32_ON_CPU, Autocast, Rng, Sample, Site, op, ops
from gt.ops.sharding import linear_op
from gt.program import Spec, spec

Sizes = tuple[int, ...]


def _name(kind: str, x: Spec) -> str:
    return f"{kind}{x.ndim - 2}d"


def _check(name: str, x: Spec) -> int:
    """The number of dimensions that windows slide over."""
    rules.tensor(name, x)
    rules.not_bool(name, x.dtype)
    if x.dtype.is_complex:
        raise DTypeError(f"{name}: is not defined for {x.dtype.name}")
    if not 3 <= x.ndim <= 5:
        raise ShapeError(f"{name}: expected an input (batch, channels, 1 to 3 sizes), got shape {x.shape}")
    return x.ndim - 2


def _windows(name: str, sizes: Sizes, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: Any) -> Sizes:
    """The number of windows in each dimension, with all attributes checked."""
    n = len(sizes)
    kernel = windows.positive(name, "kernel_size", kernel, n)
    stride = windows.positive(name, "stride", stride, n)
    padding = windows.padding(name, padding, n)
    dilation = windows.positive(name, "dilation", dilation, n)
    if any(2 * p > d * (k - 1) + 1 for k, p, d in zip(kernel, padding, dilation, strict=True)):
        raise ArgumentError(f"{name}: padding must be at most half of the kernel {kernel}, got {padding}")
    return windows.counts(name, sizes, kernel, stride, padding, dilation, rules.flag(name, "ceil_mode", ceil))


def _flat(f: Any, count: int) -> Any:
    """torch pools over two or three dimensions: with one, a second of size 1 is put in for it."""
    if count > 1:
        return f

    def flat(*xs: Any) -> Any:
        y = f(*(x.unsqueeze(-2) for x in xs))
        return tuple(t.squeeze(-2) for t in y) if isinstance(y, tuple) else y.squeeze(-2)

    return flat


def _wider(f: Any, site: Site) -> Any:
    """On a CPU torch means over three dimensions in float32 and float64 only."""
    if site.device != "cpu" or site.results[0].dtype.itemsize != 2:
        return f
    return lambda x: f(x.float()).to(x.dtype)


def _wide(*attrs: Any) -> list[list[int]]:
    """Attributes of one dimension, as they stand with a second of size 1 in front (padding comes last)."""
    *rest, padding = attrs
    if len(padding) > 1:
        return [list(a) for a in attrs]
    return [*([1, *a] for a in rest), [0, *padding]]


# -- max_pool --------------------------------------------------------------------------------


def _infer_max(x: Spec, *, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: Any) -> tuple[Spec, Spec]:
    name = _name("max_pool", x)
    _check(name, x)
    outs = _windows(name, x.shape[2:], kernel, stride, padding, dilation, ceil_mode)
    shape = (*x.shape[:2], *outs)
    return spec(shape, x.dtype), spec(shape, dtypes.int64)


def _input_of(name: str, g: Spec, sizes: Any) -> Spec:
    """The input of a pool, given a gradient of its result."""
    _check(name, g)
    rules.floating(name, g)
    return spec((*g.shape[:2], *rules.shape(name, rules.ints(name, "sizes", sizes, g.ndim - 2))), g.dtype)


def _infer_max_dx(g: Spec, positions: Spec, *, sizes: Any, **attrs: Any) -> Spec:
    x = _input_of("max_pool_dx", g, sizes)
    rules.index("max_pool_dx", positions)
    if not g.shape == positions.shape == _infer_max(x, **attrs)[0].shape:
        raise ShapeError(f"max_pool_dx: gradient {g.shape}, positions {positions.shape} do not fit input {x.shape}")
    return x


def _max_array(
    xp: Any, x: Any, *, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, ceil_mode: bool
) -> tuple[Any, Any]:
    sizes = x.shape[2:]
    rows = zip(sizes, kernel, stride, padding, dilation, strict=True)
    outs = tuple(windows.count(n, k, s, p, d, ceil_mode) for n, k, s, p, d in rows)
    low = -np.inf if np.issubdtype(x.dtype, np.floating) else np.iinfo(x.dtype).min
    frame = windows.framed(xp, x, outs, kernel, stride, padding, dilation, low)
    inside = windows.framed(xp, xp.ones(sizes, bool), outs, kernel, stride, padding, dilation, False)
    values, real, positions = [], [], []  # of every offset in every window
    for at in windows.offsets(sizes, outs, kernel, stride, padding, dilation):
        values.append(windows.taken(frame, at, outs, stride, dilation))
        real.append(windows.taken(inside, at, outs, stride, dilation))
        position: Any = np.zeros((), np.int64)
        for a, n, out, s, p, d in zip(at, sizes, outs, stride, padding, dilation, strict=True):
            position = position[..., None] * n + (np.arange(out) * s + a * d - p)
        positions.append(position)
    every = xp.stack(values)
    # Padding is never chosen, not even where all elements are as low.
    hit = ((every == every.max(0)) | (every != every)) & xp.stack(real)[:, None, None]
    best = xp.argmax(hit, 0)[None]
    where = xp.broadcast_to(xp.asarray(np.stack(positions))[:, None, None], every.shape)
    return xp.take_along_axis(every, best, 0)[0], xp.take_along_axis(where, best, 0)[0]


def _max_call(torch: Any, attrs: dict[str, Any]) -> tuple[Any, Any, list[Any], int]:
    count = len(attrs["kernel"])
    kernel, stride, dilation, padding = _wide(*(attrs[k] for k in ("kernel", "stride", "dilation", "padding")))
    aten = torch.ops.aten
    f, back = aten.max_pool2d_with_indices, aten.max_pool2d_with_indices_backward
    if count == 3:
        f, back = aten.max_pool3d_with_indices, aten.max_pool3d_with_indices_backward
    return f.default, back.default, [kernel, stride, padding, dilation, attrs["ceil_mode"]], count


def _max_torch(torch: Any, site: Site, **attrs: Any) -> Any:
    f, _, a, count = _max_call(torch, attrs)
    if 0 in site.results[0].shape:
        values, positions = site.results
        return lambda x: (x.new_empty(values.shape), x.new_empty(positions.shape, dtype=torch.int64))
    return _flat(lambda x: f(x, *a), count)


def _max_dx_torch(torch: Any, site: Site, *, sizes: Any, **attrs: Any) -> Any:
    _, f, a, count = _max_call(torch, attrs)
    shape = site.results[0].shape
    if 0 in shape:
        return lambda g, positions: g.new_zeros(shape)
    wide = shape if count > 1 else (*shape[:2], 1, *shape[2:])

    def run(g: Any, positions: Any) -> Any:
        # torch asks for x. The positions are in the order that x was in; g may come from elsewhere.
        return f(g, empty(torch, g, wide, order_of(torch, positions)), *a, positions.long())

    return _flat(run, count)


def _pool_attrs(kernel: Sizes, stride: Sizes, padding: Sizes, ceil_mode: bool) -> dict[str, Any]:
    return {"kernel": kernel, "stride": stride, "padding": padding, "ceil_mode": ceil_mode}


def _max_cases(rng: Rng) -> list[tuple[Any, dict[str, Any]]]:
    rows: list[tuple[Sizes, Sizes, Sizes, Sizes, Sizes, bool]] = [
        ((2, 2, 7), (3,), (2,), (1,), (1,), False),
        ((1, 2, 6), (2,), (3,), (0,), (2,), True),
        ((1, 2, 5, 4), (2, 3), (1, 2), (1, 0), (1, 1), False),
        ((1, 1, 5, 6), (2, 2), (2, 2), (0, 1), (2, 1), True),
        ((1, 2, 3, 4, 3), (2, 2, 1), (1, 2, 2), (1, 0, 0), (1, 1, 1), False),
        ((0, 2, 5, 4), (2, 2), (2, 2), (0, 0), (1, 1), False),
    ]
    return [
        # All different, and far enough apart that a small step changes no order.
        (rng.permutation(math.prod(x)).reshape(x) / 4.0, {**_pool_attrs(k, s, p, ceil), "dilation": d})
        for x, k, s, p, d, ceil in rows
    ]


def _max_dx_samples(rng: Rng) -> list[Sample]:
    samples: list[Sample] = []
    for x, a in _max_cases(rng):
        _, positions = _max_array(np, x, **a)
        samples.append(((rng.normal(size=positions.shape), positions), {"sizes": x.shape[2:], **a}))
    return samples


def _rows(x: Any) -> Any:
    """Every channel as one row."""
    return ops.reshape(x, shape=(*x.shape[:2], math.prod(x.shape[2:])))


def at_positions(g: Any, positions: Any, *, sizes: Any, **attrs: Any) -> Any:
    """The gradient of an input of the given sizes: g is added at the positions."""
    flat = (*g.shape[:2], math.prod(sizes))
    return ops.reshape(ops.gather_dx(_rows(g), _rows(positions), shape=flat, dim=2), shape=(*g.shape[:2], *sizes))


max_pool = op(
    "max_pool",
    "The largest element of each window, and its position in the channel.",
    infer=_infer_max,
    factors=pool_shards.rule,
    window=pool_shards.windows,
    local=pool_shards.max_local,
    ranges=lambda x, **attrs: {1: math.prod(x.shape[2:])},
    vjp=(
        lambda g, y, x, **attrs: (
            None if g[0] is None else ops.max_pool_dx(g[0], y[1], sizes=tuple(x.shape[2:]), **attrs)
        ),
    ),
    kernels={"array": _max_array, "torch": _max_torch},
    samples=lambda rng: [((x,), a) for x, a in _max_cases(rng)],
    autocast=lambda kernel, **attrs: FLOAT32_ON_CPU if len(kernel) == 3 else Autocast(),
    flops=lambda x, *, kernel, **attrs: math.prod(kernel) * _infer_max(x, kernel=kernel, **attrs)[0].size,
)

max_pool_dx = linear_op(
    "max_pool_dx",
    "The gradient of max_pool with respect to an input of the given sizes: g is added at the positions.",
    infer=_infer_max_dx,
    factors=pool_shards.gradient_rule,
    local=pool_shards.max_dx_local,
    vjp=(
        lambda u, z, g, positions, **attrs: ops.reshape(
            ops.gather(_rows(u), _rows(positions), dim=2), shape=tuple(g.shape)
        ),
    ),
    compose=at_positions,
    kernels={"torch": _max_dx_torch},
    indices=lambda g, positions, *, sizes, **attrs: {1: (math.prod(sizes), None)},
    samples=_max_dx_samples,
)

# -- avg_pool --------------------------------------------------------------------------------


def _infer_avg(
    x: Spec, *, kernel: Any, stride: Any, padding: Any, ceil_mode: Any, include_pad: Any, divisor: Any
) -> Spec:
    name = _name("avg_pool", x)
    n = _check(name, x)
    if not x.dtype.is_floating_point and x.dtype is not dtypes.int64:
        raise DTypeError(f"{name}: is not defined for {x.dtype.name}; cast first, as in x.float()")
    rules.flag(name, "count_include_pad", include_pad)
    if divisor is not None and (type(divisor) is not int or divisor == 0):
        raise ArgumentError(f"{name}: divisor_override must be an int other than 0, got {rules.shown(divisor)}")
    outs = _windows(name, x.shape[2:], kernel, stride, padding, (1,) * n, ceil_mode)
    return spec((*x.shape[:2], *outs), x.dtype)


def _infer_avg_dx(g: Spec, *, sizes: Any, **attrs: Any) -> Spec:
    x = _input_of("avg_pool_dx", g, sizes)
    if _infer_avg(x, **attrs).shape != g.shape:
        raise ShapeError(f"avg_pool_dx: gradient {g.shape} does not fit an input {x.shape}")
    return x


def _divisors(sizes: Sizes, outs: Sizes, attrs: dict[str, Any]) -> Any:
    """What the sum of each window is divided by."""
    if attrs["divisor"] is not None:
        return np.full(outs, attrs["divisor"], np.float64)
    result: Any = np.ones((), np.float64)
    rows = zip(sizes, outs, attrs["kernel"], attrs["stride"], attrs["padding"], strict=True)
    for n, out, k, s, p in rows:
        start = np.arange(out) * s - p
        # A window may reach beyond the padding, with ceil_mode: that part never counts.
        end = np.minimum(start + k, n + p)
        if not attrs["include_pad"]:
            start, end = np.maximum(start, 0), np.minimum(end, n)
        result = result[..., None] * (end - start)
    return result


def _avg_array(xp: Any, x: Any, **attrs: Any) -> Any:
    kernel, stride, padding, ones = attrs["kernel"], attrs["stride"], attrs["padding"], (1,) * (x.ndim - 2)
    rows = zip(x.shape[2:], kernel, stride, padding, strict=True)
    outs = tuple(windows.count(n, k, s, p, 1, attrs["ceil_mode"]) for n, k, s, p in rows)
    frame = windows.framed(xp, x, outs, kernel, stride, padding, ones, 0)
    total = xp.zeros((*x.shape[:2], *outs), x.dtype)
    for at in windows.offsets(x.shape[2:], outs, kernel, stride, padding, ones):
        total = total + windows.taken(frame, at, outs, stride, ones)
    return total / xp.asarray(_divisors(x.shape[2:], outs, attrs))


def _avg_dx_array(xp: Any, g: Any, *, sizes: Sizes, **attrs: Any) -> Any:
    kernel, stride, padding, ones = attrs["kernel"], attrs["stride"], attrs["padding"], (1,) * (g.ndim - 2)
    share = (g / xp.asarray(_divisors(sizes, g.shape[2:], attrs))).astype(g.dtype)
    total = xp.zeros((*g.shape[:2], *sizes), g.dtype)
    for at in windows.offsets(sizes, g.shape[2:], kernel, stride, padding, ones):
        total = total + windows.spread(xp, share, at, sizes, stride, padding, ones)
    return total


def _avg_call(attrs: dict[str, Any]) -> list[Any]:
    kernel, stride, padding = _wide(*(attrs[k] for k in ("kernel", "stride", "padding")))
    return [kernel, stride, padding, attrs["ceil_mode"], attrs["include_pad"], attrs["divisor"]]


def _avg_torch(torch: Any, site: Site, **attrs: Any) -> Any:
    f, a, count = torch.nn.functional.avg_pool2d, _avg_call(attrs), len(attrs["kernel"])
    if count == 3:
        f = torch.nn.functional.avg_pool3d
    if 0 in site.results[0].shape:
        shape = site.results[0].shape
        return lambda x: x.new_empty(shape)
    if count == 3:
        return _wider(lambda x: f(x, *a), site)
    return _flat(lambda x: f(x, *a), count)


def _avg_dx_torch(torch: Any, site: Site, *, sizes: Any, **attrs: Any) -> Any:
    f, a, count = torch.ops.aten.avg_pool2d_backward.default, _avg_call(attrs), len(sizes)
    if count == 3:
        f = torch.ops.aten.avg_pool3d_backward.default
    shape: tuple[int, ...] = site.results[0].shape
    if 0 in shape:
        return lambda g: g.new_zeros(shape)
    if count == 3:
        return _wider(lambda g: f(g, g.new_empty(shape), *a), site)
    shape = shape if count > 1 else (*shape[:2], 1, *shape[2:])
    return _flat(lambda g: f(g, empty(torch, g, shape, order_of(torch, g)), *a), count)  # torch asks for x


def _avg_cases(rng: Rng) -> list[tuple[Any, dict[str, Any]]]:
    rows: list[tuple[Sizes, Sizes, Sizes, Sizes, bool, bool, int | None]] = [
        ((2, 2, 7), (3,), (2,), (1,), False, True, None),
        ((1, 2, 6), (2,), (3,), (1,), True, False, None),
        ((1, 2, 5, 4), (2, 3), (1, 2), (1, 0), False, True, None),
        ((1, 1, 5, 6), (2, 3), (2, 2), (1, 1), True, True, None),
        ((1, 1, 5, 6), (2, 3), (2, 2), (1, 1), True, False, 5),
        ((1, 2, 3, 4, 3), (2, 2, 1), (1, 2, 2), (1, 0, 0), False, False, None),
        ((0, 2, 5, 4), (2, 2), (2, 2), (0, 0), False, True, None),
    ]
    return [
        (rng.normal(size=x), {**_pool_attrs(k, s, p, ceil), "include_pad": include, "divisor": divisor})
        for x, k, s, p, ceil, include, divisor in rows
    ]


def _avg_dx_samples(rng: Rng) -> list[Sample]:
    samples: list[Sample] = []
    for x, a in _avg_cases(rng):
        g = rng.normal(size=_infer_avg(spec(x.shape, dtypes.float64), **a).shape)
        samples.append(((g,), {"sizes": x.shape[2:], **a}))
    return samples


avg_pool = linear_op(
    "avg_pool",
    "The mean of each window: its sum divided by its size, with or without padding, or by a given divisor.",
    infer=_infer_avg,
    factors=lambda x, **attrs: pool_shards.rule(x) if x.dtype.is_floating_point else "n c ... -> n c ...",
    window=pool_shards.windows,
    local=pool_shards.avg_local,
    vjp=(lambda g, y, x, **attrs: ops.avg_pool_dx(g, sizes=x.shape[2:], **attrs),),
    kernels={"array": _avg_array, "torch": _avg_torch},
    samples=lambda rng: [((x,), a) for x, a in _avg_cases(rng)],
    autocast=lambda kernel, **attrs: FLOAT32_ON_CPU if len(kernel) == 3 else Autocast(),
    flops=lambda x, *, kernel, **attrs: (math.prod(kernel) + 1) * _infer_avg(x, kernel=kernel, **attrs).size,
)

avg_pool_dx = linear_op(
    "avg_pool_dx",
    "The gradient of avg_pool with respect to an input of the given sizes.",
    infer=_infer_avg_dx,
    factors=pool_shards.gradient_rule,
    local=pool_shards.avg_dx_local,
    vjp=(lambda u, z, g, *, sizes, **attrs: ops.avg_pool(u, **attrs),),
    kernels={"array": _avg_dx_array, "torch": _avg_dx_torch},
    samples=_avg_dx_samples,
    flops=lambda g, *, kernel, **attrs: (math.prod(kernel) + 1) * g.size,
)

# -- adaptive_max_pool: parts of equal share, which may overlap. Their mean is in resize.py --


def _infer_adaptive(x: Spec, *, sizes: Any) -> tuple[Spec, Spec]:
    name = f"adaptive_max_pool{x.ndim - 2}d"
    rules.floats(name, x)
    if not 3 <= x.ndim <= 5 or 0 in x.shape[2:]:
        raise ShapeError(f"{name}: expected an input (batch, channels, 1 to 3 sizes > 0), got shape {x.shape}")
    shape = (*x.shape[:2], *rules.shape(name, rules.ints(name, "output_size", sizes, x.ndim - 2)))
    return spec(shape, x.dtype), spec(shape, dtypes.int64)


def _adaptive_array(xp: Any, x: Any, *, sizes: Sizes) -> tuple[Any, Any]:
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


def _adaptive_torch(torch: Any, site: Site, *, sizes: Any) -> Any:
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
    infer=_infer_adaptive,
    factors="n c ... -> n c ...",
    ranges=lambda x, **attrs: {1: math.prod(x.shape[2:])},
    vjp=(lambda g, y, x, **attrs: None if g[0] is None else at_positions(g[0], y[1], sizes=x.shape[2:]),),
    kernels={"array": _adaptive_array, "torch": _adaptive_torch},
    samples=lambda rng: [
        ((rng.permutation(14).reshape(1, 2, 7) / 4.0,), {"sizes": (3,)}),
        ((rng.permutation(30).reshape(1, 2, 5, 3) / 4.0,), {"sizes": (3, 4)}),
        ((rng.permutation(24).reshape(1, 1, 3, 2, 4) / 4.0,), {"sizes": (2, 2, 3)}),
        ((rng.normal(size=(0, 2, 5, 3)),), {"sizes": (3, 2)}),
    ],
    autocast=lambda sizes: FLOAT32_ON_CPU if len(sizes) == 3 else Autocast(),
)
