"""Special functions: the error function and its kin, gamma and zeta, modified Bessel functions.

numpy has almost none of them, and not all of jax's are good, so they are written out here: exact to about 1e-13 and in
no hurry. torch uses its own.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from gt.errors import ArgumentError
from gt.ops import rules
from gt.ops.families.binary import infer_pair, log_slope, to_floats
from gt.ops.families.elementwise import uniform
from gt.ops.record import FLOAT32_ON_CUDA, Op, Rng, Sample, Site, each_of, ops
from gt.ops.sharding import pointwise_op
from gt.program import Spec, spec


def _normal() -> Any:
    """The normal distribution. (Its module is slow to load, and seldom needed.)"""
    from statistics import NormalDist

    return NormalDist()


_ROOT_PI = math.sqrt(math.pi)
_ROOT_HALF = math.sqrt(0.5)


def _each(f: Any) -> Any:
    """A function of one Python float as a numpy kernel."""
    return lambda np_, x: np_.asarray(np_.frompyfunc(lambda v: f(float(v)), 1, 1)(x), dtype=x.dtype)


def _wide(np_: Any, x: Any) -> Any:
    return np_.asarray(x, np_.float64)


def _torch(name: str, narrow: bool = True) -> Any:
    """torch's function; where it has none of narrow floats (`narrow` False), by way of float32."""

    def make(torch: Any, site: Site) -> Any:
        f = getattr(torch.special, name)
        dtype = getattr(torch, site.results[0].dtype.name)
        if narrow or dtype not in (torch.float16, torch.bfloat16):
            return f
        return lambda *args: f(*[a.float() if hasattr(a, "float") else a for a in args]).to(dtype)

    return make


def _special(
    name: str, doc: str, numpy: Any, vjp: Any, samples: Any, torch: str = "", narrow: bool = True, jax: Any = None,
    **more: Any,
) -> Op:  # fmt: skip
    """A function of one operand. `numpy` is its kernel, None if it is a composition."""
    jax = jax or (lambda lib, x: getattr(lib.scipy.special, torch or name)(x))
    return pointwise_op(
        name,
        doc,
        infer=rules.unary(name, to="float", complexes=False),
        vjp=(vjp,),
        kernels={**({"numpy": numpy, "jax_lib": jax} if numpy else {}), "torch": _torch(torch or name, narrow)},
        promote=True,
        public=True,
        samples=samples,
        **more,
    )


# -- the error function ----------------------------------------------------------------------


def _erfinv(y: float) -> float:
    if not -1 < y < 1:
        return math.copysign(math.inf, y) if abs(y) == 1 else math.nan
    x = _normal().inv_cdf((1 - abs(y)) / 2) * -_ROOT_HALF
    if abs(y) < 0.9:  # (1 - y) / 2 has lost digits of a small y
        x -= (math.erf(x) - abs(y)) / (2 / _ROOT_PI * math.exp(-x * x))
    return math.copysign(x, y)


def _ndtri(p: float) -> float:
    if 0 < p < 1:
        return float(_normal().inv_cdf(p))
    return -math.inf if p == 0 else math.inf if p == 1 else math.nan


def _erfcx_array(np_: Any, x: Any, erfc: Any) -> Any:
    near = np_.minimum(x, 25.0)
    far = np_.maximum(x, 25.0)
    tail, term = 1.0, 1.0
    for k in range(1, 6):
        term = term * -(2 * k - 1) / (2 * far * far)
        tail = tail + term
    return np_.where(x < 25, np_.exp(near * near) * erfc(near), tail / (far * _ROOT_PI))


