"""Losses that are worth an instruction of their own: of class numbers, of squares, of two classes.

Class numbers are indices and checked as such; one equal to `ignore_index` is left out. Weights of
classes or elements are applied afterwards: a weighted loss takes reduction="none" and multiplies the losses.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from gt.errors import ArgumentError, ShapeError
from gt.ops import rules
from gt.ops.families.norm import NARROW
from gt.ops.record import FLOAT32, Rng, Sample, Site, op, ops
from gt.ops.sharding import letters, linear_op, pointwise, pointwise_op, within
from gt.program import Spec, spec

_REDUCTIONS = ("mean", "sum", "none")


def _targets(name: str, shape: tuple[int, ...], target: Spec, reduction: Any, ignore_index: Any) -> tuple[int, ...]:
    """The shape of the targets of scores (C,), (N, C) or (N, C, d1, ...)."""
    rules.index(name, target)
    rules.choice(name, "reduction", reduction, _REDUCTIONS)
    if type(ignore_index) is not int or abs(ignore_index) >= 1 << 31:
        raise ArgumentError(f"{name}: ignore_index must be an int of 32 bits, got {rules.shown(ignore_index)}")
    if not shape:
        raise ShapeError(f"{name}: expected scores with a dimension of classes, got none")
    wanted = () if len(shape) == 1 else (shape[0], *shape[2:])
    if target.shape != wanted:
        raise ShapeError(f"{name}: scores {shape} need targets of shape {wanted}, got {target.shape}")
    return wanted


def _class_dim(shape: Any) -> int:
    return min(len(shape) - 1, 1)


# -- nll_loss --------------------------------------------------------------------------------


def _infer(logp: Spec, target: Spec, *, reduction: Any, ignore_index: Any) -> Spec:
    rules.floats("nll_loss", logp)
    shape = _targets("nll_loss", logp.shape, target, reduction, ignore_index)
    return spec(shape if reduction == "none" else (), logp.dtype)


def _infer_dlogp(g: Spec, target: Spec, *, shape: Any, reduction: Any, ignore_index: Any) -> Spec:
    rules.floats("nll_loss_dlogp", g)
    shape = rules.shape("nll_loss_dlogp", shape)
    wanted = _targets("nll_loss_dlogp", shape, target, reduction, ignore_index)
    if g.shape != (wanted if reduction == "none" else ()):
        raise ShapeError(f"nll_loss_dlogp: gradient {g.shape} does not fit reduction {reduction!r}")
    return spec(shape, g.dtype)


def _nll_array(xp: Any, logp: Any, target: Any, *, reduction: str, ignore_index: int) -> Any:
    dim = _class_dim(logp.shape)
    counted = target != ignore_index
    places = xp.expand_dims(xp.where(counted, target, 0), dim)
    if logp.size == 0:
        losses = xp.zeros(target.shape, logp.dtype)
    else:
        losses = xp.where(counted, -xp.take_along_axis(logp, places, axis=dim).squeeze(dim), 0)
    if reduction == "none":
        return losses.astype(logp.dtype)
    total = xp.sum(losses)
    return total / xp.sum(counted).astype(logp.dtype) if reduction == "mean" else total


def _dlogp_array(xp: Any, g: Any, target: Any, *, shape: Any, reduction: str, ignore_index: int) -> Any:
    shape = tuple(shape)
    dim = _class_dim(shape)
    counted = target != ignore_index
    if reduction == "mean":
        g = g / xp.sum(counted).astype(g.dtype)
    value = xp.where(counted, -g, 0).astype(g.dtype)
    classes = xp.arange(shape[dim]).reshape((-1,) + (1,) * (len(shape) - 1 - dim))
    hit = xp.expand_dims(xp.where(counted, target, 0), dim) == classes
    return xp.where(hit, xp.expand_dims(value, dim), xp.zeros((), g.dtype))


def _nll_torch(torch: Any, site: Site, *, reduction: str, ignore_index: int) -> Any:
    f = torch.nn.functional.nll_loss
    if 0 in site.specs[0].shape and reduction == "mean":  # of nothing; torch takes at most two dimensions then
        return lambda logp, target: logp.new_full((), math.nan)
    return lambda logp, target: f(logp, target.long(), None, None, ignore_index, None, reduction)


def _placed(torch: Any, g: Any, target: Any, dim: int, reduction: str, ignore_index: int) -> tuple[Any, Any]:
    """Where the targets are among the classes, and what goes there: g, over their number for the mean."""
    counted = target != ignore_index
    if reduction == "mean":
        g = g / counted.sum()
    place = torch.where(counted, target, 0).long()
    return place.unsqueeze(dim), torch.where(counted, g, 0.0).unsqueeze(dim)


def _scattered(torch: Any, site: Site, place: Any, value: Any, shape: tuple[int, ...], dim: int) -> Any:
    """The value at the targets, 0 at the other classes."""
    return value.new_zeros(shape).scatter_(dim, place, value)


def _hit(torch: Any, site: Site, place: Any, value: Any, shape: tuple[int, ...], dim: int) -> Any:
    """The same. In a graph this fuses with what reads it, unlike a scatter."""
    classes = torch.arange(shape[dim], device=site.device).view(-1, *[1] * (len(shape) - 1 - dim))
    return torch.where(place == classes, value, 0.0)


def _dlogp(at: Any, torch: Any, site: Site, *, shape: Any, reduction: str, ignore_index: int) -> Any:
    shape = tuple(shape)
    dim = _class_dim(shape)

    def kernel(g: Any, target: Any) -> Any:
        place, value = _placed(torch, g, target, dim, reduction, ignore_index)
        return at(torch, site, place, -value, shape, dim)

    return kernel


def _cases(rng: Rng) -> list[tuple[Any, Any, dict[str, Any]]]:
    """(scores, targets, attributes)."""
    cases = []
    for shape in [(4, 3), (3,), (2, 3, 4), (0, 3)]:
        target = rng.integers(0, 3, size=() if len(shape) == 1 else (shape[0], *shape[2:]))
        for reduction in _REDUCTIONS:
            cases.append((rng.normal(size=shape), target, {"reduction": reduction, "ignore_index": -100}))
    ignoring = np.array([0, -1, 2, -1], np.int64)
    for reduction in _REDUCTIONS:
        cases.append((rng.normal(size=(4, 3)), ignoring, {"reduction": reduction, "ignore_index": -1}))
    return cases


def _gradient_shape(target: Any, attrs: dict[str, Any]) -> tuple[int, ...]:
    return target.shape if attrs["reduction"] == "none" else ()


def _rule(text: str, n: int, mark: str, reduction: str) -> str | None:
    """A rule of the factors of scores of n dimensions (the classes carry a mark), of targets, and of the loss. The mean
    is a sum over the number of those that count, which no shard knows."""
    rest = letters(max(n - 1, 0), "c")
    scores, targets = " ".join([*rest[:1], mark, *rest[1:]] if n > 1 else [mark]), " ".join(rest)
    loss = targets if reduction == "none" else ""
    return None if reduction == "mean" else text.format(scores=scores, targets=targets, loss=loss)


def _here(shard: Any, target: Any, ignore_index: int) -> Any:
    """Targets as this shard's classes have them; the others are -1, to be ignored."""
    start = shard.start("c")
    inside, _ = within(target, start, shard.size("c"))
    return ops.where(ops.logical_and(inside, ops.ne(target, ignore_index)), target - start, -1)


