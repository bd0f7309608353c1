"""Convolutions and transposed convolutions as modules."""

from __future__ import annotations

from typing import Any

from gt.client.compat.checks import one_of
from gt.client.functions import creation
from gt.client.tensor import Parameter, Tensor
from gt.errors import ArgumentError, ShapeError
from gt.nn import functional as F
from gt.nn import init
from gt.nn.functional.spatial import Sizes, per_dim
from gt.nn.settings import Functional

__all__ = ["Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"]


class _Conv(Functional):
    """The settings and parameters of all convolutions."""

    transposed = False

    def _make(
        self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any, padding: Any, dilation: Any,
        output_padding: Any, groups: int, bias: bool, padding_mode: str, dtype: Any,
    ) -> None:  # fmt: skip
        name, n = type(self).__name__, self._dims
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = per_dim(name, "kernel_size", kernel_size, n)
        self.stride, self.dilation = per_dim(name, "stride", stride, n), per_dim(name, "dilation", dilation, n)
        self.padding: Any = padding if isinstance(padding, str) else per_dim(name, "padding", padding, n)
        self.output_padding = per_dim(name, "output_padding", output_padding, n)
        self.padding_mode = padding_mode
        if groups <= 0 or in_channels % groups or out_channels % groups:
            raise ArgumentError(
                f"{name}: {in_channels} and {out_channels} channels must be multiples of {groups} groups"
            )
        if isinstance(padding, str):
            if padding not in ("same", "valid"):
                raise ArgumentError(f"{name}: padding must be ints, 'same' or 'valid', got {padding!r}")
            if padding == "same" and any(s != 1 for s in self.stride):
                raise ArgumentError(f"{name}: padding='same' requires stride 1, got {self.stride}")
        one_of(name, "padding_mode", padding_mode, "zeros", "reflect", "replicate", "circular")
        first, second = (in_channels, out_channels) if self.transposed else (out_channels, in_channels)
        self.weight = Parameter(creation.empty(first, second // groups, *self.kernel_size, dtype=dtype))
        self.register_parameter("bias", Parameter(creation.empty(out_channels, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize the parameters."""
        init.linear_(self.weight, self.bias)

    def extra_repr(self) -> str:
        n = self._dims
        parts = [
            str(self.in_channels), str(self.out_channels), f"kernel_size={self.kernel_size}", f"stride={self.stride}"
        ]  # fmt: skip
        # As in torch, a named padding has no quotes.
        parts += [f"padding={self.padding}"] if self.padding != (0,) * n else []
        parts += [f"dilation={self.dilation}"] if self.dilation != (1,) * n else []
        parts += [f"output_padding={self.output_padding}"] if self.output_padding != (0,) * n else []
        parts += [f"groups={self.groups}"] if self.groups != 1 else []
        parts += ["bias=False"] if self.bias is None else []
        parts += [f"padding_mode={self.padding_mode}"] if self.padding_mode != "zeros" else []
        return ", ".join(parts)


class _Forward(_Conv):
    """A convolution."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any = 1, padding: Any = 0,
        dilation: Any = 1, groups: int = 1, bias: bool = True, padding_mode: str = "zeros", device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self._make(
            in_channels, out_channels, kernel_size, stride, padding, dilation, 0, groups, bias, padding_mode, dtype
        )

    def forward(self, input: Tensor) -> Tensor:
        return self._conv_forward(input, self.weight, self.bias)

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        padding = self.padding
        if self.padding_mode != "zeros":
            input, padding = F.pad(input, self._around(), self.padding_mode), 0
        return self._function(input, weight, bias, self.stride, padding, self.dilation, self.groups)

    def _around(self) -> list[int]:
        """The padding before and after each dimension, the last dimension first."""
        if self.padding == "valid":
            return [0, 0] * self._dims
        if self.padding == "same":
            totals = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size, strict=True)]
            return [p for t in reversed(totals) for p in (t // 2, t - t // 2)]
        return [p for p in reversed(self.padding) for _ in range(2)]


class Conv1d(_Forward, function=F.conv1d, dims=1):
    """A convolution of sequences (N, C, L)."""


class Conv2d(_Forward, function=F.conv2d, dims=2):
    """A convolution of images (N, C, H, W)."""


class Conv3d(_Forward, function=F.conv3d, dims=3):
    """A convolution of volumes (N, C, D, H, W)."""


class _Transpose(_Conv):
    """The transpose of a convolution."""

    transposed = True

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any = 1, padding: Any = 0,
        output_padding: Any = 0, groups: int = 1, bias: bool = True, dilation: Any = 1, padding_mode: str = "zeros",
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if padding_mode != "zeros":
            raise ArgumentError(f"{type(self).__name__}: padding_mode must be 'zeros', got {padding_mode!r}")
        self._make(
            in_channels, out_channels, kernel_size, stride, padding, dilation, output_padding, groups, bias,
            padding_mode, dtype,
        )  # fmt: skip

    def forward(self, input: Tensor, output_size: Any = None) -> Tensor:
        extra = self.output_padding if output_size is None else self._extra(input, output_size)
        return self._function(
            input, self.weight, self.bias, self.stride, self.padding, extra, self.groups, self.dilation
        )

    def _extra(self, input: Tensor, output_size: Any) -> Sizes:
        """The output_padding that gives output_size."""
        n, wanted = self._dims, tuple(int(s) for s in output_size)
        if len(wanted) == input.ndim:
            wanted = wanted[-n:]
        rows = zip(input.shape[-n:], self.stride, self.padding, self.dilation, self.kernel_size, strict=True)
        least = [(m - 1) * s - 2 * p + d * (k - 1) + 1 for m, s, p, d, k in rows]
        if len(wanted) != n or any(
            not low <= w < low + s for w, low, s in zip(wanted, least, self.stride, strict=True)
        ):
            most = tuple(low + s - 1 for low, s in zip(least, self.stride, strict=True))
            name, given = type(self).__name__, tuple(output_size)
            raise ShapeError(f"{name}: output_size must be between {tuple(least)} and {most}, got {given}")
        return tuple(w - low for w, low in zip(wanted, least, strict=True))


class ConvTranspose1d(_Transpose, function=F.conv_transpose1d, dims=1):
    """The transpose of Conv1d."""


class ConvTranspose2d(_Transpose, function=F.conv_transpose2d, dims=2):
    """The transpose of Conv2d."""


class ConvTranspose3d(_Transpose, function=F.conv_transpose3d, dims=3):
    """The transpose of Conv3d."""
