"""What a plan chose for one instruction of a program: which way it runs on the mesh.

Shared by all processes: a client sends the choices of a plan, the dispatcher follows them
(gt/dispatcher/planner/follow.py). Choices are data. Whether an op can do what a choice says is checked when it is
followed.
"""

from __future__ import annotations

import msgspec


class Chosen(msgspec.Struct, frozen=True, omit_defaults=True):
    """A way to run one instruction. All axes of the mesh that are not named do nothing."""

    #: Factor of the op's rule -> its pieces, (size, axes) each, as in a layout.
    split: dict[str, tuple[tuple[int, tuple[str, ...]], ...]] = {}
    #: Axis -> (operands, kind): these operands are partial over it, and so are the results.
    keep: dict[str, tuple[tuple[int, ...], str]] = {}
    #: Windows are cut out of operands that are whole, instead of fetched from the neighbours.
    whole_windows: bool = False
    #: The op is expanded into others, with its operands in these layouts ("" for a number). Then the fields above say
    #: nothing.
    expand: tuple[str, ...] | None = None
    #: (operand, the layouts that it passes through, one step apart, from the one in which it was made).
    via: tuple[tuple[int, tuple[str, ...]], ...] = ()
    #: Before this instruction, copies of values in other layouts than the one that they were made in are dropped. Who
    #: needs one later makes it again: memory for communication.
    drops: bool = False
