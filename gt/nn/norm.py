"""Normalizing layers: of a batch, a layer, a group of channels, a sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gt.client.functions import creation
from gt.client.tensor import Parameter, Tensor
from gt.errors import ArgumentError, ShapeError
from gt.nn import functional as F
from gt.nn import init
from gt.nn.module import Module

__all__ = [
    "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "GroupNorm", "InstanceNorm1d", "InstanceNorm2d",
    "InstanceNorm3d", "LayerNorm", "LocalResponseNorm", "RMSNorm", "SyncBatchNorm",
]  # fmt: skip


def _affine(module: Module, shape: Any, weight: bool, bias: bool, dtype: Any) -> None:
    """A weight and a bias, or one of them, or neither."""
    module.register_parameter("weight", Parameter(creation.ones(shape, dtype=dtype)) if weight else None)
    module.register_parameter("bias", Parameter(creation.zeros(shape, dtype=dtype)) if bias else None)


def _reset(module: Module) -> None:
    if module.weight is not None:
        init.ones_(module.weight)
    if module._parameters.get("bias") is not None:
        init.zeros_(module.bias)


# --- by channel, with running values -----------------------------------------------------------------


class _Running(Module):
    """Channels normalized; running values of mean and variance for when it does not train."""

    ndims: ClassVar[tuple[int, ...]]  #: how many dimensions an input may have
    num_batches_tracked: Any

    def _make(
        self, num_features: int, eps: float, momentum: float | None, affine: bool, track_running_stats: bool,
        bias: bool, dtype: Any,
    ) -> None:  # fmt: skip
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        _affine(self, num_features, affine, affine and bias, dtype)
        track = track_running_stats
        self.register_buffer("running_mean", creation.zeros(num_features, dtype=dtype) if track else None)
        self.register_buffer("running_var", creation.ones(num_features, dtype=dtype) if track else None)
        self.register_buffer("num_batches_tracked", creation.zeros((), dtype="int64") if track else None)

    def reset_running_stats(self) -> None:
        """Forget what was seen."""
        if self.track_running_stats:
            self.running_mean.zero_()
            self.running_var.fill_(1)
            self.num_batches_tracked.zero_()

    def reset_parameters(self) -> None:
        """The first values again."""
        self.reset_running_stats()
        _reset(self)

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim not in self.ndims:
            wanted = " or ".join(map(str, self.ndims))
            raise ShapeError(
                f"{type(self).__name__}: takes inputs of {wanted} dimensions, not of shape {tuple(input.shape)}"
            )

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        # States from before torch counted batches have no count.
        if self.track_running_stats and self.num_batches_tracked is not None:
            state_dict.setdefault(prefix + "num_batches_tracked", self.num_batches_tracked)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"bias={self.bias is not None}, track_running_stats={self.track_running_stats}"
        )


class _BatchNorm(_Running):
    """Mean zero and variance one in each channel of a batch."""

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
        track_running_stats: bool = True, device: Any = None, dtype: Any = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self._make(num_features, eps, momentum, affine, track_running_stats, bias, dtype)

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        step: Any = self.momentum
        mean, var = self.running_mean, self.running_var
        if self.training:
            if not self.track_running_stats:
                mean = var = None
            elif self.num_batches_tracked is not None:
                self.num_batches_tracked.add_(1)
                if step is None:  # a plain average of all batches
                    step = 1.0 / self.num_batches_tracked.to(input.dtype)
        training = self.training or (mean is None and var is None)
        return F.batch_norm(
            input, mean, var, self.weight, self.bias, training, 0.0 if step is None else step, self.eps
        )  # fmt: skip


class BatchNorm1d(_BatchNorm):
    """Mean zero and variance one in each channel of (N, C) or (N, C, L)."""

    ndims = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Mean zero and variance one in each channel of a batch of images."""

    ndims = (4,)


class BatchNorm3d(_BatchNorm):
    """Mean zero and variance one in each channel of a batch of volumes."""

    ndims = (5,)


class SyncBatchNorm(_BatchNorm):
    """BatchNorm of any dimensions: a batch is one tensor, however many workers hold it."""

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
        track_running_stats: bool = True, process_group: Any = None, device: Any = None, dtype: Any = None, *,
        bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim < 2:
            raise ShapeError(f"SyncBatchNorm: takes (N, C, ...), not the shape {tuple(input.shape)}")

    @classmethod
    def convert_sync_batchnorm(cls, module: Module, process_group: Any = None) -> Module:
        """The module itself: its batch norms are what they should be."""
        return module


class _InstanceNorm(_Running):
    """Mean zero and variance one in each channel of each sample."""

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = False,
        track_running_stats: bool = False, device: Any = None, dtype: Any = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self._make(num_features, eps, momentum, affine, track_running_stats, bias, dtype)

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        alone = input.ndim == self.ndims[0]
        channels = input.shape[0 if alone else 1]
        if self.affine and channels != self.num_features:
            raise ShapeError(f"{type(self).__name__}: {channels} channels where {self.num_features} are expected")
        y = F.instance_norm(
            input.unsqueeze(0) if alone else input, self.running_mean, self.running_var, self.weight, self.bias,
            self.training or not self.track_running_stats, self.momentum or 0.0, self.eps,
        )  # fmt: skip
        return y.squeeze(0) if alone else y


class InstanceNorm1d(_InstanceNorm):
    """Mean zero and variance one in each channel of each sequence."""

    ndims = (2, 3)


class InstanceNorm2d(_InstanceNorm):
    """Mean zero and variance one in each channel of each image."""

    ndims = (3, 4)


class InstanceNorm3d(_InstanceNorm):
    """Mean zero and variance one in each channel of each volume."""

    ndims = (4, 5)


# --- by the last dimensions, by groups ---------------------------------------------------------------


def _sizes(shape: int | Sequence[int]) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(shape)


class LayerNorm(Module):
    """Mean zero and variance one over the last dimensions, then scaled and shifted."""

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float = 1e-5, elementwise_affine: bool = True,
        bias: bool = True, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.normalized_shape, self.eps, self.elementwise_affine = _sizes(normalized_shape), eps, elementwise_affine
        _affine(self, self.normalized_shape, elementwise_affine, elementwise_affine and bias, dtype)

    def reset_parameters(self) -> None:
        """The first values again."""
        _reset(self)

    def forward(self, input: Tensor) -> Tensor:
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}, "
            f"bias={self.bias is not None}"
        )


class RMSNorm(Module):
    """Mean square one over the last dimensions, then scaled."""

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float | None = None, elementwise_affine: bool = True,
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.normalized_shape, self.eps, self.elementwise_affine = _sizes(normalized_shape), eps, elementwise_affine
        weight = Parameter(creation.ones(self.normalized_shape, dtype=dtype)) if elementwise_affine else None
        self.register_parameter("weight", weight)

    def reset_parameters(self) -> None:
        """The first values again."""
        _reset(self)

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class GroupNorm(Module):
    """Mean zero and variance one in each group of channels, then scaled and shifted."""

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, device: Any = None,
        dtype: Any = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        if num_channels % num_groups:
            raise ArgumentError(f"GroupNorm: {num_channels} channels cannot be in {num_groups} equal groups")
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        _affine(self, num_channels, affine, affine and bias, dtype)

    def reset_parameters(self) -> None:
        """The first values again."""
        _reset(self)

    def forward(self, input: Tensor) -> Tensor:
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, "
            f"bias={self.bias is not None}"
        )


class LocalResponseNorm(Module):
    """Each element over a power of the mean square of its neighbours in `size` channels."""

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, input: Tensor) -> Tensor:
        return F.local_response_norm(input, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"
