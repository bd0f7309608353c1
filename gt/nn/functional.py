"""torch.nn.functional's functions, as far as they are here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gt.client import creation, indexing
from gt.client import elementwise as ew
from gt.client.elementwise import gelu, relu, sigmoid, silu, tanh
from gt.client.recorder import apply
from gt.client.reductions import log_softmax, softmax
from gt.client.tensor import Tensor
from gt.client.tree import Kind, Kinds
from gt.errors import ArgumentError, ShapeError
from gt.ops import TABLE

__all__ = [
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "dropout", "embedding", "gelu",
    "l1_loss", "layer_norm", "linear", "log_softmax", "mse_loss", "nll_loss", "one_hot", "relu", "sigmoid", "silu",
    "softmax", "softplus", "tanh",
]  # fmt: skip

embedding = indexing.embedding
one_hot = indexing.one_hot
_LINEAR = Kind(TABLE["linear"], {})
_NLL = Kinds(TABLE["nll_loss"], "reduction", "ignore_index")
_DROPOUT = Kinds(TABLE["dropout"], "p")


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """input @ weight.T + bias."""
    return apply(_LINEAR, (input, weight) if bias is None else (input, weight, bias))


def dropout(input: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """Zero each element with probability p, and scale the rest by 1 / (1 - p)."""
    if not 0.0 <= p <= 1.0:
        raise ArgumentError(f"dropout: p is a probability, not {p}")
    if not training or p == 0.0:
        return input
    return apply(_DROPOUT[p], (input, creation.next_seed()))


def layer_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor:
    """Mean zero and variance one over the last dimensions, then scaled and shifted."""
    n = len(tuple(normalized_shape))
    if tuple(input.shape[-n:]) != tuple(normalized_shape):
        raise ShapeError(f"layer_norm: the last sizes of {input.shape} are not {tuple(normalized_shape)}")
    dims = tuple(range(input.ndim - n, input.ndim))
    centred = input - input.mean(dims, keepdim=True)
    y = centred * ((centred * centred).mean(dims, keepdim=True) + eps).rsqrt()
    if weight is not None:
        y = y * weight
    return y if bias is None else y + bias


def softplus(input: Tensor, beta: float = 1.0) -> Tensor:
    """log(1 + exp(beta x)) / beta, without overflow."""
    y: Tensor = (input if beta == 1.0 else input * beta).softplus()
    return y if beta == 1.0 else y / beta


# --- losses ------------------------------------------------------------------------------------------


def _reduce(op: str, x: Tensor, reduction: str) -> Tensor:
    if reduction == "mean":
        return x.mean()
    if reduction == "sum":
        return x.sum()
    if reduction == "none":
        return x
    raise ArgumentError(f"{op}: reduction is 'mean', 'sum' or 'none', not {reduction!r}")


def _same_shape(op: str, input: Tensor, target: Tensor) -> None:
    if input.shape != target.shape:
        raise ShapeError(f"{op}: input {input.shape} and target {target.shape} must have one shape")


def mse_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Squared differences."""
    d = input - target
    return _reduce("mse_loss", d * d, reduction)


def l1_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Absolute differences."""
    return _reduce("l1_loss", (input - target).abs(), reduction)


def binary_cross_entropy(input: Tensor, target: Tensor, weight: Any = None, reduction: str = "mean") -> Tensor:
    """Cross-entropy of probabilities. Logarithms are kept above -100, as in torch."""
    _same_shape("binary_cross_entropy", input, target)
    loss = -(target * _log(input) + (1.0 - target) * _log(1.0 - input))
    return _reduce("binary_cross_entropy", loss if weight is None else loss * weight, reduction)


def _log(x: Tensor) -> Tensor:
    """The logarithm, kept above -100; where x is zero its gradient is zero too, not 0 * inf."""
    zero = x == 0
    return ew.where(zero, -100.0, ew.where(zero, 1.0, x).log().clamp(min=-100.0))


def binary_cross_entropy_with_logits(
    input: Tensor, target: Tensor, weight: Any = None, reduction: str = "mean", pos_weight: Any = None
) -> Tensor:
    """Cross-entropy of sigmoid(input), without overflow."""
    _same_shape("binary_cross_entropy_with_logits", input, target)
    low = (-input.abs()).exp().log1p() + (-input).relu()  # -log(sigmoid(input))
    if pos_weight is None:
        loss = (1.0 - target) * input + low
    else:
        loss = (1.0 - target) * input + (1.0 + (pos_weight - 1.0) * target) * low
    return _reduce("binary_cross_entropy_with_logits", loss if weight is None else loss * weight, reduction)


def nll_loss(input: Tensor, target: Tensor, ignore_index: int = -100, reduction: str = "mean") -> Tensor:
    """Minus the log-probability of the target class."""
    return apply(_NLL[reduction, ignore_index], (input, target))


def cross_entropy(
    input: Tensor, target: Tensor, ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0
) -> Tensor:
    """Cross-entropy of logits. The target is class numbers, or probabilities of the input's shape."""
    classes = 1 if input.ndim > 1 else 0
    logp = log_softmax(input, classes)
    if target.dtype.is_floating_point:
        if target.shape != input.shape:
            raise ShapeError(f"cross_entropy: probabilities of shape {target.shape} for logits {input.shape}")
        if label_smoothing:
            target = target * (1.0 - label_smoothing) + label_smoothing / input.shape[classes]
        loss = -(logp * target).sum(classes)
        n = max(1, input.numel() // max(1, input.shape[classes]))
        return loss.sum() / n if reduction == "mean" else _reduce("cross_entropy", loss, reduction)
    hard = nll_loss(logp, target, ignore_index, reduction)
    if not label_smoothing:
        return hard
    spread = -logp.sum(classes)
    kept = target != ignore_index
    spread = ew.where(kept, spread, 0.0)
    if reduction == "mean":
        smooth = spread.sum() / kept.sum()
    else:
        smooth = _reduce("cross_entropy", spread, reduction)
    return hard * (1.0 - label_smoothing) + smooth * (label_smoothing / input.shape[classes])
