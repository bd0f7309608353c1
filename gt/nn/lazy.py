"""Layers that take the size of their input from the first call, and are ordinary layers from then on.

Until then their parameters have no elements. Create optimizers after the first call, as in torch.
"""

from __future__ import annotations

from typing import Any, ClassVar

from gt.client.functions import creation
from gt.client.grad.modes import set_grad
from gt.client.tensor import Tensor
from gt.errors import ArgumentError, ShapeError
from gt.nn import conv, norm
from gt.nn.layers import Linear
from gt.nn.module import Module

__all__ = [
    "LazyBatchNorm1d", "LazyBatchNorm2d", "LazyBatchNorm3d", "LazyConv1d", "LazyConv2d", "LazyConv3d",
    "LazyConvTranspose1d", "LazyConvTranspose2d", "LazyConvTranspose3d", "LazyInstanceNorm1d", "LazyInstanceNorm2d",
    "LazyInstanceNorm3d", "LazyLinear",
]  # fmt: skip


class _Lazy(Module):
    """The base of lazy layers: `_size(input)` is the size of the input, `_grow(n)` allocates parameters for it."""

    cls_to_become: ClassVar[type[Module]]
    _size: Any
    _grow: Any

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if len(cls.__bases__) == 2 and not hasattr(cls, "cls_to_become"):
            cls.cls_to_become = cls.__bases__[1]  # class LazyLinear(_Lazy, Linear) becomes a Linear

    def has_uninitialized_params(self) -> bool:
        """Whether the size of the input is still unknown."""
        return any(not t.numel() for t in (*self.parameters(), *self.buffers()))

    def initialize_parameters(self, input: Tensor) -> None:
        """Allocate and initialize the parameters for this input."""
        if self.has_uninitialized_params():
            self._become(self._size(input))

    def _become(self, n: int) -> None:
        with set_grad(False):
            self._grow(n)
        self.reset_parameters()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.initialize_parameters(args[0])
        self.__class__ = self.cls_to_become  # type: ignore[assignment]  # as torch does
        return self(*args, **kwargs)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        found = next((state_dict[prefix + k] for k in ("weight", "running_mean") if prefix + k in state_dict), None)
        if found is not None and self.has_uninitialized_params():
            self._become(self._size_of_weight(tuple(found.shape)))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _size_of_weight(self, shape: tuple[int, ...]) -> int:
        """The size of inputs, from the shape of a weight."""
        return shape[0]

    def _resize(self, name: str, *shape: int) -> None:
        t = getattr(self, name)
        if t is not None:
            t.data = creation.empty(*shape, dtype=t.dtype)


class LazyLinear(_Lazy, Linear):
    """Linear with the number of features of the first input."""

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
    """A convolution with the channels of the first input."""

    _dims: int
    transposed: bool
    groups: int
    out_channels: int
    kernel_size: tuple[int, ...]

    def _size(self, input: Tensor) -> int:
        if input.ndim not in (self._dims + 1, self._dims + 2):
            raise ShapeError(
                f"{type(self).__name__}: expected an input of {self._dims + 1} dimensions, or {self._dims + 2} with a "
                f"batch, got shape {tuple(input.shape)}"
            )
        return input.shape[-self._dims - 1]

    def _size_of_weight(self, shape: tuple[int, ...]) -> int:
        return shape[0] if self.transposed else shape[1] * self.groups

    def _grow(self, n: int) -> None:
        if n % self.groups:
            raise ArgumentError(f"{type(self).__name__}: channels must be a multiple of {self.groups} groups, got {n}")
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


class LazyConv1d(_LazyForward, conv.Conv1d):
    """Conv1d with the number of channels of the first input."""


class LazyConv2d(_LazyForward, conv.Conv2d):
    """Conv2d with the number of channels of the first input."""


class LazyConv3d(_LazyForward, conv.Conv3d):
    """Conv3d with the number of channels of the first input."""


class LazyConvTranspose1d(_LazyTranspose, conv.ConvTranspose1d):
    """ConvTranspose1d with the number of channels of the first input."""


class LazyConvTranspose2d(_LazyTranspose, conv.ConvTranspose2d):
    """ConvTranspose2d with the number of channels of the first input."""


class LazyConvTranspose3d(_LazyTranspose, conv.ConvTranspose3d):
    """ConvTranspose3d with the number of channels of the first input."""


# --- norms -------------------------------------------------------------------------------------------


class _LazyNorm(_Lazy):
    """A normalization with the channels of the first input."""

    _dims: int

    def __init__(
        self, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True, track_running_stats: bool = True,
        device: Any = None, dtype: Any = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        made: Any = super().__init__
        made(0, eps, momentum, affine, track_running_stats, dtype=dtype, bias=bias)

    def _size(self, input: Tensor) -> int:
        self._check_input_dim(input)
        alone = issubclass(self.cls_to_become, norm._InstanceNorm) and input.ndim == self._dims + 1
        return input.shape[0 if alone else 1]

    def _grow(self, n: int) -> None:
        self.num_features = n
        for name in ("weight", "bias", "running_mean", "running_var"):
            self._resize(name, n)


class LazyBatchNorm1d(_LazyNorm, norm.BatchNorm1d):
    """BatchNorm1d with the number of channels of the first input."""


class LazyBatchNorm2d(_LazyNorm, norm.BatchNorm2d):
    """BatchNorm2d with the number of channels of the first input."""


class LazyBatchNorm3d(_LazyNorm, norm.BatchNorm3d):
    """BatchNorm3d with the number of channels of the first input."""


class LazyInstanceNorm1d(_LazyNorm, norm.InstanceNorm1d):
    """InstanceNorm1d with the number of channels of the first input."""


class LazyInstanceNorm2d(_LazyNorm, norm.InstanceNorm2d):
    """InstanceNorm2d with the number of channels of the first input."""


class LazyInstanceNorm3d(_LazyNorm, norm.InstanceNorm3d):
    """InstanceNorm3d with the number of channels of the first input."""
