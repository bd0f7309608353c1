"""Solving with matrices: inverse, solution, triangles, Cholesky, determinants, pseudo-inverse, exponential.

The last two dimensions are a matrix, all before them batches. What can fail for the values of a matrix
returns `info` beside its result, 0 where all went well; `linalg_check` turns it into an error.

Half precision is computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from gt import dtypes
from gt.errors import ArgumentError, DTypeError, LinAlgError, ShapeError
from gt.ops import rules
from gt.ops.record import Rng, Sample, Site, conj, fill, ops, unfit
from gt.ops.sharding import matrix_op
from gt.program import Spec, spec

# -- what the ops share ----------------------------------------------------------------------


def matrices(name: str, x: Spec, square: bool = False) -> Spec:
    """A batch of matrices of floats; returns it."""
    rules.tensor(name, x)
    if not x.dtype.is_differentiable:
        raise DTypeError(f"{name}: expected a floating-point or complex dtype, got {x.dtype.name}; use x.float()")
    if x.ndim < 2:
        raise ShapeError(f"{name}: expected matrices, got shape {x.shape}")
    if square and x.shape[-1] != x.shape[-2]:
        raise ShapeError(f"{name}: expected square matrices, got shape {x.shape}")
    return x


def cubes(x: Spec, each: float) -> int:
    """The work of an algorithm that takes each * m * n * min(m, n) operations for a matrix."""
    return round(each * x.size * min(x.shape[-2:]))


def in_float32(torch: Any, site: Site, f: Callable[..., Any]) -> Callable[..., Any]:
    """A torch function that knows no half precision, for operands that may have it."""
    if not any(s.dtype in (dtypes.float16, dtypes.bfloat16) for s in site.specs):
        return f
    kinds = [getattr(torch, s.dtype.name) for s in site.results]

    def wide(*args: Any) -> Any:
        made = f(*[a.float() if hasattr(a, "dtype") and a.dtype.is_floating_point else a for a in args])
        if len(kinds) == 1:
            return made.to(kinds[0])
        return tuple(m.to(k) for m, k in zip(made, kinds, strict=True))

    return wide


def from_torch(name: str, torch: Any, site: Site, **attrs: Any) -> Callable[..., Any]:
    """torch.linalg's function of that name, whose arguments have the names of the attributes."""
    f = getattr(torch.linalg, name)
    several = len(site.results) > 1
    return in_float32(torch, site, (lambda *args: tuple(f(*args, **attrs))) if several else partial(f, **attrs))


def turned(x: Any) -> Any:
    """The last two dimensions exchanged."""
    n = len(x.shape)
    return ops.permute(x, dims=(*range(n - 2), n - 1, n - 2))


def adjoint(x: Any) -> Any:
    return conj(turned(x))


def diagonal_of(x: Any) -> Any:
    """The diagonal of the last two dimensions."""
    n = len(x.shape)
    return ops.diagonal(x, offset=0, dim1=n - 2, dim2=n - 1)


def as_diagonal(x: Any) -> Any:
    """Matrices of zeros with x on their diagonals."""
    n = len(x.shape)
    zeros = fill(x, 0.0, (*x.shape, x.shape[-1]), x.dtype)
    return ops.diagonal_scatter(zeros, x, offset=0, dim1=n - 1, dim2=n)


def identity(like: Any, n: int) -> Any:
    """The identity matrix in another's type."""
    return as_diagonal(fill(like, 1.0, (n,), like.dtype))


def spread(x: Any, *dims: int) -> Any:
    """x with dimensions of size one put in, counted from the right of the result."""
    shape = list(x.shape)
    for d in sorted(dims, reverse=True):
        shape.insert(len(shape) + d + 1, 1)
    return ops.reshape(x, shape=tuple(shape))


def well(rng: Rng, *shape: int) -> Any:
    """Matrices far from singular."""
    x = rng.normal(size=shape) * 0.4
    return x + 2 * np.eye(shape[-2], shape[-1])


# -- failures --------------------------------------------------------------------------------


