"""A value written over a whole tensor, which is what `x.copy_(y)` and `x[:] = 0` come to."""

from __future__ import annotations

from typing import Any

import numpy as np

from gt.ops import rules
from gt.ops.record import Site, fill
from gt.ops.sharding import pointwise_op
from gt.program import Spec


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


def _assign_graph(torch: Any, site: Site) -> Any:
    old, new = site.specs
    if not new.weak:
        return _assign_torch(torch, site)
    dtype, shape = getattr(torch, old.dtype.name), old.shape
    return lambda old, value: value.to(dtype).expand(shape).clone(memory_format=torch.contiguous_format)


assign = pointwise_op(
    "assign",
    "The tensor `new`, expanded to the shape and cast to the dtype of `old`, which it replaces.",
    infer=_infer_assign,
    linear=lambda old, new: ((1,),) if old.dtype is new.dtype else (),
    vjp=(lambda g, y, old, new: fill(g, 0.0, old.shape, g.dtype), lambda g, y, old, new: g),
    kernels={
        "array": lambda xp, old, new: xp.broadcast_to(xp.asarray(new), old.shape).astype(old.dtype),
        "torch": _assign_torch,
        "torch_inplace": lambda torch, site: torch.Tensor.fill_ if site.specs[1].weak else torch.Tensor.copy_,
        "torch_graph": _assign_graph,
    },
    inplace=(0,),
    keeps=(1,),
    samples=lambda rng: [
        ((rng.normal(size=(2, 3)), rng.normal(size=3)), {}),
        ((rng.normal(size=(2, 3)), rng.integers(0, 5, size=(2, 1))), {}),
        ((rng.integers(0, 5, size=(2, 3)), rng.normal(size=(2, 3))), {}),
        ((rng.normal(size=(2, 3)), 1.5), {}),
        ((np.array(1.0), np.array(2.0)), {}),
        ((np.zeros((0, 3)), rng.normal(size=3)), {}),
    ],
    flops=0,
)
