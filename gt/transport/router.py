"""The dispatcher's ZeroMQ socket: one for all clients and workers.

Law 1: sending never blocks, never drops silently and never raises. A peer that cannot be reached, or does
       not read, is lost, and `lost()` returns it.
Law 2: what a peer has not read yet is counted in bytes, and a peer that stops reading is cut off. So is the one that
       has read least when all of them together have too much to read.
Law 3: a peer is a connection, named by bytes that ZeroMQ chose. The name says nothing about who it is.
Law 4: with a ring of keys, who a peer is, is the key that it proved to own (curve.py). It is looked up in the ring for
       every message: nothing is read from a peer whose key was removed.
"""

from __future__ import annotations

import errno
import math
import os
import socket
import time
from collections import deque
from contextlib import suppress
from typing import Any

import zmq

from gt.errors import StartError
from gt.transport import sockets
from gt.transport.addresses import endpoint
from gt.transport.channel import Patience
from gt.transport.curve import Gate, serve_with
from gt.transport.identity import Keyring, User
from gt.transport.messages import MAX_FRAMES, Buffer
from gt.transport.sockets import COPIED_NBYTES, LINGER_MS, NOBLOCK, SNDMORE

MAX_QUEUED = 512 << 20  #: Bytes sent to a peer and not read by it; beyond this it is cut off.
ALL_QUEUED = 4 << 30  #: The same for all peers together: one user may have many connections.
SLOW = 16 << 20  #: A peer with less than this is not slow, and has no part in that.
#: Messages in the same queue. A peer that acknowledges what it has not read meets this limit.
MAX_QUEUED_MESSAGES = 16_384
SETTLE_S = 0.3  #: How long ZeroMQ takes to tear down a connection that ended,
LATE_S = 5.0  #: and how long it may take where its thread has to wait for a CPU.


class _Peer:
    """What the router knows of a connection."""

    __slots__ = ("cut", "fd", "key", "queued")

    def __init__(self, fd: int) -> None:
        self.fd = fd  #: Its descriptor in this process. Certain after SETTLE_S.
        self.queued = 0  #: Bytes sent that it has not reported as read.
        self.cut = False  #: Nothing is read from it or sent to it any more.
        self.key = ""  #: The public key that it proved to own, where keys are needed.


