"""Random sampling: random tensors, seeds and generators.

Every random op gets its own seed, by value: a hash of the session's seed (or a Generator's) and the number of seeds
drawn before. An op makes the same numbers of a seed on every engine (gt/ops/families/random.py).
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from gt import dtypes
from gt.client.compat.checks import at_least, floating, positive
from gt.client.functions import elementwise as ew
from gt.client.functions.complexes import complex
from gt.client.functions.creation import finish, float_dtype, from_numpy, ignored, like, next_seed, shape_of
from gt.client.functions.inplace import replace
from gt.client.functions.shapes import broadcast_shapes
from gt.client.functions.sorting import searchsorted
from gt.client.programs import kinds
from gt.client.programs.tree import Kinds
from gt.client.record import recorder as recording
from gt.client.record.recorder import apply
from gt.client.tensor import Tensor
from gt.dtypes import DType
from gt.errors import ArgumentError, DTypeError, ShapeError
from gt.ops.families.bits import mix64

__all__ = [
    "Generator", "bernoulli", "default_generator", "get_rng_state", "initial_seed", "manual_seed", "multinomial",
    "normal", "poisson", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "randperm", "seed",
    "set_rng_state",
]  # fmt: skip
METHODS = [
    "bernoulli", "bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "multinomial", "normal_",
    "random_", "uniform_",
]  # fmt: skip


# --- seeds -------------------------------------------------------------------------------------------


class Generator:
    """A random number generator, independent of the session's own; pass it as `generator=`.

    >>> import gt
    >>> a, b = gt.Generator().manual_seed(1), gt.Generator().manual_seed(1)
    >>> gt.rand(2, generator=a).tolist() == gt.rand(2, generator=b).tolist()
    True
    """

    def __init__(self, device: Any = None) -> None:
        self.device = device
        self._seed, self._draws = 67280421310721, 0  # the seed torch's generators begin with

    def manual_seed(self, seed: int) -> Generator:
        """Set the seed; returns the generator."""
        self._seed, self._draws = int(seed) & (2**63 - 1), 0
        return self

    def seed(self) -> int:
        """Set a non-deterministic seed and return it."""
        return self.manual_seed(int.from_bytes(os.urandom(8), "little")).initial_seed()

    def initial_seed(self) -> int:
        """The seed that was set last."""
        return self._seed

    def next_seed(self) -> int:
        """The seed of the next random op."""
        self._draws += 1
        return mix64(self._seed + (self._draws - 1) * 0x9E3779B97F4A7C15) >> 1

    def get_state(self) -> Tensor:
        """The state as a tensor of bytes."""
        return _state(self._seed, self._draws)

    def set_state(self, new_state: Tensor) -> Generator:
        """Restore a state that get_state() returned."""
        self._seed, self._draws = _numbers(new_state)
        return self


def _state(seed: int, draws: int) -> Tensor:
    return from_numpy(np.array([seed, draws], np.int64).view(np.uint8))


def _numbers(state: Any) -> tuple[int, int]:
    data = np.asarray(state.numpy() if isinstance(state, Tensor) else state)
    if data.dtype != np.uint8 or data.shape != (16,):
        raise ArgumentError("set_rng_state: expected a state that get_rng_state() returned")
    first, second = np.ascontiguousarray(data).view(np.int64).tolist()
    return first, second


class _Default(Generator):
    """The session's own random numbers as a generator."""

    def __init__(self) -> None:
        self.device = None

    @property
    def _seed(self) -> int:
        return int(recording.recorder().session.seed)

    @_seed.setter
    def _seed(self, seed: int) -> None:
        recording.recorder().session.seed = seed

    @property
    def _draws(self) -> int:
        return int(recording.recorder().session.draws)

    @_draws.setter
    def _draws(self, draws: int) -> None:
        recording.recorder().session.draws = draws


default_generator = _Default()


def manual_seed(seed: int) -> Generator:
    """Set the seed of the session's random numbers; the same seed gives the same numbers on every engine."""
    return default_generator.manual_seed(seed)


def seed() -> int:
    """Set a non-deterministic seed for the session's random numbers and return it."""
    return default_generator.seed()


def initial_seed() -> int:
    """The seed of the session's random numbers."""
    return default_generator.initial_seed()


