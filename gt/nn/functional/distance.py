"""Distances and similarities of vectors."""

from __future__ import annotations

from typing import Any

from gt.client.compat.autocast import autocasts
from gt.client.functions.linalg.norms import norm
from gt.client.functions.pairs import pdist
from gt.client.tensor import Tensor
from gt.dtypes import promote_types
from gt.errors import DTypeError
from gt.nn.functional.loss import at_least
from gt.ops import rules
from gt.ops.record import FLOAT32_ON_CUDA

__all__ = ["cosine_similarity", "pairwise_distance", "pdist"]


def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    """The p-norm of x1 - x2 + eps along the last dimension."""
    return norm(x1 - x2 + eps, p, -1, keepdim)


@autocasts(FLOAT32_ON_CUDA)
def cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """x1 . x2 / (max(|x1|, eps) * max(|x2|, eps)) along dim."""
    kind = promote_types(x1.dtype, x2.dtype)
    if not kind.is_floating_point:
        raise DTypeError(
            f"cosine_similarity: expected a floating-point dtype, got {kind.name}; cast first, as in x.float()"
        )
    x1, x2 = (x.to(kind) for x in (x1, x2))
    if x1.shape != x2.shape:
        shape = rules.broadcast("cosine_similarity", tuple(x1.shape), tuple(x2.shape))
        x1, x2 = (x.expand(*shape) for x in (x1, x2))
    a, b = (x / at_least(norm(x, 2.0, dim, True), eps) for x in (x1, x2))
    return (a * b).sum(dim)