def _infer_check(x: Spec, info: Spec, *, what: Any) -> Spec:
    rules.tensor("linalg_check", x, info)
    rules.index("linalg_check", info)
    if not isinstance(what, str):
        raise ArgumentError("linalg_check: what must be a string")
    return rules.same(x)


def _first_bad(info: Any, what: str) -> None:
    bad = np.flatnonzero(np.asarray(info).reshape(-1))
    if bad.size:
        where = f" (number {bad[0]} of the batch)" if np.ndim(info) else ""
        raise LinAlgError(f"{what[:200]}{where}")


def _check_numpy(np_: Any, x: Any, info: Any, *, what: str) -> Any:
    _first_bad(info, what)
    return x


def _check_torch(torch: Any, site: Site, *, what: str) -> Any:
    def check(x: Any, info: Any) -> Any:
        _first_bad(info.cpu().numpy(), what)
        return x

    return check


linalg_check = matrix_op(
    "linalg_check",
    "The tensor itself; fails with an error where info is not 0.",
    infer=_infer_check,
    vjp=(lambda g, y, x, info, *, what: g,),
    # A compiled program cannot raise: there the result holds nan.
    kernels={
        "numpy": _check_numpy,
        "jax": lambda xp, x, info, *, what: x + 0,
        "torch": _check_torch,
        "torch_graph": unfit,
    },
    aliases=True,
    samples=lambda rng: [
        ((rng.normal(size=(2, 3)), np.zeros(2, np.int32)), {"what": "it failed"}),
        ((np.zeros((0, 3)), np.zeros(0, np.int32)), {"what": "it failed"}),
    ],
)


def _each(np_: Any, f: Callable[..., Any], batch: tuple[int, ...], *stacks: Any) -> tuple[Any, Any]:
    """One matrix after another: what f gives, nan where it fails; and where it did."""
    made, info = [], np_.zeros(math.prod(batch), np_.int32)
    for i, matrices in enumerate(zip(*(s.reshape(-1, *s.shape[-2:]) for s in stacks), strict=True)):
        try:
            made.append(f(*matrices))
        except np_.linalg.LinAlgError:
            made.append(np_.full(matrices[-1].shape, np_.nan, matrices[-1].dtype))
            info[i] = 1
    return np_.stack(made).reshape(*batch, *made[0].shape), info.reshape(batch)


def _nan_info(xp: Any, y: Any) -> Any:
    """jax fails silently: what is not finite did."""
    return xp.any(~xp.isfinite(y), axis=(-2, -1)).astype("int32")


# -- inverse and solution --------------------------------------------------------------------


def _inv_numpy(np_: Any, x: Any) -> Any:
    try:
        return np_.linalg.inv(x), np_.zeros(x.shape[:-2], np_.int32)
    except np_.linalg.LinAlgError:
        return _each(np_, np_.linalg.inv, x.shape[:-2], x)


def _inv_jax(xp: Any, x: Any) -> Any:
    y = xp.linalg.inv(x)
    return y, _nan_info(xp, y)


def _plain(rng: Rng) -> list[Sample]:
    shapes = [(3, 3), (2, 2, 2), (0, 2, 2), (0, 0), (1, 1)]
    return [*[((well(rng, *s),), {}) for s in shapes], ((well(rng, 2, 2) + 1j * well(rng, 2, 2),), {})]


linalg_inv_ex = matrix_op(
    "linalg_inv_ex",
    "The inverse of matrices, and an info that is 0 where it exists.",
    infer=lambda x: (rules.same(matrices("linalg.inv", x, square=True)), spec(x.shape[:-2], dtypes.int32)),
    vjp=(lambda g, y, x: None if g[0] is None else -ops.matmul(adjoint(y[0]), ops.matmul(g[0], adjoint(y[0]))),),
    kernels={"numpy": _inv_numpy, "jax": _inv_jax, "torch": partial(from_torch, "inv_ex"), "torch_graph": unfit},
    samples=_plain,
    flops=lambda x: cubes(x, 2),
)


