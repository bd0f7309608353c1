"""Distributions of real numbers. Each class is its formulas; tests compare them with torch's."""

from __future__ import annotations

import math
from typing import Any

from gt.client.compat.fallback import torch_op
from gt.client.functions import elementwise as ew
from gt.client.functions.casts import finfo
from gt.client.functions.creation import full_like, zeros_like
from gt.client.functions.elementwise import where
from gt.client.functions.randoms import rand, randn
from gt.client.grad.custom import Function
from gt.client.tensor import Tensor
from gt.distributions.distribution import Distribution, tensors

__all__ = [
    "Beta", "Cauchy", "Chi2", "Exponential", "Gamma", "Gumbel", "HalfCauchy", "HalfNormal", "Laplace", "LogNormal",
    "Normal", "Pareto", "StudentT", "Uniform", "Weibull",
]  # fmt: skip

EULER = 0.5772156649015329
LOG_2PI = math.log(2 * math.pi)


def uniform(shape: tuple[int, ...], like: Tensor) -> Any:
    """Random numbers between 0 and 1, never 0."""
    least = 2.0**-24 if like.dtype.itemsize <= 4 else 2.0**-53
    return rand(*shape, dtype=like.dtype).clamp(min=least)


def by_cdf(self: Any, shape: tuple[int, ...]) -> Any:
    """Samples of a distribution, by the inverse of its cdf."""
    return self.icdf(uniform(shape, self.scale))


class _LogGamma(Function):
    """Logarithms of samples x of a gamma distribution with rate 1. dx / dalpha is -(dF / dalpha) / (dF / dx), where F
    is the cdf."""

    @staticmethod
    def forward(ctx: Any, alpha: Any) -> Any:
        log = _log_standard_gamma(alpha)
        ctx.save_for_backward(alpha, _positive(log))
        return log

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        alpha, x = ctx.saved_tensors
        return g * torch_op("_standard_gamma_grad", alpha, x) / x


def _positive(log: Any) -> Any:
    """exp(log), and never 0."""
    return log.exp().clamp(min=finfo(log.dtype).tiny)


def log_gamma(alpha: Any, shape: tuple[int, ...]) -> Any:
    """Logarithms of samples of a gamma distribution with rate 1. With a small alpha the samples are too small for a
    float, and their ratios are made of these."""
    made: Any = _LogGamma.apply(alpha.expand(shape))
    return made


def gamma(alpha: Any, shape: tuple[int, ...]) -> Any:
    """Samples of a gamma distribution with rate 1."""
    return _positive(log_gamma(alpha, shape))


def dirichlet(alpha: Any) -> Any:
    """Samples of a Dirichlet distribution."""
    return within(log_gamma(alpha, alpha.shape).softmax(-1))


def within(probability: Any) -> Any:
    """Probabilities that are neither 0 nor 1."""
    limits = finfo(probability.dtype)
    return probability.clamp(limits.tiny, 1 - limits.eps)


def _log_standard_gamma(alpha: Any, rounds: int = 8) -> Any:
    """By the method of Marsaglia and Tsang: a proposal is accepted with a probability of at least 0.95, and of `rounds`
    proposals the first that is accepted counts."""
    shape = alpha.shape
    small = alpha < 1
    d = where(small, alpha + 1, alpha) - 1 / 3
    c = 1 / (9 * d).sqrt()
    found = d  # what no proposal replaces, once in 10 ** 10 times
    for _ in range(rounds):
        x = randn(*shape, dtype=alpha.dtype)
        v = (1 + c * x) ** 3
        u = uniform(shape, alpha)
        good = (v > 0) & (u.log() < 0.5 * x * x + d - d * v + d * v.clamp(min=1e-30).log())
        found = where(good, d * v, found)
    return found.log() + where(small, uniform(shape, alpha).log() / alpha, 0.0)


class _Located(Distribution):
    """A distribution around a place."""

    has_rsample = True

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = tensors(loc, scale)
        super().__init__(self.loc.shape)

    mean = mode = property(lambda self: self.loc)


