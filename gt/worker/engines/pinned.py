"""Pinned host memory for uploads: the copy to the GPU is asynchronous, and the host goes on meanwhile.

Law 1: it is bounded. What does not fit uses pageable memory, and the runner waits while it is copied.
Law 2: a buffer does not change until the device has read it: it is held here until an event after the copy has passed.

The threads that take chunks in ask for buffers; the runner starts the copies. Memory that is not held any more goes
back to torch, which keeps it for the next buffer.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import Any

import numpy as np

LARGEST = 64 << 20  #: Bytes of one buffer: to pin more takes so long that other work would be delayed.
LIMIT = 256 << 20  #: Bytes of all of them.


class Pinned:
    """See the file's header."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._lock = threading.Lock()
        self._lent = 0  #: Bytes of buffers that are held; never more than LIMIT.
        #: Sizes of buffers that were freed. A finalizer may run in any thread and must not take a lock.
        self._returned: deque[int] = deque()
        #: What the device reads, and the event after that; used by the runner alone.
        self._copying: list[tuple[Any, Any]] = []

    @property
    def lent(self) -> int:
        """Bytes that are in use. The caller holds the lock, or no other thread runs."""
        while self._returned:
            self._lent -= self._returned.popleft()
        return self._lent

    def buffer(self, nbytes: int) -> np.ndarray[Any, Any] | None:
        """Memory that is not zeroed; None if there is not enough of this kind."""
        if not 0 < nbytes <= LARGEST:
            return None
        with self._lock:
            if self.lent + nbytes > LIMIT:
                return None
            self._lent += nbytes
        try:
            array: np.ndarray[Any, Any] = self._torch.empty(nbytes, dtype=self._torch.uint8, pin_memory=True).numpy()
        except RuntimeError:  # the system does not allow more
            self._returned.append(nbytes)
            return None
        weakref.finalize(array, self._returned.append, nbytes).atexit = False
        return array

    def copy(self, host: Any, device: str) -> Any:
        """This tensor on the device, or on its way there."""
        self.look()
        if not host.is_pinned():
            return host.to(device)
        made = host.to(device, non_blocking=True)
        event = self._torch.cuda.Event()
        event.record()
        self._copying.append((host, event))
        return made

    def look(self) -> None:
        """Free what the device has read."""
        if self._copying:
            self._copying = [(host, event) for host, event in self._copying if not event.query()]
