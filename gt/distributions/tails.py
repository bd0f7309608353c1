"""Distributions of ratios, powers, extremes and angles."""

from __future__ import annotations

import math
from typing import Any

from gt.client.functions import elementwise as ew
from gt.client.functions.creation import full_like, ones_like
from gt.client.functions.elementwise import where
from gt.distributions import constraints
from gt.distributions.continuous import EULER, Gamma, Uniform, by_cdf, gamma, uniform
from gt.distributions.distribution import Distribution, tensors
from gt.distributions.transformed import TransformedDistribution
from gt.distributions.transforms import AffineTransform, PowerTransform
from gt.special import i0e, i1e

__all__ = ["FisherSnedecor", "GeneralizedPareto", "InverseGamma", "Kumaraswamy", "VonMises"]


class InverseGamma(TransformedDistribution):
    """1 / x of a number x with a gamma distribution."""

    def __init__(self, concentration: Any, rate: Any, validate_args: bool | None = None) -> None:
        super().__init__(Gamma(concentration, rate), PowerTransform(-1.0))

    concentration = property(lambda self: self.base_dist.concentration)
    rate = property(lambda self: self.base_dist.rate)
    mode = property(lambda self: self.rate / (self.concentration + 1))

    @property
    def mean(self) -> Any:
        a = self.concentration
        return where(a > 1, self.rate / (a - 1), math.inf)

    @property
    def variance(self) -> Any:
        a = self.concentration
        return where(a > 2, self.rate**2 / ((a - 1) ** 2 * (a - 2)), math.inf)

    def entropy(self) -> Any:
        a = self.concentration
        return a + self.rate.log() + a.lgamma() - (1 + a) * a.digamma()


class FisherSnedecor(Distribution):
    """The ratio of two numbers with chi-square distributions, each divided by its degrees of freedom."""

    has_rsample = True

    def __init__(self, df1: Any, df2: Any, validate_args: bool | None = None) -> None:
        self.df1, self.df2 = tensors(df1, df2)
        super().__init__(self.df1.shape)

    @property
    def mean(self) -> Any:
        return where(self.df2 > 2, self.df2 / (self.df2 - 2), math.nan)

    @property
    def mode(self) -> Any:
        found = (self.df1 - 2) / self.df1 * self.df2 / (self.df2 + 2)
        return where(self.df1 > 2, found, math.nan)

    @property
    def variance(self) -> Any:
        a, b = self.df1, self.df2
        found = 2 * b**2 * (a + b - 2) / (a * (b - 2) ** 2 * (b - 4))
        return where(b > 4, found, math.nan)

    def _draw(self, shape: tuple[int, ...]) -> Any:
        return gamma(self.df1 / 2, shape) / self.df1 / (gamma(self.df2 / 2, shape) / self.df2)

    def log_prob(self, value: Any) -> Any:
        a, b = self.df1 / 2, self.df2 / 2
        ratio = self.df1 / self.df2
        norm = (a + b).lgamma() - a.lgamma() - b.lgamma()
        return norm + a * ratio.log() + (a - 1) * ew.log(value) - (a + b) * (ratio * value).log1p()


