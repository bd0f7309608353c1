"""Arrays between a GPU and pinned host memory, at the rate of the bus: for tensors of idle sessions (spilling.py).

Law 1: copies run on a stream of their own, beside all programs, and the thread that copies waits for them: for an
       event, never for the device.
Law 2: a copy out begins when all work of the session on the array is done; a copy back when nothing else uses its room,
       which is memory of the session's own stream: so no memory crosses streams.
Law 3: host memory is pinned in pieces of PIECE bytes. torch keeps pieces that are not used any more for the next ones:
       to pin memory takes longer than to copy it, and is paid once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from gt.worker.run.engine import Piece, Room

PIECE = 64 << 20  #: Bytes. A power of two: torch rounds up to one.


def host_pieces(nbytes: int) -> list[Piece]:
    """Pinned host memory, or what the system gives instead."""
    return [_pinned(min(PIECE, nbytes - at)) for at in range(0, nbytes, PIECE)]


def _pinned(nbytes: int) -> Piece:
    try:
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True).numpy()
    except RuntimeError:  # no more may be pinned: copies of this piece are slower
        return np.empty(nbytes, np.uint8)


class Moving:
    """The stream of one device. The runner uses it too, where a call brings back what it needs."""

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self._stream: Any = None

    def take_out(self, array: Any, mark: Any) -> list[Piece]:
        """The bytes of an array in host memory."""
        pieces = host_pieces(array.numel() * array.element_size())
        with self._after(mark):
            data = as_bytes(array)
            for piece, part in zip(pieces, _parts(data, pieces), strict=True):
                torch.from_numpy(piece).copy_(part, non_blocking=True)
        return pieces

    def bring_in(self, pieces: Sequence[Piece], room: Room) -> None:
        """Fill an array on the device."""
        with self._after(room.mark):
            for piece, part in zip(pieces, _parts(as_bytes(room.array), pieces), strict=True):
                part.copy_(torch.from_numpy(piece), non_blocking=True)

    @contextmanager
    def _after(self, mark: Any) -> Iterator[None]:
        """What is done inside is done on the stream, after that event; then it is waited for."""
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)
        stream = self._stream
        with torch.cuda.device(self._device), torch.cuda.stream(stream):
            stream.wait_event(mark)
            yield
            done = torch.cuda.Event(blocking=True)  # a thread that waits must not use a core for it
            done.record(stream)
            done.synchronize()


def as_bytes(array: Any) -> Any:
    """The same memory as bytes, or a copy if it is not contiguous."""
    if array.numel() == 0:
        return torch.empty(0, dtype=torch.uint8, device=array.device)  # an empty view may start at any offset
    # A single element is contiguous whatever its stride, but `view` would look at the stride.
    return array.contiguous().as_strided((array.numel(),), (1,)).view(torch.uint8)


def _parts(data: Any, pieces: Sequence[Piece]) -> list[Any]:
    """The tensor in parts as long as the pieces."""
    return list(data.split([len(p) for p in pieces])) if pieces else []
