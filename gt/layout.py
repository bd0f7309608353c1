"""Where a tensor's shards lie.

A mesh is a named grid of workers; a layout says how a tensor is spread over one. For now a
tensor lies whole on one worker: `whole(worker)`. Plans are already keyed by layouts, so that
splits can come in without touching the dispatcher.
"""

from __future__ import annotations

from typing import NamedTuple


class Mesh(NamedTuple):
    """A named grid of workers, row-major."""

    axes: tuple[tuple[str, int], ...]
    workers: tuple[int, ...]


class Layout(NamedTuple):
    """How one tensor lies on a mesh. With no axes, every worker of the mesh holds all of it."""

    mesh: Mesh


def whole(worker: int) -> Layout:
    """The layout of a tensor that one worker holds.

    >>> whole(3).mesh.workers
    (3,)
    """
    return Layout(Mesh((), (worker,)))
