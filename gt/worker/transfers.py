"""Tensor bytes on their way into and out of a worker, a chunk at a time.

Law 1: an upload's chunks come in order and fill exactly the tensor that the first one announced; any other chunk ends
       the upload in failure. If this worker is to keep only a part of the tensor, that part is cut out once all of it
       has come.
Law 2: at most CHUNKS_IN_FLIGHT chunks of a fetch are unacknowledged, or as many as slots were lent for it,
       and all of one fetch arrive in order. The runner sends the first few on its connection. The reader
       sends the rest on its own, but only after all of the runner's were acknowledged: two connections
       have no common order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gt import dtypes
from gt.errors import ProgramError
from gt.layout import Runs
from gt.program import Spec, spec
from gt.transport.chunks import Receiving, Sending, announced
from gt.transport.messages import CHUNKS_IN_FLIGHT, Buffer, Chunk, Failure
from gt.transport.shared import Ring

Pieces = list[tuple[Chunk, memoryview]]


class Incoming:
    """A tensor that is being uploaded."""

    def __init__(self, first: Chunk, limit_nbytes: int, buffer: Callable[[int], np.ndarray[Any, Any]]) -> None:
        self.spec = announced(first)
        self.keep = checked_runs(first.keep, self.spec)
        if first.total > limit_nbytes > 0:
            raise ProgramError(f"an upload of {first.total} bytes; this worker has {limit_nbytes}")
        self.data = buffer(first.total)  #: The engine's `host_buffer`.
        self._receiving = Receiving(first.total)

    def take(self, chunk: Chunk, payload: Buffer | np.ndarray[Any, Any]) -> bool:
        """Copy a chunk in; True when it was the last."""
        self.data[self._receiving.take(chunk, len(payload))] = np.frombuffer(payload, np.uint8)
        return self._receiving.complete

    def cut(self) -> None:
        """Drop what this worker is not to keep."""
        if not self.keep:
            return
        whole: np.ndarray[Any, Any] = self.data.view(self.spec.dtype.numpy).reshape(self.spec.shape)
        for dim, runs in enumerate(self.keep):
            if runs != ((0, whole.shape[dim]),):
                at = (slice(None),) * dim
                parts = [whole[(*at, slice(start, stop))] for start, stop in runs or ((0, 0),)]
                whole = np.concatenate(parts, axis=dim) if len(parts) > 1 else parts[0]
        self.spec = spec(whole.shape, self.spec.dtype)
        self.data = np.ascontiguousarray(whole).reshape(-1).view(np.uint8)


@dataclass(frozen=True, slots=True)
class Arrived:
    """An upload that is over: all its bytes are here, or it failed."""

    id: int
    spec: Spec
    data: Buffer | None
    failure: Failure | None = None
    below: int = -1  #: Its elements are in [0, below); -1: not known.


def below(data: np.ndarray[Any, Any], spec: Spec) -> int:
    """A number that all elements of an index are below; -1 if one is negative, or the dtype is not an integer."""
    if spec.dtype.is_floating_point or spec.dtype.is_complex or spec.dtype is dtypes.bool_ or not spec.size:
        return -1
    numbers = data.view(spec.dtype.numpy)
    return int(numbers.max()) + 1 if numbers.min() >= 0 else -1


def checked_runs(keep: Sequence[Runs], whole: Spec) -> tuple[Runs, ...]:
    """For each dimension the positions to keep; () for all of the tensor."""
    if not keep:
        return ()
    if len(keep) != whole.ndim:
        raise ProgramError(f"positions to keep are given for {len(keep)} dimensions; {whole!r} has {whole.ndim}")
    for runs, n in zip(keep, whole.shape, strict=True):
        edges = [0, *(edge for run in runs for edge in run), n]
        if any(len(run) != 2 for run in runs) or edges != sorted(edges):
            raise ProgramError(f"positions to keep of a dimension of size {n} must be ranges in order, got {runs}")
    return tuple(keep)


class Outgoing:
    """A tensor that is being fetched."""

    def __init__(
        self, session: int, request: int, spec: Spec, data: memoryview, ring: Ring | None, slots: tuple[int, ...]
    ) -> None:
        self.data = data
        self._sending = Sending(session, request, spec, len(data))
        self._ring = ring
        self._slots = slots if ring is not None else ()  #: Used in turn; the client has read what it acknowledged.
        self._count = 0  #: Chunks sent.
        self._reader_sends = False  #: The runner's chunks have all arrived.

    @property
    def sent(self) -> bool:
        """Everything has been sent; nothing more needs to be known of it."""
        return self._sending.complete

    def acknowledge(self) -> None:
        self._sending.acknowledge()

    def first_chunks(self) -> Pieces:
        """What the runner sends, after `fill`."""
        chunks = []
        sending, slots = self._sending, self._slots
        while sending.unacked < (len(slots) or CHUNKS_IN_FLIGHT) and not sending.complete:
            chunk, where = sending.next_chunk(slots[self._count % len(slots)] if slots else -1)
            chunks.append((chunk, self.data[where]))
            self._count += 1
        return chunks

    def more_chunks(self) -> Pieces:
        """What the reader may send now; see law 2."""
        if not self._reader_sends and self._sending.unacked:
            return []
        self._reader_sends = True
        return self.first_chunks()

    def fill(self, pieces: Pieces) -> list[tuple[Chunk, memoryview | None]]:
        """The pieces as they are sent: those with a slot are copied there. Without the lock: this takes time."""
        out: list[tuple[Chunk, memoryview | None]] = []
        for chunk, piece in pieces:
            if self._ring is not None and chunk.slot >= 0:
                self._ring.put(chunk.slot, np.frombuffer(piece, np.uint8))
                out.append((chunk, None))
            else:
                out.append((chunk, piece))
        return out
