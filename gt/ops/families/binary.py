"""Arithmetic and comparison of two operands that broadcast; either may be a number.

torch takes a number on the right nearly everywhere and on the left nearly nowhere: `_torch`
turns the operands round, or makes the number a tensor without dimensions, which promotes alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from gt import dtypes
from gt.dtypes import DType
from gt.errors import DTypeError
from gt.ops import rules
from gt.ops.record import FLOAT32_ON_CUDA, Autocast, Op, Rng, Sample, Site, conj, ops, zeros
from gt.ops.sharding import pointwise_op
from gt.program import Spec, spec

LARGE = 1 << 16  #: Elements from which on the bytes of an operand count, and not the launch of a kernel.
_FOREACH = (dtypes.float32, dtypes.float64, dtypes.float16, dtypes.bfloat16)


def infer_pair(name: str, result: Callable[[DType], DType] = lambda d: d) -> Any:
    """Both broadcast; `result` makes the result's dtype of their common one, or refuses it."""

    def infer(a: Spec, b: Spec) -> Spec:
        rules.either(name, a, b)
        return spec(rules.broadcast(name, a.shape, b.shape), result(dtypes.promote((a, b))))

    return infer


def to_floats(name: str, complexes: bool = False) -> Callable[[DType], DType]:
    """Floats stay, integers become floats."""

    def result(d: DType) -> DType:
        if not complexes:
            rules.not_complex(name, d)
        return d if d.is_differentiable else dtypes.float32

    return result


def _infer_sub(a: Spec, b: Spec) -> Spec:
    rules.either("sub", a, b)
    for x in (a, b):
        rules.not_bool("sub", x.dtype, "use logical_xor, or logical_not for 1 - x")
    return spec(rules.broadcast("sub", a.shape, b.shape), dtypes.promote((a, b)))


def _torch(
    name: str, swapped: str | None, number_right: bool, number_left: bool, foreach: str, torch: Any, site: Site
) -> Any:
    """`swapped`: the function that takes the same operands the other way round."""
    f = getattr(torch, name)
    a, b = site.specs
    if foreach and site.device.startswith("cuda") and _by_one(a, b, swapped == name):
        return by_one(torch, f, getattr(torch, foreach), turned=not a.shape)
    if dtypes.float16 in (a.dtype, b.dtype) and dtypes.promote((a, b)).is_complex:
        wide = getattr(torch, dtypes.promote((a, b)).name)  # torch would compute in complex32, which GT has not
        return lambda a, b: f(a.to(wide), b.to(wide))
    if (not a.weak and not b.weak) or (b.weak and number_right) or (a.weak and number_left):
        return f
    if a.weak and swapped is not None and number_right:
        turned = getattr(torch, swapped)
        return lambda s, x: turned(x, s)
    scalar, common = torch.scalar_tensor, getattr(torch, dtypes.promote((a, b)).name)
    # A tensor without dimensions may stay on the host, but not for these functions.
    here = name.startswith("logical") or name in ("gcd", "lcm", "logaddexp", "logaddexp2", "nextafter")
    device = site.device if here else "cpu"
    if a.weak:
        return lambda s, x: f(scalar(s, dtype=common, device=device), x)
    return lambda x, s: f(x, scalar(s, dtype=common, device=device))


def _by_one(a: Spec, b: Spec, either: bool) -> bool:
    """Whether a large operand meets one element, which is on the right, or on `either` side."""
    large, one = (b, a) if either and not a.shape else (a, b)
    return one.shape == () and not one.weak and large.dtype is one.dtype in _FOREACH and large.size >= LARGE


def by_one(torch: Any, plain: Any, foreach: Any, turned: bool) -> Any:
    """An op of a large tensor and a tensor of one element on a device. There torch's kernels for lists of tensors read
    several elements at once; the plain one reads them one by one, because the operands are broadcast. Compilers get the
    plain one, which they fuse. `turned`: the large one is on the right."""
    tensor = torch.Tensor

    def kernel(a: Any, b: Any) -> Any:
        if type(a) is not tensor:
            return plain(a, b)
        return foreach((b,), a)[0] if turned else foreach((a,), b)[0]

    return kernel


