"""Whose call goes to a worker next: deficit round-robin over measured run time.

Law 1: at most CREDITS calls are on a worker, and beyond two of them no more than AHEAD_US of
       estimated work: the next call never waits behind more than that.
Law 2: while sessions compete, each is given the same run time, whatever the number or length of
       its calls. Where users have shares, each user is given run time in proportion to theirs, which is divided
       among the sessions of the user.
Law 3: a worker is never idle while a session has a call for it alone.
Law 4: a call for several workers takes credit on all of them or on none, and no call waits for ever.
Law 5: a session that has used less than its share of a worker lately does not wait for long calls there: a short call
       of its own is sent at once, beside them, and the worker runs it at once (gt/worker/calls.py).

Each session has a deficit: run time it may still use. A session with some left may send; the call's
estimated time is taken off, and corrected when the worker reports the real time. When no session has any left,
all that wait are given as many quanta as it takes for one of them to go on. A debt outlives a pause,
less the time that passed: a session that waits for each result is charged too. A session that is alone
always goes on.

A session waits in the ring of its first worker. A call for that worker alone stays there until there is room. A call
that needs others too, and finds no room on some, leaves the ring and claims room on all of them: from then on only who
claimed before it goes first there, and a call of the lane's own ring while the worker has none. Claims are made on all
lanes at once and served in the order they were made, so the oldest is first on each of its lanes, and calls under way
come to an end: it never waits for one that waits for it.
After a call from another ring, a lane's own ring may use as much time as is fair: what that took, for each of its
sessions, by as many sessions of other rings as wait here.

What a session may use beside long calls is its allowance. It grows with the time that passes, by the session's share of
the worker, up to BURST_US; the run time of a call beside is taken off. So a session that asks for little never waits,
and one that asks for more gets no more than its share this way. Such calls have credits of their own.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gt.dispatcher.session import Session

CREDITS = 16
AHEAD_US = 20_000
QUANTUM_US = 1_000
#: What a program is thought to take before it has run: so much that few such calls are sent at once.
UNKNOWN_US = AHEAD_US // 2
MAX_RUN_US = 3_600_000_000  #: longer reports are not believed
SHORT_US = 5_000  #: A longer call goes beside no other, and keeps others waiting.
BESIDE = 4  #: Calls on a worker that were sent beside long ones,
BESIDE_US = 2 * SHORT_US  #: and beyond the first no more than this of estimated work.
BURST_US = 100_000  #: What a session may use beside long calls after a pause.
FIRST_US = 50  #: What an instruction is thought to take when it runs for the first time, beside its work,
WORK_PER_US = 10_000  #: and how much work is done in a microsecond.


class Lane:
    """One worker's credits, and the sessions that wait for them."""

    __slots__ = ("ahead_us", "beside", "beside_us", "calls", "claims", "long", "number", "owed_us", "ring")

    def __init__(self, number: int = 0) -> None:
        self.number = number  #: the worker's
        self.calls = 0  #: sent and not finished
        self.claims: list[Session] = []  #: sessions that wait for room here and elsewhere, longest first
        self.owed_us = 0  #: what the ring may send before a claim from another ring is served
        self.ahead_us = 0  #: what they were estimated to take
        self.long = 0  #: those of them that are not short
        self.beside = 0  #: calls that were sent beside these and are not finished
        self.beside_us = 0  #: what they were estimated to take
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
        if session.deficit_us > 0:
            session.deficit_us = 0
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
            quanta = quanta_of(self.ring)
            rounds = min(-s.deficit_us // quantum_us + 1 for s, quantum_us in zip(ring, quanta, strict=True))
            for s, quantum_us in zip(ring, quanta, strict=True):
                s.deficit_us += rounds * quantum_us
        while ring[0].deficit_us <= 0:
            ring.rotate(-1)
        return ring[0]

    def take_own(self, session: Session, cost_us: int) -> bool:
        """Take credit for a call to this worker alone, of a session in its ring, if there is room."""
        # A claim waits for other workers too. With one call here there is still room for it.
        if not self.has_room(cost_us) or (self.claims and self.owed_us <= 0 and self.calls):
            return False
        session.deficit_us -= cost_us
        self.calls += 1
        self.ahead_us += cost_us
        if cost_us > SHORT_US:
            self.long += 1
        if self.owed_us > 0 or self.claims:
            self._use(cost_us)
        return True

    def _use(self, cost_us: int) -> None:
        """The ring has used this of what it is owed. It goes into debt by one call at most."""
        self.owed_us = max(self.owed_us - cost_us, -cost_us)

    def allows(self, session: Session, cost_us: int, now_s: float) -> bool:
        """Whether a call of that cost, of a session in the ring, may be sent beside the long ones."""
        if cost_us > SHORT_US or self.beside >= BESIDE or (self.beside and self.beside_us + cost_us > BESIDE_US):
            return False
        passed_s, session.allowed_s = now_s - session.allowed_s, now_s
        session.allowance_us = min(BURST_US, session.allowance_us + int(passed_s * 1e6 * self._share(session)))
        return session.allowance_us >= cost_us

    def take_beside(self, session: Session, cost_us: int) -> None:
        """Take credit for such a call."""
        session.deficit_us -= cost_us
        session.allowance_us -= cost_us
        self.beside += 1
        self.beside_us += cost_us

    def _share(self, session: Session) -> float:
        """The part of the worker that is a session's own, among those in the ring."""
        quanta = quanta_of(self.ring)
        return quanta[self.ring.index(session)] / sum(quanta)

    def admits(self, session: Session, cost_us: int) -> bool:
        """Whether any other call may take credit here now."""
        if not self.has_room(cost_us) or (self.claims and self.claims[0] is not session):
            return False
        return self._has(session) or not (self.ring and self.owed_us > 0)

    def take(self, session: Session, cost_us: int) -> None:
        """Take credit for such a call. If it came from another ring, this one may now use its part."""
        self._add(cost_us)
        if self._has(session):
            if self.owed_us > 0 or self.claims:
                self._use(cost_us)
        elif self.ring:
            own, others = [*self.ring], [session]
            for each in self.claims:
                (own if self._has(each) else others).append(each)
            quanta = quanta_of([*own, *others])
            self.owed_us += cost_us * sum(quanta[: len(own)]) // sum(quanta[len(own) :])
        else:
            self.owed_us = 0

    def _has(self, session: Session) -> bool:
        """Whether the session waits for its turns in this ring."""
        return self.number == next(iter(session.workers), -1)  # its first worker

    def _add(self, cost_us: int) -> None:
        self.calls += 1
        self.ahead_us += cost_us
        if cost_us > SHORT_US:
            self.long += 1

    def give_back(self, cost_us: int, beside: bool) -> None:
        if beside:
            self.beside -= 1
            self.beside_us -= cost_us
        else:
            self.calls -= 1
            self.ahead_us -= cost_us
            if cost_us > SHORT_US:
                self.long -= 1


def quanta_of(sessions: Collection[Session]) -> list[int]:
    """What each of these sessions is given in a round."""
    users = Counter(s.user.key for s in sessions if s.user is not None)
    return [QUANTUM_US if s.user is None else max(1, QUANTUM_US * s.user.share // users[s.user.key]) for s in sessions]


def settle(session: Session, cost_us: int, run_us: int, beside: bool) -> None:
    """A call that was charged `cost_us` took `run_us`."""
    session.deficit_us += cost_us - run_us
    if beside:
        session.allowance_us += cost_us - run_us
    if session.ring is None and session.deficit_us > 0:
        session.deficit_us = 0


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


def learned(cost_us: int, best_us: int, run_us: int, runs: int) -> tuple[int, int]:
    """What a program is thought to take, and what it takes when nothing disturbs it, after it took `run_us` in its
    `runs`-th run. The second decides whether it is short: during one run the machine may have been busy."""
    # The first run pays for code generation and first allocations; the second tells more.
    if runs > 2:
        cost_us += (run_us - cost_us) // 8
        best_us += best_us // 8 + 1
        if run_us < best_us:
            best_us = run_us
    else:
        cost_us, best_us = run_us, run_us if runs == 2 or run_us < best_us else best_us
    return cost_us or 1, best_us or 1


def guess(sizes: Iterable[int]) -> int:
    """What a program may take that has never run; `sizes` are the numbers of elements that each instruction reads and
    writes. A product of two square matrices does as much work as the power 3/2 of their size; few ops do more.

    >>> guess([3 * 64 * 64] * 3), guess([3 * 2048 * 2048]) > SHORT_US
    (558, True)
    """
    total_us = 0
    for size in sizes:
        total_us += FIRST_US + int(size**1.5) // WORK_PER_US
        if total_us > UNKNOWN_US:
            return UNKNOWN_US
    return total_us
