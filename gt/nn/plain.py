"""The activations and losses that are also found as functions of gt.nn: `nn.relu(x)`, `nn.mse_loss(y, target)`."""

from gt.nn.functional import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    gelu,
    l1_loss,
    leaky_relu,
    log_softmax,
    mse_loss,
    nll_loss,
    relu,
    sigmoid,
    silu,
    softmax,
    tanh,
)
from gt.nn.functional import cross_entropy as cross_entropy_loss

__all__ = [
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy_loss", "gelu", "l1_loss", "leaky_relu",
    "log_softmax", "mse_loss", "nll_loss", "relu", "sigmoid", "silu", "softmax", "tanh",
]  # fmt: skip