class Normal(_Located):
    """The normal distribution."""

    variance = property(lambda self: self.scale**2)
    stddev = property(lambda self: self.scale)

    def _draw(self, shape: tuple[int, ...]) -> Any:
        return self.loc + self.scale * randn(*shape, dtype=self.loc.dtype)

    def log_prob(self, value: Any) -> Any:
        return -0.5 * ((value - self.loc) / self.scale) ** 2 - self.scale.log() - 0.5 * LOG_2PI

    def entropy(self) -> Any:
        return 0.5 + 0.5 * LOG_2PI + self.scale.log()

    def cdf(self, value: Any) -> Any:
        return 0.5 * (1 + ((value - self.loc) / (self.scale * math.sqrt(2))).erf())

    def icdf(self, value: Any) -> Any:
        return self.loc + self.scale * math.sqrt(2) * (2 * value - 1).erfinv()

    def _kl(self, q: Any) -> Any:
        ratio = (self.scale / q.scale) ** 2
        return 0.5 * (ratio + ((self.loc - q.loc) / q.scale) ** 2 - 1 - ratio.log())


class LogNormal(_Located):
    """A number whose logarithm has a normal distribution."""

    base_dist = property(lambda self: Normal(self.loc, self.scale))
    mean = property(lambda self: (self.loc + self.scale**2 / 2).exp())
    mode = property(lambda self: (self.loc - self.scale**2).exp())
    variance = property(lambda self: (self.scale**2).expm1() * (2 * self.loc + self.scale**2).exp())

    def _draw(self, shape: tuple[int, ...]) -> Any:
        return self.base_dist._draw(shape).exp()

    def log_prob(self, value: Any) -> Any:
        return self.base_dist.log_prob(value.log()) - value.log()

    def entropy(self) -> Any:
        return self.base_dist.entropy() + self.loc

    def cdf(self, value: Any) -> Any:
        return self.base_dist.cdf(value.log())

    def icdf(self, value: Any) -> Any:
        return self.base_dist.icdf(value).exp()

    _kl = Normal._kl


class _Half(Distribution):
    """The absolute value of a symmetric distribution around 0."""

    has_rsample = True
    _symmetric: type[_Located]

    def __init__(self, scale: Any, validate_args: bool | None = None) -> None:
        (self.scale,) = tensors(scale)
        super().__init__(self.scale.shape)

    base_dist = property(lambda self: self._symmetric(zeros_like(self.scale), self.scale))
    mode = property(lambda self: zeros_like(self.scale))

    def _draw(self, shape: tuple[int, ...]) -> Any:
        return self.base_dist._draw(shape).abs()

    def log_prob(self, value: Any) -> Any:
        return where(value >= 0, self.base_dist.log_prob(value) + math.log(2), -math.inf)

    def entropy(self) -> Any:
        return self.base_dist.entropy() - math.log(2)

    def cdf(self, value: Any) -> Any:
        return 2 * self.base_dist.cdf(value) - 1

    def icdf(self, value: Any) -> Any:
        return self.base_dist.icdf((value + 1) / 2)


class HalfNormal(_Half):
    """The absolute value of a normal distribution around 0."""

    _symmetric = Normal
    mean = property(lambda self: self.scale * math.sqrt(2 / math.pi))
    variance = property(lambda self: self.scale**2 * (1 - 2 / math.pi))

    def _kl(self, q: Any) -> Any:
        return self.base_dist._kl(q.base_dist)


class Uniform(Distribution):
    """All numbers from low to high alike."""

    has_rsample = True

    def __init__(self, low: Any, high: Any, validate_args: bool | None = None) -> None:
        self.low, self.high = tensors(low, high)
        super().__init__(self.low.shape)

    mean = property(lambda self: (self.low + self.high) / 2)
    mode = property(lambda self: math.nan * self.high)  # all are as probable
    variance = property(lambda self: (self.high - self.low) ** 2 / 12)

    def _draw(self, shape: tuple[int, ...]) -> Any:
        return self.low + (self.high - self.low) * rand(*shape, dtype=self.low.dtype)

    def log_prob(self, value: Any) -> Any:
        inside = (value >= self.low) & (value < self.high)
        return where(inside, -(self.high - self.low).log(), -math.inf)

    def entropy(self) -> Any:
        return (self.high - self.low).log()

    def cdf(self, value: Any) -> Any:
        return ((value - self.low) / (self.high - self.low)).clamp(0, 1)

    def icdf(self, value: Any) -> Any:
        return self.low + value * (self.high - self.low)

    def _kl(self, q: Any) -> Any:
        inside = (q.low <= self.low) & (self.high <= q.high)
        return where(inside, ((q.high - q.low) / (self.high - self.low)).log(), math.inf)


