"""Resizing over all dimensions but the first two: nearest, linear, cubic, and the mean of equal shares (`area`).

All of these work dimension by dimension, and along each one every result is a weighted sum of few elements. `_taps`
says which and how much; array kernels need nothing else. Torch's kernels are its own.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from gt import dtypes
from gt.errors import ArgumentError, DTypeError, ShapeError
from gt.ops import rules
from gt.ops.record import FLOAT32_ON_CUDA, Autocast, Rng, Site, ops
from gt.ops.sharding import linear_op
from gt.program import Spec, spec

Sizes = tuple[int, ...]

#: torch's functions, by mode and number of dimensions. The last two weigh all elements that a result covers.
_FUNCTIONS: dict[str, dict[int, str]] = {
    "nearest": {1: "upsample_nearest1d", 2: "upsample_nearest2d", 3: "upsample_nearest3d"},
    "nearest-exact": {n: f"_upsample_nearest_exact{n}d" for n in (1, 2, 3)},
    "linear": {1: "upsample_linear1d", 2: "upsample_bilinear2d", 3: "upsample_trilinear3d"},
    "cubic": {2: "upsample_bicubic2d"},
    "area": {1: "_adaptive_avg_pool2d", 2: "_adaptive_avg_pool2d", 3: "_adaptive_avg_pool3d"},
    "linear-aa": {2: "_upsample_bilinear2d_aa"},
    "cubic-aa": {2: "_upsample_bicubic2d_aa"},
}


def _check(name: str, x: Spec, sizes: Any, mode: Any, align: Any, scales: Any) -> Sizes:
    rules.tensor(name, x)
    rules.choice(name, "mode", mode, tuple(_FUNCTIONS))
    rules.flag(name, "align_corners", align)
    if not x.dtype.is_floating_point and (mode == "area" or x.dtype is not dtypes.uint8):
        raise DTypeError(f"{name}: expected a floating-point dtype, got {x.dtype.name}; cast first, as in x.float()")
    n = x.ndim - 2
    if n not in _FUNCTIONS[mode]:
        known = " or ".join(str(k + 2) for k in _FUNCTIONS[mode])
        raise ShapeError(f"{name}: mode {mode!r} expects an input of {known} dimensions, got shape {x.shape}")
    sizes = rules.shape(name, rules.ints(name, "sizes", sizes, n))
    if 0 in x.shape[2:] or (0 in sizes and mode != "area"):
        raise ShapeError(f"{name}: sizes must be positive, got {x.shape[2:]} and {sizes}")
    if scales is not None and (
        not isinstance(scales, list | tuple)
        or len(scales) != n
        or any(s is not None and (type(s) is not float or not s > 0) for s in scales)
    ):
        raise ArgumentError(f"{name}: scales must be None or {n} positive numbers, got {rules.shown(scales)}")
    return sizes


def _infer(x: Spec, *, sizes: Any, mode: Any, align: Any, scales: Any) -> Spec:
    name = "adaptive_avg_pool" if mode == "area" else "interpolate"
    return spec((*x.shape[:2], *_check(name, x, sizes, mode, align, scales)), x.dtype)


def _infer_dx(g: Spec, *, sizes: Any, mode: Any, align: Any, scales: Any) -> Spec:
    rules.floating("interpolate_dx", g)
    sizes = rules.shape("interpolate_dx", sizes)
    _check("interpolate_dx", spec((*g.shape[:2], *sizes), g.dtype), g.shape[2:], mode, align, scales)
    return spec((*g.shape[:2], *sizes), g.dtype)


# -- array kernels ---------------------------------------------------------------------------


def _cubic(x: Any, a: float) -> Any:
    """Keys' kernel with parameter a, from -2 to 2."""
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((x - 5) * x + 8) * x * a - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


