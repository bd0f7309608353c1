"""torch's old weight_norm and spectral_norm: a hook computes the weight before each call.

Many saved models have the names of their parameters, `weight_g` and `weight_v` or `weight_orig`.
"""

from __future__ import annotations

from typing import Any

from gt.client.grad.modes import set_grad
from gt.client.tensor import Parameter, Tensor
from gt.errors import ArgumentError
from gt.nn import functional as F
from gt.nn.module import Module
from gt.nn.utils.parametrizations import direction, lengths, matrix, scaled, usual_dim

__all__ = ["remove_spectral_norm", "remove_weight_norm", "spectral_norm", "weight_norm"]


def _weight(op: str, module: Module, name: str) -> Any:
    weight = module._parameters.get(name)
    if weight is None:
        raise ArgumentError(f"{op}: {type(module).__name__} has no parameter {name!r}")
    return weight


def _taken(kind: type, module: Module, name: str) -> Any:
    """Remove the hook of this kind from the module and return it."""
    hooks = module._hooks.forward_pre if module._hooks is not None else []
    for hook in hooks:
        if isinstance(hook.call, kind) and getattr(hook.call, "name", None) == name:
            hooks.remove(hook)
            return hook.call
    raise ArgumentError(f"{type(module).__name__} has no {kind.__name__} of {name!r}")


class WeightNorm:
    """Computes a weight from `name_g`, its norms, and `name_v`, its directions."""

    def __init__(self, name: str, dim: int | None) -> None:
        self.name = name
        self.dim = -1 if dim is None else dim

    def compute_weight(self, module: Module) -> Tensor:
        """The current weight."""
        return scaled(getattr(module, self.name + "_v"), getattr(module, self.name + "_g"), self.dim)

    def __call__(self, module: Module, inputs: Any) -> None:
        setattr(module, self.name, self.compute_weight(module))


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """Train the norm of a weight and its direction separately; prefer parametrizations.weight_norm in new code."""
    weight, hook = _weight("weight_norm", module, name), WeightNorm(name, dim)
    del module._parameters[name]
    with set_grad(False):
        g = lengths(weight.detach(), hook.dim)
    module.register_parameter(name + "_g", Parameter(g))
    module.register_parameter(name + "_v", Parameter(weight.detach()))
    hook(module, None)
    module.register_forward_pre_hook(hook)
    return module


def remove_weight_norm(module: Module, name: str = "weight") -> Module:
    """Make the weight an ordinary parameter again."""
    hook = _taken(WeightNorm, module, name)
    weight = hook.compute_weight(module).detach()
    delattr(module, name)
    del module._parameters[name + "_g"], module._parameters[name + "_v"]
    setattr(module, name, Parameter(weight))
    return module


class SpectralNorm:
    """Computes a weight as `name_orig` divided by its largest singular value."""

    def __init__(self, name: str, n_power_iterations: int, dim: int, eps: float) -> None:
        if n_power_iterations <= 0:
            raise ArgumentError(f"spectral_norm: n_power_iterations must be > 0, got {n_power_iterations}")
        self.name, self.n_power_iterations, self.dim, self.eps = name, n_power_iterations, dim, eps

    def compute_weight(self, module: Module, do_power_iteration: bool) -> Tensor:
        """The current weight."""
        weight, u, v = (getattr(module, f"{self.name}_{k}") for k in ("orig", "u", "v"))
        mat = matrix(weight, self.dim)
        if do_power_iteration:
            with set_grad(False):
                for _ in range(self.n_power_iterations):
                    v.copy_(F.normalize(mat.t() @ u, dim=0, eps=self.eps))
                    u.copy_(F.normalize(mat @ v, dim=0, eps=self.eps))
            u, v = u.clone(), v.clone()
        return weight / (u * (mat @ v)).sum()

    def __call__(self, module: Module, inputs: Any) -> None:
        setattr(module, self.name, self.compute_weight(module, module.training))


def spectral_norm(
    module: Module, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int | None = None
) -> Module:
    """Divide a weight by its largest singular value; prefer parametrizations.spectral_norm in new code."""
    weight = _weight("spectral_norm", module, name)
    hook = SpectralNorm(name, n_power_iterations, usual_dim(module, dim), eps)
    mat = matrix(weight.detach(), hook.dim)
    del module._parameters[name]
    module.register_parameter(name + "_orig", weight)
    setattr(module, name, weight.detach())
    module.register_buffer(name + "_u", direction(mat.shape[0], mat, eps))
    module.register_buffer(name + "_v", direction(mat.shape[1], mat, eps))
    module.register_forward_pre_hook(hook)
    return module


def remove_spectral_norm(module: Module, name: str = "weight") -> Module:
    """Make the weight an ordinary parameter again."""
    hook = _taken(SpectralNorm, module, name)
    with set_grad(False):
        weight = hook.compute_weight(module, False)
    delattr(module, name)
    for k in ("u", "v", "orig"):
        delattr(module, f"{name}_{k}")
    module.register_parameter(name, Parameter(weight.detach()))
    return module
