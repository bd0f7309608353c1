"""Layers that reshape, fold, pad and resize."""

from __future__ import annotations

from functools import partial
from typing import Any

from gt.client.functions import shapes
from gt.client.tensor import Tensor
from gt.errors import ArgumentError
from gt.nn import functional as F
from gt.nn.functional.spatial import per_dim
from gt.nn.settings import Functional, settings

__all__ = [
    "ChannelShuffle", "CircularPad1d", "CircularPad2d", "CircularPad3d", "ConstantPad1d", "ConstantPad2d",
    "ConstantPad3d", "Flatten", "Fold", "PixelShuffle", "PixelUnshuffle", "ReflectionPad1d", "ReflectionPad2d",
    "ReflectionPad3d", "ReplicationPad1d", "ReplicationPad2d", "ReplicationPad3d", "Unflatten", "Unfold", "Upsample",
    "UpsamplingBilinear2d", "UpsamplingNearest2d", "ZeroPad1d", "ZeroPad2d", "ZeroPad3d",
]  # fmt: skip


@settings
class Flatten(Functional, function=shapes.flatten):
    """Join the dimensions from start_dim to end_dim into one."""

    start_dim: int = 1
    end_dim: int = -1


@settings
class Unflatten(Functional):
    """Split the dimension dim into unflattened_size."""

    dim: int
    unflattened_size: Any

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.dim, int) or not isinstance(self.unflattened_size, (list, tuple)):
            raise ArgumentError(
                f"Unflatten: expected an int and a tuple of sizes, got {self.dim!r} and {self.unflattened_size!r}"
            )

    def forward(self, input: Tensor) -> Tensor:
        return shapes.unflatten(input, self.dim, self.unflattened_size)


@settings
class Unfold(Functional, function=F.unfold):
    """The sliding windows of images (N, C, H, W) as the columns of a matrix (N, C * kernel, windows)."""

    kernel_size: Any
    dilation: Any = 1
    padding: Any = 0
    stride: Any = 1


@settings
class Fold(Functional, function=F.fold):
    """Columns back to images: the sum of all windows that overlap at a pixel."""

    output_size: Any
    kernel_size: Any
    dilation: Any = 1
    padding: Any = 0
    stride: Any = 1


@settings
class PixelShuffle(Functional, function=F.pixel_shuffle):
    """Channels to pixels: (..., C * r * r, H, W) to (..., C, H * r, W * r)."""

    upscale_factor: int


@settings
class PixelUnshuffle(Functional, function=F.pixel_unshuffle):
    """Pixels to channels: the inverse of PixelShuffle."""

    downscale_factor: int


@settings
class ChannelShuffle(Functional, function=F.channel_shuffle):
    """Interleave the groups of channels: the first channel of each group, then the second of each, and so on."""

    groups: int


@settings
class Upsample(Functional, function=F.interpolate):
    """Resize the input to a size, or by a scale factor."""

    size: Any = None
    scale_factor: Any = None
    mode: str = "nearest"
    align_corners: bool | None = None
    recompute_scale_factor: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        factor = self.scale_factor
        self.scale_factor = tuple(map(float, factor)) if isinstance(factor, tuple) else factor and float(factor)

    def extra_repr(self) -> str:
        how = f"size={self.size!r}" if self.scale_factor is None else f"scale_factor={self.scale_factor!r}"
        return f"{how}, mode={self.mode!r}"


class UpsamplingNearest2d(Upsample):
    """Resize images by nearest-neighbor interpolation."""

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor)


class UpsamplingBilinear2d(Upsample):
    """Resize images by bilinear interpolation, with aligned corners."""

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor, "bilinear", True)


# --- padding: 1d, 2d and 3d differ in the number of sizes --------------------------------------------


@settings
class _Pad(Functional):
    """Padding of the last dimensions: one int for all sides, or two ints per dimension, the last dimension first."""

    padding: Any

    def __post_init__(self) -> None:
        super().__post_init__()
        self.padding = per_dim(type(self).__name__, "padding", self.padding, 2 * self._dims)

    def forward(self, input: Tensor) -> Tensor:
        return self._function(input, self.padding)

    def extra_repr(self) -> str:
        return f"{self.padding}"


@settings
class _ConstantPad(_Pad):
    """Padding with one value."""

    value: float

    def forward(self, input: Tensor) -> Tensor:
        return F.pad(input, self.padding, "constant", self.value)

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


_reflect, _replicate, _circular = (partial(F.pad, mode=mode) for mode in ("reflect", "replicate", "circular"))


class ConstantPad1d(_ConstantPad, dims=1):
    """Pad the last dimension with a value."""


class ConstantPad2d(_ConstantPad, dims=2):
    """Pad the last two dimensions with a value."""


class ConstantPad3d(_ConstantPad, dims=3):
    """Pad the last three dimensions with a value."""


class ZeroPad1d(_Pad, function=F.pad, dims=1):
    """Pad the last dimension with zeros."""


class ZeroPad2d(_Pad, function=F.pad, dims=2):
    """Pad the last two dimensions with zeros."""


class ZeroPad3d(_Pad, function=F.pad, dims=3):
    """Pad the last three dimensions with zeros."""


class ReflectionPad1d(_Pad, function=_reflect, dims=1):
    """Pad the last dimension with the reflection of the input at its boundary."""


class ReflectionPad2d(_Pad, function=_reflect, dims=2):
    """Pad the last two dimensions with the reflection of the input at its boundary."""


class ReflectionPad3d(_Pad, function=_reflect, dims=3):
    """Pad the last three dimensions with the reflection of the input at its boundary."""


class ReplicationPad1d(_Pad, function=_replicate, dims=1):
    """Pad the last dimension with copies of its boundary."""


class ReplicationPad2d(_Pad, function=_replicate, dims=2):
    """Pad the last two dimensions with copies of their boundary."""


class ReplicationPad3d(_Pad, function=_replicate, dims=3):
    """Pad the last three dimensions with copies of their boundary."""


class CircularPad1d(_Pad, function=_circular, dims=1):
    """Pad the last dimension with its opposite end."""


class CircularPad2d(_Pad, function=_circular, dims=2):
    """Pad the last two dimensions with their opposite ends."""


class CircularPad3d(_Pad, function=_circular, dims=3):
    """Pad the last three dimensions with their opposite ends."""
