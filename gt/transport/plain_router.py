"""Connections on one machine: the dispatcher's end of all of them. A Unix socket, or a port of the loopback address.

Law 1: sending never blocks, never drops silently and never raises. What a peer has not read waits here, counted in
       bytes; a peer that stops reading is cut off, and `lost()` returns it. So is the one that has read least when all
       of them together have too much to read.
Law 2: a peer is a connection that has sent a message, named by bytes that are chosen here. The name says nothing about
       who it is. `lost()` names peers only: a connection that never sent a message is not reported.
Law 3: no other machine can reach it: here connections are neither encrypted nor identified.
Law 4: a connection that says nothing, or nothing in this protocol, is closed. Until it has said something it can make
       this process hold little, and there are not many of them: the oldest gives way.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import stat
import time
from collections import deque
from contextlib import suppress
from typing import Any

from gt.errors import StartError
from gt.transport.addresses import host_and_port, is_loopback, pid_of
from gt.transport.channel import Patience
from gt.transport.frames import MAX_FIRST, FrameReader, SendBuffer
from gt.transport.messages import BadMessage, Buffer
from gt.transport.plain import prepare

MAX_QUEUED = 512 << 20  #: Bytes sent to a peer and not read by it; beyond this it is cut off.
ALL_QUEUED = 4 << 30  #: The same for all peers together: then the one with most is cut off.
SLOW = 16 << 20  #: A peer with less than this is not slow, and has no part in that.
CLOSE_S = 0.5  #: How long a connection that is cut off may take to read what was sent.
BACKLOG = 1024  #: Connections that wait to be accepted.
SILENT_S = 10.0  #: How long a new connection may take to say something,
SILENT = 256  #: and how many may be about to.
GUESSES = 8  #: How often a connection may say which process made it. To look whether that is true takes time.


class _Connection:
    """A connection, as the server sees it."""

    __slots__ = ("closing_s", "ended", "guesses", "name", "out", "pid", "since_s", "socket", "spoke", "stream")

    def __init__(self, name: bytes, sock: socket.socket) -> None:
        self.name = name
        self.socket = sock
        self.stream = FrameReader(MAX_FIRST)
        self.out = SendBuffer(sock)
        self.pid = pid_of(sock)
        self.guesses = 0
        self.since_s = time.monotonic()
        self.spoke = False  #: A whole message has come.
        self.closing_s = 0.0  #: Not 0: cut off, nothing more is read. It is closed then at the latest.
        self.ended = False  #: It was cut off, everything was sent, and it has been told.


class PlainRouter:
    """All connections of one listening socket; see `gt.transport.router.Router`."""

    def __init__(self, address: str, max_queued: int = MAX_QUEUED, all_queued: int = ALL_QUEUED) -> None:
        self._max_queued, self._all_queued = max_queued, all_queued
        self._peers: dict[int, _Connection] = {}  #: by descriptor
        self._by_name: dict[bytes, _Connection] = {}
        self._count = 0
        self._came: deque[tuple[bytes, list[Buffer]]] = deque()
        self._lost: list[bytes] = []
        self._closing: list[_Connection] = []
        self._watched: set[int] = set()
        self._patience = Patience()
        self._silent: deque[_Connection] = deque()  #: New ones, the oldest first.
        self._deaf = False  #: This process has no descriptor left for new connections.
        self._path = address.removeprefix("ipc://") if address.startswith("ipc://") else ""
        self._listener = _listen_here(self._path, address) if address.startswith("ipc://") else _listen_tcp(address)
        #: Where peers connect to.
        self.address = address if self._path else "{}:{}".format(*self._listener.getsockname())
        self._listener.setblocking(False)
        self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)

    def watch(self, fd: int) -> None:
        """Let `wait` also return when this descriptor is readable."""
        self._watched.add(fd)
        self._epoll.register(fd, select.EPOLLIN)

    def wait(self, timeout_s: float, spin_s: float = 0.0, patience: Patience | None = None) -> bool:
        """Sleep until something happens, and take it in; whether to call `lost()` now. Polls for `spin_s` first,
        without sleeping, if that has paid recently."""
        found = False
        patience = patience or self._patience
        if spin_s and patience.wanted():
            until_s = time.perf_counter() + min(spin_s, timeout_s)
            while not (found := self._take_in(0.0)) and time.perf_counter() < until_s:
                os.sched_yield()  # processes that have work go first
            # If others needed this CPU, sleep: the system runs a woken process first, one that yielded last.
            patience.looked(found and time.perf_counter() < until_s)
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
        except OSError as e:
            if e.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM) and not self._drop_silent():
                self._deaf = True  # until `lost` is called: else the loop would ask again and again
                self._epoll.unregister(self._listener)
            return  # else it is gone again, or there is room now
        prepare(sock)
        self._count += 1
        peer = _Connection(b"\0" + self._count.to_bytes(8, "big"), sock)
        self._peers[sock.fileno()] = self._by_name[peer.name] = peer
        self._silent.append(peer)
        self._epoll.register(sock, select.EPOLLIN)
        if len(self._silent) > SILENT:
            self._silent = deque(p for p in self._silent if not p.spoke and p.socket.fileno() >= 0)
            if len(self._silent) > SILENT:
                self._drop_silent()

    def _drop_silent(self) -> bool:
        """Close the oldest connection that has said nothing; False if there is none."""
        while self._silent:
            oldest = self._silent.popleft()
            if not oldest.spoke and oldest.socket.fileno() >= 0:
                self._drop(oldest)
                return True
        return False

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
                peer.spoke = True
        except BadMessage:
            self._drop(peer)

    def pid(self, peer: bytes, said: int = 0) -> int:
        """The id of the process that made this connection, from the system; 0 if it is not known. Over TCP the process
        must have sent its id (`said`) once."""
        found = self._by_name.get(peer)
        if found is None:
            return 0
        if said and not found.pid and found.guesses < GUESSES:
            found.guesses += 1
            found.pid = pid_of(found.socket, said)
        return found.pid

    def user(self, peer: bytes) -> None:
        """See Router. Here no keys are needed: every process of this machine that may open the socket can connect."""
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
            found.closing_s = time.monotonic() + CLOSE_S
            self._closing.append(found)

    def lost(self) -> list[bytes]:
        """The peers found lost since the last call. To be called at least every 100 ms or so."""
        now = time.monotonic()
        if self._deaf:
            self._deaf = False
            self._epoll.register(self._listener, select.EPOLLIN)
        if self._closing:
            self._end(now)
        while self._silent and (self._silent[0].spoke or self._silent[0].since_s + SILENT_S < now):
            stranger = self._silent.popleft()
            if not stranger.spoke:
                self._drop(stranger)
        # Their last messages come first: a peer is reported as lost when everything it sent was received.
        if self._came:
            return []
        lost, self._lost = self._lost, []
        return lost

    def _end(self, now: float) -> None:
        """Close connections that were cut off. One that has got everything is told so, and closes its end first: if
        ours were closed while there is something to read, TCP would throw away what the other has not read."""
        for peer in list(self._closing):
            if now >= peer.closing_s or peer.socket.fileno() < 0:
                self._closing.remove(peer)
                self._drop(peer)
            elif not peer.out.left and not peer.ended:
                peer.ended = True
                with suppress(OSError):
                    peer.socket.shutdown(socket.SHUT_WR)

    def _drop(self, peer: _Connection) -> None:
        fd = peer.socket.fileno()
        if fd < 0:
            return
        del self._peers[fd], self._by_name[peer.name]
        self._epoll.unregister(fd)
        with suppress(OSError):
            peer.socket.shutdown(socket.SHUT_RDWR)
        peer.socket.close()
        if peer.spoke and not peer.closing_s:
            self._lost.append(peer.name)

    def close(self) -> None:
        """Wait a moment for queued messages to be sent, then close everything."""
        deadline_s = time.monotonic() + CLOSE_S
        for peer in list(self._peers.values()):
            ready = select.poll()
            with suppress(OSError):
                ready.register(peer.socket, select.POLLOUT)
                while not peer.out.flush() and time.monotonic() < deadline_s:
                    ready.poll(50)
            self._drop(peer)
        self._epoll.close()
        self._listener.close()
        if self._path:
            with suppress(OSError):
                os.unlink(self._path)


def _listen_here(path: str, address: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with suppress(OSError):
        if stat.S_ISSOCK(os.stat(path).st_mode) and not _listens(path):
            os.unlink(path)  # left by a server that was killed
    try:
        if not path:  # the system would choose a name
            raise FileNotFoundError("the path is empty")
        made.bind(path)
        made.listen(BACKLOG)
    except OSError as e:
        made.close()
        raise StartError(f"cannot serve on {address}: {e.strerror or e}") from None
    return made


def _listen_tcp(address: str) -> socket.socket:
    if not is_loopback(address):
        raise StartError(f"cannot serve on {address} without keys: other machines can reach it")
    host, port = host_and_port(address)
    try:
        return socket.create_server((host, port), backlog=BACKLOG)
    except OSError as e:
        if e.errno == errno.EADDRINUSE:
            raise StartError(f"port {port} on {host} is in use; choose another with -p") from None
        raise StartError(f"cannot serve on {host}:{port}: {os.strerror(e.errno or 0)}") from None


def _listens(path: str) -> bool:
    """Whether a process accepts connections at this Unix socket."""
    with socket.socket(socket.AF_UNIX) as s:
        try:
            s.connect(path)
        except OSError:
            return False
        return True
