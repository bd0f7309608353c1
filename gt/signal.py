"""torch.signal's functions: windows."""

from __future__ import annotations

from gt.client import windows

__all__ = ["windows"]
