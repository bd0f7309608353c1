"""Pooling as modules."""

from __future__ import annotations

from typing import Any

from gt.client.tensor import Tensor
from gt.errors import ArgumentError
from gt.nn import functional as F
from gt.nn.settings import Functional, settings

__all__ = [
    "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d", "AdaptiveMaxPool1d", "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d", "AvgPool1d", "AvgPool2d", "AvgPool3d", "FractionalMaxPool2d", "FractionalMaxPool3d",
    "LPPool1d", "LPPool2d", "LPPool3d", "MaxPool1d", "MaxPool2d", "MaxPool3d", "MaxUnpool1d", "MaxUnpool2d",
    "MaxUnpool3d",
]  # fmt: skip


class _Windows(Functional):
    """A function of windows: without a stride they are next to each other."""

    kernel_size: Any
    stride: Any

    def __post_init__(self) -> None:
        super().__post_init__()
        self.stride = self.kernel_size if self.stride is None else self.stride
        if hasattr(self, "_dims"):  # as in torch, some keep the sizes as they were given
            self._per_dim("kernel_size", "stride", "padding")


# --- the largest element -----------------------------------------------------------------------------


@settings
class _MaxPool(_Windows, shown=("kernel_size", "stride", "padding", "dilation", "ceil_mode")):
    """The settings of MaxPool1d to MaxPool3d."""

    kernel_size: Any
    stride: Any = None
    padding: Any = 0
    dilation: Any = 1
    return_indices: bool = False
    ceil_mode: bool = False


class MaxPool1d(_MaxPool, function=F.max_pool1d):
    """The maximum of each window of a sequence (N, C, L)."""


class MaxPool2d(_MaxPool, function=F.max_pool2d):
    """The maximum of each window of an image (N, C, H, W)."""


class MaxPool3d(_MaxPool, function=F.max_pool3d):
    """The maximum of each window of a volume (N, C, D, H, W)."""


@settings
class _MaxUnpool(_Windows, shown=("kernel_size", "stride", "padding")):
    """The settings of MaxUnpool1d to MaxUnpool3d."""

    kernel_size: Any
    stride: Any = None
    padding: Any = 0

    def forward(self, input: Tensor, indices: Tensor, output_size: Any = None) -> Tensor:
        return self._function(input, indices, self.kernel_size, self.stride, self.padding, output_size)


class MaxUnpool1d(_MaxUnpool, function=F.max_unpool1d, dims=1):
    """The partial inverse of MaxPool1d: each maximum at its index, zeros elsewhere."""


class MaxUnpool2d(_MaxUnpool, function=F.max_unpool2d, dims=2):
    """The partial inverse of MaxPool2d: each maximum at its index, zeros elsewhere."""


class MaxUnpool3d(_MaxUnpool, function=F.max_unpool3d, dims=3):
    """The partial inverse of MaxPool3d: each maximum at its index, zeros elsewhere."""


@settings
class _FractionalMaxPool(Functional, shown=()):
    """The settings of FractionalMaxPool2d and FractionalMaxPool3d."""

    kernel_size: Any
    output_size: Any = None
    output_ratio: Any = None
    return_indices: bool = False
    _random_samples: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.output_size is None) == (self.output_ratio is None):
            raise ArgumentError(f"{type(self).__name__}: expected either output_size or output_ratio")
        self._per_dim("kernel_size", *(() if self.output_size is None else ("output_size",)))
        if isinstance(self.output_ratio, float):
            self.output_ratio = (self.output_ratio,) * self._dims


class FractionalMaxPool2d(_FractionalMaxPool, function=F.fractional_max_pool2d, dims=2):
    """The maximum of windows of an image that start at random positions."""


class FractionalMaxPool3d(_FractionalMaxPool, function=F.fractional_max_pool3d, dims=3):
    """The maximum of windows of a volume that start at random positions."""


# --- means and norms ---------------------------------------------------------------------------------


@settings
class AvgPool1d(_Windows, function=F.avg_pool1d, dims=1, shown=("kernel_size", "stride", "padding")):
    """The mean of each window of a sequence (N, C, L)."""

    kernel_size: Any
    stride: Any = None
    padding: Any = 0
    ceil_mode: bool = False
    count_include_pad: bool = True


@settings
class _AvgPool(_Windows, shown=("kernel_size", "stride", "padding")):
    """The settings of AvgPool2d and AvgPool3d."""

    kernel_size: Any
    stride: Any = None
    padding: Any = 0
    ceil_mode: bool = False
    count_include_pad: bool = True
    divisor_override: int | None = None


class AvgPool2d(_AvgPool, function=F.avg_pool2d):
    """The mean of each window of an image (N, C, H, W)."""


class AvgPool3d(_AvgPool, function=F.avg_pool3d):
    """The mean of each window of a volume (N, C, D, H, W)."""


@settings
class _LPPool(Functional, shown=("norm_type", "kernel_size", "stride", "ceil_mode")):
    """The settings of LPPool1d to LPPool3d."""

    norm_type: float
    kernel_size: Any
    stride: Any = None
    ceil_mode: bool = False


class LPPool1d(_LPPool, function=F.lp_pool1d):
    """The p-norm of each window of a sequence (N, C, L)."""


class LPPool2d(_LPPool, function=F.lp_pool2d):
    """The p-norm of each window of an image (N, C, H, W)."""


class LPPool3d(_LPPool, function=F.lp_pool3d):
    """The p-norm of each window of a volume (N, C, D, H, W)."""


# --- to a given output size --------------------------------------------------------------------------


@settings
class _AdaptiveAvgPool(Functional, shown=("output_size",)):
    """The settings of AdaptiveAvgPool1d to AdaptiveAvgPool3d."""

    output_size: Any


class AdaptiveAvgPool1d(_AdaptiveAvgPool, function=F.adaptive_avg_pool1d):
    """Average pooling of a sequence to output_size elements."""


class AdaptiveAvgPool2d(_AdaptiveAvgPool, function=F.adaptive_avg_pool2d):
    """Average pooling of an image to output_size pixels."""


class AdaptiveAvgPool3d(_AdaptiveAvgPool, function=F.adaptive_avg_pool3d):
    """Average pooling of a volume to output_size voxels."""


@settings
class _AdaptiveMaxPool(_AdaptiveAvgPool):
    """The settings of AdaptiveMaxPool1d to AdaptiveMaxPool3d."""

    return_indices: bool = False


class AdaptiveMaxPool1d(_AdaptiveMaxPool, function=F.adaptive_max_pool1d):
    """Max pooling of a sequence to output_size elements."""


class AdaptiveMaxPool2d(_AdaptiveMaxPool, function=F.adaptive_max_pool2d):
    """Max pooling of an image to output_size pixels."""


class AdaptiveMaxPool3d(_AdaptiveMaxPool, function=F.adaptive_max_pool3d):
    """Max pooling of a volume to output_size voxels."""
