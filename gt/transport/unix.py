"""Connections on one machine: Unix sockets, with the same interface as ZeroMQ's in sockets.py and router.py.

ZeroMQ hands every message to a thread of its own on both sides. Between processes of one machine that
costs more than everything else: for a call and its fetch 12 threads are woken with ZeroMQ, and 4 without.

Law 1: sending never drops silently. The server's side never blocks: it queues, and a peer that does not
       read is cut off. A client's side may wait for the server to read, at most STALL_S.
Law 2: if a send is interrupted (Ctrl-C), the stream stays intact: what is left is sent first next time.
Law 3: the other side sees the end of a connection at once, after everything that was sent on it.

On the wire: the number of frames, their sizes, the frames.
"""

from __future__ import annotations

import os
import select
import socket
import stat
import struct
import time
from collections import deque
from contextlib import suppress
from typing import Any

from gt.errors import ServerError, StartError
from gt.transport.channel import Patience
from gt.transport.messages import MAX_FRAME, MAX_FRAMES, BadMessage, Buffer, Message, decode_all, encode_all

MAX_QUEUED = 512 << 20  #: Bytes sent to a peer and not read by it; beyond this it is cut off.
ALL_QUEUED = 4 << 30  #: The same for all peers together: then the one with most is cut off.
SLOW = 16 << 20  #: A peer with less than this is not slow, and has no part in that.
MAX_MESSAGE = 4 * MAX_FRAME  #: Bytes of one message: what a peer can make us hold before the message is complete.
STALL_S = 30.0  #: How long a client waits for a server that does not read.
BUFFER = 1 << 18  #: Bytes read at once from one peer.
SMALL = 1 << 14  #: The same while no large message is known to come: most are tiny, and a large buffer costs time.
_WORD = 4
_COUNT = struct.Struct("<I").unpack_from
_CLOSE_S = 0.5  #: How long a connection that is cut off may take to read what was sent.


def head_of(sizes: list[int]) -> bytes:
    """The bytes that precede frames of these sizes."""
    return struct.pack(f"<{len(sizes) + 1}I", len(sizes), *sizes)


def size_of(frame: Any) -> int:
    """The bytes of a frame."""
    return frame.nbytes if type(frame) is memoryview else len(frame)


def widen(sock: socket.socket) -> None:
    """Make room for a few chunks. With the system's default buffer a large transfer takes many more wake-ups."""
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)


class Stream:
    """Bytes in, messages out: splits a stream into lists of frames."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []  #: Bytes of a message that is not complete.
        self._have = 0
        self._need = _WORD  #: Bytes needed before it is parsed again.

    @property
    def room(self) -> int:
        """How many bytes to read at once."""
        return SMALL if self._need - self._have <= SMALL else BUFFER

    def feed(self, data: bytes) -> list[list[Buffer]]:
        """The messages that are complete now. Raises BadMessage if the bytes cannot be a message."""
        if self._parts:
            self._parts.append(data)
            self._have += len(data)
            if self._have < self._need:
                return []
            data = b"".join(self._parts)
            self._parts.clear()
        found: list[list[Buffer]] = []
        at, end, need = 0, len(data), _WORD
        while at < end:
            need, frames = _parse(data, at, end)
            if frames is None:
                self._parts.append(data[at:])
                break
            found.append(frames)
            at += need
            need = _WORD
        self._have, self._need = end - at, need
        return found


def _parse(data: bytes, at: int, end: int) -> tuple[int, list[Buffer] | None]:
    """One message from `at` on: its size and its frames; or the bytes needed and None if it is not complete."""
    if end - at < _WORD:
        return _WORD, None
    (count,) = _COUNT(data, at)
    if not 1 <= count <= MAX_FRAMES:
        raise BadMessage(f"{count} frames in one message; the limit is {MAX_FRAMES}")
    start = _WORD * (count + 1)
    if end - at < start:
        return start, None
    sizes = struct.unpack_from(f"<{count}I", data, at + _WORD)
    if max(sizes) > MAX_FRAME:
        raise BadMessage(f"a frame of {max(sizes)} bytes; the limit is {MAX_FRAME}")
    need = start + sum(sizes)
    if need > MAX_MESSAGE:
        raise BadMessage(f"{need} bytes in one message; the limit is {MAX_MESSAGE}")
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


class UnixChannel:
    """A client's or worker's connection; see `gt.transport.channel.Channel`. One thread at a time."""

    local = True

    def __init__(self, address: str) -> None:
        self.address = address
        self._pid = os.getpid()
        self._broken = ""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(address.removeprefix("ipc://"))
        except OSError:
            self._socket.close()
            raise ServerError(f"no server at {address}; start one with: gt serve") from None
        self._socket.setblocking(False)
        widen(self._socket)
        self._stream = Stream()
        self._out = SendBuffer(self._socket)
        self._came: deque[tuple[Message, Buffer | None]] = deque()
        self._drained = False
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)

    def send(self, message: Message, payload: Buffer | None = None) -> None:
        self.send_all([(message, payload)])

    def send_all(self, messages: list[tuple[Message, Buffer | None]]) -> None:
        if self._broken:
            raise ServerError(self._broken)
        try:
            for frames in encode_all(messages):
                self._out.send(frames)
            if self._out.left:
                self._drain()
        except OSError as e:
            # Its last messages may still be readable: `receive` reports the end of the connection.
            if not isinstance(e, BrokenPipeError | ConnectionResetError):
                self._break(f"cannot send to the server at {self.address}: {e}")

    def _drain(self) -> None:
        ready = select.poll()
        ready.register(self._socket, select.POLLOUT)
        deadline_s = time.monotonic() + STALL_S
        while not self._out.flush():
            if not ready.poll(1000) and time.monotonic() > deadline_s:
                self._break(f"the server at {self.address} has read nothing for {STALL_S:g} s")
                raise ServerError(self._broken)

    def receive(self, timeout_s: float = 0.0) -> tuple[Message, Buffer | None] | None:
        if self._came:
            return self._came.popleft()
        if self._broken:
            raise ServerError(self._broken)
        if self._drained:
            # The last read took all there was: no need to ask the socket again.
            self._drained = False
            if timeout_s <= 0:
                return None
            self._poll.poll(timeout_s * 1000)
            self._read()
        elif not self._read() and timeout_s > 0:
            self._poll.poll(timeout_s * 1000)
            self._read()
        if self._came:
            return self._came.popleft()
        if self._broken:
            raise ServerError(self._broken)
        return None

    def _read(self) -> bool:
        """Read what has come; whether a message is complete, or the connection has ended."""
        while True:
            room = self._stream.room
            try:
                data = self._socket.recv(room)
            except BlockingIOError:
                return False
            except OSError:
                data = b""
            if not data:
                self._break(f"the connection to the server at {self.address} is lost")
                return True
            try:
                for frames in self._stream.feed(data):
                    self._came.extend(decode_all(frames))
            except BadMessage as e:
                self._break(f"the server at {self.address} sent an invalid message: {e}")
                return True
            if self._came:
                self._drained = len(data) < room
                return True

    def _break(self, why: str) -> None:
        self._broken = self._broken or why

    def fileno(self) -> int:
        """A descriptor that is readable while there is something to receive."""
        return self._socket.fileno()

    def close(self) -> None:
        """Send what is queued, then close. Does nothing in a forked child: the socket is the parent's."""
        if os.getpid() != self._pid or self._socket.fileno() < 0:
            return
        with suppress(OSError, ServerError):
            self._out.flush()
            self._socket.shutdown(socket.SHUT_WR)
        self._socket.close()
        self._broken = self._broken or "the connection to the server is closed"


