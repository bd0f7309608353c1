"""Distributions of vectors, and distributions made of others."""

from __future__ import annotations

from typing import Any

from gt.client.functions import elementwise as ew
from gt.client.functions.creation import eye
from gt.client.functions.linalg.solving import linalg_cholesky, solve_triangular
from gt.client.functions.randoms import randn
from gt.distributions.continuous import LOG_2PI, dirichlet
from gt.distributions.distribution import Distribution, tensors
from gt.distributions.divergence import kl_divergence
from gt.errors import ArgumentError

__all__ = ["Dirichlet", "Independent", "MixtureSameFamily", "MultivariateNormal"]


class Dirichlet(Distribution):
    """Probabilities that add up to 1."""

    has_rsample = True

    def __init__(self, concentration: Any, validate_args: bool | None = None) -> None:
        (self.concentration,) = tensors(concentration)
        super().__init__(self.concentration.shape[:-1], self.concentration.shape[-1:])

    mean = property(lambda self: self.concentration / self.concentration.sum(-1, keepdim=True))

    @property
    def mode(self) -> Any:
        above = (self.concentration - 1).clamp(min=0.0)
        found = above / above.sum(-1, keepdim=True)
        corner = eye(self.concentration.shape[-1], dtype=found.dtype)[0]  # all are as probable; torch says the first
        return ew.where((self.concentration < 1).all(-1, keepdim=True), corner, found)

    @property
    def variance(self) -> Any:
        total = self.concentration.sum(-1, keepdim=True)
        return self.concentration * (total - self.concentration) / (total**2 * (total + 1))

    def _draw(self, shape: tuple[int, ...]) -> Any:
        return dirichlet(self.concentration.expand(shape))

    def log_prob(self, value: Any) -> Any:
        a = self.concentration
        return ew.xlogy(a - 1, value).sum(-1) + a.sum(-1).lgamma() - a.lgamma().sum(-1)

    def entropy(self) -> Any:
        a, k = self.concentration, self.concentration.shape[-1]
        total = a.sum(-1)
        inner = (k - total) * total.digamma() + ((a - 1) * a.digamma()).sum(-1)
        return a.lgamma().sum(-1) - total.lgamma() - inner

    def _kl(self, q: Any) -> Any:
        a, b = self.concentration, q.concentration
        sizes = a.sum(-1).lgamma() - b.sum(-1).lgamma() + (b.lgamma() - a.lgamma()).sum(-1)
        return sizes + ((a - b) * (a.digamma() - a.sum(-1, keepdim=True).digamma())).sum(-1)


def cholesky_of(name: str, covariance_matrix: Any, precision_matrix: Any, scale_tril: Any) -> Any:
    """The Cholesky factor of a covariance, which is given in one of three ways."""
    if sum(m is not None for m in (covariance_matrix, precision_matrix, scale_tril)) != 1:
        raise ArgumentError(f"{name}: give exactly one of covariance_matrix, precision_matrix and scale_tril")
    if scale_tril is not None:
        return scale_tril
    return linalg_cholesky(covariance_matrix if precision_matrix is None else precision_matrix.inverse())


