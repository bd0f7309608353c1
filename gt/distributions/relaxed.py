"""Distributions on probabilities that gradients flow through: relaxed counts and categories, and their relatives."""

from __future__ import annotations

import math
from typing import Any

from gt.client.functions import elementwise as ew
from gt.client.functions.casts import finfo
from gt.client.functions.creation import as_tensor
from gt.client.functions.elementwise import where
from gt.client.functions.randoms import rand
from gt.distributions.continuous import Normal, uniform
from gt.distributions.discrete import Categorical, _probability
from gt.distributions.distribution import Distribution
from gt.distributions.parameters import clamp_probs
from gt.distributions.transformed import TransformedDistribution
from gt.distributions.transforms import ExpTransform, SigmoidTransform, Transform
from gt.distributions.vectors import StickBreakingTransform
from gt.nn.functional import binary_cross_entropy_with_logits, softplus

__all__ = [
    "ContinuousBernoulli", "ExpRelaxedCategorical", "LogisticNormal", "LogitRelaxedBernoulli", "RelaxedBernoulli",
    "RelaxedOneHotCategorical",
]  # fmt: skip


class LogitRelaxedBernoulli(Distribution):
    """The logits of a RelaxedBernoulli."""

    has_rsample = True

    def __init__(
        self, temperature: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        self.temperature = temperature
        self.probs, self.logits = _probability("LogitRelaxedBernoulli", probs, logits)
        super().__init__(self.probs.shape)

    param_shape = property(lambda self: self.probs.shape)

    def _draw(self, shape: tuple[int, ...]) -> Any:
        u = uniform(shape, self.probs).clamp(max=1 - finfo(self.probs.dtype).eps)
        return (u.log() - (-u).log1p() + self.logits) / self.temperature

    def log_prob(self, value: Any) -> Any:
        apart = self.logits - value * self.temperature
        return ew.log(as_tensor(self.temperature, dtype=self.logits.dtype)) + apart - 2 * softplus(apart)


class _Relaxed(TransformedDistribution):
    """What a transform makes of a distribution with a temperature."""

    _base: type[Distribution]
    _transform: type[Transform]

    def __init__(
        self, temperature: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        super().__init__(self._base(temperature, probs, logits), self._transform())

    temperature = property(lambda self: self.base_dist.temperature)
    probs = property(lambda self: self.base_dist.probs)
    logits = property(lambda self: self.base_dist.logits)


class RelaxedBernoulli(_Relaxed):
    """Numbers between 0 and 1 that are close to 0 or 1 at low temperatures."""

    _base, _transform = LogitRelaxedBernoulli, SigmoidTransform


class ExpRelaxedCategorical(Distribution):
    """The logarithms of a RelaxedOneHotCategorical."""

    has_rsample = True

    def __init__(
        self, temperature: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        self._categorical, self.temperature = Categorical(probs, logits), temperature
        shape = self._categorical.param_shape
        super().__init__(shape[:-1], shape[-1:])

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        made = super().expand(batch_shape, _instance)
        made.temperature = self.temperature  # there is one
        return made

    probs = property(lambda self: self._categorical.probs)
    logits = property(lambda self: self._categorical.logits)
    param_shape = property(lambda self: self._categorical.param_shape)

    def _draw(self, shape: tuple[int, ...]) -> Any:
        u = uniform(shape, self.logits).clamp(max=1 - finfo(self.logits.dtype).eps)
        scores = (self.logits - (-u.log()).log()) / self.temperature
        return scores - scores.logsumexp(-1, keepdim=True)

    def log_prob(self, value: Any) -> Any:
        n = self.event_shape[0]
        scores = self.logits - value * self.temperature
        density = (scores - scores.logsumexp(-1, keepdim=True)).sum(-1)
        return density + math.lgamma(n) + (n - 1) * ew.log(as_tensor(self.temperature, dtype=value.dtype))


class RelaxedOneHotCategorical(_Relaxed):
    """Vectors of probabilities that are close to a single 1 at low temperatures: the Gumbel-softmax distribution."""

    _base, _transform = ExpRelaxedCategorical, ExpTransform


class LogisticNormal(TransformedDistribution):
    """Probabilities that a stick-breaking transform makes of normal numbers, one more than those."""

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        base = Normal(loc, scale)
        super().__init__(base if base.batch_shape else base.expand((1,)), StickBreakingTransform())

    loc = property(lambda self: self.base_dist.base_dist.loc)
    scale = property(lambda self: self.base_dist.base_dist.scale)


class ContinuousBernoulli(Distribution):
    """Numbers from 0 to 1 with a density that grows or falls exponentially. Its formulas divide by what is 0 at
    probs = 0.5; near it, between `lims`, they are replaced by series."""

    has_rsample = True

    def __init__(
        self, probs: Any = None, logits: Any = None, lims: tuple[float, float] = (0.499, 0.501),
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        probs, self.logits = _probability("ContinuousBernoulli", probs, logits)
        self.probs = clamp_probs(probs)
        self._lims = lims
        super().__init__(self.probs.shape)

    param_shape = property(lambda self: self.probs.shape)

    def _away(self) -> tuple[Any, Any]:
        """Where probs are away from 0.5, and probs with another number where they are not."""
        away = (self.probs <= self._lims[0]) | (self.probs > self._lims[1])
        return away, where(away, self.probs, self._lims[0])

    def _log_norm(self) -> Any:
        away, p = self._away()
        exact = (((-p).log1p() - p.log()) / (1 - 2 * p)).abs().log()
        x = (self.probs - 0.5) ** 2
        return where(away, exact, math.log(2.0) + (4 / 3 + 104 / 45 * x) * x)

    @property
    def mean(self) -> Any:
        away, p = self._away()
        x = self.probs - 0.5
        exact = p / (2 * p - 1) + 1 / ((-p).log1p() - p.log())
        return where(away, exact, 0.5 + (1 / 3 + 16 / 45 * x**2) * x)

    @property
    def variance(self) -> Any:
        away, p = self._away()
        x = (self.probs - 0.5) ** 2
        exact = p * (p - 1) / (1 - 2 * p) ** 2 + 1 / ((-p).log1p() - p.log()) ** 2
        return where(away, exact, 1 / 12 - (1 / 15 - 128 / 945 * x) * x)

    def log_prob(self, value: Any) -> Any:
        logits = self.logits + 0 * value
        return self._log_norm() - binary_cross_entropy_with_logits(logits, value + 0 * logits, reduction="none")

    def cdf(self, value: Any) -> Any:
        away, p = self._away()
        exact = (p**value * (1 - p) ** (1 - value) + p - 1) / (2 * p - 1)
        inside = where(away, exact, value)
        return where(value <= 0, 0.0, where(value >= 1, 1.0, inside))

    def icdf(self, value: Any) -> Any:
        away, p = self._away()
        exact = ((-p + value * (2 * p - 1)).log1p() - (-p).log1p()) / (p.log() - (-p).log1p())
        return where(away, exact, value)

    def _draw(self, shape: tuple[int, ...]) -> Any:
        return self.icdf(rand(*shape, dtype=self.probs.dtype))

    def entropy(self) -> Any:
        below = (-self.probs).log1p()
        return self.mean * (below - self.probs.log()) - self._log_norm() - below

    def _kl(self, q: Any) -> Any:
        t = self.logits - q.logits
        return self.mean * t + self._log_norm() + (-self.probs).log1p() - q._log_norm() - (-q.probs).log1p()