class _Connection:
    """A connection, as the server sees it."""

    __slots__ = ("closing_s", "name", "out", "pid", "socket", "stream")

    def __init__(self, name: bytes, sock: socket.socket) -> None:
        self.name = name
        self.socket = sock
        self.stream = Stream()
        self.out = SendBuffer(sock)
        self.pid = _pid_of(sock)
        self.closing_s = 0.0  #: Not 0: cut off, nothing more is read. It is closed then, or when everything was sent.


class UnixRouter:
    """The server's side: all connections of one listening socket; see `gt.transport.router.Router`."""

    def __init__(self, address: str, max_queued: int = MAX_QUEUED, all_queued: int = ALL_QUEUED) -> None:
        self.address = address
        self._path = address.removeprefix("ipc://")
        self._max_queued, self._all_queued = max_queued, all_queued
        self._peers: dict[int, _Connection] = {}  #: by descriptor
        self._by_name: dict[bytes, _Connection] = {}
        self._count = 0
        self._came: deque[tuple[bytes, list[Buffer]]] = deque()
        self._lost: list[bytes] = []
        self._closing: list[_Connection] = []
        self._watched: set[int] = set()
        self._patience = Patience()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with suppress(OSError):
            if stat.S_ISSOCK(os.stat(self._path).st_mode) and not _listens(self._path):
                os.unlink(self._path)  # left by a server that was killed
        try:
            if not self._path:  # the system would choose a name
                raise FileNotFoundError("the path is empty")
            self._listener.bind(self._path)
        except OSError as e:
            self._listener.close()
            raise StartError(f"cannot serve on {address}: {e.strerror or e}") from None
        self._listener.listen(128)
        self._listener.setblocking(False)
        self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)

    def watch(self, fd: int) -> None:
        """Let `wait` also return when this descriptor is readable."""
        self._watched.add(fd)
        self._epoll.register(fd, select.EPOLLIN)

    def wait(self, timeout_s: float, spin_s: float = 0.0) -> bool:
        """Sleep until something happens, and take it in; whether to call `lost()` now. Polls for `spin_s` first,
        without sleeping, if that has paid recently."""
        found = False
        if spin_s and self._patience.wanted():
            until_s = time.perf_counter() + spin_s
            while not (found := self._take_in(0.0)) and time.perf_counter() < until_s:
                os.sched_yield()  # processes that have work go first
            self._patience.looked(found)
        if not found:
            self._take_in(max(0.0, timeout_s))
        return bool(self._lost or self._closing)

    def receive(self) -> tuple[bytes, list[Buffer]] | None:
        """The next message as (peer, frames), or None. Only `wait` takes messages in."""
        return self._came.popleft() if self._came else None

    def _take_in(self, timeout_s: float) -> bool:
        """Take in what has come or comes in time; whether anything did."""
        ready = self._epoll.poll(timeout_s)
        for fd, events in ready:
            peer = self._peers.get(fd)
            if peer is None:
                if fd not in self._watched:
                    self._accept()
                continue
            if events == select.EPOLLIN:
                self._read(peer)
                continue
            if events & select.EPOLLOUT:
                self._flush(peer)
            if events & ~select.EPOLLOUT and peer.socket.fileno() >= 0:
                self._read(peer)
        return bool(ready)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return  # it is gone again, or there are no descriptors left: it may try later
        sock.setblocking(False)
        widen(sock)
        self._count += 1
        peer = _Connection(b"\0" + self._count.to_bytes(8, "big"), sock)
        self._peers[sock.fileno()] = self._by_name[peer.name] = peer
        self._epoll.register(sock, select.EPOLLIN)

    def _read(self, peer: _Connection) -> None:
        try:
            data = peer.socket.recv(peer.stream.room)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(peer)
            return
        if peer.closing_s:
            return
        try:
            for frames in peer.stream.feed(data):
                self._came.append((peer.name, frames))
        except BadMessage:
            self._drop(peer)

    def pid(self, peer: bytes) -> int:
        """The process that made this connection, from the system; 0 if that is not known."""
        found = self._by_name.get(peer)
        return found.pid if found is not None else 0

    def user(self, peer: bytes) -> None:
        """See Router. Here no keys are needed: the path of the socket decides who can connect."""
        return None

    def send(self, peer: bytes, frames: list[Any]) -> None:
        """Queue a message. A peer that is gone, or does not read, will be among `lost()`."""
        to = self._by_name.get(peer)
        if to is None or to.closing_s:
            return
        was_empty = not to.out.left
        try:
            to.out.send(frames)
        except OSError:
            self._drop(to)
            return
        if to.out.left:
            if was_empty:
                self._epoll.modify(to.socket, select.EPOLLIN | select.EPOLLOUT)
            if to.out.nbytes > self._max_queued:
                self._drop(to)
            elif to.out.nbytes > SLOW:
                self._drop_slowest()

    def _drop_slowest(self) -> None:
        """Cut off the peer that has most to read, if all together have too much."""
        slow = [peer for peer in self._peers.values() if peer.out.nbytes > SLOW]
        if sum(peer.out.nbytes for peer in slow) > self._all_queued:
            self._drop(max(slow, key=lambda peer: peer.out.nbytes))

    def _flush(self, peer: _Connection) -> None:
        try:
            if peer.out.flush():
                self._epoll.modify(peer.socket, select.EPOLLIN)
        except OSError:
            self._drop(peer)

    def disconnect(self, peer: bytes) -> None:
        """Read nothing more from this peer; close its connection once what was sent has arrived. It will
        not be among `lost()`."""
        found = self._by_name.get(peer)
        if found is not None and not found.closing_s:
            found.closing_s = time.monotonic() + _CLOSE_S
            self._closing.append(found)

    def lost(self) -> list[bytes]:
        """The peers found lost since the last call."""
        if self._closing:
            now = time.monotonic()
            for peer in list(self._closing):
                if not peer.out.left or now >= peer.closing_s:
                    self._closing.remove(peer)
                    self._drop(peer)
        # Their last messages come first: a peer is reported as lost when everything it sent was received.
        if self._came:
            return []
        lost, self._lost = self._lost, []
        return lost

    def _drop(self, peer: _Connection) -> None:
        fd = peer.socket.fileno()
        if fd < 0:
            return
        del self._peers[fd], self._by_name[peer.name]
        self._epoll.unregister(fd)
        with suppress(OSError):
            peer.socket.shutdown(socket.SHUT_RDWR)
        peer.socket.close()
        if not peer.closing_s:
            self._lost.append(peer.name)

    def close(self) -> None:
        """Wait a moment for queued messages to be sent, then close everything."""
        deadline_s = time.monotonic() + _CLOSE_S
        for peer in list(self._peers.values()):
            ready = select.poll()
            with suppress(OSError):
                ready.register(peer.socket, select.POLLOUT)
                while not peer.out.flush() and time.monotonic() < deadline_s:
                    ready.poll(50)
            self._drop(peer)
        self._epoll.close()
        self._listener.close()
        with suppress(OSError):
            os.unlink(self._path)


def _pid_of(sock: socket.socket) -> int:
    try:
        pid: int = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    except (AttributeError, OSError):
        return 0
    return pid


def _listens(path: str) -> bool:
    """Whether a process accepts connections at this Unix socket."""
    with socket.socket(socket.AF_UNIX) as s:
        try:
            s.connect(path)
        except OSError:
            return False
        return True
