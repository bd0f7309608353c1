"""Layers that find the size of their input at the first call, and are ordinary ones from then on.

Until then their parameters have no elements. Make optimizers after the first call, as in torch.
"""

from __future__ import annotations

from typing import Any, ClassVar

from gt.client.functions import creation
from gt.client.grad.modes import set_grad
from gt.client.tensor import Tensor
from gt.errors import ArgumentError, ShapeError
from gt.nn.conv import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from gt.nn.layers import Linear
from gt.nn.module import Module
from gt.nn.norm import BatchNorm1d, BatchNorm2d, BatchNorm3d, InstanceNorm1d, InstanceNorm2d, InstanceNorm3d

__all__ = [
    "LazyBatchNorm1d", "LazyBatchNorm2d", "LazyBatchNorm3d", "LazyConv1d", "LazyConv2d", "LazyConv3d",
    "LazyConvTranspose1d", "LazyConvTranspose2d", "LazyConvTranspose3d", "LazyInstanceNorm1d", "LazyInstanceNorm2d",
    "LazyInstanceNorm3d", "LazyLinear",
]  # fmt: skip


class _Lazy(Module):
    """What they have in common: `_size(input)` says how large the input is, `_grow(n)` makes room for it."""

    cls_to_become: ClassVar[type[Module]]
    _size: Any
    _grow: Any

    def has_uninitialized_params(self) -> bool:
        """Whether the size of the input is not known yet."""
        return any(not t.numel() for t in (*self.parameters(), *self.buffers()))

    def initialize_parameters(self, input: Tensor) -> None:
        """Take the size of this input."""
        if self.has_uninitialized_params():
            self._become(self._size(input))

    def _become(self, n: int) -> None:
        with set_grad(False):
            self._grow(n)
        self.reset_parameters()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.initialize_parameters(args[0])
        self.__class__ = self.cls_to_become  # type: ignore[assignment]  # as torch does: it is that from now on
        return self(*args, **kwargs)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        found = next((state_dict[prefix + k] for k in ("weight", "running_mean") if prefix + k in state_dict), None)
        if found is not None and self.has_uninitialized_params():
            self._become(self._size_of_weight(tuple(found.shape)))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _size_of_weight(self, shape: tuple[int, ...]) -> int:
        """The size of inputs, of the shape of a weight."""
        return shape[0]

    def _resize(self, name: str, *shape: int) -> None:
        t = getattr(self, name)
        if t is not None:
            t.data = creation.empty(*shape, dtype=t.dtype)


