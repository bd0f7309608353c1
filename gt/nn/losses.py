"""Losses as modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.client.tensor import Tensor
from gt.nn import functional as F
from gt.nn.module import Module


class _Loss(Module):
    """Calls its function with the reduction that was chosen."""

    function: Callable[..., Tensor]

    def __init__(self, reduction: str = "mean", **options: Any) -> None:
        super().__init__()
        self.reduction = reduction
        self.options = options

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return type(self).function(input, target, reduction=self.reduction, **self.options)


class MSELoss(_Loss):
    """Squared differences."""

    function = staticmethod(F.mse_loss)


class L1Loss(_Loss):
    """Absolute differences."""

    function = staticmethod(F.l1_loss)


class BCELoss(_Loss):
    """Cross-entropy of probabilities."""

    function = staticmethod(F.binary_cross_entropy)


class BCEWithLogitsLoss(_Loss):
    """Cross-entropy of sigmoid(input)."""

    function = staticmethod(F.binary_cross_entropy_with_logits)

    def __init__(self, reduction: str = "mean", pos_weight: Any = None) -> None:
        super().__init__(reduction, pos_weight=pos_weight)


class NLLLoss(_Loss):
    """Minus the log-probability of the target class."""

    function = staticmethod(F.nll_loss)

    def __init__(self, ignore_index: int = -100, reduction: str = "mean") -> None:
        super().__init__(reduction, ignore_index=ignore_index)


class CrossEntropyLoss(_Loss):
    """Cross-entropy of logits with class numbers or probabilities."""

    function = staticmethod(F.cross_entropy)

    def __init__(self, ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0) -> None:
        super().__init__(reduction, ignore_index=ignore_index, label_smoothing=label_smoothing)
