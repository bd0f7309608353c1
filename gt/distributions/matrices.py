"""Distributions of vectors with many correlated elements, and of matrices."""

from __future__ import annotations

import math
from typing import Any

from gt.client.functions import elementwise as ew
from gt.client.functions.creation import arange, eye
from gt.client.functions.linalg.solving import linalg_cholesky, solve_triangular
from gt.client.functions.randoms import randn
from gt.client.functions.shapes import broadcast_shapes, tril
from gt.distributions.continuous import LOG_2PI, Beta, gamma
from gt.distributions.distribution import Distribution, tensors
from gt.distributions.divergence import register_kl
from gt.distributions.joint import MultivariateNormal, cholesky_of
from gt.nn.functional import pad

__all__ = ["LKJCholesky", "LowRankMultivariateNormal", "Wishart"]


def _diagonal(x: Any) -> Any:
    return x.diagonal(dim1=-2, dim2=-1)


class LowRankMultivariateNormal(Distribution):
    """The normal distribution of vectors whose covariance is cov_factor @ cov_factor.mT + diag(cov_diag)."""

    has_rsample = True

    def __init__(self, loc: Any, cov_factor: Any, cov_diag: Any, validate_args: bool | None = None) -> None:
        n, rank = cov_factor.shape[-2:]
        batch = broadcast_shapes(loc.shape[:-1], cov_factor.shape[:-2], cov_diag.shape[:-1])
        self.loc, self.cov_diag = loc.expand(*batch, n), cov_diag.expand(*batch, n)
        self.cov_factor = cov_factor.expand(*batch, n, rank)
        scaled = self.cov_factor / self.cov_diag.unsqueeze(-1)
        #: The Cholesky factor of 1 + W.T D^-1 W, which is small: its size is the rank.
        self._small = linalg_cholesky(self.cov_factor.mT @ scaled + eye(rank, dtype=loc.dtype))
        super().__init__(batch, (n,))

    mean = mode = property(lambda self: self.loc)
    variance = property(lambda self: (self.cov_factor**2).sum(-1) + self.cov_diag)
    covariance_matrix = property(lambda self: self.cov_factor @ self.cov_factor.mT + self.cov_diag.diag_embed())
    precision_matrix = property(lambda self: self.covariance_matrix.inverse())
    scale_tril = property(lambda self: linalg_cholesky(self.covariance_matrix))

    def _draw(self, shape: tuple[int, ...]) -> Any:
        small = randn(*shape[:-1], self.cov_factor.shape[-1], 1, dtype=self.loc.dtype)
        own = self.cov_diag.sqrt() * randn(*shape, dtype=self.loc.dtype)
        return self.loc + (self.cov_factor @ small).squeeze(-1) + own

    def _log_det(self) -> Any:
        return 2 * _diagonal(self._small).log().sum(-1) + self.cov_diag.log().sum(-1)

    def log_prob(self, value: Any) -> Any:
        apart = value - self.loc
        scaled = apart / self.cov_diag
        inner = (self.cov_factor.mT @ scaled.unsqueeze(-1)).squeeze(-1).unsqueeze(-1)
        z = solve_triangular(self._small, inner, upper=False).squeeze(-1)
        distance = (apart * scaled).sum(-1) - (z**2).sum(-1)
        return -0.5 * (self.event_shape[0] * LOG_2PI + self._log_det() + distance)

    def entropy(self) -> Any:
        return 0.5 * (self.event_shape[0] * (1 + LOG_2PI) + self._log_det())

    def _kl(self, q: Any) -> Any:
        return _full(self)._kl(_full(q))


def _full(p: Any) -> Any:
    return MultivariateNormal(p.loc, scale_tril=p.scale_tril)


for _a, _b in (
    (MultivariateNormal, LowRankMultivariateNormal), (LowRankMultivariateNormal, MultivariateNormal)
):  # fmt: skip
    register_kl(_a, _b)(lambda p, q: _full(p)._kl(_full(q)))


def _log_gamma(a: Any, n: int) -> Any:
    """The logarithm of the multivariate gamma function."""
    parts = (a.unsqueeze(-1) - 0.5 * arange(n, dtype=a.dtype)).lgamma().sum(-1)
    return parts + n * (n - 1) / 4 * math.log(math.pi)


def _digamma(a: Any, n: int) -> Any:
    return (a.unsqueeze(-1) - 0.5 * arange(n, dtype=a.dtype)).digamma().sum(-1)


