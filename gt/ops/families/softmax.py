"""softmax, its logarithm, and logsumexp. The gradients of the first two read only the result."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from gt.errors import ShapeError
from gt.ops import rules
from gt.ops.families.reduce import count, floating_or_complex, infer_along, reduced, restore
from gt.ops.record import FLOAT32_ON_CUDA, Rng, Sample, Site, conj, each_of, op, ops
from gt.ops.sharding import along, linear_op, reducing
from gt.program import Spec, spec


def _infer_dx(name: str, g: Spec, y: Spec, *, dim: Any) -> Spec:
    rules.tensor(name, g, y)
    rules.floating(name, g)
    rules.same_dtype(name, g, y)
    rules.dim(name, dim, y.ndim)
    if g.shape != y.shape:
        raise ShapeError(f"{name}: gradient and result must have one shape, got {g.shape} and {y.shape}")
    return y


def _total(x: Any, dim: int) -> Any:
    return ops.sum(x, dims=(dim,), keepdim=True)


def _centered(x: Any, dim: int) -> Any:
    """x less its largest along dim: exp cannot overflow."""
    return x if x.shape[dim] == 0 else x - ops.amax(x, dims=(dim,), keepdim=True)


def _softmax(x: Any, *, dim: int) -> Any:
    e = ops.exp(_centered(x, dim))
    return e / _total(e, dim)


def _log_softmax(x: Any, *, dim: int) -> Any:
    c = _centered(x, dim)
    return c - ops.log(_total(ops.exp(c), dim))


def _samples(rng: Rng) -> list[Sample]:
    return [
        *each_of(rng.normal(size=(3, 4)), rng.normal(size=(3, 4, 2)) * 10, dim=1),
        ((rng.normal(size=(5,)) + 1e3,), {"dim": 0}),
        *each_of(np.zeros((0, 3)), np.zeros((2, 0)), dim=1),
    ]


def _torch(name: str, torch: Any, site: Site, *, dim: int) -> Any:
    f = getattr(torch, name)
    return lambda x: f(x, dim)


def _torch_dx(name: str, torch: Any, site: Site, *, dim: int) -> Any:
    f = getattr(torch.ops.aten, name).default
    dtype = getattr(torch, site.specs[0].dtype.name)
    return lambda g, y: f(g, y, dim, dtype)


softmax = op(
    "softmax",
    "exp(x) divided by its sum along dim.",
    infer=partial(infer_along, "softmax"),
    factors=along("dim"),
    vjp=(lambda g, y, x, *, dim: ops.softmax_dx(g, y, dim=dim),),
    compose=_softmax,
    kernels={"torch": partial(_torch, "softmax")},
    samples=_samples,
    autocast=FLOAT32_ON_CUDA,
)

softmax_dx = linear_op(
    "softmax_dx",
    "The gradient of softmax, from its result.",
    infer=partial(_infer_dx, "softmax_dx"),
    factors=along("dim"),
    vjp=(
        lambda u, z, g, y, *, dim: ops.softmax_dx(u, y, dim=dim),
        lambda u, z, g, y, *, dim: u * (g - _total(g * y, dim)) - g * _total(u * y, dim),
    ),
    compose=lambda g, y, *, dim: y * (g - _total(g * y, dim)),
    kernels={"torch": partial(_torch_dx, "_softmax_backward_data")},
    samples=lambda rng: [((rng.normal(size=x.shape), x), a) for (x,), a in _samples(rng)],
)

log_softmax = op(
    "log_softmax",
    "The logarithm of softmax along dim, accurate where softmax is tiny.",
    infer=partial(infer_along, "log_softmax"),
    factors=along("dim"),
    vjp=(lambda g, y, x, *, dim: ops.log_softmax_dx(g, y, dim=dim),),
    compose=_log_softmax,
    kernels={"torch": partial(_torch, "log_softmax")},
    samples=_samples,
    autocast=FLOAT32_ON_CUDA,
)

log_softmax_dx = linear_op(
    "log_softmax_dx",
    "The gradient of log_softmax, from its result.",
    infer=partial(_infer_dx, "log_softmax_dx"),
    factors=along("dim"),
    vjp=(
        lambda u, z, g, y, *, dim: u - _total(u * ops.exp(y), dim),
        lambda u, z, g, y, *, dim: -(u * ops.exp(y) * _total(g, dim)),
    ),
    compose=lambda g, y, *, dim: g - ops.exp(y) * _total(g, dim),
    kernels={"torch": partial(_torch_dx, "_log_softmax_backward_data")},
    samples=lambda rng: [
        ((rng.normal(size=x.shape), -np.abs(rng.normal(size=x.shape))), a) for (x,), a in _samples(rng)
    ],
)


def _infer_logsumexp(x: Spec, *, dims: Any, keepdim: Any) -> Spec:
    rules.tensor("logsumexp", x)
    floating_or_complex("logsumexp", x)
    dims = rules.dims("logsumexp", dims, x.ndim)
    return spec(reduced(x.shape, dims, rules.flag("logsumexp", "keepdim", keepdim)), x.dtype)


def _logsumexp(x: Any, *, dims: Any, keepdim: bool) -> Any:
    if count(x.shape, dims) == 0:
        return ops.log(ops.sum(ops.exp(x), dims=dims, keepdim=keepdim))  # -inf
    top = ops.amax(ops.real(x) if x.dtype.is_complex else x, dims=dims, keepdim=True)
    top = ops.where(ops.isfinite(top), top, 0.0)  # inf - inf would be nan
    total = ops.log(ops.sum(ops.exp(x - top), dims=dims, keepdim=True)) + top
    return total if keepdim else ops.reshape(total, shape=reduced(x.shape, tuple(dims), False))


def _logsumexp_torch(torch: Any, site: Site, *, dims: Any, keepdim: bool) -> Any:
    f, dims = torch.logsumexp, tuple(dims)
    if not dims:  # torch takes all of them then
        return lambda x: f(x.unsqueeze(-1), -1)
    return lambda x: f(x, dims, keepdim)


def _logsumexp_samples(rng: Rng) -> list[Sample]:
    x = rng.normal(size=(2, 3, 4))
    return [
        ((x,), {"dims": (0, 1, 2), "keepdim": False}),
        ((x,), {"dims": (1,), "keepdim": True}),
        ((x,), {"dims": (2, 0), "keepdim": False}),
        ((np.array(1.5),), {"dims": (), "keepdim": False}),
        ((np.zeros((0, 3)),), {"dims": (1,), "keepdim": False}),
        ((np.zeros((0, 3)),), {"dims": (0,), "keepdim": True}),
        ((np.array([[1e3, 1e3], [-1e3, 0.0]]),), {"dims": (1,), "keepdim": False}),
        ((np.array([[-np.inf, -np.inf], [np.inf, 0.0]]),), {"dims": (1,), "keepdim": False}),
        ((rng.normal(size=(2, 3)) + 1j * rng.normal(size=(2, 3)),), {"dims": (1,), "keepdim": False}),
    ]


logsumexp = op(
    "logsumexp",
    "log(sum(exp(x))) over dims, without overflow.",
    infer=_infer_logsumexp,
    factors=reducing("whole"),
    vjp=(
        lambda g, y, x, *, dims, keepdim: (
            restore(g, x.shape, dims, keepdim) * conj(ops.exp(x - restore(y, x.shape, dims, keepdim)))
        ),
    ),
    compose=_logsumexp,
    kernels={"torch": _logsumexp_torch},
    samples=_logsumexp_samples,
    autocast=FLOAT32_ON_CUDA,
)
