"""Norms: numbers of mean zero and variance one over some dimensions, then scaled and shifted.

All of them are one computation over different dimensions, which a `NormForm` names. Each returns, after its
result, what its gradient reads: the mean and 1 / standard deviation, in float32 where x is narrower.
The gradients `<norm>_d` are those of x, weight and bias in one instruction, as torch's kernels make them.
Their own gradients come from their compositions.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gt import dtypes
from gt.dtypes import DType
from gt.errors import ArgumentError, ShapeError
from gt.ops import rules
from gt.ops.families.channels_last import BLOCK, order_of, put
from gt.ops.record import FLOAT32_ON_CUDA, Rng, Sample, Site, op, ops
from gt.ops.sharding import letters, linear_op
from gt.program import Spec, spec

Shape = tuple[int, ...]
NARROW = (dtypes.float16, dtypes.bfloat16)


class NormForm(NamedTuple):
    """What a norm averages over, and the shapes of its parts."""

    view: Shape  #: x is looked at in this shape ...
    dims: Shape  #: ... of which these dimensions are averaged over
    stats: Shape  #: the shape of mean and deviation
    weight: Shape  #: the shape of weight and bias ...
    affine: Shape  #: ... which in this one broadcast against x


def _last_dims(shape: Shape, n: int) -> NormForm:
    first = len(shape) - n
    return NormForm(shape, tuple(range(first, len(shape))), shape[:first] + (1,) * n, shape[first:], shape[first:])


def _grouped(shape: Shape, groups: int) -> NormForm:
    view = (shape[0], groups, shape[1] // groups * math.prod(shape[2:]))
    return NormForm(view, (2,), view[:2], shape[1:2], per_channel(shape))


def per_channel(shape: Shape) -> Shape:
    return (shape[1],) + (1,) * (len(shape) - 2)


def wide_dtype(dtype: DType) -> DType:
    """What a norm is computed in."""
    return dtypes.float32 if dtype in NARROW else dtype


def cast(x: Any, dtype: DType) -> Any:
    return x if x.dtype is dtype else ops.cast(x, dtype=dtype.name)


def reshape(x: Any, shape: Shape) -> Any:
    return x if x.shape == shape else ops.reshape(x, shape=shape)


def kept(form: NormForm) -> Shape:
    return tuple(1 if d in form.dims else n for d, n in enumerate(form.view))


def averaged(x: Any, form: NormForm) -> Any:
    return ops.mean(x, dims=form.dims, keepdim=True)


# -- the computation -------------------------------------------------------------------------


def seen(x: Any, form: NormForm) -> Any:
    return reshape(cast(x, wide_dtype(x.dtype)), form.view)


def scaled(y: Any, affine: tuple[Any, ...], form: NormForm) -> Any:
    for k, a in enumerate(affine):
        a = reshape(cast(a, y.dtype), form.affine)
        y = y + a if k else y * a
    return y


def forward(x: Any, affine: tuple[Any, ...], form: NormForm, eps: float, center: bool = True) -> tuple[Any, ...]:
    """The result, the mean (if it is taken away) and 1 / deviation."""
    v = seen(x, form)
    mean = averaged(v, form) if center else None
    c = v - mean if center else v
    rstd = ops.rsqrt(averaged(c * c, form) + eps)
    y = cast(scaled(reshape(c * rstd, x.shape), affine, form), x.dtype)
    stats = (mean, rstd) if center else (rstd,)
    return (y, *(reshape(s, form.stats) for s in stats))


def backward(g: Any, x: Any, stats: tuple[Any, ...], weight: tuple[Any, ...], form: NormForm) -> Any:
    """The gradient of x, and with a weight those of weight and bias."""
    *mean, rstd = (reshape(cast(s, wide_dtype(x.dtype)), kept(form)) for s in stats)
    v, gw = seen(x, form), cast(g, wide_dtype(x.dtype))
    norm = (v - mean[0] if mean else v) * rstd
    d = reshape(scaled(gw, weight, form), form.view)
    away = norm * averaged(d * norm, form)
    dx = rstd * (d - (averaged(d, form) + away if mean else away))
    dx = cast(reshape(dx, x.shape), x.dtype)
    if not weight:
        return dx
    w = weight[0]
    dw, db = gw * reshape(norm, x.shape), gw
    parts = [dw, db] if mean else [dw]
    return dx, *(cast(reshape(ops.sum_to(p, shape=form.affine), w.shape), w.dtype) for p in parts)


def _stats_dx(gs: tuple[Any, ...], x: Any, stats: tuple[Any, ...], form: NormForm) -> Any:
    """What the gradients of mean and 1 / deviation add to that of x; None if there are none."""
    *gmean, grstd = gs
    *mean, rstd = (reshape(s, kept(form)) for s in stats)
    scale = 1.0 / max(math.prod(form.view[d] for d in form.dims), 1)
    parts = []
    if grstd is not None:
        v = seen(x, form)
        cube = reshape(grstd, kept(form)) * (rstd * rstd * rstd) * -scale
        parts.append((v - mean[0] if mean else v) * cube)
    if gmean and gmean[0] is not None:
        parts.append(ops.expand(reshape(gmean[0], kept(form)) * scale, shape=form.view))
    if not parts:
        return None
    return reshape(parts[0] if len(parts) == 1 else parts[0] + parts[1], x.shape)


def gradients(
    g: tuple[Any, ...], y: tuple[Any, ...], x: Any, affine: tuple[Any, ...], form: NormForm, d: Any
) -> list[Any]:
    """The gradients of x, weight and bias. `d` records the fused gradient, given (g, x, *stats, weight)."""
    stats = y[1 : len(g)]
    made: Any = (None,) * 3
    if g[0] is not None:
        made = d(g[0], x, *stats, *affine[:1])
        made = made if isinstance(made, tuple) else (made,)
    dx, *rest = made[: 1 + len(affine)]
    more = _stats_dx(g[1:], x, stats, form)
    if more is not None:
        dx = more if dx is None else cast(dx, more.dtype) + more
    return [dx, *rest]


# -- inference -------------------------------------------------------------------------------


def check_affine(name: str, x: Spec, affine: tuple[Spec, ...], shape: Shape, eps: Any) -> None:
    rules.floats(name, x, *affine)
    if len(affine) > 2:
        raise ArgumentError(f"{name}: expected a weight and a bias, got {len(affine)} tensors")
    for what, a in zip(("weight", "bias"), affine, strict=False):
        if a.shape != shape:
            raise ShapeError(f"{name}: {what} must have shape {shape} for an input {x.shape}, got {a.shape}")
    if type(eps) not in (int, float):
        raise ArgumentError(f"{name}: eps must be a number, got {rules.shown(eps)}")


def _count(name: str, x: Spec, n: Any) -> int:
    if type(n) is not int or not 1 <= n <= x.ndim:
        raise ShapeError(f"{name}: n must be from 1 to the number of dimensions of {x.shape}, got {rules.shown(n)}")
    return n


def _groups(name: str, x: Spec, groups: Any) -> int:
    if x.ndim < 2:
        raise ShapeError(f"{name}: expected an input (N, C, ...), got shape {x.shape}")
    if type(groups) is not int or groups < 1 or x.shape[1] % groups:
        raise ShapeError(f"{name}: {x.shape[1]} channels cannot be divided into {rules.shown(groups)} groups")
    return groups


def results(x: Spec, form: NormForm, stats: int) -> tuple[Spec, ...]:
    return (x, *[spec(form.stats, wide_dtype(x.dtype))] * stats)


def infer_gradients(
    name: str, g: Spec, x: Spec, stats: tuple[Spec, ...], weight: tuple[Spec, ...], form: NormForm
) -> Any:
    rules.tensor(name, g, *stats)
    check_affine(name, x, weight, form.weight, 0.0)
    if g.shape != x.shape:
        raise ShapeError(f"{name}: gradient and input must have one shape, got {g.shape} and {x.shape}")
    for s in stats:
        rules.floating(name, s)
        if s.shape != form.stats:
            raise ShapeError(f"{name}: a mean or deviation must have shape {form.stats}, got {s.shape}")
    return (x, *[weight[0]] * len(stats)) if weight else x


# -- torch's kernels -------------------------------------------------------------------------


def _direct(site: Site, operands: tuple[Spec, ...]) -> bool:
    """Whether torch's kernel takes the operands as they are. Otherwise they are cast to float32: on a CPU the
    kernel would round what is saved for the gradient of 16-bit types, and not every kernel takes mixed types."""
    x = operands[0].dtype
    return all(s.dtype is x for s in operands) and (x not in NARROW or site.device != "cpu")


def to_dtype(dtype: Any, *operands: Any) -> list[Any]:
    """Cast and contiguous: torch's kernels ignore the strides of small operands."""
    return [None if a is None else a.to(dtype).contiguous() for a in operands]


