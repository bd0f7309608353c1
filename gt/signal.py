"""Signals: where named parts of a computation run (`context`, `configure`, `place`); and torch.signal.windows."""

from __future__ import annotations

from gt.client.functions import windows
from gt.client.mesh.signals import configure, context, place

__all__ = ["configure", "context", "place", "windows"]