def _infer_solve(a: Spec, b: Spec) -> tuple[Spec, Spec]:
    matrices("linalg.solve", a, square=True)
    matrices("linalg.solve", b)
    rules.same_dtype("linalg.solve", a, b)
    if a.shape[-1] != b.shape[-2]:
        raise ShapeError(f"linalg.solve: shapes {a.shape} and {b.shape}: sizes {a.shape[-1]} and {b.shape[-2]} differ")
    batch = rules.broadcast("linalg.solve", a.shape[:-2], b.shape[:-2])
    return spec((*batch, *b.shape[-2:]), a.dtype), spec(a.shape[:-2], dtypes.int32)


def _solve_numpy(np_: Any, a: Any, b: Any) -> Any:
    batch = np_.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    full = np_.broadcast_to(a, (*batch, *a.shape[-2:])), np_.broadcast_to(b, (*batch, *b.shape[-2:]))
    try:
        return np_.linalg.solve(*full), np_.zeros(a.shape[:-2], np_.int32)
    except np_.linalg.LinAlgError:
        _, info = _each(np_, np_.linalg.inv, a.shape[:-2], a)
        return _each(np_, np_.linalg.solve, batch, *full)[0], info


def _solve_jax(xp: Any, a: Any, b: Any) -> Any:
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    full = xp.broadcast_to(a, (*batch, *a.shape[-2:])), xp.broadcast_to(b, (*batch, *b.shape[-2:]))
    return xp.linalg.solve(*full), _nan_info(xp, xp.linalg.inv(a))


def _solve_torch(torch: Any, site: Site) -> Any:
    f = torch.linalg.solve_ex
    if site.specs[1].shape == site.specs[0].shape[:-1]:  # torch would take this for vectors
        return in_float32(torch, site, lambda a, b: tuple(f(a, b.unsqueeze(0))))
    return in_float32(torch, site, lambda a, b: tuple(f(a, b)))


def _solve_db(g: Any, a: Any) -> Any:
    return ops.linalg_solve_ex(adjoint(a), g)[0]


linalg_solve_ex = matrix_op(
    "linalg_solve_ex",
    "The solution x of a @ x = b, and an info that is 0 where it exists.",
    infer=_infer_solve,
    vjp=(
        lambda g, y, a, b: None if g[0] is None else -ops.matmul(_solve_db(g[0], a), adjoint(y[0])),
        lambda g, y, a, b: None if g[0] is None else _solve_db(g[0], a),
    ),
    kernels={"numpy": _solve_numpy, "jax": _solve_jax, "torch": _solve_torch, "torch_graph": unfit},
    samples=lambda rng: [
        ((well(rng, 3, 3), rng.normal(size=(3, 2))), {}),
        ((well(rng, 2, 1, 2, 2), rng.normal(size=(3, 2, 2))), {}),
        ((well(rng, 3, 3), rng.normal(size=(2, 3, 1))), {}),
        ((well(rng, 2, 2, 2), rng.normal(size=(2, 2))), {}),
        ((well(rng, 0, 2, 2), np.zeros((0, 2, 3))), {}),
        ((well(rng, 2, 2) + 1j * well(rng, 2, 2), rng.normal(size=(2, 2)) + 0j), {}),
    ],
    flops=lambda a, b: cubes(a, 2 / 3) + 2 * a.shape[-1] * b.size,
)


def _infer_triangular(a: Spec, b: Spec, *, upper: Any, left: Any, unitriangular: Any) -> Spec:
    name = "linalg.solve_triangular"
    matrices(name, a, square=True)
    matrices(name, b)
    rules.same_dtype(name, a, b)
    for what, value in (("upper", upper), ("left", left), ("unitriangular", unitriangular)):
        rules.flag(name, what, value)
    if a.shape[-1] != b.shape[-2 if left else -1]:
        raise ShapeError(f"{name}: shapes {a.shape} and {b.shape} do not fit with left={left}")
    batch = rules.broadcast(name, a.shape[:-2], b.shape[:-2])
    return spec((*batch, *b.shape[-2:]), a.dtype)


