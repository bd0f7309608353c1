"""Activations: each with the op of its gradient, `<name>_dx`, which torch has as one kernel too.

The compositions say what they are; numpy and jax run those. At a kink the gradient is torch's.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from gt.errors import ArgumentError, ShapeError
from gt.ops import rules
from gt.ops.record import FLOAT32_ON_CUDA, TABLE, Op, Rng, Sample, conj, op, ops
from gt.ops.sharding import pointwise, pointwise_op
from gt.program import Spec

_SIZES: list[tuple[int, ...]] = [(3, 4), (), (0, 2)]


def _checked(name: str, attrs: dict[str, Any], expected: tuple[str, ...]) -> None:
    if set(attrs) != set(expected):
        raise ArgumentError(f"{name}: expected the attributes {', '.join(expected) or 'none'}; got {', '.join(attrs)}")
    for key, value in attrs.items():
        if key == "approximate":
            rules.choice(name, key, value, ("none", "tanh"))
        elif type(value) not in (int, float):
            raise ArgumentError(f"{name}: {key} must be a number, got {rules.shown(value)}")


def _infer(name: str, expected: tuple[str, ...] = (), complexes: bool = False) -> Any:
    def infer(x: Spec, **attrs: Any) -> Spec:
        rules.tensor(name, x)
        if not (complexes and x.dtype.is_complex):
            rules.floating(name, x)
        _checked(name, attrs, expected)
        return x

    return infer


def _like_gradient(name: str, expected: tuple[str, ...] = (), complexes: bool = False) -> Any:
    def infer(g: Spec, x: Spec, **attrs: Any) -> Spec:
        rules.tensor(name, g, x)
        if not (complexes and g.dtype.is_complex):
            rules.floating(name, g)
        rules.same_dtype(name, g, x)
        if g.shape != x.shape:
            raise ShapeError(f"{name}: gradient and value must have one shape, got {g.shape} and {x.shape}")
        _checked(name, attrs, expected)
        return g

    return infer


def _reals(rng: Rng) -> list[Sample]:
    return [((np.asarray(rng.normal(size=s) * 2),), {}) for s in _SIZES]


def _pairs(rng: Rng) -> list[Sample]:
    return [((rng.normal(size=s), rng.normal(size=s)), {}) for s in _SIZES]


def _activation(
    name: str,
    doc: str,
    compose: Any,
    dx: Any,
    second: Any,
    backward: Any,
    attrs: tuple[dict[str, Any], ...] = ({},),
    forward: Any = None,
    infer: Any = None,
    **more: Any,
) -> Op:
    """An activation and its gradient op. `attrs` has the attributes of each sample; `backward(torch)` is torch's
    kernel of (g, x, **attrs), None if it cannot be used; `second` is the gradient of the gradient by x, None where that
    is zero."""
    expected = tuple(attrs[0])
    dx_name = f"{name}_dx"
    pointwise_op(
        dx_name,
        f"The gradient of {name}.",
        infer=_like_gradient(dx_name, expected),
        linear=((0,),),
        vjp=(lambda u, z, g, x, **a: TABLE[dx_name](u, x, **a), second),
        compose=dx,
        kernels={"torch": lambda torch, site, **a: backward(torch, **a)} if backward else {},
        samples=lambda rng: [(args, dict(a)) for args, _ in _pairs(rng) for a in attrs],
    )

    def kernel(torch: Any, site: Any, **a: Any) -> Any:
        f = forward(torch) if forward else getattr(torch.nn.functional, name)
        return partial(f, **a) if a else f

    return pointwise_op(
        name,
        doc,
        infer=infer or _infer(name, expected),
        public=True,
        vjp=(lambda g, y, x, **a: TABLE[dx_name](g, x, **a),),
        compose=compose,
        kernels={"torch": kernel},
        samples=lambda rng: [(args, dict(a)) for args, _ in _reals(rng) for a in attrs],
        **more,
    )


# -- gradients that read the result ----------------------------------------------------------


def _from_result(name: str, compose: Any, by_y: Any, torch_kernel: Any) -> Op:
    dx_name = f"{name}_dx"
    return pointwise_op(
        dx_name,
        f"The gradient of {name}, from its result.",
        infer=_like_gradient(dx_name),
        linear=((0,),),
        vjp=(lambda u, z, g, y: TABLE[dx_name](u, y), by_y),
        compose=compose,
        kernels={"torch": torch_kernel},
        samples=_pairs,
    )


sigmoid_dx = _from_result(
    "sigmoid",
    lambda g, y: g * (y * (1.0 - y)),
    lambda u, z, g, y: u * g * (1.0 - y * 2.0),
    lambda torch, site: torch.ops.aten.sigmoid_backward.default,
)
tanh_dx = _from_result(
    "tanh",
    lambda g, y: g * (1.0 - y * y),
    lambda u, z, g, y: u * g * (y * -2.0),
    lambda torch, site: torch.ops.aten.tanh_backward.default,
)
relu_dx = _from_result(
    "relu",
    lambda g, y: ops.where(ops.gt(y, 0), g, 0.0),
    None,
    lambda torch, site: lambda g, y: torch.ops.aten.threshold_backward(g, y, 0),
)


relu = pointwise_op(
    "relu",
    "x where x > 0, else 0.",
    infer=rules.unary("relu", bools=False, complexes=False),
    vjp=(lambda g, y, x: ops.relu_dx(g, y),),
    kernels={"array": lambda xp, x: xp.maximum(x, xp.zeros((), x.dtype))},
    samples=_reals,
)

# -- piecewise linear ------------------------------------------------------------------------

leaky_relu = _activation(
    "leaky_relu",
    "x where x > 0, else negative_slope * x.",
    lambda x, *, negative_slope: ops.where(ops.gt(x, 0), x, x * negative_slope),
    lambda g, x, *, negative_slope: ops.where(ops.gt(x, 0), g, g * negative_slope),
    None,
    lambda torch, *, negative_slope: (
        lambda g, x, f=torch.ops.aten.leaky_relu_backward.default: f(g, x, negative_slope, False)
    ),
    attrs=({"negative_slope": 0.1},),
)


def _infer_hardtanh(x: Spec, **attrs: Any) -> Spec:
    rules.tensor("hardtanh", x)
    rules.not_bool("hardtanh", x.dtype)
    rules.not_complex("hardtanh", x.dtype)
    _checked("hardtanh", attrs, ("min_val", "max_val"))
    if not x.dtype.is_floating_point and any(type(v) is float for v in attrs.values()):
        raise ArgumentError("hardtanh: min_val and max_val must be ints for integer tensors")
    if attrs["min_val"] > attrs["max_val"]:
        raise ArgumentError(f"hardtanh: min_val must be <= max_val, got {attrs['min_val']} and {attrs['max_val']}")
    return x


def _between(x: Any, low: float, high: float) -> Any:
    return ops.logical_and(ops.gt(x, low), ops.lt(x, high))


hardtanh = _activation(
    "hardtanh",
    "x limited to the range from min_val to max_val; the gradient is 0 at the limits.",
    lambda x, *, min_val, max_val: ops.clamp(x, min_val, max_val),
    lambda g, x, *, min_val, max_val: ops.where(_between(x, min_val, max_val), g, 0.0),
    None,
    lambda torch, *, min_val, max_val: (
        lambda g, x, f=torch.ops.aten.hardtanh_backward.default: f(g, x, min_val, max_val)
    ),
    attrs=({"min_val": -1.0, "max_val": 0.5},),
    infer=_infer_hardtanh,
)


def _exact(torch: Any, theirs: Any, ours: Any) -> Any:
    """torch's kernel, but not for float64: on a GPU it has 1 / 6 in float32."""
    return lambda x: theirs(x) if x.dtype is not torch.float64 else ours(x, torch.clamp(x * (1 / 6) + 0.5, 0.0, 1.0))


