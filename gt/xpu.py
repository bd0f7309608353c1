"""The names of torch.xpu that code asks before it uses such a device: there is none."""

from __future__ import annotations

from gt.mps import device_count, is_available

__all__ = ["device_count", "is_available"]
