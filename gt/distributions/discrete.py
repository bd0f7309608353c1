"""Distributions of counts and categories."""

from __future__ import annotations

import math
from typing import Any

from gt.client.functions import elementwise as ew
from gt.client.functions.creation import arange, full_like, zeros_like
from gt.client.functions.randoms import multinomial, poisson, rand
from gt.distributions.continuous import gamma, uniform
from gt.distributions.distribution import Distribution, one_of_two, tensors
from gt.distributions.parameters import probs_to_logits
from gt.nn.functional import binary_cross_entropy_with_logits, one_hot, softplus

__all__ = [
    "Bernoulli", "Binomial", "Categorical", "Geometric", "Multinomial", "NegativeBinomial", "OneHotCategorical",
    "OneHotCategoricalStraightThrough", "Poisson",
]  # fmt: skip


def _probability(name: str, probs: Any, logits: Any) -> tuple[Any, Any]:
    """Probabilities and their logits, from one of them."""
    one_of_two(name, "probs", probs, "logits", logits)
    if probs is not None:
        (probs,) = tensors(probs)
        return probs, probs_to_logits(probs, True)
    (logits,) = tensors(logits)
    return logits.sigmoid(), logits


class Bernoulli(Distribution):
    """1 with probability `probs`, else 0."""

    has_enumerate_support = True

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        self.probs, self.logits = _probability("Bernoulli", probs, logits)
        super().__init__(self.probs.shape)

    mean = property(lambda self: self.probs)
    variance = property(lambda self: self.probs * (1 - self.probs))

    @property
    def mode(self) -> Any:
        likely = (self.probs >= 0.5).to(self.probs.dtype)
        return ew.where(self.probs == 0.5, math.nan, likely)

    def _draw(self, shape: tuple[int, ...]) -> Any:
        return (rand(*shape, dtype=self.probs.dtype) < self.probs).to(self.probs.dtype)

    def log_prob(self, value: Any) -> Any:
        logits = self.logits + 0 * value
        return -binary_cross_entropy_with_logits(logits, value + 0 * logits, reduction="none")

    def entropy(self) -> Any:
        return binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none")

    def _kl(self, q: Any) -> Any:
        return -self.entropy() - self.probs * q.logits + softplus(q.logits)


class Geometric(Distribution):
    """The number of failures before the first success."""

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        self.probs, self.logits = _probability("Geometric", probs, logits)
        super().__init__(self.probs.shape)

    mean = property(lambda self: 1 / self.probs - 1)
    mode = property(lambda self: zeros_like(self.probs))
    variance = property(lambda self: (1 / self.probs - 1) / self.probs)

    def _draw(self, shape: tuple[int, ...]) -> Any:
        return (uniform(shape, self.probs).log() / (-self.probs).log1p()).floor()

    def log_prob(self, value: Any) -> Any:
        return value * (-self.probs).log1p() + self.probs.log()

    def entropy(self) -> Any:
        return binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none") / self.probs

    def _kl(self, q: Any) -> Any:
        return -self.entropy() - (-q.probs).log1p() / self.probs - q.logits


class Poisson(Distribution):
    """The number of events at a constant rate."""

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        (self.rate,) = tensors(rate)
        super().__init__(self.rate.shape)

    mean = variance = property(lambda self: self.rate)
    mode = property(lambda self: self.rate.floor())

    def _draw(self, shape: tuple[int, ...]) -> Any:
        return poisson(self.rate.expand(shape))

    def log_prob(self, value: Any) -> Any:
        return ew.xlogy(value, self.rate) - self.rate - (value + 1).lgamma()

    def _kl(self, q: Any) -> Any:
        return self.rate * (self.rate.log() - q.rate.log()) - (self.rate - q.rate)


