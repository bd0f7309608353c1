"""Ops on two operands that broadcast; either may be a number. And where, and assign.

torch takes a number on the right nearly everywhere and on the left nearly nowhere: `_torch`
turns the operands round, or makes the number a tensor without dimensions, which promotes alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gt import dtypes
from gt.dtypes import DType
from gt.errors import DTypeError
from gt.ops import rules
from gt.ops.record import Op, Sample, Site, op, ops
from gt.program import Spec, spec

Rng = np.random.Generator


def _infer(name: str, result: Callable[[DType], DType]) -> Any:
    def infer(a: Spec, b: Spec) -> Spec:
        rules.either(name, a, b)
        return spec(rules.broadcast(name, a.shape, b.shape), result(dtypes.promote((a, b))))

    return infer


def _infer_sub(a: Spec, b: Spec) -> Spec:
    rules.either("sub", a, b)
    for x in (a, b):
        rules.not_bool("sub", x.dtype, "use logical_xor, or logical_not for 1 - x")
    return spec(rules.broadcast("sub", a.shape, b.shape), dtypes.promote((a, b)))


def _torch(name: str, swapped: str | None, number_right: bool, number_left: bool) -> Any:
    """`swapped`: the function that takes the same operands the other way round."""

    def make(torch: Any, site: Site) -> Any:
        f = getattr(torch, name)
        a, b = site.specs
        if (not a.weak and not b.weak) or (b.weak and number_right) or (a.weak and number_left):
            return f
        if a.weak and swapped is not None and number_right:
            turned = getattr(torch, swapped)
            return lambda s, x: turned(x, s)
        scalar, common = torch.scalar_tensor, getattr(torch, dtypes.promote((a, b)).name)
        # A tensor without dimensions may stay on the host, except for the logical functions.
        device = site.device if name.startswith("logical") else "cpu"
        if a.weak:
            return lambda s, x: f(scalar(s, dtype=common, device=device), x)
        return lambda x, s: f(x, scalar(s, dtype=common, device=device))

    return make


def _reals(rng: Rng, positive: bool = False) -> list[Sample]:
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


def _with_integers(rng: Rng, positive: bool = False) -> list[Sample]:
    a, b = rng.integers(1 if positive else -4, 5, size=(2, 3)), rng.integers(1, 5, size=3)
    return [*_reals(rng, positive), ((a, b), {}), ((a, 3), {}), ((3, b), {}), ((a.astype(np.int8), 2.5), {})]


def _binary(
    name: str,
    doc: str,
    array: Any,
    vjp: Any,
    result: Callable[[DType], DType] = lambda d: d,
    samples: Any = _with_integers,
    swapped: str | None = None,
    number_right: bool = True,
    number_left: bool = False,
    infer: Any = None,
) -> Op:
    return op(
        name,
        doc,
        infer=infer or _infer(name, result),
        vjp=vjp,
        kernels={"array": array, "torch": _torch(name, swapped, number_right, number_left)},
        promote=True,
        samples=samples,
    )


def _refuse_bool(name: str) -> Callable[[DType], DType]:
    def result(d: DType) -> DType:
        rules.not_bool(name, d)
        return d

    return result


# -- arithmetic ------------------------------------------------------------------------------

add = _binary("add", "a + b.", lambda xp, a, b: a + b, (lambda g, y, a, b: g, lambda g, y, a, b: g), swapped="add")
sub = _binary(
    "sub",
    "a - b.",
    lambda xp, a, b: a - b,
    (lambda g, y, a, b: g, lambda g, y, a, b: -g),
    swapped="rsub",
    infer=_infer_sub,
)
mul = _binary(
    "mul", "a * b.", lambda xp, a, b: a * b, (lambda g, y, a, b: g * b, lambda g, y, a, b: g * a), swapped="mul"
)
div = _binary(
    "div",
    "a / b; integers give floats.",
    lambda xp, a, b: a / b,
    (lambda g, y, a, b: g / b, lambda g, y, a, b: -(g / b * y)),
    result=lambda d: d if d.is_floating_point else dtypes.float32,
    samples=lambda rng: _with_integers(rng, positive=True),
)


def _power(xp: Any, a: Any, b: Any) -> Any:
    if a.dtype.kind not in "iu":
        return xp.power(a, b)
    # Integers to negative powers, as torch has it: 1 and -1 stay of size 1, all else is 0.
    units = xp.where(a == 1, 1, xp.where(a == -1, 1 - 2 * (b % 2), 0))
    return xp.where(b < 0, units, xp.power(a, xp.maximum(b, 0)))


pow_ = _binary(
    "pow",
    "a to the power b.",
    _power,
    (lambda g, y, a, b: g * ops.pow_da(a, b), lambda g, y, a, b: g * ops.pow_db(a, b)),
    result=_refuse_bool("pow"),
    samples=lambda rng: [
        *_with_integers(rng, positive=True),
        ((np.array([0.0, 0.0, 2.0]), np.array([0.0, 2.0, 0.0])), {}),
    ],
    number_left=True,
)


def _float_only(name: str) -> Callable[[DType], DType]:
    def result(d: DType) -> DType:
        if not d.is_floating_point:
            raise DTypeError(f"{name}: gradients are floats, not {d.name}")
        return d

    return result


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


pow_da = op(
    "pow_da",
    "The gradient of pow by its base: b * a ** (b - 1), and 0 where b is 0.",
    infer=_infer("pow_da", _float_only("pow_da")),
    vjp=(
        lambda u, z, a, b: u * (ops.pow_da(a, b - 1) * b),
        lambda u, z, a, b: u * (ops.pow(a, b - 1) + ops.pow_db(a, b - 1) * b),
    ),
    kernels={
        "array": lambda xp, a, b: xp.where(b == 0, 0, b * xp.power(a, xp.where(b == 0, 1, b - 1))),
        "torch": _pow_da_torch,
    },
    promote=True,
    samples=lambda rng: _reals(rng, positive=True),
)

pow_db = op(
    "pow_db",
    "The gradient of pow by its exponent: a ** b * log(a), and 0 where a is 0 and b is not negative.",
    infer=_infer("pow_db", _float_only("pow_db")),
    vjp=(
        lambda u, z, a, b: u * (ops.pow(a, b - 1) + ops.pow_db(a, b - 1) * b),
        # log(a) as pow_db(a, 0): also where a is a number.
        lambda u, z, a, b: u * (ops.pow_db(a, b) * ops.pow_db(a, b * 0.0)),
    ),
    kernels={
        "array": lambda xp, a, b: xp.where(
            (a == 0) & (b >= 0), 0, xp.power(a, b) * xp.log(xp.where((a == 0) & (b >= 0), 1, a))
        ),
        "torch": lambda torch, site: _as_tensors(
            torch, site, lambda a, b: torch.where((a == 0) & (b >= 0), 0.0, torch.pow(a, b) * torch.log(a))
        ),
    },
    promote=True,
    samples=lambda rng: _reals(rng, positive=True),
)


def _larger(g: Any, a: Any, b: Any) -> Any:
    """g where a > b, half of it where they tie."""
    return ops.where(ops.eq(a, b), g * 0.5, ops.where(ops.lt(a, b), 0.0, g))


maximum = _binary(
    "maximum",
    "The larger of a and b; nan if one is.",
    lambda xp, a, b: xp.maximum(a, b),
    (lambda g, y, a, b: _larger(g, a, b), lambda g, y, a, b: _larger(g, b, a)),
    samples=lambda rng: [*_with_integers(rng), ((np.array([1.0, 2.0]), np.array([1.0, 3.0])), {})],
    swapped="maximum",
    number_right=False,
)
minimum = _binary(
    "minimum",
    "The smaller of a and b; nan if one is.",
    lambda xp, a, b: xp.minimum(a, b),
    (lambda g, y, a, b: _larger(g, b, a), lambda g, y, a, b: _larger(g, a, b)),
    samples=lambda rng: [*_with_integers(rng), ((np.array([1.0, 2.0]), np.array([1.0, 3.0])), {})],
    swapped="minimum",
    number_right=False,
)
remainder = _binary(
    "remainder",
    "a % b, with the sign of b.",
    lambda xp, a, b: xp.remainder(a, b),
    (lambda g, y, a, b: g, lambda g, y, a, b: -(g * ops.floor_divide(a, b))),
    result=_refuse_bool("remainder"),
    samples=lambda rng: _with_integers(rng, positive=True),
    number_left=True,
)
floor_divide = _binary(
    "floor_divide",
    "a // b, rounded towards minus infinity.",
    lambda xp, a, b: xp.floor_divide(a, b),
    None,
    result=_refuse_bool("floor_divide"),
    samples=lambda rng: _with_integers(rng, positive=True),
)

# -- comparison and logic --------------------------------------------------------------------


def _test(name: str, doc: str, array: Any, swapped: str, number_right: bool = True) -> Op:
    def samples(rng: Rng) -> list[Sample]:
        nan = np.array([np.nan, 1.0, 0.0])
        return [*_with_integers(rng), ((nan, nan), {}), ((np.array([True, False]), np.array([True, True])), {})]

    return _binary(
        name,
        doc,
        array,
        None,
        result=lambda d: dtypes.bool_,
        samples=samples,
        swapped=swapped,
        number_right=number_right,
    )


eq = _test("eq", "Whether a equals b.", lambda xp, a, b: a == b, "eq")
ne = _test("ne", "Whether a differs from b.", lambda xp, a, b: a != b, "ne")
lt = _test("lt", "Whether a is below b.", lambda xp, a, b: a < b, "gt")
le = _test("le", "Whether a is at most b.", lambda xp, a, b: a <= b, "ge")
gt = _test("gt", "Whether a is above b.", lambda xp, a, b: a > b, "lt")
ge = _test("ge", "Whether a is at least b.", lambda xp, a, b: a >= b, "le")
logical_and = _test(
    "logical_and", "Whether both are not zero.", lambda xp, a, b: xp.logical_and(a, b), "logical_and", False
)
logical_or = _test("logical_or", "Whether one is not zero.", lambda xp, a, b: xp.logical_or(a, b), "logical_or", False)
logical_xor = _test(
    "logical_xor", "Whether just one is not zero.", lambda xp, a, b: xp.logical_xor(a, b), "logical_xor", False
)

# -- where and assign ------------------------------------------------------------------------


def _infer_where(cond: Spec, x: Spec, y: Spec) -> Spec:
    rules.tensor("where", cond)
    rules.either("where", cond, x, y)
    if cond.dtype is not dtypes.bool_:
        raise DTypeError(f"where: the condition is bool, not {cond.dtype.name}; compare first, as in x > 0")
    return spec(rules.broadcast("where", cond.shape, x.shape, y.shape), dtypes.promote((x, y)))


def _sample_where(rng: Rng) -> list[Sample]:
    mask = rng.normal(size=(3, 4)) > 0
    return [
        ((mask, rng.normal(size=(3, 4)), rng.normal(size=(3, 4))), {}),
        ((mask, rng.normal(size=(2, 1, 1)), rng.normal(size=4)), {}),
        ((mask, rng.normal(size=(3, 1)), 0.0), {}),
        ((mask, 1, rng.normal(size=(3, 1))), {}),
        ((mask, 1.0, 0.0), {}),
        ((np.array(True), np.array(1.5), np.array(2)), {}),
        ((np.zeros((0,), bool), np.zeros(0), 1.0), {}),
    ]


where = op(
    "where",
    "x where the condition holds, else y.",
    infer=_infer_where,
    vjp=(None, lambda g, out, cond, x, y: ops.where(cond, g, 0.0), lambda g, out, cond, x, y: ops.where(cond, 0.0, g)),
    kernels={"array": lambda xp, cond, x, y: xp.where(cond, x, y)},
    samples=_sample_where,
)


def _infer_assign(old: Spec, new: Spec) -> Spec:
    rules.tensor("assign", old)
    rules.either("assign", old, new)
    rules.expands("assign", "a value", new.shape, old.shape)
    return old


def _assign_torch(torch: Any, site: Site) -> Any:
    old, new = site.specs
    dtype, shape, device = getattr(torch, old.dtype.name), old.shape, site.device
    if new.weak:
        return lambda old, value: torch.full(shape, value, dtype=dtype, device=device)
    return lambda old, new: torch.empty(shape, dtype=dtype, device=device).copy_(new)


def _assign_inplace(torch: Any, site: Site) -> Any:
    return torch.Tensor.fill_ if site.specs[1].weak else torch.Tensor.copy_


assign = op(
    "assign",
    "`new` in place of `old`: expanded to its shape, cast to its dtype.",
    infer=_infer_assign,
    vjp=(None, lambda g, y, old, new: g),
    kernels={
        "array": lambda xp, old, new: xp.broadcast_to(xp.asarray(new), old.shape).astype(old.dtype),
        "torch": _assign_torch,
        "torch_inplace": _assign_inplace,
    },
    inplace=(0,),
    samples=lambda rng: [
        ((rng.normal(size=(2, 3)), rng.normal(size=3)), {}),
        ((rng.normal(size=(2, 3)), rng.integers(0, 5, size=(2, 1))), {}),
        ((rng.integers(0, 5, size=(2, 3)), rng.normal(size=(2, 3))), {}),
        ((rng.normal(size=(2, 3)), 1.5), {}),
        ((np.array(1.0), np.array(2.0)), {}),
        ((np.zeros((0, 3)), rng.normal(size=3)), {}),
    ],
)