class LazyLinear(_Lazy, Linear):
    """Linear, of as many features as the first input has."""

    cls_to_become = Linear

    def __init__(self, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__(0, out_features, bias, dtype=dtype)

    def _size(self, input: Tensor) -> int:
        return input.shape[-1]

    def _size_of_weight(self, shape: tuple[int, ...]) -> int:
        return shape[1]

    def _grow(self, n: int) -> None:
        self.in_features = n
        self._resize("weight", self.out_features, n)


# --- convolutions ------------------------------------------------------------------------------------


class _LazyConv(_Lazy):
    """Of as many channels as the first input has."""

    dims: int
    transposed: bool
    groups: int
    out_channels: int
    kernel_size: tuple[int, ...]

    def _size(self, input: Tensor) -> int:
        if input.ndim not in (self.dims + 1, self.dims + 2):
            raise ShapeError(
                f"{type(self).__name__}: the input has {self.dims + 1} dimensions, or {self.dims + 2} with a batch in "
                f"front; not the shape {tuple(input.shape)}"
            )
        return input.shape[-self.dims - 1]

    def _size_of_weight(self, shape: tuple[int, ...]) -> int:
        return shape[0] if self.transposed else shape[1] * self.groups

    def _grow(self, n: int) -> None:
        if n % self.groups:
            raise ArgumentError(f"{type(self).__name__}: {n} channels cannot be in {self.groups} equal groups")
        self.in_channels = n
        sizes = (n, self.out_channels // self.groups) if self.transposed else (self.out_channels, n // self.groups)
        self._resize("weight", *sizes, *self.kernel_size)


class _LazyForward(_LazyConv):
    def __init__(
        self, out_channels: int, kernel_size: Any, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
        groups: int = 1, bias: bool = True, padding_mode: str = "zeros", device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        made: Any = super().__init__
        made(0, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, dtype=dtype)


class _LazyTranspose(_LazyConv):
    def __init__(
        self, out_channels: int, kernel_size: Any, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
        groups: int = 1, bias: bool = True, dilation: Any = 1, padding_mode: str = "zeros", device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        made: Any = super().__init__
        made(
            0, out_channels, kernel_size, stride, padding, output_padding, groups, bias, dilation, padding_mode,
            dtype=dtype,
        )  # fmt: skip


class LazyConv1d(_LazyForward, Conv1d):
    """Conv1d, of as many channels as the first input has."""

    cls_to_become = Conv1d


class LazyConv2d(_LazyForward, Conv2d):
    """Conv2d, of as many channels as the first input has."""

    cls_to_become = Conv2d


class LazyConv3d(_LazyForward, Conv3d):
    """Conv3d, of as many channels as the first input has."""

    cls_to_become = Conv3d


class LazyConvTranspose1d(_LazyTranspose, ConvTranspose1d):
    """ConvTranspose1d, of as many channels as the first input has."""

    cls_to_become = ConvTranspose1d


class LazyConvTranspose2d(_LazyTranspose, ConvTranspose2d):
    """ConvTranspose2d, of as many channels as the first input has."""

    cls_to_become = ConvTranspose2d


class LazyConvTranspose3d(_LazyTranspose, ConvTranspose3d):
    """ConvTranspose3d, of as many channels as the first input has."""

    cls_to_become = ConvTranspose3d


# --- norms -------------------------------------------------------------------------------------------


class _LazyNorm(_Lazy):
    """Of as many channels as the first input has."""

    def __init__(
        self, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True, track_running_stats: bool = True,
        device: Any = None, dtype: Any = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        made: Any = super().__init__
        made(0, eps, momentum, affine, track_running_stats, dtype=dtype, bias=bias)

    def _size(self, input: Tensor) -> int:
        self._check_input_dim(input)
        kind: Any = self.cls_to_become
        alone = issubclass(kind, _INSTANCE) and input.ndim == kind.ndims[0]
        return input.shape[0 if alone else 1]

    def _grow(self, n: int) -> None:
        self.num_features = n
        for name in ("weight", "bias", "running_mean", "running_var"):
            self._resize(name, n)


_INSTANCE = (InstanceNorm1d, InstanceNorm2d, InstanceNorm3d)


class LazyBatchNorm1d(_LazyNorm, BatchNorm1d):
    """BatchNorm1d, of as many channels as the first input has."""

    cls_to_become = BatchNorm1d


class LazyBatchNorm2d(_LazyNorm, BatchNorm2d):
    """BatchNorm2d, of as many channels as the first input has."""

    cls_to_become = BatchNorm2d


class LazyBatchNorm3d(_LazyNorm, BatchNorm3d):
    """BatchNorm3d, of as many channels as the first input has."""

    cls_to_become = BatchNorm3d


class LazyInstanceNorm1d(_LazyNorm, InstanceNorm1d):
    """InstanceNorm1d, of as many channels as the first input has."""

    cls_to_become = InstanceNorm1d


class LazyInstanceNorm2d(_LazyNorm, InstanceNorm2d):
    """InstanceNorm2d, of as many channels as the first input has."""

    cls_to_become = InstanceNorm2d


class LazyInstanceNorm3d(_LazyNorm, InstanceNorm3d):
    """InstanceNorm3d, of as many channels as the first input has."""

    cls_to_become = InstanceNorm3d
