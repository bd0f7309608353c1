"""Invertible functions of numbers, and the distributions of what they make of samples.

All transforms work element by element. One with `cache_size=1` remembers its last argument and result, so that the
inverse of a sample is what it was made of, and not a rounded number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gt.client.functions import elementwise as ew
from gt.distributions.distribution import Distribution
from gt.nn import functional as F

__all__ = [
    "AffineTransform", "ComposeTransform", "ExpTransform", "PowerTransform", "SigmoidTransform", "SoftplusTransform",
    "TanhTransform", "Transform", "TransformedDistribution",
]  # fmt: skip


class Transform:
    """The base class: `t(x)`, `t.inv(y)`, and the logarithm of the derivative's absolute value."""

    bijective = True
    sign: Any = 1  #: Whether it increases (1) or decreases (-1).

    def __init__(self, cache_size: int = 0) -> None:
        self._cache_size = cache_size
        self._last: tuple[Any, Any] | None = None

    def __call__(self, x: Any) -> Any:
        if self._last is not None and self._last[0] is x:
            return self._last[1]
        return self._remembered(x, self._call(x))[1]

    def _remembered(self, x: Any, y: Any) -> tuple[Any, Any]:
        if self._cache_size:
            self._last = x, y
        return x, y

    def _back(self, y: Any) -> Any:
        if self._last is not None and self._last[1] is y:
            return self._last[0]
        return self._remembered(self._inverse(y), y)[0]

    @property
    def inv(self) -> Transform:
        """The inverse transform."""
        return _Inverse(self)

    def _call(self, x: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no _call")

    def _inverse(self, y: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no _inverse")

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        """log |dy/dx|, where y = t(x)."""
        raise NotImplementedError(f"{type(self).__name__} has no log_abs_det_jacobian")

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class _Inverse(Transform):
    """The inverse of a transform."""

    def __init__(self, of: Transform) -> None:
        super().__init__()
        self._of = of

    sign = property(lambda self: self._of.sign)
    inv = property(lambda self: self._of)

    def _call(self, x: Any) -> Any:
        return self._of._back(x)

    def _inverse(self, y: Any) -> Any:
        return self._of(y)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        return -self._of.log_abs_det_jacobian(y, x)


class ComposeTransform(Transform):
    """Several transforms, the first of them first."""

    def __init__(self, parts: Sequence[Transform], cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.parts = list(parts)

    sign = property(lambda self: math.prod(part.sign for part in self.parts))

    def _call(self, x: Any) -> Any:
        for part in self.parts:
            x = part(x)
        return x

    def _inverse(self, y: Any) -> Any:
        for part in reversed(self.parts):
            y = part.inv(y)
        return y

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        total: Any = ew.mul(x, 0)
        for part in self.parts:
            after = part(x)
            total, x = total + part.log_abs_det_jacobian(x, after), after
        return total


class ExpTransform(Transform):
    """exp(x)."""

    def _call(self, x: Any) -> Any:
        return x.exp()

    def _inverse(self, y: Any) -> Any:
        return y.log()

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        return x


class PowerTransform(Transform):
    """x ** exponent, of positive numbers."""

    def __init__(self, exponent: Any, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.exponent = exponent

    sign = property(lambda self: ew.sign(self.exponent) if hasattr(self.exponent, "shape") else _sign(self.exponent))

    def _call(self, x: Any) -> Any:
        return x**self.exponent

    def _inverse(self, y: Any) -> Any:
        return y ** (1 / self.exponent)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        return (self.exponent * y / x).abs().log()


class SigmoidTransform(Transform):
    """1 / (1 + exp(-x))."""

    def _call(self, x: Any) -> Any:
        return x.sigmoid()

    def _inverse(self, y: Any) -> Any:
        return y.log() - (-y).log1p()

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        return -F.softplus(-x) - F.softplus(x)


class SoftplusTransform(Transform):
    """log(1 + exp(x))."""

    def _call(self, x: Any) -> Any:
        return F.softplus(x)

    def _inverse(self, y: Any) -> Any:
        return (-y).expm1().neg().log() + y

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        return -F.softplus(-x)


class TanhTransform(Transform):
    """tanh(x)."""

    def _call(self, x: Any) -> Any:
        return x.tanh()

    def _inverse(self, y: Any) -> Any:
        return y.atanh()

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        return 2.0 * (math.log(2.0) - x - F.softplus(-2.0 * x))  # exact where 1 - tanh(x) ** 2 is rounded to 0


class AffineTransform(Transform):
    """loc + scale * x; the last `event_dim` dimensions are one event."""

    def __init__(self, loc: Any, scale: Any, event_dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.loc, self.scale, self.event_dim = loc, scale, event_dim

    sign = property(lambda self: ew.sign(self.scale) if hasattr(self.scale, "shape") else _sign(self.scale))

    def _call(self, x: Any) -> Any:
        return self.loc + self.scale * x

    def _inverse(self, y: Any) -> Any:
        return (y - self.loc) / self.scale

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        size = self.scale.abs().log() if hasattr(self.scale, "shape") else math.log(abs(self.scale))
        return summed(ew.mul(x, 0) + size, self.event_dim)


def _sign(number: float) -> int:
    return 1 if number > 0 else -1


def summed(x: Any, dims: int) -> Any:
    """The sum over the last dimensions."""
    return x.sum(tuple(range(-dims, 0))) if dims else x


class TransformedDistribution(Distribution):
    """The distribution of samples of another one after transforms.

    >>> from gt.distributions import Normal, Uniform
    >>> TransformedDistribution(Uniform(0.0, 1.0), AffineTransform(1.0, 4.0)).log_prob(Normal(2.0, 1.0).mean)
    tensor(-1.3863)
    """

    def __init__(
        self, base_distribution: Any, transforms: Transform | Sequence[Transform], validate_args: bool | None = None
    ) -> None:
        self.base_dist = base_distribution
        self.transforms = [transforms] if isinstance(transforms, Transform) else list(transforms)
        batch, event = tuple(base_distribution.batch_shape), tuple(base_distribution.event_shape)
        for extra in [getattr(t, "event_dim", 0) - len(event) for t in self.transforms]:
            if extra > 0:  # dimensions of the batch become part of an event
                batch, event = batch[: len(batch) - extra], (*batch[len(batch) - extra :], *event)
        super().__init__(batch, event)
        self.has_rsample = base_distribution.has_rsample

    def expand(self, batch_shape: Any) -> TransformedDistribution:
        more = len(self.event_shape) - len(self.base_dist.event_shape)
        base = self.base_dist.expand((*batch_shape, *self.event_shape[:more]))
        return TransformedDistribution(base, self.transforms)

    def _draw(self, shape: tuple[int, ...]) -> Any:
        x = self.base_dist._draw(shape)
        for t in self.transforms:
            x = t(x)
        return x

    def log_prob(self, value: Any) -> Any:
        y, total, dims = value, 0.0, len(self.event_shape)
        for t in reversed(self.transforms):
            x = t.inv(y)
            total = total - summed(t.log_abs_det_jacobian(x, y), dims - getattr(t, "event_dim", 0))
            y = x
        return summed(self.base_dist.log_prob(y), dims - len(self.base_dist.event_shape)) + total

    def _turned(self, probability: Any) -> Any:
        """A probability of at most x as one of at most t(x), and back: a decreasing t swaps both ends."""
        sign = math.prod(t.sign for t in self.transforms)
        return sign * (probability - 0.5) + 0.5

    def cdf(self, value: Any) -> Any:
        for t in reversed(self.transforms):
            value = t.inv(value)
        return self._turned(self.base_dist.cdf(value))

    def icdf(self, value: Any) -> Any:
        x = self.base_dist.icdf(self._turned(value))
        for t in self.transforms:
            x = t(x)
        return x