class Exponential(Distribution):
    """The time until an event that happens at a constant rate."""

    has_rsample = True

    def __init__(self, rate: Any, validate_args: bool | None = None) -> None:
        (self.rate,) = tensors(rate)
        super().__init__(self.rate.shape)

    mean = stddev = property(lambda self: 1 / self.rate)
    mode = property(lambda self: zeros_like(self.rate))
    variance = property(lambda self: self.rate**-2.0)

    def _draw(self, shape: tuple[int, ...]) -> Any:
        return -uniform(shape, self.rate).log() / self.rate

    def log_prob(self, value: Any) -> Any:
        return self.rate.log() - self.rate * value

    def entropy(self) -> Any:
        return 1 - self.rate.log()

    def cdf(self, value: Any) -> Any:
        return 1 - (-self.rate * value).exp()

    def icdf(self, value: Any) -> Any:
        return -(-value).log1p() / self.rate

    def _kl(self, q: Any) -> Any:
        ratio = q.rate / self.rate
        return ratio - 1 - ratio.log()


class Laplace(_Located):
    """Exponential to both sides of a place."""

    variance = property(lambda self: 2 * self.scale**2)

    _draw = by_cdf

    def log_prob(self, value: Any) -> Any:
        return -(2 * self.scale).log() - (value - self.loc).abs() / self.scale

    def entropy(self) -> Any:
        return 1 + (2 * self.scale).log()

    def cdf(self, value: Any) -> Any:
        z = value - self.loc
        return 0.5 - 0.5 * z.sign() * (-z.abs() / self.scale).expm1()

    def icdf(self, value: Any) -> Any:
        z = value - 0.5
        return self.loc - self.scale * z.sign() * (-2 * z.abs()).log1p()

    def _kl(self, q: Any) -> Any:
        ratio, apart = self.scale / q.scale, (self.loc - q.loc).abs()
        return -ratio.log() + apart / q.scale + ratio * (-apart / self.scale).exp() - 1


class Cauchy(_Located):
    """The Cauchy distribution, which has no mean."""

    mean = property(lambda self: full_like(self.loc, math.nan))
    variance = property(lambda self: full_like(self.loc, math.inf))

    _draw = by_cdf

    def log_prob(self, value: Any) -> Any:
        return -math.log(math.pi) - self.scale.log() - (((value - self.loc) / self.scale) ** 2).log1p()

    def entropy(self) -> Any:
        return math.log(4 * math.pi) + self.scale.log()

    def cdf(self, value: Any) -> Any:
        return ((value - self.loc) / self.scale).atan() / math.pi + 0.5

    def icdf(self, value: Any) -> Any:
        return self.loc + self.scale * (math.pi * (value - 0.5)).tan()

    def _kl(self, q: Any) -> Any:
        return (((self.scale + q.scale) ** 2 + (self.loc - q.loc) ** 2) / (4 * self.scale * q.scale)).log()


class HalfCauchy(_Half):
    """The absolute value of a Cauchy distribution around 0."""

    _symmetric = Cauchy
    mean = variance = property(lambda self: full_like(self.scale, math.inf))


class Gumbel(_Located):
    """The distribution of the largest of many numbers."""

    mean = property(lambda self: self.loc + self.scale * EULER)
    variance = property(lambda self: (math.pi**2 / 6) * self.scale**2)

    _draw = by_cdf

    def cdf(self, value: Any) -> Any:
        return (-((self.loc - value) / self.scale).exp()).exp()

    def icdf(self, value: Any) -> Any:
        return self.loc - self.scale * (-value.log()).log()

    def log_prob(self, value: Any) -> Any:
        z = (self.loc - value) / self.scale
        return z - z.exp() - self.scale.log()

    def entropy(self) -> Any:
        return self.scale.log() + 1 + EULER

    def _kl(self, q: Any) -> Any:
        ratio, a, b = self.scale / q.scale, q.loc / q.scale, self.loc / q.scale
        return -ratio.log() - a + b + ratio * EULER + (a + (1 + ratio).lgamma() - b).exp() - (1 + EULER)


