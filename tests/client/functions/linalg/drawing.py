"""Arrays of normal numbers, drawn by a seed of each test file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Draw = Callable[..., Any]


def draws(seed: int) -> tuple[Draw, Draw]:
    """Functions of a size: one for real numbers, one for complex ones."""
    rng = np.random.default_rng(seed)
    real = lambda *size: rng.normal(size=size)  # noqa: E731
    return real, lambda *size: real(*size) + 1j * real(*size)