def torch_norm(torch: Any, site: Site, f: Any) -> Any:
    """The kernel, given `f(x, weight, bias)` for operands that torch takes."""
    x = site.specs[0]
    if not x.size:
        return None
    wide, direct = getattr(torch, wide_dtype(x.dtype).name), _direct(site, site.specs)
    own = getattr(torch, x.dtype.name)

    def kernel(x: Any, w: Any = None, b: Any = None) -> Any:
        y, *stats = f(x, *to_dtype(own, w, b)) if direct else f(*to_dtype(wide, x, w, b))
        return y.to(own), *to_dtype(wide, *stats)

    return kernel


def torch_gradients(torch: Any, site: Site, stats: int, f: Any, narrow_stats: bool = False) -> Any:
    """The kernel, given `f(g, x, stats, weight, mask)`. `narrow_stats`: it wants them in the type of x."""
    g, x = site.specs[:2]
    weight = site.specs[2 + stats :]
    if not x.size:
        return None
    wide, own = getattr(torch, wide_dtype(x.dtype).name), getattr(torch, x.dtype.name)
    mask = [True, bool(weight), bool(weight)][: 1 + stats]
    direct = _direct(site, (g, x, *weight))

    def kernel(g: Any, x: Any, *rest: Any) -> Any:
        kept, w = rest[:stats], rest[stats] if weight else None
        if not direct:
            dx, *dws = f(*to_dtype(wide, g, x), to_dtype(wide, *kept), *to_dtype(wide, w), mask)
        else:
            dx, *dws = f(g, x, to_dtype(own if narrow_stats else wide, *kept), *to_dtype(own, w), mask)
        return (dx.to(own), *to_dtype(w.dtype, *dws)) if w is not None else dx.to(own)

    return kernel


