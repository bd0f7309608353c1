"""Connections on one machine: a client's or worker's end. Unix sockets, and TCP within the machine.

Between machines connections are encrypted, and ZeroMQ's: sockets.py. ZeroMQ hands every message to a thread of its own
on both sides. Between processes of one machine that costs more than everything else: for a call and its fetch 12
threads are woken with ZeroMQ, and 4 without.

Law 1: sending never drops silently. The server's side never blocks: it queues, and a peer that does not read is cut
       off (plain_router.py). A client's side may wait for the server to read, at most STALL_S.
Law 2: if a send is interrupted (Ctrl-C), the stream stays intact: what is left is sent first next time.
Law 3: the other side sees the end of a connection at once, after everything that was sent on it.
Law 4: a connection is never made again behind the owner's back: the dispatcher has forgotten its session.
Law 5: nothing is sent to another machine.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections import deque
from contextlib import suppress

from gt.errors import ServerError
from gt.transport.addresses import host_and_port, is_loopback, needs_key, no_server, not_gt
from gt.transport.frames import ZEROMQ, FrameReader, NotOurs, SendBuffer
from gt.transport.messages import BadMessage, Buffer, Message, decode_all, encode_all

STALL_S = 30.0  #: How long a client waits for a server that does not read.
CONNECT_S = 5.0  #: How long a connection may take to be made.
GREETING_S = 0.5  #: How long ZeroMQ, which speaks at once, may take to do so.
VANISHED_S = 20  #: How long the system at the other end, which may be that of a tunnel, may be silent.


def prepare(sock: socket.socket) -> None:
    """Set the options of a new connection."""
    sock.setblocking(False)
    with suppress(OSError):
        # Room for a few chunks. With the system's default buffer a large transfer takes many more wake-ups.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        if sock.family == socket.AF_INET:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a small message is sent at once
            # The systems ask each other every few seconds. A peer that is busy computing is not lost.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, VANISHED_S // 4)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, VANISHED_S // 4)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


def _connect(address: str) -> socket.socket:
    unix = address.startswith("ipc://")
    made = socket.socket(socket.AF_UNIX if unix else socket.AF_INET, socket.SOCK_STREAM)
    try:
        if unix:
            made.connect(address.removeprefix("ipc://"))
            return made
        made.settimeout(CONNECT_S)
        made.connect(host_and_port(address))
    except OSError as e:
        made.close()
        raise (e if isinstance(e, ServerError) else ServerError(no_server(address))) from None
    except BaseException:
        made.close()
        raise
    if not is_loopback(address):
        # A server that other machines can reach always needs a key: without one nothing is sent to it.
        made.close()
        raise ServerError(needs_key(address))
    return made


class PlainChannel:
    """A client's or worker's connection; see `gt.transport.channel.Channel`. One thread at a time."""

    local = True

    def __init__(self, address: str) -> None:
        self.address = address
        self._pid = os.getpid()
        self._broken = ""  #: Why the connection cannot be used any more; "": it can.
        self._answered = False
        self._socket = _connect(address)
        prepare(self._socket)
        self._stream = FrameReader()
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
        except ServerError:
            raise
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
                self._break(self._ended())
                return True
            try:
                for frames in self._stream.feed(data):
                    self._came.extend(decode_all(frames))
                    self._answered = True
            except BadMessage as e:
                self._break(self._stranger(e))
                return True
            if self._came:
                self._drained = len(data) < room
                return True

    def _ended(self) -> str:
        """Why the other side may have closed the connection."""
        if not self._answered and not self._broken and _speaks_zeromq(self.address):
            return needs_key(self.address)
        return f"the connection to the server at {self.address} is lost"

    def _stranger(self, error: BadMessage) -> str:
        """Why the other side may have sent something that is no message."""
        if self._answered:
            return f"the server at {self.address} sent an invalid message: {error}"
        return needs_key(self.address) if type(error) is NotOurs else not_gt(self.address)

    def _break(self, why: str) -> None:
        self._broken = self._broken or why

    def fileno(self) -> int:
        """A descriptor that is readable while there is something to receive."""
        return self._socket.fileno()

    def leave(self) -> None:
        """See Channel. While any process has the socket open, the server does not see its end."""
        if os.getpid() != self._pid:
            self._socket.close()

    def close(self) -> None:
        """Send what is queued, then close. Does nothing in a forked child: the socket is the parent's."""
        if os.getpid() != self._pid or self._socket.fileno() < 0:
            return
        with suppress(OSError, ServerError):
            self._out.flush()
            self._socket.shutdown(socket.SHUT_WR)
        self._socket.close()
        self._broken = self._broken or "the connection to the server is closed"


def _speaks_zeromq(address: str) -> bool:
    """Whether the server is one with keys. It may close the connection of a stranger before it has said so itself."""
    if address.startswith("ipc://"):
        return False
    try:
        with socket.create_connection(host_and_port(address), GREETING_S) as other:
            return other.recv(len(ZEROMQ)).startswith(ZEROMQ[:1])
    except OSError:
        return False
