"""What a user may use: sessions, memory on each worker, workers, uploads. The share of run time is in schedule.py.

Law: a limit is for all sessions of a user together. Without users (on a server without keys) there are no limits.

Uploads are limited by their acknowledgements: a client with a few chunks that are not acknowledged waits. Each user has
an allowance of bytes to upload, which grows with time, up to the bytes of one second. While it is used up, the chunks
that workers have taken are acknowledged later. Other users do not wait.
"""

from __future__ import annotations

from gt.dispatcher.session import Session, Upload, show_nbytes
from gt.dispatcher.state import SESSIONS_OF_USER, State, Uploading, Worker, memory_text
from gt.transport.identity import User


def has_room(session: Session, worker: Worker, nbytes: int) -> bool:
    """Whether so many more bytes of this session fit on a worker now, and into what its user may hold there."""
    return worker.has_room(nbytes) and allowed(session, worker, nbytes)


def allowed(session: Session, worker: Worker, nbytes: int) -> bool:
    """Whether so many more bytes of this session fit into what its user may hold on a worker."""
    user = session.user
    if user is None or not user.memory:
        return True
    # All that they hold anywhere: mostly that is little enough, or all of it is here.
    if sum(each.nbytes for each in _of_user(session, worker)) + nbytes <= user.memory:
        return True
    return held(session, worker) + nbytes <= user.memory


def held(session: Session, worker: Worker) -> int:
    """Bytes that the sessions of this session's user have on a worker."""
    number = worker.number
    return sum(
        each.nbytes if len(each.workers) == 1 else sum(tensor.parts.get(number, 0) for tensor in each.tensors.values())
        for each in _of_user(session, worker)
    )


def _of_user(session: Session, worker: Worker) -> list[Session]:
    assert session.user is not None
    key = session.user.key
    return [each for each in worker.sessions.values() if each.user is not None and each.user.key == key]


def missing_text(session: Session, worker: Worker, nbytes: int) -> str:
    """What is missing, for an error: so many bytes do not fit there."""
    user = session.user
    if user is None or allowed(session, worker, nbytes):
        return memory_text(session, worker, nbytes)
    return (
        f"{show_nbytes(nbytes)} on worker {worker.number}, where the sessions of {user.name} hold "
        f"{show_nbytes(held(session, worker))} of the {show_nbytes(user.memory)} that this user may use"
    )


def too_many(session: Session, workers: int) -> str:
    """Why a session may not have so many workers; empty if it may."""
    user = session.user
    if user is None or not user.workers or workers <= user.workers:
        return ""
    return f"a mesh of {workers} workers; {user.name} may use {user.workers}"


def too_many_sessions(state: State, user: User | None) -> str:
    """Why a user may not have one more session; empty if they may."""
    if user is None or sum(s.user is not None and s.user.key == user.key for s in state.sessions.values()) < (
        SESSIONS_OF_USER
    ):
        return ""
    return f"{user.name} has {SESSIONS_OF_USER} sessions already, the limit of a user; close some"


# --- uploads ---------------------------------------------------------------------------------


def may_upload(state: State, session: Session, upload: Upload, nbytes: int) -> bool:
    """Whether a chunk of so many bytes, which workers have taken, may be acknowledged now. Else it will be later."""
    user = session.user
    if user is None or not user.upload:
        return True
    if user.key not in state.uploading:
        state.uploading[user.key] = Uploading(user.upload, state.now_s)
    budget = state.uploading[user.key]
    _grow(state, budget, user)
    if budget.left > 0 and not budget.waiting:
        budget.left -= nbytes
        return True
    upload.slowed += 1
    budget.waiting.append((session, upload, nbytes))
    return False


def _grow(state: State, budget: Uploading, user: User) -> None:
    passed_s, budget.at_s = state.now_s - budget.at_s, state.now_s
    budget.left = min(float(user.upload), budget.left + passed_s * user.upload)


def due(state: State) -> list[tuple[Session, Upload]]:
    """Time has passed: the chunks that are acknowledged now."""
    found: list[tuple[Session, Upload]] = []
    for key, budget in list(state.uploading.items()):
        while budget.waiting:
            session, upload, nbytes = budget.waiting[0]
            if not session.closed and upload.slowed:
                assert session.user is not None
                if session.user.upload:  # else the limit was removed meanwhile
                    _grow(state, budget, session.user)
                    if budget.left <= 0:
                        break
                budget.left -= nbytes
                found.append((session, upload))
            budget.waiting.popleft()
        if not budget.waiting and state.now_s > budget.at_s + 1.0:
            del state.uploading[key]  # it would have everything again
    return found
