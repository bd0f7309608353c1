"""Connections between machines: ZeroMQ. `SocketChannel` is a client's or worker's end; router.py has the dispatcher's.

Law 1: sending never blocks and never drops silently. What cannot be sent breaks the connection, and
       the next call on a broken connection raises.
Law 2: a connection is never made again behind the owner's back: the dispatcher has forgotten its session.
Law 3: a channel reports how much it has read, so that the other end can count what it has not.
Law 4: what takes back the memory of payloads outlives every channel. ZeroMQ's threads hand that memory to a thread of
       pyzmq, which pyzmq would end before sessions are closed: whoever waits for ZeroMQ then may wait forever.

Two things are sent besides messages, both beginning with an empty frame: `[""]` is a probe (sending it tells
whether a peer is still there; the receiver ignores it), `["", n]` says that the channel has read n more
bytes. ZeroMQ itself can do neither.
"""

from __future__ import annotations

import atexit
import math
import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import zmq
import zmq.backend
from zmq.utils.garbage import gc as payloads
from zmq.utils.monitor import parse_monitor_message

from gt.errors import ServerError
from gt.transport.addresses import endpoint, needs_key, no_server, not_gt
from gt.transport.curve import use_key
from gt.transport.identity import Key
from gt.transport.messages import MAX_FRAME, BadMessage, Buffer, Message, decode_all, encode_all

COPIED_NBYTES = 64 << 10  #: A payload shorter than this is copied when sent.
MESSAGE_OVERHEAD = 64  #: Bytes that a message takes in a queue besides its own.
ACK_EVERY = 1 << 20  #: A channel reports what it has read after so many bytes.
LINGER_MS = 500  #: How long a closing socket may take to send what is queued.
_NEVER_MS = 86_400_000

NOBLOCK = int(zmq.NOBLOCK)
SNDMORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_HANDSHAKE_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)

atexit.unregister(payloads._atexit)  # law 4; it is a daemon thread, which ends with the process


def set_common(s: zmq.Socket[bytes]) -> None:
    s.linger = LINGER_MS
    s.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME)
    s.setsockopt(zmq.HANDSHAKE_IVL, 5_000)
    # Finds a machine that vanished without closing its connections. ZeroMQ's own thread answers, so a peer that is
    # busy computing is not lost.
    s.setsockopt(zmq.HEARTBEAT_IVL, 5_000)
    s.setsockopt(zmq.HEARTBEAT_TIMEOUT, 20_000)


def set_lifetime(s: zmq.Socket[bytes], silent_s: float) -> None:
    """Let the other side give up this connection when it has heard nothing for so long. That begins with the first sign
    of life, so there are many."""
    s.setsockopt(zmq.HEARTBEAT_IVL, 200)
    s.setsockopt(zmq.HEARTBEAT_TTL, int(1000 * silent_s))


def raw_send(s: zmq.Socket[bytes]) -> Callable[..., Any]:
    """`s.send(frame, flags, copy)` without pyzmq's Python layer, which costs as much as the send."""
    return cast(Callable[..., Any], zmq.backend.Socket.send.__get__(s))


def raw_events(s: zmq.Socket[bytes]) -> Callable[[], bool]:
    """A function that tells whether there is something to receive. The exception that `recv` raises otherwise costs
    more than a whole receive."""
    get, events, there = zmq.backend.Socket.get.__get__(s), int(zmq.EVENTS), int(zmq.POLLIN)
    return lambda: bool(get(events) & there)


def send_body(send: Callable[..., Any], frames: list[Any]) -> int:
    """Send the frames as one message; returns the bytes that they take in a queue."""
    total = MESSAGE_OVERHEAD
    last = len(frames) - 1
    for i, frame in enumerate(frames):
        flags = SNDMORE if i < last else NOBLOCK
        if type(frame) is bytes and len(frame) < COPIED_NBYTES:
            send(frame, flags)
            total += len(frame)
            continue
        size = frame.nbytes if isinstance(frame, memoryview) else len(frame)
        whole = frame.obj if isinstance(frame, memoryview) else None
        if isinstance(whole, zmq.Frame) and len(whole) == size:
            send(whole, flags, False)  # relayed: the frame itself goes on, its bytes are not touched
        else:
            try:
                send(frame, flags, size < COPIED_NBYTES)
            except RuntimeError:
                send(frame, flags)  # while the process exits, Python may start no thread, not even pyzmq's of law 4
        total += size
    return total


