"""The kinds of every op under the op's name: `kinds.exp`, `kinds.reshape[shape]`, `kinds.sum[dims, keepdim]`.

An op without attributes has one kind. The kinds of others are found by the values of their attributes, in the order in
which the op's inference takes them. All are made at once: an attribute of a module that has a `__getattr__` takes
Python longer to find. `any` and `sum` are among them, so this file calls no function of such a name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gt.client.programs.tree import Kind, Kinds
from gt.ops import TABLE
from gt.ops.record import Op, attributes

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


def _kinds_of(op: Op) -> Kind | Kinds | None:
    try:
        names = attributes(op)
    except AttributeError:
        return None  # only other ops use it, by `tree.kind_of`
    return Kinds(op, *names) if names else Kind(op, {})


globals().update({name: _found for name, op in TABLE.items() if (_found := _kinds_of(op)) is not None})
