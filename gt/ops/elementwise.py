"""Ops on one tensor, element by element.

A gradient reads the result where it can (exp, tanh, relu): the operand may then die early.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gt import dtypes
from gt.errors import ArgumentError, ShapeError
from gt.ops import rules
from gt.ops.record import Op, Sample, fill, op, ops
from gt.program import Spec, spec

Rng = np.random.Generator

# -- samples ---------------------------------------------------------------------------------


def _reals(rng: Rng) -> list[Sample]:
    return [((rng.normal(size=s),), {}) for s in [(3, 4), (), (0, 2)]]


def _positives(rng: Rng) -> list[Sample]:
    return [((rng.uniform(0.5, 3, size=s),), {}) for s in [(3, 4), (), (0, 2)]]


def _odd_values(rng: Rng) -> list[Sample]:
    return [
        ((np.array([0.0, -0.0, 1.5, np.nan, np.inf, -np.inf]),), {}),
        ((rng.integers(-2, 3, size=(2, 3)),), {}),
        ((np.array(True),), {}),
        ((np.zeros((0,)),), {}),
    ]


# -- inference -------------------------------------------------------------------------------


def _to_float(name: str) -> Any:
    def infer(x: Spec) -> Spec:
        rules.tensor(name, x)
        return spec(x.shape, rules.float_of(x))

    return infer


def _keeps(name: str, bools: bool = False) -> Any:
    def infer(x: Spec) -> Spec:
        rules.tensor(name, x)
        if not bools:
            rules.not_bool(name, x.dtype)
        return x

    return infer


def _floats_only(name: str) -> Any:
    def infer(x: Spec) -> Spec:
        rules.tensor(name, x)
        rules.floating(name, x)
        return x

    return infer


def _to_bool(name: str) -> Any:
    def infer(x: Spec) -> Spec:
        rules.tensor(name, x)
        return spec(x.shape, dtypes.bool_)

    return infer


# -- ops that make floats --------------------------------------------------------------------


def _smooth(name: str, doc: str, array: Any, vjp: Any, samples: Any = _reals, **more: Any) -> Op:
    kernels = {"array": array, **more.pop("kernels", {})}
    return op(name, doc, infer=_to_float(name), vjp=(vjp,), kernels=kernels, promote=True, samples=samples, **more)


exp = _smooth("exp", "e to the power x.", lambda xp, x: xp.exp(x), lambda g, y, x: g * y)
expm1 = _smooth("expm1", "exp(x) - 1, exact near 0.", lambda xp, x: xp.expm1(x), lambda g, y, x: g * (y + 1.0))
log = _smooth("log", "The natural logarithm.", lambda xp, x: xp.log(x), lambda g, y, x: g / x, _positives)
log1p = _smooth(
    "log1p", "log(1 + x), exact near 0.", lambda xp, x: xp.log1p(x), lambda g, y, x: g / (x + 1.0), _positives
)
log2 = _smooth(
    "log2", "The logarithm to base 2.", lambda xp, x: xp.log2(x), lambda g, y, x: g / (x * math.log(2)), _positives
)
sqrt = _smooth("sqrt", "The square root.", lambda xp, x: xp.sqrt(x), lambda g, y, x: g / (y * 2.0), _positives)
rsqrt = _smooth(
    "rsqrt", "1 / sqrt(x).", lambda xp, x: 1 / xp.sqrt(x), lambda g, y, x: g * (y * y * y) * -0.5, _positives
)
reciprocal = _smooth("reciprocal", "1 / x.", lambda xp, x: 1 / x, lambda g, y, x: -(g * (y * y)), _positives)
sin = _smooth("sin", "The sine.", lambda xp, x: xp.sin(x), lambda g, y, x: g * ops.cos(x))
cos = _smooth("cos", "The cosine.", lambda xp, x: xp.cos(x), lambda g, y, x: -(g * ops.sin(x)))
tanh = _smooth("tanh", "The hyperbolic tangent.", lambda xp, x: xp.tanh(x), lambda g, y, x: g * (1.0 - y * y))


def _sigmoid(xp: Any, x: Any) -> Any:
    e = xp.exp(-xp.abs(x))  # never overflows
    return xp.where(x >= 0, 1 / (1 + e), e / (1 + e))


sigmoid = _smooth("sigmoid", "1 / (1 + exp(-x)).", _sigmoid, lambda g, y, x: g * (y * (1.0 - y)))


def _erf(np_: Any, x: Any) -> Any:
    # numpy has no erf; the standard library's is exact.
    return np_.asarray(np_.frompyfunc(math.erf, 1, 1)(x), dtype=x.dtype)


erf = op(
    "erf",
    "The error function.",
    infer=_to_float("erf"),
    vjp=(lambda g, y, x: g * ops.exp(-(x * x)) * (2 / math.sqrt(math.pi)),),
    kernels={"numpy": _erf},
    promote=True,
    samples=_reals,
)

# -- ops that keep the dtype -----------------------------------------------------------------

neg = op(
    "neg", "-x.", infer=_keeps("neg"), vjp=(lambda g, y, x: -g,), kernels={"array": lambda xp, x: -x}, samples=_reals
)

abs_ = op(
    "abs",
    "The absolute value.",
    infer=_keeps("abs"),
    vjp=(lambda g, y, x: g * ops.sign(x),),
    kernels={"array": lambda xp, x: xp.abs(x)},
    samples=_reals,
)


def _infer_square(x: Spec) -> Spec:
    rules.tensor("square", x)
    return spec(x.shape, dtypes.int64) if x.dtype is dtypes.bool_ else x


square = op(
    "square",
    "x times x; of bools in int64.",
    infer=_infer_square,
    vjp=(lambda g, y, x: g * (x * 2.0),),
    kernels={"array": lambda xp, x: x * x},
    samples=_reals,
)


def _step(name: str, doc: str, array: Any) -> Op:
    """Flat almost everywhere: the gradient is zero, and exists, as in torch."""
    return op(
        name,
        doc,
        infer=_keeps(name, bools=name == "sign"),
        vjp=(lambda g, y, x: fill(g, 0.0, g.shape, g.dtype),),
        kernels={"array": lambda xp, x: array(xp, x) if x.dtype.kind not in "iub" else _integers(name, xp, x)},
        samples=_reals,
    )


def _integers(name: str, xp: Any, x: Any) -> Any:
    if name == "sign" and x.dtype.kind == "i":
        return xp.sign(x)
    return (x != 0).astype(x.dtype) if name == "sign" else x + 0


sign = _step("sign", "-1, 0 or 1.", lambda xp, x: xp.where(xp.isnan(x), 0, xp.sign(x)))
floor = _step("floor", "The largest integer not above x.", lambda xp, x: xp.floor(x))
ceil = _step("ceil", "The smallest integer not below x.", lambda xp, x: xp.ceil(x))
round_ = _step("round", "The nearest integer, halves to the even one.", lambda xp, x: xp.round(x))

# -- activations -----------------------------------------------------------------------------

relu = op(
    "relu",
    "x where positive, else 0.",
    infer=_keeps("relu"),
    vjp=(lambda g, y, x: ops.relu_dx(g, y),),
    kernels={"array": lambda xp, x: xp.maximum(x, xp.zeros((), x.dtype))},
    samples=_reals,
)


def _like_gradient(name: str) -> Any:
    def infer(g: Spec, x: Spec, **attrs: Any) -> Spec:
        rules.tensor(name, g, x)
        rules.floating(name, g)
        rules.same_dtype(name, g, x)
        if g.shape != x.shape:
            raise ShapeError(f"{name}: gradient {g.shape} and value {x.shape} differ")
        if name == "gelu_dx":
            rules.choice(name, "approximate", attrs.get("approximate"), ("none", "tanh"))
        elif attrs:
            raise ArgumentError(f"{name}: takes no attributes")
        return g

    return infer


def _pairs(rng: Rng) -> list[Sample]:
    return [((rng.normal(size=s), rng.normal(size=s)), {}) for s in [(3, 4), (), (0, 2)]]


relu_dx = op(
    "relu_dx",
    "The gradient of relu, from its result.",
    infer=_like_gradient("relu_dx"),
    vjp=(lambda u, z, g, y: ops.relu_dx(u, y), None),
    compose=lambda g, y: ops.where(ops.gt(y, 0), g, 0.0),
    kernels={"torch": lambda torch, site: lambda g, y: torch.ops.aten.threshold_backward(g, y, 0)},
    samples=_pairs,
)

silu = op(
    "silu",
    "x times sigmoid(x).",
    infer=_floats_only("silu"),
    vjp=(lambda g, y, x: ops.silu_dx(g, x),),
    compose=lambda x: x * ops.sigmoid(x),
    kernels={"torch": lambda torch, site: torch.nn.functional.silu},
    samples=_reals,
)


def _silu_dx(g: Any, x: Any) -> Any:
    s = ops.sigmoid(x)
    return g * (s * (x * (1.0 - s) + 1.0))


def _silu_second(u: Any, z: Any, g: Any, x: Any) -> Any:
    s = ops.sigmoid(x)
    return u * g * (s * (1.0 - s) * (x * (1.0 - s * 2.0) + 2.0))


silu_dx = op(
    "silu_dx",
    "The gradient of silu.",
    infer=_like_gradient("silu_dx"),
    vjp=(lambda u, z, g, x: ops.silu_dx(u, x), _silu_second),
    compose=_silu_dx,
    kernels={"torch": lambda torch, site: torch.ops.aten.silu_backward.default},
    samples=_pairs,
)

softplus = op(
    "softplus",
    "log(1 + exp(x)), without overflow.",
    infer=_floats_only("softplus"),
    vjp=(lambda g, y, x: g * ops.sigmoid(x),),
    compose=lambda x: ops.relu(x) + ops.log1p(ops.exp(-ops.abs(x))),
    kernels={"torch": lambda torch, site: torch.nn.functional.softplus},
    samples=_reals,
)

_ROOT_HALF = math.sqrt(0.5)
_DENSITY = 1 / math.sqrt(2 * math.pi)  #: of the normal distribution at 0
_TANH_SCALE = math.sqrt(2 / math.pi)
_TANH_CUBE = 0.044715


def _infer_gelu(x: Spec, *, approximate: str) -> Spec:
    rules.tensor("gelu", x)
    rules.floating("gelu", x)
    rules.choice("gelu", "approximate", approximate, ("none", "tanh"))
    return x


def _gelu(x: Any, *, approximate: str) -> Any:
    if approximate == "none":
        return x * ((ops.erf(x * _ROOT_HALF) + 1.0) * 0.5)
    return x * ((ops.tanh(_gelu_inner(x)) + 1.0) * 0.5)


def _gelu_inner(x: Any) -> Any:
    return (x + x * x * x * _TANH_CUBE) * _TANH_SCALE


def _gelu_dx(g: Any, x: Any, *, approximate: str) -> Any:
    if approximate == "none":
        density = ops.exp(x * x * -0.5) * _DENSITY
        return g * ((ops.erf(x * _ROOT_HALF) + 1.0) * 0.5 + x * density)
    t = ops.tanh(_gelu_inner(x))
    slope = (x * x * (3 * _TANH_CUBE) + 1.0) * _TANH_SCALE
    return g * ((t + 1.0) * 0.5 + x * (1.0 - t * t) * slope * 0.5)


def _gelu_second(u: Any, z: Any, g: Any, x: Any, *, approximate: str) -> Any:
    if approximate == "none":
        return u * g * (ops.exp(x * x * -0.5) * _DENSITY * (2.0 - x * x))
    t = ops.tanh(_gelu_inner(x))
    slope = (x * x * (3 * _TANH_CUBE) + 1.0) * _TANH_SCALE
    bend = x * (6 * _TANH_CUBE * _TANH_SCALE)
    return u * g * ((1.0 - t * t) * (slope + x * (bend * 0.5 - t * slope * slope)))


gelu = op(
    "gelu",
    "x times the normal distribution function of x, exact or by tanh.",
    infer=_infer_gelu,
    vjp=(lambda g, y, x, *, approximate: ops.gelu_dx(g, x, approximate=approximate),),
    compose=_gelu,
    kernels={
        "torch": lambda torch, site, *, approximate: lambda x, f=torch.nn.functional.gelu: f(x, approximate=approximate)
    },
    samples=lambda rng: [(s, {"approximate": a}) for s, _ in _reals(rng) for a in ("none", "tanh")],
)

gelu_dx = op(
    "gelu_dx",
    "The gradient of gelu.",
    infer=_like_gradient("gelu_dx"),
    vjp=(lambda u, z, g, x, *, approximate: ops.gelu_dx(u, x, approximate=approximate), _gelu_second),
    compose=_gelu_dx,
    kernels={
        "torch": lambda torch, site, *, approximate: (
            lambda g, x, f=torch.ops.aten.gelu_backward.default: f(g, x, approximate=approximate)
        )
    },
    samples=lambda rng: [(s, {"approximate": a}) for s, _ in _pairs(rng) for a in ("none", "tanh")],
)

# -- tests -----------------------------------------------------------------------------------


def _test(name: str, doc: str, array: Any) -> Op:
    return op(name, doc, infer=_to_bool(name), vjp=None, kernels={"array": array}, samples=_odd_values)


logical_not = _test("logical_not", "Whether x is zero.", lambda xp, x: xp.logical_not(x))
isnan = _test("isnan", "Whether x is not a number.", lambda xp, x: xp.isnan(x))
isinf = _test("isinf", "Whether x is infinite.", lambda xp, x: xp.isinf(x))
isfinite = _test("isfinite", "Whether x is a finite number.", lambda xp, x: xp.isfinite(x))

# -- casts and limits ------------------------------------------------------------------------


def _infer_cast(x: Spec, *, dtype: str) -> Spec:
    rules.tensor("cast", x)
    return spec(x.shape, rules.dtype("cast", dtype))


def _cast_torch(torch: Any, site: Any, *, dtype: str) -> Any:
    target = getattr(torch, dtype)
    if site.specs[0].dtype.name == dtype:
        return torch.clone  # a cast is a new tensor even where it changes nothing
    return lambda x: x.to(target)


cast = op(
    "cast",
    "x in another dtype.",
    infer=_infer_cast,
    vjp=(lambda g, y, x, *, dtype: g,),  # the caller casts gradients to the operand's dtype
    kernels={"array": lambda xp, x, *, dtype: x.astype(dtypes.BY_NAME[dtype].numpy), "torch": _cast_torch},
    samples=lambda rng: [
        *[((rng.normal(size=(2, 3)) * 5,), {"dtype": d}) for d in ("float64", "float32", "int64", "bool")],
        ((rng.integers(0, 5, size=(2, 3)),), {"dtype": "uint8"}),
        ((np.array(2.5),), {"dtype": "float32"}),
        ((np.zeros((0, 2)),), {"dtype": "float16"}),
    ],
)


def _infer_clamp(name: str) -> Any:
    def infer(x: Spec, *limits: Spec) -> Spec:
        rules.tensor(name, x)
        rules.number(name, *limits)
        if len(limits) != (2 if name == "clamp" else 1):
            raise ArgumentError(f"{name}: {len(limits)} limits")
        common = dtypes.promote((x, *limits))
        rules.not_bool(name, common)
        return spec(x.shape, common)

    return infer


def _limits(rng: Rng, *limits: float) -> list[Sample]:
    return [*[((x, *limits), {}) for (x,), _ in _reals(rng)], ((rng.integers(-3, 4, size=5), *map(int, limits)), {})]


def _within(x: Any, g: Any, lo: Any = None, hi: Any = None) -> Any:
    if hi is None:
        return ops.where(ops.ge(x, lo), g, 0.0)
    if lo is None:
        return ops.where(ops.le(x, hi), g, 0.0)
    return ops.where(ops.logical_and(ops.ge(x, lo), ops.le(x, hi)), g, 0.0)


clamp = op(
    "clamp",
    "x, but not below lo and not above hi.",
    infer=_infer_clamp("clamp"),
    vjp=(lambda g, y, x, lo, hi: _within(x, g, lo, hi), None, None),
    kernels={"array": lambda xp, x, lo, hi: xp.minimum(xp.maximum(x, lo), hi)},
    promote=True,
    samples=lambda rng: [*_limits(rng, -0.5, 1.0), ((np.array([np.nan, 1.0, 3.0]), 2.0, 0.5), {})],
)
clamp_min = op(
    "clamp_min",
    "x, but not below lo.",
    infer=_infer_clamp("clamp_min"),
    vjp=(lambda g, y, x, lo: _within(x, g, lo=lo), None),
    kernels={"array": lambda xp, x, lo: xp.maximum(x, lo)},
    promote=True,
    samples=lambda rng: _limits(rng, -0.5),
)
clamp_max = op(
    "clamp_max",
    "x, but not above hi.",
    infer=_infer_clamp("clamp_max"),
    vjp=(lambda g, y, x, hi: _within(x, g, hi=hi), None),
    kernels={"array": lambda xp, x, hi: xp.minimum(x, hi)},
    promote=True,
    samples=lambda rng: _limits(rng, 0.5),
)
