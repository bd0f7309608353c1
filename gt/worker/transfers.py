"""Tensor bytes on their way into and out of a worker, a chunk at a time.

Law 1: an upload's chunks come in order and fill exactly the tensor that the first one announced; any
       other chunk ends the upload in failure. Of a tensor of which this worker shall keep a part, that part is cut
       out when all of it is here.
Law 2: at most CHUNKS_IN_FLIGHT chunks of a fetch are unacknowledged, or as many as slots were lent for it,
       and all of one fetch arrive in order. The runner sends the first few on its connection; the reader
       sends the rest on its own, but only after all of the runner's were acknowledged, for two connections
       keep no common order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gt import dtypes
from gt.errors import ProgramError
from gt.layout import Runs
from gt.ops.check import MAX_DIMS, MAX_ELEMENTS
from gt.program import Spec, spec
from gt.transport.codec import Buffer
from gt.transport.messages import CHUNK, CHUNKS_IN_FLIGHT, Chunk, Failure
from gt.transport.shared import Ring, nbytes_of

Pieces = list[tuple[Chunk, memoryview]]


class Upload:
    """A tensor that is coming in."""

    def __init__(self, first: Chunk, limit_nbytes: int, buffer: Callable[[int], np.ndarray[Any, Any]]) -> None:
        self.spec = announced(first)
        self.keep = checked_runs(first.keep, self.spec)
        if first.total > limit_nbytes > 0:
            raise ProgramError(f"an upload of {first.total} bytes; this worker has {limit_nbytes}")
        self.data = buffer(first.total)  #: The engine's `host_buffer`.
        self.got = 0

    def take(self, chunk: Chunk, payload: Buffer | np.ndarray[Any, Any]) -> bool:
        """Copy a chunk in; True when it was the last."""
        nbytes = len(payload)
        if chunk.total != len(self.data) or chunk.offset != self.got or self.got + nbytes > chunk.total:
            raise ProgramError(
                f"chunk of {nbytes} bytes at {chunk.offset} of {chunk.total}: "
                f"{self.got} of {len(self.data)} bytes are here"
            )
        if not nbytes and chunk.total:
            raise ProgramError("an empty chunk of a tensor that is not empty")
        self.data[self.got : self.got + nbytes] = np.frombuffer(payload, np.uint8)
        self.got += nbytes
        return self.got == chunk.total

    def cut(self) -> None:
        """Of what has come, only what is to be kept."""
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
    below: int = -1  #: Its elements lie in [0, below); -1: nobody has looked.


def below(data: np.ndarray[Any, Any], spec: Spec) -> int:
    """The number that all elements of an index are below; -1 if one is negative, or it is no index."""
    if spec.dtype.is_floating_point or spec.dtype.is_complex or spec.dtype is dtypes.bool_ or not spec.size:
        return -1
    numbers = data.view(spec.dtype.numpy)
    return int(numbers.max()) + 1 if numbers.min() >= 0 else -1


def checked_runs(keep: Sequence[Runs], whole: Spec) -> tuple[Runs, ...]:
    """For each dimension the positions to keep; () for all of the tensor."""
    if not keep:
        return ()
    if len(keep) != whole.ndim:
        raise ProgramError(f"positions to keep of {len(keep)} dimensions; {whole!r} has {whole.ndim}")
    for runs, n in zip(keep, whole.shape, strict=True):
        edges = [0, *(edge for run in runs for edge in run), n]
        if any(len(run) != 2 for run in runs) or edges != sorted(edges):
            raise ProgramError(f"{runs} are not positions of a dimension of size {n}, in order")
    return tuple(keep)


def announced(first: Chunk) -> Spec:
    """The spec that an upload's first chunk tells, checked against its size."""
    if first.offset != 0:
        raise ProgramError(f"an upload begins at byte {first.offset}")
    if first.dtype not in dtypes.BY_NAME:
        raise ProgramError(f"dtype {first.dtype!r} is not known")
    if len(first.shape) > MAX_DIMS or any(n < 0 for n in first.shape):
        raise ProgramError(f"{first.shape} is not a shape")
    s = spec(tuple(first.shape), dtypes.BY_NAME[first.dtype])
    if s.size > MAX_ELEMENTS or s.nbytes != first.total:
        raise ProgramError(f"{s!r} has {s.nbytes} bytes, not {first.total}")
    return s


class Outgoing:
    """A tensor that is going out."""

    def __init__(
        self,
        session: int,
        request: int,
        spec: Spec,
        data: memoryview,
        ring: Ring | None = None,
        slots: tuple[int, ...] = (),
    ) -> None:
        self.session = session
        self.request = request
        self.spec = spec
        self.data = data
        self.ring = ring
        self.slots = slots if ring is not None else ()  #: Used in turn; the client has read what it acknowledged.
        self.count = 0
        self.offset = 0
        self.in_flight = 0
        self.started = False
        self.reader_sends = False  #: The runner's chunks have all arrived.

    @property
    def sent(self) -> bool:
        """Everything is on its way; nothing more needs to be known of it."""
        return self.started and self.offset == len(self.data)

    def acknowledge(self) -> None:
        self.in_flight = max(0, self.in_flight - 1)

    def first_chunks(self) -> Pieces:
        """What the runner sends, when it has been through `fill`."""
        return self._chunks()

    def more_chunks(self) -> Pieces:
        """What the reader may send now; see law 2."""
        if not self.reader_sends and self.in_flight:
            return []
        self.reader_sends = True
        return self._chunks()

    def fill(self, pieces: Pieces) -> list[tuple[Chunk, memoryview | None]]:
        """The pieces as they travel: those with a slot are copied there. Without the lock: it takes its time."""
        out: list[tuple[Chunk, memoryview | None]] = []
        for chunk, piece in pieces:
            if self.ring is not None and chunk.slot >= 0:
                self.ring.put(chunk.slot, np.frombuffer(piece, np.uint8))
                out.append((chunk, None))
            else:
                out.append((chunk, piece))
        return out

    def _chunks(self) -> Pieces:
        chunks = []
        while self.in_flight < (len(self.slots) or CHUNKS_IN_FLIGHT) and not self.sent:
            chunk = self._head()
            nbytes = nbytes_of(chunk) if chunk.slot >= 0 else CHUNK
            piece = self.data[self.offset : self.offset + nbytes]
            chunks.append((chunk, piece))
            self.offset += len(piece)
            self.in_flight += 1
            self.count += 1
            self.started = True
        return chunks

    def _head(self) -> Chunk:
        total = len(self.data)
        slot = self.slots[self.count % len(self.slots)] if self.slots else -1
        shape, dtype = ((), "") if self.offset else (self.spec.shape, self.spec.dtype.name)
        return Chunk(self.session, self.request, self.offset, total, shape, dtype, slot)
