"""Initialization of parameters: each function overwrites a tensor, without history, and returns it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gt.client.compat.checks import one_of
from gt.client.functions import creation, inplace, randoms
from gt.client.functions import elementwise as ew
from gt.client.functions.linalg.factoring import qr
from gt.client.grad.modes import set_grad
from gt.client.tensor import Tensor
from gt.errors import ArgumentError, ShapeError

__all__ = [
    "calculate_gain", "constant_", "dirac_", "eye_", "kaiming_normal_", "kaiming_uniform_", "normal_", "ones_",
    "orthogonal_", "sparse_", "trunc_normal_", "uniform_", "xavier_normal_", "xavier_uniform_", "zeros_",
]  # fmt: skip

#: Recommended gains of nonlinearities, which compensate the loss of variance.
_GAINS = {"tanh": 5.0 / 3, "relu": math.sqrt(2.0), "selu": 3.0 / 4}
_ONE = ("linear", "sigmoid", *(f"conv{t}{n}d" for t in ("", "_transpose") for n in (1, 2, 3)))


def calculate_gain(nonlinearity: str, param: Any = None) -> float:
    """The recommended gain of weights before a nonlinearity: sqrt(2) for relu, 5 / 3 for tanh.

    >>> calculate_gain("tanh")
    1.6666666666666667
    """
    if nonlinearity in _ONE:
        return 1.0
    if nonlinearity in _GAINS:
        return _GAINS[nonlinearity]
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else param
        if isinstance(slope, bool) or not isinstance(slope, (int, float)):
            raise ArgumentError(f"calculate_gain: the slope of leaky_relu must be a number, got {param!r}")
        return math.sqrt(2.0 / (1.0 + slope * slope))
    known = ", ".join((*_ONE, *_GAINS, "leaky_relu"))
    raise ArgumentError(f"calculate_gain: unknown nonlinearity {nonlinearity!r}; expected one of {known}")


# --- values and distributions ------------------------------------------------------------------------


def _written(method: Callable[..., Tensor], tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    with set_grad(False):
        method(tensor, *args, **kwargs)
    return tensor


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Any = None) -> Tensor:
    """Values from the uniform distribution on [a, b)."""
    return _written(randoms.uniform_, tensor, a, b, generator=generator)


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Any = None) -> Tensor:
    """Values from the normal distribution with a mean and a standard deviation."""
    return _written(randoms.normal_, tensor, mean, std, generator=generator)


def trunc_normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0, generator: Any = None
) -> Tensor:
    """Values from the normal distribution truncated to [a, b]."""
    low, high = (0.5 * (1.0 + math.erf((x - mean) / std / math.sqrt(2.0))) for x in (a, b))
    with set_grad(False):
        u = randoms.rand_like(tensor, generator=generator) * (2.0 * (high - low)) + (2.0 * low - 1.0)
        x = ew.erfinv(u) * (std * math.sqrt(2.0)) + mean
    return _written(inplace.copy_, tensor, ew.clamp(x, a, b))


def constant_(tensor: Tensor, val: float) -> Tensor:
    """The value val everywhere."""
    return _written(inplace.fill_, tensor, val)


def ones_(tensor: Tensor) -> Tensor:
    """Ones."""
    return constant_(tensor, 1.0)


def zeros_(tensor: Tensor) -> Tensor:
    """Zeros."""
    return constant_(tensor, 0.0)


def eye_(tensor: Tensor) -> Tensor:
    """The identity matrix."""
    if tensor.ndim != 2:
        raise ShapeError(f"eye_: expected a matrix, got shape {tensor.shape}")
    return _written(inplace.copy_, tensor, creation.eye(*tensor.shape, dtype=tensor.dtype))


def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """The identity as the weight of a convolution, for as many channels as possible."""
    if tensor.ndim not in (3, 4, 5):
        raise ShapeError(f"dirac_: expected a convolution's weight, of 3 to 5 dimensions, got shape {tensor.shape}")
    if tensor.shape[0] % groups:
        raise ArgumentError(f"dirac_: the number of outputs must be a multiple of {groups}, got {tensor.shape[0]}")
    per_group = tensor.shape[0] // groups
    data = np.zeros(tensor.shape)
    middle = tuple(n // 2 for n in tensor.shape[2:])
    for group in range(groups):
        for d in range(min(per_group, tensor.shape[1])):
            data[(group * per_group + d, d, *middle)] = 1.0
    return _written(inplace.copy_, tensor, data)


# --- scaled by the number of inputs and outputs ------------------------------------------------------


def fans(tensor: Tensor) -> tuple[int, int]:
    """fan_in, the number of inputs of each output, and fan_out, the number of outputs of each input."""
    if tensor.ndim < 2:
        raise ShapeError(f"fan_in and fan_out require a tensor of at least 2 dimensions, got shape {tensor.shape}")
    field = math.prod(tensor.shape[2:])
    return tensor.shape[1] * field, tensor.shape[0] * field


_calculate_fan_in_and_fan_out = fans  # a private name that much torch code uses


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Any = None) -> Tensor:
    """Values from a uniform distribution with variance gain^2 * 2 / (fan_in + fan_out)."""
    bound = gain * math.sqrt(6.0 / max(sum(fans(tensor)), 1))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Any = None) -> Tensor:
    """Values from a normal distribution with variance gain^2 * 2 / (fan_in + fan_out)."""
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / max(sum(fans(tensor)), 1)), generator)


def _kaiming(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    """The standard deviation."""
    one_of("kaiming", "mode", mode, "fan_in", "fan_out")
    fan = fans(tensor)[mode == "fan_out"]
    return calculate_gain(nonlinearity, a) / math.sqrt(max(fan, 1))


def kaiming_uniform_(
    tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", generator: Any = None
) -> Tensor:
    """Values from a uniform distribution with variance gain^2 / fan, with the gain of the nonlinearity."""
    if 0 in tensor.shape:
        return tensor
    bound = math.sqrt(3.0) * _kaiming(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", generator: Any = None
) -> Tensor:
    """Values from a normal distribution with variance gain^2 / fan, with the gain of the nonlinearity."""
    if 0 in tensor.shape:
        return tensor
    return normal_(tensor, 0.0, _kaiming(tensor, a, mode, nonlinearity), generator)


# --- matrices ----------------------------------------------------------------------------------------


def orthogonal_(tensor: Tensor, gain: float = 1, generator: Any = None) -> Tensor:
    """A (semi-)orthogonal matrix times gain; the dimensions from 1 on are flattened."""
    if tensor.ndim < 2:
        raise ShapeError(f"orthogonal_: expected at least 2 dimensions, got shape {tensor.shape}")
    if not tensor.numel():
        return tensor
    rows, columns = tensor.shape[0], tensor.numel() // tensor.shape[0]
    with set_grad(False):
        flat = randoms.randn(max(rows, columns), min(rows, columns), dtype=tensor.dtype, generator=generator)
        q, r = qr(flat)
        q = q * r.diagonal().sign()  # makes the distribution uniform
        q = (q.t() if rows < columns else q).reshape(tensor.shape) * gain
    return _written(inplace.copy_, tensor, q)


def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01, generator: Any = None) -> Tensor:
    """Values from a normal distribution, with a fraction `sparsity` of each column set to zero at random."""
    if tensor.ndim != 2:
        raise ShapeError(f"sparse_: expected a matrix, got shape {tensor.shape}")
    rows, columns = tensor.shape
    zeros = math.ceil(sparsity * rows)
    with set_grad(False):
        order = randoms.rand(rows, columns, generator=generator).argsort(0).argsort(0)
        values = ew.where(order < zeros, 0.0, randoms.randn_like(tensor, generator=generator) * std)
    return _written(inplace.copy_, tensor, values)


def linear_(weight: Tensor, bias: Tensor | None) -> None:
    """Initialize a linear layer or a convolution: weight and bias uniform in +-1 / sqrt(fan_in)."""
    kaiming_uniform_(weight, a=math.sqrt(5))
    if bias is not None:
        inputs = fans(weight)[0]
        bound = 1 / math.sqrt(inputs) if inputs else 0.0
        uniform_(bias, -bound, bound)


def __getattr__(name: str) -> Callable[..., Any]:
    """The old names of torch: `uniform`, `xavier_normal`, ... without the underscore."""
    if f"{name}_" in __all__:
        return globals()[f"{name}_"]
    raise AttributeError(f"module 'gt.nn.init' has no attribute {name!r}")
