"""What the stories about shared memory begin with."""

from __future__ import annotations

from typing import Any


def base(lib: Any, requires_grad: bool = False) -> Any:
    """A tensor of shape (4, 6) in which every number is different."""
    x = lib.arange(24, dtype=lib.float64).reshape(4, 6).clone() * 0.5 - 3.0
    return x.requires_grad_() if requires_grad else x


def linear(lib: Any) -> Any:
    """A layer with known weights of shape (4, 6)."""
    layer = lib.nn.Linear(6, 4, dtype=lib.float64)
    with lib.no_grad():
        layer.weight.copy_(base(lib) * 0.1)
        layer.bias.copy_(lib.arange(4, dtype=lib.float64))
    return layer
