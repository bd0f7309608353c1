"""The timer of a session: what is done while no thread of the user does it.

It settles marked programs, settles programs to which nothing was added for a while, sends calls that wait for others,
sends frees when no call is sent, and continues uploads. While there is nothing to do it sleeps; the next op wakes it.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from gt.client.programs.pending import NOWHERE, Pending
from gt.client.session.session import Session
from gt.errors import GTError

MARK_S = 0.002  #: A marked program settles after this time at the latest.
JOIN_S = 0.02  #: One that goes on after an optimizer's step, if it does not go on for this long.
IDLE_S = 0.2  #: An unfinished program settles after this long without a GT call.
TICK_S = 0.005  #: The timer's period while there is something to do,
DOZE_S = 0.05  #: and while all threads wait for an answer: they handle messages themselves.
QUIET_S = 0.25  #: It falls asleep after this long without anything to do,
ASLEEP_S = 1.0  #: and still looks this often.
FREE_S = 0.05  #: How long frees wait to be sent with a call.


def start(session: Session) -> None:
    """Start the timer of a session. It ends when the session is closed."""
    session.timed = True
    threading.Thread(target=run_timer, args=(session,), name="gt-timer", daemon=True).start()
    watch_cells(session)


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
    """Whether every recording thread waits for an answer and nothing is marked. A thread that continues wakes it."""
    return 0 < len(session.recorders) <= len(session.waiters) and all(r.pending.end is None for r in session.recorders)


def tick(session: Session, now: float) -> bool:
    """Do what is due at this time. False if there was nothing to do."""
    active = False
    for rec in session.recorders:
        p = rec.pending
        if p.end is not None:
            active = True
            if now >= p.marked_s + MARK_S:
                _steal(session, p)
        elif p.node.depth and not rec.tracing:
            active = True
            pending, length, since = rec.seen
            if pending != id(p) or length != p.node.depth:
                rec.seen = (id(p), p.node.depth, now)
            elif p.node.joins and now >= since + JOIN_S:
                _steal(session, p)
            elif now >= since + IDLE_S and not session.waiters:
                _steal(session, p, timed=True)
    if session.lock.acquire(blocking=False):
        try:
            session.process()
            session.send_held()
            if session.dead and now - session.sent_s > FREE_S:
                session.flush_frees()
            session.transfers.rest(now)
            active = active or session.under_way
        finally:
            session.lock.release()
    return active


def _steal(session: Session, p: Pending, timed: bool = False) -> None:
    try:
        p.rec.steal(p, timed)
    except GTError as e:
        session.give_up(str(e))  # the owner gets the error at its next op


def _fall_asleep(session: Session) -> None:
    """Make the next op of every thread wake the timer."""
    with session.lock:
        session.asleep = True
        for rec in session.recorders:
            p = rec.pending
            rec.pending = rec.blocked
            if rec.busy or p.node.depth or p.end is not None or rec.tracing:
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
            _steal(session, rec.pending)

    shell.events.register("post_run_cell", cell_ended)