nll_loss = linear_op(
    "nll_loss",
    "The negative log-probability of each target class; targets equal to ignore_index do not count in the mean.",
    infer=_infer,
    factors=lambda logp, target, *, reduction, **attrs: _rule(
        "{scores}, {targets} -> {loss}", logp.ndim, "c@", reduction
    ),
    local=lambda shard, logp, target, *, reduction, ignore_index: shard.again(
        logp, _here(shard, target, ignore_index), reduction=reduction, ignore_index=-1
    ),
    parts=lambda logp, target, *, reduction, ignore_index: (
        ops.nll_loss(logp, target, reduction="sum", ignore_index=ignore_index) / _counted(target, ignore_index, logp)
    ),
    flops=lambda logp, target, **attrs: target.size,
    vjp=(lambda g, y, logp, target, **attrs: ops.nll_loss_dlogp(g, target, shape=logp.shape, **attrs),),
    kernels={"array": _nll_array, "torch": _nll_torch},
    indices=lambda logp, target, *, reduction, ignore_index: {1: (logp.shape[_class_dim(logp.shape)], ignore_index)},
    samples=lambda rng: [((x, t), a) for x, t, a in _cases(rng)],
    autocast=FLOAT32,
)


def _dlogp_local(shard: Any, g: Any, target: Any, *, shape: Any, reduction: str, ignore_index: int) -> Any:
    target, shape = _here(shard, target, ignore_index), shard.results[0].shape
    return shard.again(g, target, shape=shape, reduction=reduction, ignore_index=-1)