def reals(rng: Rng, positive: bool = False) -> list[Sample]:
    def draw(*size: int) -> Any:
        return rng.uniform(0.5, 2.5, size) if positive else rng.normal(size=size)

    return [
        ((draw(3, 4), draw(3, 4)), {}),
        ((draw(3, 1), draw(2, 1, 4)), {}),
        ((draw(), draw(2)), {}),
        ((np.array(1.25), np.array(0.75)), {}),
        ((draw(3, 4), 1.5), {}),
        ((2, draw(3)), {}),
        ((draw(0, 2), draw(2)), {}),
    ]


def with_integers(rng: Rng, positive: bool = False) -> list[Sample]:
    a, b = rng.integers(1 if positive else -4, 5, size=(2, 3)), rng.integers(1, 5, size=3)
    return [*reals(rng, positive), ((a, b), {}), ((a, 3), {}), ((3, b), {}), ((a.astype(np.int8), 2.5), {})]


def _and_complex(positive: bool = False) -> Any:
    def samples(rng: Rng) -> list[Sample]:
        z = rng.normal(size=(3, 2)) + 1j * rng.normal(size=(3, 2))
        mixed: list[Sample] = [((z, z[::-1].copy()), {}), ((z, 1.5), {}), ((z, np.array([0.5, 2.0])), {})]
        return [*with_integers(rng, positive), *mixed]

    return samples


def binary(
    name: str,
    doc: str,
    vjp: Any,
    array: Any = None,
    result: Callable[[DType], DType] = lambda d: d,
    samples: Any = with_integers,
    swapped: str | None = None,
    number_right: bool = True,
    number_left: bool = False,
    foreach: str = "",
    infer: Any = None,
    **more: Any,
) -> Op:
    """An op of two operands. `array` is its kernel, if numpy has no function of that name; `foreach` is torch's
    function of a list of tensors and one element that does the same."""
    return pointwise_op(
        name,
        doc,
        infer=infer or infer_pair(name, result),
        vjp=vjp,
        kernels={
            "array": array or (lambda xp, a, b: getattr(xp, name)(a, b)),
            "torch": partial(_torch, name, swapped, number_right, number_left, foreach),
        },
        promote=True,
        samples=samples,
        **more,
    )


def _refuse(name: str, bools: bool = True, complexes: bool = True, integers: bool = False) -> Callable[[DType], DType]:
    """The common dtype, unless it is one of these."""

    def result(d: DType) -> DType:
        if bools:
            rules.not_bool(name, d)
        if complexes:
            rules.not_complex(name, d)
        if integers and not d.is_differentiable:
            raise DTypeError(f"{name}: expected a floating-point dtype, got {d.name}; cast first, as in x.float()")
        return d

    return result


# -- arithmetic ------------------------------------------------------------------------------

add = binary(
    "add",
    "a + b.",
    (lambda g, y, a, b: g, lambda g, y, a, b: g),
    array=lambda xp, a, b: a + b,
    samples=_and_complex(),
    swapped="add",
    foreach="_foreach_add",
    linear=((0, 1),),
)
sub = binary(
    "sub",
    "a - b.",
    (lambda g, y, a, b: g, lambda g, y, a, b: -g),
    array=lambda xp, a, b: a - b,
    samples=_and_complex(),
    swapped="rsub",
    linear=((0, 1),),
    infer=_infer_sub,
)
mul = binary(
    "mul",
    "a * b.",
    (lambda g, y, a, b: g * conj(b), lambda g, y, a, b: g * conj(a)),
    array=lambda xp, a, b: a * b,
    samples=_and_complex(),
    swapped="mul",
    foreach="_foreach_mul",
    linear=((0,), (1,)),
)
div = binary(
    "div",
    "a / b; integers give floats.",
    (lambda g, y, a, b: g / conj(b), lambda g, y, a, b: -(g * conj(y / b))),
    array=lambda xp, a, b: a / b,
    result=to_floats("div", complexes=True),
    samples=_and_complex(positive=True),
    foreach="_foreach_div",
    linear=((0,),),
)


