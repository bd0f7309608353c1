"""Functions of a whole matrix: determinant, its logarithm, pseudo-inverse, exponential."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from gt.errors import ArgumentError
from gt.ops import rules
from gt.ops.families.linalg import adjoint, as_diagonal, cubes, from_torch, in_float32, matrices, spread, well
from gt.ops.record import Rng, Sample, Site, conj, ops, unfit
from gt.ops.sharding import matrix_op
from gt.program import Spec, spec


def _samples(rng: Rng) -> list[Sample]:
    shapes = [(3, 3), (2, 2, 2), (0, 2, 2), (1, 1)]
    return [*[((well(rng, *s),), {}) for s in shapes], ((well(rng, 2, 2) + 1j * well(rng, 2, 2),), {})]


# -- determinants ----------------------------------------------------------------------------


linalg_det = matrix_op(
    "linalg_det",
    "The determinant of matrices.",
    infer=lambda x: spec(matrices("linalg.det", x, square=True).shape[:-2], x.dtype),
    vjp=(lambda g, y, x: ops.linalg_cofactor(x) * spread(g, -1, -2),),
    kernels={"array": lambda xp, x: xp.linalg.det(x), "torch": partial(from_torch, "det"), "torch_graph": unfit},
    samples=_samples,
    flops=lambda x: cubes(x, 2 / 3),
)


def _cofactor(xp: Any, x: Any) -> Any:
    """By singular values: also where the matrix has no inverse."""
    n = x.shape[-1]
    if not x.size:
        return x + 0
    u, s, vh = xp.linalg.svd(x)
    others = xp.where(np.eye(n, dtype=bool), xp.ones((), s.dtype), s[..., None, :])  # (..., n, n)
    scale = xp.prod(others, axis=-1).astype(x.dtype)
    sign = xp.conj(xp.linalg.det(u) * xp.linalg.det(vh))
    return sign[..., None, None] * xp.matmul(u * scale[..., None, :], vh)


def _cofactor_torch(torch: Any, site: Site) -> Any:
    n = site.specs[0].shape[-1]

    def cofactor(x: Any) -> Any:
        if not x.numel():
            return x.clone()
        u, s, vh = torch.linalg.svd(x)
        others = torch.where(torch.eye(n, dtype=torch.bool, device=x.device), 1.0, s.unsqueeze(-2))
        scale = others.to(s.dtype).prod(-1).to(x.dtype)
        sign = (torch.linalg.det(u) * torch.linalg.det(vh)).conj().resolve_conj()
        return sign[..., None, None] * ((u * scale.unsqueeze(-2)) @ vh)

    return in_float32(torch, site, cofactor)


def _cofactor_dx(u: Any, z: Any, x: Any) -> Any:
    """Of det(x) * inverse(x)^H, which it is where there is an inverse."""
    w = ops.linalg_inv_ex(x)[0]  # z: conj(det) * w^H
    along = ops.sum(conj(z) * u, dims=(u.ndim - 2, u.ndim - 1), keepdim=True)
    return conj(along) * adjoint(w) - ops.matmul(adjoint(w), ops.matmul(adjoint(u), z))


linalg_cofactor = matrix_op(
    "linalg_cofactor",
    "The conjugated gradient of the determinant of matrices: the cofactor matrix.",
    infer=lambda x: rules.same(matrices("linalg_cofactor", x, square=True)),
    vjp=(_cofactor_dx,),
    kernels={"array": _cofactor, "torch": _cofactor_torch, "torch_graph": unfit},
    samples=lambda rng: [*_samples(rng), ((np.ones((2, 2), np.float32),), {}), ((np.diag([1.0, 2.0, 0.0]),), {})][:6],
    flops=lambda x: cubes(x, 23),
)


def _infer_slogdet(x: Spec) -> tuple[Spec, Spec]:
    return spec(matrices("linalg.slogdet", x, square=True).shape[:-2], x.dtype), spec(x.shape[:-2], x.dtype.to_real())


def _slogdet_dx(g: Any, y: Any, x: Any) -> Any:
    sign, log = g
    if x.dtype.is_complex:
        zero = ops.real(y[0]) * 0.0
        turn = zero if sign is None else -ops.imag(conj(sign) * y[0])
        scale = ops.complex(zero if log is None else log, turn)
    elif log is None:
        return None
    else:
        scale = log
    scales = as_diagonal(ops.expand(spread(scale, -1), shape=x.shape[:-1]))
    return ops.linalg_solve_ex(adjoint(x), scales)[0]


linalg_slogdet = matrix_op(
    "linalg_slogdet",
    "The sign of the determinant of matrices, and the logarithm of its absolute value.",
    infer=_infer_slogdet,
    vjp=(_slogdet_dx,),
    kernels={
        "array": lambda xp, x: tuple(xp.linalg.slogdet(x)),
        "torch": partial(from_torch, "slogdet"),
        "torch_graph": unfit,
    },
    samples=_samples,
    flops=lambda x: cubes(x, 2 / 3),
)

# -- pseudo-inverse --------------------------------------------------------------------------


def _infer_pinv(x: Spec, atol: Spec, rtol: Spec, *, hermitian: Any) -> Spec:
    matrices("linalg.pinv", x, square=bool(hermitian))
    rules.flag("linalg.pinv", "hermitian", hermitian)
    for name, t in (("atol", atol), ("rtol", rtol)):
        if t.dtype.is_complex:
            raise ArgumentError(f"linalg.pinv: {name} must be a real number, or a tensor of real numbers")
        if not t.weak:
            rules.expands("linalg.pinv", name, t.shape, x.shape[:-2])
    return spec((*x.shape[:-2], x.shape[-1], x.shape[-2]), x.dtype)


def _pinv_array(xp: Any, x: Any, atol: Any, rtol: Any, *, hermitian: bool) -> Any:
    if hermitian:  # only the lower triangle is read, as by torch
        x = xp.tril(x) + xp.conj(xp.swapaxes(xp.tril(x, -1), -1, -2))
    if not x.size:
        return xp.zeros((*x.shape[:-2], x.shape[-1], x.shape[-2]), x.dtype)
    u, s, vh = xp.linalg.svd(x, full_matrices=False)
    least = xp.maximum(xp.asarray(atol), xp.asarray(rtol) * s[..., 0])[..., None]
    inverse = xp.where(s > least, 1 / xp.where(s > least, s, 1), 0).astype(x.dtype)
    return xp.matmul(xp.conj(xp.swapaxes(vh, -1, -2)) * inverse[..., None, :], xp.conj(xp.swapaxes(u, -1, -2)))


def _pinv_torch(torch: Any, site: Site, *, hermitian: bool) -> Any:
    kind = getattr(torch, site.specs[0].dtype.to_real().name)

    def pinv(x: Any, atol: Any, rtol: Any) -> Any:
        atol, rtol = (torch.as_tensor(t, device=x.device).detach().to(kind) for t in (atol, rtol))
        return torch.linalg.pinv(x, atol=atol, rtol=rtol, hermitian=hermitian).resolve_conj()

    return in_float32(torch, site, pinv)


def _pinv_dx(g: Any, y: Any, x: Any, atol: Any, rtol: Any, *, hermitian: bool) -> Any:
    yh, gh = adjoint(y), adjoint(g)
    left = gh - ops.matmul(x, ops.matmul(y, gh))  # (I - x y) g^H
    right = gh - ops.matmul(ops.matmul(gh, y), x)  # g^H (I - y x)
    inside = ops.matmul(yh, ops.matmul(g, yh))
    return ops.matmul(ops.matmul(left, y), yh) + ops.matmul(yh, ops.matmul(y, right)) - inside


def _pinv_samples(rng: Rng) -> list[Sample]:
    plain = {"hermitian": False}
    return [
        *[((rng.normal(size=s), 0.0, 1e-5), plain) for s in [(3, 2), (2, 3), (2, 3, 3), (0, 2, 3)]],
        ((rng.normal(size=(2, 3, 2)), np.zeros(2, np.float32), np.full(2, 1e-5, np.float32)), plain),
        ((np.array([[1.0, 2.0], [2.0, 1.0]], np.float32), 0.0, 1e-5), {"hermitian": True}),
        ((np.array([[1.0, 2.0], [2.0, 4.0]], np.float32), 0.0, 1e-5), plain),
    ]


linalg_pinv = matrix_op(
    "linalg_pinv",
    "The pseudo-inverse of matrices; singular values <= max(atol, rtol * the largest) count as zero.",
    infer=_infer_pinv,
    vjp=(_pinv_dx,),
    kernels={"array": _pinv_array, "torch": _pinv_torch, "torch_graph": unfit},
    samples=_pinv_samples,
    flops=lambda x, *rest, **attrs: cubes(x, 23),
)

# -- exponential -----------------------------------------------------------------------------


def _exp_numpy(np_: Any, x: Any) -> Any:
    """The Taylor series of x / 2**k, squared k times."""
    if not x.size:
        return x.copy()
    norm = float(np_.max(np_.sum(np_.abs(x), axis=-2)))
    squarings = max(0, int(np_.ceil(np_.log2(norm))) + 2) if np_.isfinite(norm) and norm > 0 else 0
    small = x.astype(np_.complex128 if x.dtype.kind == "c" else np_.float64) / 2.0**squarings
    eye = np_.eye(x.shape[-1], dtype=small.dtype)
    total = np_.broadcast_to(eye, small.shape)
    for k in range(18, 0, -1):
        total = eye + (small @ total) / k
    for _ in range(squarings):
        total = total @ total
    return total.astype(x.dtype)


def _exp_jax(jax: Any, x: Any) -> Any:
    if not x.size:
        return x
    f = jax.scipy.linalg.expm
    flat = x.reshape(-1, *x.shape[-2:])
    return jax.vmap(f)(flat).reshape(x.shape)


def _exp_dx(g: Any, y: Any, x: Any) -> Any:
    """The exponential of [[a, g], [0, a]] has the derivative along g in its corner."""
    n = x.shape[-1]
    if not n:
        return g
    a = adjoint(x)
    zeros = a * 0.0
    block = ops.cat(ops.cat(a, g, dim=x.ndim - 1), ops.cat(zeros, a, dim=x.ndim - 1), dim=x.ndim - 2)
    wide = ops.split(ops.linalg_matrix_exp(block), sizes=(n, n), dim=x.ndim - 2)[0]
    return ops.split(wide, sizes=(n, n), dim=x.ndim - 1)[1]


linalg_matrix_exp = matrix_op(
    "linalg_matrix_exp",
    "The matrix exponential.",
    infer=lambda x: rules.same(matrices("linalg.matrix_exp", x, square=True)),
    vjp=(_exp_dx,),
    kernels={
        "numpy": _exp_numpy,
        "jax_lib": _exp_jax,
        "torch": partial(from_torch, "matrix_exp"),
        "torch_graph": unfit,
    },
    samples=_samples,
    flops=lambda x: cubes(x, 30),
)
