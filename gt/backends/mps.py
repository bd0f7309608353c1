"""torch.backends.mps: no worker computes on an Apple GPU."""

from __future__ import annotations


def is_available() -> bool:
    """Whether there is one: never."""
    return False


def is_built() -> bool:
    """Whether GT can use one: never."""
    return False
