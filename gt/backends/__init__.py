"""The flags of torch.backends. The TF32 flags have an effect and are recorded with each call. The others can be set and
read, and have no effect: workers have their own settings."""

from __future__ import annotations

from gt.backends import cuda, cudnn, mps

__all__ = ["cuda", "cudnn", "mps"]
