"""The kinds of every op under the op's name: `kinds.exp`, `kinds.reshape[shape]`, `kinds.sum[dims, keepdim]`.

An op without attributes has one kind. The kinds of others are found by the values of their attributes, in the order in
which the op's inference takes them. A name is looked up in the table of ops when it is first used, and is an ordinary
attribute of this module from then on: among them are `any` and `sum`, so this file calls no function of that name.
"""

from __future__ import annotations

from typing import Any

from gt.client.programs.tree import Kind, Kinds
from gt.ops.record import attributes, ops


def __getattr__(name: str) -> Any:
    op = getattr(ops, name)
    names = attributes(op)
    found = globals()[name] = Kinds(op, *names) if names else Kind(op, {})
    return found