hardsigmoid = _activation(
    "hardsigmoid",
    "x / 6 + 0.5, limited to the range from 0 to 1.",
    lambda x: ops.clamp(x * (1 / 6) + 0.5, 0.0, 1.0),
    lambda g, x: ops.where(_between(x, -3.0, 3.0), g * (1 / 6), 0.0),
    None,
    None,  # torch's has 1 / 6 in float32
    forward=lambda torch: _exact(torch, torch.nn.functional.hardsigmoid, lambda x, gate: gate),
)
hardswish = _activation(
    "hardswish",
    "x * hardsigmoid(x).",
    lambda x: x * ops.hardsigmoid(x),
    lambda g, x: ops.where(ops.le(x, -3.0), 0.0, ops.where(ops.ge(x, 3.0), g, g * (x * (1 / 3) + 0.5))),
    lambda u, z, g, x: ops.where(_between(x, -3.0, 3.0), u * g * (1 / 3), 0.0),
    lambda torch: torch.ops.aten.hardswish_backward.default,
    forward=lambda torch: _exact(torch, torch.nn.functional.hardswish, lambda x, gate: x * gate),
)

# -- exponential -----------------------------------------------------------------------------


def _elu_second(u: Any, z: Any, g: Any, x: Any, *, alpha: float, scale: float, input_scale: float) -> Any:
    bend = ops.exp(x * input_scale) * (alpha * scale * input_scale * input_scale)
    return ops.where(ops.gt(x, 0), 0.0, u * g * bend)


def _elu_backward(torch: Any, *, alpha: float, scale: float, input_scale: float) -> Any:
    f = torch.ops.aten.elu_backward.default
    return lambda g, x: f(g, alpha, scale, input_scale, False, x)


