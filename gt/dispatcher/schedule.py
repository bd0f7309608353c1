"""Whose call goes to a worker next: deficit round-robin over measured run time.

Law 1: at most CREDITS calls are on a worker, and beyond two of them no more than AHEAD_US of
       estimated work: the next call never waits behind more than that.
Law 2: while sessions compete, each is given the same run time, whatever the number or length of
       its calls.
Law 3: a worker is never idle while a session has a call for it alone.
Law 4: a call for several workers takes credit on all of them or on none, and no call waits for ever.

Each session has a deficit: run time it may still use. A session with some left may send; the call's
estimated time is taken off, and corrected when the worker reports the real time. When no session has any left,
all that wait are given as many quanta as it takes for one of them to go on. A debt outlives a pause,
less the time that passed: a session that waits for each result is charged too. A session that is alone
always goes on.

A session waits in the ring of its first worker. A call for that worker alone stays there until there is room. A call
that needs others too, and finds no room on some, leaves the ring and claims room on all of them: from then on only who
claimed before it goes first there. Claims are made on all lanes at once and served in the order they were made, so the
oldest is first on each of its lanes, and calls under way come to an end: it never waits for one that waits for it.
Between two calls from other rings, a lane's own ring may use as much time as they do.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gt.dispatcher.session import Session

CREDITS = 16
AHEAD_US = 20_000
QUANTUM_US = 1_000
#: What a program is thought to take before it has run: so much that few such calls are sent at once.
UNKNOWN_US = AHEAD_US // 2
MAX_RUN_US = 3_600_000_000  #: longer reports are not believed


class Lane:
    """One worker's credits, and the sessions that wait for them."""

    __slots__ = ("ahead_us", "calls", "claims", "number", "owed_us", "ring")

    def __init__(self, number: int = 0) -> None:
        self.number = number  #: the worker's
        self.calls = 0  #: sent and not finished
        self.claims: list[Session] = []  #: sessions that wait for room here and elsewhere, longest first
        self.owed_us = 0  #: what the ring may send before a claim from another ring is served
        self.ahead_us = 0  #: what they were estimated to take
        self.ring: deque[Session] = deque()  #: sessions whose head is ready; the first is served

    def enlist(self, session: Session, now_s: float) -> None:
        """The session has a call that is ready."""
        if session.ring is not None:
            return
        if session.deficit_us < 0:
            forgiven_us = int((now_s - session.left_s) * 1e6)
            session.deficit_us = min(0, session.deficit_us + max(0, forgiven_us))
        session.ring = self
        self.ring.append(session)

    def leave(self, session: Session, now_s: float) -> None:
        """It has none any more. What it was given and did not use is not saved up."""
        session.ring = None
        self.ring.remove(session)
        session.deficit_us = min(0, session.deficit_us)
        session.left_s = now_s

    def has_room(self, cost_us: int) -> bool:
        return self.calls < CREDITS and (self.calls < 2 or self.ahead_us + cost_us <= AHEAD_US)

    def next(self) -> Session | None:
        """Whose turn it is. The turn lasts until the deficit is used up."""
        ring = self.ring
        if not ring or self.calls >= CREDITS:
            return None
        first = ring[0]
        if len(ring) == 1:
            # There is no other session: it owes no more than what is still on the worker.
            first.deficit_us = -self.ahead_us
            return first
        if first.deficit_us > 0:
            return first
        if all(s.deficit_us <= 0 for s in ring):
            given_us = QUANTUM_US * min(-s.deficit_us // QUANTUM_US + 1 for s in ring)
            for s in ring:
                s.deficit_us += given_us
        while ring[0].deficit_us <= 0:
            ring.rotate(-1)
        return ring[0]

    def take_own(self, session: Session, cost_us: int) -> bool:
        """Take credit for a call to this worker alone, of a session in its ring, if there is room."""
        if not self.has_room(cost_us) or (self.claims and not self.owed_us):
            return False
        session.deficit_us -= cost_us
        self.calls += 1
        self.ahead_us += cost_us
        if self.owed_us:
            self.owed_us = max(0, self.owed_us - cost_us)
        return True

    def admits(self, session: Session, cost_us: int) -> bool:
        """Whether any other call may take credit here now."""
        if not self.has_room(cost_us) or (self.claims and self.claims[0] is not session):
            return False
        return self._has(session) or not (self.ring and self.owed_us > 0)

    def take(self, session: Session, cost_us: int) -> None:
        """Take credit for such a call. If it came from another ring, this one may now use as much."""
        self.calls += 1
        self.ahead_us += cost_us
        if self._has(session):
            self.owed_us = max(0, self.owed_us - cost_us)
        else:
            self.owed_us = cost_us if self.ring else 0

    def _has(self, session: Session) -> bool:
        """Whether the session waits for its turns in this ring."""
        return self.number == next(iter(session.workers), -1)  # its first worker

    def give_back(self, cost_us: int) -> None:
        self.calls -= 1
        self.ahead_us -= cost_us


def settle(session: Session, cost_us: int, run_us: int) -> None:
    """A call that was charged `cost_us` took `run_us`."""
    session.deficit_us += cost_us - run_us
    if session.ring is None:
        session.deficit_us = min(0, session.deficit_us)


def claim(session: Session, lanes: tuple[Lane, ...], now_s: float) -> bool:
    """A session's call waits for room on these lanes, and in no ring; whether that is new."""
    if session.ring is not None:
        session.ring.leave(session, now_s)
    if session.claims == lanes:
        return False
    unclaim(session)
    session.claims = lanes
    for lane in lanes:
        lane.claims.append(session)
    return True


def unclaim(session: Session) -> tuple[Lane, ...]:
    """A session gives up its claims; returns the lanes that may now have room for others."""
    lanes, session.claims = session.claims, ()
    for lane in lanes:
        lane.claims.remove(session)
    return lanes


def estimate(before_us: int, run_us: int, runs: int) -> int:
    """What a program is thought to take, after it took `run_us` in its `runs`-th run."""
    # The first run pays for code generation and first allocations; the second tells more.
    return run_us if runs <= 2 else before_us + (run_us - before_us) // 8
