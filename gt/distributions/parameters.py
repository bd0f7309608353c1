"""Functions of parameters, for distributions that users write: torch.distributions.utils."""

from __future__ import annotations

import functools
import math
from typing import Any

from gt.client.functions.casts import finfo
from gt.client.functions.creation import zeros
from gt.distributions.distribution import tensors

__all__ = [
    "broadcast_all", "clamp_probs", "lazy_property", "logits_to_probs", "probs_to_logits", "tril_matrix_to_vec",
    "vec_to_tril_matrix",
]  # fmt: skip

broadcast_all = tensors
lazy_property = functools.cached_property


def clamp_probs(probs: Any) -> Any:
    """Probabilities that are neither 0 nor 1: then their logits are finite."""
    least = finfo(probs.dtype).eps
    return probs.clamp(least, 1 - least)


def logits_to_probs(logits: Any, is_binary: bool = False) -> Any:
    """Probabilities of logits: of yes or no, or of the categories along the last dimension."""
    return logits.sigmoid() if is_binary else logits.softmax(-1)


def probs_to_logits(probs: Any, is_binary: bool = False) -> Any:
    """Logits of probabilities."""
    safe = clamp_probs(probs)
    return safe.log() - (-safe).log1p() if is_binary else safe.log()


def _places(n: int, diag: int) -> tuple[list[int], list[int]]:
    found = [(i, j) for i in range(n) for j in range(min(i + diag + 1, n))]
    return [i for i, _ in found], [j for _, j in found]


def vec_to_tril_matrix(vec: Any, diag: int = 0) -> Any:
    """Vectors as the lower triangles of matrices, row by row, up to a diagonal."""
    n = round((-(1 + 2 * diag) + math.sqrt((1 + 2 * diag) ** 2 + 8 * vec.shape[-1] + 4 * abs(diag) * (diag + 1))) / 2)
    rows, columns = _places(n, diag)
    if len(rows) != vec.shape[-1]:
        raise ValueError(f"vec_to_tril_matrix: {vec.shape[-1]} elements fill no lower triangle with diag={diag}")
    made = zeros(*vec.shape[:-1], n, n, dtype=vec.dtype)
    made[(..., rows, columns)] = vec
    return made


def tril_matrix_to_vec(mat: Any, diag: int = 0) -> Any:
    """The lower triangles of matrices as vectors, row by row, up to a diagonal."""
    n = mat.shape[-1]
    if not -n <= diag < n:
        raise ValueError(f"tril_matrix_to_vec: diag must be from {-n} to {n - 1}, got {diag}")
    return mat[(..., *_places(n, diag))]
