"""Linear and bilinear maps; embeddings."""

from __future__ import annotations

import math
from typing import Any

from gt.client.compat.arguments import shown
from gt.client.compat.autocast import autocasts
from gt.client.functions.embeddings import embedding, embedding_bag, one_hot
from gt.client.programs import kinds
from gt.client.record.recorder import apply
from gt.client.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.ops.record import Autocast

__all__ = ["bilinear", "embedding", "embedding_bag", "linear", "one_hot"]


def linear(input: Any, weight: Any, bias: Any = None) -> Tensor:
    """input @ weight.T + bias."""
    try:
        rare = weight.ndim == 1 or not weight.dtype.is_floating_point or (bias is not None and bias.ndim != 1)
    except AttributeError:
        raise DTypeError(f"linear: weight and bias must be tensors, got {shown(weight)} and {shown(bias)}") from None
    if rare:  # one output, integers, a bias that broadcasts
        y = input @ weight.t()
        return y if bias is None else y + bias
    return apply(kinds.linear, (input, weight) if bias is None else (input, weight, bias))


@autocasts(Autocast(cuda="widest"))
def bilinear(input1: Any, input2: Any, weight: Any, bias: Any = None) -> Tensor:
    """input1 @ weight[k] @ input2 + bias[k], for every output k."""
    if weight.ndim != 3 or input1.shape[-1:] != weight.shape[1:2] or input2.shape[-1:] != weight.shape[2:]:
        raise ShapeError(
            f"bilinear: expected a weight (outputs, m, n) and inputs (..., m) and (..., n), got {tuple(weight.shape)}, "
            f"{tuple(input1.shape)} and {tuple(input2.shape)}"
        )
    if input1.shape[:-1] != input2.shape[:-1]:
        raise ShapeError(
            f"bilinear: the inputs must agree in all dimensions but the last, got {tuple(input1.shape)} and "
            f"{tuple(input2.shape)}"
        )
    k, m, n = weight.shape
    rows = math.prod(input1.shape[:-1])
    left = (input1.reshape((rows, m)) @ weight.permute(1, 0, 2).reshape((m, k * n))).reshape((rows, k, n))
    y = (left @ input2.reshape((rows, n, 1))).reshape((*input1.shape[:-1], k))
    return y if bias is None else y + bias