class Weibull(Distribution):
    """The Weibull distribution of lifetimes."""

    has_rsample = True

    def __init__(self, scale: Any, concentration: Any, validate_args: bool | None = None) -> None:
        self.scale, self.concentration = tensors(scale, concentration)
        super().__init__(self.scale.shape)

    mean = property(lambda self: self.scale * (1 + 1 / self.concentration).lgamma().exp())

    @property
    def mode(self) -> Any:
        k = self.concentration
        return self.scale * ((k - 1) / k) ** (1 / k)

    @property
    def variance(self) -> Any:
        k = 1 / self.concentration
        return self.scale**2 * ((1 + 2 * k).lgamma().exp() - (2 * (1 + k).lgamma()).exp())

    _draw = by_cdf

    def cdf(self, value: Any) -> Any:
        return -(-((value / self.scale) ** self.concentration)).expm1()

    def icdf(self, value: Any) -> Any:
        return self.scale * (-(-value).log1p()) ** (1 / self.concentration)

    def log_prob(self, value: Any) -> Any:
        k, z = self.concentration, value / self.scale
        return (k / self.scale).log() + (k - 1) * z.log() - z**k

    def entropy(self) -> Any:
        return EULER * (1 - 1 / self.concentration) + (self.scale / self.concentration).log() + 1


class Pareto(Distribution):
    """A power law from a smallest number on."""

    has_rsample = True

    def __init__(self, scale: Any, alpha: Any, validate_args: bool | None = None) -> None:
        self.scale, self.alpha = tensors(scale, alpha)
        super().__init__(self.scale.shape)

    mode = property(lambda self: self.scale)

    @property
    def mean(self) -> Any:
        a = self.alpha.clamp(min=1)
        return a * self.scale / (a - 1)

    @property
    def variance(self) -> Any:
        a = self.alpha.clamp(min=2)
        return self.scale**2 * a / ((a - 1) ** 2 * (a - 2))

    _draw = by_cdf

    def cdf(self, value: Any) -> Any:
        return 1 - (self.scale / value) ** self.alpha

    def icdf(self, value: Any) -> Any:
        return self.scale * (1 - value) ** (-1 / self.alpha)

    def log_prob(self, value: Any) -> Any:
        return self.alpha.log() + self.alpha * self.scale.log() - (self.alpha + 1) * value.log()

    def entropy(self) -> Any:
        return (self.scale / self.alpha).log() + 1 + 1 / self.alpha

    def _kl(self, q: Any) -> Any:
        ratio = q.alpha / self.alpha
        found = q.alpha * (self.scale / q.scale).log() - ratio.log() + ratio - 1
        return where(self.scale < q.scale, math.inf, found)


class Gamma(Distribution):
    """The gamma distribution."""

    has_rsample = True

    def __init__(self, concentration: Any, rate: Any, validate_args: bool | None = None) -> None:
        self.concentration, self.rate = tensors(concentration, rate)
        super().__init__(self.concentration.shape)

    mean = property(lambda self: self.concentration / self.rate)
    mode = property(lambda self: ((self.concentration - 1) / self.rate).clamp(min=0))
    variance = property(lambda self: self.concentration / self.rate**2)

    def _draw(self, shape: tuple[int, ...]) -> Any:
        return gamma(self.concentration, shape) / self.rate

    def cdf(self, value: Any) -> Any:
        return torch_op("special.gammainc", self.concentration, self.rate * value)

    def log_prob(self, value: Any) -> Any:
        a, b = self.concentration, self.rate
        return ew.xlogy(a, b) + ew.xlogy(a - 1, value) - b * value - a.lgamma()

    def entropy(self) -> Any:
        a = self.concentration
        return a - self.rate.log() + a.lgamma() + (1 - a) * a.digamma()

    def _kl(self, q: Any) -> Any:
        a, b = self.concentration, q.concentration
        first = b * (self.rate / q.rate).log() + b.lgamma() - a.lgamma()
        return first + (a - b) * a.digamma() + (q.rate - self.rate) * (a / self.rate)


