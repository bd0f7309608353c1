"""Ops on one tensor, element by element: arithmetic, powers, angles, rounding, tests, casts and limits.

A gradient reads the result where it can (exp, tanh): the operand may then die early. Derivatives of complex
functions are conjugated, as in torch; `conj` leaves real ones alone.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from gt import dtypes
from gt.errors import ArgumentError, DTypeError
from gt.ops import rules
from gt.ops.record import FLOAT32_ON_CUDA, Op, Rng, Sample, conj, op, ops, zeros
from gt.ops.sharding import pointwise, pointwise_op
from gt.program import Spec, spec

# -- samples ---------------------------------------------------------------------------------


def _reals(rng: Rng) -> list[Sample]:
    return [((rng.normal(size=s),), {}) for s in [(3, 4), (), (0, 2)]]


def uniform(low: float, high: float) -> Any:
    """Samples of one operand between two numbers."""
    return lambda rng: [((rng.uniform(low, high, size=s),), {}) for s in [(3, 4), (), (0, 2)]]


def _and_complex(samples: Any) -> Any:
    return lambda rng: [*samples(rng), ((rng.normal(size=5) + 1j * rng.normal(size=5),), {})]


def _odd_values(rng: Rng) -> list[Sample]:
    return [
        ((np.array([0.0, -0.0, 1.5, np.nan, np.inf, -np.inf]),), {}),
        ((rng.integers(-2, 3, size=(2, 3)),), {}),
        ((np.array(True),), {}),
        ((np.zeros((0,)),), {}),
    ]


# -- ops that make floats --------------------------------------------------------------------


def _numpys(name: str) -> Any:
    """numpy's function of that name, which jax.numpy has too."""
    return lambda xp, x: getattr(xp, name)(x)


def _smooth(name: str, doc: str, vjp: Any, samples: Any = _reals, array: Any = None, **more: Any) -> Op:
    """Floats stay floats, integers become floats. `array` is its kernel, if numpy has none of that name."""
    kernels, samples = {"array": array or _numpys(name)}, _and_complex(samples)
    infer = rules.unary(name, to="float")
    return op(
        name, doc, infer=infer, factors=pointwise, vjp=(vjp,), kernels=kernels, promote=True, samples=samples, **more
    )


#: Functions whose range or slope needs float32: autocast computes them so on CUDA.
_steep = partial(_smooth, autocast=FLOAT32_ON_CUDA)
_positives = uniform(0.5, 3)
_inside = uniform(-0.9, 0.9)

exp = _steep("exp", "The exponential function.", lambda g, y, x: g * conj(y))
exp2 = _smooth("exp2", "2 to the power x.", lambda g, y, x: g * conj(y) * math.log(2))
expm1 = _steep("expm1", "exp(x) - 1, accurate near 0.", lambda g, y, x: g * (conj(y) + 1.0))
log = _steep("log", "The natural logarithm.", lambda g, y, x: g / conj(x), _positives)
log1p = _steep("log1p", "log(1 + x), accurate near 0.", lambda g, y, x: g / (conj(x) + 1.0), _positives)


def _log_to(base: int) -> Any:
    """numpy's logarithm to a base. jax has none of complex numbers."""
    own = _numpys(f"log{base}")
    return lambda xp, x: own(xp, x) if x.dtype.kind != "c" else xp.log(x) / math.log(base)


log2 = _steep(
    "log2", "The logarithm to base 2.", lambda g, y, x: g / (conj(x) * math.log(2)), _positives, array=_log_to(2)
)
log10 = _steep(
    "log10", "The logarithm to base 10.", lambda g, y, x: g / (conj(x) * math.log(10)), _positives, array=_log_to(10)
)
sqrt = _smooth("sqrt", "The square root.", lambda g, y, x: g / (conj(y) * 2.0), _positives)
rsqrt = _steep(
    "rsqrt", "1 / sqrt(x).", lambda g, y, x: g * conj(y * y * y) * -0.5, _positives, lambda xp, x: 1 / xp.sqrt(x)
)
reciprocal = _steep("reciprocal", "1 / x.", lambda g, y, x: -(g * conj(y * y)), _positives, lambda xp, x: 1 / x)
sin = _smooth("sin", "The sine.", lambda g, y, x: g * conj(ops.cos(x)))
cos = _smooth("cos", "The cosine.", lambda g, y, x: -(g * conj(ops.sin(x))))
tan = _steep("tan", "The tangent.", lambda g, y, x: g * conj(y * y + 1.0))
asin = _steep("asin", "The inverse sine.", lambda g, y, x: g * conj(ops.rsqrt(1.0 - x * x)), _inside, _numpys("arcsin"))
acos = _steep(
    "acos", "The inverse cosine.", lambda g, y, x: -(g * conj(ops.rsqrt(1.0 - x * x))), _inside, _numpys("arccos")
)
atan = _smooth("atan", "The inverse tangent.", lambda g, y, x: g / conj(x * x + 1.0), array=_numpys("arctan"))
sinh = _steep("sinh", "The hyperbolic sine.", lambda g, y, x: g * conj(ops.cosh(x)))
cosh = _steep("cosh", "The hyperbolic cosine.", lambda g, y, x: g * conj(ops.sinh(x)))
asinh = _smooth(
    "asinh", "The inverse hyperbolic sine.", lambda g, y, x: g * conj(ops.rsqrt(x * x + 1.0)), array=_numpys("arcsinh")
)


