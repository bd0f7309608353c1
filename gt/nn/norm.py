"""Normalization layers: over a batch, an instance, a layer, a group of channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, InitVar
from typing import Any

from gt.client.functions import creation
from gt.client.tensor import Parameter, Tensor
from gt.errors import ArgumentError, ShapeError
from gt.nn import functional as F
from gt.nn import init
from gt.nn.settings import Functional, settings

__all__ = [
    "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "GroupNorm", "InstanceNorm1d", "InstanceNorm2d",
    "InstanceNorm3d", "LayerNorm", "LocalResponseNorm", "RMSNorm", "SyncBatchNorm",
]  # fmt: skip


class _Affine(Functional):
    """A normalization with an optional weight and bias."""

    def _add_parameters(self, shape: Any, dtype: Any, **present: bool) -> None:
        """Add weight and bias, or None where they are absent."""
        for name, there in present.items():
            made = creation.ones if name == "weight" else creation.zeros
            self.register_parameter(name, Parameter(made(shape, dtype=dtype)) if there else None)

    def reset_parameters(self) -> None:
        """Initialize the parameters."""
        for name, reset in (("weight", init.ones_), ("bias", init.zeros_)):
            if (parameter := self._parameters.get(name)) is not None:
                reset(parameter)


# --- per channel, with running statistics ------------------------------------------------------------


@settings
class _Running(_Affine):
    """Normalization of channels, with running statistics for evaluation."""

    _version = 2  # since then, `num_batches_tracked` is a part of the state

    num_features: int
    eps: float = 1e-5
    momentum: float | None = 0.1
    affine: bool = True
    track_running_stats: bool = True
    device: InitVar[Any] = None
    dtype: InitVar[Any] = None
    _: KW_ONLY
    bias: InitVar[bool] = True

    def __post_init__(self, device: Any, dtype: Any, bias: bool) -> None:
        super().__post_init__()
        n, track = self.num_features, self.track_running_stats
        self._add_parameters(n, dtype, weight=self.affine, bias=self.affine and bias)
        self.register_buffer("running_mean", creation.zeros(n, dtype=dtype) if track else None)
        self.register_buffer("running_var", creation.ones(n, dtype=dtype) if track else None)
        self.register_buffer("num_batches_tracked", creation.zeros((), dtype="int64") if track else None)

    def reset_running_stats(self) -> None:
        """Initialize the running statistics."""
        if self.track_running_stats:
            self.running_mean.zero_()
            self.running_var.fill_(1)
            self.num_batches_tracked.zero_()

    def reset_parameters(self) -> None:
        """Initialize the running statistics and the parameters."""
        self.reset_running_stats()
        super().reset_parameters()

    def _ndims(self) -> tuple[int, ...]:
        """The allowed numbers of dimensions of an input."""
        raise NotImplementedError

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim not in (wanted := self._ndims()):
            name, ndims = type(self).__name__, " or ".join(map(str, wanted))
            raise ShapeError(f"{name}: expected an input of {ndims} dimensions, got shape {tuple(input.shape)}")

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        # States saved by old versions of torch have no num_batches_tracked.
        if self.track_running_stats and self.num_batches_tracked is not None:
            state_dict.setdefault(prefix + "num_batches_tracked", self.num_batches_tracked)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"bias={self.bias is not None}, track_running_stats={self.track_running_stats}"
        )


class _BatchNorm(_Running):
    """Normalization of each channel over a batch."""

    def _ndims(self) -> tuple[int, ...]:
        return (2, 3) if self._dims == 1 else (self._dims + 2,)

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        step: Any = self.momentum
        mean, var = self.running_mean, self.running_var
        if self.training:
            if not self.track_running_stats:
                mean = var = None
            elif self.num_batches_tracked is not None:
                self.num_batches_tracked.add_(1)
                if step is None:  # the cumulative average of all batches
                    step = 1.0 / self.num_batches_tracked.to(input.dtype)
        training = self.training or (mean is None and var is None)
        return F.batch_norm(input, mean, var, self.weight, self.bias, training, 0.0 if step is None else step, self.eps)


class BatchNorm1d(_BatchNorm, dims=1):
    """Batch normalization of (N, C) or (N, C, L)."""


class BatchNorm2d(_BatchNorm, dims=2):
    """Batch normalization of images (N, C, H, W)."""


class BatchNorm3d(_BatchNorm, dims=3):
    """Batch normalization of volumes (N, C, D, H, W)."""


class SyncBatchNorm(_BatchNorm):
    """Batch normalization of (N, C, ...); a batch is one tensor, however many workers hold it."""

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
        track_running_stats: bool = True, process_group: Any = None, device: Any = None, dtype: Any = None, *,
        bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim < 2:
            raise ShapeError(f"SyncBatchNorm: expected an input (N, C, ...), got shape {tuple(input.shape)}")

    @classmethod
    def convert_sync_batchnorm(cls, module: Any, process_group: Any = None) -> Any:
        """Return the module itself: every batch norm of GT is synchronized."""
        return module


@settings
class _InstanceNorm(_Running):
    """Normalization of each channel of each sample."""

    affine: bool = False
    track_running_stats: bool = False

    def _ndims(self) -> tuple[int, ...]:
        return self._dims + 1, self._dims + 2

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        alone = input.ndim == self._dims + 1
        channels = input.shape[0 if alone else 1]
        if self.affine and channels != self.num_features:
            raise ShapeError(f"{type(self).__name__}: expected {self.num_features} channels, got {channels}")
        y = F.instance_norm(
            input.unsqueeze(0) if alone else input, self.running_mean, self.running_var, self.weight, self.bias,
            self.training or not self.track_running_stats, self.momentum or 0.0, self.eps,
        )  # fmt: skip
        return y.squeeze(0) if alone else y


class InstanceNorm1d(_InstanceNorm, dims=1):
    """Instance normalization of sequences (N, C, L) or (C, L)."""


class InstanceNorm2d(_InstanceNorm, dims=2):
    """Instance normalization of images (N, C, H, W) or (C, H, W)."""


class InstanceNorm3d(_InstanceNorm, dims=3):
    """Instance normalization of volumes (N, C, D, H, W) or (C, D, H, W)."""


# --- over the last dimensions, over groups -----------------------------------------------------------


def _sizes(shape: int | Sequence[int]) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(shape)


class LayerNorm(_Affine):
    """(x - mean) / sqrt(var + eps) * weight + bias, with the mean and variance over the last dimensions."""

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float = 1e-5, elementwise_affine: bool = True,
        bias: bool = True, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.normalized_shape, self.eps, self.elementwise_affine = _sizes(normalized_shape), eps, elementwise_affine
        affine = elementwise_affine
        self._add_parameters(self.normalized_shape, dtype, weight=affine, bias=affine and bias)

    def forward(self, input: Tensor) -> Tensor:
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}, "
            f"bias={self.bias is not None}"
        )


class RMSNorm(_Affine):
    """x / sqrt(mean(x^2) + eps) * weight, with the mean over the last dimensions."""

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float | None = None, elementwise_affine: bool = True,
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.normalized_shape, self.eps, self.elementwise_affine = _sizes(normalized_shape), eps, elementwise_affine
        self._add_parameters(self.normalized_shape, dtype, weight=elementwise_affine)

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class GroupNorm(_Affine):
    """(x - mean) / sqrt(var + eps) * weight + bias, with the mean and variance of each group of channels."""

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, device: Any = None,
        dtype: Any = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        if num_channels % num_groups:
            raise ArgumentError(f"GroupNorm: num_channels must be a multiple of {num_groups}, got {num_channels}")
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        self._add_parameters(num_channels, dtype, weight=affine, bias=affine and bias)

    def forward(self, input: Tensor) -> Tensor:
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, "
            f"bias={self.bias is not None}"
        )


@settings
class LocalResponseNorm(Functional, function=F.local_response_norm):
    """x / (k + alpha / size * s)^beta, where s is the sum of squares over `size` neighboring channels."""

    size: int
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 1.0

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"