def get_rng_state() -> Tensor:
    """The state of the session's random numbers as a tensor of bytes."""
    return default_generator.get_state()


def set_rng_state(new_state: Tensor) -> None:
    """Restore a state of the session's random numbers that get_rng_state() returned."""
    default_generator.set_state(new_state)


@contextlib.contextmanager
def fork_rng(devices: Any = None, enabled: bool = True, **kwargs: Any) -> Iterator[None]:
    """A context that restores the state of the session's random numbers at its end."""
    session = recording.recorder().session
    before = session.seed, session.draws
    try:
        yield
    finally:
        if enabled:
            session.seed, session.draws = before


# --- new tensors -------------------------------------------------------------------------------------


def _drawn(numbers: Kinds, shape: tuple[int, ...], dtype: DType, generator: Any) -> Tensor:
    if not dtype.is_complex:
        return apply(numbers[shape, dtype.name], (next_seed(generator),))
    parts = [_drawn(numbers, shape, dtype.to_real(), generator) for _ in range(2)]
    if numbers is kinds.randn:  # the variance of a complex number is the sum of its parts' variances
        parts = [ew.mul(part, math.sqrt(0.5)) for part in parts]
    return complex(*parts)


def rand(*size: Any, generator: Any = None, dtype: Any = None, requires_grad: bool = False, **where: Any) -> Tensor:
    """Random numbers from the uniform distribution on [0, 1)."""
    shape = shape_of("rand", size, where)
    return finish(_drawn(kinds.rand, shape, float_dtype(dtype), generator), requires_grad)


def randn(*size: Any, generator: Any = None, dtype: Any = None, requires_grad: bool = False, **where: Any) -> Tensor:
    """Random numbers from the normal distribution with mean 0 and variance 1."""
    shape = shape_of("randn", size, where)
    return finish(_drawn(kinds.randn, shape, float_dtype(dtype), generator), requires_grad)


def rand_like(
    input: Any, *, generator: Any = None, dtype: Any = None, requires_grad: bool = False, **where: Any
) -> Tensor:
    """Random numbers from the uniform distribution on [0, 1), with the shape and dtype of input."""
    ignored("rand_like", where)
    return finish(_drawn(kinds.rand, input.shape, like(input, dtype), generator), requires_grad)


def randn_like(
    input: Any, *, generator: Any = None, dtype: Any = None, requires_grad: bool = False, **where: Any
) -> Tensor:
    """Random numbers from the standard normal distribution, with the shape and dtype of input."""
    ignored("randn_like", where)
    return finish(_drawn(kinds.randn, input.shape, like(input, dtype), generator), requires_grad)


def _integers(op: str, low: Any, high: Any, shape: tuple[int, ...], dtype: DType, generator: Any) -> Tensor:
    low, high = (x.item() if isinstance(x, Tensor) else x for x in (low, high))
    if high <= low:
        raise ArgumentError(f"{op}: expected low < high, got {low} and {high}")
    numbers = [x if hasattr(x, "_letter") else int(x) for x in (low, high)]
    return apply(kinds.randint[shape, dtype.name], (next_seed(generator), *numbers))


def randint(
    low: Any = None, high: Any = None, size: Any = None, *, generator: Any = None, dtype: Any = None,
    requires_grad: bool = False, **where: Any,
) -> Tensor:  # fmt: skip
    """Random integers from low (default 0) up to but not including high."""
    if low is None:
        low = 0
    elif size is None:
        low, high, size = 0, low, high
    elif high is None:
        low, high = 0, low
    if size is None or high is None:
        raise ArgumentError("randint: expected high and a size, as in randint(10, (2, 3))")
    shape = shape_of("randint", (size,), where)
    kind = dtypes.int64 if dtype is None else dtypes.dtype(dtype)
    return finish(_integers("randint", low, high, shape, kind, generator), requires_grad)


def randint_like(
    input: Any, low: Any, high: Any = None, *, generator: Any = None, dtype: Any = None, requires_grad: bool = False,
    **where: Any,
) -> Tensor:  # fmt: skip
    """Random integers from low up to but not including high, with the shape and dtype of input."""
    ignored("randint_like", where)
    low, high = (0, low) if high is None else (low, high)
    drawn = _integers("randint_like", low, high, input.shape, like(input, dtype), generator)
    return finish(drawn, requires_grad)