# -- layer_norm ------------------------------------------------------------------------------


def _infer_last(name: str, stats: int, x: Spec, *affine: Spec, n: Any, eps: Any) -> tuple[Spec, ...]:
    rules.tensor(name, x)
    form = _last_dims(x.shape, _count(name, x, n))
    check_affine(name, x, affine, form.affine, eps)
    if len(affine) > stats:
        raise ArgumentError(f"{name}: expected at most a weight, got a bias too")
    return results(x, form, stats)


def _layer_norm_torch(torch: Any, site: Site, *, n: int, eps: float) -> Any:
    f, shape = torch.native_layer_norm, site.specs[0].shape[-n:]
    return torch_norm(torch, site, lambda x, w, b: f(x, shape, w, b, eps))


def _layer_norm_d_torch(torch: Any, site: Site, *, n: int) -> Any:
    f, shape = torch.ops.aten.native_layer_norm_backward.default, site.specs[1].shape[-n:]
    # The bias only tells torch which type its gradient has: the weight does as well.
    return torch_gradients(torch, site, 2, lambda g, x, s, w, mask: f(g, x, shape, s[0], s[1], w, w, mask))


def affine_samples(rng: Rng, shape: Shape, affine: Shape) -> list[tuple[Any, ...]]:
    return [(rng.normal(size=shape), *(rng.normal(size=affine) + 1 for _ in range(k))) for k in range(3)]


def _layer_norm_samples(rng: Rng) -> list[Sample]:
    return [
        *((s, {"n": 1, "eps": 1e-5}) for s in affine_samples(rng, (3, 4), (4,))),
        *((s, {"n": 2, "eps": 1e-3}) for s in affine_samples(rng, (2, 2, 3), (2, 3))[1:]),
        *((s, {"n": 1, "eps": 1e-5}) for s in affine_samples(rng, (0, 3), (3,))),
    ]


def gradient_samples(samples: list[Sample], form: Any, stats: int, drop: tuple[str, ...]) -> Any:
    """Samples of a norm's gradient, out of the norm's own."""
    made: list[Sample] = []
    rng = np.random.default_rng(5)
    for (x, *affine), attrs in samples:
        shape = form(x.shape, attrs).stats
        kept = [rng.normal(size=shape), rng.uniform(0.5, 2, size=shape)][-stats:]
        made.append(
            ((rng.normal(size=x.shape), x, *kept, *affine[:1]), {k: v for k, v in attrs.items() if k not in drop})
        )
    return made


