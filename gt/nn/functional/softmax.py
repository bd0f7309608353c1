"""softmax and related functions with nn.functional's arguments: a missing dim is chosen as torch does."""

from __future__ import annotations

from typing import Any

from gt.client.functions import randoms, reductions
from gt.client.tensor import Tensor
from gt.ops import ops

__all__ = ["gumbel_softmax", "log_softmax", "softmax", "softmin"]


def _dim(dim: int | None, input: Tensor) -> int:
    if dim is not None:
        return dim
    return 0 if getattr(input, "ndim", 0) in (0, 1, 3) else 1


def softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    """exp(input), normalized to sum to 1 along dim."""
    return reductions.softmax(input, _dim(dim, input), dtype)


def log_softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    """log(softmax(input)) along dim, without overflow."""
    return reductions.log_softmax(input, _dim(dim, input), dtype)


def softmin(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    """softmax(-input) along dim."""
    return reductions.softmax(-input, _dim(dim, input), dtype)


def gumbel_softmax(logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1) -> Tensor:
    """A sample of the Gumbel-softmax distribution with temperature tau; `hard`: one-hot, with the soft gradient."""
    noise = -(-randoms.rand(tuple(logits.shape), dtype=logits.dtype).log()).log()
    soft = reductions.softmax((logits + noise) / tau, dim)
    if not hard:
        return soft
    place = soft.detach().argmax(dim, keepdim=True)
    blank = soft.detach() * 0.0
    one = ops.scatter_add(blank, place, blank.gather(dim, place) + 1.0, dim=dim % max(soft.ndim, 1))
    return one - soft.detach() + soft
