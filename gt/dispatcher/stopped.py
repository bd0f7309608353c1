"""Workers of this machine that were stopped (SIGSTOP, Ctrl-Z) are lost after a while, for others wait for them.

Workers of a server with users are given up by ZeroMQ when there is no sign of life (transport/sockets.py). Sockets of
our own have no such sign: there the system knows in which state a process is (transport/addresses.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

LOOK_S = 1.0  #: How often to look.
STOPPED_S = 5.0  #: For how long a worker may be stopped.


class Stopped:
    """Which workers were stopped, and since when."""

    def __init__(self) -> None:
        self._next_s = 0.0
        self._since_s: dict[bytes, float] = {}

    def look(self, now_s: float, peers: Iterable[bytes], pid_of: Callable[[bytes], int]) -> list[bytes]:
        """The connections of workers that have been stopped for too long."""
        if now_s < self._next_s:
            return []
        self._next_s = now_s + LOOK_S
        since = {peer: self._since_s.get(peer, now_s) for peer in peers if is_stopped(pid_of(peer))}
        self._since_s = since
        return [peer for peer, then_s in since.items() if now_s - then_s >= STOPPED_S]


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal. One that a debugger holds is not counted."""
    if not pid:
        return False
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state == "T"