class SocketChannel:
    """A client's or worker's connection to the dispatcher; see `gt.transport.channel.Channel`.

    One thread at a time may use it. A payload of 64 KiB or more is not copied by `send`: it must not
    change afterwards.
    """

    local = False

    def __init__(self, address: str, key: Key | None = None, silent_s: float | None = None) -> None:
        self.address = address
        where = endpoint(address)
        self._key = key
        self._pid = os.getpid()
        self._closed = False
        self._connected = self._answered = False
        self._broken = ""  #: Why the connection cannot be used any more; "": it can.
        self._news = False  #: The monitor has events.
        self._empty = 0  #: How often there was nothing to receive. Every 16th time the monitor is read.
        self._came: deque[tuple[Message, Buffer | None]] = deque()  #: Read, not yet received.
        self._unreported = 0  #: Bytes read and not yet reported.
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        self._send, self._there = raw_send(self._socket), raw_events(self._socket)
        set_common(self._socket)
        if silent_s is not None:
            set_lifetime(self._socket, silent_s)
        self._socket.sndhwm = 0
        if key is not None:
            use_key(self._socket, key)
        # Not -1: with it ZeroMQ drops the server's last messages when the connection ends.
        self._socket.setsockopt(zmq.RECONNECT_IVL, _NEVER_MS)
        self._monitor: zmq.Socket[bytes] = self._socket.get_monitor_socket(
            zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | _HANDSHAKE_FAILED
        )
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        try:
            self._socket.connect(where)
        except zmq.ZMQError as e:
            self.close()
            raise ServerError(f"cannot connect to {address}: {e}") from None

    def send(self, message: Message, payload: Buffer | None = None) -> None:
        self.send_all([(message, payload)])

    def send_all(self, messages: list[tuple[Message, Buffer | None]]) -> None:
        if self._broken or self._closed:
            raise ServerError(self._broken or "the connection to the server is closed")
        try:
            for frames in encode_all(messages):
                send_body(self._send, frames)
        except zmq.ZMQError as e:
            raise ServerError(f"cannot send to the server at {self.address}: {e}") from None

    def receive(self, timeout_s: float = 0.0) -> tuple[Message, Buffer | None] | None:
        if self._came:
            return self._came.popleft()
        deadline: float | None = None
        while True:
            if self._closed:
                raise ServerError("the connection to the server is closed")
            frames = self._receive_now()
            if frames is not None:
                if not frames[0]:
                    continue  # a probe
                self._came.extend(self._decode(frames))
                return self._came.popleft()
            if self._broken:
                raise ServerError(self._broken)
            self._empty += 1
            if (self._news or self._empty & 15 == 0) and self._look_at_monitor():
                # The last messages may become readable just after the event of the end.
                self._socket.poll(20)
                continue
            if timeout_s <= 0:
                return None
            now = time.monotonic()
            if deadline is None:
                deadline = now + timeout_s
            elif now >= deadline:
                return None
            ready = self._poller.poll(max(0, math.ceil((deadline - now) * 1000)))
            self._news = self._news or any(s is self._monitor for s, _ in ready)

    def fileno(self) -> int:
        """A descriptor that becomes readable when something may have come. It is edge-triggered: call
        `receive()` until it returns None before sleeping on it."""
        return int(self._socket.getsockopt(zmq.FD))

    def leave(self) -> None:
        """See Channel. ZeroMQ's thread, which gives signs of life, is in the parent alone."""

    def close(self) -> None:
        """Send what is queued, then close. Does nothing in a forked child: the socket is the parent's."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(0 if self._broken else LINGER_MS)
        self._context.term()

    def _decode(self, frames: list[Buffer]) -> list[tuple[Message, Buffer | None]]:
        try:
            decoded = decode_all(frames)
        except BadMessage as e:
            # ZeroMQ takes some other protocols for an old version of its own.
            self._broken = (
                f"the server at {self.address} sent an invalid message: {e}" if self._answered else not_gt(self.address)
            )
            raise ServerError(self._broken) from None
        self._answered = True
        return decoded

    def _receive_now(self) -> list[Buffer] | None:
        try:
            if not self._there():
                return None
            frame = self._socket.recv(NOBLOCK, copy=False)
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
            with suppress(zmq.ZMQError):  # the monitor reports a connection that ended
                self._socket.send(b"", SNDMORE)
                self._socket.send(self._unreported.to_bytes(8, "little"), NOBLOCK)
            self._unreported = 0
        return frames

    def _look_at_monitor(self) -> bool:
        """Read the monitor's events; whether the connection is broken."""
        self._news = False
        for event, _ in monitor_events(self._monitor):
            if event == zmq.EVENT_CONNECTED:
                self._connected = True
            elif event & _HANDSHAKE_FAILED:
                self._broken = self._not_admitted(event)
            elif not self._broken:
                lost = f"the connection to the server at {self.address} is lost"
                self._broken = lost if self._connected else no_server(self.address)
        return bool(self._broken)

    def _not_admitted(self, event: int) -> str:
        """Why the two ends did not come to terms."""
        if self._key is None:
            return needs_key(self.address)
        if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            return f"the server at {self.address} does not know this key; it was revoked, or is of another server"
        return (
            f"the server at {self.address} does not have the key that the connection URL names: it is another server, "
            "or one that needs no key"
        )


def monitor_events(monitor: zmq.Socket[bytes]) -> list[tuple[int, int]]:
    """The (event, value) pairs that have come."""
    events = []
    with suppress(zmq.Again):
        while True:
            event = parse_monitor_message(monitor.recv_multipart(NOBLOCK))
            events.append((int(event["event"]), int(event["value"])))
    return events