class Binomial(Distribution):
    """The number of successes in `total_count` trials."""

    has_enumerate_support = True

    def __init__(
        self, total_count: Any = 1, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        self.probs, self.logits = _probability("Binomial", probs, logits)
        self.total_count, self.probs, self.logits = tensors(total_count, self.probs, self.logits)
        self.total_count = self.total_count.to(self.probs.dtype)
        super().__init__(self.probs.shape)

    mean = property(lambda self: self.total_count * self.probs)
    mode = property(lambda self: ((self.total_count + 1) * self.probs).floor().clamp(max=self.total_count))
    variance = property(lambda self: self.total_count * self.probs * (1 - self.probs))

    def _draw(self, shape: tuple[int, ...]) -> Any:
        trials = arange(int(self.total_count.max().item())).reshape(-1, *(1 for _ in shape))  # waits for the count
        success = rand(trials.shape[0], *shape, dtype=self.probs.dtype) < self.probs
        return (success & (trials < self.total_count)).to(self.probs.dtype).sum(0)

    def enumerate_support(self, expand: bool = True) -> Any:
        """All counts up to the largest of total_count, along a new first dimension. Waits for it."""
        values = arange(int(self.total_count.max().item()) + 1, dtype=self.probs.dtype)
        values = values.reshape(-1, *(1 for _ in self.batch_shape))
        return values.expand(-1, *self.batch_shape) if expand else values

    def entropy(self) -> Any:
        values = self.enumerate_support()
        log_prob = ew.where(values <= self.total_count, self.log_prob(values.minimum(self.total_count)), -1e30)
        return -(log_prob.exp() * log_prob).sum(0)

    def log_prob(self, value: Any) -> Any:
        n, x = self.total_count, self.logits
        ways = (n + 1).lgamma() - (value + 1).lgamma() - (n - value + 1).lgamma()
        return ways + value * x - n * softplus(x)

    def _kl(self, q: Any) -> Any:
        each = self.probs * (self.logits - q.logits) + (-self.probs).log1p() - (-q.probs).log1p()
        return ew.where(self.total_count > q.total_count, math.inf, self.total_count * each)


class NegativeBinomial(Distribution):
    """The number of successes before `total_count` failures."""

    def __init__(
        self, total_count: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        self.probs, self.logits = _probability("NegativeBinomial", probs, logits)
        self.total_count, self.probs, self.logits = tensors(total_count, self.probs, self.logits)
        self.total_count = self.total_count.to(self.probs.dtype)
        super().__init__(self.probs.shape)

    mean = property(lambda self: self.total_count * self.logits.exp())
    mode = property(lambda self: ((self.total_count - 1) * self.logits.exp()).floor().clamp(min=0.0))
    variance = property(lambda self: self.mean / (-self.logits).sigmoid())

    def _draw(self, shape: tuple[int, ...]) -> Any:
        return poisson(gamma(self.total_count, shape) * self.logits.exp())

    def log_prob(self, value: Any) -> Any:
        n, x = self.total_count, self.logits
        ways = (n + value).lgamma() - (value + 1).lgamma() - n.lgamma()
        return ways - n * softplus(x) - value * softplus(-x)


class Categorical(Distribution):
    """One of several categories, by number."""

    has_enumerate_support = True

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        one_of_two("Categorical", "probs", probs, "logits", logits)
        if probs is not None:
            (probs,) = tensors(probs)
            self.probs = probs / probs.sum(-1, keepdim=True)
            self.logits = probs_to_logits(self.probs)
        else:
            (logits,) = tensors(logits)
            self.logits = logits - logits.logsumexp(-1, keepdim=True)
            self.probs = self.logits.exp()
        super().__init__(self.logits.shape[:-1])

    mean = variance = property(lambda self: full_like(self.probs[..., 0], math.nan))  # categories are no numbers

    mode = property(lambda self: self.probs.argmax(-1), doc="The most probable category.")
    param_shape = property(lambda self: self.logits.shape, doc="The shape of the probabilities.")

    def _draw(self, shape: tuple[int, ...]) -> Any:
        count = math.prod(shape[: len(shape) - len(self.batch_shape)])
        flat = self.probs.reshape(-1, self.probs.shape[-1])
        return multinomial(flat, count, True).t().reshape(shape)

    def log_prob(self, value: Any) -> Any:
        value = value.long()
        logits = self.logits.expand(*(value.shape if value.ndim >= len(self.batch_shape) else self.batch_shape), -1)
        return logits.gather(-1, value.expand(logits.shape[:-1]).unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Any:
        return -(self.logits.clamp(min=-3.4e38) * self.probs).sum(-1)

    def _kl(self, q: Any) -> Any:
        return (self.probs * (self.logits - q.logits)).sum(-1)

    def enumerate_support(self, expand: bool = True) -> Any:
        """All categories, along a new first dimension."""
        values = arange(self.probs.shape[-1]).reshape(-1, *(1 for _ in self.batch_shape))
        return values.expand(-1, *self.batch_shape) if expand else values


class OneHotCategorical(Distribution):
    """One of several categories, as a vector with a single 1."""

    def __init__(self, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
        self._categorical = Categorical(probs, logits)
        self.probs, self.logits = self._categorical.probs, self._categorical.logits
        super().__init__(self.probs.shape[:-1], self.probs.shape[-1:])

    param_shape = property(lambda self: self.probs.shape, doc="The shape of the probabilities.")
    mean = property(lambda self: self.probs)
    mode = property(lambda self: one_hot(self._categorical.mode, self.probs.shape[-1]).to(self.probs.dtype))
    variance = property(lambda self: self.probs * (1 - self.probs))

    def _draw(self, shape: tuple[int, ...]) -> Any:
        return one_hot(self._categorical._draw(shape[:-1]), self.probs.shape[-1]).to(self.probs.dtype)

    def log_prob(self, value: Any) -> Any:
        return (self.logits * value).sum(-1)

    def entropy(self) -> Any:
        return self._categorical.entropy()

    _kl = Categorical._kl


class OneHotCategoricalStraightThrough(OneHotCategorical):
    """The same; gradients pass through a sample to the probabilities as if it were them."""

    has_rsample = True

    def _draw(self, shape: tuple[int, ...]) -> Any:
        return super()._draw(shape) + (self.probs - self.probs.detach())


class Multinomial(Distribution):
    """How often each of several categories is drawn in `total_count` draws."""

    def __init__(
        self, total_count: int = 1, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        self.total_count = total_count
        self._categorical = Categorical(probs, logits)
        self.probs, self.logits = self._categorical.probs, self._categorical.logits
        super().__init__(self.probs.shape[:-1], self.probs.shape[-1:])

    mean = property(lambda self: self.probs * self.total_count)
    variance = property(lambda self: self.total_count * self.probs * (1 - self.probs))

    def _draw(self, shape: tuple[int, ...]) -> Any:
        draws = self._categorical._draw((self.total_count, *shape[:-1]))
        return one_hot(draws, self.probs.shape[-1]).to(self.probs.dtype).sum(0)

    def entropy(self) -> Any:
        n, p = self.total_count, self.probs
        k = arange(1.0, n + 1, dtype=p.dtype).reshape(-1, *(1 for _ in p.shape))
        ways = math.lgamma(n + 1) - (k + 1).lgamma() - (n - k + 1).lgamma()
        chances = (ways + k * self.logits + (n - k) * (-p).log1p()).exp()  # of drawing a category k times
        return n * self._categorical.entropy() - math.lgamma(n + 1) + (chances * (k + 1).lgamma()).sum((0, -1))

    def log_prob(self, value: Any) -> Any:
        ways = (value.sum(-1) + 1).lgamma() - (value + 1).lgamma().sum(-1)
        return ways + (self.logits * value).sum(-1)