elu = _activation(
    "elu",
    "scale * x where x > 0, else scale * alpha * (exp(input_scale * x) - 1).",
    lambda x, *, alpha, scale, input_scale: ops.where(
        ops.gt(x, 0), x * scale, ops.expm1(x * input_scale) * (alpha * scale)
    ),
    lambda g, x, *, alpha, scale, input_scale: ops.where(
        ops.gt(x, 0), g * scale, g * (ops.exp(x * input_scale) * (alpha * scale * input_scale))
    ),
    _elu_second,
    _elu_backward,
    attrs=({"alpha": 1.5, "scale": 1.1, "input_scale": 0.8},),
    forward=lambda torch: torch.ops.aten.elu.default,
)


def _softplus(x: Any, *, beta: float, threshold: float) -> Any:
    steep = x * beta
    return ops.where(ops.gt(steep, threshold), x, ops.log1p(ops.exp(steep)) * (1 / beta if beta else math.inf))


def _softplus_dx(g: Any, x: Any, *, beta: float, threshold: float) -> Any:
    steep = x * beta
    return ops.where(ops.gt(steep, threshold), g, g * ops.sigmoid(steep))


def _softplus_second(u: Any, z: Any, g: Any, x: Any, *, beta: float, threshold: float) -> Any:
    steep = x * beta
    s = ops.sigmoid(steep)
    return ops.where(ops.gt(steep, threshold), 0.0, u * g * (s * (1.0 - s) * beta))


softplus = _activation(
    "softplus",
    "log(1 + exp(beta * x)) / beta, and x where beta * x > threshold.",
    _softplus,
    _softplus_dx,
    _softplus_second,
    lambda torch, *, beta, threshold: lambda g, x, f=torch.ops.aten.softplus_backward.default: f(g, x, beta, threshold),
    attrs=({"beta": 1.0, "threshold": 20.0}, {"beta": 1.5, "threshold": 1.0}),
    autocast=FLOAT32_ON_CUDA,
)

logsigmoid = pointwise_op(
    "logsigmoid",
    "The logarithm of sigmoid(x), without overflow.",
    public=True,
    infer=_infer("logsigmoid"),
    vjp=(lambda g, y, x: g * ops.sigmoid(-x),),
    compose=lambda x: ops.clamp_max(x, 0.0) - ops.log1p(ops.exp(-ops.abs(x))),
    kernels={"torch": lambda torch, site: torch.nn.functional.logsigmoid},
    samples=_reals,
)

# -- x times a gate --------------------------------------------------------------------------


silu = op(
    "silu",
    "x * sigmoid(x).",
    public=True,
    infer=_infer("silu", complexes=True),
    factors=pointwise,
    vjp=(lambda g, y, x: ops.silu_dx(g, x),),
    compose=lambda x: x * ops.sigmoid(x),
    kernels={"torch": lambda torch, site: torch.nn.functional.silu},
    samples=_reals,
)


def _silu_dx(g: Any, x: Any) -> Any:
    s = ops.sigmoid(x)
    return g * conj(s * (x * (1.0 - s) + 1.0))


def _silu_second(u: Any, z: Any, g: Any, x: Any) -> Any:
    s = ops.sigmoid(x)
    return conj(u) * g * conj(s * (1.0 - s) * (x * (1.0 - s * 2.0) + 2.0))


silu_dx = pointwise_op(
    "silu_dx",
    "The gradient of silu.",
    infer=_like_gradient("silu_dx", complexes=True),
    linear=((0,),),
    vjp=(lambda u, z, g, x: conj(ops.silu_dx(conj(u), x)), _silu_second),
    compose=_silu_dx,
    kernels={
        "torch": lambda torch, site: None if site.specs[0].dtype.is_complex else torch.ops.aten.silu_backward.default
    },
    samples=_pairs,
)


def _mish_gate(x: Any) -> Any:
    return ops.tanh(ops.softplus(x, beta=1.0, threshold=20.0))


def _mish_dx(g: Any, x: Any) -> Any:
    t = _mish_gate(x)
    return g * (t + x * (ops.sigmoid(x) * (1.0 - t * t)))


def _mish_second(u: Any, z: Any, g: Any, x: Any) -> Any:
    t, s = _mish_gate(x), ops.sigmoid(x)
    slope = s * (1.0 - t * t)  # of the gate
    return u * g * (slope * (x * (1.0 - s - t * s * 2.0) + 2.0))


mish = _activation(
    "mish",
    "x * tanh(softplus(x)).",
    lambda x: x * _mish_gate(x),
    _mish_dx,
    _mish_second,
    lambda torch: torch.ops.aten.mish_backward.default,
)

_ROOT_HALF = math.sqrt(0.5)
_DENSITY = 1 / math.sqrt(2 * math.pi)  #: of the normal distribution at 0
_TANH_SCALE = math.sqrt(2 / math.pi)
_TANH_CUBE = 0.044715


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


gelu = _activation(
    "gelu",
    "x times the normal distribution function of x, exact or approximated by tanh.",
    _gelu,
    _gelu_dx,
    _gelu_second,
    lambda torch, *, approximate: lambda g, x, f=torch.ops.aten.gelu_backward.default: f(g, x, approximate=approximate),
    attrs=({"approximate": "none"}, {"approximate": "tanh"}),
)
