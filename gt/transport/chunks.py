"""A tensor in chunks: how the sender cuts it and counts, and how the receiver checks what comes.

Law 1: the chunks of one transfer are sent and taken in order, and add up to exactly the tensor that the first one
       announces. An empty tensor is one empty chunk.
Law 2: the sender has a limited number of chunks that are not acknowledged: CHUNKS_IN_FLIGHT that bring their bytes, or
       as many as there are slots for them in shared memory (shared.py).
"""

from __future__ import annotations

from gt import dtypes
from gt.errors import ProgramError
from gt.ops.check import MAX_DIMS, MAX_ELEMENTS
from gt.program import Spec, spec
from gt.transport.messages import CHUNK, Chunk
from gt.transport.shared import nbytes_of


class Sending:
    """The sending end of a transfer."""

    __slots__ = ("key", "sent", "session", "spec", "total", "unacked")

    def __init__(self, session: int, key: int, spec: Spec, total: int) -> None:
        self.session = session
        self.key = key
        self.spec = spec
        self.total = total
        self.sent = -1  #: Bytes sent; -1: not even the first chunk, which an empty tensor has too.
        self.unacked = 0  #: Chunks sent and not acknowledged.

    @property
    def complete(self) -> bool:
        """Whether everything has been sent."""
        return self.sent == self.total

    def next_chunk(self, slot: int = -1, layout: str = "") -> tuple[Chunk, slice]:
        """The next chunk, which counts as sent, and which bytes of the tensor it stands for."""
        at = max(self.sent, 0)
        shape, dtype = ((), "") if at else (self.spec.shape, self.spec.dtype.name)
        chunk = Chunk(self.session, self.key, at, self.total, shape, dtype, slot, layout="" if at else layout)
        self.sent = at + (min(CHUNK, self.total - at) if slot < 0 else nbytes_of(chunk))
        self.unacked += 1
        return chunk, slice(at, self.sent)

    def acknowledge(self) -> None:
        """The receiver has taken a chunk."""
        self.unacked = max(0, self.unacked - 1)


class Receiving:
    """The receiving end of a transfer, which `announced` has checked."""

    __slots__ = ("received", "total")

    def __init__(self, total: int) -> None:
        self.total = total
        self.received = 0  #: Bytes that have come.

    @property
    def complete(self) -> bool:
        return self.received == self.total

    def take(self, chunk: Chunk, nbytes: int) -> slice:
        """Which bytes of the tensor this chunk of so many bytes is. Raises ProgramError if it is not the next one."""
        at, end = self.received, self.received + nbytes
        if chunk.total != self.total or chunk.offset != at or end > self.total:
            raise ProgramError(
                f"chunk of {nbytes} bytes at {chunk.offset} of {chunk.total}; expected one at {at} of {self.total}"
            )
        if not nbytes and self.total:
            raise ProgramError(f"empty chunk of a tensor of {self.total} bytes")
        self.received = end
        return slice(at, end)


def announced(first: Chunk) -> Spec:
    """The spec that the first chunk of an upload announces. Raises ProgramError if it does not fit the size."""
    if first.offset != 0:
        raise ProgramError(f"the first chunk of an upload must have offset 0, got {first.offset}")
    if first.dtype not in dtypes.BY_NAME:
        raise ProgramError(f"unknown dtype {first.dtype!r}")
    if len(first.shape) > MAX_DIMS or any(n < 0 for n in first.shape):
        raise ProgramError(f"{first.shape} is not a shape: expected at most {MAX_DIMS} sizes, each >= 0")
    s = spec(tuple(first.shape), dtypes.BY_NAME[first.dtype])
    if s.size > MAX_ELEMENTS:
        raise ProgramError(f"{first.shape} has more than {MAX_ELEMENTS} elements")
    if s.nbytes != first.total:
        raise ProgramError(f"{s!r} has {s.nbytes} bytes, but {first.total} are announced")
    return s
