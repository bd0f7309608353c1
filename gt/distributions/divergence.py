"""`kl_divergence(p, q)`: a formula per pair of types. Classes have those for their own type, as `_kl`; `register_kl`
adds others, as in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.distributions.distribution import FORMULAS, Formula

__all__ = ["kl_divergence", "register_kl"]


def register_kl(type_p: type, type_q: type) -> Callable[[Formula], Formula]:
    """Make a function the formula for two types of distributions: `@register_kl(Mine, Normal)`."""

    def add(formula: Formula) -> Formula:
        FORMULAS[type_p, type_q] = formula
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
            if (formula := FORMULAS.get((a, b))) is not None:
                return formula(p, q)
    raise NotImplementedError(
        f"kl_divergence: no formula for {type(p).__name__} and {type(q).__name__}; add one with register_kl"
    )
