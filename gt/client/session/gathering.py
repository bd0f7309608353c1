"""Assembling a tensor from the shards of several workers, in host memory.

Law 1: nothing is added twice: of shards that are copies of each other one is taken, whoever sent them.
Law 2: what is partial is reduced here, 16-bit floats in float32, as workers would do it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gt import dtypes, layout
from gt.errors import ServerError
from gt.layout import Layout, Runs
from gt.transport.messages import Sharded

Array = np.ndarray[Any, Any]

_REDUCE: dict[str | None, Any] = {"sum": np.add, "max": np.maximum, "min": np.minimum}
_NARROW = (dtypes.float16.numpy, dtypes.bfloat16.numpy)


def layout_of(m: Sharded) -> Layout:
    """The layout of a tensor, from the server's message."""
    return layout.parse(m.layout, layout.mesh(m.workers, **dict(m.axes)))


class Parts:
    """The shards of one fetch, while their chunks come."""

    def __init__(self, m: Sharded) -> None:
        self.layout = layout_of(m)
        self.shape = m.shape
        self.dtype = dtypes.BY_NAME[m.dtype].numpy
        self.positions = m.parts  #: The position in the mesh of each shard.
        self._buffers: list[Array | None] = [None] * len(m.parts)
        self._got = [0] * len(m.parts)
        self._left = len(m.parts)

    @property
    def done(self) -> bool:
        """Whether every shard has come completely."""
        return self._left == 0

    def take(self, part: int, offset: int, total: int, piece: Array) -> bool:
        """Add the next piece of a shard; returns whether more of it is to come."""
        buffer = self._buffers[part]
        if buffer is None:
            buffer = self._buffers[part] = np.empty(total, np.uint8)
        buffer[offset : offset + len(piece)] = piece
        self._got[part] += len(piece)
        if self._got[part] < total:
            return True
        self._left -= 1
        return False

    def by_position(self) -> dict[int, Array]:
        """The shards that came, by their positions in the mesh."""
        found: dict[int, Array] = {}
        for k, buffer in zip(self.positions, self._buffers, strict=True):
            shape = layout.local_shape(self.layout, self.shape, self.layout.mesh.coordinates[k])
            assert buffer is not None
            if buffer.size != int(np.prod(shape)) * self.dtype.itemsize:
                raise ServerError(
                    f"shard {k} of a tensor of shape {self.shape} has {buffer.size} bytes, which is the wrong size"
                )
            found[k] = buffer.view(self.dtype).reshape(shape)
        return found

    def whole(self) -> Array:
        """The tensor."""
        return assemble(self.layout, self.shape, self.by_position())


def assemble(lay: Layout, shape: tuple[int, ...], shards: Mapping[int, Array]) -> Array:
    """The tensor with these shards, given by their positions in the layout's mesh. One of several copies is enough.

    >>> rows = layout.split(layout.mesh(x=2), (3,), {0: "x"})
    >>> assemble(rows, (3,), {0: np.array([1.0]), 1: np.array([2.0, 3.0])})
    array([1., 2., 3.])
    >>> assemble(layout.layout(rows.mesh, (), {"x": "sum"}), (2,), {0: np.ones(2), 1: np.ones(2)})
    array([2., 2.])
    """
    mesh = lay.mesh
    used, pending = sorted(lay.axes()), lay.pending
    #: By position in the tensor: what is to be added up, by position along the partial axes.
    places: dict[tuple[Runs, ...], dict[int, Array]] = {}
    for k, shard in shards.items():
        at = mesh.coordinates[k]
        runs = tuple(layout.held(lay.pieces(d), n, mesh, at) for d, n in enumerate(shape))
        places.setdefault(runs, {}).setdefault(mesh.index(pending, at), shard)
    dtype = next(iter(shards.values())).dtype
    whole = np.empty(shape, dtype)
    count = 0
    for runs, addends in places.items():
        if len(addends) != mesh.size(pending):
            raise ServerError(f"shards are missing over {used} of a tensor with layout {lay!r}")
        value = _reduced(lay.kind, [addends[i] for i in sorted(addends)])
        whole[_index(runs)] = value
        count += value.size
    if count != whole.size:
        raise ServerError(f"shards are missing of a tensor of shape {shape} with layout {lay!r}")
    return whole


def _reduced(kind: str | None, addends: list[Array]) -> Array:
    if len(addends) == 1:
        return addends[0]
    dtype = addends[0].dtype
    wide = [a.astype(np.float32) for a in addends] if dtype in _NARROW else addends
    total = wide[0]
    for a in wide[1:]:
        total = _REDUCE[kind](total, a)
    return total.astype(dtype)


def _index(runs: tuple[Runs, ...]) -> Any:
    """A numpy index of these positions in each dimension: slices if each is one run."""
    if all(len(r) == 1 for r in runs):
        return tuple(slice(*r[0]) for r in runs)
    return np.ix_(*(np.concatenate([np.arange(a, b) for a, b in r]) if r else np.arange(0) for r in runs))
