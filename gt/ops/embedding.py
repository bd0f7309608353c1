"""Rows of a table by number, and adding gradients up in those rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from gt.errors import ShapeError
from gt.ops import rules
from gt.ops.record import Site, op, ops
from gt.program import Spec, spec

Rng = np.random.Generator


def _infer_embedding(weight: Spec, index: Spec) -> Spec:
    rules.tensor("embedding", weight)
    rules.index("embedding", index)
    if weight.ndim != 2:
        raise ShapeError(f"embedding: the weight is a matrix, not of shape {weight.shape}")
    return spec((*index.shape, weight.shape[1]), weight.dtype)


def _infer_embedding_dweight(g: Spec, index: Spec, *, n: Any) -> Spec:
    rules.tensor("embedding_dweight", g)
    rules.floating("embedding_dweight", g)
    rules.index("embedding_dweight", index)
    n = rules.size("embedding_dweight", "n", n)
    if not g.shape or g.shape[:-1] != index.shape:
        raise ShapeError(f"embedding_dweight: gradient {g.shape} is not one row per index of {index.shape}")
    return spec((n, g.shape[-1]), g.dtype)


def _embedding_dweight_numpy(np_: Any, g: Any, index: Any, *, n: int) -> Any:
    result = np_.zeros((n, g.shape[-1]), g.dtype)
    np_.add.at(result, index, g)
    return result


def _embedding_dweight_torch(torch: Any, site: Site, *, n: int) -> Any:
    f = torch.ops.aten.embedding_dense_backward.default
    return lambda g, index: f(g, index, n, -1, False)


def _embedding_samples(rng: Rng) -> list[tuple[Any, Any]]:
    return [
        (rng.normal(size=(5, 3)), rng.integers(0, 5, size=(2, 4))),
        (rng.normal(size=(5, 3)), np.array(2)),
        (rng.normal(size=(5, 3)), rng.integers(0, 5, size=4, dtype=np.int32)),
        (rng.normal(size=(5, 3)), np.zeros((0, 2), np.int64)),
    ]


embedding = op(
    "embedding",
    "The rows of a weight at `index`, of any shape.",
    infer=_infer_embedding,
    vjp=(lambda g, y, weight, index: ops.embedding_dweight(g, index, n=weight.shape[0]),),
    kernels={"array": lambda xp, weight, index: weight[index]},
    indices=lambda weight, index: {1: (weight.shape[0], None)},
    samples=lambda rng: [((w, i), {}) for w, i in _embedding_samples(rng)],
)

embedding_dweight = op(
    "embedding_dweight",
    "The gradient of embedding by its weight of n rows.",
    infer=_infer_embedding_dweight,
    vjp=(lambda u, z, g, index, *, n: ops.embedding(u, index),),
    kernels={"numpy": _embedding_dweight_numpy, "torch": _embedding_dweight_torch},
    indices=lambda g, index, *, n: {1: (n, None)},
    samples=lambda rng: [
        ((rng.normal(size=(*i.shape, w.shape[1])), i), {"n": w.shape[0]}) for w, i in _embedding_samples(rng)
    ],
)
