"""torch.utils' names that GT has; data loading is torch's own."""

from __future__ import annotations

from gt.utils import checkpoint, data

__all__ = ["checkpoint", "data"]
