"""Activation functions, with the signatures of torch.nn.functional. `__all__` has those that are also in `torch`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.client.compat.arguments import called
from gt.client.compat.autocast import autocasts
from gt.client.compat.checks import at_least, floating
from gt.client.compat.dims import one_dim
from gt.client.functions import elementwise as ew
from gt.client.functions.elementwise import abs, le, logical_and, mul, sigmoid, sub, tanh, where
from gt.client.functions.inplace import replace
from gt.client.functions.randoms import rand
from gt.client.functions.shapes import chunk
from gt.client.programs import kinds
from gt.client.programs.tree import Kinds
from gt.client.record.recorder import unary
from gt.client.tensor import Tensor
from gt.errors import ArgumentError, ShapeError
from gt.ops import TABLE
from gt.ops.record import LOWER

__all__ = [
    "celu", "celu_", "hardshrink", "prelu", "relu", "relu_", "rrelu", "rrelu_", "selu", "selu_", "threshold",
    "threshold_",
]  # fmt: skip
METHODS = ["hardshrink", "prelu", "relu"]
INPLACE = ["relu"]

_HARDTANH, _HARDTANH_OF_INTS = (Kinds(TABLE["hardtanh"], "min_val", "max_val") for _ in range(2))  # as 1 == 1.0

_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


def _placed(name: str, input: Any, y: Tensor, inplace: bool) -> Tensor:
    """The result, written into the input if inplace."""
    return replace(name, input, y) if inplace else y


# -- one op each -----------------------------------------------------------------------------


def relu(input: Any, inplace: bool = False) -> Tensor:
    """max(0, input), element by element."""
    return unary(kinds.relu, input) if not inplace else _placed("relu_", input, unary(kinds.relu, input), True)


def relu6(input: Any, inplace: bool = False) -> Tensor:
    """min(max(0, input), 6), element by element."""
    return hardtanh(input, 0.0, 6.0, inplace)


def hardtanh(input: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    """The input clamped to the range from min_val to max_val."""
    if min_val > max_val:
        raise ArgumentError(f"hardtanh: min_val must be <= max_val, got {min_val} and {max_val}")
    if input.dtype.is_floating_point:
        kind = _HARDTANH[float(min_val), float(max_val)]
    else:
        kind = _HARDTANH_OF_INTS[int(min_val), int(max_val)]
    return _placed("hardtanh_", input, unary(kind, input), inplace)


def leaky_relu(input: Any, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """input where input > 0, else negative_slope * input."""
    return _placed("leaky_relu_", input, unary(kinds.leaky_relu[float(negative_slope)], input), inplace)


def elu(input: Any, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """input where input > 0, else alpha * (exp(input) - 1)."""
    return _placed("elu_", input, unary(kinds.elu[float(alpha), 1.0, 1.0], input), inplace)


def selu(input: Any, inplace: bool = False) -> Tensor:
    """Scaled exponential linear unit: elu with fixed constants that keep mean and variance across layers."""
    return _placed("selu_", input, unary(kinds.elu[_SELU_ALPHA, _SELU_SCALE, 1.0], input), inplace)


def celu(input: Any, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """input where input > 0, else alpha * (exp(input / alpha) - 1)."""
    if alpha == 0:
        raise ArgumentError("celu: alpha must not be 0")
    return _placed("celu_", input, unary(kinds.elu[float(alpha), 1.0, 1.0 / alpha], input), inplace)


def gelu(input: Any, approximate: str = "none") -> Tensor:
    """Gaussian error linear unit: input times the normal CDF of input; approximate is 'none' or 'tanh'."""
    return unary(kinds.gelu[approximate], input)


def _without_settings(name: str, doc: str) -> Callable[..., Tensor]:
    kind = getattr(kinds, name)

    def function(input: Any, inplace: bool = False) -> Tensor:
        return _placed(f"{name}_", input, unary(kind, input), inplace)

    return called(function, name, doc)


silu = _without_settings("silu", "input * sigmoid(input).")
mish = _without_settings("mish", "input * tanh(softplus(input)).")
hardswish = _without_settings("hardswish", "input * hardsigmoid(input).")
hardsigmoid = _without_settings("hardsigmoid", "input / 6 + 0.5, clamped to the range from 0 to 1.")


def softplus(input: Any, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta * input)) / beta; the input itself where beta * input > threshold."""
    return unary(kinds.softplus[float(beta), float(threshold)], input)


