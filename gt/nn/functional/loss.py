"""Losses for regression, classification and distributions. Losses with a margin are in margin.py.

`size_average` and `reduce` are torch's old arguments for the reduction: reduce=False is 'none'; size_average=False is
'sum'.
"""

from __future__ import annotations

import math
from typing import Any

from gt.client.compat import checks
from gt.client.compat.autocast import autocasts
from gt.client.functions import elementwise as ew
from gt.client.functions.reductions import log_softmax
from gt.client.programs import kinds
from gt.client.record.recorder import apply
from gt.client.tensor import Tensor
from gt.errors import ArgumentError, ShapeError
from gt.nn.functional.linear import linear
from gt.ops import ops
from gt.ops.record import FLOAT32

__all__ = [
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "gaussian_nll_loss", "huber_loss",
    "kl_div", "l1_loss", "linear_cross_entropy", "mse_loss", "nll_loss", "poisson_nll_loss", "smooth_l1_loss",
]  # fmt: skip


def reduction_of(op: str, reduction: str, size_average: bool | None = None, reduce: bool | None = None) -> str:
    """The reduction, which may be given by the old arguments."""
    if size_average is not None or reduce is not None:
        mean, whole = size_average is not False, reduce is not False
        return ("mean" if mean else "sum") if whole else "none"
    checks.one_of(op, "reduction", reduction, "mean", "sum", "none")
    return reduction


def reduced(loss: Tensor, reduction: str) -> Tensor:
    """The mean of the losses, their sum, or the losses themselves."""
    return loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else loss


def same_shape(op: str, input: Tensor, target: Tensor) -> None:
    if input.shape != target.shape:
        raise ShapeError(
            f"{op}: input and target must have the same shape, got {tuple(input.shape)} and {tuple(target.shape)}"
        )


def _per_element(op: str, input: Tensor, weight: Any) -> Any:
    if weight.shape != input.shape:
        raise ShapeError(f"{op}: weight must have the shape of input {tuple(input.shape)}, got {tuple(weight.shape)}")
    return weight


def _weighted(op: str, input: Tensor, loss: Tensor, weight: Any, reduction: str) -> Tensor:
    """The reduction of losses with a weight per element; the mean divides by the sum of the weights."""
    if weight is None:
        return reduced(loss, reduction)
    loss = loss * _per_element(op, input, weight)
    return loss.sum() / weight.sum() if reduction == "mean" else reduced(loss, reduction)


# --- regression --------------------------------------------------------------------------------------


@autocasts(FLOAT32)
def mse_loss(
    input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None,
    reduction: str = "mean", weight: Any = None,
) -> Tensor:  # fmt: skip
    """(input - target)^2."""
    reduction = reduction_of("mse_loss", reduction, size_average, reduce)
    if weight is None and input.shape == target.shape and input.dtype is target.dtype:
        return apply(kinds.mse_loss[reduction], (input, target))
    d = input - target
    return _weighted("mse_loss", input, d * d, weight, reduction)


@autocasts(FLOAT32)
def l1_loss(
    input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None,
    reduction: str = "mean", weight: Any = None,
) -> Tensor:  # fmt: skip
    """|input - target|."""
    reduction = reduction_of("l1_loss", reduction, size_average, reduce)
    return _weighted("l1_loss", input, (input - target).abs(), weight, reduction)


@autocasts(FLOAT32)
def smooth_l1_loss(
    input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None,
    reduction: str = "mean", beta: float = 1.0,
) -> Tensor:  # fmt: skip
    """d^2 / (2 beta) where d = |input - target| is below beta, else d - beta / 2."""
    checks.at_least("smooth_l1_loss", "beta", beta, 0)
    if beta == 0:
        return l1_loss(input, target, size_average, reduce, reduction)
    reduction = reduction_of("smooth_l1_loss", reduction, size_average, reduce)
    d = (input - target).abs()
    return reduced(ew.where(d < beta, d * d * (0.5 / beta), d - 0.5 * beta), reduction)


@autocasts(FLOAT32)
def huber_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0, weight: Any = None
) -> Tensor:
    """d^2 / 2 where d = |input - target| is below delta, else delta * (d - delta / 2)."""
    checks.positive("huber_loss", "delta", delta)
    reduction = reduction_of("huber_loss", reduction)
    d = (input - target).abs()
    loss = ew.where(d < delta, d * d * 0.5, (d - 0.5 * delta) * delta)
    return reduced(loss if weight is None else loss * _per_element("huber_loss", input, weight), reduction)