def _triangle_array(xp: Any, a: Any, b: Any, *, upper: bool, left: bool, unitriangular: bool) -> Any:
    n = a.shape[-1]
    below = np.arange(n) - np.arange(n)[:, None]
    strict = below > 0 if upper else below < 0
    eye = below == 0
    part = xp.where(strict, a, xp.where(eye, xp.ones((), a.dtype) if unitriangular else a, xp.zeros((), a.dtype)))
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    part, b = xp.broadcast_to(part, (*batch, n, n)), xp.broadcast_to(b, (*batch, *b.shape[-2:]))
    if left:
        return xp.linalg.solve(part, b)
    return xp.swapaxes(xp.linalg.solve(xp.swapaxes(part, -1, -2), xp.swapaxes(b, -1, -2)), -1, -2)


def _triangle_db(g: Any, a: Any, upper: bool, left: bool, unitriangular: bool) -> Any:
    return ops.linalg_solve_triangular(adjoint(a), g, upper=not upper, left=left, unitriangular=unitriangular)


def _triangle_da(g: Any, y: Any, a: Any, b: Any, *, upper: bool, left: bool, unitriangular: bool) -> Any:
    db = _triangle_db(g, a, upper, left, unitriangular)
    da = -(ops.matmul(db, adjoint(y)) if left else ops.matmul(adjoint(y), db))
    edge = 1 if unitriangular else 0
    return ops.triu(da, diagonal=edge) if upper else ops.tril(da, diagonal=-edge)


def _triangle_samples(rng: Rng) -> list[Sample]:
    flags = [(u, left, unit) for u in (True, False) for left in (True, False) for unit in (True, False)]
    made: list[Sample] = [
        ((well(rng, 3, 3), rng.normal(size=(3, 3))), {"upper": u, "left": left, "unitriangular": unit})
        for u, left, unit in flags
    ]
    plain = {"upper": True, "left": True, "unitriangular": False}
    return [
        *made,
        ((well(rng, 2, 1, 2, 2), rng.normal(size=(3, 2, 1))), plain),
        ((well(rng, 0, 2, 2), np.zeros((0, 2, 3))), plain),
    ]


linalg_solve_triangular = matrix_op(
    "linalg_solve_triangular",
    "The solution x of a @ x = b, or of x @ a = b, for a triangular matrix a.",
    infer=_infer_triangular,
    vjp=(_triangle_da, lambda g, y, a, b, **attrs: _triangle_db(g, a, **attrs)),
    kernels={"array": _triangle_array, "torch": partial(from_torch, "solve_triangular")},
    samples=_triangle_samples,
    flops=lambda a, b, **attrs: a.shape[-1] * b.size,
)

# -- Cholesky --------------------------------------------------------------------------------


def _infer_cholesky(x: Spec, *, upper: Any) -> tuple[Spec, Spec]:
    matrices("linalg.cholesky", x, square=True)
    rules.flag("linalg.cholesky", "upper", upper)
    return rules.same(x), spec(x.shape[:-2], dtypes.int32)


def _cholesky_numpy(np_: Any, x: Any, *, upper: bool) -> Any:
    lower = np_.conj(np_.swapaxes(np_.triu(x), -1, -2)) if upper else x  # numpy reads the lower triangle
    try:
        y, info = np_.linalg.cholesky(lower), np_.zeros(x.shape[:-2], np_.int32)
    except np_.linalg.LinAlgError:
        y, info = _each(np_, np_.linalg.cholesky, x.shape[:-2], lower)
    return np_.conj(np_.swapaxes(y, -1, -2)) if upper else y, info


def _cholesky_jax(xp: Any, x: Any, *, upper: bool) -> Any:
    low = xp.conj(xp.swapaxes(xp.triu(x), -1, -2)) if upper else xp.tril(x)
    diagonal = xp.real(x) * xp.eye(x.shape[-1], dtype=xp.real(x).dtype)
    whole = low + xp.conj(xp.swapaxes(low, -1, -2)) - diagonal.astype(x.dtype)
    y = xp.linalg.cholesky(whole)
    return xp.conj(xp.swapaxes(y, -1, -2)) if upper else y, _nan_info(xp, y)


