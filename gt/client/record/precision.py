"""How exactly float32 is computed: torch's switches for it, which hold for the whole process.

A program has one precision (program.py says why it is part of it). So the tree of what was recorded has a root for
each, and `session.connecting.choose_precision` ends every pending program: recording an op never asks for it.
"""

from __future__ import annotations

from gt.program import DEFAULT_PRECISION, Precision

_chosen: list[Precision] = [DEFAULT_PRECISION]  #: one entry, the process's own


def current() -> Precision:
    """The precision of programs that begin now."""
    return _chosen[0]


def change(product: str | None, conv_tf32: bool | None) -> bool:
    """Change the precision; None leaves a field as it is. Returns whether anything changed."""
    before = _chosen[0]
    _chosen[0] = Precision(
        before.product if product is None else product, before.conv_tf32 if conv_tf32 is None else conv_tf32
    )
    return _chosen[0] != before
