"""The names of torch.autograd.function."""

from gt.client.grad.custom import Function, once_differentiable

__all__ = ["Function", "once_differentiable"]