def _cholesky_da(g: Any, y: Any, x: Any, *, upper: bool) -> Any:
    if g[0] is None:
        return None
    low, dl = (adjoint(y[0]), adjoint(g[0])) if upper else (y[0], g[0])
    s = ops.tril(ops.matmul(adjoint(low), dl), diagonal=0)
    s = (s + adjoint(ops.tril(s, diagonal=-1))) * 0.5
    s = ops.linalg_solve_triangular(adjoint(low), s, upper=True, left=True, unitriangular=False)
    return ops.linalg_solve_triangular(low, s, upper=False, left=False, unitriangular=False)


def _cholesky_samples(rng: Rng) -> list[Sample]:
    """In float32: the gradient is that of all symmetric matrices, which no difference in one element shows."""
    made = []
    for shape in [(3, 3), (2, 2, 2), (0, 0)]:
        x = well(rng, *shape)
        made.append((x @ np.swapaxes(x, -1, -2)).astype(np.float32))
    return [((x,), {"upper": upper}) for x in made for upper in (False, True)]


linalg_cholesky_ex = matrix_op(
    "linalg_cholesky_ex",
    "The Cholesky factor of matrices, and an info that is 0 where it exists.",
    infer=_infer_cholesky,
    vjp=(_cholesky_da,),
    kernels={
        "numpy": _cholesky_numpy,
        "jax": _cholesky_jax,
        "torch": partial(from_torch, "cholesky_ex"),
        "torch_graph": unfit,
    },
    samples=_cholesky_samples,
    flops=lambda x, **attrs: cubes(x, 1 / 3),
)


# -- solution by a Cholesky factor -----------------------------------------------------------


def _infer_cholesky_solve(b: Spec, low: Spec, *, upper: Any) -> Spec:
    matrices("cholesky_solve", b)
    matrices("cholesky_solve", low, square=True)
    rules.same_dtype("cholesky_solve", b, low)
    rules.flag("cholesky_solve", "upper", upper)
    if low.shape[-1] != b.shape[-2]:
        raise ShapeError(f"cholesky_solve: {b.shape} and {low.shape}: sizes {b.shape[-2]} and {low.shape[-1]} differ")
    batch = rules.broadcast("cholesky_solve", b.shape[:-2], low.shape[:-2])
    return spec((*batch, *b.shape[-2:]), b.dtype)


def _cholesky_solve(b: Any, low: Any, *, upper: bool) -> Any:
    low = adjoint(low) if upper else low
    half = ops.linalg_solve_triangular(low, b, upper=False, left=True, unitriangular=False)
    return ops.linalg_solve_triangular(adjoint(low), half, upper=True, left=True, unitriangular=False)


def _cholesky_solve_dlow(g: Any, y: Any, b: Any, low: Any, *, upper: bool) -> Any:
    """As torch has it: for both triangles, though only one is read."""
    both = ops.matmul(ops.cholesky_solve(g, low, upper=upper), adjoint(y))
    both = both + adjoint(both)
    return -(ops.matmul(low, both) if upper else ops.matmul(both, low))


cholesky_solve = matrix_op(
    "cholesky_solve",
    "The solution x of a @ x = b, given the Cholesky factor of a.",
    infer=_infer_cholesky_solve,
    vjp=(lambda g, y, b, low, *, upper: ops.cholesky_solve(g, low, upper=upper), _cholesky_solve_dlow),
    compose=_cholesky_solve,
    kernels={
        "torch": lambda torch, site, *, upper: in_float32(
            torch, site, lambda b, low: torch.cholesky_solve(b, low, upper=upper)
        ),
        "torch_graph": unfit,
    },
    samples=lambda rng: [
        ((rng.normal(size=(3, 2)).astype(np.float32), well(rng, 3, 3).astype(np.float32)), {"upper": False}),
        ((rng.normal(size=(2, 2, 1)).astype(np.float32), well(rng, 2, 2).astype(np.float32)), {"upper": True}),
        ((np.zeros((0, 2, 1), np.float32), well(rng, 2, 2).astype(np.float32)), {"upper": True}),
    ],
)
