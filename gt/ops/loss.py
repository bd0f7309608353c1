"""Losses that need more than arithmetic: the negative log-likelihood of integer targets."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gt.errors import ArgumentError, ShapeError
from gt.ops import rules
from gt.ops.record import Sample, Site, op, ops
from gt.program import Spec, spec

_REDUCTIONS = ("mean", "sum", "none")


def _targets(name: str, shape: tuple[int, ...], target: Spec, reduction: Any, ignore_index: Any) -> tuple[int, ...]:
    """The shape of the targets of scores (C,), (N, C) or (N, C, d1, ...)."""
    rules.index(name, target)
    rules.choice(name, "reduction", reduction, _REDUCTIONS)
    if type(ignore_index) is not int or abs(ignore_index) >= 1 << 31:
        raise ArgumentError(f"{name}: ignore_index={rules.shown(ignore_index)} is not a small int")
    if not shape:
        raise ShapeError(f"{name}: scores need a dimension of classes")
    wanted = () if len(shape) == 1 else (shape[0], *shape[2:])
    if target.shape != wanted:
        raise ShapeError(f"{name}: scores {shape} take targets of shape {wanted}, not {target.shape}")
    return wanted


def _infer(logp: Spec, target: Spec, *, reduction: Any, ignore_index: Any) -> Spec:
    rules.tensor("nll_loss", logp)
    rules.floating("nll_loss", logp)
    shape = _targets("nll_loss", logp.shape, target, reduction, ignore_index)
    return spec(shape if reduction == "none" else (), logp.dtype)


def _infer_dlogp(g: Spec, target: Spec, *, shape: Any, reduction: Any, ignore_index: Any) -> Spec:
    rules.tensor("nll_loss_dlogp", g)
    rules.floating("nll_loss_dlogp", g)
    shape = rules.shape("nll_loss_dlogp", shape)
    wanted = _targets("nll_loss_dlogp", shape, target, reduction, ignore_index)
    if g.shape != (wanted if reduction == "none" else ()):
        raise ShapeError(f"nll_loss_dlogp: gradient {g.shape} is not that of reduction {reduction!r}")
    return spec(shape, g.dtype)


def _class_dim(shape: Any) -> int:
    return min(len(shape) - 1, 1)


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
    scores = site.specs[0].shape
    if 0 in scores and reduction == "mean":  # of nothing; torch would not take more than two dimensions
        return lambda logp, target: logp.new_full((), math.nan)
    return lambda logp, target: f(logp, target.long(), None, None, ignore_index, None, reduction)


def _dlogp_torch(torch: Any, site: Site, *, shape: Any, reduction: str, ignore_index: int) -> Any:
    shape = tuple(shape)
    dim = _class_dim(shape)

    def kernel(g: Any, target: Any) -> Any:
        counted = target != ignore_index
        if reduction == "mean":
            g = g / counted.sum()
        value = torch.where(counted, -g, 0.0)
        place = torch.where(counted, target, 0).long()
        return g.new_zeros(shape).scatter_(dim, place.unsqueeze(dim), value.unsqueeze(dim))

    return kernel


def _cases(rng: np.random.Generator) -> list[tuple[Any, Any, dict[str, Any]]]:
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


def _samples_dlogp(rng: np.random.Generator) -> list[Sample]:
    return [((rng.normal(size=_gradient_shape(t, a)), t), {"shape": x.shape, **a}) for x, t, a in _cases(rng)]


nll_loss = op(
    "nll_loss",
    "Minus the log-probability of each target class; the mean leaves out targets of ignore_index.",
    infer=_infer,
    vjp=(lambda g, y, logp, target, **attrs: ops.nll_loss_dlogp(g, target, shape=logp.shape, **attrs),),
    kernels={"numpy": _nll_array, "torch": _nll_torch},
    indices=lambda logp, target, *, reduction, ignore_index: {1: (logp.shape[_class_dim(logp.shape)], ignore_index)},
    samples=lambda rng: [((x, t), a) for x, t, a in _cases(rng)],
)

nll_loss_dlogp = op(
    "nll_loss_dlogp",
    "The gradient of nll_loss: minus g at each target, divided by their number for the mean.",
    infer=_infer_dlogp,
    vjp=(lambda u, z, g, target, *, shape, **attrs: ops.nll_loss(u, target, **attrs),),
    kernels={"numpy": _dlogp_array, "torch": _dlogp_torch},
    indices=lambda g, target, *, shape, reduction, ignore_index: {1: (shape[_class_dim(shape)], ignore_index)},
    samples=_samples_dlogp,
)
