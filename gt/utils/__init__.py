"""The modules of torch.utils that GT has."""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import Any as _Any

from gt.utils import checkpoint

__all__ = ["checkpoint"]


def __getattr__(name: str) -> _Any:
    if name in ("_pytree", "data", "hooks", "model_zoo", "tensorboard"):
        return _import_module(f"gt.utils.{name}")
    raise AttributeError(f"module 'gt.utils' has no attribute {name!r}")
