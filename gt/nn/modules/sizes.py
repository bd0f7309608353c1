"""The functions of torch.nn.modules.utils: sizes per dimension, names of a state."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any


def _ntuple(n: int, name: str = "parse") -> Callable[[Any], tuple[Any, ...]]:
    def parse(x: Any) -> tuple[Any, ...]:
        return tuple(x) if isinstance(x, Iterable) else tuple(repeat(x, n))

    parse.__name__ = name
    return parse


_single, _pair, _triple, _quadruple = _ntuple(1), _ntuple(2), _ntuple(3), _ntuple(4)


def _reverse_repeat_tuple(t: tuple[Any, ...], n: int) -> tuple[Any, ...]:
    return tuple(x for x in reversed(t) for _ in range(n))


def consume_prefix_in_state_dict_if_present(state_dict: dict[str, Any], prefix: str) -> None:
    """Remove a prefix, such as "module.", from the names of a state, in place."""
    for table in (state_dict, getattr(state_dict, "_metadata", None) or {}):
        for name in list(table):
            if name.startswith(prefix) or name == prefix.rstrip("."):
                table[name.removeprefix(prefix.rstrip(".")).removeprefix(".")] = table.pop(name)
