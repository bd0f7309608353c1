"""Invertible functions of numbers; those of vectors and matrices are in vectors.py.

A transform maps its `domain` to its `codomain` (constraints.py). One with `cache_size=1` remembers its last argument
and result, so that the inverse of a sample is what it was made of, and not a rounded number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gt.client.functions import elementwise as ew
from gt.client.functions.creation import zeros_like
from gt.client.functions.shapes import broadcast_shapes
from gt.distributions import constraints
from gt.distributions.continuous import within
from gt.nn import functional as F

__all__ = [
    "AbsTransform", "AffineTransform", "ComposeTransform", "CumulativeDistributionTransform", "ExpTransform",
    "PowerTransform", "SigmoidTransform", "SoftplusTransform", "TanhTransform", "Transform", "identity_transform",
]  # fmt: skip


class Transform:
    """The base class: `t(x)`, `t.inv(y)`, and the logarithm of the derivative's absolute value."""

    bijective: Any = False
    sign: Any = 1  #: Whether it increases (1) or decreases (-1).
    domain: Any = constraints.real  #: What it takes.
    codomain: Any = constraints.real  #: What it gives.

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

    @property
    def event_dim(self) -> int:
        """How many of the last dimensions are one event, where it takes and gives as many."""
        taken: int = self.domain.event_dim
        if taken != self.codomain.event_dim:
            raise ValueError(f"{type(self).__name__}: use domain.event_dim or codomain.event_dim, which differ")
        return taken

    def with_cache(self, cache_size: int = 1) -> Transform:
        """The same transform with this size of its cache."""
        if self._cache_size == cache_size:
            return self
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__, _cache_size=cache_size, _last=None)
        return made

    def forward_shape(self, shape: Any) -> Any:
        """The shape of the result for an argument of this shape."""
        return shape

    def inverse_shape(self, shape: Any) -> Any:
        """The shape of the argument for a result of this shape."""
        return shape

    def _call(self, x: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no _call")

    def _inverse(self, y: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no _inverse")

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        """log |dy/dx|, where y = t(x)."""
        raise NotImplementedError(f"{type(self).__name__} has no log_abs_det_jacobian")

    def _settings(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k[0] != "_"}

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and _equal(self._settings(), other._settings())

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def _equal(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether settings are the same; of tensors, whether all elements are. Waits for those."""
    for name, x in a.items():
        same = x == b[name]
        if not (bool(same.all()) if hasattr(same, "all") else same):
            return False
    return True


class _Inverse(Transform):
    """The inverse of a transform."""

    def __init__(self, of: Transform) -> None:
        super().__init__()
        self._of = of

    sign = property(lambda self: self._of.sign)
    inv = property(lambda self: self._of)
    bijective = property(lambda self: self._of.bijective)
    domain = property(lambda self: self._of.codomain)
    codomain = property(lambda self: self._of.domain)

    def with_cache(self, cache_size: int = 1) -> Transform:
        return self._of.with_cache(cache_size).inv

    def forward_shape(self, shape: Any) -> Any:
        return self._of.inverse_shape(shape)

    def inverse_shape(self, shape: Any) -> Any:
        return self._of.forward_shape(shape)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Inverse) and self._of == other._of

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"{self._of!r}.inv"

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
        self.parts = [part.with_cache() for part in parts] if cache_size else list(parts)

    sign = property(lambda self: math.prod(part.sign for part in self.parts))
    bijective = property(lambda self: all(part.bijective for part in self.parts))

    @property
    def domain(self) -> Any:
        return self._end([part.domain for part in self.parts], [part.codomain for part in self.parts])

    @property
    def codomain(self) -> Any:
        parts = self.parts[::-1]
        return self._end([part.codomain for part in parts], [part.domain for part in parts])

    @staticmethod
    def _end(near: list[Any], far: list[Any]) -> Any:
        """What is at one end: as many dimensions are an event there as any of the parts needs."""
        if not near:
            return constraints.real
        dims = far[-1].event_dim
        for this, that in zip(near[::-1], far[::-1], strict=True):
            dims = max(dims + this.event_dim - that.event_dim, this.event_dim)
        more = dims - near[0].event_dim
        return constraints.independent(near[0], more) if more else near[0]

    def with_cache(self, cache_size: int = 1) -> Transform:
        return self if self._cache_size == cache_size else ComposeTransform(self.parts, cache_size)

    def forward_shape(self, shape: Any) -> Any:
        for part in self.parts:
            shape = part.forward_shape(shape)
        return shape

    def inverse_shape(self, shape: Any) -> Any:
        for part in reversed(self.parts):
            shape = part.inverse_shape(shape)
        return shape

    def _call(self, x: Any) -> Any:
        for part in self.parts:
            x = part(x)
        return x

    def _inverse(self, y: Any) -> Any:
        for part in reversed(self.parts):
            y = part.inv(y)
        return y

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        if not self.parts:
            return zeros_like(x)
        total: Any = 0.0
        dims = self.domain.event_dim
        for part in self.parts:
            after = part(x)
            total = total + summed(part.log_abs_det_jacobian(x, after), dims - part.domain.event_dim)
            dims += part.codomain.event_dim - part.domain.event_dim
            x = after
        return total

    def __repr__(self) -> str:
        return f"ComposeTransform({self.parts!r})"


identity_transform = ComposeTransform([])  #: What changes nothing.


class ExpTransform(Transform):
    """exp(x)."""

    codomain = constraints.positive
    bijective = True

    def _call(self, x: Any) -> Any:
        return x.exp()

    def _inverse(self, y: Any) -> Any:
        return y.log()

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        return x


class PowerTransform(Transform):
    """x ** exponent, of positive numbers."""

    domain = constraints.positive
    codomain = constraints.positive
    bijective = True

    def __init__(self, exponent: Any, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.exponent = exponent

    sign = property(lambda self: ew.sign(self.exponent) if hasattr(self.exponent, "shape") else _sign(self.exponent))

    def forward_shape(self, shape: Any) -> Any:
        return broadcast_shapes(shape, getattr(self.exponent, "shape", ()))

    inverse_shape = forward_shape

    def _call(self, x: Any) -> Any:
        return x**self.exponent

    def _inverse(self, y: Any) -> Any:
        return y ** (1 / self.exponent)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        return (self.exponent * y / x).abs().log()


class SigmoidTransform(Transform):
    """1 / (1 + exp(-x))."""

    codomain = constraints.unit_interval
    bijective = True

    def _call(self, x: Any) -> Any:
        return within(x.sigmoid())

    def _inverse(self, y: Any) -> Any:
        y = within(y)
        return y.log() - (-y).log1p()

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        return -F.softplus(-x) - F.softplus(x)


class SoftplusTransform(Transform):
    """log(1 + exp(x))."""

    codomain = constraints.positive
    bijective = True

    def _call(self, x: Any) -> Any:
        return F.softplus(x)

    def _inverse(self, y: Any) -> Any:
        return (-y).expm1().neg().log() + y

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        return -F.softplus(-x)


class TanhTransform(Transform):
    """tanh(x)."""

    codomain = constraints.interval(-1.0, 1.0)
    bijective = True

    def _call(self, x: Any) -> Any:
        return x.tanh()

    def _inverse(self, y: Any) -> Any:
        return y.atanh()

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        return 2.0 * (math.log(2.0) - x - F.softplus(-2.0 * x))  # exact where 1 - tanh(x) ** 2 is rounded to 0


class AbsTransform(Transform):
    """|x|. It is not bijective: the inverse returns the positive one of two values."""

    codomain = constraints.positive

    def _call(self, x: Any) -> Any:
        return x.abs()

    def _inverse(self, y: Any) -> Any:
        return y


class CumulativeDistributionTransform(Transform):
    """The cdf of a distribution."""

    codomain = constraints.unit_interval
    bijective = True
    sign = 1

    def __init__(self, distribution: Any, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.distribution = distribution

    domain = property(lambda self: self.distribution.support)

    def _call(self, x: Any) -> Any:
        return self.distribution.cdf(x)

    def _inverse(self, y: Any) -> Any:
        return self.distribution.icdf(y)

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        return self.distribution.log_prob(x)


class AffineTransform(Transform):
    """loc + scale * x; the last `event_dim` dimensions are one event."""

    def __init__(self, loc: Any, scale: Any, event_dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.loc, self.scale, self._event_dim = loc, scale, event_dim

    bijective = True
    event_dim = property(lambda self: self._event_dim)
    domain = codomain = property(
        lambda self: constraints.independent(constraints.real, self._event_dim) if self._event_dim else constraints.real
    )

    def forward_shape(self, shape: Any) -> Any:
        return broadcast_shapes(shape, getattr(self.loc, "shape", ()), getattr(self.scale, "shape", ()))

    inverse_shape = forward_shape

    sign = property(lambda self: ew.sign(self.scale) if hasattr(self.scale, "shape") else _sign(self.scale))

    def _call(self, x: Any) -> Any:
        return self.loc + self.scale * x

    def _inverse(self, y: Any) -> Any:
        return (y - self.loc) / self.scale

    def log_abs_det_jacobian(self, x: Any, y: Any) -> Any:
        size = self.scale.abs().log() if hasattr(self.scale, "shape") else math.log(abs(self.scale))
        return summed(zeros_like(x) + size, self.event_dim)


def _sign(number: float) -> int:
    return 1 if number > 0 else -1


def summed(x: Any, dims: int) -> Any:
    """The sum over the last dimensions."""
    return x.sum(tuple(range(-dims, 0))) if dims else x


def __getattr__(name: str) -> Any:
    """The transforms of vectors.py, which torch has in the same file."""
    from gt.distributions import vectors

    if name in vectors.__all__:
        return getattr(vectors, name)
    raise AttributeError(f"module 'gt.distributions.transforms' has no attribute {name!r}")
