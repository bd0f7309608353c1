"""Pooling as modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.client.tensor import Tensor
from gt.errors import ArgumentError
from gt.nn import functional as F
from gt.nn.functional.spatial import per_dim
from gt.nn.module import Module

__all__ = [
    "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d", "AdaptiveMaxPool1d", "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d", "AvgPool1d", "AvgPool2d", "AvgPool3d", "FractionalMaxPool2d", "FractionalMaxPool3d",
    "LPPool1d", "LPPool2d", "LPPool3d", "MaxPool1d", "MaxPool2d", "MaxPool3d", "MaxUnpool1d", "MaxUnpool2d",
    "MaxUnpool3d",
]  # fmt: skip


class _Pool(Module):
    """A function of windows, for a number of dimensions."""

    dims: int
    function: Callable[..., Any]


# --- the largest element -----------------------------------------------------------------------------


class _MaxPool(_Pool):
    """The largest element of each window."""

    def __init__(
        self, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.kernel_size, self.stride = kernel_size, kernel_size if stride is None else stride
        self.padding, self.dilation = padding, dilation
        self.return_indices, self.ceil_mode = return_indices, ceil_mode

    def forward(self, input: Tensor) -> Any:
        return type(self).function(
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices
        )

    def extra_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, "
            f"dilation={self.dilation}, ceil_mode={self.ceil_mode}"
        )


class MaxPool1d(_MaxPool):
    """The largest element of each window of a sequence."""

    dims, function = 1, staticmethod(F.max_pool1d)


class MaxPool2d(_MaxPool):
    """The largest element of each window of an image."""

    dims, function = 2, staticmethod(F.max_pool2d)


class MaxPool3d(_MaxPool):
    """The largest element of each window of a volume."""

    dims, function = 3, staticmethod(F.max_pool3d)


class _MaxUnpool(_Pool):
    """What a pool took, back at its position."""

    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0) -> None:
        super().__init__()
        name, n = type(self).__name__, self.dims
        self.kernel_size = per_dim(name, "kernel_size", kernel_size, n)
        self.stride = self.kernel_size if stride is None else per_dim(name, "stride", stride, n)
        self.padding = per_dim(name, "padding", padding, n)

    def forward(self, input: Tensor, indices: Tensor, output_size: Any = None) -> Tensor:
        made: Tensor = type(self).function(
            input, indices, self.kernel_size, self.stride, self.padding, output_size
        )  # fmt: skip
        return made

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class MaxUnpool1d(_MaxUnpool):
    """What MaxPool1d took, back at its position; zeros elsewhere."""

    dims, function = 1, staticmethod(F.max_unpool1d)


class MaxUnpool2d(_MaxUnpool):
    """What MaxPool2d took, back at its position; zeros elsewhere."""

    dims, function = 2, staticmethod(F.max_unpool2d)


class MaxUnpool3d(_MaxUnpool):
    """What MaxPool3d took, back at its position; zeros elsewhere."""

    dims, function = 3, staticmethod(F.max_unpool3d)


class _FractionalMaxPool(_Pool):
    """The largest element of windows that begin at random."""

    def __init__(
        self, kernel_size: Any, output_size: Any = None, output_ratio: Any = None, return_indices: bool = False,
        _random_samples: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        name, n = type(self).__name__, self.dims
        if (output_size is None) == (output_ratio is None):
            raise ArgumentError(f"{name}: give output_size or output_ratio, one of them")
        self.kernel_size = per_dim(name, "kernel_size", kernel_size, n)
        self.output_size = None if output_size is None else per_dim(name, "output_size", output_size, n)
        self.output_ratio = (output_ratio,) * n if isinstance(output_ratio, float) else output_ratio
        self.return_indices, self._random_samples = return_indices, _random_samples

    def forward(self, input: Tensor) -> Any:
        return type(self).function(
            input, self.kernel_size, self.output_size, self.output_ratio, self.return_indices, self._random_samples
        )


class FractionalMaxPool2d(_FractionalMaxPool):
    """The largest element of windows of an image that begin at random."""

    dims, function = 2, staticmethod(F.fractional_max_pool2d)


class FractionalMaxPool3d(_FractionalMaxPool):
    """The largest element of windows of a volume that begin at random."""

    dims, function = 3, staticmethod(F.fractional_max_pool3d)


# --- means and norms ---------------------------------------------------------------------------------


class AvgPool1d(_Pool):
    """The mean of each window of a sequence."""

    def __init__(
        self, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.kernel_size = per_dim("AvgPool1d", "kernel_size", kernel_size, 1)
        self.stride = self.kernel_size if stride is None else per_dim("AvgPool1d", "stride", stride, 1)
        self.padding = per_dim("AvgPool1d", "padding", padding, 1)
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad

    def forward(self, input: Tensor) -> Tensor:
        return F.avg_pool1d(
            input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad
        )  # fmt: skip

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class _AvgPool(_Pool):
    """The mean of each window, or its sum by a divisor."""

    def __init__(
        self, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.kernel_size, self.stride = kernel_size, kernel_size if stride is None else stride
        self.padding, self.ceil_mode = padding, ceil_mode
        self.count_include_pad, self.divisor_override = count_include_pad, divisor_override

    def forward(self, input: Tensor) -> Tensor:
        made: Tensor = type(self).function(
            input, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad,
            self.divisor_override,
        )  # fmt: skip
        return made

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool2d(_AvgPool):
    """The mean of each window of an image."""

    dims, function = 2, staticmethod(F.avg_pool2d)


class AvgPool3d(_AvgPool):
    """The mean of each window of a volume."""

    dims, function = 3, staticmethod(F.avg_pool3d)


class _LPPool(_Pool):
    """The p-norm of each window."""

    def __init__(self, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False) -> None:
        super().__init__()
        self.norm_type, self.kernel_size, self.stride, self.ceil_mode = norm_type, kernel_size, stride, ceil_mode

    def forward(self, input: Tensor) -> Tensor:
        made: Tensor = type(self).function(
            input, float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode
        )  # fmt: skip
        return made

    def extra_repr(self) -> str:
        return (
            f"norm_type={self.norm_type}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"ceil_mode={self.ceil_mode}"
        )


class LPPool1d(_LPPool):
    """The p-norm of each window of a sequence."""

    dims, function = 1, staticmethod(F.lp_pool1d)


class LPPool2d(_LPPool):
    """The p-norm of each window of an image."""

    dims, function = 2, staticmethod(F.lp_pool2d)


class LPPool3d(_LPPool):
    """The p-norm of each window of a volume."""

    dims, function = 3, staticmethod(F.lp_pool3d)


# --- shares of the input -----------------------------------------------------------------------------


class _AdaptiveAvgPool(_Pool):
    """The mean of each of output_size equal shares."""

    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, input: Tensor) -> Any:
        return type(self).function(input, self.output_size)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveAvgPool1d(_AdaptiveAvgPool):
    """The mean of each of output_size equal shares of a sequence."""

    dims, function = 1, staticmethod(F.adaptive_avg_pool1d)


class AdaptiveAvgPool2d(_AdaptiveAvgPool):
    """The mean of each of output_size equal shares of an image."""

    dims, function = 2, staticmethod(F.adaptive_avg_pool2d)


class AdaptiveAvgPool3d(_AdaptiveAvgPool):
    """The mean of each of output_size equal shares of a volume."""

    dims, function = 3, staticmethod(F.adaptive_avg_pool3d)


class _AdaptiveMaxPool(_AdaptiveAvgPool):
    """The largest element of each of output_size equal shares."""

    def __init__(self, output_size: Any, return_indices: bool = False) -> None:
        super().__init__(output_size)
        self.return_indices = return_indices

    def forward(self, input: Tensor) -> Any:
        return type(self).function(input, self.output_size, self.return_indices)


class AdaptiveMaxPool1d(_AdaptiveMaxPool):
    """The largest element of each of output_size equal shares of a sequence."""

    dims, function = 1, staticmethod(F.adaptive_max_pool1d)


class AdaptiveMaxPool2d(_AdaptiveMaxPool):
    """The largest element of each of output_size equal shares of an image."""

    dims, function = 2, staticmethod(F.adaptive_max_pool2d)


class AdaptiveMaxPool3d(_AdaptiveMaxPool):
    """The largest element of each of output_size equal shares of a volume."""

    dims, function = 3, staticmethod(F.adaptive_max_pool3d)
