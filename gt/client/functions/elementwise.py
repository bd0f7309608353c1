"""The functions that work element by element: arithmetic, comparison, `where`, rounding, casts.

Those of one or two tensors that need nothing but their op go to the recorder at once. Activations have a file of
their own, and so have special functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import ml_dtypes

from gt import dtypes
from gt.client.compat.autocast import autocasts
from gt.client.record.recorder import apply, binary, unary
from gt.client.record.tree import Kind, Kinds
from gt.errors import ArgumentError, DTypeError
from gt.ops import TABLE
from gt.ops.record import FLOAT32_ON_CUDA, Autocast

if TYPE_CHECKING:
    from gt.client.tensor import Tensor

__all__ = [
    "abs", "absolute", "acos", "acosh", "add", "addcdiv", "addcmul", "allclose", "arccos", "arccosh", "arcsin",
    "arcsinh", "arctan", "arctan2", "arctanh", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_and",
    "bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "ceil", "clamp",
    "clamp_max", "clamp_min", "clip", "copysign", "cos", "cosh", "deg2rad", "digamma", "dist", "div", "divide",
    "eq", "equal", "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "fix", "float_power", "floor", "floor_divide",
    "fmax", "fmin", "fmod", "frac", "frexp", "gcd", "ge", "greater", "greater_equal", "gt", "heaviside", "hypot",
    "i0", "isclose", "isfinite", "isinf", "isnan", "isneginf", "isposinf", "isreal", "lcm", "ldexp", "le", "lerp",
    "less", "less_equal", "lgamma", "log", "log1p", "log2", "log10", "logaddexp", "logaddexp2", "logical_and",
    "logical_not", "logical_or", "logical_xor", "logit", "lt", "masked_fill", "maximum", "minimum", "mul",
    "multiply", "mvlgamma", "nan_to_num", "ne", "neg", "negative", "nextafter", "not_equal", "polygamma",
    "positive", "pow", "rad2deg", "reciprocal", "remainder", "round", "rsqrt", "rsub", "sgn", "sigmoid", "sign",
    "signbit", "sin", "sinc", "sinh", "sqrt", "square", "sub", "subtract", "tan", "tanh", "true_divide", "trunc",
    "where", "xlogy",
]  # fmt: skip
METHODS = [*{*__all__} - {"rsub", "where"}, "cast"]
#: Those without an in-place form.
_PLAIN = {
    "allclose", "dist", "equal", "fmax", "fmin", "frexp", "isclose", "isfinite", "isinf", "isnan", "isneginf",
    "isposinf", "isreal", "logaddexp", "logaddexp2", "maximum", "minimum", "positive", "rsub", "signbit", "where",
}  # fmt: skip
INPLACE = [*{*__all__} - _PLAIN]


def _unary(name: str) -> Callable[[Any], Tensor]:
    kind = Kind(TABLE[name], {})

    def function(input: Any) -> Tensor:
        return unary(kind, input)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = TABLE[name].doc
    return function


def _binary(name: str) -> Callable[[Any, Any], Tensor]:
    kind = Kind(TABLE[name], {})

    def function(input: Any, other: Any) -> Tensor:
        return binary(kind, input, other)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = TABLE[name].doc
    return function


# -- of one tensor ---------------------------------------------------------------------------

abs = absolute = _unary("abs")
neg = negative = _unary("neg")
sign = _unary("sign")
sgn = _unary("sgn")
exp = _unary("exp")
exp2 = _unary("exp2")
expm1 = _unary("expm1")
log = _unary("log")
log2 = _unary("log2")
log10 = _unary("log10")
log1p = _unary("log1p")
sqrt = _unary("sqrt")
rsqrt = _unary("rsqrt")
square = _unary("square")
reciprocal = _unary("reciprocal")
sin = _unary("sin")
cos = _unary("cos")
tan = _unary("tan")
asin = arcsin = _unary("asin")
acos = arccos = _unary("acos")
atan = arctan = _unary("atan")
sinh = _unary("sinh")
cosh = _unary("cosh")
tanh = _unary("tanh")
asinh = arcsinh = _unary("asinh")
acosh = arccosh = _unary("acosh")
atanh = arctanh = _unary("atanh")
sinc = _unary("sinc")
erf = _unary("erf")
erfc = _unary("erfc")
erfinv = _unary("erfinv")
lgamma = _unary("lgamma")
digamma = _unary("digamma")
i0 = _unary("i0")
sigmoid = _unary("sigmoid")
floor = _unary("floor")
ceil = _unary("ceil")
trunc = fix = _unary("trunc")
logical_not = _unary("logical_not")
bitwise_not = _unary("bitwise_not")
isnan = _unary("isnan")
isinf = _unary("isinf")
isfinite = _unary("isfinite")
signbit = _unary("signbit")

_CAST = Kinds(TABLE["cast"], "dtype")
_ROUND = Kind(TABLE["round"], {})
_ROUND_TO = Kinds(TABLE["round"], "decimals")
_LOGIT = Kinds(TABLE["logit"], "eps")
_POLYGAMMA = Kinds(TABLE["polygamma"], "n")
_FREXP = Kind(TABLE["frexp"], {})


class FrExp(NamedTuple):
    """What frexp returns: input = mantissa * 2 ** exponent."""

    mantissa: Any
    exponent: Any


def cast(input: Any, dtype: Any) -> Tensor:
    """The tensor with elements of another type; itself if it has that type."""
    to = dtypes.dtype(dtype)
    if hasattr(input, "dtype") and input.dtype is to:
        return input
    return unary(_CAST[to.name], input)


def positive(input: Any) -> Tensor:
    """The tensor itself; not of bools."""
    if input.dtype is dtypes.bool_:
        raise DTypeError("positive: is not defined for bool; cast first, as in x.int()")
    return input


def round(input: Any, *, decimals: int = 0) -> Tensor:
    """The nearest number of so many decimals; halves go to the even one."""
    return unary(_ROUND if decimals == 0 else _ROUND_TO[decimals], input)


def frac(input: Any) -> Tensor:
    """The part of the number after the point, with its sign."""
    if not input.dtype.is_floating_point:
        raise DTypeError(f"frac: needs a floating type, not {input.dtype.name}; cast first, as in x.float()")
    return _sub(input, trunc(input))


def frexp(input: Any) -> FrExp:
    """The number as mantissa * 2 ** exponent, with the mantissa in [0.5, 1)."""
    return FrExp(*apply(_FREXP, (input,)))


def deg2rad(input: Any) -> Tensor:
    """Degrees in radians."""
    return mul(input, math.pi / 180)


def rad2deg(input: Any) -> Tensor:
    """Radians in degrees."""
    return mul(input, 180 / math.pi)


def logit(input: Any, eps: float | None = None) -> Tensor:
    """log(input / (1 - input)); with eps, of the input kept that far from 0 and 1."""
    return unary(_LOGIT[eps], input)


def polygamma(n: Any, input: Any) -> Tensor:
    """The n-th derivative of digamma."""
    if hasattr(n, "_v"):  # as a method it has the tensor first
        n, input = input, n
    return unary(_POLYGAMMA[n], input)


def mvlgamma(input: Any, p: int) -> Tensor:
    """The logarithm of the multivariate gamma function of dimension p."""
    if type(p) is not int or p < 1:
        raise ArgumentError(f"mvlgamma: p is an int from 1 on, not {p!r}")
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
        raise DTypeError(f"{name}: is not defined for complex numbers; take x.real or x.imag first")
    return eq(input, value)


def isreal(input: Any) -> Tensor:
    """Whether the imaginary part of each element is zero."""
    if input.dtype.is_complex:
        return eq(TABLE["imag"](input), 0)
    from gt.client.functions.creation import full

    return full(input.shape, True, dtype=dtypes.bool_)


def nan_to_num(input: Any, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Tensor:
    """The tensor with other numbers for nan (0), inf (the largest there is) and -inf (the smallest)."""
    if input.dtype.is_complex:
        parts = [nan_to_num(TABLE[part](input), nan, posinf, neginf) for part in ("real", "imag")]
        return TABLE["complex"](*parts)
    if not input.dtype.is_floating_point:
        return input.clone()
    largest = float(ml_dtypes.finfo(input.dtype.numpy).max)
    finite = where(isnan(input), 0.0 if nan is None else float(nan), input)
    finite = where(eq(input, math.inf), largest if posinf is None else float(posinf), finite)
    return where(eq(input, -math.inf), -largest if neginf is None else float(neginf), finite)


# -- of two ----------------------------------------------------------------------------------

mul = multiply = _binary("mul")
maximum = _binary("maximum")
minimum = _binary("minimum")
fmax = _binary("fmax")
fmin = _binary("fmin")
fmod = _binary("fmod")
remainder = _binary("remainder")
floor_divide = _binary("floor_divide")
atan2 = arctan2 = _binary("atan2")
hypot = _binary("hypot")
copysign = _binary("copysign")
logaddexp = _binary("logaddexp")
logaddexp2 = _binary("logaddexp2")
xlogy = _binary("xlogy")
nextafter = _binary("nextafter")
gcd = _binary("gcd")
lcm = _binary("lcm")
eq = _binary("eq")
ne = not_equal = _binary("ne")
lt = less = _binary("lt")
le = less_equal = _binary("le")
gt = greater = _binary("gt")
ge = greater_equal = _binary("ge")
logical_and = _binary("logical_and")
logical_or = _binary("logical_or")
logical_xor = _binary("logical_xor")
bitwise_and = _binary("bitwise_and")
bitwise_or = _binary("bitwise_or")
bitwise_xor = _binary("bitwise_xor")
bitwise_left_shift = _binary("bitwise_left_shift")
bitwise_right_shift = _binary("bitwise_right_shift")
_add = _binary("add")
_sub = _binary("sub")
_div = _binary("div")
_pow = _binary("pow")


def _scaled(name: str, other: Any, alpha: Any, *operands: Any) -> Any:
    """alpha * other, in the type of the operands."""
    if isinstance(alpha, float) and not any(_is_real(x) for x in operands):
        raise ArgumentError(f"{name}: alpha is an int where the tensors are integers, not {alpha}")
    if not hasattr(other, "_v"):
        return other * alpha
    if other.dtype is dtypes.bool_:
        return logical_and(other, bool(alpha))
    return mul(other, alpha)


def _is_real(x: Any) -> bool:
    """Whether it makes a sum a floating or complex one."""
    return x.dtype.is_differentiable if hasattr(x, "_v") else not isinstance(x, int)


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
    """input / other; rounding_mode 'floor' or 'trunc' rounds the result."""
    if rounding_mode is None:
        return _div(input, other)
    if rounding_mode == "floor":
        return floor_divide(input, other)
    if rounding_mode != "trunc":
        raise ArgumentError(f"div: rounding_mode is None, 'floor' or 'trunc', not {rounding_mode!r}")
    if _is_real(input) or _is_real(other):
        return trunc(_div(input, other))
    return floor_divide(_sub(input, fmod(input, other)), other)  # exact, also for large integers


divide = div


def true_divide(input: Any, other: Any) -> Tensor:
    """input / other."""
    return _div(input, other)


def pow(input: Any, exponent: Any) -> Tensor:
    """input to the power exponent."""
    if type(exponent) is int and exponent < 0 and hasattr(input, "_v") and not input.dtype.is_differentiable:
        raise ArgumentError(f"pow: integers have no negative powers, such as {exponent}; cast first, as in x.float()")
    return power(input, exponent)


def power(x: Any, exponent: Any) -> Tensor:
    """x ** exponent. A square is an op of its own, of which a compiler makes more."""
    if type(exponent) in (int, float) and exponent == 2 and hasattr(x, "_v") and x.dtype.is_floating_point:
        return square(x)
    return _pow(x, exponent)


def float_power(input: Any, exponent: Any) -> Tensor:
    """input to the power exponent, in float64 or complex128."""
    operands = (input, exponent)
    wide = dtypes.complex128 if any(_is_complex(x) for x in operands) else dtypes.float64
    base, power = (cast(x, wide) if hasattr(x, "_v") else x if isinstance(x, complex) else float(x) for x in operands)
    return _pow(base, power)


def _is_complex(x: Any) -> bool:
    return x.dtype.is_complex if hasattr(x, "_v") else isinstance(x, complex)


@autocasts(Autocast(cuda="off"))
def ldexp(input: Any, other: Any) -> Tensor:
    """input * 2 ** other."""
    return mul(input, _pow(2.0, other))


def heaviside(input: Any, values: Any) -> Tensor:
    """0 where the input is negative, 1 where positive, the values where it is zero."""
    if hasattr(values, "_v") and values.dtype is not input.dtype:
        raise DTypeError(f"heaviside: {input.dtype.name} and {values.dtype.name} differ; cast one to the other")
    return where(eq(input, 0), values, cast(gt(input, 0), input.dtype))


def isclose(input: Any, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Tensor:
    """Whether abs(input - other) <= atol + rtol * abs(other), or both are equal."""
    if input.dtype is not other.dtype:
        raise DTypeError(f"isclose: {input.dtype.name} and {other.dtype.name} differ; cast one to the other")
    if rtol < 0 or atol < 0:
        raise ArgumentError(f"isclose: rtol and atol are not negative, as {rtol} and {atol} are")
    close = eq(input, other)
    if equal_nan:
        close = logical_or(close, logical_and(isnan(input), isnan(other)))
    if rtol == 0 and atol == 0:
        return close
    if not input.dtype.is_differentiable:  # as torch: the difference is one of integers, the limit a float
        input, other = (cast(x, dtypes.int64) if x.dtype is dtypes.bool_ else x for x in (input, other))
    apart = abs(_sub(input, other))
    near = le(apart, _add(mul(abs(other), rtol), atol))
    return logical_or(close, logical_and(isfinite(apart), near))


def allclose(input: Any, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> bool:
    """Whether isclose holds for every element. Waits for it."""
    return bool(isclose(input, other, rtol, atol, equal_nan).all().item())


def equal(input: Any, other: Any) -> bool:
    """Whether both have the same shape and elements. Waits for it."""
    return input.shape == other.shape and bool(eq(input, other).all().item())


@autocasts(FLOAT32_ON_CUDA)
def dist(input: Any, other: Any, p: float = 2) -> Tensor:
    """The p-norm of input - other."""
    from gt.client.functions.reductions import norm

    return norm(_sub(input, other), p)


# -- of three --------------------------------------------------------------------------------

_WHERE = Kind(TABLE["where"], {})
_CLAMP = Kind(TABLE["clamp"], {})
_CLAMP_MIN = Kind(TABLE["clamp_min"], {})
_CLAMP_MAX = Kind(TABLE["clamp_max"], {})
_LERP = Kind(TABLE["lerp"], {})
_ADDCMUL = Kind(TABLE["addcmul"], {})
_ADDCDIV = Kind(TABLE["addcdiv"], {})


def where(condition: Any, input: Any = None, other: Any = None) -> Any:
    """input where the condition holds, else other; of the condition alone, the indices of where it holds."""
    if input is None and other is None:
        from gt.client.functions.masks import nonzero

        return nonzero(condition, as_tuple=True)
    if isinstance(input, float) or isinstance(other, float):
        input, other = _of_default_dtype(input, other)
    return apply(_WHERE, (condition, input, other))


def _of_default_dtype(*operands: Any) -> tuple[Any, ...]:
    """Python's floats as tensors, where they decide the dtype of the result and the default is not what they are."""
    from gt.client.compat.autocast import default_dtype
    from gt.client.functions.creation import full

    if default_dtype() is dtypes.float32 or any(hasattr(x, "_v") and x.dtype.is_differentiable for x in operands):
        return operands
    return tuple([full((), float(x)) if isinstance(x, float) else x for x in operands])


