"""The diagonal of two dimensions: reading it, which is a view, and writing it."""

from __future__ import annotations

from typing import Any

import numpy as np

from gt.errors import ArgumentError, DimError, ShapeError
from gt.ops import rules
from gt.ops.record import Rng, Sample, fill, op, ops
from gt.ops.sharding import letters
from gt.program import Spec, spec


def _infer(name: str, x: Spec, offset: Any, dim1: Any, dim2: Any) -> Spec:
    rules.tensor(name, x)
    rules.ints(name, "offset", (offset,))
    if abs(offset) >= 1 << 62:
        raise ArgumentError(f"{name}: offset must be an int of less than 64 bits, got {rules.shown(offset)}")
    a, b = rules.dim(name, dim1, x.ndim), rules.dim(name, dim2, x.ndim)
    if a == b:
        raise DimError(f"{name}: dim1 and dim2 are both {a}; a diagonal needs two dimensions")
    rows, columns = x.shape[a], x.shape[b]
    length = max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))
    return spec((*(n for d, n in enumerate(x.shape) if d not in (a, b)), length), x.dtype)


def _infer_scatter(base: Spec, src: Spec, *, offset: Any, dim1: Any, dim2: Any) -> Spec:
    rules.tensor("diagonal_scatter", base, src)
    rules.same_dtype("diagonal_scatter", base, src)
    there = _infer("diagonal_scatter", base, offset, dim1, dim2)
    if there.shape != src.shape:
        raise ShapeError(f"diagonal_scatter: src has shape {src.shape}, the diagonal has {there.shape}")
    return base


def _scatter_array(xp: Any, base: Any, src: Any, *, offset: int, dim1: int, dim2: int) -> Any:
    last = xp.moveaxis(base, (dim1, dim2), (-2, -1))
    if not src.shape[-1]:
        return base + xp.zeros((), base.dtype)
    rows, columns = np.arange(last.shape[-2]), np.arange(last.shape[-1])
    on = rows[:, None] + offset == columns
    place = np.clip(rows - max(0, -offset), 0, src.shape[-1] - 1)  # of each row in the diagonal
    return xp.moveaxis(xp.where(on, src[..., place][..., None], last), (-2, -1), (dim1, dim2))


def _samples(rng: Rng) -> list[Sample]:
    return [
        ((rng.normal(size=(3, 4)),), {"offset": 0, "dim1": 0, "dim2": 1}),
        ((rng.normal(size=(3, 4)),), {"offset": 2, "dim1": 0, "dim2": 1}),
        ((rng.normal(size=(4, 2, 3)),), {"offset": -1, "dim1": 2, "dim2": 0}),
        ((rng.normal(size=(2, 3)),), {"offset": 7, "dim1": 0, "dim2": 1}),
        ((np.zeros((0, 3)),), {"offset": 1, "dim1": 0, "dim2": 1}),
        ((rng.integers(0, 5, size=(3, 3)),), {"offset": 0, "dim1": 1, "dim2": 0}),
    ]


def _scatter_samples(rng: Rng) -> list[Sample]:
    made: list[Sample] = []
    for (x,), attrs in _samples(rng):
        made.append(((x, np.diagonal(x, attrs["offset"], attrs["dim1"], attrs["dim2"])[::-1] * 2), attrs))
    return made


def _zeros(g: Any, x: Any) -> Any:
    return fill(g, 0.0, x.shape, g.dtype)


def _rule(text: str, x: Spec, dim1: int, dim2: int) -> str:
    """A rule of the factors of the tensor, the whole, and of its diagonal."""
    names = letters(x.ndim)
    rest = [a for d, a in enumerate(names) if d not in (dim1, dim2)]
    whole = " ".join(a if a in rest else "!" + a for a in names)
    return text.format(whole=whole, diagonal=" ".join([*rest, "!o"]))


diagonal = op(
    "diagonal",
    "A diagonal of two dimensions, as a new last dimension.",
    infer=lambda x, *, offset, dim1, dim2: _infer("diagonal", x, offset, dim1, dim2),
    factors=lambda x, *, dim1, dim2, **attrs: _rule("{whole} -> {diagonal}", x, dim1, dim2),
    moves=True,
    vjp=(lambda g, y, x, **attrs: ops.diagonal_scatter(_zeros(g, x), g, **attrs),),
    kernels={"array": lambda xp, x, *, offset, dim1, dim2: xp.diagonal(x, offset, dim1, dim2)},
    put=lambda base, new, k, **attrs: ops.diagonal_scatter(base, new, **attrs),
    samples=_samples,
)

diagonal_scatter = op(
    "diagonal_scatter",
    "The tensor with a diagonal of two dimensions replaced.",
    infer=_infer_scatter,
    factors=lambda base, src, *, dim1, dim2, **attrs: _rule("{whole}, {diagonal} -> {whole}", base, dim1, dim2),
    moves=True,
    vjp=(
        lambda g, y, base, src, **attrs: ops.diagonal_scatter(g, _zeros(g, src), **attrs),
        lambda g, y, base, src, **attrs: ops.diagonal(g, **attrs),
    ),
    kernels={"array": _scatter_array},
    samples=_scatter_samples,
)
