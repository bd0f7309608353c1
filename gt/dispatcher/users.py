"""Who may stay: what happens to sessions and workers when users are revoked or get other limits.

Law 1: a session or worker belongs to the key that it joined with, for its whole life.
Law 2: when a key is revoked, its sessions and workers end before the event is over.
"""

from __future__ import annotations

from collections.abc import Mapping

from gt.dispatcher import meshes, workers
from gt.dispatcher.state import State
from gt.transport.identity import User

REVOKED = "this key was revoked; ask for a new one"


def changed(state: State, users: Mapping[str, User], secret: str) -> None:
    """These are the users now. Workers get a new secret: one that was revoked knows the old one."""
    for session in list(state.sessions.values()):
        if session.user is None:
            continue
        if session.user.key in users:
            session.user = users[session.user.key]
        else:
            state.cut_off(session, REVOKED)
    state.secret = secret
    for worker in list(state.workers.values()):
        if worker.user is not None and worker.user.key not in users:
            for peer in worker.connections:
                state.refuse(peer, REVOKED)
            workers.lost(state, worker)
    meshes.workers_changed(state)