class MultivariateNormal(Distribution):
    """The normal distribution of vectors."""

    has_rsample = True

    def __init__(
        self, loc: Any, covariance_matrix: Any = None, precision_matrix: Any = None, scale_tril: Any = None,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        lower, n = cholesky_of("MultivariateNormal", covariance_matrix, precision_matrix, scale_tril), loc.shape[-1]
        batch = (loc[..., 0] + lower[..., 0, 0]).shape
        self.loc, self._lower = loc.expand(*batch, n), lower.expand(*batch, n, n)
        super().__init__(batch, (n,))

    mean = mode = property(lambda self: self.loc)
    scale_tril = property(lambda self: self._lower)
    covariance_matrix = property(lambda self: self._lower @ self._lower.mT)
    precision_matrix = property(lambda self: self.covariance_matrix.inverse())
    variance = property(lambda self: (self._lower**2).sum(-1))

    def _draw(self, shape: tuple[int, ...]) -> Any:
        noise = randn(*shape, dtype=self.loc.dtype).unsqueeze(-1)
        return self.loc + (self._lower @ noise).squeeze(-1)

    def _half_log_det(self) -> Any:
        return self._lower.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    def log_prob(self, value: Any) -> Any:
        apart = (value - self.loc).unsqueeze(-1)
        z = solve_triangular(self._lower, apart, upper=False).squeeze(-1)
        return -0.5 * ((z**2).sum(-1) + self.event_shape[0] * LOG_2PI) - self._half_log_det()

    def entropy(self) -> Any:
        return 0.5 * self.event_shape[0] * (1 + LOG_2PI) + self._half_log_det()

    def _kl(self, q: Any) -> Any:
        half = q._half_log_det() - self._half_log_det()
        mixed = (solve_triangular(q.scale_tril, self.scale_tril, upper=False) ** 2).sum((-2, -1))
        apart = (solve_triangular(q.scale_tril, (q.loc - self.loc).unsqueeze(-1), upper=False) ** 2).sum((-2, -1))
        return half + 0.5 * (mixed + apart - self.event_shape[0])


class Independent(Distribution):
    """The last dimensions of a batch, taken as one event."""

    def __init__(
        self, base_distribution: Any, reinterpreted_batch_ndims: int, validate_args: bool | None = None
    ) -> None:
        self.base_dist, self.reinterpreted_batch_ndims = base_distribution, reinterpreted_batch_ndims
        keep = len(base_distribution.batch_shape) - reinterpreted_batch_ndims
        if keep < 0:
            raise ArgumentError(
                f"Independent: reinterpreted_batch_ndims must be <= {len(base_distribution.batch_shape)}, got "
                f"{reinterpreted_batch_ndims}"
            )
        shape = base_distribution.batch_shape + base_distribution.event_shape
        super().__init__(shape[:keep], shape[keep:])

    has_rsample = property(lambda self: self.base_dist.has_rsample)
    mean = property(lambda self: self.base_dist.mean)
    mode = property(lambda self: self.base_dist.mode)
    variance = property(lambda self: self.base_dist.variance)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Independent:
        events = self.event_shape[: self.reinterpreted_batch_ndims]
        return Independent(self.base_dist.expand((*batch_shape, *events)), self.reinterpreted_batch_ndims)

    def _draw(self, shape: tuple[int, ...]) -> Any:
        return self.base_dist._draw(shape)

    def _sum(self, x: Any) -> Any:
        return x.sum(tuple(range(-self.reinterpreted_batch_ndims, 0))) if self.reinterpreted_batch_ndims else x

    def log_prob(self, value: Any) -> Any:
        return self._sum(self.base_dist.log_prob(value))

    def entropy(self) -> Any:
        return self._sum(self.base_dist.entropy())

    def _kl(self, q: Any) -> Any:
        if self.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
            raise NotImplementedError(  # as in torch
                "kl_divergence: expected the same number of event dimensions, got "
                f"{self.reinterpreted_batch_ndims} and {q.reinterpreted_batch_ndims}"
            )
        return self._sum(kl_divergence(self.base_dist, q.base_dist))


class MixtureSameFamily(Distribution):
    """A mixture: the last batch dimension of a distribution has its components, chosen by a Categorical."""

    def __init__(
        self, mixture_distribution: Any, component_distribution: Any, validate_args: bool | None = None
    ) -> None:
        self.mixture_distribution, self.component_distribution = mixture_distribution, component_distribution
        super().__init__(component_distribution.batch_shape[:-1], component_distribution.event_shape)

    def expand(self, batch_shape: Any, _instance: Any = None) -> MixtureSameFamily:
        parts = self.component_distribution.expand((*batch_shape, self.component_distribution.batch_shape[-1]))
        return MixtureSameFamily(self.mixture_distribution.expand(batch_shape), parts)

    def _weights(self) -> Any:
        probs = self.mixture_distribution.probs
        return probs.reshape(*probs.shape, *(1 for _ in self.event_shape))

    @property
    def mean(self) -> Any:
        return (self._weights() * self.component_distribution.mean).sum(-1 - len(self.event_shape))

    @property
    def variance(self) -> Any:
        dim = -1 - len(self.event_shape)
        parts, means = self.component_distribution.variance, self.component_distribution.mean
        apart = (means - self.mean.unsqueeze(dim)) ** 2
        return (self._weights() * (parts + apart)).sum(dim)

    def log_prob(self, value: Any) -> Any:
        each = self.component_distribution.log_prob(value.unsqueeze(-1 - len(self.event_shape)))
        return (each + self.mixture_distribution.logits).logsumexp(-1)

    def cdf(self, value: Any) -> Any:
        return (self.component_distribution.cdf(value.unsqueeze(-1)) * self.mixture_distribution.probs).sum(-1)

    def _draw(self, shape: tuple[int, ...]) -> Any:
        lead = shape[: len(shape) - len(self.batch_shape) - len(self.event_shape)]
        chosen = self.mixture_distribution.sample(lead)
        all_of = self.component_distribution.sample(lead)
        n = len(self.event_shape)
        index = chosen.reshape(*chosen.shape, *([1] * (n + 1))).expand(*chosen.shape, 1, *self.event_shape)
        return all_of.gather(all_of.ndim - n - 1, index).squeeze(all_of.ndim - n - 1)
