"""The names of torch.autograd: gradients, custom functions, gradient modes, anomaly detection."""

from importlib import import_module
from typing import Any

from gt.autograd import function, functional
from gt.client.grad.anomaly import detect_anomaly, set_detect_anomaly
from gt.client.grad.backward import backward, grad
from gt.client.grad.custom import Function
from gt.client.grad.modes import enable_grad, inference_mode, no_grad, set_grad_enabled
from gt.client.grad.transforms import hessian, jacrev

__all__ = [
    "Function", "Variable", "backward", "detect_anomaly", "enable_grad", "function", "functional", "grad",
    "gradcheck", "gradgradcheck", "hessian", "inference_mode", "jacrev", "no_grad", "set_detect_anomaly",
    "set_grad_enabled",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in ("grad_mode", "graph", "profiler", "variable"):  # imported when they are used
        return import_module(f"gt.autograd.{name}")
    if name in ("gradcheck", "gradgradcheck", "GradcheckError"):
        return getattr(import_module("gt.autograd.gradcheck"), name)
    raise AttributeError(f"module 'gt.autograd' has no attribute {name!r}")


def Variable(data: Any, requires_grad: bool = False) -> Any:
    """torch's old way to make a tensor that may require gradients."""
    return data.detach().requires_grad_(requires_grad)
