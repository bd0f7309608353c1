"""Losses as modules. `size_average` and `reduce` are torch's old arguments for the reduction."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar
from typing import Any

from gt.client.tensor import Tensor
from gt.nn import functional as F
from gt.nn.functional.loss import reduction_of
from gt.nn.layers import Linear
from gt.nn.module import Module
from gt.nn.settings import Functional, settings

__all__ = [
    "BCELoss", "BCEWithLogitsLoss", "CTCLoss", "CosineEmbeddingLoss", "CrossEntropyLoss", "GaussianNLLLoss",
    "HingeEmbeddingLoss", "HuberLoss", "KLDivLoss", "L1Loss", "LinearCrossEntropyLoss", "MSELoss", "MarginRankingLoss",
    "MultiLabelMarginLoss", "MultiLabelSoftMarginLoss", "MultiMarginLoss", "NLLLoss", "PoissonNLLLoss", "SmoothL1Loss",
    "SoftMarginLoss", "TripletMarginLoss", "TripletMarginWithDistanceLoss",
]  # fmt: skip


class _Loss(Functional, shown=()):
    """A loss with a reduction: the mean, the sum, or none."""

    reduction: str

    def __post_init__(self, size_average: bool | None = None, reduce: bool | None = None) -> None:
        super().__post_init__()
        if size_average is not None or reduce is not None:
            self.reduction = reduction_of(type(self).__name__, self.reduction, size_average, reduce)


class _WeightedLoss(_Loss):
    """A loss with a weight, which is a buffer."""

    def __post_init__(
        self, weight: Tensor | None, size_average: bool | None = None, reduce: bool | None = None
    ) -> None:
        super().__post_init__(size_average, reduce)
        self.register_buffer("weight", weight)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return super().forward(input, target, weight=self.weight)


@settings
class _Reduced(_Loss):
    """A loss whose first settings are the reduction, in its three forms."""

    size_average: InitVar[bool | None] = None
    reduce: InitVar[bool | None] = None
    reduction: str = "mean"


@settings
class _Weighted(_WeightedLoss):
    """A loss whose settings are the weight and the reduction."""

    weight: InitVar[Tensor | None] = None
    size_average: InitVar[bool | None] = None
    reduce: InitVar[bool | None] = None
    reduction: str = "mean"


@settings
class _Margin(_Loss):
    """A loss with a margin."""

    margin: float = 0.0
    size_average: InitVar[bool | None] = None
    reduce: InitVar[bool | None] = None
    reduction: str = "mean"


# --- regression --------------------------------------------------------------------------------------


class L1Loss(_Reduced, function=F.l1_loss):
    """|input - target|."""


class MSELoss(_Reduced, function=F.mse_loss):
    """(input - target)^2."""


@settings
class SmoothL1Loss(_Reduced, function=F.smooth_l1_loss):
    """d^2 / (2 beta) where d = |input - target| is below beta, else d - beta / 2."""

    beta: float = 1.0


@settings
class HuberLoss(_Loss, function=F.huber_loss):
    """d^2 / 2 where d = |input - target| is below delta, else delta * (d - delta / 2)."""

    reduction: str = "mean"
    delta: float = 1.0


@settings
class PoissonNLLLoss(_Loss):
    """The negative log-likelihood of counts with a Poisson distribution."""

    log_input: bool = True
    full: bool = False
    size_average: InitVar[bool | None] = None
    eps: float = 1e-8
    reduce: InitVar[bool | None] = None
    reduction: str = "mean"

    def forward(self, log_input: Tensor, target: Tensor) -> Tensor:
        return F.poisson_nll_loss(log_input, target, self.log_input, self.full, eps=self.eps, reduction=self.reduction)


@settings
class GaussianNLLLoss(_Loss, function=F.gaussian_nll_loss):
    """The negative log-likelihood of targets with a normal distribution of mean `input` and variance `var`."""

    _: KW_ONLY
    full: bool = False
    eps: float = 1e-6
    reduction: str = "mean"


# --- classification ----------------------------------------------------------------------------------


@settings
class NLLLoss(_WeightedLoss, function=F.nll_loss):
    """The negative log-probability of the target class."""

    weight: InitVar[Tensor | None] = None
    size_average: InitVar[bool | None] = None
    ignore_index: int = -100
    reduce: InitVar[bool | None] = None
    reduction: str = "mean"


@settings
class CrossEntropyLoss(_WeightedLoss, function=F.cross_entropy):
    """The cross-entropy of logits with class indices or class probabilities."""

    weight: InitVar[Tensor | None] = None
    size_average: InitVar[bool | None] = None
    ignore_index: int = -100
    reduce: InitVar[bool | None] = None
    reduction: str = "mean"
    label_smoothing: float = 0.0


class LinearCrossEntropyLoss(Module):
    """The cross-entropy of the output of a linear layer, which is part of the loss."""

    def __init__(
        self, in_features: int, num_classes: int, *, out_features: tuple[int, ...] = (), bias: bool = False,
        device: Any = None, dtype: Any = None, reduction: str = "mean", weight: Any = None,
        ignore_index: int | None = None, label_smoothing: float = 0.0, options: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.register_buffer("weight", weight)
        self.reduction = reduction
        self.num_classes, self.out_features, self.ignore_index = num_classes, out_features, ignore_index
        self.label_smoothing, self.options = label_smoothing, options
        self.linear = Linear(in_features, math.prod(out_features, start=num_classes), bias, dtype=dtype)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        sizes = (self.num_classes, *self.out_features)
        bias = self.linear.bias
        return F.linear_cross_entropy(
            input, self.linear.weight.reshape(*sizes, self.linear.in_features), target,
            linear_bias=None if bias is None else bias.reshape(*sizes), weight=self.weight, reduction=self.reduction,
            ignore_index=self.ignore_index, label_smoothing=self.label_smoothing, options=self.options,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return (
            f"in_features={self.linear.in_features}, num_classes={self.num_classes}, out_features={self.out_features}, "
            f"bias={self.linear.bias is not None}, reduction={self.reduction}, ignore_index={self.ignore_index}, "
            f"label_smoothing={self.label_smoothing}, options={self.options}"
        )


class BCELoss(_Weighted, function=F.binary_cross_entropy):
    """The binary cross-entropy of probabilities."""


@settings
class BCEWithLogitsLoss(_Weighted):
    """The binary cross-entropy of sigmoid(input)."""

    pos_weight: InitVar[Tensor | None] = None

    def __post_init__(
        self, weight: Tensor | None, size_average: bool | None, reduce: bool | None, pos_weight: Tensor | None
    ) -> None:
        super().__post_init__(weight, size_average, reduce)
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(
            input, target, self.weight, reduction=self.reduction, pos_weight=self.pos_weight
        )


@settings
class KLDivLoss(_Reduced, function=F.kl_div):
    """The Kullback-Leibler divergence of log-probabilities from a target distribution."""

    log_target: bool = False


@settings
class CTCLoss(_Loss, function=F.ctc_loss):
    """The connectionist temporal classification loss: a sequence of labels without alignment to the input."""

    blank: int = 0
    reduction: str = "mean"
    zero_infinity: bool = False


# --- with margins ------------------------------------------------------------------------------------


@settings
class HingeEmbeddingLoss(_Margin, function=F.hinge_embedding_loss):
    """input where the target is 1, max(0, margin - input) where the target is -1."""

    margin: float = 1.0


class CosineEmbeddingLoss(_Margin, function=F.cosine_embedding_loss):
    """1 - cos(input1, input2) where the target is 1, max(0, cos(input1, input2) - margin) where it is -1."""


class MarginRankingLoss(_Margin, function=F.margin_ranking_loss):
    """max(0, -target * (input1 - input2) + margin)."""


class SoftMarginLoss(_Reduced, function=F.soft_margin_loss):
    """log(1 + exp(-target * input))."""


@settings
class MultiMarginLoss(_WeightedLoss, function=F.multi_margin_loss):
    """The mean over all classes i but the target y of max(0, margin - input[y] + input[i])^p."""

    p: int = 1
    margin: float = 1.0
    weight: InitVar[Tensor | None] = None
    size_average: InitVar[bool | None] = None
    reduce: InitVar[bool | None] = None
    reduction: str = "mean"


class MultiLabelMarginLoss(_Reduced, function=F.multilabel_margin_loss):
    """The sum over targets y and other classes i of max(0, 1 - input[y] + input[i]), over the number of classes."""


class MultiLabelSoftMarginLoss(_Weighted, function=F.multilabel_soft_margin_loss):
    """The binary cross-entropy of sigmoid(input), averaged over the classes."""


@settings
class TripletMarginLoss(_Loss, function=F.triplet_margin_loss):
    """max(0, d(anchor, positive) - d(anchor, negative) + margin), where d is the p-norm distance."""

    margin: float = 1.0
    p: float = 2.0
    eps: float = 1e-6
    swap: bool = False
    size_average: InitVar[bool | None] = None
    reduce: InitVar[bool | None] = None
    reduction: str = "mean"


@settings
class TripletMarginWithDistanceLoss(_Loss, function=F.triplet_margin_with_distance_loss):
    """TripletMarginLoss with a distance function of the user."""

    _: KW_ONLY
    distance_function: InitVar[Callable[[Tensor, Tensor], Tensor] | None] = None
    margin: float = 1.0
    swap: bool = False
    reduction: str = "mean"

    def __post_init__(self, distance_function: Callable[[Tensor, Tensor], Tensor] | None) -> None:
        super().__post_init__()
        self.distance_function = distance_function or F.pairwise_distance

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return super().forward(anchor, positive, negative, distance_function=self.distance_function)
