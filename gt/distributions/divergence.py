"""`kl_divergence(p, q)`: a formula per pair of types. `register_kl` adds one, as in torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gt.client.functions.elementwise import where
from gt.client.functions.linalg.solving import solve_triangular
from gt.distributions.continuous import (
    EULER,
    Beta,
    Cauchy,
    Exponential,
    Gamma,
    Gumbel,
    HalfNormal,
    Laplace,
    LogNormal,
    Normal,
    Pareto,
    Uniform,
)  # fmt: skip
from gt.distributions.discrete import Bernoulli, Binomial, Categorical, Geometric, OneHotCategorical, Poisson
from gt.distributions.joint import Dirichlet, Independent, MultivariateNormal
from gt.nn.functional import softplus

Formula = Callable[[Any, Any], Any]

_FORMULAS: dict[tuple[type, type], Formula] = {}


def register_kl(type_p: type, type_q: type) -> Callable[[Formula], Formula]:
    """Make a function the formula for two types of distributions: `@register_kl(Mine, Normal)`."""

    def add(formula: Formula) -> Formula:
        _FORMULAS[type_p, type_q] = formula
        return formula

    return add


def kl_divergence(p: Any, q: Any) -> Any:
    """The Kullback-Leibler divergence from q to p.

    >>> from gt.distributions import Normal
    >>> kl_divergence(Normal(0.0, 1.0), Normal(1.0, 1.0))
    tensor(0.5000)
    """
    for a in type(p).__mro__:
        for b in type(q).__mro__:
            if (formula := _FORMULAS.get((a, b))) is not None:
                return formula(p, q)
    raise NotImplementedError(
        f"kl_divergence: no formula for {type(p).__name__} and {type(q).__name__}; add one with register_kl"
    )


@register_kl(Normal, Normal)
def _normal(p: Any, q: Any) -> Any:
    ratio = (p.scale / q.scale) ** 2
    return 0.5 * (ratio + ((p.loc - q.loc) / q.scale) ** 2 - 1 - ratio.log())


@register_kl(LogNormal, LogNormal)
def _log_normal(p: Any, q: Any) -> Any:
    return _normal(p, q)


@register_kl(HalfNormal, HalfNormal)
def _half_normal(p: Any, q: Any) -> Any:
    ratio = (p.scale / q.scale) ** 2
    return 0.5 * (ratio - 1 - ratio.log())


@register_kl(Uniform, Uniform)
def _uniform(p: Any, q: Any) -> Any:
    inside = (q.low <= p.low) & (p.high <= q.high)
    return where(inside, ((q.high - q.low) / (p.high - p.low)).log(), math.inf)


@register_kl(Exponential, Exponential)
def _exponential(p: Any, q: Any) -> Any:
    ratio = q.rate / p.rate
    return ratio - 1 - ratio.log()


@register_kl(Laplace, Laplace)
def _laplace(p: Any, q: Any) -> Any:
    ratio, apart = p.scale / q.scale, (p.loc - q.loc).abs()
    return -ratio.log() + apart / q.scale + ratio * (-apart / p.scale).exp() - 1


@register_kl(Cauchy, Cauchy)
def _cauchy(p: Any, q: Any) -> Any:
    return (((p.scale + q.scale) ** 2 + (p.loc - q.loc) ** 2) / (4 * p.scale * q.scale)).log()


@register_kl(Gumbel, Gumbel)
def _gumbel(p: Any, q: Any) -> Any:
    ratio, a, b = p.scale / q.scale, q.loc / q.scale, p.loc / q.scale
    return -ratio.log() - a + b + ratio * EULER + (a + (1 + ratio).lgamma() - b).exp() - (1 + EULER)


@register_kl(Pareto, Pareto)
def _pareto(p: Any, q: Any) -> Any:
    ratio = q.alpha / p.alpha
    found = q.alpha * (p.scale / q.scale).log() - ratio.log() + ratio - 1
    return where(p.scale < q.scale, math.inf, found)


@register_kl(Gamma, Gamma)
def _gamma(p: Any, q: Any) -> Any:
    first = q.concentration * (p.rate / q.rate).log() + q.concentration.lgamma() - p.concentration.lgamma()
    second = (p.concentration - q.concentration) * p.concentration.digamma()
    return first + second + (q.rate - p.rate) * (p.concentration / p.rate)


@register_kl(Beta, Beta)
def _beta(p: Any, q: Any) -> Any:
    total_p = p.concentration1 + p.concentration0
    total_q = q.concentration1 + q.concentration0
    found = q._log_normalizer() - p._log_normalizer()
    found = found + (p.concentration1 - q.concentration1) * p.concentration1.digamma()
    found = found + (p.concentration0 - q.concentration0) * p.concentration0.digamma()
    return found + (total_q - total_p) * total_p.digamma()


@register_kl(Bernoulli, Bernoulli)
def _bernoulli(p: Any, q: Any) -> Any:
    return -p.entropy() - p.probs * q.logits + softplus(q.logits)


@register_kl(Binomial, Binomial)
def _binomial(p: Any, q: Any) -> Any:
    found = p.total_count * (p.probs * (p.logits - q.logits) + (-p.probs).log1p() - (-q.probs).log1p())
    return where(p.total_count > q.total_count, math.inf, found)


@register_kl(Geometric, Geometric)
def _geometric(p: Any, q: Any) -> Any:
    return -p.entropy() - (-q.probs).log1p() / p.probs - q.logits


@register_kl(Poisson, Poisson)
def _poisson(p: Any, q: Any) -> Any:
    return p.rate * (p.rate.log() - q.rate.log()) - (p.rate - q.rate)


@register_kl(Categorical, Categorical)
@register_kl(OneHotCategorical, OneHotCategorical)
def _categorical(p: Any, q: Any) -> Any:
    return (p.probs * (p.logits - q.logits)).sum(-1)


@register_kl(Dirichlet, Dirichlet)
def _dirichlet(p: Any, q: Any) -> Any:
    a, b = p.concentration, q.concentration
    sizes = a.sum(-1).lgamma() - b.sum(-1).lgamma() + (b.lgamma() - a.lgamma()).sum(-1)
    return sizes + ((a - b) * (a.digamma() - a.sum(-1, keepdim=True).digamma())).sum(-1)


@register_kl(MultivariateNormal, MultivariateNormal)
def _multivariate_normal(p: Any, q: Any) -> Any:
    half = q._half_log_det() - p._half_log_det()
    mixed = (solve_triangular(q.scale_tril, p.scale_tril, upper=False) ** 2).sum((-2, -1))
    apart = (solve_triangular(q.scale_tril, (q.loc - p.loc).unsqueeze(-1), upper=False) ** 2).sum((-2, -1))
    return half + 0.5 * (mixed + apart - p.event_shape[0])


@register_kl(Independent, Independent)
def _independent(p: Any, q: Any) -> Any:
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        raise NotImplementedError("kl_divergence: the two take different numbers of dimensions as one event")
    return p._sum(kl_divergence(p.base_dist, q.base_dist))