def _power(xp: Any, a: Any, b: Any) -> Any:
    if a.dtype.kind not in "iu":
        return xp.power(a, b)
    # Integers to negative powers, as torch has it: 1 and -1 stay of size 1, all else is 0.
    units = xp.where(a == 1, 1, xp.where(a == -1, 1 - 2 * (b % 2), 0))
    return xp.where(b < 0, units, xp.power(a, xp.maximum(b, 0)))


pow_ = binary(
    "pow",
    "a to the power b.",
    (lambda g, y, a, b: g * conj(ops.pow_da(a, b)), lambda g, y, a, b: g * conj(ops.pow_db(a, b))),
    array=_power,
    result=_refuse("pow", complexes=False),
    samples=lambda rng: [
        *_and_complex(positive=True)(rng),
        ((np.array([0.0, 0.0, 2.0]), np.array([0.0, 2.0, 0.0])), {}),
    ],
    number_left=True,
    autocast=FLOAT32_ON_CUDA,
)


def _as_tensors(torch: Any, site: Site, f: Any) -> Any:
    """`f` of two tensors, for operands that may be numbers."""
    common = getattr(torch, dtypes.promote(site.specs).name)
    a, b = site.specs
    if a.weak:
        return lambda s, x: f(torch.scalar_tensor(s, dtype=common, device=x.device), x)
    if b.weak:
        return lambda x, s: f(x, torch.scalar_tensor(s, dtype=common, device=x.device))
    return f


def _pow_da_torch(torch: Any, site: Site) -> Any:
    if site.specs[1].weak:  # the usual case: a number as exponent
        return lambda a, b: torch.zeros_like(a) if b == 0 else a.pow(b - 1).mul_(b)
    return _as_tensors(torch, site, lambda a, b: torch.where(b == 0, 0.0, b * torch.pow(a, b - 1)))


def _infer_pow_da(a: Spec, b: Spec) -> Spec:
    for x in (a, b):
        rules.not_bool("pow_da", x.dtype)
    return infer_pair("pow_da", _refuse("pow_da", complexes=False, integers=True))(a, b)


pow_da = pointwise_op(
    "pow_da",
    "The derivative of pow with respect to its base: b * a ** (b - 1), and 0 where b is 0.",
    infer=_infer_pow_da,
    vjp=(
        lambda u, z, a, b: u * conj(ops.pow_da(a, b - 1) * b),
        lambda u, z, a, b: u * conj(ops.pow(a, b - 1) + ops.pow_db(a, b - 1) * b),
    ),
    kernels={
        "array": lambda xp, a, b: xp.where(b == 0, 0, b * xp.power(a, xp.where(b == 0, 1, b - 1))),
        "torch": _pow_da_torch,
    },
    promote=True,
    samples=lambda rng: reals(rng, positive=True),
)


def _pow_db_array(xp: Any, a: Any, b: Any) -> Any:
    zero = (a == 0) & (xp.real(b) >= 0)
    return xp.where(zero, 0, xp.power(a, b) * xp.log(xp.where(zero, 1, a)))


def _pow_db_torch(torch: Any, site: Site) -> Any:
    def kernel(a: Any, b: Any) -> Any:
        zero = (a == 0) & ((b.real if b.is_complex() else b) >= 0)
        return torch.where(zero, 0.0, torch.pow(a, b) * torch.log(a))

    return _as_tensors(torch, site, kernel)


