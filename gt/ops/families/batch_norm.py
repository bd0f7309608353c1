"""batch_norm: each channel with the mean and variance of its batch, or with running ones (batch_norm_eval).

Operands: x; with `running`, the running mean and variance and their momentum; then weight and bias. The new
running values are results: who calls it writes them over the old ones.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gt.errors import ArgumentError, ShapeError
from gt.ops import rules
from gt.ops.families import norm
from gt.ops.families.norm import NARROW, NormForm, Shape, cast, kept, reshape, scaled, seen, wide_dtype
from gt.ops.record import Rng, Sample, Site, op, ops
from gt.ops.sharding import linear_op, spelled
from gt.program import Spec, spec


def _batched(shape: Shape) -> NormForm:
    return NormForm(shape, (0, *range(2, len(shape))), shape[1:2], shape[1:2], norm.per_channel(shape))


def _channels(name: str, x: Spec) -> Shape:
    if x.ndim < 2:
        raise ShapeError(f"{name}: expected an input (N, C, ...), got shape {x.shape}")
    return x.shape[1:2]


def _split(running: bool, rest: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    return (rest[:3], rest[3:]) if running else ((), rest)


def _check_running(x: Spec, running: tuple[Spec, ...]) -> None:
    """The running mean and variance, if there are any."""
    for what, s in zip(("running_mean", "running_var"), running, strict=False):
        rules.floats("batch_norm", s)
        if s.shape != x.shape[1:2]:
            wanted = f"shape {x.shape[1:2]} for an input {x.shape}"
            raise ShapeError(f"batch_norm: {what} must have {wanted}, got {s.shape}")


def _infer_batch_norm(x: Spec, *rest: Spec, running: Any, eps: Any) -> tuple[Spec, ...]:
    rules.tensor("batch_norm", x)
    channels = _channels("batch_norm", x)
    old, affine = _split(rules.flag("batch_norm", "running", running), rest)
    norm.check_affine("batch_norm", x, affine, channels, eps)
    if running and len(old) < 3:
        raise ArgumentError("batch_norm: expected a running mean, a running variance and a momentum")
    if x.size and x.size == x.shape[1]:
        raise ShapeError(f"batch_norm: expected more than one value per channel when training, got shape {x.shape}")
    _check_running(x, old[:2])
    if running and (old[2].shape or not old[2].dtype.is_floating_point):
        raise ArgumentError("batch_norm: momentum must be a float, or a float tensor without dimensions")
    return (*norm.results(x, _batched(x.shape), 2), *old[:2])


def _batch_norm(x: Any, *rest: Any, running: bool, eps: float) -> tuple[Any, ...]:
    old, affine = _split(running, rest)
    form = _batched(x.shape)
    y, mean, rstd = norm.forward(x, affine, form, eps)
    if not running:
        return y, mean, rstd
    momentum = old[2]
    c = seen(x, form) - reshape(mean, kept(form))
    var = reshape(norm.averaged(c * c, form), form.stats) * _unbiased(x.shape)
    pairs = zip(old, (mean, var), strict=False)
    return y, mean, rstd, *(cast(r + (cast(new, r.dtype) - r) * momentum, r.dtype) for r, new in pairs)


def _unbiased(shape: Shape) -> float:
    n = math.prod(shape) // max(shape[1], 1)
    return n / (n - 1) if n > 1 else 1.0


def _batch_norm_vjp(g: Any, y: Any, x: Any, *rest: Any, running: bool, eps: float) -> list[Any]:
    old, affine = _split(running, rest)
    form = _batched(x.shape)
    dx, *dws = norm.gradients(g[:3], y, x, affine, form, lambda *a: ops.batch_norm_d(*a, eps=eps))
    if not running:
        return [dx, *dws]
    # Only gradients of gradients and the tests ask for those of the running values.
    momentum, kind = old[2], wide_dtype(x.dtype)
    dold = []
    for k, gr in enumerate(g[3:]):
        dold.append(None if gr is None else gr * (1.0 - momentum))
        if gr is not None:
            share = reshape(cast(gr * momentum, kind), kept(form)) * (form.stats[0] / max(math.prod(x.shape), 1))
            if k == 0:
                more = ops.expand(share, shape=x.shape)
            else:
                more = (seen(x, form) - reshape(y[1], kept(form))) * share * (2.0 * _unbiased(x.shape))
            dx = more if dx is None else cast(dx, kind) + more
    return [dx, *dold, None, *dws]


def _batch_norm_torch(torch: Any, site: Site, *, running: bool, eps: float) -> Any:
    x = site.specs[0]
    if not x.size:
        return None
    f, wide = torch.native_batch_norm, getattr(torch, wide_dtype(x.dtype).name)
    functional = torch.ops.aten._native_batch_norm_legit_functional.default
    own, by_value = getattr(torch, x.dtype.name), running and site.specs[3].weak
    kinds = [getattr(torch, s.dtype.name) for s in site.specs[1:3]]
    cast_x = x.dtype in NARROW and site.device == "cpu"  # CUDA takes a narrow x with wide weights

    def plain(x: Any, w: Any = None, b: Any = None) -> Any:
        y, mean, rstd = f(x.to(wide) if cast_x else x, *norm.to_dtype(wide, w, b), None, None, True, 0.0, eps)
        return y.to(own), mean, rstd

    def updating(x: Any, mean: Any, var: Any, momentum: Any, w: Any = None, b: Any = None) -> Any:
        x = x.to(wide) if cast_x else x
        mean, var, w, b = norm.to_dtype(wide, mean.detach(), var.detach(), w, b)
        if by_value:
            new = [mean.clone(), var.clone()]  # torch overwrites them
            y, *stats = f(x, w, b, *new, True, momentum, eps)
        else:  # the momentum is known on the device only: all of the batch's mean and variance, then a part of it
            y, *stats, m, v = functional(x, w, b, torch.zeros_like(mean), torch.zeros_like(var), True, 1.0, eps)
            weight = momentum.detach().to(wide)
            new = [torch.lerp(mean, m, weight), torch.lerp(var, v, weight)]
        return y.to(own), *stats, *(n.to(k) for n, k in zip(new, kinds, strict=True))

    return updating if running else plain


def _batch_norm_graph(torch: Any, site: Site, *, running: bool, eps: float) -> Any:
    specs = tuple(spec(s.shape, s.dtype) for s in site.specs)  # the momentum is a tensor
    return _batch_norm_torch(torch, Site(site.device, specs, site.results), running=running, eps=eps)


def _batch_norm_d_torch(torch: Any, site: Site, *, eps: float) -> Any:
    f, wide = torch.ops.aten.native_batch_norm_backward.default, getattr(torch, wide_dtype(site.specs[1].dtype).name)

    def backward(g: Any, x: Any, stats: Any, w: Any, mask: Any) -> Any:
        return f(g, x, *norm.to_dtype(wide, w), None, None, *stats, True, eps, mask)

    return norm.torch_gradients(torch, site, 2, backward)


def _batch_norm_samples(rng: Rng) -> list[Sample]:
    cases: list[Sample] = []
    for shape in [(4, 3), (2, 3, 2, 2), (0, 3)]:
        for x, *affine in norm.affine_samples(rng, shape, (3,)):
            cases.append(((x, *affine), {"running": False, "eps": 1e-5}))
            old = rng.normal(size=3), rng.uniform(0.5, 2, size=3)
            cases.append(((x, *old, 0.1, *affine), {"running": True, "eps": 1e-3}))
    x, *affine = norm.affine_samples(rng, (3, 2, 2), (2,))[2]
    cases.append(((x, rng.normal(size=2), np.ones(2), np.array(0.25), *affine), {"running": True, "eps": 1e-5}))
    return cases


def _rule(x: Spec, *rest: Spec, running: bool, eps: float) -> str:
    old, affine = _split(running, rest)
    left = ["!n c ...", *["c", "c", ""][: len(old)], *["c"] * len(affine)]
    return f"{', '.join(left)} -> !n c ..., c, c{', c, c' if running else ''}"


batch_norm = op(
    "batch_norm",
    "x normalized in each channel, then scaled and shifted; the means, 1 / the deviations, new running values.",
    infer=_infer_batch_norm,
    factors=_rule,
    vjp=_batch_norm_vjp,
    compose=_batch_norm,
    kernels={"torch": _batch_norm_torch, "torch_graph": _batch_norm_graph},
    samples=_batch_norm_samples,
)


def _infer_batch_norm_d(g: Spec, x: Spec, mean: Spec, rstd: Spec, *weight: Spec, eps: Any) -> Any:
    if type(eps) not in (int, float):
        raise ArgumentError(f"batch_norm_d: eps must be a number, got {rules.shown(eps)}")
    form = _batched((*x.shape, *_channels("batch_norm_d", x))[: x.ndim])
    return norm.infer_gradients("batch_norm_d", g, x, (mean, rstd), weight, form)


batch_norm_d = linear_op(
    "batch_norm_d",
    "The gradients of batch_norm with respect to x, weight and bias.",
    infer=_infer_batch_norm_d,
    factors=lambda g, x, mean, rstd, *weight, eps: (
        "!n c ..., !n c ..., c, c, c -> !n c ..., c, c" if weight else "!n c ..., !n c ..., c, c -> !n c ..."
    ),
    vjp=None,
    compose=lambda g, x, mean, rstd, *weight, eps: norm.backward(g, x, (mean, rstd), weight, _batched(x.shape)),
    kernels={"torch": _batch_norm_d_torch},
    samples=lambda rng: norm.gradient_samples(
        [s for s in _batch_norm_samples(rng) if not s[1]["running"]], lambda s, a: _batched(s), 2, ("running",)
    ),
)


def _infer_batch_norm_eval(x: Spec, mean: Spec, var: Spec, *affine: Spec, eps: Any) -> Spec:
    rules.tensor("batch_norm", x)
    norm.check_affine("batch_norm", x, affine, _channels("batch_norm", x), eps)
    _check_running(x, (mean, var))
    return x


def _batch_norm_eval(x: Any, mean: Any, var: Any, *affine: Any, eps: float) -> Any:
    form, kind = _batched(x.shape), wide_dtype(x.dtype)
    mean, rstd = cast(mean, kind), ops.rsqrt(cast(var, kind) + eps)
    y = (seen(x, form) - reshape(mean, form.affine)) * reshape(rstd, form.affine)
    return cast(scaled(y, affine, form), x.dtype)


def _batch_norm_eval_torch(torch: Any, site: Site, *, eps: float) -> Any:
    x = site.specs[0]
    if not x.size or x.dtype in NARROW:
        return None
    f, kind = torch.native_batch_norm, getattr(torch, x.dtype.name)

    def kernel(x: Any, mean: Any, var: Any, w: Any = None, b: Any = None) -> Any:
        mean, var, w, b = norm.to_dtype(kind, mean, var, w, b)
        return f(x, w, b, mean, var, False, 0.0, eps)[0]

    return kernel


batch_norm_eval = op(
    "batch_norm_eval",
    "x minus the running mean of its channel, divided by the running deviation, then scaled and shifted.",
    infer=_infer_batch_norm_eval,
    factors=lambda x, *channels, eps: spelled(f"n c *{', c' * len(channels)} -> n c *", x.ndim - 2, "cn"),
    vjp=None,
    compose=_batch_norm_eval,
    kernels={"torch": _batch_norm_eval_torch},
    samples=lambda rng: [
        ((x, rng.normal(size=3), rng.uniform(0.5, 2, size=3), *affine), {"eps": 1e-5})
        for shape in [(4, 3), (2, 3, 2, 2), (0, 3)]
        for x, *affine in norm.affine_samples(rng, shape, (3,))
    ],
)