erf = _special(
    "erf",
    "The error function.",
    _each(math.erf),
    lambda g, y, x: g * ops.exp(-(x * x)) * (2 / _ROOT_PI),
    uniform(-2, 2),
)
erfc = _special(
    "erfc",
    "1 - erf(x), accurate where it is small.",
    _each(math.erfc),
    lambda g, y, x: g * ops.exp(-(x * x)) * (-2 / _ROOT_PI),
    uniform(-2, 2),
)
erfinv = _special(
    "erfinv",
    "The inverse of the error function.",
    _each(_erfinv),
    lambda g, y, x: g * ops.exp(y * y) * (_ROOT_PI / 2),
    uniform(-0.9, 0.9),
    autocast=FLOAT32_ON_CUDA,
)
erfcx = _special(
    "erfcx",
    "exp(x * x) * erfc(x), without overflow.",
    lambda np_, x: _erfcx_array(np_, _wide(np_, x), lambda v: _each(math.erfc)(np_, v)),
    lambda g, y, x: g * (x * y * 2.0 - 2 / _ROOT_PI),
    uniform(-2, 8),
    narrow=False,
    jax=lambda jax, x: _erfcx_array(jax.numpy, x.astype(jax.numpy.float64), jax.scipy.special.erfc),
)
ndtri = _special(
    "ndtri",
    "The inverse of the normal distribution function.",
    _each(_ndtri),
    lambda g, y, x: g * ops.exp(y * y * 0.5) * math.sqrt(2 * math.pi),
    uniform(0.05, 0.95),
    narrow=False,
)


def _log_ndtr(x: Any) -> Any:
    low = ops.log(ops.erfcx(ops.clamp_max(x, -1.0) * -_ROOT_HALF) * 0.5) - x * x * 0.5
    high = ops.log1p(ops.erfc(x * _ROOT_HALF) * -0.5)
    return ops.where(ops.lt(x, -1.0), low, high)


log_ndtr = _special(
    "log_ndtr",
    "The logarithm of the normal distribution function.",
    None,
    lambda g, y, x: g / ops.erfcx(x * -_ROOT_HALF) * math.sqrt(2 / math.pi),
    uniform(-4, 3),
    narrow=False,
    compose=lambda x: _log_ndtr(x if x.dtype.is_floating_point else x * 1.0),
)


def _entr(x: Any) -> Any:
    positive = ops.gt(x, 0)
    inside = ops.where(positive, -(x * ops.log(ops.where(positive, x, 1.0))), -math.inf)
    return ops.where(ops.eq(x, 0), 0.0, ops.where(ops.isnan(x), x, inside))


entr = _special(
    "entr",
    "-x * log(x); 0 at 0, -inf below.",
    None,
    lambda g, y, x: g * (-1.0 - ops.log(x)),
    uniform(0.1, 3),
    compose=lambda x: _entr(x if x.dtype.is_floating_point else x * 1.0),
)


def _infer_logit(x: Spec, *, eps: float | None) -> Spec:
    rules.tensor("logit", x)
    rules.not_complex("logit", x.dtype)
    if eps is not None and type(eps) not in (int, float):
        raise ArgumentError(f"logit: eps must be a number or None, got {rules.shown(eps)}")
    return spec(x.shape, rules.float_of(x))


def _logit_array(xp: Any, x: Any, *, eps: float | None) -> Any:
    p = x if eps is None else xp.minimum(xp.maximum(x, eps), 1 - eps)
    return xp.log(p / (1 - p))


def _logit_dx(g: Any, y: Any, x: Any, *, eps: float | None) -> Any:
    low, high, outside = (0.0, 1.0, math.nan) if eps is None else (eps, 1 - eps, 0.0)
    return ops.where(ops.logical_and(ops.ge(x, low), ops.le(x, high)), g / (x * (1.0 - x)), outside)


logit = pointwise_op(
    "logit",
    "log(x / (1 - x)), the inverse of sigmoid; with eps, x is limited to the range from eps to 1 - eps.",
    infer=_infer_logit,
    vjp=(_logit_dx,),
    kernels={"array": _logit_array},
    promote=True,
    samples=lambda rng: [(a, {"eps": e}) for a, _ in uniform(0.05, 0.95)(rng) for e in (None, 0.2)],
)

# -- gamma and zeta --------------------------------------------------------------------------


def _lgamma(x: float) -> float:
    try:
        return math.lgamma(x)
    except ValueError:  # at 0, -1, -2, ...
        return math.inf


def _digamma(np_: Any, x: Any) -> Any:
    x = _wide(np_, x)
    pole = (x <= 0) & (x == np_.floor(x))
    # psi(x) = psi(1 - x) - pi / tan(pi x); then up to where the asymptotic series is exact.
    mirrored = x < 0.5
    z = np_.where(mirrored, 1 - x, x)
    total = np_.zeros_like(z)
    for _ in range(10):
        small = z < 10
        total -= np_.where(small, 1 / z, 0.0)
        z = np_.where(small, z + 1, z)
    w = 1 / (z * z)
    series = w * (1 / 12 - w * (1 / 120 - w * (1 / 252 - w * (1 / 240 - w * (1 / 132 - w * (691 / 32760))))))
    total += np_.log(z) - 0.5 / z - series
    total -= np_.where(mirrored, np_.pi / np_.tan(np_.pi * (x - np_.floor(x))), 0.0)
    return np_.where(pole, np_.where(x == 0, -np_.copysign(np_.inf, x), np_.nan), total)