def _dlogp_parts(g: Any, target: Any, *, shape: Any, reduction: str, ignore_index: int) -> Any:
    each = g / _counted(target, ignore_index, g)
    return ops.nll_loss_dlogp(each, target, shape=shape, reduction="sum", ignore_index=ignore_index)


nll_loss_dlogp = linear_op(
    "nll_loss_dlogp",
    "The gradient of nll_loss: -g at each target, divided by the number of targets for the mean.",
    infer=_infer_dlogp,
    factors=lambda g, target, *, shape, reduction, **attrs: _rule(
        "{loss}, {targets} -> {scores}", len(shape), "c@", reduction
    ),
    local=_dlogp_local,
    parts=_dlogp_parts,
    flops=lambda g, target, **attrs: target.size,
    vjp=(lambda u, z, g, target, *, shape, **attrs: ops.nll_loss(u, target, **attrs),),
    kernels={"array": _dlogp_array, "torch": partial(_dlogp, _scattered), "torch_graph": partial(_dlogp, _hit)},
    indices=lambda g, target, *, shape, reduction, ignore_index: {1: (shape[_class_dim(shape)], ignore_index)},
    samples=lambda rng: [
        ((rng.normal(size=_gradient_shape(t, a)), t), {"shape": x.shape, **a}) for x, t, a in _cases(rng)
    ],
)

# -- cross_entropy ---------------------------------------------------------------------------


def _infer_cross_entropy(
    x: Spec, target: Spec, *, reduction: Any, ignore_index: Any, smoothing: Any
) -> tuple[Spec, Spec]:
    rules.floats("cross_entropy", x)
    shape = _targets("cross_entropy", x.shape, target, reduction, ignore_index)
    if type(smoothing) not in (int, float) or not 0 <= smoothing <= 1:
        raise ArgumentError(f"cross_entropy: label_smoothing must be from 0 to 1, got {rules.shown(smoothing)}")
    return spec(shape if reduction == "none" else (), x.dtype), x


def _infer_cross_entropy_dx(
    g: Spec, logp: Spec, target: Spec, *, reduction: Any, ignore_index: Any, smoothing: Any
) -> Spec:
    loss, _ = _infer_cross_entropy(logp, target, reduction=reduction, ignore_index=ignore_index, smoothing=smoothing)
    rules.tensor("cross_entropy_dx", g)
    rules.same_dtype("cross_entropy_dx", g, logp)
    if g.shape != loss.shape:
        raise ShapeError(f"cross_entropy_dx: gradient {g.shape} does not fit reduction {reduction!r}")
    return logp


def _counted(target: Any, ignore_index: int, like: Any) -> Any:
    """How many targets count, as a float."""
    each = ops.cast(ops.ne(target, ignore_index), dtype=like.dtype.name)
    return ops.sum(each, dims=tuple(range(len(target.shape))), keepdim=False)


def _cross_entropy(x: Any, target: Any, *, reduction: str, ignore_index: int, smoothing: float) -> Any:
    dim = _class_dim(x.shape)
    logp = ops.log_softmax(x, dim=dim)
    loss = ops.nll_loss(logp, target, reduction=reduction, ignore_index=ignore_index)
    if not smoothing:
        return loss, logp
    spread = ops.where(ops.eq(target, ignore_index), 0.0, -ops.sum(logp, dims=(dim,), keepdim=False))
    if reduction != "none":
        spread = ops.sum(spread, dims=tuple(range(len(spread.shape))), keepdim=False)
    if reduction == "mean":
        spread = spread / _counted(target, ignore_index, x)
    return loss * (1.0 - smoothing) + spread * (smoothing / max(x.shape[dim], 1)), logp


