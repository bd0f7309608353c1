"""Signals: where named parts of a computation run (`context`, `configure`, `place`). And torch.signal's windows."""

from __future__ import annotations

from gt.client import windows
from gt.client.signals import configure, context, place

__all__ = ["configure", "context", "place", "windows"]