class Wishart(Distribution):
    """Positive definite matrices: df times the covariance of df normal vectors, for a whole df."""

    has_rsample = True

    def __init__(
        self, df: Any, covariance_matrix: Any = None, precision_matrix: Any = None, scale_tril: Any = None,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        lower = cholesky_of("Wishart", covariance_matrix, precision_matrix, scale_tril)
        n = lower.shape[-1]
        (df,) = tensors(df)
        batch = broadcast_shapes(df.shape, lower.shape[:-2])
        self.df, self._lower = df.to(lower.dtype).expand(*batch), lower.expand(*batch, n, n)
        super().__init__(batch, (n, n))

    scale_tril = property(lambda self: self._lower)
    covariance_matrix = property(lambda self: self._lower @ self._lower.mT)
    precision_matrix = property(lambda self: self.covariance_matrix.inverse())

    def _wide(self) -> Any:
        return self.df[..., None, None]

    mean = property(lambda self: self._wide() * self.covariance_matrix)

    @property
    def mode(self) -> Any:
        factor = self._wide() - self.event_shape[0] - 1
        return ew.where(factor > 0, factor * self.covariance_matrix, math.nan)

    @property
    def variance(self) -> Any:
        v = self.covariance_matrix
        d = _diagonal(v)
        return self._wide() * (v**2 + d.unsqueeze(-1) * d.unsqueeze(-2))

    def _draw(self, shape: tuple[int, ...]) -> Any:
        n = self.event_shape[0]
        freedom = (self.df.unsqueeze(-1) - arange(n, dtype=self.df.dtype)) / 2
        diagonal = (2 * gamma(freedom, shape[:-1])).sqrt().diag_embed()
        root = self._lower @ (diagonal + tril(randn(*shape, dtype=self.df.dtype), -1))
        return root @ root.mT

    def _half_log_det(self) -> Any:
        return _diagonal(self._lower).log().sum(-1)

    def log_prob(self, value: Any) -> Any:
        n, nu = self.event_shape[0], self.df
        spread = solve_triangular(self._lower, linalg_cholesky(value), upper=False)
        norm = nu * (n / 2 * math.log(2.0) + self._half_log_det()) + _log_gamma(nu / 2, n)
        return (nu - n - 1) / 2 * value.slogdet()[1] - 0.5 * (spread**2).sum((-2, -1)) - norm

    def entropy(self) -> Any:
        n, nu = self.event_shape[0], self.df
        found = (n + 1) * (n / 2 * math.log(2.0) + self._half_log_det()) + _log_gamma(nu / 2, n)
        return found - (nu - n - 1) / 2 * _digamma(nu / 2, n) + nu * n / 2

    def _kl(self, q: Any) -> Any:
        n, a, b = self.event_shape[0], self.df, q.df
        spread = (solve_triangular(q._lower, self._lower, upper=False) ** 2).sum((-2, -1))
        found = b * (q._half_log_det() - self._half_log_det()) + a / 2 * (spread - n)
        return found + _log_gamma(b / 2, n) - _log_gamma(a / 2, n) + (a - b) / 2 * _digamma(a / 2, n)


class LKJCholesky(Distribution):
    """The Cholesky factors of correlation matrices; those with a concentration of 1 are uniform."""

    def __init__(self, dim: int, concentration: Any = 1.0, validate_args: bool | None = None) -> None:
        if dim < 2:
            raise ValueError(f"LKJCholesky: dim must be >= 2, got {dim}")
        self.dim = dim
        (self.concentration,) = tensors(concentration)
        super().__init__(self.concentration.shape, (dim, dim))

    def _draw(self, shape: tuple[int, ...]) -> Any:
        # Row by row, a point in a ball: its distance from the centre has a Beta distribution, its direction is uniform.
        n, eta = self.dim, self.concentration.unsqueeze(-1)
        row = arange(n - 1, dtype=eta.dtype)
        radius = Beta(0.5 + row / 2, eta + (n - 2) / 2 - row / 2)._draw((*shape[:-2], n - 1))
        radius = pad(radius, (1, 0), value=0.0).unsqueeze(-1)
        noise = tril(randn(*shape, dtype=eta.dtype), -1)
        length = noise.norm(dim=-1, keepdim=True)
        below = radius.sqrt() * noise / ew.where(length > 0, length, 1.0)
        return below + (1 - (below**2).sum(-1)).clamp(min=1e-30).sqrt().diag_embed()

    def log_prob(self, value: Any) -> Any:
        n, eta = self.dim, self.concentration
        order = 2 * (eta - 1).unsqueeze(-1) + n - arange(2, n + 1, dtype=eta.dtype)
        density = (order * _diagonal(value)[..., 1:].log()).sum(-1)
        top = eta + (n - 1) / 2
        norm = (n - 1) / 2 * math.log(math.pi) + _log_gamma(top - 0.5, n - 1) - (n - 1) * top.lgamma()
        return density - norm