@functools.lru_cache(maxsize=256)
def _taps(n: int, out: int, mode: str, align: bool, scale: float | None, real: Any) -> tuple[Any, Any]:
    """For n elements resized to `out`: the elements of each result and their weights, both of shape (out, taps).
    Computed in the type that torch uses, so that `nearest` falls on the same side."""
    i = np.arange(out)
    if mode == "area":
        start, end = i * n // max(out, 1), -(-(i + 1) * n // max(out, 1))
        k = np.arange(int((end - start).max(initial=1)))
        inside = k < (end - start)[:, None]
        return np.minimum(start[:, None] + k, n - 1), inside / (end - start)[:, None]
    if align and not mode.startswith("nearest"):
        step = real((n - 1) / (out - 1)) if out > 1 else real(0)
    else:
        step = real(1 / scale) if scale is not None else real(n) / real(out)
    if mode.startswith("nearest"):
        source = np.float32((i + real(0.5 if mode == "nearest-exact" else 0)) * step)
        return np.minimum(np.floor(source).astype(np.int64), n - 1)[:, None], np.ones((out, 1))
    if mode.endswith("-aa"):
        return _covering(n, i, float(step), mode)
    source = step * i if align else step * (i + real(0.5)) - real(0.5)
    if mode == "linear":
        source = np.maximum(source, 0)
        low = np.minimum(np.floor(source).astype(np.int64), n - 1)
        part = np.clip(source - low, 0, 1)
        return np.stack([low, np.minimum(low + 1, n - 1)], 1), np.stack([1 - part, part], 1)
    low = np.floor(source).astype(np.int64)
    k = np.arange(-1, 3)
    return np.clip(low[:, None] + k, 0, n - 1), _cubic(source[:, None] - low[:, None] - k, -0.75)


def _covering(n: int, i: Any, step: float, mode: str) -> tuple[Any, Any]:
    """The taps of antialiased modes: a kernel as wide as what a result covers."""
    stretch = max(step, 1.0)
    support = (1.0 if mode == "linear-aa" else 2.0) * stretch
    centre = step * (i + 0.5)
    start = np.maximum((centre - support + 0.5).astype(np.int64), 0)
    end = np.minimum((centre + support + 0.5).astype(np.int64), n)
    k = np.arange(int((end - start).max(initial=1)))
    at = (k + start[:, None] - centre[:, None] + 0.5) / stretch
    weight = np.maximum(1 - np.abs(at), 0) if mode == "linear-aa" else _cubic(at, -0.5)
    weight = np.where(k < (end - start)[:, None], weight, 0)
    return np.minimum(start[:, None] + k, n - 1), weight / weight.sum(1, keepdims=True)


def _along(
    xp: Any, x: Any, axis: int, n: int, out: int, mode: str, align: bool, scales: Any, back: bool = False
) -> Any:
    """One dimension resized; with `back`, the transpose of that."""
    real = np.float64 if x.dtype == np.float64 else np.float32
    where, weight = _taps(n, out, mode, align, scales[axis - 2] if scales else None, real)
    if back:
        matrix = np.zeros((out, n))
        np.add.at(matrix, (np.arange(out)[:, None], where), weight)
        return xp.moveaxis(xp.matmul(xp.moveaxis(x, axis, -1), xp.asarray(matrix.astype(x.dtype))), -1, axis)
    if mode.startswith("nearest"):
        return xp.take(x, xp.asarray(where[:, 0]), axis=axis)
    kind = x.dtype if np.issubdtype(x.dtype, np.floating) else np.dtype(np.float32)
    shape = (out,) + (1,) * (x.ndim - axis - 1)
    parts = [
        xp.take(x, xp.asarray(where[:, k]), axis=axis) * xp.asarray(weight[:, k].astype(kind)).reshape(shape)
        for k in range(where.shape[1])
    ]
    return sum(parts[1:], parts[0])


def _array(xp: Any, x: Any, *, sizes: Sizes, mode: str, align: bool, scales: Any) -> Any:
    y = x
    for axis in range(2, x.ndim):
        if 0 in sizes:
            return xp.zeros((*x.shape[:2], *sizes), x.dtype)
        y = _along(xp, y, axis, x.shape[axis], sizes[axis - 2], mode, align, scales)
    return y if np.issubdtype(x.dtype, np.floating) else xp.clip(xp.round(y), 0, 255)


def _dx_array(xp: Any, g: Any, *, sizes: Sizes, mode: str, align: bool, scales: Any) -> Any:
    for axis in range(2, g.ndim):
        g = _along(xp, g, axis, sizes[axis - 2], g.shape[axis], mode, align, scales, back=True)
    return g


# -- torch -----------------------------------------------------------------------------------


def _call(mode: str, count: int, align: bool, scales: Any) -> list[Any]:
    """What torch's functions take after the sizes."""
    flags = [] if mode.startswith("nearest") else [align]
    return [*flags, *(scales or (None,) * count)]


def _narrow(site: Site, mode: str) -> bool:
    """Whether torch has no kernel: on a CPU, the antialiased modes know float32 and float64 only."""
    return mode.endswith("-aa") and site.device == "cpu" and site.specs[0].dtype.itemsize == 2


