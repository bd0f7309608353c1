"""The names of torch.accelerator: the device of the session's worker."""

from __future__ import annotations

from typing import Any

from gt import cuda
from gt.client.compat.devices import device, of_session

__all__ = [
    "current_accelerator", "current_device_index", "current_stream", "device_count", "is_available",
    "set_device_index", "synchronize",
]  # fmt: skip

is_available, device_count, synchronize = cuda.is_available, cuda.device_count, cuda.synchronize
current_device_index, set_device_index = cuda.current_device, cuda.set_device
current_stream = cuda.current_stream


def current_accelerator(check_available: bool = False) -> Any:
    """The device of the session's worker if it is a GPU, else None."""
    found = of_session()
    return None if found.type == "cpu" else device(found.type)
