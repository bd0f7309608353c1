"""`fx.wrap`, which libraries use as a decorator. Tracing with torch.fx is not possible."""

from __future__ import annotations

from typing import Any

__all__ = ["Proxy", "wrap"]


class Proxy:
    """For isinstance(): no GT tensor is a Proxy."""


def wrap(fn_or_name: Any) -> Any:
    """The function itself."""
    return fn_or_name


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(f"module 'gt.fx' has no attribute {name!r}; gt.debug.print_tape() shows what is recorded")
