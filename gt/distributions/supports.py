"""What parameters may be, and what samples are: `arg_constraints` and `support` of every class, as in torch."""

from __future__ import annotations

from typing import Any

from gt.distributions import constraints as c
from gt.distributions import continuous, discrete, joint, matrices, relaxed, tails

_PROBABILITY = {"probs": c.unit_interval, "logits": c.real}
_PROBABILITIES = {"probs": c.simplex, "logits": c.real_vector}
_PLACE = {"loc": c.real, "scale": c.positive}
_GAMMA = {"concentration": c.positive, "rate": c.positive}
_BETA = {"concentration1": c.positive, "concentration0": c.positive}
_COVARIANCE = {
    "covariance_matrix": c.positive_definite, "precision_matrix": c.positive_definite, "scale_tril": c.lower_cholesky,
}  # fmt: skip
_COUNTS = {"total_count": c.nonnegative_integer, **_PROBABILITY}


def _of(make: Any, **about: Any) -> Any:
    """A support that depends on the parameters."""
    return c.dependent_property(make, **about)


#: Class -> its arg_constraints and its support; None: the class has its own.
_ROWS: dict[type, tuple[Any, Any]] = {
    continuous.Normal: (_PLACE, c.real),
    continuous.LogNormal: (_PLACE, c.positive),
    continuous.HalfNormal: ({"scale": c.positive}, c.nonnegative),
    continuous.HalfCauchy: ({"scale": c.positive}, c.nonnegative),
    continuous.Uniform: (
        {"low": c.dependent, "high": c.dependent}, _of(lambda self: c.interval(self.low, self.high))
    ),
    continuous.Exponential: ({"rate": c.positive}, c.nonnegative),
    continuous.Laplace: (_PLACE, c.real),
    continuous.Cauchy: (_PLACE, c.real),
    continuous.Gumbel: (_PLACE, c.real),
    continuous.Weibull: ({"scale": c.positive, "concentration": c.positive}, c.positive),
    continuous.Pareto: (
        {"alpha": c.positive, "scale": c.positive}, _of(lambda self: c.greater_than_eq(self.scale))
    ),
    continuous.Gamma: (_GAMMA, c.nonnegative),
    continuous.Chi2: ({"df": c.positive}, c.nonnegative),
    continuous.Beta: (_BETA, c.unit_interval),
    continuous.StudentT: ({"df": c.positive, **_PLACE}, c.real),
    discrete.Bernoulli: (_PROBABILITY, c.boolean),
    discrete.Geometric: (_PROBABILITY, c.nonnegative_integer),
    discrete.Poisson: ({"rate": c.nonnegative}, c.nonnegative_integer),
    discrete.Binomial: (
        _COUNTS, _of(lambda self: c.integer_interval(0, self.total_count), is_discrete=True)
    ),
    discrete.NegativeBinomial: (
        {"total_count": c.greater_than_eq(0), "probs": c.half_open_interval(0.0, 1.0), "logits": c.real},
        c.nonnegative_integer,
    ),
    discrete.Categorical: (
        _PROBABILITIES, _of(lambda self: c.integer_interval(0, self.param_shape[-1] - 1), is_discrete=True)
    ),
    discrete.OneHotCategorical: (_PROBABILITIES, c.one_hot),
    discrete.Multinomial: (
        _PROBABILITIES, _of(lambda self: c.multinomial(self.total_count), is_discrete=True, event_dim=1)
    ),
    joint.Dirichlet: ({"concentration": c.independent(c.positive, 1)}, c.simplex),
    joint.MultivariateNormal: ({"loc": c.real_vector, **_COVARIANCE}, c.real_vector),
    joint.Independent: ({}, _of(lambda self: _independent(self))),
    joint.MixtureSameFamily: (
        {}, _of(lambda self: c.MixtureSameFamilyConstraint(self.component_distribution.support))
    ),
    matrices.LowRankMultivariateNormal: (
        {"loc": c.real_vector, "cov_factor": c.independent(c.real, 2), "cov_diag": c.independent(c.positive, 1)},
        c.real_vector,
    ),
    matrices.Wishart: ({**_COVARIANCE, "df": c.greater_than(0)}, c.positive_definite),
    matrices.LKJCholesky: ({"concentration": c.positive}, c.corr_cholesky),
    relaxed.LogitRelaxedBernoulli: (_PROBABILITY, c.real),
    relaxed.RelaxedBernoulli: (_PROBABILITY, c.unit_interval),
    relaxed.ExpRelaxedCategorical: (_PROBABILITIES, c.real_vector),
    relaxed.RelaxedOneHotCategorical: (_PROBABILITIES, c.simplex),
    relaxed.LogisticNormal: (_PLACE, c.simplex),
    relaxed.ContinuousBernoulli: (_PROBABILITY, c.unit_interval),
    tails.InverseGamma: (_GAMMA, c.positive),
    tails.FisherSnedecor: ({"df1": c.positive, "df2": c.positive}, c.positive),
    tails.GeneralizedPareto: ({"loc": c.real, "scale": c.positive, "concentration": c.real}, None),
    tails.Kumaraswamy: (_BETA, c.unit_interval),
    tails.VonMises: ({"loc": c.real, "concentration": c.positive}, c.real),
}  # fmt: skip


def _independent(made: Any) -> Any:
    """The support of an Independent."""
    base = made.base_dist.support
    return c.independent(base, made.reinterpreted_batch_ndims) if made.reinterpreted_batch_ndims else base


def declare() -> None:
    """Give every class its constraints."""
    for kind, (arguments, support) in _ROWS.items():
        kind.arg_constraints = arguments  # type: ignore[attr-defined]  # declared in Distribution
        if support is not None:
            kind.support = support  # type: ignore[attr-defined]  # likewise
