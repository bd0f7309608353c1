"""Constructors by type: `gt.FloatTensor([1, 2])`, `gt.LongTensor(2, 3)`, `gt.Tensor(2, 3)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.client.compat.arguments import called
from gt.client.functions.casts import OLD_NAMES
from gt.client.functions.creation import empty, tensor
from gt.client.programs.pending import Value
from gt.client.tensor import default_dtype
from gt.dtypes import DType, dtype

__all__ = [*OLD_NAMES]


def _make(data: Any, made: DType) -> Any:
    if all(isinstance(size, int) for size in data):
        return empty(tuple(data) or (0,), dtype=made)
    return tensor(*data, dtype=made)


def first_value(data: list[Any]) -> Value:
    """The value of `gt.Tensor(...)`: data or sizes, in the default dtype."""
    made = _make(data, default_dtype())
    value: Value = made._v or made._read()
    return value


def _constructor(name: str, made: DType) -> Callable[..., Any]:
    def constructor(*data: Any) -> Any:
        return _make(data, made)

    return called(constructor, name, f"A {made.name} tensor with the given data, or of the given sizes.")


globals().update({name: _constructor(name, dtype(to)) for name, to in OLD_NAMES.items()})
