"""The modules of torch.utils that GT has. Use torch.utils.data itself for data loading."""

from __future__ import annotations

from gt.utils import checkpoint, data

__all__ = ["checkpoint", "data"]
