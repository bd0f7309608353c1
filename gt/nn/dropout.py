"""Dropout as modules: active in training, the identity in evaluation."""

from __future__ import annotations

from gt.client.tensor import Tensor
from gt.errors import ArgumentError
from gt.nn import functional as F
from gt.nn.settings import Functional, settings

__all__ = ["AlphaDropout", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "FeatureAlphaDropout"]


@settings
class _Dropout(Functional, shown=("p", "inplace")):
    """The settings of every kind of dropout."""

    p: float = 0.5
    inplace: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.p <= 1:
            raise ArgumentError(f"{type(self).__name__}: p must be a probability between 0 and 1, got {self.p}")

    def forward(self, input: Tensor) -> Tensor:
        return self._function(input, self.p, self.training, self.inplace)


class Dropout(_Dropout, function=F.dropout):
    """Zero elements at random."""


class Dropout1d(_Dropout, function=F.dropout1d):
    """Zero whole channels of (N, C, L) or (C, L) at random."""


class Dropout2d(_Dropout, function=F.dropout2d):
    """Zero whole channels of images (N, C, H, W) at random."""


class Dropout3d(_Dropout, function=F.dropout3d):
    """Zero whole channels of volumes (N, C, D, H, W) at random."""


class AlphaDropout(_Dropout, function=F.alpha_dropout):
    """Dropout that preserves mean 0 and variance 1, for networks with SELU."""


class FeatureAlphaDropout(_Dropout, function=F.feature_alpha_dropout):
    """AlphaDropout of whole channels."""