def clamp(input: Any, min: Any = None, max: Any = None) -> Tensor:
    """Every element at least min and at most max, which are numbers or tensors."""
    if min is not None and max is not None:
        return apply(_CLAMP, (input, min, max))
    if min is not None:
        return binary(_CLAMP_MIN, input, min)
    if max is not None:
        return binary(_CLAMP_MAX, input, max)
    raise ArgumentError("clamp: give min, max or both")


clip = clamp


def clamp_min(input: Any, min: Any) -> Tensor:
    """Every element at least min."""
    return binary(_CLAMP_MIN, input, min)


def clamp_max(input: Any, max: Any) -> Tensor:
    """Every element at most max."""
    return binary(_CLAMP_MAX, input, max)


def masked_fill(input: Any, mask: Any, value: Any) -> Tensor:
    """The tensor with value wherever the mask holds."""
    if hasattr(value, "_v") and value.shape:
        raise ArgumentError(f"masked_fill: value is a number or a tensor without dimensions, not of {value.shape}")
    dtype = input.dtype
    if hasattr(value, "_v"):
        value = cast(value, dtype)
    elif not dtype.is_differentiable:
        value = bool(value) if dtype is dtypes.bool_ else int(value)
    return where(mask, value, input)


def lerp(input: Any, end: Any, weight: Any) -> Tensor:
    """input + weight * (end - input)."""
    return apply(_LERP, (input, end, weight))


def addcmul(input: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Tensor:
    """input + value * tensor1 * tensor2."""
    return apply(_ADDCMUL, (input, tensor1, tensor2, _value(value, input, tensor1, tensor2)))


def addcdiv(input: Any, tensor1: Any, tensor2: Any, *, value: Any = 1) -> Tensor:
    """input + value * tensor1 / tensor2."""
    return apply(_ADDCDIV, (input, tensor1, tensor2, _value(value, input, tensor1, tensor2)))


def _value(value: Any, *operands: Any) -> Any:
    """Of integers, torch takes the whole part."""
    return value if any(x.dtype.is_differentiable for x in operands) else int(value)
