"""`biject_to(constraint)` and `transform_to(constraint)`: a transform from all real numbers to a set.

`biject_to` gives one with an inverse and a log_abs_det_jacobian; `transform_to` one that suits optimizers. `register`
adds one for another kind of constraint.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.distributions import constraints as c
from gt.distributions import transforms as t
from gt.distributions import vectors as v
from gt.distributions.transforms import Transform

__all__ = ["ConstraintRegistry", "biject_to", "transform_to"]

Factory = Callable[[Any], Transform]


class ConstraintRegistry:
    """Which transform gives values of a set, by the kind of constraint."""

    def __init__(self) -> None:
        self._factories: dict[Any, Factory] = {}

    @staticmethod
    def _kind(constraint: Any) -> Any:
        """What a constraint is known by: its class, or itself where a class stands for several sets."""
        return constraint if isinstance(constraint, (type, c._Where)) else type(constraint)

    def register(self, constraint: Any, factory: Factory | None = None) -> Any:
        """Add a function that makes the transform for a constraint, or for all of a class. Without it: a decorator."""
        if factory is None:
            return lambda given: self.register(constraint, given)
        self._factories[self._kind(constraint)] = factory
        return factory

    def __call__(self, constraint: Any) -> Transform:
        found = self._factories.get(self._kind(constraint))
        if found is None:
            raise NotImplementedError(f"no transform to {constraint!r} is known; add one with register()")
        return found(constraint)


biject_to, transform_to = ConstraintRegistry(), ConstraintRegistry()


def _to_interval(constraint: Any) -> Transform:
    low, high = constraint.lower_bound, constraint.upper_bound
    if isinstance(low, (int, float)) and isinstance(high, (int, float)) and (low, high) == (0, 1):
        return t.SigmoidTransform()
    return t.ComposeTransform([t.SigmoidTransform(), t.AffineTransform(low, high - low)])


def _above(constraint: Any) -> Transform:
    low = constraint.lower_bound
    if isinstance(low, (int, float)) and low == 0:
        return t.ExpTransform()
    return t.ComposeTransform([t.ExpTransform(), t.AffineTransform(low, 1)])


def _register() -> None:
    for registry in (biject_to, transform_to):
        registry.register(c.real, lambda _: t.identity_transform)
        for kind in (c.greater_than, c.greater_than_eq):
            registry.register(kind, _above)
        registry.register(
            c.less_than, lambda of: t.ComposeTransform([t.ExpTransform(), t.AffineTransform(of.upper_bound, -1)])
        )
        for bounded in (c.interval, c.half_open_interval):
            registry.register(bounded, _to_interval)
        registry.register(c.corr_cholesky, lambda _: v.CorrCholeskyTransform())

        def _cat(of: Any, registry: ConstraintRegistry = registry) -> Transform:
            return v.CatTransform([registry(part) for part in of.cseq], of.dim, of.lengths)

        def _stack(of: Any, registry: ConstraintRegistry = registry) -> Transform:
            return v.StackTransform([registry(part) for part in of.cseq], of.dim)

        def _independent(of: Any, registry: ConstraintRegistry = registry) -> Transform:
            return v.IndependentTransform(registry(of.base_constraint), of.reinterpreted_batch_ndims)

        registry.register(c.independent, _independent)
        registry.register(c.cat, _cat)
        registry.register(c.stack, _stack)
    biject_to.register(c.simplex, lambda _: v.StickBreakingTransform())
    transform_to.register(c.simplex, lambda _: v.SoftmaxTransform())
    transform_to.register(c.lower_cholesky, lambda _: v.LowerCholeskyTransform())
    for matrices in (c.positive_definite, c.positive_semidefinite):
        transform_to.register(matrices, lambda _: v.PositiveDefiniteTransform())


_register()
