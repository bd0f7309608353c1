"""Where bytes of tensors are that are not on the device: in host memory up to a limit, then on disk.

Law 1: what is stored here never changes. It is dropped with the last reference to it.
Law 2: a file has no name: nothing is left behind, however the process ends.
Law 3: some of the disk stays free for others. What has no place is refused, and changes nothing.
"""

from __future__ import annotations

import os
import tempfile
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from gt.worker.run.engine import Engine, Piece

FREE_SHARE = 16  #: 1/16 of the disk stays free.


class Away:
    """The bytes of one tensor, outside of the device."""

    __slots__ = ("_file", "_offset", "_outside", "nbytes", "pieces")

    def __init__(self, outside: Outside, nbytes: int, pieces: Sequence[Piece], file: File | None, offset: int) -> None:
        self.nbytes = nbytes
        self.pieces = pieces  #: In host memory; (): on disk.
        self._outside, self._file, self._offset = outside, file, offset

    @property
    def on_disk(self) -> bool:
        return self._file is not None

    def load(self, engine: Engine) -> tuple[Sequence[Piece], bool]:
        """Its bytes in host memory, and whether they are the caller's to keep. Raises OSError."""
        if self._file is None:
            return self.pieces, False
        pieces = engine.host_pieces(self.nbytes)
        self._file.read(self._offset, pieces)
        return pieces, True

    def read(self) -> memoryview:
        """Its bytes in one piece. Raises OSError."""
        if self._file is not None:
            whole = np.empty(self.nbytes, np.uint8)
            self._file.read(self._offset, [whole])
            return whole.data
        return (self.pieces[0] if len(self.pieces) == 1 else np.concatenate(list(self.pieces))).data

    def __del__(self) -> None:
        # In any thread, and it must not take a lock.
        self._outside.dropped.append((self.on_disk, self.nbytes))


class File:
    """A file without a name."""

    def __init__(self, folder: str) -> None:
        try:
            self._fd = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError:  # a file system without such files
            self._fd, path = tempfile.mkstemp(prefix="gt-", dir=folder)
            os.unlink(path)
        self.nbytes = 0

    def write(self, pieces: Sequence[Any]) -> int:
        """Append these bytes; returns where they begin."""
        offset = at = self.nbytes
        for piece in pieces:
            rest = memoryview(piece).cast("B")
            while rest:
                written = os.pwrite(self._fd, rest, at)
                rest, at = rest[written:], at + written
        self.nbytes = at
        return offset

    def read(self, offset: int, pieces: Sequence[Any]) -> None:
        for piece in pieces:
            rest = memoryview(piece).cast("B")
            while rest:
                got = os.preadv(self._fd, [rest], offset)
                if not got:
                    raise OSError("a file with tensors of an idle session was truncated")
                rest, offset = rest[got:], offset + got

    def room(self, nbytes: int) -> bool:
        """Whether the disk has so much to spare."""
        disk = os.fstatvfs(self._fd)
        return disk.f_bavail * disk.f_frsize - nbytes >= disk.f_blocks * disk.f_frsize // FREE_SHARE

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):
            os.close(self._fd)


class Outside:
    """The places outside of a worker's device. `store` is called by one thread at a time."""

    def __init__(self, engine: Engine, limit_nbytes: int, folder: str = "") -> None:
        self.engine = engine
        self.limit_nbytes = limit_nbytes  #: Of host memory.
        self.folder = folder or tempfile.gettempdir()
        self.dropped: deque[tuple[bool, int]] = deque()  #: (on disk, bytes) of what nobody refers to any more.
        self._nbytes = {False: 0, True: 0}  #: In host memory, on disk.

    def nbytes(self, on_disk: bool) -> int:
        while self.dropped:
            where, nbytes = self.dropped.popleft()
            self._nbytes[where] -= nbytes
        return self._nbytes[on_disk]

    def has_memory(self, nbytes: int) -> bool:
        """Whether host memory takes so many bytes more."""
        return self.nbytes(on_disk=False) + nbytes <= self.limit_nbytes

    def hold(self, pieces: Sequence[Piece], nbytes: int) -> Away:
        """Bytes in host memory, whatever the limit is."""
        self._nbytes[False] += nbytes
        return Away(self, nbytes, pieces, None, 0)

    def write(self, pieces: Sequence[Any], nbytes: int, file: File) -> Away:
        """Bytes on disk. Raises OSError if there is no room."""
        if not file.room(nbytes):
            raise OSError(f"less than 1/{FREE_SHARE} of the disk would stay free in {self.folder}")
        offset = file.write(pieces)
        self._nbytes[True] += nbytes
        return Away(self, nbytes, (), file, offset)