def logsigmoid(input: Any) -> Tensor:
    """log(sigmoid(input))."""
    return unary(kinds.logsigmoid, input)


# -- compositions ----------------------------------------------------------------------------


def threshold(input: Any, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """input where input > threshold, else value."""
    if not input.dtype.is_differentiable:
        threshold, value = int(threshold), int(value)
    return _placed("threshold_", input, where(le(input, threshold), value, input), inplace)


def softsign(input: Any) -> Tensor:
    """input / (1 + abs(input))."""
    return input / (abs(input) + 1)


def tanhshrink(input: Any) -> Tensor:
    """input - tanh(input)."""
    return sub(input, tanh(input))


def softshrink(input: Any, lambd: float = 0.5) -> Tensor:
    """input - lambd where input > lambd, input + lambd where input < -lambd, else 0."""
    floating("softshrink", input)
    at_least("softshrink", "lambd", lambd, 0)
    # The last branch is 0, and nan where the input is nan.
    lower = where(ew.lt(input, -lambd), input + lambd, mul(input, 0.0))
    return where(ew.gt(input, lambd), input - lambd, lower)


def hardshrink(input: Any, lambd: float = 0.5) -> Tensor:
    """input where abs(input) > lambd, else 0."""
    floating("hardshrink", input)
    return where(logical_and(ew.ge(input, -lambd), le(input, lambd)), 0.0, input)


def glu(input: Any, dim: int = -1) -> Tensor:
    """Gated linear unit: the first half of the input along dim times the sigmoid of the second half."""
    floating("glu", input)
    if not input.ndim or input.shape[one_dim("glu", dim, input.ndim)] % 2:
        raise ShapeError(f"glu: the size of dimension {dim} must be even, got shape {input.shape}")
    a, b = chunk(input, 2, dim)
    return mul(a, sigmoid(b))


@autocasts(LOWER)
def prelu(input: Any, weight: Any) -> Tensor:
    """input where input > 0, else weight * input; weight has one element, or one per channel (dimension 1)."""
    floating("prelu", input)
    if weight.numel() != 1:
        channels = input.shape[1] if input.ndim > 1 else 1
        if weight.ndim != 1 or weight.shape[0] != channels:
            raise ShapeError(f"prelu: weight must have 1 or {channels} elements (channels), got shape {weight.shape}")
        if input.ndim > 1:
            weight = weight.reshape(-1, *[1] * (input.ndim - 2))
    elif weight.ndim:
        weight = weight.reshape(())
    return where(ew.gt(input, 0), input, mul(input, weight))


def rrelu(
    input: Any, lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False, inplace: bool = False
) -> Tensor:
    """input where input > 0, else a slope times input: random between lower and upper in training, else their mean."""
    floating("rrelu", input)
    if lower > upper:
        raise ArgumentError(f"rrelu: lower must be <= upper, got {lower} and {upper}")
    if not training:
        return _placed("rrelu_", input, leaky_relu(input, (lower + upper) / 2), inplace)
    slopes = rand(*input.shape, dtype=input.dtype) * (upper - lower) + lower
    return _placed("rrelu_", input, where(ew.gt(input, 0), input, mul(input, slopes)), inplace)


def _inplace(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The in-place form of an activation, such as `relu_`."""

    def function_(input: Any, *args: Any, **kwargs: Any) -> Tensor:
        return function(input, *args, **kwargs, inplace=True)

    return called(function_, function.__name__ + "_", f"In-place version of {function.__name__}().")


relu_, elu_, selu_, celu_ = _inplace(relu), _inplace(elu), _inplace(selu), _inplace(celu)
leaky_relu_, hardtanh_ = _inplace(leaky_relu), _inplace(hardtanh)
rrelu_, threshold_ = _inplace(rrelu), _inplace(threshold)
