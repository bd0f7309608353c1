"""Matrices as products: QR, LU, eigenvectors, singular vectors.

Eigenvectors and singular vectors are determined up to a sign (a phase, if complex), which is the
library's. Their gradients are those of functions that do not depend on it, as in torch.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from gt import dtypes
from gt.errors import ArgumentError, AutogradError, ShapeError
from gt.ops import rules
from gt.ops.families.linalg import adjoint, as_diagonal, cubes, diagonal_of, from_torch, matrices, spread, well
from gt.ops.record import Rng, Sample, Site, conj, each_of, fill, op, ops, unfit
from gt.ops.sharding import leading, matrix_op
from gt.program import Spec, spec


def _cut(x: Any, dim: int, n: int) -> tuple[Any, Any]:
    """The first n along a dimension counted from the right, and the rest."""
    d = len(x.shape) + dim
    if x.shape[d] == n:
        return x, None
    first, rest = ops.split(x, sizes=(n, x.shape[d] - n), dim=d)
    return first, rest


def _first(x: Any, dim: int, n: int) -> Any:
    return _cut(x, dim, n)[0]


def _given(g: Any, like: Any, some: Any) -> Any:
    """A gradient, or zeros where the result was not used."""
    return fill(some, 0.0, like.shape, like.dtype) if g is None else g


# -- QR --------------------------------------------------------------------------------------


def _infer_qr(x: Spec, *, mode: Any) -> tuple[Spec, Spec]:
    matrices("linalg.qr", x)
    rules.choice("linalg.qr", "mode", mode, ("reduced", "complete"))
    m, n = x.shape[-2:]
    k = m if mode == "complete" else min(m, n)
    return spec((*x.shape[:-2], m, k), x.dtype), spec((*x.shape[:-2], k, n), x.dtype)


def _qr_array(xp: Any, x: Any, *, mode: str) -> Any:
    if x.size:
        return tuple(xp.linalg.qr(x, mode=mode))
    m, n = x.shape[-2:]
    k = m if mode == "complete" else min(m, n)
    q = xp.broadcast_to(xp.eye(m, k, dtype=x.dtype), (*x.shape[:-2], m, k))
    return q, xp.zeros((*x.shape[:-2], k, n), x.dtype)


def _qr_dx(g: Any, y: Any, x: Any, *, mode: str) -> Any:
    m, n = x.shape[-2:]
    if mode == "complete" and m > n:
        raise AutogradError(f"linalg.qr: mode='complete' of {x.shape} has no gradient; use mode='reduced'")
    q, r = y
    some = g[0] if g[0] is not None else g[1]
    gq, gr = _given(g[0], q, some), _given(g[1], r, some)
    if m < n:  # x = [a, b], r = [u, v] with v = q^H b
        gr, gv = _cut(gr, -1, m)
        r, v = _cut(r, -1, m)
        gb = ops.matmul(q, gv)
        gq = gq + ops.matmul(q, ops.matmul(v, adjoint(gv)))
        return ops.cat(_square_qr(gq, gr, q, r), gb, dim=x.ndim - 1)
    return _square_qr(gq, gr, q, r)


def _square_qr(gq: Any, gr: Any, q: Any, r: Any) -> Any:
    inner = ops.matmul(r, adjoint(gr)) - ops.matmul(adjoint(gq), q)
    low = ops.tril(inner, diagonal=-1)
    both = low + adjoint(low) + as_diagonal(_real_first(diagonal_of(inner)))
    top = gq + ops.matmul(q, both)
    return ops.linalg_solve_triangular(adjoint(r), top, upper=False, left=False, unitriangular=False)


def _real_first(x: Any) -> Any:
    return (x + conj(x)) * 0.5 if x.dtype.is_complex else x


linalg_qr = matrix_op(
    "linalg_qr",
    "The QR decomposition of matrices.",
    infer=_infer_qr,
    vjp=(_qr_dx,),
    kernels={"array": _qr_array, "torch": partial(from_torch, "qr"), "torch_graph": unfit},
    samples=lambda rng: [
        *each_of(well(rng, 3, 3), well(rng, 4, 2), well(rng, 2, 2, 3), mode="reduced"),
        *each_of(well(rng, 3, 2).astype(np.float32), well(rng, 2, 3), mode="complete"),
        ((np.zeros((2, 0, 3)),), {"mode": "reduced"}),
    ],
    flops=lambda x, **attrs: cubes(x, 8 / 3),
)

# -- eigenvectors ----------------------------------------------------------------------------


def _infer_eigh(x: Spec, *, upper: Any) -> tuple[Spec, Spec]:
    matrices("linalg.eigh", x, square=True)
    rules.flag("linalg.eigh", "upper", upper)
    return spec(x.shape[:-1], x.dtype.to_real()), rules.same(x)


def _eigh_array(xp: Any, x: Any, *, upper: bool) -> Any:
    # Only one triangle is read: jax would take the mean of both.
    both = {} if xp is np else {"symmetrize_input": False}
    return tuple(xp.linalg.eigh(x, UPLO="U" if upper else "L", **both))


def _skew(x: Any) -> Any:
    return x - adjoint(x)


def _with_diagonal(x: Any, values: Any) -> Any:
    n = len(x.shape)
    return ops.diagonal_scatter(x, values, offset=0, dim1=n - 2, dim2=n - 1)


def _gaps(w: Any) -> Any:
    """w_j - w_i, and 1 on the diagonal."""
    apart = spread(w, -2) - spread(w, -1)
    return _with_diagonal(apart, diagonal_of(apart) + 1.0)


def _eigh_dx(g: Any, y: Any, x: Any, *, upper: bool) -> Any:
    gw, gv = g
    w, v = y
    if gv is None:
        return ops.matmul(v * spread(gw, -2), adjoint(v))
    inner = _skew(ops.matmul(adjoint(v), gv)) * 0.5 / _gaps(w)
    values = diagonal_of(inner) * 0.0 if gw is None else gw
    if values.dtype is not inner.dtype:
        values = ops.cast(values, dtype=inner.dtype.name)
    return ops.matmul(v, ops.matmul(_with_diagonal(inner, values), adjoint(v)))


def _eigh_samples(rng: Rng) -> list[Sample]:
    """In float32: see the samples of linalg_cholesky_ex."""
    made = []
    for shape in [(3, 3), (2, 2, 2), (0, 2, 2)]:
        x = rng.normal(size=shape)
        made.append((x + np.swapaxes(x, -1, -2)).astype(np.float32))
    return [((x,), {"upper": upper}) for x in made for upper in (False, True)]


linalg_eigh = matrix_op(
    "linalg_eigh",
    "The eigenvalues, in ascending order, and eigenvectors of symmetric or Hermitian matrices.",
    infer=_infer_eigh,
    vjp=(_eigh_dx,),
    kernels={
        "array": _eigh_array,
        "torch": lambda torch, site, *, upper: from_torch("eigh", torch, site, UPLO="U" if upper else "L"),
        "torch_graph": unfit,
    },
    samples=_eigh_samples,
    flops=lambda x, **attrs: cubes(x, 9),
)


def _infer_eig(x: Spec) -> tuple[Spec, Spec]:
    matrices("linalg.eig", x, square=True)
    kind = x.dtype.to_complex()
    return spec(x.shape[:-1], kind), spec(x.shape, kind)


def _eig_dx(g: Any, y: Any, x: Any) -> Any:
    gw, gv = g
    w, v = y
    if gv is None:
        return ops.linalg_solve_ex(adjoint(v), spread(gw, -1) * adjoint(v))[0]
    vh = adjoint(v)
    inner = ops.matmul(vh, gv)
    inner = inner - ops.matmul(vh, v * spread(_real_first(diagonal_of(inner)), -2))
    inner = inner / conj(_gaps(w))
    values = diagonal_of(inner) * 0.0 if gw is None else gw
    return ops.linalg_solve_ex(vh, ops.matmul(_with_diagonal(inner, values), vh))[0]


linalg_eig = matrix_op(
    "linalg_eig",
    "The eigenvalues and eigenvectors of square matrices.",
    infer=_infer_eig,
    vjp=(_eig_dx,),
    kernels={"array": lambda xp, x: tuple(xp.linalg.eig(x)), "torch": partial(from_torch, "eig"), "torch_graph": unfit},
    samples=lambda rng: each_of(
        np.array([[2.0, 1.0], [0.5, -1.0]]), np.array([[1.0, 2.0], [-3.0, 1.0]]), np.zeros((0, 2, 2))
    ),
    flops=lambda x, **attrs: cubes(x, 25),
)

# -- singular vectors ------------------------------------------------------------------------


def _infer_svd(x: Spec, *, full_matrices: Any) -> tuple[Spec, Spec, Spec]:
    matrices("linalg.svd", x)
    rules.flag("linalg.svd", "full_matrices", full_matrices)
    batch, (m, n) = x.shape[:-2], x.shape[-2:]
    k = min(m, n)
    rows, columns = (m, n) if full_matrices else (k, k)
    return (spec((*batch, m, rows), x.dtype), spec((*batch, k), x.dtype.to_real()), spec((*batch, columns, n), x.dtype))


def _svd_dx(g: Any, y: Any, x: Any, *, full_matrices: bool) -> Any:
    gu, gs, gvh = g
    (m, n), k = x.shape[-2:], min(x.shape[-2:])
    u, s, vh = _first(y[0], -1, k), y[1], _first(y[2], -2, k)
    if gs is not None and gs.dtype is not x.dtype:
        gs = ops.cast(gs, dtype=x.dtype.name)
    if gu is None and gvh is None:
        return ops.matmul(u * spread(gs, -2), vh)
    gu = None if gu is None else _first(gu, -1, k)
    gvh = None if gvh is None else _first(gvh, -2, k)
    near, far = spread(s, -2), spread(s, -1)
    gaps = (near - far) * (near + far)
    gaps = _with_diagonal(gaps, diagonal_of(gaps) + 1.0)
    inner: Any = None
    if gu is not None:
        turn = _skew(ops.matmul(adjoint(u), gu))
        inner = turn / gaps * near
        if x.dtype.is_complex:
            inner = inner + as_diagonal(diagonal_of(turn) / (s * 2.0))
    if gvh is not None:
        right = far * (_skew(ops.matmul(vh, adjoint(gvh))) / gaps)
        inner = right if inner is None else inner + right
    if gs is not None:
        inner = inner + as_diagonal(gs)
    if m > k and gu is not None:
        outside = gu / near
        left = ops.matmul(u, inner) + outside - ops.matmul(u, ops.matmul(adjoint(u), outside))
        return ops.matmul(left, vh)
    if n > k and gvh is not None:
        outside = gvh / far
        right = ops.matmul(inner, vh) + outside - ops.matmul(ops.matmul(outside, adjoint(vh)), vh)
        return ops.matmul(u, right)
    return ops.matmul(u, ops.matmul(inner, vh))


linalg_svd = matrix_op(
    "linalg_svd",
    "The singular value decomposition u @ diag(s) @ vh of matrices, with s in descending order.",
    infer=_infer_svd,
    vjp=(_svd_dx,),
    kernels={
        "array": lambda xp, x, *, full_matrices: tuple(xp.linalg.svd(x, full_matrices=full_matrices)),
        "torch": partial(from_torch, "svd"),
        "torch_graph": unfit,
    },
    samples=lambda rng: [
        ((well(rng, 3, 3) * np.array([1.0, 2.0, 4.0]),), {"full_matrices": False}),
        ((well(rng, 3, 2) * np.array([1.0, 2.0]),), {"full_matrices": False}),
        ((np.array([[[1.0, 2.0, -1.0]], [[0.5, -1.0, 2.0]]]),), {"full_matrices": False}),
        ((well(rng, 3, 2).astype(np.float32),), {"full_matrices": True}),
        ((np.zeros((0, 2, 3)),), {"full_matrices": False}),
    ],
    flops=lambda x, **attrs: cubes(x, 21),
)

# -- LU --------------------------------------------------------------------------------------


def _infer_lu(x: Spec, *, pivot: Any) -> tuple[Spec, Spec, Spec]:
    matrices("linalg.lu_factor", x)
    rules.flag("linalg.lu_factor", "pivot", pivot)
    batch, k = x.shape[:-2], min(x.shape[-2:])
    return rules.same(x), spec((*batch, k), dtypes.int32), spec(batch, dtypes.int32)


def _lu_numpy(np_: Any, x: Any, *, pivot: bool) -> Any:
    m, n = x.shape[-2:]
    lu = x.reshape(math.prod(x.shape[:-2]), m, n).copy()
    k = min(m, n)
    pivots = np_.broadcast_to(np_.arange(1, k + 1, dtype=np_.int32), (lu.shape[0], k)).copy()
    info = np_.zeros(lu.shape[0], np_.int32)
    for b, a in enumerate(lu):
        for i in range(k):
            if pivot:
                p = i + int(np_.argmax(np_.abs(a[i:, i])))
                pivots[b, i] = p + 1
                a[[i, p]] = a[[p, i]]
            if a[i, i] == 0:
                info[b] = info[b] or i + 1
                continue
            a[i + 1 :, i] /= a[i, i]
            a[i + 1 :, i + 1 :] -= np_.outer(a[i + 1 :, i], a[i, i + 1 :])
    batch = x.shape[:-2]
    return lu.reshape(x.shape), pivots.reshape(*batch, k), info.reshape(batch)


def _lu_jax(jax: Any, x: Any, *, pivot: bool) -> Any:
    lu, pivots, _ = jax.lax.linalg.lu(x)
    zero = jax.numpy.diagonal(lu, axis1=-2, axis2=-1) == 0
    first = jax.numpy.argmax(zero, axis=-1) + 1 if zero.shape[-1] else jax.numpy.zeros(x.shape[:-2], "int32")
    info = jax.numpy.where(jax.numpy.any(zero, axis=-1), first, 0)
    return lu, (pivots + 1).astype("int32"), info.astype("int32")


def _lu_torch(torch: Any, site: Site, *, pivot: bool) -> Any:
    if not pivot and site.device == "cpu":
        raise ArgumentError("linalg.lu_factor: torch factors without pivots on a GPU only; use pivot=True")
    return from_torch("lu_factor_ex", torch, site, pivot=pivot)


def _lu_dx(g: Any, y: Any, x: Any, *, pivot: bool) -> Any:
    if g[0] is None:
        return None
    lu, pivots, _ = y
    m, n = x.shape[-2:]
    k = min(m, n)
    low = ops.tril(_first(lu, -1, k), diagonal=-1)
    low = _with_diagonal(low, diagonal_of(low) + 1.0)  # (..., m, k)
    up = ops.triu(_first(lu, -2, k), diagonal=0)  # (..., k, n)
    low1, low2 = _cut(low, -2, k)
    up1, up2 = _cut(up, -1, k)
    gl1, gl2 = _cut(ops.tril(_first(g[0], -1, k), diagonal=-1), -2, k)
    gu1, gu2 = _cut(ops.triu(_first(g[0], -2, k), diagonal=0), -1, k)
    if m < n:  # up2 = low1^-1 b
        gb = ops.linalg_solve_triangular(adjoint(low1), gu2, upper=True, left=True, unitriangular=True)
        gl1 = gl1 - ops.matmul(gb, adjoint(up2))
    elif m > n:  # low2 = b up1^-1
        gb = ops.linalg_solve_triangular(adjoint(up1), gl2, upper=False, left=False, unitriangular=False)
        gu1 = gu1 - ops.matmul(adjoint(low2), gb)
    inner = ops.tril(ops.matmul(adjoint(low1), gl1), diagonal=-1) + ops.triu(ops.matmul(gu1, adjoint(up1)), diagonal=0)
    ga = ops.linalg_solve_triangular(adjoint(low1), inner, upper=True, left=True, unitriangular=True)
    ga = ops.linalg_solve_triangular(adjoint(up1), ga, upper=False, left=False, unitriangular=False)
    if m != n:
        ga = ops.cat(ga, gb, dim=x.ndim - (1 if m < n else 2))
    return ops.matmul(ops.lu_permutation(pivots - 1, m=m, dtype=x.dtype.name), ga)


linalg_lu_factor_ex = matrix_op(
    "linalg_lu_factor_ex",
    "The LU factors of matrices in one matrix, the pivots, and an info that is 0 where the matrix is not singular.",
    infer=_infer_lu,
    vjp=(_lu_dx,),
    kernels={"numpy": _lu_numpy, "jax_lib": _lu_jax, "torch": _lu_torch, "torch_graph": unfit},
    samples=lambda rng: [*[((rng.normal(size=s),), {"pivot": True}) for s in [(3, 3), (2, 2, 3), (4, 2), (0, 2, 2)]]],
    flops=lambda x, **attrs: cubes(x, 2 / 3),
)


def _infer_permutation(pivots: Spec, *, m: Any, dtype: Any) -> Spec:
    rules.index("lu_permutation", pivots)
    n = rules.size("lu_permutation", "m", m)
    if not pivots.ndim or pivots.shape[-1] > n or pivots.dtype is not dtypes.int32:
        raise ShapeError(f"lu_permutation: expected at most {n} int32 pivots for {n} rows, got {pivots!r}")
    return spec((*pivots.shape[:-1], n, n), rules.dtype("lu_permutation", dtype))


def _permutation_numpy(np_: Any, pivots: Any, *, m: int, dtype: str) -> Any:
    flat = pivots.reshape(math.prod(pivots.shape[:-1]), pivots.shape[-1])
    rows = np_.broadcast_to(np_.arange(m), (flat.shape[0], m)).copy()
    for b, exchanges in enumerate(flat):
        for i, p in enumerate(exchanges):
            rows[b, [i, p]] = rows[b, [p, i]]
    # Row i of the permuted matrix is row rows[i] of the matrix, which the transpose puts back.
    made = np_.arange(m)[:, None] == rows[:, None, :]
    return made.reshape(*pivots.shape[:-1], m, m).astype(dtypes.BY_NAME[dtype].numpy)


def _permutation_jax(jax: Any, pivots: Any, *, m: int, dtype: str) -> Any:
    rows = jax.lax.linalg.lu_pivots_to_permutation(pivots, m)
    made = jax.numpy.arange(m)[:, None] == rows[..., None, :]
    return made.astype(dtypes.BY_NAME[dtype].numpy)


def _permutation_torch(torch: Any, site: Site, *, m: int, dtype: str) -> Any:
    kind, k = getattr(torch, dtype), site.specs[0].shape[-1]

    def permutation(pivots: Any) -> Any:
        lu = torch.zeros((*pivots.shape[:-1], m, k), device=pivots.device)
        return torch.lu_unpack(lu, pivots + 1, unpack_data=False)[0].to(kind)

    return permutation


lu_permutation = op(
    "lu_permutation",
    "The permutation matrix of an LU decomposition, given its pivots counted from 0.",
    infer=_infer_permutation,
    factors=leading(1),
    vjp=None,
    indices=lambda pivots, *, m, dtype: {0: (m, None)},
    kernels={
        "numpy": _permutation_numpy,
        "jax_lib": _permutation_jax,
        "torch": _permutation_torch,
        "torch_graph": unfit,
    },
    samples=lambda rng: [
        ((np.array([[1, 2, 2], [2, 1, 2]], np.int32),), {"m": 3, "dtype": "float64"}),
        ((np.array([3, 1], np.int32),), {"m": 4, "dtype": "float32"}),
        ((np.zeros((0, 2), np.int32),), {"m": 2, "dtype": "float32"}),
    ],
)
