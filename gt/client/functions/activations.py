"""Activations, with the signatures of torch.nn.functional. Those that torch has at its top level are exported."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gt.client.compat.autocast import autocasts
from gt.client.compat.dims import one_dim
from gt.client.functions.elementwise import abs, le, logical_and, mul, sigmoid, sub, tanh, where
from gt.client.functions.elementwise import ge as _ge
from gt.client.functions.elementwise import gt as _gt
from gt.client.functions.elementwise import lt as _lt
from gt.client.record.recorder import unary
from gt.client.record.tree import Kind, Kinds
from gt.errors import ArgumentError, DTypeError, ShapeError
from gt.ops import TABLE
from gt.ops.record import LOWER

if TYPE_CHECKING:
    from gt.client.tensor import Tensor

__all__ = [
    "celu", "celu_", "hardshrink", "prelu", "relu", "relu_", "rrelu", "rrelu_", "selu", "selu_", "threshold",
    "threshold_",
]  # fmt: skip
METHODS = ["hardshrink", "prelu", "relu"]
INPLACE = ["relu"]

_RELU = Kind(TABLE["relu"], {})
_SILU = Kind(TABLE["silu"], {})
_MISH = Kind(TABLE["mish"], {})
_HARDSWISH = Kind(TABLE["hardswish"], {})
_HARDSIGMOID = Kind(TABLE["hardsigmoid"], {})
_LOGSIGMOID = Kind(TABLE["logsigmoid"], {})
_GELU = Kinds(TABLE["gelu"], "approximate")
_SOFTPLUS = Kinds(TABLE["softplus"], "beta", "threshold")
_LEAKY_RELU = Kinds(TABLE["leaky_relu"], "negative_slope")
_HARDTANH, _HARDTANH_OF_INTS = (Kinds(TABLE["hardtanh"], "min_val", "max_val") for _ in range(2))  # as 1 == 1.0
_ELU = Kinds(TABLE["elu"], "alpha", "scale", "input_scale")

_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


def _placed(name: str, input: Any, y: Tensor, inplace: bool) -> Tensor:
    """The result; written into the input if asked for."""
    if not inplace:
        return y
    from gt.client.views.inplace import replace

    return replace(name, input, y)


def _floating(name: str, x: Any) -> None:
    if not x.dtype.is_floating_point:
        raise DTypeError(f"{name}: needs a floating type, not {x.dtype.name}; cast first, as in x.float()")


# -- each an op ------------------------------------------------------------------------------


def relu(input: Any, inplace: bool = False) -> Tensor:
    """The input where positive, else 0."""
    return unary(_RELU, input) if not inplace else _placed("relu_", input, unary(_RELU, input), True)


def relu6(input: Any, inplace: bool = False) -> Tensor:
    """The input, not below 0 and not above 6."""
    return hardtanh(input, 0.0, 6.0, inplace)


def hardtanh(input: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    """The input, not below min_val and not above max_val."""
    if min_val > max_val:
        raise ArgumentError(f"hardtanh: min_val {min_val} is above max_val {max_val}")
    if input.dtype.is_floating_point:
        kind = _HARDTANH[float(min_val), float(max_val)]
    else:
        kind = _HARDTANH_OF_INTS[int(min_val), int(max_val)]
    return _placed("hardtanh_", input, unary(kind, input), inplace)


def leaky_relu(input: Any, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """The input where positive, else negative_slope times it."""
    return _placed("leaky_relu_", input, unary(_LEAKY_RELU[float(negative_slope)], input), inplace)


def elu(input: Any, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """The input where positive, else alpha * (exp(input) - 1)."""
    return _placed("elu_", input, unary(_ELU[float(alpha), 1.0, 1.0], input), inplace)


def selu(input: Any, inplace: bool = False) -> Tensor:
    """elu, scaled so that layers keep mean and variance."""
    return _placed("selu_", input, unary(_ELU[_SELU_ALPHA, _SELU_SCALE, 1.0], input), inplace)


def celu(input: Any, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """The input where positive, else alpha * (exp(input / alpha) - 1)."""
    if alpha == 0:
        raise ArgumentError("celu: alpha cannot be 0")
    return _placed("celu_", input, unary(_ELU[float(alpha), 1.0, 1.0 / alpha], input), inplace)


def gelu(input: Any, approximate: str = "none") -> Tensor:
    """Gaussian error linear unit; approximate 'none' or 'tanh'."""
    return unary(_GELU[approximate], input)


def silu(input: Any, inplace: bool = False) -> Tensor:
    """The input times its sigmoid."""
    return _placed("silu_", input, unary(_SILU, input), inplace)


def mish(input: Any, inplace: bool = False) -> Tensor:
    """The input times tanh(softplus(input))."""
    return _placed("mish_", input, unary(_MISH, input), inplace)


def hardswish(input: Any, inplace: bool = False) -> Tensor:
    """The input times its hardsigmoid."""
    return _placed("hardswish_", input, unary(_HARDSWISH, input), inplace)


def hardsigmoid(input: Any, inplace: bool = False) -> Tensor:
    """input / 6 + 0.5, not below 0 and not above 1."""
    return _placed("hardsigmoid_", input, unary(_HARDSIGMOID, input), inplace)


def softplus(input: Any, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta * input)) / beta; the input itself where beta * input is above the threshold."""
    return unary(_SOFTPLUS[float(beta), float(threshold)], input)


