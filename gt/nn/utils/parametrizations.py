"""Weight normalization, spectral normalization and orthogonal weights as parametrizations."""

from __future__ import annotations

from typing import Any

from gt.client.compat.checks import one_of
from gt.client.compat.fallback import torch_op
from gt.client.functions import creation, randoms, shapes
from gt.client.functions import elementwise as ew
from gt.client.functions.linalg.factoring import householder_product, linalg_qr
from gt.client.functions.linalg.norms import norm
from gt.client.functions.linalg.solving import matrix_exp, solve
from gt.client.grad.modes import set_grad
from gt.client.tensor import Tensor
from gt.errors import ArgumentError, DimError, ShapeError
from gt.nn import functional as F
from gt.nn.conv import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from gt.nn.module import Module
from gt.nn.utils.parametrize import register_parametrization

__all__ = ["orthogonal", "spectral_norm", "weight_norm"]


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


# --- orthogonal weights ------------------------------------------------------------------------------

MAPS = ("matrix_exp", "cayley", "householder")


class _Orthogonal(Module):
    """A matrix with orthonormal columns (rows, if it is wide) from any matrix.

    With a `base`, which is orthogonal, the result begins at the base, and what is trained says how that is turned.
    """

    base: Any

    def __init__(self, weight: Tensor, orthogonal_map: str, use_trivialization: bool = True) -> None:
        super().__init__()
        self.shape, self.orthogonal_map, self.based = tuple(weight.shape), orthogonal_map, use_trivialization
        if use_trivialization:
            self.register_buffer("base", None)

    def forward(self, X: Tensor) -> Any:
        wide = X.shape[-2] < X.shape[-1]
        x: Any = X.mT if wide else X
        n, k = x.shape[-2:]
        if self.orthogonal_map == "householder":
            below = x.tril(-1)
            tau = 2.0 / (1.0 + (below * below).sum(-2))
            q = householder_product(below, tau) * x.diagonal(0, -2, -1).int().unsqueeze(-2)
        else:
            x = x.tril()
            if n != k:
                x = shapes.cat([x, x.new_zeros(*x.shape[:-1], n - k)], -1)
            turn = x - x.mH
            if self.orthogonal_map == "matrix_exp":
                q = matrix_exp(turn)
            else:
                one = creation.eye(n, dtype=x.dtype)
                q = solve(one - 0.5 * turn, one + 0.5 * turn)
            q = q[..., :k]
        if self.based:
            q = self.base @ q
        return q.mT if wide else q

    def right_inverse(self, Q: Any) -> Any:
        if tuple(Q.shape) != self.shape:
            raise ShapeError(f"orthogonal: expected a matrix of shape {self.shape}, got {tuple(Q.shape)}")
        wide = Q.shape[-2] < Q.shape[-1]
        q = Q.mT if wide else Q
        n, k = q.shape[-2:]
        if not self.based:
            if self.orthogonal_map != "householder":
                raise NotImplementedError(
                    f"orthogonal: {self.orthogonal_map} without use_trivialization has no inverse; assign nothing to it"
                )
            x, tau = torch_op("geqrf", q)
            d = x.diagonal(0, -2, -1)
            d.copy_(d.sign() * ew.where(tau == 0, -1.0, 1.0))
            return x.mT if wide else x
        if n != k:
            q = shapes.cat([q, randoms.randn(*q.shape[:-1], n - k, dtype=q.dtype)], -1)
        whole, r = linalg_qr(q)
        self.base = whole * r.diagonal(0, -2, -1).sgn().unsqueeze(-2)
        return -creation.eye(*Q.shape[-2:], dtype=Q.dtype).expand(*Q.shape)


def orthogonal(
    module: Module, name: str = "weight", orthogonal_map: str | None = None, *, use_trivialization: bool = True
) -> Module:
    """Keep a weight orthogonal: its columns, or the rows of a wide one, have norm 1 and are at right angles."""
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ArgumentError(f"orthogonal: {type(module).__name__} has no parameter or buffer {name!r}")
    if weight.ndim < 2:
        raise ArgumentError(f"orthogonal: expected a matrix or batches of matrices, got shape {tuple(weight.shape)}")
    if orthogonal_map is None:
        square = weight.shape[-2] == weight.shape[-1] or weight.dtype.is_complex
        orthogonal_map = "matrix_exp" if square else "householder"
    one_of("orthogonal", "orthogonal_map", orthogonal_map, *MAPS)
    if orthogonal_map == "householder" and weight.dtype.is_complex:
        raise ArgumentError("orthogonal: the householder map does not support complex weights")
    made = _Orthogonal(weight, orthogonal_map, use_trivialization)
    return register_parametrization(module, name, made, unsafe=True)
