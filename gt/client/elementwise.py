"""The functions that work element by element: arithmetic, comparison, `where`, casts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gt import dtypes
from gt.client.recorder import apply, binary, unary
from gt.client.tree import Kind, Kinds
from gt.errors import ArgumentError
from gt.ops import TABLE

if TYPE_CHECKING:
    from gt.client.tensor import Tensor

__all__ = [
    "abs", "add", "ceil", "clamp", "clip", "cos", "div", "eq", "erf", "exp", "expm1", "floor", "floor_divide", "ge",
    "gelu", "gt", "isfinite", "isinf", "isnan", "le", "lerp", "log", "log1p", "log2", "logical_and", "logical_not",
    "logical_or", "logical_xor", "lt", "masked_fill", "maximum", "minimum", "mul", "ne", "neg", "pow", "reciprocal",
    "relu", "remainder", "round", "rsqrt", "sigmoid", "sign", "silu", "sin", "sqrt", "square", "sub", "tanh", "where",
]  # fmt: skip
METHODS = [*{*__all__} - {"where", "gelu", "silu"}, "cast"]
INPLACE = ["add", "sub", "mul", "div", "pow", "clamp", "lerp", "masked_fill", "neg", "exp", "sqrt", "relu"]


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


neg = _unary("neg")
abs = _unary("abs")
sign = _unary("sign")
exp = _unary("exp")
expm1 = _unary("expm1")
log = _unary("log")
log1p = _unary("log1p")
log2 = _unary("log2")
sqrt = _unary("sqrt")
rsqrt = _unary("rsqrt")
square = _unary("square")
reciprocal = _unary("reciprocal")
sin = _unary("sin")
cos = _unary("cos")
tanh = _unary("tanh")
sigmoid = _unary("sigmoid")
relu = _unary("relu")
silu = _unary("silu")
erf = _unary("erf")
floor = _unary("floor")
ceil = _unary("ceil")
round = _unary("round")
logical_not = _unary("logical_not")
isnan = _unary("isnan")
isinf = _unary("isinf")
isfinite = _unary("isfinite")

mul = _binary("mul")
pow = _binary("pow")
maximum = _binary("maximum")
minimum = _binary("minimum")
remainder = _binary("remainder")
floor_divide = _binary("floor_divide")
eq = _binary("eq")
ne = _binary("ne")
lt = _binary("lt")
le = _binary("le")
gt = _binary("gt")
ge = _binary("ge")
logical_and = _binary("logical_and")
logical_or = _binary("logical_or")
logical_xor = _binary("logical_xor")
_add = _binary("add")
_sub = _binary("sub")
_div = _binary("div")

_GELU = Kinds(TABLE["gelu"], "approximate")
_CAST = Kinds(TABLE["cast"], "dtype")
_WHERE = Kind(TABLE["where"], {})
_CLAMP = Kind(TABLE["clamp"], {})
_CLAMP_MIN = Kind(TABLE["clamp_min"], {})
_CLAMP_MAX = Kind(TABLE["clamp_max"], {})


def add(input: Any, other: Any, *, alpha: Any = 1) -> Tensor:
    """input + alpha * other."""
    return _add(input, other if alpha == 1 else mul(other, alpha))


def sub(input: Any, other: Any, *, alpha: Any = 1) -> Tensor:
    """input - alpha * other."""
    return _sub(input, other if alpha == 1 else mul(other, alpha))


def div(input: Any, other: Any, *, rounding_mode: str | None = None) -> Tensor:
    """input / other; rounding_mode 'floor' or 'trunc' rounds the result."""
    if rounding_mode is None:
        return _div(input, other)
    if rounding_mode == "floor":
        return floor_divide(input, other)
    if rounding_mode != "trunc":
        raise ArgumentError(f"div: rounding_mode is None, 'floor' or 'trunc', not {rounding_mode!r}")
    q = _div(input, other)
    cut = where(q < 0, ceil(q), floor(q))
    whole = [x.dtype for x in (input, other) if hasattr(x, "dtype")]
    numbers = [x for x in (input, other) if not hasattr(x, "dtype")]
    if any(d.is_floating_point for d in whole) or any(isinstance(x, float) for x in numbers):
        return cut
    return cast(cut, input.dtype if hasattr(input, "dtype") else other.dtype)


def gelu(input: Any, approximate: str = "none") -> Tensor:
    """Gaussian error linear unit; approximate 'none' or 'tanh'."""
    return unary(_GELU[approximate], input)


def cast(input: Any, dtype: Any) -> Tensor:
    """The tensor with elements of another type; itself if it has that type."""
    to = dtypes.dtype(dtype)
    if hasattr(input, "dtype") and input.dtype is to:
        return input
    return unary(_CAST[to.name], input)


def where(condition: Any, input: Any, other: Any) -> Tensor:
    """input where the condition holds, else other."""
    return apply(_WHERE, (condition, input, other))


def clamp(input: Any, min: Any = None, max: Any = None) -> Tensor:
    """Every element at least min and at most max."""
    if hasattr(min, "_v") or hasattr(max, "_v"):
        low = input if min is None else maximum(input, min)
        return low if max is None else minimum(low, max)
    if min is not None and max is not None:
        return apply(_CLAMP, (input, min, max))
    if min is not None:
        return apply(_CLAMP_MIN, (input, min))
    if max is not None:
        return apply(_CLAMP_MAX, (input, max))
    raise ArgumentError("clamp: give min, max or both")


clip = clamp


def masked_fill(input: Any, mask: Any, value: Any) -> Tensor:
    """The tensor with value wherever the mask holds."""
    return cast(where(mask, value, input), input.dtype)


def lerp(input: Any, end: Any, weight: Any) -> Tensor:
    """input + weight * (end - input)."""
    return _add(input, mul(_sub(end, input), weight))
