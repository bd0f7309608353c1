"""The memory that a worker's process keeps when its arrays are freed.

glibc gives memory back to the system as soon as a little more than nothing is free, and most so in threads other than
the first. A training step frees all it has made and the next one wants it again: page by page, each cleared by the
system first. It cost a sixth of the time of a small convolution net. PyTorch's own users are spared by chance: glibc
learns from the first large block that is freed, and their data was once such a block.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # numbers of malloc.h
_LARGE_NBYTES = 32 << 20  #: Blocks from here on are given back at once: the most that glibc lets us ask for.
_KEPT_NBYTES = 1 << 30  #: So much may lie free at the end of the heap,
_KEPT_SHARE = 16  #: but no more than this part of the machine's memory.


def keep_freed_memory() -> None:
    """From here on. Called before there are threads: they shall share the first one's heap, since others end every
    64 MiB, and what is past an end is always given back. Without glibc it does nothing."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_ARENA_MAX, 1)
        mallopt(_MMAP_THRESHOLD, _LARGE_NBYTES)
        mallopt(_TRIM_THRESHOLD, min(_KEPT_NBYTES, memory // _KEPT_SHARE))
