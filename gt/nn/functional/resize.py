"""Resizing: interpolation, pixel shuffling, and sampling on a grid."""

from __future__ import annotations

import itertools
import math
from typing import Any

from gt.client.compat.autocast import autocasts
from gt.client.compat.checks import one_of
from gt.client.functions import creation
from gt.client.functions import elementwise as ew
from gt.client.functions.shapes import cat
from gt.client.programs import kinds
from gt.client.record.recorder import apply, unary
from gt.client.tensor import Tensor
from gt.errors import ArgumentError, ShapeError
from gt.nn.functional.pool import adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d
from gt.nn.functional.spatial import Sizes
from gt.ops.record import Autocast

__all__ = [
    "affine_grid", "channel_shuffle", "grid_sample", "interpolate", "native_channel_shuffle", "pixel_shuffle",
    "pixel_unshuffle", "upsample", "upsample_bilinear", "upsample_nearest",
]  # fmt: skip


#: Per mode: the number of spatial dimensions it supports (0: any), and the op's name for it.
_MODES = {
    "nearest": (0, "nearest"), "nearest-exact": (0, "nearest-exact"), "area": (0, "area"), "linear": (1, "linear"),
    "bilinear": (2, "linear"), "bicubic": (2, "cubic"), "trilinear": (3, "linear"),
}  # fmt: skip


def interpolate(
    input: Any, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None, antialias: bool = False,
) -> Tensor:  # fmt: skip
    """Resize the input (N, C, sizes ...) to a size, or by a scale factor."""
    n = input.ndim - 2
    one_of("interpolate", "mode", mode, *_MODES)
    dims, name = _MODES[mode]
    if not 1 <= n <= 3 or dims not in (0, n):
        wanted = f"{dims + 2} dimensions" if dims else "3 to 5 dimensions"
        raise ShapeError(f"interpolate: mode {mode!r} expects an input of {wanted}, got shape {tuple(input.shape)}")
    if align_corners is not None and dims == 0:
        raise ArgumentError(f"interpolate: align_corners requires a linear or cubic mode, got {mode!r}")
    if antialias:
        if mode not in ("bilinear", "bicubic"):
            raise ArgumentError(f"interpolate: antialias requires mode 'bilinear' or 'bicubic', got {mode!r}")
        name += "-aa"
    sizes, scales = _sizes(input, n, size, scale_factor, recompute_scale_factor)
    if mode == "area":
        return (adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d)[n - 1](input, sizes)
    return unary(kinds.interpolate[sizes, name, bool(align_corners), scales], input)


def _sizes(input: Any, n: int, size: Any, factor: Any, recompute: bool | None) -> tuple[Sizes, Any]:
    """The sizes of the result, and the scale factors to use instead of the ratios of sizes."""
    if (size is None) == (factor is None):
        raise ArgumentError("interpolate: expected either size or scale_factor")
    if size is not None:
        if recompute:
            raise ArgumentError("interpolate: recompute_scale_factor requires scale_factor, got size")
        given = tuple(int(s) for s in size) if isinstance(size, (list, tuple)) else (int(size),) * n
        if len(given) != n:
            raise ArgumentError(f"interpolate: size must be an int or {n} ints, got {size}")
        return given, None
    factors = tuple(float(f) for f in factor) if isinstance(factor, (list, tuple)) else (float(factor),) * n
    if len(factors) != n or any(not f > 0 for f in factors):
        raise ArgumentError(f"interpolate: scale_factor must be a positive number or {n} of them, got {factor}")
    sizes = tuple(math.floor(m * f) for m, f in zip(input.shape[2:], factors, strict=True))
    return sizes, None if recompute else factors


def upsample(
    input: Any, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool | None = None
) -> Tensor:
    """The old name of interpolate."""
    return interpolate(input, size, scale_factor, mode, align_corners)


def upsample_nearest(input: Any, size: Any = None, scale_factor: Any = None) -> Tensor:
    """interpolate with mode 'nearest'."""
    return interpolate(input, size, scale_factor)


def upsample_bilinear(input: Any, size: Any = None, scale_factor: Any = None) -> Tensor:
    """interpolate with mode 'bilinear' and aligned corners."""
    return interpolate(input, size, scale_factor, "bilinear", True)


# --- pixel shuffling ---------------------------------------------------------------------------------


