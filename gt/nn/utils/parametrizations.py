"""Weight normalization and spectral normalization as parametrizations."""

from __future__ import annotations

from typing import Any

from gt.client.functions import randoms
from gt.client.functions.linalg.norms import norm
from gt.client.grad.modes import set_grad
from gt.client.tensor import Tensor
from gt.errors import ArgumentError, DimError
from gt.nn import functional as F
from gt.nn.conv import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from gt.nn.module import Module
from gt.nn.utils.parametrize import register_parametrization

__all__ = ["spectral_norm", "weight_norm"]


# --- weight normalization ----------------------------------------------------------------------------


def lengths(weight: Tensor, dim: int) -> Tensor:
    """The norm of each slice along dim; the norm of the whole weight if dim is -1."""
    if dim == -1:
        return norm(weight)
    return norm(weight, 2.0, [d for d in range(weight.ndim) if d != dim], True) if weight.ndim > 1 else weight.abs()


def scaled(v: Tensor, g: Tensor, dim: int) -> Tensor:
    """v scaled so that its slices along dim have the norms g."""
    return v * (g / lengths(v, dim))


class _WeightNorm(Module):
    """A weight from norms and directions."""

    def __init__(self, dim: int | None = 0) -> None:
        super().__init__()
        self.dim = -1 if dim is None else dim

    def forward(self, weight_g: Tensor, weight_v: Tensor) -> Tensor:
        return scaled(weight_v, weight_g, self.dim)

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return lengths(weight, self.dim), weight


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """Train the norm of a weight (of each of its slices along dim) and its direction separately."""
    register_parametrization(module, name, _WeightNorm(dim), unsafe=True)

    def old_names(module: Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        keys = [f"{prefix}{name}_{k}" for k in "gv"]
        if all(k in state for k in keys):
            for i, k in enumerate(keys):
                state[f"{prefix}parametrizations.{name}.original{i}"] = state.pop(k)

    module.register_load_state_dict_pre_hook(old_names)
    return module


# --- spectral normalization --------------------------------------------------------------------------


def matrix(weight: Tensor, dim: int) -> Tensor:
    """The weight as a matrix whose rows are the slices along dim."""
    if dim != 0:
        weight = weight.permute(dim, *(d for d in range(weight.ndim) if d != dim))
    return weight.flatten(1)


def direction(n: int, like: Tensor, eps: float) -> Tensor:
    """A random vector of norm 1."""
    return F.normalize(randoms.randn(n, dtype=like.dtype), dim=0, eps=eps)


def usual_dim(module: Module, dim: int | None) -> int:
    """The dimension of the outputs in a weight."""
    if dim is not None:
        return dim
    return 1 if isinstance(module, (ConvTranspose1d, ConvTranspose2d, ConvTranspose3d)) else 0


class _SpectralNorm(Module):
    """A weight divided by its largest singular value, which is found by power iteration."""

    _u: Tensor
    _v: Tensor

    def __init__(self, weight: Tensor, n_power_iterations: int = 1, dim: int = 0, eps: float = 1e-12) -> None:
        super().__init__()
        if not -weight.ndim <= dim < weight.ndim:
            raise DimError(f"spectral_norm: dim {dim} is out of range for a weight of shape {tuple(weight.shape)}")
        if n_power_iterations <= 0:
            raise ArgumentError(f"spectral_norm: n_power_iterations must be > 0, got {n_power_iterations}")
        self.dim, self.eps = dim % weight.ndim, eps
        if weight.ndim > 1:
            self.n_power_iterations = n_power_iterations
            with set_grad(False):
                mat = matrix(weight.detach(), self.dim)
                self.register_buffer("_u", direction(mat.shape[0], mat, eps))
                self.register_buffer("_v", direction(mat.shape[1], mat, eps))
                self._power_method(mat, 15)

    def _power_method(self, mat: Tensor, times: int) -> None:
        with set_grad(False):
            for _ in range(times):
                self._u.copy_(F.normalize(mat @ self._v, dim=0, eps=self.eps))
                self._v.copy_(F.normalize(mat.t() @ self._u, dim=0, eps=self.eps))

    def forward(self, weight: Tensor) -> Tensor:
        if weight.ndim == 1:
            return F.normalize(weight, dim=0, eps=self.eps)
        mat = matrix(weight, self.dim)
        if self.training:
            self._power_method(mat, self.n_power_iterations)
        u, v = self._u.clone(), self._v.clone()
        return weight / (u * (mat @ v)).sum()

    def right_inverse(self, value: Tensor) -> Tensor:
        return value


def spectral_norm(
    module: Module, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int | None = None
) -> Module:
    """Divide a weight by its largest singular value each time it is read."""
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ArgumentError(f"spectral_norm: {type(module).__name__} has no parameter or buffer {name!r}")
    made = _SpectralNorm(weight, n_power_iterations, usual_dim(module, dim), eps)
    return register_parametrization(module, name, made)