def _cross_entropy_dx(g: Any, logp: Any, target: Any, *, reduction: str, ignore_index: int, smoothing: float) -> Any:
    dim, shape = _class_dim(logp.shape), logp.shape
    hard = g * (1.0 - smoothing) if smoothing else g
    d = ops.nll_loss_dlogp(hard, target, shape=shape, reduction=reduction, ignore_index=ignore_index)
    if smoothing:
        each = g / _counted(target, ignore_index, logp) if reduction == "mean" else g
        each = ops.where(ops.eq(target, ignore_index), 0.0, each * (-smoothing / max(shape[dim], 1)))
        d = d + ops.reshape(each, shape=(*shape[:dim], 1, *shape[dim + 1 :]))
    return ops.log_softmax_dx(d, logp, dim=dim)


def _cross_entropy_vjp(g: Any, y: Any, x: Any, target: Any, **attrs: Any) -> tuple[Any, Any]:
    (gloss, glogp), logp = g, y[1]
    dx = None if gloss is None else ops.cross_entropy_dx(gloss, logp, target, **attrs)
    if glogp is not None:  # for gradients of gradients only
        more = ops.log_softmax_dx(glogp, logp, dim=_class_dim(x.shape))
        dx = more if dx is None else dx + more
    return dx, None


def _cross_entropy_torch(torch: Any, site: Site, *, reduction: str, ignore_index: int, smoothing: float) -> Any:
    if smoothing or not site.specs[0].size:
        return None
    dim = _class_dim(site.specs[0].shape)
    nll = _nll_torch(torch, site, reduction=reduction, ignore_index=ignore_index)

    def kernel(x: Any, target: Any) -> Any:
        logp = torch.log_softmax(x, dim)
        return nll(logp, target), logp

    return kernel


def _cross_entropy_dx_torch(torch: Any, site: Site, *, reduction: str, ignore_index: int, smoothing: float) -> Any:
    logp = site.specs[1]
    if smoothing or logp.dtype in NARROW:
        return None
    dim = _class_dim(logp.shape)

    def kernel(g: Any, logp: Any, target: Any) -> Any:
        place, value = _placed(torch, g, target, dim, reduction, ignore_index)
        # One array of the size of the scores, where the two gradients in turn would make two.
        return torch.exp(logp).mul_(value).scatter_add_(dim, place, -value)

    return kernel


def _cross_entropy_dx_graph(torch: Any, site: Site, *, reduction: str, ignore_index: int, smoothing: float) -> Any:
    shape = site.specs[1].shape
    dim = _class_dim(shape)

    def kernel(g: Any, logp: Any, target: Any) -> Any:
        place, value = _placed(torch, g, target, dim, reduction, ignore_index)
        return torch.exp(logp) * value - _hit(torch, site, place, value, shape, dim)

    return kernel


def _cross_entropy_samples(rng: Rng) -> list[Sample]:
    cases = [(case, s) for case in _cases(rng) for s in (0.0, 0.2)]
    return [((x, t), {**a, "smoothing": s}) for (x, t, a), s in cases if not s or x.shape in ((4, 3), (2, 3, 4))]


cross_entropy = op(
    "cross_entropy",
    "nll_loss of log_softmax(x), with label smoothing; and that log_softmax.",
    infer=_infer_cross_entropy,
    factors=lambda x, target, *, reduction, **attrs: _rule(
        "{scores}, {targets} -> {loss}, {scores}", x.ndim, "!c", reduction
    ),
    vjp=_cross_entropy_vjp,
    compose=_cross_entropy,
    kernels={"torch": _cross_entropy_torch},
    indices=lambda x, target, *, ignore_index, **attrs: {1: (x.shape[_class_dim(x.shape)], ignore_index)},
    samples=_cross_entropy_samples,
    autocast=FLOAT32,
)

cross_entropy_dx = linear_op(
    "cross_entropy_dx",
    "The gradient of cross_entropy, from its log_softmax.",
    infer=_infer_cross_entropy_dx,
    factors=lambda g, logp, target, *, reduction, **attrs: _rule(
        "{loss}, {scores}, {targets} -> {scores}", logp.ndim, "!c", reduction
    ),
    vjp=None,
    compose=_cross_entropy_dx,
    kernels={"torch": _cross_entropy_dx_torch, "torch_graph": _cross_entropy_dx_graph},
    indices=lambda g, logp, target, *, ignore_index, **attrs: {2: (logp.shape[_class_dim(logp.shape)], ignore_index)},
    samples=lambda rng: [
        ((rng.normal(size=_gradient_shape(t, a)), -np.abs(x), t), a) for (x, t), a in _cross_entropy_samples(rng)
    ],
)