def _last_rule(x: Spec, rows: tuple[Spec, ...], affine: tuple[Spec, ...], n: int, results: int) -> str:
    """Rows apart, the last n dimensions whole. Gradients of an affine operand add up what each row gives."""
    row = " ".join([*letters(x.ndim - n), "..."])
    left = [row] * len(rows) + ["..."] * len(affine)
    right = [row] * results if results > 1 else [row, *["..."] * (len(rows) - 2) * len(affine)]
    return f"{', '.join(left)} -> {', '.join(right)}"


layer_norm = op(
    "layer_norm",
    "x normalized over its last n dimensions, then scaled and shifted; the means; 1 / the deviations.",
    infer=partial(_infer_last, "layer_norm", 2),
    factors=lambda x, *affine, n, **attrs: _last_rule(x, (x,), affine, n, 3),
    vjp=lambda g, y, x, *affine, n, eps: gradients(
        g, y, x, affine, _last_dims(x.shape, n), lambda *a: ops.layer_norm_d(*a, n=n)
    ),
    compose=lambda x, *affine, n, eps: forward(x, affine, _last_dims(x.shape, n), eps),
    kernels={"torch": _layer_norm_torch},
    samples=_layer_norm_samples,
    autocast=FLOAT32_ON_CUDA,
)

layer_norm_d = linear_op(
    "layer_norm_d",
    "The gradients of layer_norm with respect to x, weight and bias.",
    factors=lambda g, x, mean, rstd, *weight, n: _last_rule(x, (g, x, mean, rstd), weight, n, 1),
    infer=lambda g, x, mean, rstd, *weight, n: infer_gradients(
        "layer_norm_d", g, x, (mean, rstd), weight, _last_dims(x.shape, _count("layer_norm_d", x, n))
    ),
    vjp=None,
    compose=lambda g, x, mean, rstd, *weight, n: backward(g, x, (mean, rstd), weight, _last_dims(x.shape, n)),
    kernels={"torch": _layer_norm_d_torch},
    samples=lambda rng: gradient_samples(_layer_norm_samples(rng), lambda s, a: _last_dims(s, a["n"]), 2, ("eps",)),
)

# -- rms_norm --------------------------------------------------------------------------------


def _rms_norm_torch(torch: Any, site: Site, *, n: int, eps: float) -> Any:
    f, shape = torch.ops.aten._fused_rms_norm.default, site.specs[0].shape[-n:]
    return torch_norm(torch, site, lambda x, w, b: f(x, shape, w, eps))


def _rms_norm_d_torch(torch: Any, site: Site, *, n: int) -> Any:
    if site.device == "cpu":
        return None  # torch has it for GPUs only
    f, shape = torch.ops.aten._fused_rms_norm_backward.default, site.specs[1].shape[-n:]
    return torch_gradients(torch, site, 1, lambda g, x, s, w, mask: f(g, x, shape, s[0], w, mask))


def _rms_norm_samples(rng: Rng) -> list[Sample]:
    return [(s[:2], a) for s, a in _layer_norm_samples(rng) if len(s) < 3]


rms_norm = op(
    "rms_norm",
    "x divided by its root mean square over the last n dimensions, then scaled; 1 / the root mean squares.",
    infer=partial(_infer_last, "rms_norm", 1),
    factors=lambda x, *weight, n, **attrs: _last_rule(x, (x,), weight, n, 2),
    vjp=lambda g, y, x, *weight, n, eps: gradients(
        g, y, x, weight, _last_dims(x.shape, n), lambda *a: ops.rms_norm_d(*a, n=n)
    ),
    compose=lambda x, *weight, n, eps: forward(x, weight, _last_dims(x.shape, n), eps, center=False),
    kernels={"torch": _rms_norm_torch},
    samples=_rms_norm_samples,
    autocast=FLOAT32_ON_CUDA,
)

rms_norm_d = linear_op(
    "rms_norm_d",
    "The gradients of rms_norm with respect to x and weight.",
    factors=lambda g, x, rstd, *weight, n: _last_rule(x, (g, x, rstd), weight, n, 1),
    infer=lambda g, x, rstd, *weight, n: infer_gradients(
        "rms_norm_d", g, x, (rstd,), weight, _last_dims(x.shape, _count("rms_norm_d", x, n))
    ),
    vjp=None,
    compose=lambda g, x, rstd, *weight, n: backward(g, x, (rstd,), weight, _last_dims(x.shape, n)),
    kernels={"torch": _rms_norm_d_torch},
    samples=lambda rng: gradient_samples(_rms_norm_samples(rng), lambda s, a: _last_dims(s, a["n"]), 1, ("eps",)),
)

