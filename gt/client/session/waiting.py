"""How a thread waits for the server, and what is done while nobody does anything.

The timer settles programs that were marked, cuts those that the user seems to have left lying, sends frees
when nothing else is sent, and keeps uploads going. It sleeps when there is nothing to look after, and
the next op wakes it.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gt.client.record.pending import NOWHERE, Pending
from gt.client.record.recorder import IDLE_S, MARK_S, Recorder
from gt.errors import GTError
from gt.transport.channel import Patience

if TYPE_CHECKING:
    from gt.client.session.session import Session

TICK_S = 0.005  #: How often the timer looks while there is something to look at,
DOZE_S = 0.05  #: and while all threads wait for an answer: they look themselves, and leave nothing lying.
QUIET_S = 0.25  #: How long there is nothing before it falls asleep,
ASLEEP_S = 1.0  #: and how often it looks even so.
FREE_S = 0.05  #: How long frees wait for a call to travel with.
#: How long an answer is looked for before the sleep. Where there is one CPU the server needs it.
LOOK_S = 400e-6 if len(os.sched_getaffinity(0)) > 1 else 0.0
LISTEN = 8  #: Looks at a mailbox before the channel is asked too: that takes as long as so many looks.
POLL_S = 0.25  #: The longest sleep of a waiting thread before it looks around.


class Sleeper:
    """How one thread waits: for the channel, or to be woken by another thread."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self.fd, select.POLLIN)
        self._channel_fd = -1
        self._patience = Patience()

    def look(self, session: Session, ready: Callable[[], bool]) -> bool:
        """Look for what may come without a message, for a moment: to be woken takes longer than most calls. The time is
        used to hear what the server still has to say of what was answered before."""
        if self._channel_fd < 0 or not LOOK_S or not self._patience.wanted():
            return False
        found = False
        until_s = time.perf_counter() + LOOK_S
        while not found and time.perf_counter() < until_s:
            os.sched_yield()  # whoever has work goes first: it may be the one that answers
            with session.lock:
                session.process(self.fd)
                session.check_usable()
            for _ in range(LISTEN):
                if found := ready():
                    break
                os.sched_yield()
        # Where others took this CPU meanwhile, to sleep is better: who is woken goes first.
        self._patience.looked(found and time.perf_counter() < until_s)
        return found

    def sleep(self, channel: Any) -> None:
        if self._channel_fd < 0:
            fileno = getattr(channel, "fileno", None)
            if fileno is None:
                channel.wait(POLL_S)  # one in memory: whoever owns it knows what happens next
                return
            self._channel_fd = fileno()
            self._poll.register(self._channel_fd, select.POLLIN)
        for fd, _ in self._poll.poll(POLL_S * 1000):
            if fd == self.fd:
                os.eventfd_read(fd)

    def __del__(self) -> None:
        os.close(self.fd)


def run_timer(session: Session) -> None:
    """The timer's thread."""
    quiet_since = time.monotonic()
    while not session.closed and not session.forked:
        if session.asleep:
            session.wake.wait(ASLEEP_S)
        elif session.dozing:
            session.wake.wait(DOZE_S)
        else:
            time.sleep(TICK_S)
        session.wake.clear()
        now = time.monotonic()
        active = tick(session, now)
        session.dozing = may_doze(session)
        if active:
            quiet_since = now
        elif now - quiet_since > QUIET_S and not session.asleep:
            _fall_asleep(session)


def may_doze(session: Session) -> bool:
    """Whether every thread that records waits for an answer, with nothing marked: who goes on wakes the timer."""
    return 0 < len(session.recorders) <= len(session.waiters) and all(r.pending.end is None for r in session.recorders)


def tick(session: Session, now: float) -> bool:
    """What is due at this time. False if there was nothing to look after."""
    active = False
    for rec in session.recorders:
        p = rec.pending
        if p.end is not None:
            active = True
            if now >= p.marked_s + MARK_S:
                _steal(session, rec, False, p)
        elif p.node.depth and rec.trace is None:
            active = True
            pending, length, since = rec.seen
            if pending != id(p) or length != p.node.depth:
                rec.seen = (id(p), p.node.depth, now)
            elif now >= since + IDLE_S and not session.waiters:
                _steal(session, rec, True, p)
    if session.lock.acquire(blocking=False):
        try:
            session.process()
            if session.dead and now - session.sent_s > FREE_S:
                session.flush_frees()
            session.transfers.rest(now)
            active = active or session.under_way
        finally:
            session.lock.release()
    return active


def _steal(session: Session, rec: Recorder, timed: bool, seen: Pending | None = None) -> None:
    try:
        rec.steal(timed, seen)
    except GTError as e:
        session.give_up(str(e))  # the owner meets the same trouble at its next op, where it can be raised


def _fall_asleep(session: Session) -> None:
    """Have the next op of every thread wake the timer."""
    with session.lock:
        session.asleep = True
        for rec in session.recorders:
            p = rec.pending
            rec.pending = rec.blocked
            if rec.busy or p.node.depth or p.end is not None or rec.trace is not None:
                rec.pending = p
                session.asleep = False
            else:
                rec.pending = Pending(rec, NOWHERE)


def watch_cells(session: Session) -> None:
    """In IPython, what a cell recorded is sent when the cell ends."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is None:
        return

    def cell_ended(*_: Any) -> None:
        if session.closed:
            shell.events.unregister("post_run_cell", cell_ended)
            return
        for rec in list(session.recorders):
            _steal(session, rec, timed=False)

    shell.events.register("post_run_cell", cell_ended)
