"""A channel: what a client or worker sees of the dispatcher, whatever carries it.

`sockets.py` has the one on ZeroMQ. The one here lives in memory: tests and the simulator run a
whole cluster in one process on it. It passes every message through the codec, like the wire.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from gt.transport import codec
from gt.transport.codec import Buffer
from gt.transport.messages import Message


class Channel(Protocol):
    """Ordered, reliable until it breaks; never blocks to send."""

    local: bool  #: The dispatcher is on this machine and knows which process this is.

    def send(self, message: Message, payload: Buffer | None = None) -> None:
        """Queue a message. The payload is copied or never changed afterwards."""

    def send_all(self, messages: list[tuple[Message, Buffer | None]]) -> None:
        """Queue several messages; they travel together."""

    def receive(self, timeout_s: float = 0.0) -> tuple[Message, Buffer | None] | None:
        """The next message, or None if none came in time. Raises ServerError once broken."""

    def close(self) -> None: ...


class MemoryChannel:
    """One end of a pair of queues."""

    local = False

    def __init__(self) -> None:
        self.inbox: deque[list[Buffer]] = deque()
        self.outbox: deque[list[Buffer]] = deque()

    def send(self, message: Message, payload: Buffer | None = None) -> None:
        self.outbox.append(codec.encode(message, None if payload is None else bytes(payload)))

    def send_all(self, messages: list[tuple[Message, Buffer | None]]) -> None:
        for message, payload in messages:
            self.send(message, payload)

    def receive(self, timeout_s: float = 0.0) -> tuple[Message, Buffer | None] | None:
        return codec.decode(self.inbox.popleft()) if self.inbox else None

    def close(self) -> None:
        self.inbox.clear()

    def other_end(self) -> MemoryChannel:
        other = MemoryChannel()
        other.inbox, other.outbox = self.outbox, self.inbox
        return other