# -- squares ---------------------------------------------------------------------------------


def _pair(name: str, x: Spec, target: Spec) -> None:
    rules.tensor(name, x, target)
    rules.floating(name, x)
    rules.same_dtype(name, x, target)
    if x.shape != target.shape:
        raise ShapeError(f"{name}: input and target must have one shape, got {x.shape} and {target.shape}")


def _infer_mse(x: Spec, target: Spec, *, reduction: Any) -> Spec:
    _pair("mse_loss", x, target)
    rules.choice("mse_loss", "reduction", reduction, _REDUCTIONS)
    return spec(x.shape if reduction == "none" else (), x.dtype)


def _mse(x: Any, target: Any, *, reduction: str) -> Any:
    d = x - target
    if reduction == "none":
        return d * d
    return (ops.mean if reduction == "mean" else ops.sum)(d * d, dims=tuple(range(len(x.shape))), keepdim=False)


def _mse_dx(g: Any, y: Any, x: Any, target: Any, *, reduction: str) -> Any:
    return (x - target) * (g * (2.0 / max(math.prod(x.shape), 1) if reduction == "mean" else 2.0))


mse_loss = op(
    "mse_loss",
    "The squared differences, or their mean or sum.",
    infer=_infer_mse,
    factors=lambda x, target, *, reduction: (
        pointwise(x, target)
        if reduction == "none"
        else f"{(a := ' '.join(letters(x.ndim)))}, {a} -> "
        if reduction == "sum"
        else None
    ),
    vjp=(_mse_dx, lambda g, y, x, target, *, reduction: -_mse_dx(g, y, x, target, reduction=reduction)),
    compose=_mse,
    kernels={"torch": lambda torch, site, *, reduction: partial(torch.nn.functional.mse_loss, reduction=reduction)},
    samples=lambda rng: [
        ((rng.normal(size=s), rng.normal(size=s)), {"reduction": r}) for s in [(3, 4), (), (0, 2)] for r in _REDUCTIONS
    ],
    autocast=FLOAT32,
)

# -- two classes -----------------------------------------------------------------------------


def _infer_two(name: str, x: Spec, target: Spec) -> Spec:
    _pair(name, x, target)
    return x


def _log(x: Any) -> Any:
    """Kept above -100, as in torch: finite where x is 0."""
    return ops.clamp_min(ops.log(x), -100.0)


binary_cross_entropy = pointwise_op(
    "binary_cross_entropy",
    "The binary cross-entropy of probabilities x and targets; logarithms are limited to >= -100.",
    infer=partial(_infer_two, "binary_cross_entropy"),
    vjp=(
        lambda g, y, x, target: g * (x - target) / ops.clamp_min((1.0 - x) * x, 1e-12),
        lambda g, y, x, target: g * (_log(1.0 - x) - _log(x)),
    ),
    # torch's own kernel would trap on CUDA for an x that is not a probability.
    compose=lambda x, target: -(target * _log(x) + (1.0 - target) * _log(1.0 - x)),
    samples=lambda rng: [
        (tuple(np.asarray(rng.uniform(0.1, 0.9, size=s)) for _ in range(2)), {}) for s in [(3, 4), (), (0, 2)]
    ],
    autocast=FLOAT32,
)


binary_cross_entropy_with_logits = pointwise_op(
    "binary_cross_entropy_with_logits",
    "The binary cross-entropy of sigmoid(x) and targets, without overflow.",
    infer=partial(_infer_two, "binary_cross_entropy_with_logits"),
    vjp=(lambda g, y, x, target: g * (ops.sigmoid(x) - target), lambda g, y, x, target: -(g * x)),
    compose=lambda x, target: ops.relu(x) - x * target + ops.log1p(ops.exp(-ops.abs(x))),
    kernels={
        "torch": lambda torch, site: partial(torch.nn.functional.binary_cross_entropy_with_logits, reduction="none")
    },
    samples=lambda rng: [
        ((rng.normal(size=s), np.asarray(rng.uniform(0, 1, size=s))), {}) for s in [(3, 4), (), (0, 2)]
    ],
    autocast=FLOAT32,
)
