"""The names of torch.serialization."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gt.client.functions.save import load, save
from gt.client.functions.torch_files import SAFE

__all__ = ["add_safe_globals", "clear_safe_globals", "get_safe_globals", "load", "safe_globals", "save"]


FILE_LIKE = MAP_LOCATION = Any  #: Types of arguments, for annotations.


def _named(given: Any) -> dict[str, Any]:
    """Classes by the names that files have for them; a pair gives the name."""
    pairs = [x if isinstance(x, tuple) else (x, f"{x.__module__}.{x.__qualname__}") for x in given]
    return {name: kind for kind, name in pairs}


def add_safe_globals(safe_globals: Any) -> None:
    """Allow files of torch.save to contain objects of these classes. Their code may run when such a file is loaded."""
    SAFE.update(_named(safe_globals))


def get_safe_globals() -> list[Any]:
    """The classes that add_safe_globals() has allowed."""
    return list(SAFE.values())


def clear_safe_globals() -> None:
    """Allow none any more."""
    SAFE.clear()


@contextmanager
def safe_globals(safe_globals: Any) -> Iterator[None]:
    """Allow these classes inside the context."""
    before = dict(SAFE)
    add_safe_globals(safe_globals)
    try:
        yield
    finally:
        SAFE.clear()
        SAFE.update(before)