@autocasts(FLOAT32)
def poisson_nll_loss(
    input: Tensor, target: Tensor, log_input: bool = True, full: bool = False, size_average: bool | None = None,
    eps: float = 1e-8, reduce: bool | None = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """The negative log-likelihood of Poisson counts with rate input, or exp(input); `full` adds Stirling's term."""
    reduction = reduction_of("poisson_nll_loss", reduction, size_average, reduce)
    loss = input.exp() - target * input if log_input else input - target * (input + eps).log()
    if full:
        stirling = target * target.log() - target + (target * (2 * math.pi)).log() * 0.5
        loss = loss + stirling.masked_fill(target <= 1, 0.0)
    return reduced(loss, reduction)


def at_least(x: Tensor, least: float) -> Tensor:
    """max(x, least), with the gradient of x everywhere."""
    return ew.where(x < least, x - x.detach() + least, x)


def gaussian_nll_loss(
    input: Tensor, target: Tensor, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Tensor:
    """The negative log-likelihood of normally distributed targets with mean `input` and variance max(var, eps)."""
    reduction = reduction_of("gaussian_nll_loss", reduction)
    if isinstance(var, (int, float)):
        checks.at_least("gaussian_nll_loss", "var", var, 0)
        var = input.detach() * 0.0 + float(var)
    if var.shape != input.shape:
        if var.shape == input.shape[:-1]:
            var = var.unsqueeze(-1)
        elif var.ndim != input.ndim or sum(n for m, n in zip(input.shape, var.shape, strict=True) if m != n) != 1:
            raise ShapeError(f"gaussian_nll_loss: var {tuple(var.shape)} does not match input {tuple(input.shape)}")
    var = at_least(var, eps)
    d = input - target
    loss = (var.log() + d * d / var) * 0.5
    return reduced(loss + 0.5 * math.log(2 * math.pi) if full else loss, reduction)


# --- classification ----------------------------------------------------------------------------------


def _class_dim(op: str, input: Tensor) -> int:
    if not input.ndim:
        raise ShapeError(f"{op}: expected an input with a class dimension, got shape ()")
    return 1 if input.ndim > 1 else 0


def _with_weight(loss: Tensor, target: Tensor, weight: Tensor, ignore_index: int, reduction: str) -> Tensor:
    """The reduction of losses weighted by target class; the mean divides by the sum of these weights."""
    counted = target != ignore_index
    row = weight.detach().reshape(-1, 1)
    share = ops.embedding(row, ew.where(counted, target, 0)).squeeze(-1) * counted
    loss = loss * share
    return loss.sum() / share.sum() if reduction == "mean" else reduced(loss, reduction)


def _check_weight(op: str, input: Tensor, weight: Any) -> None:
    classes = input.shape[_class_dim(op, input)]
    if weight is not None and tuple(weight.shape) != (classes,):
        raise ShapeError(f"{op}: weight must have shape {(classes,)}, one per class, got {tuple(weight.shape)}")


@autocasts(FLOAT32)
def nll_loss(
    input: Tensor, target: Tensor, weight: Any = None, size_average: bool | None = None, ignore_index: int = -100,
    reduce: bool | None = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """The negative log-probability of the target class, times the weight of that class."""
    reduction = reduction_of("nll_loss", reduction, size_average, reduce)
    _check_weight("nll_loss", input, weight)
    if weight is None:
        return apply(kinds.nll_loss[reduction, ignore_index], (input, target))
    each = apply(kinds.nll_loss["none", ignore_index], (input, target))
    return _with_weight(each, target, weight, ignore_index, reduction)


@autocasts(FLOAT32)
def cross_entropy(
    input: Tensor, target: Tensor, weight: Any = None, size_average: bool | None = None, ignore_index: int = -100,
    reduce: bool | None = None, reduction: str = "mean", label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    """The cross-entropy of logits with class indices, or with class probabilities in the shape of the input."""
    reduction = reduction_of("cross_entropy", reduction, size_average, reduce)
    if not 0.0 <= label_smoothing <= 1.0:
        raise ArgumentError(f"cross_entropy: label_smoothing must be between 0 and 1, got {label_smoothing}")
    _check_weight("cross_entropy", input, weight)
    if target.shape == input.shape and (target.dtype.is_floating_point or input.ndim == 1):
        return _soft_cross_entropy(input, target, weight, reduction, label_smoothing)
    if weight is None:
        return apply(kinds.cross_entropy[reduction, ignore_index, float(label_smoothing)], (input, target))[0]
    loss, logp = apply(kinds.cross_entropy["none", ignore_index, 0.0], (input, target))
    if not label_smoothing:
        return _with_weight(loss, target, weight, ignore_index, reduction)
    # The smoothed part is weighted by all classes; the mean divides by the weights of the targets alone.
    dim = _class_dim("cross_entropy", input)
    spread = -(logp * _per_class(weight, input)).sum(dim)
    spread = ew.where(target == ignore_index, 0.0, spread) * (label_smoothing / input.shape[dim])
    hard = _with_weight(loss, target, weight, ignore_index, "none") * (1.0 - label_smoothing)
    if reduction == "mean":
        ones = hard.detach() * 0.0 + 1.0
        return (hard + spread).sum() / _with_weight(ones, target, weight, ignore_index, "sum")
    return reduced(hard + spread, reduction)


def linear_cross_entropy(
    input: Tensor, linear_weight: Tensor, target: Tensor, *, linear_bias: Tensor | None = None, weight: Any = None,
    reduction: str = "mean", ignore_index: int | None = None, label_smoothing: float = 0.0, options: Any = None,
) -> Tensor:  # fmt: skip
    """The cross-entropy of linear(input, linear_weight, linear_bias). `options`, torch's chunking, has no effect."""
    if not linear_weight.ndim:
        raise ShapeError("linear_cross_entropy: linear_weight must be (classes, ..., features), got shape ()")
    out = linear_weight.shape[:-1]  # (classes, ...)
    rows = linear_weight.reshape(-1, linear_weight.shape[-1])
    bias = None if linear_bias is None else linear_bias.reshape(-1)
    logits = linear(input, rows, bias).reshape(*input.shape[:-1], *out)
    ignored = -100 if ignore_index is None else ignore_index
    return cross_entropy(
        logits, target, weight, ignore_index=ignored, reduction=reduction, label_smoothing=label_smoothing
    )


def _per_class(weight: Tensor, input: Tensor) -> Tensor:
    return weight.reshape(-1, *(1,) * (input.ndim - 1 - _class_dim("cross_entropy", input)))


def _soft_cross_entropy(input: Tensor, target: Tensor, weight: Any, reduction: str, smoothing: float) -> Tensor:
    """The cross-entropy with class probabilities as targets."""
    if not target.dtype.is_floating_point:
        raise ShapeError(
            f"cross_entropy: logits {tuple(input.shape)} expect class indices of shape (), got {tuple(target.shape)}"
        )
    dim = _class_dim("cross_entropy", input)
    classes = input.shape[dim]
    if smoothing:
        target = target * (1.0 - smoothing) + smoothing / classes
    each = log_softmax(input, dim) * target
    loss = -(each if weight is None else each * _per_class(weight, input)).sum(dim)
    if reduction == "mean":
        return loss.sum() / (input.numel() / classes if classes else 0.0)
    return reduced(loss, reduction)


# --- binary classification and distributions ---------------------------------------------------------


def _one_dtype(input: Tensor, target: Tensor) -> Tensor:
    return target if target.dtype is input.dtype else target.to(input.dtype)


@autocasts(FLOAT32)
def binary_cross_entropy(
    input: Tensor, target: Tensor, weight: Any = None, size_average: bool | None = None, reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """The binary cross-entropy of probabilities. Logarithms are clamped to >= -100, as in torch."""
    reduction = reduction_of("binary_cross_entropy", reduction, size_average, reduce)
    same_shape("binary_cross_entropy", input, target)
    loss = ops.binary_cross_entropy(input, _one_dtype(input, target))
    return reduced(loss if weight is None else loss * weight, reduction)


@autocasts(FLOAT32)
def binary_cross_entropy_with_logits(
    input: Tensor, target: Tensor, weight: Any = None, size_average: bool | None = None, reduce: bool | None = None,
    reduction: str = "mean", pos_weight: Any = None,
) -> Tensor:  # fmt: skip
    """The binary cross-entropy of sigmoid(input), without overflow; `pos_weight` weights the positive targets."""
    reduction = reduction_of("binary_cross_entropy_with_logits", reduction, size_average, reduce)
    same_shape("binary_cross_entropy_with_logits", input, target)
    target = _one_dtype(input, target)
    loss = ops.binary_cross_entropy_with_logits(input, target)
    if pos_weight is not None:
        of_ones = ops.binary_cross_entropy_with_logits(input, target.detach() * 0.0 + 1.0)
        loss = loss + (pos_weight - 1.0) * target * of_ones
    return reduced(loss if weight is None else loss * weight, reduction)


@autocasts(FLOAT32)
def kl_div(
    input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None,
    reduction: str = "mean", log_target: bool = False,
) -> Tensor:  # fmt: skip
    """The Kullback-Leibler divergence of log-probabilities `input` from a distribution `target`."""
    if size_average is not None or reduce is not None or reduction != "batchmean":
        reduction = reduction_of("kl_div", reduction, size_average, reduce)
    if log_target:
        loss = target.exp() * (target - input)
    else:
        loss = target.xlogy(target) - target * input
    if reduction == "batchmean":
        return loss.sum() / input.shape[0] if input.ndim else loss.sum()
    return reduced(loss, reduction)
