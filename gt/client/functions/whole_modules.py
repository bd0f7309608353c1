"""Modules in files: which names of a file are classes of modules or functions of GT.

Law: nothing is imported for a name, and no class is called. A module is made without its __init__, from what the file
says it contains; its class must have been defined by the script that loads it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import Any

#: Where the functions are that modules keep as their attributes: activations and the like.
_FUNCTIONS = ("gt.nn.functional", "gt.client.functions.activations", "gt.client.functions.elementwise")


def is_module(x: Any) -> bool:
    """Whether it is a module of gt.nn, or a class of them."""
    base = getattr(sys.modules.get("gt.nn.module"), "Module", None)
    return base is not None and (issubclass(x, base) if isinstance(x, type) else isinstance(x, base))


class OwnModules(Mapping[str, Any]):
    """Names that a file may contain: those that are allowed anyway, classes of modules, and functions of GT."""

    def __init__(self, allowed: Mapping[str, Any]) -> None:
        self._allowed = allowed

    def _find(self, name: str) -> Any:
        found = self._allowed.get(name)
        if found is not None:
            return found
        module, _, last = name.rpartition(".")
        # Not getattr: a module may import what it is asked for.
        found = getattr(sys.modules.get(module), "__dict__", {}).get(last)
        if isinstance(found, type) and is_module(found):
            return found
        return found if isinstance(found, FunctionType) and module.startswith(_FUNCTIONS) else None

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._find(name) is not None

    def __getitem__(self, name: str) -> Any:
        found = self._find(name)
        if found is None:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._allowed)

    def __len__(self) -> int:
        return len(self._allowed)
