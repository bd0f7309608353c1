"""Pointwise functions: arithmetic, comparison, rounding, casts.

Functions of one or two tensors that are a single op go directly to the recorder. Activations and special functions
are in files of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes

from gt import dtypes
from gt.client.compat.arguments import called, recorded
from gt.client.compat.autocast import autocasts
from gt.client.compat.checks import floating, one_of, same_dtype
from gt.client.functions.constants import filled
from gt.client.programs import kinds
from gt.client.programs.tree import Kind, Kinds
from gt.client.record.recorder import apply, binary, unary
from gt.client.tensor import Tensor, default_dtype
from gt.errors import ArgumentError, DTypeError
from gt.ops import TABLE
from gt.ops.record import Autocast

__all__ = [
    "abs", "absolute", "acos", "acosh", "add", "addcdiv", "addcmul", "allclose", "arccos", "arccosh", "arcsin",
    "arcsinh", "arctan", "arctan2", "arctanh", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_and",
    "bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "ceil", "clamp",
    "clamp_max", "clamp_min", "clip", "copysign", "cos", "cosh", "deg2rad", "digamma", "div", "divide",
    "eq", "equal", "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "fix", "float_power", "floor", "floor_divide",
    "fmax", "fmin", "fmod", "frac", "frexp", "gcd", "ge", "greater", "greater_equal", "gt", "heaviside", "hypot",
    "i0", "isclose", "isfinite", "isinf", "isnan", "isneginf", "isposinf", "isreal", "lcm", "ldexp", "le", "lerp",
    "less", "less_equal", "lgamma", "log", "log1p", "log2", "log10", "logaddexp", "logaddexp2", "logical_and",
    "logical_not", "logical_or", "logical_xor", "logit", "lt", "masked_fill", "maximum", "minimum", "mul",
    "multiply", "mvlgamma", "nan_to_num", "ne", "neg", "negative", "nextafter", "not_equal", "polygamma",
    "positive", "pow", "rad2deg", "reciprocal", "remainder", "round", "rsqrt", "rsub", "sgn", "sigmoid", "sign",
    "signbit", "sin", "sinc", "sinh", "sqrt", "square", "sub", "subtract", "tan", "tanh", "true_divide", "trunc",
    "xlogy",
]  # fmt: skip
METHODS = [*{*__all__} - {"rsub"}, "cast"]
#: Functions without an in-place form.
_PLAIN = {
    "allclose", "equal", "fmax", "fmin", "frexp", "isclose", "isfinite", "isinf", "isnan", "isneginf",
    "isposinf", "isreal", "logaddexp", "logaddexp2", "maximum", "minimum", "positive", "rsub", "signbit",
}  # fmt: skip
INPLACE = [*{*__all__} - _PLAIN]


def unary_function(name: str) -> Callable[[Any], Tensor]:
    """The function of one tensor that records this op."""
    kind = getattr(kinds, name)

    def function(input: Any) -> Tensor:
        return unary(kind, input)

    return called(recorded(function), name, TABLE[name].doc)


def binary_function(name: str) -> Callable[[Any, Any], Tensor]:
    """The function of two tensors that records this op."""
    kind = getattr(kinds, name)

    def function(input: Any, other: Any) -> Tensor:
        return binary(kind, input, other)

    return called(recorded(function), name, TABLE[name].doc)


# -- of one tensor ---------------------------------------------------------------------------

abs = absolute = unary_function("abs")
neg = negative = unary_function("neg")
trunc = fix = unary_function("trunc")
sign, sgn, signbit, reciprocal = map(unary_function, ("sign", "sgn", "signbit", "reciprocal"))
exp, exp2, expm1 = map(unary_function, ("exp", "exp2", "expm1"))
log, log2, log10, log1p = map(unary_function, ("log", "log2", "log10", "log1p"))
sqrt, rsqrt, square, floor, ceil = map(unary_function, ("sqrt", "rsqrt", "square", "floor", "ceil"))
sin, cos, tan, sinh, cosh, tanh = map(unary_function, ("sin", "cos", "tan", "sinh", "cosh", "tanh"))
asin, acos, atan, asinh, acosh, atanh = map(unary_function, ("asin", "acos", "atan", "asinh", "acosh", "atanh"))
arcsin, arccos, arctan, arcsinh, arccosh, arctanh = asin, acos, atan, asinh, acosh, atanh
sigmoid, sinc, erf, erfc, erfinv = map(unary_function, ("sigmoid", "sinc", "erf", "erfc", "erfinv"))
lgamma, digamma, i0 = map(unary_function, ("lgamma", "digamma", "i0"))
logical_not, bitwise_not = map(unary_function, ("logical_not", "bitwise_not"))
isnan, isinf, isfinite = map(unary_function, ("isnan", "isinf", "isfinite"))

_ROUND = Kind(TABLE["round"], {})
_ROUND_TO = Kinds(TABLE["round"], "decimals")


class FrExp(NamedTuple):
    """The result of frexp: input = mantissa * 2 ** exponent."""

    mantissa: Any
    exponent: Any


def cast(input: Any, dtype: Any) -> Tensor:
    """Cast to a dtype; returns the tensor itself if it has that dtype."""
    to = dtypes.dtype(dtype)
    if hasattr(input, "dtype") and input.dtype is to:
        return input
    return unary(kinds.cast[to.name], input)


def positive(input: Any) -> Tensor:
    """Return the tensor itself; raises an error for bool."""
    if input.dtype is dtypes.bool_:
        raise DTypeError("positive: not defined for bool; cast first, as in x.int()")
    return input


def round(input: Any, *, decimals: int = 0) -> Tensor:
    """Round to the nearest number with the given decimals; halves are rounded to even."""
    return unary(_ROUND if decimals == 0 else _ROUND_TO[decimals], input)


def frac(input: Any) -> Tensor:
    """The fractional part of each element, with its sign."""
    floating("frac", input)
    return _sub(input, trunc(input))


def frexp(input: Any) -> FrExp:
    """The mantissa, in [0.5, 1), and the exponent of each element: input = mantissa * 2 ** exponent."""
    return FrExp(*apply(kinds.frexp, (input,)))


def deg2rad(input: Any) -> Tensor:
    """Convert angles from degrees to radians."""
    return mul(input, math.pi / 180)


def rad2deg(input: Any) -> Tensor:
    """Convert angles from radians to degrees."""
    return mul(input, 180 / math.pi)


def logit(input: Any, eps: float | None = None) -> Tensor:
    """log(input / (1 - input)); with eps, the input is first clamped to [eps, 1 - eps]."""
    return unary(kinds.logit[eps], input)


def polygamma(n: Any, input: Any) -> Tensor:
    """The n-th derivative of the digamma function."""
    if isinstance(n, Tensor):  # as a method, the tensor comes first
        n, input = input, n
    return unary(kinds.polygamma[n], input)


def mvlgamma(input: Any, p: int) -> Tensor:
    """The logarithm of the multivariate gamma function of dimension p."""
    if type(p) is not int or p < 1:
        raise ArgumentError(f"mvlgamma: p must be an int >= 1, got {p!r}")
    total = lgamma(input)
    for j in range(1, p):
        total = _add(total, lgamma(_sub(input, j / 2)))
    return total if p == 1 else _add(total, p * (p - 1) / 4 * math.log(math.pi))


def isposinf(input: Any) -> Tensor:
    """Whether each element is positive infinity."""
    return _is_infinite("isposinf", input, math.inf)


def isneginf(input: Any) -> Tensor:
    """Whether each element is negative infinity."""
    return _is_infinite("isneginf", input, -math.inf)


def _is_infinite(name: str, input: Any, value: float) -> Tensor:
    if input.dtype.is_complex:
        raise DTypeError(f"{name}: not defined for complex tensors; use x.real or x.imag")
    return eq(input, value)


def isreal(input: Any) -> Tensor:
    """Whether the imaginary part of each element is zero."""
    if input.dtype.is_complex:
        return eq(TABLE["imag"](input), 0)
    return filled(tuple(input.shape), True, dtypes.bool_)


def nan_to_num(input: Any, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Tensor:
    """Replace nan by 0, inf by the largest and -inf by the smallest finite number, or by the given numbers."""
    if input.dtype.is_complex:
        parts = [nan_to_num(TABLE[part](input), nan, posinf, neginf) for part in ("real", "imag")]
        return TABLE["complex"](*parts)
    if not input.dtype.is_floating_point:
        return input.clone()
    largest = float(ml_dtypes.finfo(input.dtype.numpy).max)
    finite = where(isnan(input), 0.0 if nan is None else float(nan), input)
    finite = where(eq(input, math.inf), largest if posinf is None else float(posinf), finite)
    return where(eq(input, -math.inf), -largest if neginf is None else float(neginf), finite)


# -- of two tensors --------------------------------------------------------------------------

mul = multiply = binary_function("mul")
_add, _sub, _div, _pow = map(binary_function, ("add", "sub", "div", "pow"))
atan2 = arctan2 = binary_function("atan2")
maximum, minimum, fmax, fmin = map(binary_function, ("maximum", "minimum", "fmax", "fmin"))
fmod, remainder, floor_divide, gcd, lcm = map(binary_function, ("fmod", "remainder", "floor_divide", "gcd", "lcm"))
hypot, copysign, nextafter, xlogy = map(binary_function, ("hypot", "copysign", "nextafter", "xlogy"))
logaddexp, logaddexp2 = map(binary_function, ("logaddexp", "logaddexp2"))
eq, ne, lt, le, gt, ge = map(binary_function, ("eq", "ne", "lt", "le", "gt", "ge"))
not_equal, less, less_equal, greater, greater_equal = ne, lt, le, gt, ge
logical_and, logical_or, logical_xor = map(binary_function, ("logical_and", "logical_or", "logical_xor"))
bitwise_and, bitwise_or, bitwise_xor = map(binary_function, ("bitwise_and", "bitwise_or", "bitwise_xor"))
bitwise_left_shift, bitwise_right_shift = map(binary_function, ("bitwise_left_shift", "bitwise_right_shift"))


def _scaled(name: str, other: Any, alpha: Any, *operands: Any) -> Any:
    """alpha * other, in the dtype of the operands."""
    if isinstance(alpha, float) and not any(_is_real(x) for x in operands):
        raise ArgumentError(f"{name}: alpha must be an int for integer tensors, got {alpha}")
    if not isinstance(other, Tensor):
        return other * alpha
    if other.dtype is dtypes.bool_:
        return logical_and(other, bool(alpha))
    return mul(other, alpha)


def _is_real(x: Any) -> bool:
    """Whether an operand makes the result floating-point or complex."""
    return x.dtype.is_differentiable if isinstance(x, Tensor) else not isinstance(x, int)


def add(input: Any, other: Any, *, alpha: Any = 1) -> Tensor:
    """input + alpha * other."""
    return _add(input, other if alpha == 1 else _scaled("add", other, alpha, input, other))


def sub(input: Any, other: Any, *, alpha: Any = 1) -> Tensor:
    """input - alpha * other."""
    return _sub(input, other if alpha == 1 else _scaled("sub", other, alpha, input, other))


def rsub(input: Any, other: Any, *, alpha: Any = 1) -> Tensor:
    """other - alpha * input."""
    return _sub(other, input if alpha == 1 else _scaled("rsub", input, alpha, input, other))


subtract = sub


def div(input: Any, other: Any, *, rounding_mode: str | None = None) -> Tensor:
    """input / other; rounding_mode 'floor' or 'trunc' rounds the result to an integer."""
    if not isinstance(input, Tensor) and not isinstance(other, Tensor):
        input = filled((), input, dtypes.int64 if isinstance(input, int) else default_dtype())  # as in torch
    if rounding_mode is None:
        return _div(input, other)
    if rounding_mode == "floor":
        return floor_divide(input, other)
    one_of("div", "rounding_mode", rounding_mode, None, "floor", "trunc")
    if _is_real(input) or _is_real(other):
        return trunc(_div(input, other))
    return floor_divide(_sub(input, fmod(input, other)), other)  # exact for large integers too


divide = div


def true_divide(input: Any, other: Any) -> Tensor:
    """input / other."""
    return _div(input, other)


def pow(input: Any, exponent: Any) -> Tensor:
    """input ** exponent."""
    if type(exponent) is int and exponent < 0 and isinstance(input, Tensor) and not input.dtype.is_differentiable:
        raise ArgumentError(f"pow: the exponent of integers must be >= 0, got {exponent}; cast first, as in x.float()")
    return power(input, exponent)


def power(x: Any, exponent: Any) -> Tensor:
    """x ** exponent. A square is recorded as an op of its own, which compiles to faster code."""
    if type(exponent) in (int, float) and exponent == 2 and isinstance(x, Tensor) and x.dtype.is_floating_point:
        return square(x)
    return _pow(x, exponent)


def float_power(input: Any, exponent: Any) -> Tensor:
    """input ** exponent, computed in float64 or complex128."""
    operands = (input, exponent)
    is_complex = any(x.dtype.is_complex if isinstance(x, Tensor) else isinstance(x, complex) for x in operands)
    wide = dtypes.complex128 if is_complex else dtypes.float64
    base, power = (
        cast(x, wide) if isinstance(x, Tensor) else x if isinstance(x, complex) else float(x) for x in operands
    )
    return _pow(base, power)


@autocasts(Autocast(cuda="off"))
def ldexp(input: Any, other: Any) -> Tensor:
    """input * 2 ** other."""
    return mul(input, _pow(2.0, other))


def heaviside(input: Any, values: Any) -> Tensor:
    """0 where input < 0, 1 where input > 0, values where input == 0."""
    if isinstance(values, Tensor):
        same_dtype("heaviside", input, values)
    return where(eq(input, 0), values, cast(gt(input, 0), input.dtype))


def isclose(input: Any, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Tensor:
    """Whether abs(input - other) <= atol + rtol * abs(other), element by element."""
    same_dtype("isclose", input, other)
    if rtol < 0 or atol < 0:
        raise ArgumentError(f"isclose: rtol and atol must be >= 0, got {rtol} and {atol}")
    close = eq(input, other)
    if equal_nan:
        close = logical_or(close, logical_and(isnan(input), isnan(other)))
    if rtol == 0 and atol == 0:
        return close
    if not input.dtype.is_differentiable:  # as in torch: the difference is an integer, the limit a float
        input, other = (cast(x, dtypes.int64) if x.dtype is dtypes.bool_ else x for x in (input, other))
    apart = abs(_sub(input, other))
    near = le(apart, _add(mul(abs(other), rtol), atol))
    return logical_or(close, logical_and(isfinite(apart), near))


def allclose(input: Any, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> bool:
    """Whether isclose() is True for all elements. Waits for the result."""
    return bool(isclose(input, other, rtol, atol, equal_nan).all().item())


def equal(input: Any, other: Any) -> bool:
    """Whether two tensors have the same shape and elements. Waits for the result."""
    return input.shape == other.shape and bool(eq(input, other).all().item())


# -- of three tensors ------------------------------------------------------------------------


def where(condition: Any, input: Any, other: Any) -> Tensor:
    """input where the condition is True, else other. gt.where, which also takes a condition alone, is in masks.py."""
    if isinstance(input, float) or isinstance(other, float):
        input, other = of_default_dtype(input, other)
    if isinstance(condition, Tensor) and condition.dtype is dtypes.uint8:  # masks of old code, which torch takes here
        condition = condition != 0
    return apply(kinds.where, (condition, input, other))


def of_default_dtype(*operands: Any) -> tuple[Any, ...]:
    """Python floats as tensors of the default dtype, where they determine the dtype of the result."""
    if default_dtype() is dtypes.float32 or any(isinstance(x, Tensor) and x.dtype.is_differentiable for x in operands):
        return operands
    return tuple([filled((), float(x), default_dtype()) if isinstance(x, float) else x for x in operands])


def clamp(input: Any, min: Any = None, max: Any = None) -> Tensor:
    """Clamp all elements to the range from min to max, which are numbers or tensors."""
    if min is not None and max is not None:
        return apply(kinds.clamp, (input, min, max))
    if min is not None:
        return binary(kinds.clamp_min, input, min)
    if max is not None:
        return binary(kinds.clamp_max, input, max)
    raise ArgumentError("clamp: expected min, max or both")


clip = clamp


def clamp_min(input: Any, min: Any) -> Tensor:
    """Clamp all elements to at least min."""
    return binary(kinds.clamp_min, input, min)


def clamp_max(input: Any, max: Any) -> Tensor:
    """Clamp all elements to at most max."""
    return binary(kinds.clamp_max, input, max)


def masked_fill(input: Any, mask: Any, value: Any) -> Tensor:
    """A copy of the tensor with value where the mask is True."""
    if isinstance(value, Tensor) and value.shape:
        raise ArgumentError(f"masked_fill: value must be a number or a 0-dimensional tensor, got shape {value.shape}")
    dtype = input.dtype
    if isinstance(value, Tensor):
        value = cast(value, dtype)
    elif not dtype.is_differentiable:
        value = bool(value) if dtype is dtypes.bool_ else int(value)
    return where(mask, value, input)


def lerp(input: Any, end: Any, weight: Any) -> Tensor:
    """input + weight * (end - input)."""
    return apply(kinds.lerp, (input, end, weight))


def addcmul(input: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Tensor:
    """input + value * tensor1 * tensor2."""
    return apply(kinds.addcmul, (input, tensor1, tensor2, _value(value, input, tensor1, tensor2)))


def addcdiv(input: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Tensor:
    """input + value * tensor1 / tensor2."""
    return apply(kinds.addcdiv, (input, tensor1, tensor2, _value(value, input, tensor1, tensor2)))


def _value(value: Any, *operands: Any) -> Any:
    """The scale; torch truncates it for integer tensors."""
    return value if any(x.dtype.is_differentiable for x in operands) else int(value)
