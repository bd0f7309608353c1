"""torch.backends.mps: GT does not support Apple GPUs."""

from __future__ import annotations


def is_available() -> bool:
    """Whether an Apple GPU is available: never."""
    return False


def is_built() -> bool:
    """Whether GT supports Apple GPUs: never."""
    return False