def _acosh_dx(g: Any, y: Any, x: Any) -> Any:
    if x.dtype.is_complex:  # two roots: one of x * x - 1 would take the wrong branch
        return g * conj(ops.rsqrt(x - 1.0) * ops.rsqrt(x + 1.0))
    return g * ops.rsqrt(x * x - 1.0)


acosh = _smooth("acosh", "The inverse hyperbolic cosine.", _acosh_dx, uniform(1.5, 4), _numpys("arccosh"))
atanh = _smooth(
    "atanh", "The inverse hyperbolic tangent.", lambda g, y, x: g / conj(1.0 - x * x), _inside, _numpys("arctanh")
)


def _sinc_dx(g: Any, y: Any, x: Any) -> Any:
    zero = ops.eq(x, 0)
    safe = ops.where(zero, 1.0, x)
    angle = safe * math.pi
    slope = (ops.cos(angle) - ops.sin(angle) / angle) / safe
    return ops.where(zero, 0.0, g * conj(slope))


sinc = _smooth("sinc", "sin(pi x) / (pi x), and 1 at 0.", _sinc_dx)


def _tanh_vjp(g: Any, y: Any, x: Any) -> Any:
    return g * conj(1.0 - y * y) if y.dtype.is_complex else ops.tanh_dx(g, y)


def _sigmoid_vjp(g: Any, y: Any, x: Any) -> Any:
    return g * conj(y * (1.0 - y)) if y.dtype.is_complex else ops.sigmoid_dx(g, y)


def _sigmoid(xp: Any, x: Any) -> Any:
    if x.dtype.kind == "c":
        return 1 / (1 + xp.exp(-x))
    e = xp.exp(-xp.abs(x))  # never overflows
    return xp.where(x >= 0, 1 / (1 + e), e / (1 + e))


tanh = _smooth("tanh", "The hyperbolic tangent.", _tanh_vjp)
sigmoid = _smooth("sigmoid", "1 / (1 + exp(-x)).", _sigmoid_vjp, array=_sigmoid)

# -- ops that keep the dtype -----------------------------------------------------------------

neg = pointwise_op(
    "neg",
    "-x.",
    infer=rules.unary("neg", bools=False),
    linear=((0,),),
    vjp=(lambda g, y, x: -g,),
    kernels={"array": lambda xp, x: -x},
    samples=_and_complex(_reals),
)


abs_ = pointwise_op(
    "abs",
    "The absolute value.",
    infer=rules.unary("abs", to="real", bools=False),
    vjp=(lambda g, y, x: g * ops.sgn(x),),
    kernels={"array": _numpys("abs")},
    samples=_and_complex(_reals),
)


square = pointwise_op(
    "square",
    "x * x; bools give int64.",
    infer=lambda x: spec(x.shape, dtypes.int64) if rules.tensor("square", x).dtype is dtypes.bool_ else x,
    vjp=(lambda g, y, x: g * (conj(x) * 2.0),),
    kernels={"array": lambda xp, x: x * x},
    samples=_and_complex(_reals),
    autocast=FLOAT32_ON_CUDA,
)


def _sign(xp: Any, x: Any) -> Any:
    if x.dtype.kind in "bu":
        return (x != 0).astype(x.dtype)
    if x.dtype.kind == "i":
        return xp.sign(x)
    if x.dtype.kind == "c":
        size = xp.abs(x)
        return xp.where(size == 0, 0, x / xp.where(size == 0, 1, size))
    return xp.where(xp.isnan(x), 0, xp.sign(x))


def _zero(g: Any, y: Any, x: Any, **attrs: Any) -> Any:
    """Flat almost everywhere: the gradient is zero, and exists, as in torch."""
    return zeros(g)