pow_db = pointwise_op(
    "pow_db",
    "The derivative of pow with respect to its exponent: a ** b * log(a), and 0 where a is 0 and b >= 0.",
    infer=infer_pair("pow_db", _refuse("pow_db", complexes=False, integers=True)),
    vjp=(
        lambda u, z, a, b: u * conj(ops.pow(a, b - 1) + ops.pow_db(a, b - 1) * b),
        # log(a) as pow_db(a, 0): also where a is a number.
        lambda u, z, a, b: u * conj(ops.pow_db(a, b) * ops.pow_db(a, b * 0.0)),
    ),
    kernels={"array": _pow_db_array, "torch": _pow_db_torch},
    promote=True,
    samples=lambda rng: reals(rng, positive=True),
)


def _larger(g: Any, a: Any, b: Any) -> Any:
    """g where a > b, half of it where they tie."""
    return ops.where(ops.eq(a, b), g * 0.5, ops.where(ops.lt(a, b), 0.0, g))


def _extreme(name: str, doc: str, vjp: Any, samples: Any = with_integers) -> Op:
    return binary(name, doc, vjp, result=_refuse(name, bools=False), samples=samples, swapped=name, number_right=False)


def _with_tie(rng: Rng) -> list[Sample]:
    return [*with_integers(rng), ((np.array([1.0, 2.0]), np.array([1.0, 3.0])), {})]


maximum = _extreme(
    "maximum",
    "The larger of a and b; nan if one of them is nan.",
    (lambda g, y, a, b: _larger(g, a, b), lambda g, y, a, b: _larger(g, b, a)),
    _with_tie,
)
minimum = _extreme(
    "minimum",
    "The smaller of a and b; nan if one of them is nan.",
    (lambda g, y, a, b: _larger(g, b, a), lambda g, y, a, b: _larger(g, a, b)),
    _with_tie,
)


def _end_of_remainder(b: Any) -> int:
    return b if type(b) is int and b > 0 else -1


remainder = binary(
    "remainder",
    "a % b, with the sign of b.",
    (lambda g, y, a, b: g, lambda g, y, a, b: -(g * ops.floor_divide(a, b))),
    result=_refuse("remainder"),
    spans=lambda a, b: {0: _end_of_remainder} if b.weak and not a.weak else {},
    samples=lambda rng: with_integers(rng, positive=True),
    number_left=True,
)
floor_divide = binary(
    "floor_divide",
    "a // b, rounded towards minus infinity.",
    (lambda g, y, a, b: zeros(g), lambda g, y, a, b: zeros(g)),
    result=_refuse("floor_divide"),
    samples=lambda rng: with_integers(rng, positive=True),
)
fmod = binary(
    "fmod",
    "The remainder of a / b, with the sign of a.",
    (lambda g, y, a, b: g, lambda g, y, a, b: -(g * ops.trunc(a / b))),
    result=_refuse("fmod"),
    samples=lambda rng: with_integers(rng, positive=True),
)


def _chosen(better: str) -> Any:
    """The gradients of fmax or fmin: all of g to the operand that is taken, which is a where both are equal."""

    def first(a: Any, b: Any) -> Any:
        ahead = getattr(ops, better)(a, b)
        return ops.logical_or(ahead, ops.isnan(b)) if hasattr(b, "dtype") else ahead

    return lambda g, y, a, b: ops.where(first(a, b), g, 0.0), lambda g, y, a, b: ops.where(first(a, b), 0.0, g)


fmax = _extreme("fmax", "The larger of a and b; if one of them is nan, the other.", _chosen("ge"))
fmin = _extreme("fmin", "The smaller of a and b; if one of them is nan, the other.", _chosen("le"))

# -- angles, logarithms, floating-point numbers ----------------------------------------------

