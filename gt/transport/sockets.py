"""Connections: sockets of the system, TCP between machines and Unix sockets on one. Both are streams of messages.

`SocketChannel` is a client's or worker's end; router.py has the dispatcher's. Whoever waits for a message waits on the
socket itself, so a message wakes one thread at its receiver, and none at its sender.

Law 1: sending never drops silently. A client's side may wait for the server to read, at most STALL_S.
Law 2: if a send is interrupted (Ctrl-C), the stream stays intact: what is left is sent first next time.
Law 3: the other side sees the end of a connection at once, after everything that was sent on it. A machine that
       vanished without closing its connections is noticed after VANISHED_S.
Law 4: a connection is never made again behind the owner's back: the dispatcher has forgotten its session.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections import deque
from contextlib import suppress

from gt.errors import ServerError
from gt.transport.frames import SendBuffer, Stream
from gt.transport.messages import BadMessage, Buffer, Message, decode_all, encode_all

STALL_S = 30.0  #: How long a client waits for a server that does not read.
CONNECT_S = 5.0  #: How long a connection may take to be made.
VANISHED_S = 20  #: How long the other machine may be silent, which its system never is while it runs.


def endpoint(address: str) -> str:
    """The address with the host's name looked up.

    >>> endpoint("127.0.0.1:12345")
    'tcp://127.0.0.1:12345'
    """
    host, colon, port = address.removeprefix("tcp://").rpartition(":")
    if "://" in host or not colon or not host:
        raise ServerError(f"address {address!r} must have the form host:port or ipc:///path")
    if not port.isdecimal() or not port.isascii() or int(port) > 65535:
        raise ServerError(f"address {address!r}: port must be a number from 0 to 65535, got {port!r}")
    try:
        found = socket.getaddrinfo(host, int(port), socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise ServerError(f"address {address!r}: unknown host {host!r}") from None
    return f"tcp://{found[0][4][0]}:{int(port)}"


def host_and_port(address: str) -> tuple[str, int]:
    """Where that is, as sockets want it."""
    host, _, port = endpoint(address).removeprefix("tcp://").rpartition(":")
    return host, int(port)


def prepare(sock: socket.socket) -> None:
    """Make a new connection fit for messages."""
    sock.setblocking(False)
    with suppress(OSError):
        # Room for a few chunks. With the system's default buffer a large transfer takes many more wake-ups.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        if sock.family == socket.AF_INET:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a small message is sent at once
            # The system asks the other machine every few seconds whether it is there, and answers when it is asked: a
            # peer that is busy computing is not lost.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, VANISHED_S // 4)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, VANISHED_S // 4)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, VANISHED_S * 1000)


def _connect(address: str) -> socket.socket:
    try:
        if address.startswith("ipc://"):
            made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                made.connect(address.removeprefix("ipc://"))
            except BaseException:
                made.close()
                raise
            return made
        return socket.create_connection(host_and_port(address), CONNECT_S)
    except OSError:
        raise ServerError(f"no server at {address}; start one with: gt serve") from None


class SocketChannel:
    """A client's or worker's connection; see `gt.transport.channel.Channel`. One thread at a time."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._pid = os.getpid()
        self._broken = ""  #: Why the connection cannot be used any more; "": it can.
        self._answered = False
        self._socket = _connect(address)
        prepare(self._socket)
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
        left, deadline_s = self._out.nbytes, time.monotonic() + STALL_S
        while not self._out.flush():
            if self._out.nbytes < left:
                left, deadline_s = self._out.nbytes, time.monotonic() + STALL_S
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
                    self._answered = True
            except BadMessage as e:
                self._break(
                    f"the server at {self.address} sent an invalid message: {e}"
                    if self._answered
                    else f"the process that listens at {self.address} is not a GT server"
                )
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
        self._broken = "the connection to the server is closed"