def _sgn_dx(g: Any, y: Any, x: Any) -> Any:
    if not x.dtype.is_complex:
        return _zero(g, y, x)
    size = ops.abs(x)
    zero = ops.eq(size, 0)
    across = g - y * ops.real(conj(g) * y)  # what turns x; what stretches it changes nothing
    return ops.where(zero, 0.0, across / ops.where(zero, 1.0, size))


sign = pointwise_op(
    "sign",
    "-1, 0 or 1.",
    infer=rules.unary("sign", complexes=False),
    vjp=(_zero,),
    kernels={"array": _sign},
    samples=_reals,
)
sgn = pointwise_op(
    "sgn",
    "The sign; x / abs(x) for complex numbers, and 0 at 0.",
    infer=rules.unary("sgn"),
    vjp=(_sgn_dx,),
    kernels={"array": _sign},
    samples=_and_complex(_reals),
)


def _whole(name: str, doc: str) -> Op:
    return pointwise_op(
        name,
        doc,
        infer=rules.unary(name, bools=False, complexes=False),
        vjp=(_zero,),
        kernels={"array": lambda xp, x: getattr(xp, name)(x) if x.dtype.kind not in "iu" else x + 0},
        samples=_reals,
    )


floor = _whole("floor", "The largest integer <= x.")
ceil = _whole("ceil", "The smallest integer >= x.")
trunc = _whole("trunc", "x without its fractional part.")


def _infer_round(x: Spec, *, decimals: int = 0) -> Spec:
    rules.tensor("round", x)
    rules.not_bool("round", x.dtype)
    rules.not_complex("round", x.dtype)
    if type(decimals) is not int:
        raise ArgumentError(f"round: decimals must be an int, got {rules.shown(decimals)}")
    if decimals:
        rules.floating("round", x)
    return x


round_ = pointwise_op(
    "round",
    "x rounded to a number of decimals; halves are rounded to even.",
    infer=_infer_round,
    vjp=(_zero,),
    kernels={"array": lambda xp, x, decimals=0: xp.round(x, decimals) if x.dtype.kind not in "iu" else x + 0},
    samples=lambda rng: [*_reals(rng), ((rng.normal(size=5) * 20,), {"decimals": 1})],
)

# -- tests -----------------------------------------------------------------------------------


def _test(name: str, doc: str, array: Any = None, complexes: bool = True) -> Op:
    infer, kernels = rules.unary(name, to="bool", complexes=complexes), {"array": array or _numpys(name)}
    return op(name, doc, infer=infer, factors=pointwise, vjp=None, kernels=kernels, samples=_odd_values)


logical_not = _test("logical_not", "Whether x is zero.")
isnan = _test("isnan", "Whether x is not a number.")
isinf = _test("isinf", "Whether x is infinite.")
isfinite = _test("isfinite", "Whether x is a finite number.")
signbit = _test(
    "signbit",
    "Whether x has a minus sign; True for -0.0.",
    lambda xp, x: xp.signbit(x) if x.dtype.kind not in "biu" else x < 0,
    complexes=False,
)

# -- parts of floating-point numbers ---------------------------------------------------------


frexp = pointwise_op(
    "frexp",
    "x as mantissa * 2 ** exponent, with the mantissa in [0.5, 1).",
    infer=lambda x: (rules.floats("frexp", x), spec(x.shape, dtypes.int32)),
    vjp=(lambda g, y, x: None if g[0] is None else g[0] / ops.exp2(ops.cast(y[1], dtype=x.dtype.name)),),
    kernels={"array": lambda xp, x: xp.frexp(x), "torch": lambda torch, site: lambda x: tuple(torch.frexp(x))},
    samples=_reals,
)

# -- casts and limits ------------------------------------------------------------------------


def _cast_array(xp: Any, x: Any, *, dtype: str) -> Any:
    target = dtypes.BY_NAME[dtype]
    if x.dtype.kind == "c" and not target.is_complex and target is not dtypes.bool_:
        x = xp.real(x)  # the imaginary part goes, as in torch; numpy would warn
    return x.astype(target.numpy)


def _cast_torch(torch: Any, site: Any, *, dtype: str) -> Any:
    target = getattr(torch, dtype)
    if site.specs[0].dtype.name == dtype:
        return torch.clone  # a cast is a new tensor even where it changes nothing
    if site.specs[0].dtype.is_complex and not site.results[0].dtype.is_complex and dtype != "bool":
        return lambda x: x.real.to(target, copy=True)
    return lambda x: x.to(target)


def _cast_linear(x: Spec, *, dtype: str) -> tuple[tuple[int, ...], ...]:
    """To fractions, or between integers that hold as much; a rounded sum is not the sum of rounded parts."""
    to = dtypes.BY_NAME[dtype]
    return ((0,),) if to.is_differentiable or (not x.dtype.is_differentiable and to.itemsize >= 4) else ()


