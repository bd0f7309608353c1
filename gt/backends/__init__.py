"""torch.backends' flags. Those for TF32 count, and travel with what is recorded; the others may be set and read, and
change nothing: how a worker computes is its own setting."""

from __future__ import annotations

from gt.backends import cuda, cudnn, mps

__all__ = ["cuda", "cudnn", "mps"]