class Router:
    """The dispatcher's socket: many peers, each named by the bytes ZeroMQ gave it.

    How a loss is noticed: the monitor says which descriptor was closed, and a probe then tells whether
    that was this peer, because the descriptor may already be in use again. A peer may also have ended before
    its first message was read, so each new peer is probed after SETTLE_S. The monitor speaks before the connection
    is torn down, and once: so a peer that was still there after SETTLE_S is probed again after LATE_S.
    """

    def __init__(
        self, address: str, max_queued: int = MAX_QUEUED, ring: Keyring | None = None, all_queued: int = ALL_QUEUED
    ) -> None:
        where = endpoint(address)
        self.address = ""  #: Where peers connect to, once bound.
        self._max_queued, self._all_queued = max_queued, all_queued
        self._peers: dict[bytes, _Peer] = {}
        self._by_fd: dict[int, bytes] = {}
        self._lost: list[bytes] = []  #: Found lost, not yet reported.
        self._new: deque[tuple[float, bytes]] = deque()  #: (when to probe it, peer), soonest first.
        self._again: deque[tuple[float, bytes]] = deque()  #: The same, of those that were there then.
        self._doubtful: dict[bytes, float] = {}  #: Peer whose descriptor was closed: until when to probe it.
        self._to_close: deque[tuple[float, bytes]] = deque()  #: (when to close its connection, cut peer).
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self._send, self._there = sockets.raw_send(self._socket), sockets.raw_events(self._socket)
        sockets.set_common(self._socket)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        # With a domain ZeroMQ refuses its old protocols, for which it would take what a browser or a scanner sends.
        self._socket.setsockopt(zmq.ZAP_DOMAIN, b"gt")
        self._socket.sndhwm = MAX_QUEUED_MESSAGES
        self._ring = ring
        self._gate = Gate(self._context, ring) if ring is not None else None
        if ring is not None:
            serve_with(self._socket, ring)
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

    def wait(self, timeout_s: float, spin_s: float = 0.0, patience: Patience | None = None) -> bool:
        """Sleep until there may be a message, a lost peer, or a readable watched descriptor; whether to call `lost()`
        now. Never polls: ZeroMQ's own thread has to be woken anyway."""
        if self._doubtful or self._lost:
            timeout_s = min(timeout_s, 0.005)
        ready = self._poller.poll(max(0, math.ceil(timeout_s * 1000)))
        return bool(self._doubtful or self._lost) or any(s is self._monitor for s, _ in ready)

    def receive(self) -> tuple[bytes, list[Buffer]] | None:
        """The next message as (peer, frames), or None."""
        recv = self._socket.recv
        for _ in range(64):  # limits how long a peer that was cut off can keep us busy
            if not self._there():
                return None
            peer: bytes = recv(NOBLOCK)
            frame = recv(NOBLOCK, copy=False)
            state = self._peers.get(peer) or self._meet(peer, frame)
            frames: list[Buffer] = [frame.bytes]
            while frame.more:
                frame = recv(NOBLOCK, copy=False)
                if len(frames) <= MAX_FRAMES:  # one more than allowed is enough to refuse it
                    # Heads are short and decoded at once; payloads are only passed on.
                    frames.append(frame.bytes if len(frame) < COPIED_NBYTES else frame.buffer)
            if state.cut:
                continue
            if self._ring is not None:
                try:
                    state.key = str(frame.get("User-Id"))
                except zmq.ZMQError:
                    state.key = ""
                if state.key not in self._ring.users:
                    self._cut_lost(peer)
                    continue
            if frames[0]:
                return peer, frames
            if len(frames) == 2 and len(frames[1]) == 8:
                state.queued = max(0, state.queued - int.from_bytes(frames[1], "little"))
            elif len(frames) > 1:
                return peer, frames  # not a message: the decoder refuses it
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
            # It chose its own name, which could be that of another peer. Names from ZeroMQ begin with a zero byte.
            self.disconnect(peer)
        return state

    def pid(self, peer: bytes, said: int = 0) -> int:
        """See PlainRouter. Not known here: the process may be on any machine."""
        return 0

    def user(self, peer: bytes) -> User | None:
        """Who sent the last message on this connection; None where no keys are needed."""
        state = self._peers.get(peer)
        return self._ring.users.get(state.key) if self._ring is not None and state is not None else None

    def send(self, peer: bytes, frames: list[Any]) -> None:
        """Queue a message. A peer that is gone, or does not read, will be among `lost()`."""
        state = self._peers.get(peer)
        if state is None or state.cut:
            return
        try:
            self._send(peer, SNDMORE)
            state.queued += sockets.send_body(self._send, frames)
        except zmq.ZMQError as e:
            if e.errno == errno.EHOSTUNREACH:
                self._forget(peer)
            else:
                self._cut_lost(peer)
            return
        if state.queued > self._max_queued:
            self._cut_lost(peer)
        elif state.queued > SLOW:
            self._cut_slowest()

    def _cut_slowest(self) -> None:
        """Cut off the peer that has most to read, if all together have too much."""
        slow = {name: peer.queued for name, peer in self._peers.items() if peer.queued > SLOW and not peer.cut}
        if sum(slow.values()) > self._all_queued:
            self._cut_lost(max(slow, key=lambda name: slow[name]))

    def disconnect(self, peer: bytes) -> None:
        """Read nothing more from this peer; close its connection once what was sent has had time to
        arrive. It will not be among `lost()`."""
        state = self._peers.get(peer)
        if state is not None and not state.cut:
            state.cut = True
            self._to_close.append((time.monotonic() + SETTLE_S, peer))

    def lost(self) -> list[bytes]:
        """The peers found lost since the last call. To be called at least every 100 ms or so."""
        now = time.monotonic()
        self._drain_monitor(now)
        for peer, until in list(self._doubtful.items()):
            there = self._probe(peer)
            if not there or now >= until:
                self._doubtful.pop(peer, None)
                if there:
                    self._again.append((now + LATE_S, peer))
        while self._new and self._new[0][0] <= now:
            _, peer = self._new.popleft()
            if self._probe(peer):
                self._again.append((now + LATE_S, peer))
        while self._again and self._again[0][0] <= now:
            self._probe(self._again.popleft()[1])
        while self._to_close and self._to_close[0][0] <= now:
            self._close_connection(self._to_close.popleft()[1], now)
        lost, self._lost = self._lost, []
        return lost

    def close(self) -> None:
        """Wait a moment for queued messages to be sent, then close everything."""
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(LINGER_MS)
        if self._gate is not None:
            self._gate.close()
        self._context.term()

    def _drain_monitor(self, now: float) -> None:
        for event, fd in sockets.monitor_events(self._monitor):
            if event == zmq.EVENT_DISCONNECTED and fd in self._by_fd:
                self._doubtful[self._by_fd[fd]] = now + SETTLE_S

    def _probe(self, peer: bytes) -> bool:
        """Whether the peer is still there; if not, it counts as lost."""
        if peer not in self._peers:
            return False
        try:
            self._socket.send(peer, SNDMORE)
            self._socket.send(b"", NOBLOCK)
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
        """Close one connection. ZeroMQ cannot, so this shuts down its descriptor, which looks to ZeroMQ as if the peer
        had closed it."""
        state = self._peers.get(peer)
        if state is None or self._by_fd.get(state.fd) != peer:
            return
        try:
            copy = socket.socket(fileno=os.dup(state.fd))
        except OSError:
            return  # closed a moment ago
        with copy:
            # ZeroMQ announces the end of a connection before it closes the descriptor. If there is no such event after
            # the copy was made, the copy is of this peer's connection.
            self._drain_monitor(now)
            if peer not in self._doubtful:
                with suppress(OSError):
                    copy.shutdown(socket.SHUT_RDWR)
