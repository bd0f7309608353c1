"""The wire: ZeroMQ sockets. `SocketChannel` is a client's or worker's end, `Router` the dispatcher's.

Law 1: sending never blocks and never drops silently. What cannot be sent breaks the connection, and
       a broken connection is told to its owner.
Law 2: a connection lives once. Nothing reconnects behind anyone's back: the other side has forgotten
       this session, so going on would be wrong.
Law 3: what a peer has not read yet is counted in bytes, and a peer that stops reading is cut off.

Two things travel besides messages, both beginning with an empty frame: `[""]` is a probe (a send tells
whether a peer is still there; the receiver ignores it), `["", n]` says that the channel has read n more
bytes. ZeroMQ itself can tell neither.
"""

from __future__ import annotations

import errno
import math
import os
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import zmq
import zmq.backend
from zmq.utils.monitor import parse_monitor_message

from gt.errors import ServerError, StartError
from gt.transport import codec
from gt.transport.codec import Buffer
from gt.transport.messages import MAX_FRAME, Message

MAX_QUEUED = 512 << 20  #: Bytes sent to a peer and not read by it; beyond this it is cut off.
#: Messages in the same queue. A peer that acknowledges what it has not read meets this limit.
MAX_QUEUED_MESSAGES = 16_384
COPIED_NBYTES = 64 << 10  #: A payload shorter than this is copied when sent.
MESSAGE_OVERHEAD = 64  #: What a message costs in a queue besides its bytes.
ACK_EVERY = 1 << 20  #: A channel says how much it has read each time this many bytes came.
LINGER_MS = 500  #: How long a closing socket may take to get its last words out.
SETTLE_S = 0.3  #: How long ZeroMQ may take to tear down a connection that ended.
_NEVER_MS = 86_400_000

_NOBLOCK = int(zmq.NOBLOCK)
_SNDMORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_HANDSHAKE_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_PROBE = b""


def endpoint(address: str) -> str:
    """The address as ZeroMQ writes it, with the host's name looked up.

    >>> endpoint("127.0.0.1:12345"), endpoint("ipc:///tmp/gt/s")
    ('tcp://127.0.0.1:12345', 'ipc:///tmp/gt/s')
    """
    if address.startswith("ipc://"):
        path = address.removeprefix("ipc://")
        if not path or len(os.fsencode(path)) > 107:
            raise ServerError(f"address {address!r}: a socket's path has 1 to 107 bytes")
        return address
    host, colon, port = address.removeprefix("tcp://").rpartition(":")
    if "://" in host or not colon or not host:
        raise ServerError(f"address {address!r} is not of the form host:port or ipc:///path")
    if not port.isdecimal() or not port.isascii() or int(port) > 65535:
        raise ServerError(f"address {address!r}: port {port!r} is not a number from 0 to 65535")
    try:
        found = socket.getaddrinfo(host, int(port), socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise ServerError(f"address {address!r}: host {host!r} is not known") from None
    return f"tcp://{found[0][4][0]}:{int(port)}"


def _set_common(s: zmq.Socket[bytes]) -> None:
    s.linger = LINGER_MS
    s.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME)
    s.setsockopt(zmq.HANDSHAKE_IVL, 5_000)
    # Finds a machine that vanished without closing its connections. The answer comes from ZeroMQ's own
    # thread, so a peer that is busy computing stays.
    s.setsockopt(zmq.HEARTBEAT_IVL, 5_000)
    s.setsockopt(zmq.HEARTBEAT_TIMEOUT, 20_000)


def _raw_send(s: zmq.Socket[bytes]) -> Callable[..., Any]:
    """`s.send(frame, flags, copy)` without pyzmq's layer of Python, which costs as much as the send."""
    return cast(Callable[..., Any], zmq.backend.Socket.send.__get__(s))