# -- group_norm ------------------------------------------------------------------------------


def _infer_group_norm(x: Spec, *affine: Spec, groups: Any, eps: Any) -> tuple[Spec, ...]:
    rules.tensor("group_norm", x)
    form = _grouped(x.shape, _groups("group_norm", x, groups))
    check_affine("group_norm", x, affine, x.shape[1:2], eps)
    return results(x, form, 2)


def _group_order(torch: Any, site: Site, channels: int, groups: int) -> Any:
    """x -> the order in which torch's kernels take it: on a GPU channel after channel, on a CPU any; but for small
    groups they are slow if the channels come last."""
    if site.device != "cpu" or channels < BLOCK * groups:
        return lambda x: torch.contiguous_format
    return lambda x: order_of(torch, x)


def _group_norm_torch(torch: Any, site: Site, *, groups: int, eps: float) -> Any:
    f, shape = torch.native_group_norm, site.specs[0].shape
    rest, order = (*shape[:2], math.prod(shape[2:]), groups, eps), _group_order(torch, site, shape[1], groups)
    return torch_norm(torch, site, lambda x, w, b: f(put(x, order(x)), w, b, *rest))


def _group_norm_d_torch(torch: Any, site: Site, *, groups: int) -> Any:
    f, shape = torch.ops.aten.native_group_norm_backward.default, site.specs[1].shape
    rest, order = (*shape[:2], math.prod(shape[2:]), groups), _group_order(torch, site, shape[1], groups)

    def backward(g: Any, x: Any, s: Any, w: Any, mask: Any) -> Any:
        like_x = order(x)
        return f(put(g, like_x), put(x, like_x), s[0].contiguous(), s[1].contiguous(), w, *rest, mask)

    return torch_gradients(torch, site, 2, backward, narrow_stats=True)


def _group_norm_samples(rng: Rng) -> list[Sample]:
    return [
        *((s, {"groups": 2, "eps": 1e-5}) for s in affine_samples(rng, (2, 4, 3), (4,))),
        *((s, {"groups": 1, "eps": 1e-3}) for s in affine_samples(rng, (3, 4), (4,))[2:]),
        *((s, {"groups": 3, "eps": 1e-3}) for s in affine_samples(rng, (2, 3, 2, 2), (3,))[2:]),
        *((s, {"groups": 2, "eps": 1e-5}) for s in affine_samples(rng, (0, 4, 3), (4,))),
    ]


def _groups_local(shard: Any, *operands: Any, groups: int, **attrs: Any) -> Any:
    return shard.again(*operands, groups=shard.size("g"), **attrs)


group_norm = op(
    "group_norm",
    "x normalized in each group of channels, then scaled and shifted; the means; 1 / the deviations.",
    infer=_infer_group_norm,
    factors=lambda x, *affine, groups, **attrs: (
        f"n (g={groups} !c) ...{', (g !c)' * len(affine)} -> n (g !c) ..., n g, n g"
    ),
    local=_groups_local,
    vjp=lambda g, y, x, *affine, groups, eps: gradients(
        g, y, x, affine, _grouped(x.shape, groups), lambda *a: ops.group_norm_d(*a, groups=groups)
    ),
    compose=lambda x, *affine, groups, eps: forward(x, affine, _grouped(x.shape, groups), eps),
    kernels={"torch": _group_norm_torch},
    samples=_group_norm_samples,
    autocast=FLOAT32_ON_CUDA,
)

group_norm_d = linear_op(
    "group_norm_d",
    "The gradients of group_norm with respect to x, weight and bias.",
    factors=lambda g, x, mean, rstd, *weight, groups: (
        f"n (g={groups} !c) ..., n (g !c) ..., n g, n g{', (g !c)' * len(weight)}"
        f" -> n (g !c) ...{', (g !c)' * 2 * len(weight)}"
    ),
    local=_groups_local,
    infer=lambda g, x, mean, rstd, *weight, groups: infer_gradients(
        "group_norm_d", g, x, (mean, rstd), weight, _grouped(x.shape, _groups("group_norm_d", x, groups))
    ),
    vjp=None,
    compose=lambda g, x, mean, rstd, *weight, groups: backward(g, x, (mean, rstd), weight, _grouped(x.shape, groups)),
    kernels={"torch": _group_norm_d_torch},
    samples=lambda rng: gradient_samples(_group_norm_samples(rng), lambda s, a: _grouped(s, a["groups"]), 2, ("eps",)),
)
