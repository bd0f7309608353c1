"""The distributions of torch.distributions: log_prob, entropy, mean, variance, sample, and kl_divergence."""

from gt.distributions.continuous import (
    Beta,
    Cauchy,
    Chi2,
    Exponential,
    Gamma,
    Gumbel,
    HalfCauchy,
    HalfNormal,
    Laplace,
    LogNormal,
    Normal,
    Pareto,
    StudentT,
    Uniform,
    Weibull,
)  # fmt: skip
from gt.distributions.discrete import (
    Bernoulli,
    Binomial,
    Categorical,
    Geometric,
    Multinomial,
    NegativeBinomial,
    OneHotCategorical,
    Poisson,
)  # fmt: skip
from gt.distributions.distribution import Distribution
from gt.distributions.divergence import kl_divergence, register_kl
from gt.distributions.joint import Dirichlet, Independent, MixtureSameFamily, MultivariateNormal

__all__ = [
    "Bernoulli", "Beta", "Binomial", "Categorical", "Cauchy", "Chi2", "Dirichlet", "Distribution", "Exponential",
    "Gamma", "Geometric", "Gumbel", "HalfCauchy", "HalfNormal", "Independent", "Laplace", "LogNormal",
    "MixtureSameFamily", "Multinomial", "MultivariateNormal", "NegativeBinomial", "Normal", "OneHotCategorical",
    "Pareto", "Poisson", "StudentT", "Uniform", "Weibull", "kl_divergence", "register_kl",
]  # fmt: skip
