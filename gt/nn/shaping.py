"""Layers that move elements around: flatten, fold, pad, resize, shuffle."""

from __future__ import annotations

from typing import Any

from gt.client.functions import shapes
from gt.client.tensor import Tensor
from gt.errors import ArgumentError
from gt.nn import functional as F
from gt.nn.functional.spatial import per_dim
from gt.nn.module import Module

__all__ = [
    "ChannelShuffle", "CircularPad1d", "CircularPad2d", "CircularPad3d", "ConstantPad1d", "ConstantPad2d",
    "ConstantPad3d", "Flatten", "Fold", "PixelShuffle", "PixelUnshuffle", "ReflectionPad1d", "ReflectionPad2d",
    "ReflectionPad3d", "ReplicationPad1d", "ReplicationPad2d", "ReplicationPad3d", "Unflatten", "Unfold", "Upsample",
    "UpsamplingBilinear2d", "UpsamplingNearest2d", "ZeroPad1d", "ZeroPad2d", "ZeroPad3d",
]  # fmt: skip


class Flatten(Module):
    """All dimensions from start_dim to end_dim as one."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, input: Tensor) -> Tensor:
        return shapes.flatten(input, self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Unflatten(Module):
    """One dimension as several."""

    def __init__(self, dim: int, unflattened_size: Any) -> None:
        super().__init__()
        if not isinstance(dim, int) or not isinstance(unflattened_size, (list, tuple)):
            raise ArgumentError(f"Unflatten: takes an int and sizes, not {dim!r} and {unflattened_size!r}")
        self.dim, self.unflattened_size = dim, unflattened_size

    def forward(self, input: Tensor) -> Tensor:
        return shapes.unflatten(input, self.dim, self.unflattened_size)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"


class Unfold(Module):
    """The windows of images as columns."""

    def __init__(self, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> None:
        super().__init__()
        self.kernel_size, self.dilation, self.padding, self.stride = kernel_size, dilation, padding, stride

    def forward(self, input: Tensor) -> Tensor:
        return F.unfold(input, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, dilation={self.dilation}, padding={self.padding}, stride={self.stride}"


class Fold(Module):
    """Columns back to images, added up where windows overlap."""

    def __init__(
        self, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
    ) -> None:
        super().__init__()
        self.output_size = output_size
        self.kernel_size, self.dilation, self.padding, self.stride = kernel_size, dilation, padding, stride

    def forward(self, input: Tensor) -> Tensor:
        return F.fold(input, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        return (
            f"output_size={self.output_size}, kernel_size={self.kernel_size}, dilation={self.dilation}, "
            f"padding={self.padding}, stride={self.stride}"
        )


class PixelShuffle(Module):
    """Channels as pixels: (..., c * r * r, h, w) as (..., c, h * r, w * r)."""

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        self.upscale_factor = upscale_factor

    def forward(self, input: Tensor) -> Tensor:
        return F.pixel_shuffle(input, self.upscale_factor)

    def extra_repr(self) -> str:
        return f"upscale_factor={self.upscale_factor}"


class PixelUnshuffle(Module):
    """Pixels as channels: the way back of PixelShuffle."""

    def __init__(self, downscale_factor: int) -> None:
        super().__init__()
        self.downscale_factor = downscale_factor

    def forward(self, input: Tensor) -> Tensor:
        return F.pixel_unshuffle(input, self.downscale_factor)

    def extra_repr(self) -> str:
        return f"downscale_factor={self.downscale_factor}"


class ChannelShuffle(Module):
    """The channels in another order: the first of each group, then the second of each, and so on."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, input: Tensor) -> Tensor:
        return F.channel_shuffle(input, self.groups)

    def extra_repr(self) -> str:
        return f"groups={self.groups}"


class Upsample(Module):
    """The input resized to a size, or by a factor."""

    def __init__(
        self, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.size, self.mode, self.align_corners = size, mode, align_corners
        several = isinstance(scale_factor, tuple)
        self.scale_factor = tuple(map(float, scale_factor)) if several else scale_factor and float(scale_factor)
        self.recompute_scale_factor = recompute_scale_factor

    def forward(self, input: Tensor) -> Tensor:
        return F.interpolate(
            input, self.size, self.scale_factor, self.mode, self.align_corners, self.recompute_scale_factor
        )

    def extra_repr(self) -> str:
        how = f"size={self.size!r}" if self.scale_factor is None else f"scale_factor={self.scale_factor!r}"
        return f"{how}, mode={self.mode!r}"


class UpsamplingNearest2d(Upsample):
    """Images resized by repeating pixels."""

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor)


class UpsamplingBilinear2d(Upsample):
    """Images resized between pixels, corners aligned."""

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor, "bilinear", True)


# --- padding: 1d, 2d and 3d differ in how many sizes they take ---------------------------------------


class _Pad(Module):
    """More elements around the last dimensions, as the mode says."""

    mode: str
    dims: int

    def __init__(self, padding: Any) -> None:
        super().__init__()
        self.padding = per_dim(type(self).__name__, "padding", padding, 2 * self.dims)

    def forward(self, input: Tensor) -> Tensor:
        return F.pad(input, self.padding, self.mode)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class _ConstantPad(_Pad):
    """One number around the last dimensions."""

    mode = "constant"

    def __init__(self, padding: Any, value: float) -> None:
        super().__init__(padding)
        self.value = value

    def forward(self, input: Tensor) -> Tensor:
        return F.pad(input, self.padding, "constant", self.value)

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class ConstantPad1d(_ConstantPad):
    """One number around the last dimension."""

    dims = 1


class ConstantPad2d(_ConstantPad):
    """One number around the last two dimensions."""

    dims = 2


class ConstantPad3d(_ConstantPad):
    """One number around the last three dimensions."""

    dims = 3


class ZeroPad1d(_Pad):
    """Zeros around the last dimension."""

    dims, mode = 1, "constant"


class ZeroPad2d(_Pad):
    """Zeros around the last two dimensions."""

    dims, mode = 2, "constant"


class ZeroPad3d(_Pad):
    """Zeros around the last three dimensions."""

    dims, mode = 3, "constant"


class ReflectionPad1d(_Pad):
    """The mirror image at both ends of the last dimension."""

    dims, mode = 1, "reflect"


class ReflectionPad2d(_Pad):
    """The mirror image at both ends of the last two dimensions."""

    dims, mode = 2, "reflect"


class ReflectionPad3d(_Pad):
    """The mirror image at both ends of the last three dimensions."""

    dims, mode = 3, "reflect"


class ReplicationPad1d(_Pad):
    """The edge repeated at both ends of the last dimension."""

    dims, mode = 1, "replicate"


class ReplicationPad2d(_Pad):
    """The edge repeated at both ends of the last two dimensions."""

    dims, mode = 2, "replicate"


class ReplicationPad3d(_Pad):
    """The edge repeated at both ends of the last three dimensions."""

    dims, mode = 3, "replicate"


class CircularPad1d(_Pad):
    """The other end at both ends of the last dimension."""

    dims, mode = 1, "circular"


class CircularPad2d(_Pad):
    """The other end at both ends of the last two dimensions."""

    dims, mode = 2, "circular"


class CircularPad3d(_Pad):
    """The other end at both ends of the last three dimensions."""

    dims, mode = 3, "circular"
