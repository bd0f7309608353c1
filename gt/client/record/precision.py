"""How exactly float32 is computed: torch's switches for it, which hold for the whole process.

A program has one precision (program.py says why it is part of it). So the tree of what was recorded has a root
for each, and a change ends what every thread has pending: recording an op never asks for it.
"""

from __future__ import annotations

from gt.program import DEFAULT_PRECISION, Precision

_chosen: list[Precision] = [DEFAULT_PRECISION]  #: one entry, the process's own


def current() -> Precision:
    """What programs that begin now carry."""
    return _chosen[0]


def choose(product: str | None = None, conv_tf32: bool | None = None) -> None:
    """Compute what is recorded from here on so; what is not given stays."""
    from gt.client.session import current as sessions  # which is built on this

    before = _chosen[0]
    new = Precision(
        before.product if product is None else product, before.conv_tf32 if conv_tf32 is None else conv_tf32
    )
    if new != before:
        _chosen[0] = new
        sessions.end_pending()