def logsigmoid(input: Any) -> Tensor:
    """The logarithm of the sigmoid."""
    return unary(_LOGSIGMOID, input)


# -- compositions ----------------------------------------------------------------------------


def threshold(input: Any, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """The input where it is above the threshold, else the value."""
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
    """The input moved towards 0 by lambd; 0 where it is nearer than that."""
    _floating("softshrink", input)
    if lambd < 0:
        raise ArgumentError(f"softshrink: lambd is not negative, as {lambd} is")
    # The last branch is 0, and nan where the input is.
    lower = where(_lt(input, -lambd), input + lambd, mul(input, 0.0))
    return where(_gt(input, lambd), input - lambd, lower)


def hardshrink(input: Any, lambd: float = 0.5) -> Tensor:
    """The input; 0 where it is no further than lambd from 0."""
    _floating("hardshrink", input)
    return where(logical_and(_ge(input, -lambd), le(input, lambd)), 0.0, input)


def glu(input: Any, dim: int = -1) -> Tensor:
    """One half of the input times the sigmoid of the other half."""
    from gt.client.functions.shapes import chunk

    _floating("glu", input)
    if not input.ndim or input.shape[one_dim("glu", dim, input.ndim)] % 2:
        raise ShapeError(f"glu: dimension {dim} of a tensor of shape {input.shape} has no two halves")
    a, b = chunk(input, 2, dim)
    return mul(a, sigmoid(b))


@autocasts(LOWER)
def prelu(input: Any, weight: Any) -> Tensor:
    """The input where positive, else weight times it; one weight, or one for each channel (dimension 1)."""
    _floating("prelu", input)
    if weight.numel() != 1:
        channels = input.shape[1] if input.ndim > 1 else 1
        if weight.ndim != 1 or weight.shape[0] != channels:
            raise ShapeError(f"prelu: {channels} channels, but weights of shape {weight.shape}; give 1 or {channels}")
        if input.ndim > 1:
            weight = weight.reshape(-1, *[1] * (input.ndim - 2))
    elif weight.ndim:
        weight = weight.reshape(())
    return where(_gt(input, 0), input, mul(input, weight))


def rrelu(
    input: Any, lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False, inplace: bool = False
) -> Tensor:
    """The input where positive, else times a slope between lower and upper: random in training, else the middle."""
    _floating("rrelu", input)
    if lower > upper:
        raise ArgumentError(f"rrelu: lower {lower} is above upper {upper}")
    if not training:
        return _placed("rrelu_", input, leaky_relu(input, (lower + upper) / 2), inplace)
    from gt.client.functions.randoms import rand

    slopes = rand(*input.shape, dtype=input.dtype) * (upper - lower) + lower
    return _placed("rrelu_", input, where(_gt(input, 0), input, mul(input, slopes)), inplace)


def _inplace(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """torch's functions with an underscore at the end."""

    def function_(input: Any, *args: Any, **kwargs: Any) -> Tensor:
        return function(input, *args, **kwargs, inplace=True)

    function_.__name__ = function_.__qualname__ = function.__name__ + "_"
    function_.__doc__ = f"{function.__name__}, in place."
    return function_


relu_ = _inplace(relu)
elu_ = _inplace(elu)
selu_ = _inplace(selu)
celu_ = _inplace(celu)
leaky_relu_ = _inplace(leaky_relu)
hardtanh_ = _inplace(hardtanh)
rrelu_ = _inplace(rrelu)
threshold_ = _inplace(threshold)
