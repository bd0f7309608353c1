"""The names of torch.cpu that code for any device uses."""

from __future__ import annotations

from typing import Any

__all__ = ["current_device", "device_count", "is_available", "synchronize"]


def is_available() -> bool:
    """True."""
    return True


def device_count() -> int:
    """1."""
    return 1


def current_device() -> str:
    """The name of the device."""
    return "cpu"


def synchronize(device: Any = None) -> None:
    """Wait for all that was recorded."""
    from gt import cuda

    cuda.synchronize()
