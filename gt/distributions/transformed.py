"""The distributions of what transforms make of the samples of another distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gt.distributions import constraints
from gt.distributions.distribution import Distribution
from gt.distributions.divergence import kl_divergence
from gt.distributions.joint import Independent
from gt.distributions.transforms import ComposeTransform, Transform, summed

__all__ = ["TransformedDistribution"]


class TransformedDistribution(Distribution):
    """The distribution of samples of another one after transforms.

    >>> from gt.distributions import AffineTransform, Normal, Uniform
    >>> TransformedDistribution(Uniform(0.0, 1.0), AffineTransform(1.0, 4.0)).log_prob(Normal(2.0, 1.0).mean)
    tensor(-1.3863)
    """

    def __init__(
        self, base_distribution: Any, transforms: Transform | Sequence[Transform], validate_args: bool | None = None
    ) -> None:
        self.transforms = [transforms] if isinstance(transforms, Transform) else list(transforms)
        whole = ComposeTransform(self.transforms)
        shape = base_distribution.batch_shape + base_distribution.event_shape
        taken, given, has = whole.domain.event_dim, whole.codomain.event_dim, len(base_distribution.event_shape)
        if len(shape) < taken:
            raise ValueError(
                f"TransformedDistribution: the transforms need {taken} dimensions, the distribution has {len(shape)}"
            )
        after = whole.forward_shape(shape)
        before = whole.inverse_shape(after)
        if tuple(before) != tuple(shape):  # a transform with a batch of its own
            base_distribution = base_distribution.expand(before[: len(before) - has])
        if taken > has:  # dimensions of the batch become part of an event
            base_distribution = Independent(base_distribution, taken - has)
        self.base_dist = base_distribution
        cut = len(after) - max(given, has + given - taken)
        super().__init__(after[:cut], after[cut:])

    has_rsample = property(lambda self: self.base_dist.has_rsample)

    @property
    def support(self) -> Any:
        """What samples are in."""
        if not self.transforms:
            return self.base_dist.support
        found = self.transforms[-1].codomain
        more = len(self.event_shape) - found.event_dim
        return constraints.independent(found, more) if more > 0 else found

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        shape = ComposeTransform(self.transforms).inverse_shape((*batch_shape, *self.event_shape))
        made = super().expand(batch_shape, _instance)
        made.base_dist = self.base_dist.expand(shape[: len(shape) - len(self.base_dist.event_shape)])
        return made

    def _draw(self, shape: tuple[int, ...]) -> Any:
        lead = shape[: len(shape) - len(self.batch_shape) - len(self.event_shape)]
        x = self.base_dist._draw(self.base_dist._shape(lead))
        for t in self.transforms:
            x = t(x)
        return x

    def log_prob(self, value: Any) -> Any:
        y, total, dims = value, 0.0, len(self.event_shape)
        for t in reversed(self.transforms):
            x = t.inv(y)
            dims += t.domain.event_dim - t.codomain.event_dim
            total = total - summed(t.log_abs_det_jacobian(x, y), dims - t.domain.event_dim)
            y = x
        return summed(self.base_dist.log_prob(y), dims - len(self.base_dist.event_shape)) + total

    def _turned(self, probability: Any) -> Any:
        """A probability of at most x as one of at most t(x), and back: a decreasing t swaps both ends."""
        sign = math.prod(t.sign for t in self.transforms)
        return sign * (probability - 0.5) + 0.5

    def _kl(self, q: Any) -> Any:
        """That of the numbers before the transforms, if these are the same."""
        if self.transforms != q.transforms or self.event_shape != q.event_shape:
            raise NotImplementedError(
                "kl_divergence: expected the same transforms and event shape, got "
                f"{self.transforms}, {tuple(self.event_shape)} and {q.transforms}, {tuple(q.event_shape)}"
            )
        more = len(self.event_shape) - len(self.base_dist.event_shape)
        return summed(kl_divergence(self.base_dist, q.base_dist), more)

    def cdf(self, value: Any) -> Any:
        for t in reversed(self.transforms):
            value = t.inv(value)
        return self._turned(self.base_dist.cdf(value))

    def icdf(self, value: Any) -> Any:
        x = self.base_dist.icdf(self._turned(value))
        for t in self.transforms:
            x = t(x)
        return x
