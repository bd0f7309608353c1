"""The distributions of torch.distributions: log_prob, entropy, mean, variance, sample, and kl_divergence."""

import sys as _sys
from types import ModuleType as _ModuleType
from typing import Any as _Any

from gt.distributions import parameters as utils
from gt.distributions.constraint_registry import *
from gt.distributions.continuous import *
from gt.distributions.discrete import *
from gt.distributions.distribution import Distribution as Distribution
from gt.distributions.distribution import ExponentialFamily as ExponentialFamily
from gt.distributions.divergence import *
from gt.distributions.joint import *
from gt.distributions.matrices import *
from gt.distributions.relaxed import *
from gt.distributions.supports import declare as _declare
from gt.distributions.tails import *
from gt.distributions.transformed import *
from gt.distributions.transforms import *
from gt.distributions.vectors import *

# Every class and function imported above: the __all__ of each file lists its own.
__all__ = sorted(name for name, value in globals().items() if callable(value) and name[0] != "_")

_declare()
_sys.modules[f"{__name__}.utils"] = utils  # its name in torch


class _FileOfDistributions(_ModuleType):
    """A file of torch.distributions: `from gt.distributions.normal import Normal`."""

    def __getattr__(self, name: str) -> _Any:
        if name.startswith("__") or name not in _HERE:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return _HERE[name]


_HERE = globals()
for _name in (
    "bernoulli beta binomial categorical cauchy chi2 continuous_bernoulli dirichlet exp_family exponential "
    "fishersnedecor gamma generalized_pareto geometric gumbel half_cauchy half_normal independent inverse_gamma kl "
    "kumaraswamy laplace lkj_cholesky log_normal logistic_normal lowrank_multivariate_normal mixture_same_family "
    "multinomial multivariate_normal negative_binomial normal one_hot_categorical pareto poisson relaxed_bernoulli "
    "relaxed_categorical studentT transformed_distribution uniform von_mises weibull wishart"
).split():
    _sys.modules[f"{__name__}.{_name}"] = globals()[_name] = _FileOfDistributions(
        f"{__name__}.{_name}", f"The names of torch.distributions.{_name}."
    )