class Chi2(Gamma):
    """The sum of df squared normal numbers."""

    def __init__(self, df: Any, validate_args: bool | None = None) -> None:
        (df,) = tensors(df)
        super().__init__(df / 2, full_like(df, 0.5))

    df = property(lambda self: self.concentration * 2)


class Beta(Distribution):
    """Numbers from 0 to 1."""

    has_rsample = True

    def __init__(self, concentration1: Any, concentration0: Any, validate_args: bool | None = None) -> None:
        self.concentration1, self.concentration0 = tensors(concentration1, concentration0)
        super().__init__(self.concentration1.shape)

    mean = property(lambda self: self.concentration1 / (self.concentration1 + self.concentration0))

    @property
    def mode(self) -> Any:
        a, b = (self.concentration1 - 1).clamp(min=0.0), (self.concentration0 - 1).clamp(min=0.0)
        return where((self.concentration1 < 1) & (self.concentration0 < 1), 1.0, a / (a + b))  # of two, torch says 1

    @property
    def variance(self) -> Any:
        a, b = self.concentration1, self.concentration0
        return a * b / ((a + b) ** 2 * (a + b + 1))

    def _draw(self, shape: tuple[int, ...]) -> Any:
        return within((log_gamma(self.concentration1, shape) - log_gamma(self.concentration0, shape)).sigmoid())

    def _log_normalizer(self) -> Any:
        a, b = self.concentration1, self.concentration0
        return a.lgamma() + b.lgamma() - (a + b).lgamma()

    def log_prob(self, value: Any) -> Any:
        a, b = self.concentration1, self.concentration0
        return ew.xlogy(a - 1, value) + ew.xlogy(b - 1, 1 - value) - self._log_normalizer()

    def entropy(self) -> Any:
        a, b = self.concentration1, self.concentration0
        inner = (a - 1) * a.digamma() + (b - 1) * b.digamma() - (a + b - 2) * (a + b).digamma()
        return self._log_normalizer() - inner

    def _kl(self, q: Any) -> Any:
        a, b, total = self.concentration1, self.concentration0, self.concentration1 + self.concentration0
        found = q._log_normalizer() - self._log_normalizer()
        found = found + (a - q.concentration1) * a.digamma() + (b - q.concentration0) * b.digamma()
        return found + (q.concentration1 + q.concentration0 - total) * total.digamma()


class StudentT(Distribution):
    """Student's t distribution."""

    has_rsample = True

    def __init__(self, df: Any, loc: Any = 0.0, scale: Any = 1.0, validate_args: bool | None = None) -> None:
        self.df, self.loc, self.scale = tensors(df, loc, scale)
        super().__init__(self.df.shape)

    mean = property(lambda self: where(self.df > 1, self.loc, math.nan))
    mode = property(lambda self: self.loc)

    @property
    def variance(self) -> Any:
        wide = self.scale**2 * self.df / (self.df - 2)
        return where(self.df > 2, wide, where(self.df > 1, math.inf, full_like(self.df, math.nan)))

    def _draw(self, shape: tuple[int, ...]) -> Any:
        z = gamma(self.df / 2, shape) * 2
        return self.loc + self.scale * randn(*shape, dtype=self.loc.dtype) * (self.df / z).sqrt()

    def log_prob(self, value: Any) -> Any:
        y, n = (value - self.loc) / self.scale, self.df
        norm = self.scale.log() + 0.5 * n.log() + 0.5 * math.log(math.pi) + (n / 2).lgamma() - ((n + 1) / 2).lgamma()
        return -0.5 * (n + 1) * (y**2 / n).log1p() - norm

    def entropy(self) -> Any:
        n = self.df
        beta = (n / 2).lgamma() + 0.5 * math.log(math.pi) - ((n + 1) / 2).lgamma()
        inner = (n + 1) / 2 * (((n + 1) / 2).digamma() - (n / 2).digamma())
        return self.scale.log() + inner + 0.5 * n.log() + beta
