"""Memory that a client shares with its worker on one machine: large tensors go through it, not through sockets,
and the answer to a small fetch is there before its message is.

A client makes one anonymous file in memory, its ring: SLOTS pieces of PIECE bytes, then BOXES mailboxes. It offers the
ring (`Share`), and the dispatcher adds which process that client is. The worker opens the file as /proc/<pid>/fd/<fd>
and confirms (`Shared`). From then on a chunk may name a slot of the ring instead of bringing its bytes. For an upload
the client has filled the slot; for a fetch the client lends slots that the worker fills. For a small fetch it lends a
mailbox, and polls it while it waits: the worker puts the answer there, and sends it as well. The numbers of mailboxes
follow those of the slots.

Law 1: a worker opens only what the dispatcher has confirmed: the process at the other end of the client's socket,
       from the system, and a file that is a memfd, of the ring's size, with the random name that was announced.
       A process that reuses the number of one that ended has no file of that name.
Law 2: the ring's size is sealed, because shrinking it would kill a reader. Its content may change at any time: what
       is read from it is copied first and checked then.
Law 3: a ring belongs to one session, so it never holds data of another.
Law 4: nothing is left behind: the memory is freed when the last process that has it open ends, however it ends.
Law 5: where any of this is not possible (another user, no /proc, no memfd), the ring is refused and chunks bring
       their bytes.
Law 6: a mailbox is written once each time it is lent: the bytes, their number, and last the request. A reader that
       finds the request there finds the bytes complete, because x86 makes stores visible in the order in which they
       were made, and because the request was cleared before. Other processors promise no order; there no mailbox
       is lent.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import re
import secrets
import stat
from contextlib import suppress
from typing import Any

import numpy as np

from gt.transport.messages import Chunk, Share

PIECE = 2 << 20  #: Tensor bytes in one slot.
SLOTS = 32  #: Slots of a ring.
UPLOAD_SLOTS = 24  #: The first ones, for uploads. The others are lent for fetches, which may wait for uploads.
LENT = 4  #: Slots lent for one fetch, at most.
LARGE = 1 << 20  #: Tensors with more bytes than this go through a ring.
SMALL = 4096  #: Tensor bytes in one mailbox.
BOXES = 64  #: Mailboxes of a ring.
ORDERED = os.uname().machine == "x86_64"  #: Whether mailboxes may be used; see law 6.

_HEAD = 64  # bytes before those of a mailbox: two words of 8, the request and the number of bytes

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE: Linux 5.14; where there is none, pages come one by one
_NAME = re.compile("gt-[0-9a-f]{32}")


def ring_nbytes() -> int:
    """The size of a ring."""
    return SLOTS * PIECE + BOXES * (_HEAD + SMALL)


def nbytes_of(chunk: Chunk) -> int:
    """How many bytes of the tensor are in the slot that this chunk names."""
    return min(PIECE, chunk.total - chunk.offset)


class Ring:
    """The shared memory, in the process that made it or in one that opened it."""

    def __init__(self, number: int, fd: int, name: str = "") -> None:
        self.number = number  #: Among the rings of a session.
        self.name = name
        #: Unused slots, for uploads and for fetches; the one that was used last is taken first.
        self.free, self.to_lend = [*range(UPLOAD_SLOTS)][::-1], [*range(UPLOAD_SLOTS, SLOTS)][::-1]
        #: Unused mailboxes, in the same order.
        self.boxes = [*range(SLOTS, SLOTS + BOXES)][::-1] if ORDERED else []
        self._touched: set[int] = set()  #: Slots whose memory this process has allocated by filling them.
        self._map = mmap.mmap(fd, ring_nbytes())
        self._bytes: np.ndarray[Any, Any] = np.frombuffer(self._map, np.uint8)
        self._words = memoryview(self._map).cast("Q")
        self.fd = fd  #: -1 in a worker, which needs only the mapping.

    def slot(self, k: int, nbytes: int) -> np.ndarray[Any, Any]:
        """The first bytes of slot k."""
        return self._bytes[k * PIECE : k * PIECE + nbytes]

    def put(self, k: int, data: np.ndarray[Any, Any]) -> None:
        """Fill slot k, from its beginning."""
        if k not in self._touched:
            # All its pages at once: a page fault for each would cost more than the copy.
            self._touched.add(k)
            with suppress(OSError, ValueError):
                self._map.madvise(_POPULATE_WRITE, k * PIECE, len(data))
        np.copyto(self.slot(k, len(data)), data)

    def clear(self, box: int) -> None:
        """Make a mailbox ready to be lent."""
        self._words[_start(box) // 8] = 0

    def post(self, box: int, request: int, data: memoryview) -> None:
        """Put the answer to a request into a mailbox, if there is such a mailbox and the answer fits."""
        nbytes = len(data)
        if not SLOTS <= box < SLOTS + BOXES or nbytes > SMALL or request <= 0:
            return  # a client may send any number
        at = _start(box)
        self._bytes[at + _HEAD : at + _HEAD + nbytes] = np.frombuffer(data, np.uint8)
        self._words[at // 8 + 1] = nbytes
        self._words[at // 8] = request  # last: see law 6

    def answer(self, box: int, request: int, nbytes: int) -> np.ndarray[Any, Any] | None:
        """A copy of the answer to this request, of `nbytes` bytes; None if it is not there."""
        at = _start(box)
        if self._words[at // 8] != request or self._words[at // 8 + 1] != nbytes:
            return None
        return self._bytes[at + _HEAD : at + _HEAD + nbytes].copy()

    @property
    def idle(self) -> bool:
        return len(self.free) + len(self.to_lend) == SLOTS and len(self.boxes) == BOXES * ORDERED

    def rest(self) -> None:
        """Free the memory for now; the ring stays usable."""
        with suppress(OSError):
            self._map.madvise(mmap.MADV_REMOVE)
            self._touched.clear()

    def __del__(self) -> None:
        # The mapping is freed with the last array that uses it.
        if getattr(self, "fd", -1) >= 0:
            os.close(self.fd)


def _start(box: int) -> int:
    """The first byte of a mailbox."""
    return SLOTS * PIECE + (box - SLOTS) * (_HEAD + SMALL)


def make_ring(number: int) -> Ring | None:
    """A new ring of this process; None where that is not possible."""
    name = f"gt-{secrets.token_hex(16)}"
    fd = -1
    try:
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, ring_nbytes())
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        return Ring(number, fd, name)
    except (AttributeError, OSError, ValueError):
        if fd >= 0:
            os.close(fd)
        return None


def open_ring(share: Share) -> Ring | None:
    """The ring of another process that the dispatcher has confirmed; None if it cannot be opened or is not a ring."""
    if share.pid <= 0 or share.fd < 0 or not _NAME.fullmatch(share.name):
        return None
    held = opened = -1
    try:
        # Without opening it for reading: it may be any file, and may be replaced while we check.
        held = os.open(f"/proc/{share.pid}/fd/{share.fd}", os.O_PATH | os.O_CLOEXEC)
        place = f"/proc/self/fd/{held}"
        if os.readlink(place) != f"/memfd:{share.name} (deleted)" or not _is_ring(os.fstat(held)):
            return None
        opened = os.open(place, os.O_RDWR | os.O_CLOEXEC)
        sealed = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
        if fcntl.fcntl(opened, fcntl.F_GET_SEALS) & sealed != sealed:
            return None
        ring = Ring(share.ring, opened, share.name)
        ring.fd = -1
        return ring
    except (AttributeError, OSError, ValueError):
        return None
    finally:
        for fd in (held, opened):
            if fd >= 0:
                os.close(fd)


def _is_ring(what: os.stat_result) -> bool:
    """Whether this is a memfd (not one of huge pages, which may run out) of a ring's size."""
    own = os.memfd_create("gt-own", os.MFD_CLOEXEC)
    try:
        there = os.fstat(own).st_dev
    finally:
        os.close(own)
    return stat.S_ISREG(what.st_mode) and what.st_dev == there and what.st_size == ring_nbytes()
