"""Batch norms in evaluation as part of the layer before: the names of torch.nn.utils.fusion."""

from __future__ import annotations

import copy
from typing import Any

from gt.client.functions.creation import zeros_like
from gt.client.functions.elementwise import rsqrt
from gt.client.tensor import Parameter

__all__ = ["fuse_conv_bn_eval", "fuse_conv_bn_weights", "fuse_linear_bn_eval", "fuse_linear_bn_weights"]


def _scaled(
    w: Any, b: Any, rm: Any, rv: Any, eps: float, gamma: Any, beta: Any, dim: int
) -> tuple[Parameter, Parameter]:
    """Weight and bias with a batch norm over dimension `dim` of the weight."""
    factor = rsqrt(rv + eps) if gamma is None else gamma * rsqrt(rv + eps)
    b = zeros_like(rm) if b is None else b
    shape = [-1 if d == dim else 1 for d in range(w.ndim)]
    bias = (b - rm) * factor
    return (
        Parameter((w * factor.reshape(shape)).detach().to(w.dtype), w.requires_grad),
        Parameter((bias if beta is None else bias + beta).detach(), b.requires_grad),
    )


def fuse_conv_bn_weights(
    conv_w: Any, conv_b: Any, bn_rm: Any, bn_rv: Any, bn_eps: float, bn_w: Any, bn_b: Any, transpose: bool = False
) -> tuple[Parameter, Parameter]:
    """Weight and bias of a convolution with those of the batch norm after it."""
    return _scaled(conv_w, conv_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b, 1 if transpose else 0)


def fuse_linear_bn_weights(
    linear_w: Any, linear_b: Any, bn_rm: Any, bn_rv: Any, bn_eps: float, bn_w: Any, bn_b: Any
) -> tuple[Parameter, Parameter]:
    """Weight and bias of a linear layer with those of the batch norm after it."""
    return _scaled(linear_w, linear_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b, 0)


def _fused(layer: Any, bn: Any, dim: int) -> Any:
    if layer.training or bn.training:
        raise AssertionError("fusion: expected modules in evaluation mode; call eval() on both")
    made = copy.deepcopy(layer)
    made.weight, made.bias = _scaled(
        layer.weight, layer.bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias, dim
    )
    return made


def fuse_conv_bn_eval(conv: Any, bn: Any, transpose: bool = False) -> Any:
    """A convolution that does what it and the batch norm after it do in evaluation."""
    return _fused(conv, bn, 1 if transpose else 0)


def fuse_linear_bn_eval(linear: Any, bn: Any) -> Any:
    """A linear layer that does what it and the batch norm after it do in evaluation."""
    return _fused(linear, bn, 0)
