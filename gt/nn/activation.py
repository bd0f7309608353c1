"""Activations as modules."""

from __future__ import annotations

from dataclasses import InitVar
from typing import Any

from gt.client.functions import creation
from gt.client.tensor import Parameter, Tensor
from gt.errors import ShapeError
from gt.nn import functional as F
from gt.nn import init
from gt.nn.module import Module
from gt.nn.settings import Functional, settings

__all__ = [
    "CELU", "ELU", "GELU", "GLU", "SELU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "LeakyReLU",
    "LogSigmoid", "LogSoftmax", "Mish", "PReLU", "RReLU", "ReLU", "ReLU6", "SiLU", "Sigmoid", "Softmax", "Softmax2d",
    "Softmin", "Softplus", "Softshrink", "Softsign", "Tanh", "Tanhshrink", "Threshold",
]  # fmt: skip


# --- without settings --------------------------------------------------------------------------------


class Sigmoid(Functional, function=F.sigmoid):
    """1 / (1 + exp(-x))."""


class Tanh(Functional, function=F.tanh):
    """tanh(x)."""


class LogSigmoid(Functional, function=F.logsigmoid):
    """log(sigmoid(x))."""


class Softsign(Functional, function=F.softsign):
    """x / (1 + |x|)."""


class Tanhshrink(Functional, function=F.tanhshrink):
    """x - tanh(x)."""


# --- with `inplace` alone ----------------------------------------------------------------------------


@settings
class _InPlace(Functional):
    """An activation whose only setting is `inplace`."""

    inplace: bool = False

    def forward(self, input: Tensor) -> Tensor:  # the same as Functional's, faster
        return self._function(input, self.inplace)


class ReLU(_InPlace, function=F.relu):
    """max(x, 0)."""


class ReLU6(_InPlace, function=F.relu6):
    """min(max(x, 0), 6)."""

    min_val, max_val = 0.0, 6.0


class SiLU(_InPlace, function=F.silu):
    """x * sigmoid(x)."""


class Mish(_InPlace, function=F.mish):
    """x * tanh(softplus(x))."""


class SELU(_InPlace, function=F.selu):
    """scale * elu(x, alpha), with the constants that preserve mean 0 and variance 1 from layer to layer."""


class Hardsigmoid(_InPlace, function=F.hardsigmoid, shown=()):
    """x / 6 + 1 / 2, clamped to [0, 1]."""


class Hardswish(_InPlace, function=F.hardswish, shown=()):
    """x * hardsigmoid(x)."""


# --- with settings -----------------------------------------------------------------------------------


@settings
class ELU(Functional, function=F.elu):
    """x where x > 0, else alpha * (exp(x) - 1)."""

    alpha: float = 1.0
    inplace: bool = False


@settings
class CELU(Functional, function=F.celu):
    """x where x > 0, else alpha * (exp(x / alpha) - 1)."""

    alpha: float = 1.0
    inplace: bool = False


@settings
class LeakyReLU(Functional, function=F.leaky_relu):
    """x where x > 0, else negative_slope * x."""

    negative_slope: float = 0.01
    inplace: bool = False


@settings
class RReLU(Functional, function=F.rrelu):
    """x where x > 0, else slope * x; the slope is random in [lower, upper] in training, else their mean."""

    lower: float = 1.0 / 8
    upper: float = 1.0 / 3
    inplace: bool = False

    def forward(self, input: Tensor) -> Tensor:
        return F.rrelu(input, self.lower, self.upper, self.training, self.inplace)


@settings
class Threshold(Functional, function=F.threshold):
    """x where x > threshold, else value."""

    threshold: float
    value: float
    inplace: bool = False


@settings
class Hardtanh(Functional, function=F.hardtanh):
    """x clamped to [min_val, max_val]. `min_value` and `max_value` are old names of the two."""

    min_val: float = -1.0
    max_val: float = 1.0
    inplace: bool = False
    min_value: InitVar[float | None] = None
    max_value: InitVar[float | None] = None

    def __post_init__(self, min_value: float | None, max_value: float | None) -> None:
        super().__post_init__()
        self.min_val = self.min_val if min_value is None else min_value
        self.max_val = self.max_val if max_value is None else max_value


@settings
class _Shrink(Functional):
    """The setting of Hardshrink and Softshrink."""

    lambd: float = 0.5

    def extra_repr(self) -> str:
        return f"{self.lambd}"


class Hardshrink(_Shrink, function=F.hardshrink):
    """x where |x| > lambd, else 0."""


class Softshrink(_Shrink, function=F.softshrink):
    """sign(x) * max(|x| - lambd, 0)."""


@settings
class Softplus(Functional, function=F.softplus):
    """log(1 + exp(beta * x)) / beta; x itself where beta * x > threshold."""

    beta: float = 1.0
    threshold: float = 20.0


@settings
class GELU(Functional, function=F.gelu):
    """x * Phi(x), with the cumulative distribution function Phi of the normal distribution."""

    approximate: str = "none"


@settings
class GLU(Functional, function=F.glu):
    """a * sigmoid(b), where a and b are the two halves of the input along dim."""

    dim: int = -1


class PReLU(Module):
    """x where x > 0, else weight * x, with a learned weight for all channels or one per channel."""

    def __init__(self, num_parameters: int = 1, init: float = 0.25, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.num_parameters, self.init = num_parameters, init
        self.weight = Parameter(creation.empty(num_parameters, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the weight to its initial value."""
        init.constant_(self.weight, self.init)

    def forward(self, input: Tensor) -> Tensor:
        return F.prelu(input, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"


# --- softmax -----------------------------------------------------------------------------------------


@settings
class Softmax(Functional, function=F.softmax):
    """exp(x), normalized to sum to 1 along dim."""

    dim: int | None = None


@settings
class LogSoftmax(Functional, function=F.log_softmax):
    """log(softmax(x)) along dim."""

    dim: int | None = None


@settings
class Softmin(Functional, function=F.softmin):
    """softmax(-x) along dim."""

    dim: int | None = None


class Softmax2d(Module):
    """softmax over the channels of images."""

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim not in (3, 4):
            raise ShapeError(f"Softmax2d: expected an input (C, H, W) or (N, C, H, W), got shape {tuple(input.shape)}")
        return F.softmax(input, -3)
