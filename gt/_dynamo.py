"""The names of torch._dynamo that libraries use; see gt/compiler.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gt.compiler import allow_in_graph, disable, is_compiling, reset

__all__ = ["allow_in_graph", "config", "disable", "graph_break", "is_compiling", "mark_dynamic", "reset"]

config = SimpleNamespace(suppress_errors=False, cache_size_limit=8)  #: Can be set, without effect.
graph_break = reset


def mark_dynamic(t: Any, *args: Any, **kwargs: Any) -> None:
    """Does nothing: a program has fixed shapes."""


mark_static = mark_static_address = maybe_mark_dynamic = mark_dynamic
