"""Gradient clipping: by the total norm, or by value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gt.client.functions import creation
from gt.client.functions import elementwise as ew
from gt.client.functions.linalg.norms import vector_norm
from gt.client.functions.shapes import stack
from gt.client.grad.modes import set_grad
from gt.client.tensor import Tensor, own
from gt.errors import AutogradError

__all__ = ["clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "get_total_norm"]


def _grads(parameters: Any) -> list[Any]:
    tensors = [parameters] if isinstance(own(parameters), Tensor) else list(parameters)
    return [g for p in tensors if (g := own(p).grad) is not None]


def get_total_norm(
    tensors: Tensor | Iterable[Tensor], norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: Any = None
) -> Tensor:
    """The norm of all tensors, as if they were one vector."""
    given = [tensors] if isinstance(own(tensors), Tensor) else [own(t) for t in tensors]
    if not given:
        return creation.tensor(0.0)
    with set_grad(False):
        total = vector_norm(stack([vector_norm(g, norm_type) for g in given]), norm_type)
    if error_if_nonfinite and not ew.isfinite(total):
        raise AutogradError(
            f"get_total_norm: the norm of order {norm_type} is not finite; pass error_if_nonfinite=False to ignore this"
        )
    return total


def clip_grads_with_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, total_norm: Tensor, foreach: Any = None
) -> None:
    """Scale the gradients in place by min(1, max_norm / total_norm)."""
    with set_grad(False):
        scale = ew.clamp(max_norm / (total_norm + 1e-6), max=1.0)
        for g in _grads(parameters):
            g.mul_(scale)


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False,
    foreach: Any = None,
) -> Tensor:  # fmt: skip
    """Scale the gradients in place so that their total norm is at most max_norm; return the norm before."""
    params: list[Any] = [parameters] if isinstance(own(parameters), Tensor) else [*parameters]
    total = get_total_norm(_grads(params), norm_type, error_if_nonfinite)
    clip_grads_with_norm_(params, max_norm, total)
    return total


def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float, foreach: Any = None) -> None:
    """Clamp the gradients in place to [-clip_value, clip_value]."""
    with set_grad(False):
        for g in _grads(parameters):
            g.clamp_(-float(clip_value), float(clip_value))
