"""Pinned host memory for uploads: a GPU copies from it by itself, and the host goes on meanwhile.

Law 1: it is bounded. What does not fit comes into ordinary memory, and the runner waits while it is copied.
Law 2: a buffer stays as it is until the device has read it: it is held here until an event behind the copy has passed.

Buffers are asked for by the threads that take chunks in; the device is told to copy by the runner. Memory that nobody
holds any more goes back to torch, which keeps it for the next buffer.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import Any

import numpy as np

LARGEST = 64 << 20  #: Bytes of one buffer: to pin more takes so long that others would notice.
LIMIT = 256 << 20  #: Bytes of all of them.


class Pinned:
    """See the file's header."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._lock = threading.Lock()
        self._lent = 0  #: Bytes of buffers that somebody holds; never more than LIMIT.
        #: Sizes of buffers that are gone. A finalizer may run anywhere, and take no lock.
        self._returned: deque[int] = deque()
        self._copying: list[tuple[Any, Any]] = []  #: What the device reads, and the event behind that; the runner's.

    @property
    def lent(self) -> int:
        """Bytes that are in use. The caller has the lock, or is alone."""
        while self._returned:
            self._lent -= self._returned.popleft()
        return self._lent

    def buffer(self, nbytes: int) -> np.ndarray[Any, Any] | None:
        """Memory that is not zeroed; None if there is none of this kind for so much."""
        if not 0 < nbytes <= LARGEST:
            return None
        with self._lock:
            if self.lent + nbytes > LIMIT:
                return None
            self._lent += nbytes
        try:
            array: np.ndarray[Any, Any] = self._torch.empty(nbytes, dtype=self._torch.uint8, pin_memory=True).numpy()
        except RuntimeError:  # the system allows no more
            self._returned.append(nbytes)
            return None
        weakref.finalize(array, self._returned.append, nbytes).atexit = False
        return array

    def copy(self, host: Any, device: str) -> Any:
        """This tensor on the device, or at least under way to it."""
        self.look()
        if not host.is_pinned():
            return host.to(device)
        made = host.to(device, non_blocking=True)
        event = self._torch.cuda.Event()
        event.record()
        self._copying.append((host, event))
        return made

    def look(self) -> None:
        """Let go of what the device has read."""
        if self._copying:
            self._copying = [(host, event) for host, event in self._copying if not event.query()]