def _send_body(send: Callable[..., Any], frames: list[Any]) -> int:
    """Send head and payload; what they take in a queue."""
    head = frames[0]
    if len(frames) == 1:
        send(head, _NOBLOCK)
        return len(head) + MESSAGE_OVERHEAD
    payload = frames[1]
    send(head, _SNDMORE)
    size = payload.nbytes if isinstance(payload, memoryview) else len(payload)
    whole = payload.obj if isinstance(payload, memoryview) else None
    if isinstance(whole, zmq.Frame) and len(whole) == size:
        send(whole, _NOBLOCK, False)  # relayed: the frame itself goes on, its bytes are not touched
    else:
        send(payload, _NOBLOCK, size < COPIED_NBYTES)
    return len(head) + size + MESSAGE_OVERHEAD


class SocketChannel:
    """A client's or worker's connection to the dispatcher; see `gt.transport.channel.Channel`.

    One thread at a time may use it. A payload of 64 KiB or more is not copied by `send`: it must not
    change afterwards.
    """

    def __init__(self, address: str, monitor: bool = True) -> None:
        self.address = address
        where = endpoint(address)
        self._pid = os.getpid()
        self._closed = False
        self._connected = self._answered = False
        self._broken = ""  #: Why the connection is of no use any more; empty while it is.
        self._news = False  #: The monitor has something to say.
        self._empty = 0  #: How often there was nothing to receive. The monitor is asked every 16th time.
        self._unreported = 0  #: Bytes read that the dispatcher has not been told of.
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        self._send = _raw_send(self._socket)
        _set_common(self._socket)
        self._socket.sndhwm = 0
        # Not -1: with it ZeroMQ throws away the server's last words when the connection ends.
        self._socket.setsockopt(zmq.RECONNECT_IVL, _NEVER_MS)
        self._monitor: zmq.Socket[bytes] | None = None
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        if monitor:
            self._monitor = self._socket.get_monitor_socket(
                zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | _HANDSHAKE_FAILED
            )
            self._poller.register(self._monitor, zmq.POLLIN)
        self._extra_poller: tuple[int, zmq.Poller] | None = None
        try:
            self._socket.connect(where)
        except zmq.ZMQError as e:
            self.close()
            raise ServerError(f"cannot connect to {address}: {e}") from None

    def send(self, message: Message, payload: Buffer | None = None) -> None:
        if self._broken or self._closed:
            raise ServerError(self._broken or "the connection to the server is closed")
        try:
            _send_body(self._send, codec.encode(message, payload))
        except zmq.ZMQError as e:
            raise ServerError(f"cannot send to the server at {self.address}: {e}") from None

    def receive(self, timeout_s: float = 0.0) -> tuple[Message, Buffer | None] | None:
        deadline: float | None = None
        while True:
            if self._closed:
                raise ServerError("the connection to the server is closed")
            frames = self._receive_now()
            if frames is not None:
                if not frames[0]:
                    continue  # a probe
                return self._decode(frames)
            if self._broken:
                raise ServerError(self._broken)
            self._empty += 1
            if (self._news or self._empty & 15 == 0) and self._look_at_monitor():
                # The last words may become readable just after the news of the end.
                self._socket.poll(20)
                continue
            if timeout_s <= 0:
                return None
            now = time.monotonic()
            if deadline is None:
                deadline = now + timeout_s
            elif now >= deadline:
                return None
            self._poll(self._poller, deadline - now)

    def wait(self, timeout_s: float, extra_fd: int | None = None) -> bool:
        """Wait until `receive` may have something to say, or `extra_fd` is readable; False: neither."""
        poller = self._poller
        if extra_fd is not None:
            if self._extra_poller is None or self._extra_poller[0] != extra_fd:
                poller = zmq.Poller()
                for s, flags in self._poller.sockets:
                    poller.register(s, flags)
                poller.register(extra_fd, zmq.POLLIN)
                self._extra_poller = (extra_fd, poller)
            poller = self._extra_poller[1]
        deadline = time.monotonic() + timeout_s
        while not (self._broken or self._closed):
            ready = self._poll(poller, deadline - time.monotonic())
            if not self._news:
                return ready
            self._look_at_monitor()  # it may only say that the connection was made
        return True

    def fileno(self) -> int:
        """A descriptor that becomes readable when something may have come. It is edge-triggered: ask
        `wait(0)` before sleeping on it."""
        return int(self._socket.getsockopt(zmq.FD))

    def close(self) -> None:
        """Get the last words out, then close. In a forked child: nothing, the socket is the parent's."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        if self._monitor is not None:
            self._socket.disable_monitor()
            self._monitor.close(0)
        self._socket.close(0 if self._broken else LINGER_MS)
        self._context.term()

    def _poll(self, poller: zmq.Poller, timeout_s: float) -> bool:
        ready = poller.poll(max(0, math.ceil(timeout_s * 1000)))
        for s, _ in ready:
            if s is self._monitor:
                self._news = True
        return bool(ready)

    def _decode(self, frames: list[Buffer]) -> tuple[Message, Buffer | None]:
        try:
            decoded = codec.decode(frames)
        except codec.BadMessage as e:
            # ZeroMQ takes some other protocols for an old form of its own.
            self._broken = (
                f"the server at {self.address} sent what is no message: {e}" if self._answered else self._not_gt()
            )
            raise ServerError(self._broken) from None
        self._answered = True
        return decoded

    def _not_gt(self) -> str:
        return f"what listens at {self.address} is not a GT server"

    def _receive_now(self) -> list[Buffer] | None:
        try:
            frame = self._socket.recv(_NOBLOCK, copy=False)
        except zmq.Again:
            return None
        except zmq.ZMQError as e:
            raise ServerError(f"cannot receive from the server at {self.address}: {e}") from None
        frames: list[Buffer] = [frame.bytes]
        size = len(frame) + MESSAGE_OVERHEAD
        while frame.more:
            frame = self._socket.recv(copy=False)
            frames.append(frame.buffer)
            size += len(frame)
        self._unreported += size
        if self._unreported >= ACK_EVERY and not self._broken:
            with suppress(zmq.ZMQError):  # a connection that ended is found by the monitor
                self._socket.send(b"", _SNDMORE)
                self._socket.send(self._unreported.to_bytes(8, "little"), _NOBLOCK)
            self._unreported = 0
        return frames

    def _look_at_monitor(self) -> bool:
        """Whether the connection is found to be broken now."""
        if self._monitor is None:
            return False
        self._news = False
        for event, _ in _monitor_events(self._monitor):
            if event == zmq.EVENT_CONNECTED:
                self._connected = True
            elif event & _HANDSHAKE_FAILED:
                self._broken = self._not_gt()
            elif not self._broken:
                self._broken = (
                    f"the connection to the server at {self.address} is lost"
                    if self._connected
                    else f"no server at {self.address}; start one with: gt serve"
                )
        return bool(self._broken)


def _monitor_events(monitor: zmq.Socket[bytes]) -> list[tuple[int, int]]:
    """The (event, value) pairs that are there."""
    events = []
    with suppress(zmq.Again):
        while True:
            event = parse_monitor_message(monitor.recv_multipart(_NOBLOCK))
            events.append((int(event["event"]), int(event["value"])))
    return events


class _Peer:
    """What the router knows of a connection."""

    __slots__ = ("cut", "fd", "queued")

    def __init__(self, fd: int) -> None:
        self.fd = fd  #: Its descriptor in this process. Certain once it has been there for SETTLE_S.
        self.queued = 0  #: Bytes sent that it has not reported as read.
        self.cut = False  #: Nothing is read from it or sent to it any more.


class Router:
    """The dispatcher's socket: many peers, each named by the bytes ZeroMQ gave it.

    How a loss is noticed: the monitor says which descriptor was closed, and a probe then says whether
    that was this peer, for a descriptor may be in use again already. A peer may also have ended before
    its first message was read, so each newcomer is probed once after SETTLE_S.
    """

    def __init__(self, address: str, max_queued: int = MAX_QUEUED) -> None:
        where = endpoint(address)
        self.address = ""  #: Where peers connect to, once bound.
        self._max_queued = max_queued
        self._peers: dict[bytes, _Peer] = {}
        self._by_fd: dict[int, bytes] = {}
        self._lost: list[bytes] = []  #: Found lost, not yet reported.
        self._new: deque[tuple[float, bytes]] = deque()  #: (when to probe it, peer), soonest first.
        self._doubtful: dict[bytes, float] = {}  #: Peer whose descriptor was closed: when to stop doubting.
        self._to_close: deque[tuple[float, bytes]] = deque()  #: (when to close its connection, cut peer).
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self._send = _raw_send(self._socket)
        _set_common(self._socket)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.sndhwm = MAX_QUEUED_MESSAGES
        self._monitor: zmq.Socket[bytes] = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        try:
            self._bind(where)
        except StartError:
            self.close()
            raise
        bound = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.address = bound.removeprefix("tcp://")

    def _bind(self, where: str) -> None:
        if where.startswith("ipc://") and _listens(where.removeprefix("ipc://")):
            # ZeroMQ would take the path away from the server that listens there.
            raise StartError(f"{where} is in use; choose another address")
        try:
            self._socket.bind(where)
        except zmq.ZMQError as e:
            host, _, port = where.removeprefix("tcp://").rpartition(":")
            if e.errno == errno.EADDRINUSE:
                raise StartError(f"port {port} on {host} is in use; choose another with -p") from None
            if e.errno in (errno.EADDRNOTAVAIL, errno.ENODEV):
                raise StartError(f"host {host} is not an address of this machine") from None
            raise StartError(f"cannot serve on {where.removeprefix('tcp://')}: {os.strerror(e.errno or 0)}") from None

    def watch(self, fd: int) -> None:
        """Let `wait` also return when this descriptor is readable."""
        self._poller.register(fd, zmq.POLLIN)

    def wait(self, timeout_s: float) -> bool:
        """Sleep until a message, a lost peer, or a watched descriptor may be there; whether it is worth
        asking `lost()` now."""
        if self._doubtful or self._lost:
            timeout_s = min(timeout_s, 0.005)
        ready = self._poller.poll(max(0, math.ceil(timeout_s * 1000)))
        return bool(self._doubtful or self._lost) or any(s is self._monitor for s, _ in ready)

    def receive(self) -> tuple[bytes, list[Buffer]] | None:
        """The next message as (peer, frames), or None."""
        recv = self._socket.recv
        for _ in range(64):  # bounds how long a peer that was cut off can keep us busy
            try:
                peer: bytes = recv(_NOBLOCK)
            except zmq.Again:
                return None
            frame = recv(_NOBLOCK, copy=False)
            state = self._peers.get(peer) or self._meet(peer, frame)
            frames: list[Buffer] = [frame.bytes]
            while frame.more:
                frame = recv(_NOBLOCK, copy=False)
                if len(frames) < 3:  # a message has two; a third is enough to refuse it
                    frames.append(frame.buffer)
            if state.cut:
                continue
            if frames[0]:
                return peer, frames
            if len(frames) == 2 and len(frames[1]) == 8:
                state.queued = max(0, state.queued - int.from_bytes(frames[1], "little"))
            elif len(frames) > 1:
                return peer, frames  # an empty head is no message: let the decoder say so
        return None

    def _meet(self, peer: bytes, frame: zmq.Frame) -> _Peer:
        fd: int = frame.get(zmq.SRCFD)
        state = self._peers[peer] = _Peer(fd)
        now = time.monotonic()
        before = self._by_fd.get(fd)
        if before is not None:
            self._doubtful[before] = now + SETTLE_S
        self._by_fd[fd] = peer
        self._new.append((now + SETTLE_S, peer))
        if not peer.startswith(b"\0"):
            # It chose its own name. Ours begin with a zero byte; a stranger's could be made to clash.
            self.disconnect(peer)
        return state

    def send(self, peer: bytes, frames: list[Any]) -> None:
        """Queue a message. A peer that is gone, or does not read, will be among `lost()`."""
        state = self._peers.get(peer)
        if state is None or state.cut:
            return
        try:
            self._send(peer, _SNDMORE)
            state.queued += _send_body(self._send, frames)
        except zmq.ZMQError as e:
            if e.errno == errno.EHOSTUNREACH:
                self._forget(peer)
            else:
                self._cut_lost(peer)
            return
        if state.queued > self._max_queued:
            self._cut_lost(peer)

    def disconnect(self, peer: bytes) -> None:
        """Read nothing more from this peer; close its connection once what was sent has had time to
        arrive. It will not be among `lost()`."""
        state = self._peers.get(peer)
        if state is not None and not state.cut:
            state.cut = True
            self._to_close.append((time.monotonic() + SETTLE_S, peer))

    def lost(self) -> list[bytes]:
        """The peers found lost since the last time. To be asked at least every 100 ms or so."""
        now = time.monotonic()
        self._drain_monitor(now)
        for peer, until in list(self._doubtful.items()):
            if not self._probe(peer) or now >= until:
                self._doubtful.pop(peer, None)
        while self._new and self._new[0][0] <= now:
            self._probe(self._new.popleft()[1])
        while self._to_close and self._to_close[0][0] <= now:
            self._close_connection(self._to_close.popleft()[1], now)
        lost, self._lost = self._lost, []
        return lost

    def close(self) -> None:
        """Give what was sent a moment to get out, then close everything."""
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(LINGER_MS)
        self._context.term()
        if self.address.startswith("ipc://"):
            with suppress(OSError):
                os.unlink(self.address.removeprefix("ipc://"))

    def _drain_monitor(self, now: float) -> None:
        for event, fd in _monitor_events(self._monitor):
            if event == zmq.EVENT_DISCONNECTED and fd in self._by_fd:
                self._doubtful[self._by_fd[fd]] = now + SETTLE_S

    def _probe(self, peer: bytes) -> bool:
        """Whether the peer is still there; if not, it is lost."""
        if peer not in self._peers:
            return False
        try:
            self._socket.send(peer, _SNDMORE)
            self._socket.send(_PROBE, _NOBLOCK)
        except zmq.ZMQError as e:
            if e.errno == errno.EHOSTUNREACH:
                self._forget(peer)
                return False
            self._cut_lost(peer)
        return True

    def _forget(self, peer: bytes) -> None:
        state = self._peers.pop(peer)
        self._doubtful.pop(peer, None)
        if self._by_fd.get(state.fd) == peer:
            del self._by_fd[state.fd]
        if not state.cut:
            self._lost.append(peer)

    def _cut_lost(self, peer: bytes) -> None:
        if not self._peers[peer].cut:
            self.disconnect(peer)
            self._lost.append(peer)

    def _close_connection(self, peer: bytes, now: float) -> None:
        """ZeroMQ cannot close one connection of many, so this shuts its descriptor down; ZeroMQ then
        sees the end as if the peer had closed."""
        state = self._peers.get(peer)
        if state is None or self._by_fd.get(state.fd) != peer:
            return
        try:
            copy = socket.socket(fileno=os.dup(state.fd))
        except OSError:
            return  # closed a moment ago
        with copy:
            # The end of a connection is announced before its descriptor is closed: with no news of it
            # after the copy was made, the copy is of this peer's connection and of no other.
            self._drain_monitor(now)
            if peer not in self._doubtful:
                with suppress(OSError):
                    copy.shutdown(socket.SHUT_RDWR)


def _listens(path: str) -> bool:
    """Whether a process accepts connections at this Unix socket."""
    with socket.socket(socket.AF_UNIX) as s:
        try:
            s.connect(path)
        except OSError:
            return False
        return True
