"""All parameters as one vector, and back."""

from __future__ import annotations

from collections.abc import Iterable

from gt.client.functions.shapes import cat
from gt.client.grad.modes import set_grad
from gt.client.tensor import Tensor, own
from gt.errors import ShapeError

__all__ = ["parameters_to_vector", "vector_to_parameters"]


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """The concatenation of the flattened parameters."""
    return cat([own(p).reshape(-1) for p in parameters])


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Overwrite the parameters with consecutive parts of a vector."""
    params = [own(p) for p in parameters]
    if vec.ndim != 1 or vec.shape[0] < sum(p.numel() for p in params):
        n = sum(p.numel() for p in params)
        raise ShapeError(f"vector_to_parameters: expected a vector of {n} elements, got shape {tuple(vec.shape)}")
    at = 0
    with set_grad(False):
        for p in params:
            p.copy_(vec.detach()[at : at + p.numel()].reshape(p.shape))
            at += p.numel()