#: B(2k) / (2k)! of Euler and Maclaurin's formula.
_MACLAURIN = [1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000, 1 / 74724249600]


def _zeta(np_: Any, s: Any, q: Any) -> Any:
    """The sum of (q + k) ** -s: the first terms themselves, the rest by Euler and Maclaurin."""
    s, q = np_.broadcast_arrays(_wide(np_, s), _wide(np_, q))
    one, above = s == 1, s > 1
    pole = (q <= 0) & (q == np_.floor(q))
    defined = above & ((q > 0) | (s == np_.floor(s)))
    s = np_.where(defined, s, 2.0)
    a = np_.where(pole | ~np_.isfinite(q), 1.0, q)
    total = np_.zeros_like(a)
    # Up to where the formula is exact. jax, which compiles this, cannot look at how far that is: 20 is far enough.
    below = min(1000.0, -a.min(initial=0.0)) if np_ is np else 20.0
    for k in range(10 + int(below)):
        open_ = (k < 10) | (a < 10)
        total += np_.where(open_, a**-s, 0.0)
        a = np_.where(open_, a + 1, a)
    power = a**-s
    total += power * a / (s - 1) + power / 2
    factor = power * s / a
    for k, coefficient in enumerate(_MACLAURIN):
        total += coefficient * factor
        factor = factor * (s + 2 * k + 1) * (s + 2 * k + 2) / (a * a)
    total = np_.where(np_.isposinf(q), 0.0, total)
    return np_.where(one | (pole & above), np_.inf, np_.where(defined & ~np_.isnan(q), total, np_.nan))


def _infer_polygamma(x: Spec, *, n: int) -> Spec:
    rules.tensor("polygamma", x)
    rules.not_complex("polygamma", x.dtype)
    if type(n) is not int or not 0 <= n < 1000:
        raise ArgumentError(f"polygamma: n must be an int >= 0, got {rules.shown(n)}")
    return spec(x.shape, rules.float_of(x))


def _polygamma(np_: Any, x: Any, *, n: int) -> Any:
    if n == 0:
        return _digamma(np_, x)
    return (-1) ** (n + 1) * math.exp(math.lgamma(n + 1)) * _zeta(np_, np_.float64(n + 1), x)


lgamma = _special(
    "lgamma",
    "The logarithm of the absolute value of the gamma function.",
    _each(_lgamma),
    lambda g, y, x: g * ops.digamma(x),
    uniform(0.3, 5),
    torch="gammaln",
)
digamma = _special(
    "digamma",
    "The derivative of lgamma.",
    _digamma,
    lambda g, y, x: g * ops.polygamma(x, n=1),
    lambda rng: [*uniform(0.3, 5)(rng), ((np.array([-0.5, -3.3]),), {})],
    jax=lambda jax, x: _digamma(jax.numpy, x),
)
polygamma = pointwise_op(
    "polygamma",
    "The n-th derivative of digamma.",
    infer=_infer_polygamma,
    vjp=(lambda g, y, x, *, n: g * ops.polygamma(x, n=n + 1),),
    kernels={"array": _polygamma, "torch": lambda torch, site, *, n: lambda x: torch.polygamma(n, x)},
    promote=True,
    samples=lambda rng: [(a, {"n": n}) for a, _ in uniform(1.0, 5)(rng) for n in (0, 1, 2)],
)

# -- modified Bessel functions ---------------------------------------------------------------