def randperm(
    n: int, *, generator: Any = None, dtype: Any = dtypes.int64, requires_grad: bool = False, **where: Any
) -> Tensor:
    """A random permutation of the integers from 0 to n - 1."""
    ignored("randperm", where)
    at_least("randperm", "n", n, 0)
    return finish(apply(kinds.randperm[int(n), dtypes.dtype(dtype).name], (next_seed(generator),)), requires_grad)


def normal(
    mean: Any = 0.0, std: Any = 1.0, size: Any = None, *, generator: Any = None, dtype: Any = None,
    requires_grad: bool = False, **where: Any,
) -> Tensor:  # fmt: skip
    """Random numbers from normal distributions: of the given size, or one for each element of mean and std."""
    tensors = [x for x in (mean, std) if isinstance(x, Tensor)]
    if not tensors:
        if size is None:
            raise ArgumentError("normal: expected a size, or a tensor as mean or std")
        z = randn(size, generator=generator, dtype=dtype, **where)
        return finish(ew.add(ew.mul(z, std), mean), requires_grad)
    if size is not None:
        raise ArgumentError("normal: size must be None if mean or std is a tensor")
    ignored("normal", where)
    kind = tensors[0].dtype
    if not kind.is_differentiable:
        raise DTypeError(f"normal: expected floating-point tensors, got {kind.name}")
    shape = broadcast_shapes(*(x.shape for x in tensors))
    return ew.add(ew.mul(_drawn(kinds.randn, shape, kind, generator), std), mean)


def bernoulli(input: Any, p: float | None = None, *, generator: Any = None) -> Tensor:
    """Random zeros and ones; the probability of a one is each element of input, or p."""
    if p is None and not input.dtype.is_floating_point:
        raise DTypeError(f"bernoulli: input must be floating-point, got {input.dtype.name}; pass p, or use x.float()")
    return _coins("bernoulli", input, input.detach() if p is None else p, generator)


def _coins(op: str, x: Any, p: Any, generator: Any) -> Tensor:
    """Ones with probability p, with the shape and dtype of x. Computed in float32 at least, for small p."""
    if not isinstance(p, Tensor):
        if not 0 <= p <= 1:
            raise ArgumentError(f"{op}: p must be between 0 and 1, got {p}")
        wide = dtypes.float32
    else:
        wide = dtypes.float64 if p.dtype is dtypes.float64 else dtypes.float32
    return ew.cast(ew.lt(_drawn(kinds.rand, x.shape, wide, generator), p), x.dtype)


def multinomial(input: Any, num_samples: int, replacement: bool = False, *, generator: Any = None) -> Tensor:
    """Indices sampled from each row with the row's weights, with or without replacement."""
    if input.ndim not in (1, 2):
        raise ShapeError(f"multinomial: expected a vector or a matrix of weights, got shape {input.shape}")
    floating("multinomial", input)
    k = input.shape[-1]
    positive("multinomial", "num_samples", num_samples)
    if not replacement and num_samples > k:
        raise ArgumentError(f"multinomial: num_samples must be <= {k} without replacement, got {num_samples}")
    weights = ew.cast(input.detach(), dtypes.float64)
    if replacement and num_samples > 1:
        limits = weights.cumsum(-1)
        u = _drawn(kinds.rand, (*input.shape[:-1], num_samples), dtypes.float64, generator)
        places = searchsorted(limits, ew.mul(u, limits.narrow(-1, k - 1, 1)), right=True)
        return ew.clamp(places, max=k - 1)
    # Exponential times with the weights as rates, in ascending order, are a sample without replacement.
    race = ew.div(weights, _exponential(weights.shape, dtypes.float64, generator))
    return race.topk(num_samples, -1)[1]


def poisson(input: Any, generator: Any = None) -> Tensor:
    """Random numbers from Poisson distributions with the rates in input."""
    return apply(kinds.poisson, (input, next_seed(generator)))


# --- in place ----------------------------------------------------------------------------------------


def _exponential(shape: tuple[int, ...], dtype: DType, generator: Any) -> Tensor:
    """Numbers from the exponential distribution with rate 1, none of them zero."""
    wide = dtypes.float64 if dtype is dtypes.float64 else dtypes.float32
    u = _drawn(kinds.rand, shape, wide, generator)
    return ew.neg(ew.log1p(ew.neg(ew.clamp(u, min=2.0**-54 if wide is dtypes.float64 else 2.0**-25))))