def _torch(torch: Any, site: Site, *, sizes: Any, mode: str, align: bool, scales: Any) -> Any:
    count, result = len(sizes), site.results[0].shape
    if 0 in result:
        return lambda x: x.new_empty(result)
    f = getattr(torch.ops.aten, _FUNCTIONS[mode][count]).default
    if mode == "area":
        if count == 1:
            return lambda x: f(x.unsqueeze(-2), (1, *sizes)).squeeze(-2)
        return lambda x: f(x, sizes)
    rest = _call(mode, count, align, scales)
    if _narrow(site, mode):
        return lambda x: f(x.float(), sizes, *rest).to(x.dtype)
    return lambda x: f(x, sizes, *rest)


def _dx_torch(torch: Any, site: Site, *, sizes: Any, mode: str, align: bool, scales: Any) -> Any:
    count, result, outs = len(sizes), site.results[0].shape, site.specs[0].shape[2:]
    if not site.specs[0].size:
        return lambda g: g.new_zeros(result)
    f = getattr(torch.ops.aten, _FUNCTIONS[mode][count] + "_backward").default
    if mode == "area":  # torch asks for x, and looks at its shape alone
        if count == 1:
            wide = (*result[:2], 1, *result[2:])
            return lambda g: f(g.unsqueeze(-2), g.new_empty(wide)).squeeze(-2)
        return lambda g: f(g, g.new_empty(result))
    rest = _call(mode, count, align, scales)
    if _narrow(site, mode):
        return lambda g: f(g.float(), outs, result, *rest).to(g.dtype)
    return lambda g: f(g, outs, result, *rest)


# -- records ---------------------------------------------------------------------------------


def _cases(rng: Rng) -> list[tuple[Any, dict[str, Any]]]:
    rows: list[tuple[Sizes, Sizes, str, bool, tuple[float | None, ...] | None]] = [
        ((2, 1, 4), (7,), "nearest", False, None),
        ((1, 2, 3, 5), (6, 4), "nearest", False, (2.0, None)),
        ((1, 1, 2, 3, 2), (3, 2, 4), "nearest", False, None),
        ((1, 2, 5), (3,), "nearest-exact", False, None),
        ((1, 1, 3, 2), (4, 5), "nearest-exact", False, None),
        ((1, 1, 2, 3, 2), (3, 2, 4), "nearest-exact", False, None),
        ((2, 1, 4), (7,), "linear", True, None),
        ((1, 2, 3, 4), (5, 2), "linear", False, None),
        ((1, 2, 3, 4), (7, 10), "linear", False, (2.5, 2.5)),
        ((1, 1, 3, 4), (1, 6), "linear", True, None),
        ((1, 1, 2, 3, 2), (3, 2, 4), "linear", False, None),
        ((1, 2, 4, 3), (6, 5), "cubic", False, None),
        ((1, 1, 4, 3), (3, 5), "cubic", True, None),
        ((1, 1, 7), (3,), "area", False, None),
        ((1, 2, 5, 3), (3, 4), "area", False, None),
        ((1, 1, 3, 2, 4), (2, 2, 3), "area", False, None),
        ((1, 1, 7, 6), (3, 8), "linear-aa", False, None),
        ((1, 1, 7, 6), (4, 9), "cubic-aa", True, None),
        ((0, 2, 3, 4), (5, 2), "linear", False, None),
        ((0, 2, 3, 4), (5, 2), "area", False, None),
    ]
    return [
        (rng.normal(size=x), {"sizes": sizes, "mode": mode, "align": align, "scales": scales})
        for x, sizes, mode, align, scales in rows
    ]


interpolate = linear_op(
    "interpolate",
    "The input resized by nearest, linear or cubic interpolation, or by the mean of each area.",
    infer=_infer,
    factors="n c ... -> n c ...",
    vjp=(lambda g, y, x, *, sizes, **attrs: ops.interpolate_dx(g, sizes=x.shape[2:], **attrs),),
    kernels={"array": _array, "torch": _torch},
    samples=lambda rng: [((x,), a) for x, a in _cases(rng)],
    autocast=lambda mode, **attrs: Autocast() if mode == "area" else FLOAT32_ON_CUDA,
)

interpolate_dx = linear_op(
    "interpolate_dx",
    "The gradient of interpolate with respect to an input of the given sizes.",
    infer=_infer_dx,
    factors="n c ... -> n c ...",
    vjp=(lambda u, z, g, *, sizes, **attrs: ops.interpolate(u, sizes=g.shape[2:], **attrs),),
    kernels={"array": _dx_array, "torch": _dx_torch},
    samples=lambda rng: [
        ((rng.normal(size=(*x.shape[:2], *a["sizes"])),), {**a, "sizes": x.shape[2:]}) for x, a in _cases(rng)
    ],
)
