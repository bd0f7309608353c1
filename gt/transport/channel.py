"""A channel: a connection of a client or worker to the dispatcher, as both of them use it; and how to wait on one.

plain.py has the channel for one machine, sockets.py the one between machines. The simulator has its own, in memory
(tests/sim/cluster.py).
"""

from __future__ import annotations

from typing import Protocol

from gt.transport.messages import Buffer, Message


class Channel(Protocol):
    """Ordered, and reliable until it breaks."""

    local: bool  #: The dispatcher is on this machine and knows which process this is.

    def send(self, message: Message, payload: Buffer | None = None) -> None:
        """Send a message. The payload must not change afterwards."""

    def send_all(self, messages: list[tuple[Message, Buffer | None]]) -> None:
        """Send several messages together."""

    def receive(self, timeout_s: float = 0.0) -> tuple[Message, Buffer | None] | None:
        """The next message, or None if none came in time. Raises ServerError once broken."""

    def leave(self) -> None:
        """In a forked child: have no part in the connection, which ends with the parent."""

    def close(self) -> None: ...


class Patience:
    """Decides whether to poll for a moment before sleeping. Polling pays where the other side answers at once, on
    another CPU. Where the other side waits for this CPU, polling only delays it. So: always while polling finds
    something, else ever more rarely, but never not at all."""

    MOST = 31  #: Turns to skip at most after one that found nothing.

    def __init__(self) -> None:
        self._pass = 0  #: Turns to skip now,
        self._next = 1  #: and after the next one that finds nothing.

    def wanted(self) -> bool:
        """Whether to poll this time."""
        if self._pass:
            self._pass -= 1
            return False
        return True

    def looked(self, found: bool) -> None:
        """Whether polling found something."""
        if found:
            self._next = 1
        else:
            self._pass, self._next = self._next, min(2 * self._next + 1, self.MOST)