def normal_(self: Any, mean: Any = 0.0, std: Any = 1.0, *, generator: Any = None) -> Tensor:
    """Fill with random numbers from a normal distribution."""
    z = _drawn(kinds.randn, self.shape, self.dtype, generator)
    return replace("normal_", self, ew.add(ew.mul(z, std), mean))


def uniform_(self: Any, a: Any = 0.0, b: Any = 1.0, *, generator: Any = None, **bounds: Any) -> Tensor:
    """Fill with random numbers from the uniform distribution on [a, b), which may be given as `from` and `to`."""
    a, b = bounds.pop("from", a), bounds.pop("to", b)
    if bounds:
        raise ArgumentError(f"uniform_: unexpected argument {', '.join(bounds)}")
    if a > b:
        raise ArgumentError(f"uniform_: from must be <= to, got {a} and {b}")
    u = _drawn(kinds.rand, self.shape, floating("uniform_", self), generator)
    return replace("uniform_", self, ew.add(ew.mul(u, b - a), a))


def bernoulli_(self: Any, p: Any = 0.5, *, generator: Any = None) -> Tensor:
    """Fill with ones with probability p (a number or a tensor), else zeros."""
    return replace("bernoulli_", self, _coins("bernoulli_", self, p, generator))


def exponential_(self: Any, lambd: float = 1.0, *, generator: Any = None) -> Tensor:
    """Fill with random numbers from the exponential distribution with rate lambd."""
    positive("exponential_", "lambd", lambd)
    times = _exponential(self.shape, floating("exponential_", self), generator)
    return replace("exponential_", self, ew.cast(ew.div(times, lambd), self.dtype))


def geometric_(self: Any, p: float, *, generator: Any = None) -> Tensor:
    """Fill with random numbers from the geometric distribution: trials until the first success with probability p."""
    if not 0 < p < 1:
        raise ArgumentError(f"geometric_: p must be between 0 and 1, both excluded, got {p}")
    times = _exponential(self.shape, dtypes.float64, generator)
    return replace("geometric_", self, ew.cast(ew.ceil(ew.div(times, -math.log1p(-p))), self.dtype))


def cauchy_(self: Any, median: float = 0.0, sigma: float = 1.0, *, generator: Any = None) -> Tensor:
    """Fill with random numbers from a Cauchy distribution."""
    kind = floating("cauchy_", self)
    u = _drawn(kinds.rand, self.shape, dtypes.float64 if kind is dtypes.float64 else dtypes.float32, generator)
    angle = ew.mul(ew.sub(u, 0.5), math.pi)
    tangent = ew.div(ew.sin(angle), ew.cos(angle))
    return replace("cauchy_", self, ew.cast(ew.add(ew.mul(tangent, sigma), median), kind))


def log_normal_(self: Any, mean: float = 1.0, std: float = 2.0, *, generator: Any = None) -> Tensor:
    """Fill with random numbers whose logarithms are normally distributed."""
    z = _drawn(kinds.randn, self.shape, floating("log_normal_", self), generator)
    return replace("log_normal_", self, ew.exp(ew.add(ew.mul(z, std), mean)))


#: The largest integer up to which a dtype represents every integer.
_WHOLE = {"float64": 2**53, "float32": 2**24, "float16": 2**11, "bfloat16": 2**8, "bool": 1}


def random_(self: Any, *bounds: Any, generator: Any = None, **named: Any) -> Tensor:
    """Fill with random integers: below a bound, between two bounds, or of the dtype's whole range."""
    low, high = named.pop("from", 0), named.pop("to", None)
    if named or len(bounds) > 2:
        raise ArgumentError("random_: expected at most from, to and a generator")
    if len(bounds) == 2:
        low, high = bounds
    elif bounds:
        high = bounds[0]
    if high is None:
        kind = self.dtype
        high = (_WHOLE[kind.name] if kind.name in _WHOLE else int(np.iinfo(kind.numpy).max)) + 1
    drawn = _integers("random_", low, min(high, 2**63 - 1), self.shape, self.dtype, generator)
    return replace("random_", self, drawn)