def pixel_shuffle(input: Any, upscale_factor: int) -> Tensor:
    """Channels to pixels: (..., C * r * r, H, W) to (..., C, H * r, W * r)."""
    r = upscale_factor
    if input.ndim < 3 or r < 1 or input.shape[-3] % (r * r):
        raise ShapeError(
            f"pixel_shuffle: expected (..., C, H, W) with C a multiple of {r * r}, got shape {tuple(input.shape)}"
        )
    *lead, c, h, w = input.shape
    n, c = len(lead), c // (r * r)
    x = input.reshape((*lead, c, r, r, h, w)).permute((*range(n), n, n + 3, n + 1, n + 4, n + 2))
    return x.reshape((*lead, c, h * r, w * r))


def pixel_unshuffle(input: Any, downscale_factor: int) -> Tensor:
    """Pixels to channels: (..., C, H * r, W * r) to (..., C * r * r, H, W)."""
    r = downscale_factor
    if input.ndim < 3 or r < 1 or input.shape[-2] % r or input.shape[-1] % r:
        raise ShapeError(
            f"pixel_unshuffle: expected (..., C, H, W) with H and W multiples of {r}, got shape {tuple(input.shape)}"
        )
    *lead, c, h, w = input.shape
    n, h, w = len(lead), h // r, w // r
    x = input.reshape((*lead, c, h, r, w, r)).permute((*range(n), n, n + 2, n + 4, n + 1, n + 3))
    return x.reshape((*lead, c * r * r, h, w))