atan2 = binary(
    "atan2",
    "The angle of the point (b, a) in radians: the inverse tangent of a / b.",
    (lambda g, y, a, b: g * (b / (a * a + b * b)), lambda g, y, a, b: -(g * (a / (a * a + b * b)))),
    array=lambda xp, a, b: xp.arctan2(a, b),
    result=to_floats("atan2"),
    number_right=False,
    autocast=Autocast(cuda="widest"),
)
hypot = binary(
    "hypot",
    "sqrt(a * a + b * b), without overflow.",
    (lambda g, y, a, b: g * (a / y), lambda g, y, a, b: g * (b / y)),
    result=_refuse("hypot", integers=True),
    samples=reals,
    number_right=False,
)
copysign = binary(
    "copysign",
    "The absolute value of a with the sign of b.",
    (
        lambda g, y, a, b: ops.where(ops.eq(a, 0), 0.0, g * (y / ops.where(ops.eq(a, 0), 1.0, a))),
        lambda g, y, a, b: zeros(g),
    ),
    result=to_floats("copysign"),
)
logaddexp = binary(
    "logaddexp",
    "log(exp(a) + exp(b)), without overflow.",
    (lambda g, y, a, b: g * ops.sigmoid(a - b), lambda g, y, a, b: g * ops.sigmoid(b - a)),
    result=_refuse("logaddexp", integers=True),
    samples=reals,
    number_right=False,
)
logaddexp2 = binary(
    "logaddexp2",
    "log2(2 ** a + 2 ** b), without overflow.",
    (
        lambda g, y, a, b: g * ops.sigmoid((a - b) * math.log(2)),
        lambda g, y, a, b: g * ops.sigmoid((b - a) * math.log(2)),
    ),
    result=_refuse("logaddexp2", integers=True),
    samples=reals,
    number_right=False,
)


def log_slope(function: Any, g: Any, a: Any, b: Any, pole: float) -> Any:
    """The gradient of xlogy and its kin by a: g times the logarithm, but 0 at 0 where b is not above the pole."""
    if hasattr(b, "dtype"):
        return function(ops.where(ops.logical_and(ops.eq(a, 0), ops.le(b, pole)), 0.0, g), b)
    return function(g if b > pole else ops.where(ops.eq(a, 0), 0.0, g), b)


xlogy = binary(
    "xlogy",
    "a * log(b); 0 where a is 0.",
    (lambda g, y, a, b: log_slope(ops.xlogy, g, a, b, 0.0), lambda g, y, a, b: g * (a / b)),
    array=lambda xp, a, b: xp.where((a == 0) & ~xp.isnan(b), 0, a * xp.log(xp.where(a == 0, 1, b))),
    result=to_floats("xlogy"),
    samples=lambda rng: with_integers(rng, positive=True),
    number_left=True,
)
nextafter = binary(
    "nextafter",
    "The next floating-point number after a towards b.",
    (lambda g, y, a, b: g, lambda g, y, a, b: zeros(g)),
    result=_refuse("nextafter", integers=True),
    samples=reals,
    number_right=False,
)

# -- comparison and logic --------------------------------------------------------------------


def _test(name: str, doc: str, swapped: str, array: Any = None, number_right: bool = True) -> Op:
    ordered = name in ("lt", "le", "gt", "ge")

    def result(d: DType) -> DType:
        if ordered:
            rules.not_complex(name, d)
        return dtypes.bool_

    def samples(rng: Rng) -> list[Sample]:
        nan = np.array([np.nan, 1.0, 0.0])
        return [*with_integers(rng), ((nan, nan), {}), ((np.array([True, False]), np.array([True, True])), {})]

    return binary(name, doc, None, array, result, samples, swapped, number_right)


eq = _test("eq", "Whether a == b.", "eq", lambda xp, a, b: a == b)
ne = _test("ne", "Whether a != b.", "ne", lambda xp, a, b: a != b)
lt = _test("lt", "Whether a < b.", "gt", lambda xp, a, b: a < b)
le = _test("le", "Whether a <= b.", "ge", lambda xp, a, b: a <= b)
gt = _test("gt", "Whether a > b.", "lt", lambda xp, a, b: a > b)
ge = _test("ge", "Whether a >= b.", "le", lambda xp, a, b: a >= b)
logical_and = _test("logical_and", "Whether both are not zero.", "logical_and", number_right=False)
logical_or = _test("logical_or", "Whether at least one is not zero.", "logical_or", number_right=False)
logical_xor = _test("logical_xor", "Whether exactly one is not zero.", "logical_xor", number_right=False)
