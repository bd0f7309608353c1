"""The names of torch.mps that code asks before it uses such a device: there is none."""

from __future__ import annotations

__all__ = ["device_count", "is_available"]


def is_available() -> bool:
    """False."""
    return False


def device_count() -> int:
    """0."""
    return 0
