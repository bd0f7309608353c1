"""The session of this process: one at a time, made when it is first needed, gone with the process."""

from __future__ import annotations

import atexit
import os
import threading

from gt.client.record.pending import NOWHERE, Pending
from gt.client.session.session import Session

_current: Session | None = None
_starting = threading.Lock()


def current() -> Session:
    """The session of this process; the first use connects to GT_SERVER or starts a private server."""
    global _current
    if _current is None or _current.closed:
        with _starting:
            if _current is None or _current.closed:
                from gt.client.session.connecting import join_or_start  # which is built on this

                _current = join_or_start()
    return _current


def is_open() -> bool:
    """Whether this process has a session."""
    return _current is not None and not _current.closed


def end_pending() -> None:
    """End what any thread has pending, if there is a session: what follows is another program."""
    session = _current
    if session is None or session.closed or session.forked or session.broken:
        return
    for rec in list(session.recorders):
        while not session.end(rec):
            pass


def adopt(session: Session | None) -> Session | None:
    """Make this the current session (the simulator has many); returns the one before."""
    global _current
    before, _current = _current, session
    return before


def _after_fork() -> None:
    if _current is not None:
        _current.forked = True
        for rec in _current.recorders:
            rec.pending = Pending(rec, NOWHERE)


def _at_exit() -> None:
    if _current is not None and not _current.forked:
        _current.close()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