class GeneralizedPareto(Distribution):
    """What is above a high threshold: an exponential, a power law or a bounded distribution."""

    has_rsample = True

    def __init__(self, loc: Any, scale: Any, concentration: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale, self.concentration = tensors(loc, scale, concentration)
        super().__init__(self.loc.shape)

    mode = property(lambda self: self.loc)

    def _shape_or(self, instead: float) -> tuple[Any, Any]:
        """Where the concentration is 0, and the concentration with another number there."""
        zero = self.concentration.abs() <= 1e-8
        return zero, where(zero, instead, self.concentration)

    @property
    def mean(self) -> Any:
        known = self.concentration < 1
        return where(known, self.loc + self.scale / (1 - where(known, self.concentration, 0.5)), math.nan)

    @property
    def variance(self) -> Any:
        known = self.concentration < 0.5
        k = where(known, self.concentration, 0.25)
        return where(known, self.scale**2 / ((1 - k) ** 2 * (1 - 2 * k)), math.nan)

    @property
    def support(self) -> Any:
        """What samples are in."""
        zero, k = self._shape_or(1.0)
        end = where((self.concentration < 0) & ~zero, self.loc - self.scale / k, math.inf)
        return constraints.interval(self.loc, end)

    def log_survival_function(self, value: Any) -> Any:
        """The logarithm of the probability of more than the value."""
        zero, k = self._shape_or(1.0)
        z = (value - self.loc) / self.scale
        return where(zero, -z, -(k * z).log1p() / k)

    def log_cdf(self, value: Any) -> Any:
        """The logarithm of the probability of at most the value."""
        return (-self.log_survival_function(value).exp()).log1p()

    def cdf(self, value: Any) -> Any:
        return self.log_cdf(value).exp()

    def icdf(self, value: Any) -> Any:
        zero, k = self._shape_or(1.0)
        rest = (-value).log1p()
        return self.loc + self.scale * where(zero, -rest, (-k * rest).expm1() / k)

    def log_prob(self, value: Any) -> Any:
        zero, k = self._shape_or(1.0)
        z = (value - self.loc) / self.scale
        return -self.scale.log() - where(zero, z, (1 / k + 1) * (k * z).log1p())

    def entropy(self) -> Any:
        return self.scale.log() + self.concentration + 1

    _draw = by_cdf


class Kumaraswamy(TransformedDistribution):
    """Numbers from 0 to 1, much like those of Beta, with a simple cdf."""

    def __init__(self, concentration1: Any, concentration0: Any, validate_args: bool | None = None) -> None:
        self.concentration1, self.concentration0 = tensors(concentration1, concentration0)
        a, b = self.concentration1, self.concentration0
        steps = [PowerTransform(1 / b), AffineTransform(1.0, -1.0), PowerTransform(1 / a)]
        super().__init__(Uniform(full_like(a, 0.0), ones_like(a)), steps)

    def _moment(self, n: int) -> Any:
        a, b = 1 + n / self.concentration1, self.concentration0
        return (b.log() + a.lgamma() + b.lgamma() - (a + b).lgamma()).exp()

    mean = property(lambda self: self._moment(1))
    variance = property(lambda self: self._moment(2) - self._moment(1) ** 2)

    @property
    def mode(self) -> Any:
        a, b = self.concentration1, self.concentration0
        return where((a < 1) | (b < 1), math.nan, ((a - 1) / (a * b - 1)) ** (1 / a))

    def _draw(self, shape: tuple[int, ...]) -> Any:
        x = uniform(self.base_dist._shape(shape[: len(shape) - len(self.batch_shape)]), self.concentration1)
        for t in self.transforms:
            x = t(x)
        return x

    def entropy(self) -> Any:
        a, b = self.concentration1, self.concentration0
        harmonic = (b + 1).digamma() + EULER
        return (1 - 1 / b) + (1 - 1 / a) * harmonic - a.log() - b.log()


def _log_i(order: int, x: Any) -> Any:
    """log of the modified Bessel function of order 0 or 1, of a positive x."""
    return (i0e(x) if order == 0 else i1e(x)).log() + x


class VonMises(Distribution):
    """Angles from -pi to pi around a direction. Samples have no gradients."""

    def __init__(self, loc: Any, concentration: Any, validate_args: bool | None = None) -> None:
        self.loc, self.concentration = tensors(loc, concentration)
        super().__init__(self.loc.shape)

    mean = mode = property(lambda self: self.loc)

    @property
    def variance(self) -> Any:
        """1 less the length of the mean of points on the circle."""
        return 1 - (_log_i(1, self.concentration) - _log_i(0, self.concentration)).exp()

    def log_prob(self, value: Any) -> Any:
        k = self.concentration
        return k * (value - self.loc).cos() - math.log(2 * math.pi) - _log_i(0, k)

    def _draw(self, shape: tuple[int, ...], rounds: int = 24) -> Any:
        """By the method of Best and Fisher, in double: a proposal is accepted with a probability of at least 0.65, and
        of `rounds` proposals the first counts."""
        k = self.concentration.double().expand(shape).clamp(min=1e-5)
        tau = 1 + (1 + 4 * k**2).sqrt()
        rho = (tau - (2 * tau).sqrt()) / (2 * k)
        r = (1 + rho**2) / (2 * rho)
        found = full_like(k, 0.0)
        for _ in range(rounds):
            u, v, w = (uniform(shape, k) for _ in range(3))
            z = (math.pi * u).cos()
            f = (1 + r * z) / (r + z)
            c = k * (r - f)
            good = (c * (2 - c) - v > 0) | ((c / v).log() + 1 - c >= 0)
            found = where(good, (w - 0.5).sign() * f.clamp(-1, 1).acos(), found)
        turned = (found + math.pi + self.loc) % (2 * math.pi) - math.pi
        return turned.to(self.loc.dtype)
