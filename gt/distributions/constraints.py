"""Constraints: sets of values, such as the positive numbers, by the names of torch.distributions.constraints.

`check(value)` says for each event of a value whether it is in the set, as a tensor of bools. A distribution's
`arg_constraints` has one for each parameter, and `support` is the set that its samples are in. GT checks nothing by
itself, since that would wait for the values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gt.client.functions import elementwise as ew
from gt.client.functions.casts import finfo
from gt.client.functions.creation import full
from gt.client.functions.linalg.factoring import eigvalsh
from gt.client.functions.shapes import cat as _joined
from gt.client.functions.shapes import stack as _stacked
from gt.client.functions.shapes import tril


class Constraint:
    """The base class: a set of values. The last `event_dim` dimensions of a value are one event."""

    is_discrete = False
    event_dim = 0

    def check(self, value: Any) -> Any:
        """Whether each event of a value is in the set."""
        raise NotImplementedError(f"{type(self).__name__} has no check")

    def __repr__(self) -> str:
        shown = ", ".join(f"{k}={v}" for k, v in vars(self).items() if not k.startswith("_"))
        return f"{type(self).__name__.removeprefix('_')}({shown})"


class _Dependent(Constraint):
    """The set depends on the parameters of a distribution."""

    def __init__(self, *, is_discrete: bool = False, event_dim: int = 0) -> None:
        self.is_discrete, self.event_dim = is_discrete, event_dim

    def __call__(self, *, is_discrete: bool = False, event_dim: int = 0) -> _Dependent:
        return _Dependent(is_discrete=is_discrete, event_dim=event_dim)

    def check(self, value: Any) -> Any:
        raise ValueError("check: this set depends on parameters; use a distribution's, as in Uniform(0, 1).support")


class dependent_property(property, _Dependent):
    """A property whose value is a set that depends on the parameters. The class itself has it as a `dependent` set."""

    def __init__(
        self, fn: Callable[[Any], Any] | None = None, *, is_discrete: bool = False, event_dim: int = 0
    ) -> None:
        property.__init__(self, fn)
        self.is_discrete, self.event_dim = is_discrete, event_dim

    def __call__(self, fn: Any) -> dependent_property:  # type: ignore[override]  # used as a decorator with settings
        return dependent_property(fn, is_discrete=self.is_discrete, event_dim=self.event_dim)


def is_dependent(constraint: Any) -> bool:
    """Whether the set depends on parameters."""
    return isinstance(constraint, _Dependent)


def _whole(found: Any, dims: int) -> Any:
    """Whether all of the last dimensions are true."""
    return found.reshape(*found.shape[: found.ndim - dims], -1).all(-1) if dims else found


class independent(Constraint):
    """Every element along the last dimensions is in a set."""

    def __init__(self, base_constraint: Any, reinterpreted_batch_ndims: int) -> None:
        self.base_constraint, self.reinterpreted_batch_ndims = base_constraint, reinterpreted_batch_ndims

    is_discrete = property(lambda self: self.base_constraint.is_discrete)
    event_dim = property(lambda self: self.base_constraint.event_dim + self.reinterpreted_batch_ndims)

    def check(self, value: Any) -> Any:
        if value.ndim < self.event_dim:
            raise ValueError(f"a value must have at least {self.event_dim} dimensions, got {value.ndim}")
        return _whole(self.base_constraint.check(value), self.reinterpreted_batch_ndims)


class MixtureSameFamilyConstraint(Constraint):
    """The support of a mixture: that of one of its components."""

    def __init__(self, base_constraint: Any) -> None:
        self.base_constraint = base_constraint

    is_discrete = property(lambda self: self.base_constraint.is_discrete)
    event_dim = property(lambda self: self.base_constraint.event_dim)

    def check(self, value: Any) -> Any:
        each = self.base_constraint.check(value.unsqueeze(-1 - self.event_dim))
        return _whole(each, each.ndim - value.ndim + self.event_dim)


class _Where(Constraint):
    """Values for which a function is true."""

    def __init__(self, name: str, holds: Callable[[Any], Any], event_dim: int = 0, is_discrete: bool = False) -> None:
        self._name, self._holds, self.event_dim, self.is_discrete = name, holds, event_dim, is_discrete

    def check(self, value: Any) -> Any:
        return self._holds(value)

    def __repr__(self) -> str:
        return self._name


class greater_than(Constraint):
    """Numbers above a bound."""

    def __init__(self, lower_bound: Any) -> None:
        self.lower_bound = lower_bound

    def check(self, value: Any) -> Any:
        return value > self.lower_bound


class greater_than_eq(Constraint):
    """Numbers from a bound on."""

    def __init__(self, lower_bound: Any) -> None:
        self.lower_bound = lower_bound

    def check(self, value: Any) -> Any:
        return value >= self.lower_bound


class less_than(Constraint):
    """Numbers below a bound."""

    def __init__(self, upper_bound: Any) -> None:
        self.upper_bound = upper_bound

    def check(self, value: Any) -> Any:
        return value < self.upper_bound


class interval(Constraint):
    """Numbers between two bounds, which belong to it."""

    def __init__(self, lower_bound: Any, upper_bound: Any) -> None:
        self.lower_bound, self.upper_bound = lower_bound, upper_bound

    def check(self, value: Any) -> Any:
        return (value >= self.lower_bound) & (value <= self.upper_bound)


class half_open_interval(interval):
    """Numbers between two bounds, of which the upper one does not belong to it."""

    def check(self, value: Any) -> Any:
        return (value >= self.lower_bound) & (value < self.upper_bound)


class integer_interval(interval):
    """Whole numbers between two bounds, which belong to it."""

    is_discrete = True

    def check(self, value: Any) -> Any:
        return (value % 1 == 0) & super().check(value)


class _integer_from(greater_than_eq):
    """Whole numbers from a bound on."""

    is_discrete = True

    def check(self, value: Any) -> Any:
        return (value % 1 == 0) & super().check(value)


class multinomial(Constraint):
    """Counts that add up to at most a number."""

    is_discrete, event_dim = True, 1

    def __init__(self, upper_bound: Any) -> None:
        self.upper_bound = upper_bound

    def check(self, value: Any) -> Any:
        return (value >= 0).all(-1) & (value.sum(-1) <= self.upper_bound)


class cat(Constraint):
    """A set for each piece of a dimension."""

    def __init__(self, cseq: Sequence[Any], dim: int = 0, lengths: Sequence[int] | None = None) -> None:
        self.cseq, self.dim = list(cseq), dim
        self.lengths = [1] * len(self.cseq) if lengths is None else list(lengths)

    is_discrete = property(lambda self: any(c.is_discrete for c in self.cseq))
    event_dim = property(lambda self: max(c.event_dim for c in self.cseq))

    def check(self, value: Any) -> Any:
        pieces = value.split(self.lengths, self.dim)
        return _joined([c.check(p) for c, p in zip(self.cseq, pieces, strict=True)], self.dim)


class stack(Constraint):
    """A set for each place of a dimension."""

    def __init__(self, cseq: Sequence[Any], dim: int = 0) -> None:
        self.cseq, self.dim = list(cseq), dim

    is_discrete = property(lambda self: any(c.is_discrete for c in self.cseq))

    @property
    def event_dim(self) -> int:  # type: ignore[override]  # it follows from the parts
        dim = max(c.event_dim for c in self.cseq)
        return dim + 1 if self.dim + dim < 0 else dim

    def check(self, value: Any) -> Any:
        places = value.unbind(self.dim)
        return _stacked([c.check(v) for c, v in zip(self.cseq, places, strict=True)], self.dim)


def _is_symmetric(x: Any) -> Any:
    return ew.isclose(x, x.mT, atol=1e-6).all((-2, -1))


def _is_square(x: Any) -> Any:
    return full(x.shape[:-2], x.shape[-2] == x.shape[-1])


def _of_matrices(least: float, strict: bool) -> Callable[[Any], Any]:
    def holds(x: Any) -> Any:
        values = eigvalsh(x)
        return _is_symmetric(x) & ((values > least) if strict else (values >= least)).all(-1)

    return holds


def _is_corr_cholesky(x: Any) -> Any:
    tolerance = finfo(x.dtype).eps * x.shape[-1] * 10
    return ((x**2).sum(-1) - 1).abs().le(tolerance).all(-1) & lower_cholesky.check(x)


def _is_one_hot(x: Any) -> Any:
    return ((x == 0) | (x == 1)).all(-1) & (x.sum(-1) == 1)


dependent = _Dependent()
boolean = _Where("Boolean()", lambda x: (x == 0) | (x == 1), is_discrete=True)
one_hot = _Where("OneHot()", _is_one_hot, 1, True)
nonnegative_integer, positive_integer = _integer_from(0), _integer_from(1)
real = _Where("Real()", lambda x: x == x)  # nan is no number
real_vector = independent(real, 1)
positive, nonnegative = greater_than(0.0), greater_than_eq(0.0)
unit_interval = interval(0.0, 1.0)
simplex = _Where("Simplex()", lambda x: (x >= 0).all(-1) & ((x.sum(-1) - 1).abs() < 1e-6), 1)
lower_triangular = _Where("LowerTriangular()", lambda x: (tril(x) == x).all((-2, -1)), 2)
lower_cholesky = _Where(
    "LowerCholesky()", lambda x: lower_triangular.check(x) & (x.diagonal(dim1=-2, dim2=-1) > 0).all(-1), 2
)
corr_cholesky = _Where("CorrCholesky()", _is_corr_cholesky, 2)
square = _Where("Square()", _is_square, 2)
symmetric = _Where("Symmetric()", _is_symmetric, 2)
positive_semidefinite = _Where("PositiveSemidefinite()", _of_matrices(0.0, False), 2)
positive_definite = _Where("PositiveDefinite()", _of_matrices(0.0, True), 2)

#: Constraints and their classes.
__all__ = sorted(  # computed
    name
    for name, value in globals().items()
    if name[0] != "_" and (isinstance(value, Constraint) or (isinstance(value, type) and issubclass(value, Constraint)))
)
