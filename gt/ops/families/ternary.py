"""Ops on three tensors that broadcast: where, lerp, and multiply or divide and add."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from gt import dtypes
from gt.errors import DTypeError
from gt.ops import rules
from gt.ops.record import Autocast, Op, Rng, Sample, Site, conj, ops
from gt.ops.sharding import pointwise_op
from gt.program import Spec, spec


def _infer_where(cond: Spec, x: Spec, y: Spec) -> Spec:
    rules.tensor("where", cond)
    rules.either("where", cond, x, y)
    if cond.dtype is not dtypes.bool_:
        raise DTypeError(f"where: the condition must be bool, got {cond.dtype.name}; compare first, as in x > 0")
    return spec(rules.broadcast("where", cond.shape, x.shape, y.shape), dtypes.promote((x, y)))


def _where_graph(torch: Any, site: Site) -> Any:
    kind = getattr(torch, site.results[0].dtype.name)
    return lambda cond, x, y: torch.where(cond, x.to(kind), y.to(kind))


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


where = pointwise_op(
    "where",
    "x where the condition is True, else y.",
    infer=_infer_where,
    linear=((1, 2),),
    keeps=(1, 2),
    vjp=(None, lambda g, out, cond, x, y: ops.where(cond, g, 0.0), lambda g, out, cond, x, y: ops.where(cond, 0.0, g)),
    kernels={"array": lambda xp, cond, x, y: xp.where(cond, x, y), "torch_graph": _where_graph},
    samples=_sample_where,
    flops=0,
)


# -- lerp, addcmul, addcdiv ------------------------------------------------------------------


def _triples(rng: Rng, last: Any = None) -> list[Sample]:
    def draw(*size: int) -> Any:
        return rng.uniform(0.5, 2.5, size)

    more = () if last is None else (last,)
    return [
        ((draw(3, 4), draw(3, 4), draw(3, 4), *more), {}),
        ((draw(3, 1), draw(4), draw(2, 1, 1), *more), {}),
        ((np.array(1.5), np.array(0.5), np.array(2.0), *more), {}),
        ((draw(0, 2), draw(2), draw(2), *more), {}),
    ]


def _infer_lerp(start: Spec, end: Spec, weight: Spec) -> Spec:
    rules.tensor("lerp", start, end)
    if not start.dtype.is_differentiable:
        raise DTypeError(f"lerp: expected a floating-point dtype, got {start.dtype.name}; cast first, as in x.float()")
    rules.same_dtype("lerp", start, end)
    if not weight.weak:
        rules.same_dtype("lerp", start, weight)
    return spec(rules.broadcast("lerp", start.shape, end.shape, weight.shape), start.dtype)


def _lerp(xp: Any, start: Any, end: Any, weight: Any) -> Any:
    # From the nearer end, as torch does: exact at both.
    return xp.where(xp.abs(weight) < 0.5, start + weight * (end - start), end - (end - start) * (1 - weight))


lerp = pointwise_op(
    "lerp",
    "start + weight * (end - start).",
    infer=_infer_lerp,
    linear=((0, 1),),
    vjp=(
        lambda g, y, a, b, w: g * (1.0 - conj(w)),
        lambda g, y, a, b, w: g * conj(w),
        lambda g, y, a, b, w: g * conj(b - a),
    ),
    kernels={"array": _lerp},
    promote=True,
    samples=lambda rng: [*_triples(rng), ((rng.normal(size=3), rng.normal(size=3), 0.3), {})],
    flops=3,
)


def _infer_three(name: str, integers: bool, x: Spec, a: Spec, b: Spec, value: Spec) -> Spec:
    rules.tensor(name, x, a, b)
    rules.number(name, value)
    common = dtypes.promote((x, a, b))
    rules.not_bool(name, common)
    if not integers and not common.is_differentiable:
        raise DTypeError(f"{name}: expected a floating-point dtype, got {common.name}; cast first, as in x.float()")
    if value.dtype.category > common.category:
        raise DTypeError(f"{name}: value must be an int for tensors of dtype {common.name}")
    return spec(rules.broadcast(name, x.shape, a.shape, b.shape), common)


def _torch_three(name: str, torch: Any, site: Site) -> Any:
    f = getattr(torch, name)
    return lambda x, a, b, value: f(x, a, b, value=value)


def _graph_three(formula: Any, torch: Any, site: Site) -> Any:
    """The formula on tensors, in the dtype they meet in; narrow ones in float32, as torch does it."""
    own = site.results[0].dtype
    wide = getattr(torch, "float32" if own in (dtypes.float16, dtypes.bfloat16) else own.name)
    made = getattr(torch, own.name)
    return lambda *operands: formula(None, *[a.to(wide) for a in operands]).to(made)


def _three(name: str, doc: str, formula: Any, linear: Any, vjp: tuple[Any, Any], integers: bool) -> Op:
    return pointwise_op(
        name,
        doc,
        infer=partial(_infer_three, name, integers),
        linear=linear,
        vjp=(lambda g, y, x, a, b, value: g, *vjp),
        kernels={"array": formula, "torch": partial(_torch_three, name), "torch_graph": partial(_graph_three, formula)},
        promote=True,
        samples=lambda rng: [
            *_triples(rng, 1.5),
            *([((np.arange(3), np.arange(3), np.arange(3), 2), {})] if integers else []),
        ],
        autocast=Autocast(cuda="widest"),
        flops=3,
    )


addcmul = _three(
    "addcmul",
    "x + value * a * b.",
    lambda xp, x, a, b, value: x + value * a * b,
    linear=((0, 1), (0, 2)),
    vjp=(lambda g, y, x, a, b, value: g * (conj(b) * value), lambda g, y, x, a, b, value: g * (conj(a) * value)),
    integers=True,
)
addcdiv = _three(
    "addcdiv",
    "x + value * a / b.",
    lambda xp, x, a, b, value: x + value * (a / b),
    linear=((0, 1),),
    vjp=(
        lambda g, y, x, a, b, value: g * conj(value / b),
        lambda g, y, x, a, b, value: -(g * conj(a * value / (b * b))),
    ),
    integers=False,
)
