"""The names of torch.compiler: workers compile by themselves, so these leave code as it is."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from gt.jit import script as allow_in_graph

__all__ = [
    "allow_in_graph", "assume_constant_result", "cudagraph_mark_step_begin", "disable", "is_compiling",
    "is_dynamo_compiling", "reset", "set_stance",
]  # fmt: skip

assume_constant_result = substitute_in_graph = allow_in_graph


def disable(fn: Any = None, recursive: bool = True, **kwargs: Any) -> Any:
    """The function itself, or a decorator without effect; see @gt.function(compile=False)."""
    return allow_in_graph if fn is None else fn


def set_stance(*args: Any, **kwargs: Any) -> Any:
    """A context without effect."""
    return nullcontext()


def is_compiling() -> bool:
    """Always False: Python is never compiled."""
    return False


is_dynamo_compiling = is_exporting = is_compiling


def reset() -> None:
    """Does nothing."""


cudagraph_mark_step_begin = reset
