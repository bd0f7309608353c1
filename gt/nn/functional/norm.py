"""Normalization: over a batch, a layer, an instance, a group of channels; and by the norm of vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gt.client.compat.autocast import autocasts
from gt.client.functions.linalg.norms import norm as p_norm
from gt.client.grad.modes import set_grad
from gt.client.programs import kinds
from gt.client.record.recorder import apply
from gt.client.tensor import Tensor
from gt.client.views import aliases as views
from gt.errors import ArgumentError, DTypeError, ShapeError
from gt.ops import ops
from gt.ops.record import Autocast

__all__ = ["batch_norm", "group_norm", "instance_norm", "layer_norm", "local_response_norm", "normalize", "rms_norm"]

_EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def _affine(weight: Any, bias: Any) -> tuple[Any, ...]:
    """The operands of an op that takes a bias only together with a weight."""
    return () if weight is None else (weight,) if bias is None else (weight, bias)


def _last_dims(op: str, input: Tensor, normalized_shape: Any) -> int:
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if not shape:
        raise ArgumentError(f"{op}: normalized_shape must have at least one size, got ()")
    if tuple(input.shape[-len(shape) :]) != shape:
        raise ShapeError(f"{op}: expected an input whose last sizes are {shape}, got shape {tuple(input.shape)}")
    return len(shape)


def layer_norm(
    input: Tensor, normalized_shape: int | Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor:
    """(x - mean) / sqrt(var + eps) * weight + bias, with the mean and variance over the last dimensions."""
    n = _last_dims("layer_norm", input, normalized_shape)
    y: Tensor = apply(kinds.layer_norm[n, eps], (input, *_affine(weight, bias)))[0]
    return y if bias is None or weight is not None else y + bias


def rms_norm(
    input: Tensor, normalized_shape: int | Sequence[int], weight: Any = None, eps: float | None = None
) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight, with the mean over the last dimensions."""
    n = _last_dims("rms_norm", input, normalized_shape)
    if eps is None:
        if not input.dtype.is_floating_point:
            raise DTypeError(
                f"rms_norm: expected a floating-point dtype, got {input.dtype.name}; cast first, as in x.float()"
            )
        eps = _EPS[input.dtype.name]
    return apply(kinds.rms_norm[n, eps], (input, *_affine(weight, None)))[0]


def _per_channel(x: Tensor, bias: Any) -> Any:
    return bias.reshape(-1, *(1,) * (x.ndim - 2))


def group_norm(input: Tensor, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
    """(x - mean) / sqrt(var + eps) * weight + bias, with the mean and variance of each group of channels."""
    y: Tensor = apply(kinds.group_norm[num_groups, eps], (input, *_affine(weight, bias)))[0]
    return y if bias is None or weight is not None else y + _per_channel(y, bias)


def batch_norm(
    input: Tensor, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None, training: bool = False,
    momentum: Any = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """(x - mean) / sqrt(var + eps) * weight + bias, with the mean and variance of each channel. In training these are
    those of the batch, and the running statistics move towards them by `momentum`, a number or a scalar tensor."""
    affine = _affine(weight, bias)
    if (running_mean is None) != (running_var is None):
        raise ArgumentError("batch_norm: expected both running_mean and running_var, or neither")
    if not input.numel():  # the running statistics do not change
        y = input * 1.0 if weight is None else input * weight[0]
        return y if bias is None else y + bias[0]
    if not training:
        if running_mean is None:
            raise ArgumentError("batch_norm: running_mean and running_var are required if training=False")
        y = ops.batch_norm_eval(input, running_mean, running_var, *affine, eps=eps)
    elif running_mean is None:
        y = apply(kinds.batch_norm[False, eps], (input, *affine))[0]
    else:
        if momentum is None:
            raise ArgumentError(
                "batch_norm: momentum must be a number, got None; for a cumulative average pass 1 / number of batches"
            )
        step = momentum if isinstance(momentum, Tensor) else float(momentum)
        y, _, _, mean, var = apply(kinds.batch_norm[True, eps], (input, running_mean, running_var, step, *affine))
        with set_grad(False):  # buffers have no history
            views.write(running_mean, mean)
            views.write(running_var, var)
    return y if bias is None or weight is not None else y + _per_channel(y, bias)


@autocasts(Autocast(cuda="off"))
def instance_norm(
    input: Tensor, running_mean: Any = None, running_var: Any = None, weight: Any = None, bias: Any = None,
    use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """(x - mean) / sqrt(var + eps) * weight + bias, with the mean and variance of each channel of each sample."""
    if input.ndim < 2:
        raise ShapeError(f"instance_norm: expected an input (N, C, ...), got shape {tuple(input.shape)}")
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    n, c = input.shape[:2]
    if input.numel() and input.numel() == n * c:
        raise ShapeError(f"instance_norm: expected more than one value per channel, got shape {tuple(input.shape)}")
    if running_mean is None and running_var is None:
        return group_norm(input, c, weight, bias, eps)
    if running_mean is None or running_var is None:
        raise ArgumentError("instance_norm: expected both running_mean and running_var, or neither")
    # The batch norm of one sample that has the channels of all samples.
    flat = input.reshape(1, n * c, *input.shape[2:])
    means, variances = (r.detach().repeat(n) for r in (running_mean, running_var))
    y = batch_norm(flat, means, variances, None, None, True, momentum, eps).reshape(input.shape)
    with set_grad(False):
        for running, new in ((running_mean, means), (running_var, variances)):
            running.copy_(new.reshape(n, c).mean(0))
    y = y if weight is None else y * _per_channel(y, weight)
    return y if bias is None else y + _per_channel(y, bias)


def local_response_norm(input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Tensor:
    """x / (k + alpha / size * s)^beta, where s is the sum of squares over `size` neighboring channels."""
    if input.ndim < 3:
        raise ShapeError(f"local_response_norm: expected an input (N, C, ...), got shape {tuple(input.shape)}")
    if not input.numel():
        return input
    square = input * input
    before, c = size // 2, input.shape[1]
    total = square
    for shift in range(-before, size - before):
        if shift == 0 or abs(shift) >= c:
            continue
        # Add channel i + shift to channel i; channels outside count as zero.
        part = square.narrow(1, max(shift, 0), c - abs(shift))
        blank = square.narrow(1, 0, abs(shift)) * 0.0
        total = total + ops.cat(*([part, blank] if shift > 0 else [blank, part]), dim=1)
    return input / (total * (alpha / size) + k) ** beta


def normalize(input: Tensor, p: float = 2.0, dim: Any = 1, eps: float = 1e-12) -> Tensor:
    """input / max(norm(input, p, dim), eps)."""
    return input / p_norm(input, p, dim, True).clamp(min=eps)
