"""What all distributions share: shapes, sampling, what follows from other formulas.

A distribution has parameters of a batch shape. One draw of it has an event shape, which is () for single numbers.
`sample` draws without gradients; `rsample`, where a distribution has it, lets gradients flow to the parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from gt.client.functions import elementwise as ew
from gt.client.functions.creation import as_tensor
from gt.client.functions.shapes import broadcast_tensors
from gt.client.grad.modes import set_grad
from gt.client.tensor import Tensor, default_dtype
from gt.errors import ArgumentError
from gt.program import Size


def tensors(*parameters: Any) -> tuple[Any, ...]:
    """Parameters as floating-point tensors of one shape; numbers take the dtype of the tensors among them."""
    found = [p for p in parameters if isinstance(p, Tensor)]
    dtype = found[0].dtype if found and found[0].dtype.is_floating_point else default_dtype()
    made = [p if isinstance(p, Tensor) else as_tensor(p, dtype=dtype) for p in parameters]
    return tuple(broadcast_tensors(*made)) if len(made) > 1 else tuple(made)


#: The Kullback-Leibler divergence from q to p.
Formula = Callable[[Any, Any], Any]
FORMULAS: dict[tuple[type, type], Formula] = {}  #: By the types of p and q.


class Distribution:
    """The base class of distributions. `batch_shape` and `event_shape` are set by __init__."""

    has_rsample: Any = False  #: Whether samples have gradients with respect to the parameters.
    has_enumerate_support = False
    arg_constraints: ClassVar[Any] = {}  #: What parameters may be, by their names: constraints.py.
    _validate_args = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "_kl" in cls.__dict__:  # the divergence from a distribution of the same class
            FORMULAS[cls, cls] = cls.__dict__["_kl"]

    def __init__(self, batch_shape: Any = (), event_shape: Any = (), validate_args: bool | None = None) -> None:
        self.batch_shape, self.event_shape = Size(batch_shape), Size(event_shape)

    @property
    def support(self) -> Any:
        """What samples are in: one of constraints.py."""
        raise NotImplementedError(f"{type(self).__name__} has no support")

    @staticmethod
    def set_default_validate_args(value: bool) -> None:
        """Accepted without effect: arguments are not checked, since that would wait for their values."""

    def _shape(self, sample_shape: Any) -> tuple[int, ...]:
        return (*tuple(sample_shape), *self.batch_shape, *self.event_shape)

    def _validate_sample(self, value: Any) -> None:
        """Called by distributions that users write; the values are not checked, since that would wait for them."""

    _extended_shape = _shape

    def _get_checked_instance(self, cls: type, _instance: Any = None) -> Any:
        """An empty distribution of the same class, for `expand` of one that a user writes."""
        return object.__new__(type(self)) if _instance is None else _instance

    def sample(self, sample_shape: Any = ()) -> Any:
        """Draw samples, without gradients."""
        with set_grad(False):
            return self._draw(self._shape(sample_shape))

    def rsample(self, sample_shape: Any = ()) -> Any:
        """Draw samples that gradients flow through to the parameters."""
        if not self.has_rsample:
            raise NotImplementedError(
                f"{type(self).__name__}: rsample is not available; use sample(), and log_prob() for the gradient"
            )
        return self._draw(self._shape(sample_shape))

    def sample_n(self, n: int) -> Any:
        """Draw n samples."""
        return self.sample((n,))

    def _draw(self, shape: tuple[int, ...]) -> Any:
        """Draw samples of this shape. A class of a user's has `rsample` or `sample` instead."""
        lead = shape[: len(shape) - len(self.batch_shape) - len(self.event_shape)]
        for own in (type(self).rsample, type(self).sample):
            if own not in (Distribution.rsample, Distribution.sample):
                return own(self, lead)
        raise NotImplementedError(f"{type(self).__name__} has no samples")

    def log_prob(self, value: Any) -> Any:
        """The logarithm of the density, or of the probability, at the value."""
        raise NotImplementedError(f"{type(self).__name__} has no log_prob")

    def entropy(self) -> Any:
        """The entropy of each distribution of the batch."""
        raise NotImplementedError(f"{type(self).__name__} has no entropy")

    def perplexity(self) -> Any:
        """exp(entropy)."""
        return ew.exp(self.entropy())

    def cdf(self, value: Any) -> Any:
        """The probability of at most the value."""
        raise NotImplementedError(f"{type(self).__name__} has no cdf")

    def icdf(self, value: Any) -> Any:
        """The value that is not exceeded with this probability."""
        raise NotImplementedError(f"{type(self).__name__} has no icdf")

    @property
    def mean(self) -> Any:
        """The mean."""
        raise NotImplementedError(f"{type(self).__name__} has no mean")

    @property
    def mode(self) -> Any:
        """The most probable value."""
        raise NotImplementedError(f"{type(self).__name__} has no mode")

    @property
    def variance(self) -> Any:
        """The variance."""
        raise NotImplementedError(f"{type(self).__name__} has no variance")

    @property
    def stddev(self) -> Any:
        """The standard deviation."""
        return self.variance.sqrt()

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        """The same distribution with its parameters expanded to a larger batch."""
        made = object.__new__(type(self)) if _instance is None else _instance
        had = len(self.batch_shape)
        for name, value in self.__dict__.items():
            if isinstance(value, Tensor):
                value = value.expand(*batch_shape, *value.shape[had:])
            elif isinstance(value, Distribution):
                value = value.expand(batch_shape)
            made.__dict__[name] = value
        made.batch_shape = Size(batch_shape)
        return made

    def _parameters(self) -> set[str]:
        return {name for name, value in self.__dict__.items() if isinstance(value, Tensor)}

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}: {tuple(getattr(self, name).shape)}" for name in sorted(self._parameters()))
        return f"{type(self).__name__}({shown})"


def one_of_two(name: str, first: str, a: Any, second: str, b: Any) -> None:
    """Exactly one of two parameters must be given."""
    if (a is None) == (b is None):
        raise ArgumentError(f"{name}: give either {first} or {second}, and not both")


class ExponentialFamily(Distribution):
    """A distribution with natural parameters; those of GT have their formulas, and need none of it."""