cast = pointwise_op(
    "cast",
    "x in another dtype.",
    infer=lambda x, *, dtype: spec(rules.tensor("cast", x).shape, rules.dtype("cast", dtype)),
    linear=_cast_linear,
    keeps=(0,),
    vjp=(lambda g, y, x, *, dtype: g,),  # the caller casts gradients to the operand's dtype
    kernels={"array": _cast_array, "torch": _cast_torch},
    samples=lambda rng: [
        *[((rng.normal(size=(2, 3)) * 5,), {"dtype": d}) for d in ("float64", "float32", "int64", "bool")],
        ((rng.integers(0, 5, size=(2, 3)),), {"dtype": "uint8"}),
        ((np.array(2.5),), {"dtype": "float32"}),
        ((np.array([1 + 2j, 3j, 0j]),), {"dtype": "float32"}),
        ((np.array([1 + 2j, 3j, 0j]),), {"dtype": "bool"}),
        ((np.zeros((0, 2)),), {"dtype": "float16"}),
    ],
    flops=0,
)


def _infer_clamp(name: str, x: Spec, *limits: Spec) -> Spec:
    rules.tensor(name, x)
    rules.either(name, x, *limits)
    if len(limits) != (2 if name == "clamp" else 1):
        raise ArgumentError(f"{name}: wrong number of limits, got {len(limits)}")
    if len({s.weak for s in limits}) > 1:
        raise ArgumentError(f"{name}: the limits must be both numbers or both tensors")
    common = dtypes.promote((x, *limits))
    if name == "clamp":
        rules.not_bool(name, common)
    if common.is_complex:
        raise DTypeError(f"{name}: complex numbers are not ordered")
    return spec(rules.broadcast(name, x.shape, *[s.shape for s in limits]), common)


def _limits(rng: Rng, *limits: float) -> list[Sample]:
    apart = [np.array(v) + rng.uniform(0, 0.2, size=(3, 1)) for v in limits]
    return [
        *[((x, *limits), {}) for (x,), _ in _reals(rng)],
        ((rng.integers(-3, 4, size=5), *map(int, limits)), {}),
        ((rng.normal(size=4), *apart), {}),
        ((rng.integers(-3, 4, size=4), *apart), {}),
    ]


def _end_of_clamped(lo: Any, hi: Any) -> int:
    return hi + 1 if type(lo) is int and type(hi) is int and 0 <= lo <= hi else -1


clamp = pointwise_op(
    "clamp",
    "x limited to the range from lo to hi.",
    infer=partial(_infer_clamp, "clamp"),
    spans=lambda x, lo, hi: {0: _end_of_clamped} if lo.weak else {},
    vjp=(
        lambda g, y, x, lo, hi: ops.where(ops.logical_and(ops.ge(x, lo), ops.le(x, hi)), g, 0.0),
        lambda g, y, x, lo, hi: ops.where(ops.logical_and(ops.lt(lo, hi), ops.lt(x, lo)), g, 0.0),
        lambda g, y, x, lo, hi: ops.where(ops.logical_or(ops.gt(x, hi), ops.lt(hi, lo)), g, 0.0),
    ),
    kernels={"array": lambda xp, x, lo, hi: xp.minimum(xp.maximum(x, lo), hi)},
    promote=True,
    samples=lambda rng: [*_limits(rng, -0.5, 1.0), ((np.array([np.nan, 1.0, 3.0]), 2.0, 0.5), {})],
)
clamp_min = pointwise_op(
    "clamp_min",
    "The larger of x and lo.",
    infer=partial(_infer_clamp, "clamp_min"),
    vjp=(lambda g, y, x, lo: ops.where(ops.ge(x, lo), g, 0.0), lambda g, y, x, lo: ops.where(ops.lt(x, lo), g, 0.0)),
    kernels={"array": lambda xp, x, lo: xp.maximum(x, lo)},
    promote=True,
    samples=lambda rng: _limits(rng, -0.5),
)
clamp_max = pointwise_op(
    "clamp_max",
    "The smaller of x and hi.",
    infer=partial(_infer_clamp, "clamp_max"),
    vjp=(lambda g, y, x, hi: ops.where(ops.le(x, hi), g, 0.0), lambda g, y, x, hi: ops.where(ops.gt(x, hi), g, 0.0)),
    kernels={"array": lambda xp, x, hi: xp.minimum(x, hi)},
    promote=True,
    samples=lambda rng: _limits(rng, 0.5),
)