def _bessel_numpy(order: int, scaled: bool, np_: Any, x: Any) -> Any:
    """I0 or I1, times exp(-abs(x)) if scaled. Its integral over a period, by the trapezoidal rule, is exact to
    rounding with few points while x is small; the asymptotic series is, where x is large."""
    x = _wide(np_, x)
    a = np_.abs(x)
    near, far = np_.minimum(a, 50.0), np_.maximum(a, 50.0)
    total = np_.zeros_like(a)
    for k in range(96):
        c = math.cos(2 * math.pi * k / 96)
        if order == 0:
            total += np_.exp(near * (c - 1))
        elif c > 0:  # with the point opposite: their difference, exact where x is small
            total += 2 * c * np_.exp(-near) * np_.sinh(near * c)
    series, term = 1.0, 1.0
    for k in range(1, 14):
        term = term * -(4 * order * order - (2 * k - 1) ** 2) / (k * 8 * far)
        series = series + term
    y = np_.where(a < 50, total / 96, series / np_.sqrt(2 * np_.pi * far))
    if not scaled:
        y = y * np_.exp(a)
    return np_.where(x < 0, -y, y) if order else y


def _i1_dx(g: Any, y: Any, x: Any) -> Any:
    zero = ops.eq(x, 0)
    return g * ops.where(zero, 0.5, ops.i0(x) - y / ops.where(zero, 1.0, x))


def _i1e_dx(g: Any, y: Any, x: Any) -> Any:
    zero = ops.eq(x, 0)
    safe = ops.where(zero, 1.0, x)
    return g * ops.where(zero, 0.5, ops.i0e(x) - y * (ops.sign(x) + ops.reciprocal(safe)))


i0 = _special(
    "i0",
    "The modified Bessel function of order 0.",
    partial(_bessel_numpy, 0, False),
    lambda g, y, x: g * ops.i1(x),
    uniform(-4, 4),
)
i0e = _special(
    "i0e",
    "i0(x) * exp(-abs(x)).",
    partial(_bessel_numpy, 0, True),
    lambda g, y, x: g * (ops.i1e(x) - ops.sign(x) * y),
    lambda rng: [*uniform(-4, 4)(rng), ((np.array([60.0, -200.0]),), {})],
)
i1 = _special(
    "i1", "The modified Bessel function of order 1.", partial(_bessel_numpy, 1, False), _i1_dx, uniform(-4, 4)
)
i1e = _special("i1e", "i1(x) * exp(-abs(x)).", partial(_bessel_numpy, 1, True), _i1e_dx, uniform(-4, 4))

# -- of two operands -------------------------------------------------------------------------


def _pairs(low: float, high: float, rng: Rng) -> list[Sample]:
    def draw(*size: int) -> Any:
        return rng.uniform(low, high, size)

    return each_of(
        (draw(3, 4), draw(3, 4)), (draw(3, 1), draw(2, 1, 4)), (draw(3), 2.5), (2.5, draw(3)), (draw(0, 2), draw(2))
    )


zeta = pointwise_op(
    "zeta",
    "The Hurwitz zeta function: the sum over k of (other + k) ** -input.",
    infer=infer_pair("zeta", to_floats("zeta")),
    vjp=(None, lambda g, y, s, q: g * (ops.zeta(s + 1.0, q) * -s)),
    kernels={"array": _zeta, "torch": _torch("zeta", narrow=False)},
    promote=True,
    # Whole numbers: the slope by the first operand is not known, in torch neither.
    samples=lambda rng: [
        ((np.array([[2], [3], [5]]), rng.uniform(0.5, 4, size=4)), {}),
        ((2.5, rng.uniform(0.5, 4, size=(2, 2))), {}),
        ((np.array(3), np.array(1.5)), {}),
        ((np.array([2, 4]), np.array([-1.5, -0.25])), {}),
        ((np.zeros((0, 2)), np.zeros(2)), {}),
    ],
    public=True,
)


def _xlog1py_array(xp: Any, a: Any, b: Any) -> Any:
    return xp.where((a == 0) & ~xp.isnan(b), 0, a * xp.log1p(xp.where(a == 0, 1, b)))


xlog1py = pointwise_op(
    "xlog1py",
    "input * log1p(other); 0 where the input is 0.",
    infer=infer_pair("xlog1py", to_floats("xlog1py")),
    vjp=(lambda g, y, a, b: log_slope(ops.xlog1py, g, a, b, -1.0), lambda g, y, a, b: g * (a / (b + 1.0))),
    kernels={"array": _xlog1py_array, "torch": _torch("xlog1py")},
    promote=True,
    samples=lambda rng: _pairs(0.5, 2, rng),
    public=True,
)
