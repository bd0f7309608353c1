"""Messages as bytes on a stream: how a stream is split into messages, and how what does not fit is sent later.

On the wire: the number of frames, their sizes, the frames. All numbers have four bytes, the lowest first.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from typing import Any

from gt.transport.messages import MAX_FRAME, MAX_FRAMES, BadMessage, Buffer

MAX_MESSAGE = 4 * MAX_FRAME  #: Bytes of one message: what a peer can make us hold before the message is complete.
MAX_FIRST = 1 << 16  #: The same for the first message of a stranger, who has yet to say who it is.
BUFFER = 1 << 18  #: Bytes read at once from one peer.
SMALL = 1 << 14  #: The same while no large message is known to come: most are tiny, and a large buffer costs time.
TINY, MANY = 512, 256  #: So many pieces below this size become one: each takes some 50 bytes besides its own.
#: How ZeroMQ begins: as a message of 255 frames would, of which the first is empty. There are no such messages.
ZEROMQ = b"\xff" + bytes(7)
_WORD = 4
_COUNT = struct.Struct("<I").unpack_from


class NotOurs(BadMessage):
    """The other side speaks ZeroMQ: it is one with keys (sockets.py)."""


def head_of(sizes: list[int]) -> bytes:
    """The bytes that precede frames of these sizes."""
    return struct.pack(f"<{len(sizes) + 1}I", len(sizes), *sizes)


def size_of(frame: Any) -> int:
    """The bytes of a frame."""
    return frame.nbytes if type(frame) is memoryview else len(frame)


class FrameReader:
    """Bytes in, messages out: splits a stream into lists of frames."""

    def __init__(self, first: int = MAX_MESSAGE) -> None:
        self._limit = first  #: Bytes of the next message, at most. Only the first may be more limited than others.
        self._parts: list[bytes] = []  #: Bytes of a message that is not complete.
        self._tiny = 0  #: How many of the last parts are tiny.
        self._have = 0
        self._need = _WORD  #: Bytes needed before it is parsed again.

    @property
    def room(self) -> int:
        """How many bytes to read at once."""
        return SMALL if self._need - self._have <= SMALL else BUFFER

    def feed(self, data: bytes) -> list[list[Buffer]]:
        """The messages that are complete now. Raises BadMessage if the bytes cannot be a message."""
        if self._parts:
            self._keep(data)
            if self._have < self._need:
                return []
            data = b"".join(self._parts)
            self._parts.clear()
            self._tiny = 0
        found: list[list[Buffer]] = []
        at, end, need = 0, len(data), _WORD
        while at < end:
            need, frames = _parse(data, at, end, self._limit)
            if frames is None:
                self._parts.append(data[at:])
                break
            found.append(frames)
            self._limit = MAX_MESSAGE
            at += need
            need = _WORD
        self._have, self._need = end - at, need
        return found

    def _keep(self, data: bytes) -> None:
        """Add bytes of a message that is not complete."""
        self._parts.append(data)
        self._have += len(data)
        self._tiny = self._tiny + 1 if len(data) < TINY else 0
        if self._tiny == MANY:
            self._parts[-MANY:] = [b"".join(self._parts[-MANY:])]
            self._tiny = 0


def _parse(data: bytes, at: int, end: int, limit: int) -> tuple[int, list[Buffer] | None]:
    """One message from `at` on: its size and its frames; or the bytes needed and None if it is not complete."""
    if end - at < _WORD:
        return _WORD, None
    (count,) = _COUNT(data, at)
    if not 1 <= count <= MAX_FRAMES:
        raise BadMessage(f"{count} frames in one message; the limit is {MAX_FRAMES}")
    start = _WORD * (count + 1)
    if end - at < start:
        if not ZEROMQ.startswith(data[at : at + len(ZEROMQ)]):
            return start, None
        if end - at >= len(ZEROMQ):
            raise NotOurs("it speaks ZeroMQ")
        return len(ZEROMQ), None
    sizes = struct.unpack_from(f"<{count}I", data, at + _WORD)
    if max(sizes) > MAX_FRAME:
        raise BadMessage(f"a frame of {max(sizes)} bytes; the limit is {MAX_FRAME}")
    need = start + sum(sizes)
    if need > limit:
        raise BadMessage(f"{need} bytes in one message; the limit is {limit}")
    if end - at < need:
        return need, None
    frames: list[Buffer] = []
    at += start
    for n in sizes:
        frames.append(data[at : at + n] if n < 65_536 else memoryview(data)[at : at + n])
        at += n
    return need, frames


class SendBuffer:
    """What was sent on a socket and did not fit yet."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self.left: deque[memoryview] = deque()
        self.nbytes = 0

    def send(self, frames: list[Any]) -> None:
        """Send what the socket takes at once; keep the rest."""
        sizes = [size_of(f) for f in frames]
        total = _WORD * (len(sizes) + 1) + sum(sizes)
        parts = [head_of(sizes), *frames]
        sent = 0
        if total <= SMALL:
            parts = [b"".join(parts)]  # one buffer is faster to send than a list of them
        if not self.left:
            try:
                sent = self._socket.send(parts[0]) if len(parts) == 1 else self._socket.sendmsg(parts)
            except BlockingIOError:
                pass
            if sent == total:
                return
        for p in parts:
            view = memoryview(p).cast("B") if len(p) else memoryview(b"")
            if sent >= view.nbytes:
                sent -= view.nbytes
                continue
            # No copy: payloads do not change after they were sent.
            self.left.append(view[sent:])
            self.nbytes += view.nbytes - sent
            sent = 0

    def flush(self) -> bool:
        """Send more of what was kept; True if nothing is left."""
        while self.left:
            try:
                sent = self._socket.sendmsg([*self.left][:64])
            except BlockingIOError:
                return False
            self.nbytes -= sent
            while sent:
                first = self.left[0]
                if sent < first.nbytes:
                    self.left[0] = first[sent:]
                    break
                sent -= first.nbytes
                self.left.popleft()
        return True