def channel_shuffle(input: Any, groups: int) -> Tensor:
    """Interleave the groups of channels: the first channel of each group, then the second of each, and so on."""
    if input.ndim < 3 or groups < 1 or input.shape[1] % groups:
        raise ShapeError(
            f"channel_shuffle: expected (N, C, ...) with C a multiple of {groups}, got shape {tuple(input.shape)}"
        )
    shape = tuple(input.shape)
    return input.reshape((shape[0], groups, shape[1] // groups, *shape[2:])).transpose(1, 2).reshape(shape)


native_channel_shuffle = channel_shuffle

# --- sampling on a grid ------------------------------------------------------------------------------


def affine_grid(theta: Any, size: Any, align_corners: bool | None = None) -> Tensor:
    """The grid for grid_sample of affine maps theta, (N, 2, 3) or (N, 3, 4), for an output of `size`."""
    n = len(size) - 2
    if n not in (2, 3) or theta.ndim != 3 or tuple(theta.shape) != (size[0], n, n + 1):
        raise ShapeError(
            f"affine_grid: expected size (N, C, H, W) with theta (N, 2, 3), or (N, C, D, H, W) with (N, 3, 4), got "
            f"{tuple(size)} and {tuple(theta.shape)}"
        )
    spatial = tuple(int(s) for s in size[2:])
    axes = [_steps(m, bool(align_corners), theta.dtype) for m in spatial]
    columns = []
    for d in reversed(range(n)):  # x is the last dimension
        shape = tuple(m if i == d else 1 for i, m in enumerate((*spatial, 1)))
        columns.append(axes[d].reshape(shape).expand((*spatial, 1)))
    columns.append(creation.ones((*spatial, 1), dtype=theta.dtype))
    base = cat(columns, -1).reshape((1, math.prod(spatial), n + 1))
    coordinates = base.expand((size[0], *base.shape[1:])) @ theta.transpose(1, 2)
    return coordinates.reshape((size[0], *spatial, n))


def _steps(m: int, align_corners: bool, dtype: Any) -> Any:
    """The centers of m pixels in [-1, 1]; with align_corners the first and last center are -1 and 1."""
    if m <= 1:
        return creation.zeros(m, dtype=dtype)
    steps = creation.arange(m, dtype=dtype) * (2.0 / (m - 1)) - 1.0
    return steps if align_corners else steps * ((m - 1) / m)


@autocasts(Autocast(cpu="float32", cuda="widest"))
def grid_sample(
    input: Any, grid: Any, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool | None = None
) -> Tensor:
    """Sample the input at the points of a grid (N, sizes ..., 2 or 3): x first, from -1 to 1 in each dimension."""
    n = input.ndim - 2
    if n not in (2, 3) or grid.ndim != input.ndim or grid.shape[0] != input.shape[0] or grid.shape[-1] != n:
        raise ShapeError(
            f"grid_sample: expected input (N, C, H, W) with grid (N, H', W', 2), or (N, C, D, H, W) with "
            f"(N, D', H', W', 3), got {tuple(input.shape)} and {tuple(grid.shape)}"
        )
    if mode not in ("bilinear", "nearest", "bicubic") or (mode == "bicubic" and n == 3):
        raise ArgumentError(f"grid_sample: mode must be 'bilinear', 'nearest' or, for images, 'bicubic', got {mode!r}")
    one_of("grid_sample", "padding_mode", padding_mode, "zeros", "border", "reflection")
    if 0 in input.shape[2:]:
        raise ShapeError(f"grid_sample: expected a non-empty input, got shape {tuple(input.shape)}")
    sizes, align = tuple(input.shape[2:]), bool(align_corners)
    coordinates = []  # the coordinate in each dimension of the input, in pixels: (batch, points)
    for d, m in enumerate(sizes):
        g = grid.select(-1, n - 1 - d).reshape((grid.shape[0], math.prod(grid.shape[1:-1])))
        coordinate = (g + 1) * ((m - 1) / 2) if align else ((g + 1) * m - 1) / 2
        coordinates.append(coordinate if mode == "bicubic" else _inside(coordinate, m, padding_mode, align))
    taps = [_taps(coordinate, mode) for coordinate in coordinates]
    flat = input.reshape((*input.shape[:2], math.prod(sizes)))
    total: Any = None
    for corner in itertools.product(*taps):
        part = _weighted(flat, corner, sizes, mode, padding_mode, align)
        total = part if total is None else total + part
    return total.reshape((*input.shape[:2], *grid.shape[1:-1]))


@autocasts(Autocast(cpu="float32", cuda="widest"))
def grid_sampler(input: Any, grid: Any, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Tensor:
    """grid_sample with torch's integer codes of the modes."""
    try:
        mode = ("bilinear", "nearest", "bicubic")[interpolation_mode]
        padding = ("zeros", "border", "reflection")[padding_mode]
    except (IndexError, TypeError):
        raise ArgumentError(
            f"grid_sampler: modes must be 0, 1 or 2, got {interpolation_mode} and {padding_mode}"
        ) from None
    return grid_sample(input, grid, mode, padding, align_corners)


def _inside(coordinate: Any, m: int, padding_mode: str, align: bool) -> Any:
    """Coordinates outside of m pixels moved inside: clamped to the border, or reflected at it."""
    if padding_mode == "zeros":
        return coordinate
    if padding_mode == "reflection":
        low, span = (0.0, m - 1) if align else (-0.5, m)
        if span == 0:
            return ew.clamp(coordinate, 0, 0)
        far = ew.abs(coordinate - low)
        turns = ew.floor(far / span)
        rest = far - turns * span
        coordinate = ew.where(ew.eq(ew.remainder(turns, 2), 0), rest + low, span - rest + low)
    # Not clamp: the gradient at the border itself is 0, as in torch.
    return ew.where(coordinate <= 0, 0.0, ew.where(coordinate >= m - 1, float(m - 1), coordinate))


def _taps(coordinate: Any, mode: str) -> list[tuple[Any, Any]]:
    """The pixels around a coordinate, with their weights."""
    if mode == "nearest":
        return [(ew.round(coordinate), None)]
    low = ew.floor(coordinate).detach()
    t = coordinate - low
    if mode == "bilinear":
        return [(low, 1 - t), (low + 1, t)]
    a = -0.75
    near = [((a + 2) * u - (a + 3)) * u * u + 1 for u in (t, 1 - t)]
    far = [((a * u - 5 * a) * u + 8 * a) * u - 4 * a for u in (t + 1, 2 - t)]
    return [(low - 1, far[0]), (low, near[0]), (low + 1, near[1]), (low + 2, far[1])]


def _weighted(flat: Any, corner: Any, sizes: Sizes, mode: str, padding_mode: str, align: bool) -> Any:
    """The pixels (batch, channels, points) of one combination of taps, times their weights."""
    position: Any = 0
    weight: Any = None
    for (pixel, w), m in zip(corner, sizes, strict=True):
        if mode == "bicubic":
            pixel = _inside(pixel, m, padding_mode, align)
        whole = ew.clamp(pixel.long(), 0, m - 1)  # after the cast: a coordinate may be nan
        position = position * m + whole
        if padding_mode == "zeros":
            there = ew.eq(whole, pixel)
            w = there.to(flat.dtype) if w is None else ew.where(there, w, 0.0)
        if w is not None:
            weight = w if weight is None else weight * w
    index = position.unsqueeze(1).expand((*flat.shape[:2], position.shape[1]))
    values = apply(kinds.gather[2], (flat, index))
    return values if weight is None else values * weight.unsqueeze(1)
