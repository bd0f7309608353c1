"""Keeping freed memory in a worker's process.

glibc returns freed memory to the system very soon, above all in threads other than the first. A training step frees
everything it has made, and the next step allocates it again: page by page, each cleared by the system first. That took
a sixth of the time of a small convolutional network. PyTorch's own users rarely see this: glibc raises its threshold
when a first large block is freed, and their data was such a block.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # numbers of malloc.h
_LARGE_NBYTES = 32 << 20  #: Larger blocks are returned at once: the highest threshold that glibc accepts.
_KEPT_NBYTES = 1 << 30  #: So much free memory may stay at the end of the heap,
_KEPT_SHARE = 16  #: but at most 1/16 of the machine's memory.


def keep_freed_memory() -> None:
    """Keep freed memory from now on. To be called before there are threads: they share the first thread's heap, because
    those of other threads have pieces of 64 MiB, and free pieces are always returned. Does nothing without glibc."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_ARENA_MAX, 1)
        mallopt(_MMAP_THRESHOLD, _LARGE_NBYTES)
        mallopt(_TRIM_THRESHOLD, min(_KEPT_NBYTES, memory // _KEPT_SHARE))


def trim_heap() -> None:
    """Return all freed memory to the system: the tensors that were in it have left."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
