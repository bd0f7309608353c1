"""Which worker a session lives on: the least loaded when it first needs one. For more see meshes.py.

Law: a session is placed before anything of it is sent to a worker, and stays there until one of the two
is gone. Where there is no worker it waits, and the wait has a deadline (workers.py).
"""

from __future__ import annotations

from gt.dispatcher.session import Session, Tensor, Upload, show_nbytes
from gt.dispatcher.state import State, Worker
from gt.transport.codec import Buffer
from gt.transport.messages import Chunk, Failure, Share


def place(state: State, session: Session) -> Worker | None:
    """A worker for a session that has none; None if there is none yet."""
    usable = [w for w in state.workers.values() if w.usable]
    if not usable:
        return None
    worker = min(usable, key=lambda w: (len(w.sessions), w.nbytes, w.number))
    settle(state, session, worker)
    return worker


def settle(state: State, session: Session, worker: Worker) -> None:
    """This is its worker from now on, or the first of them."""
    session.worker = session.workers[worker.number] = worker
    worker.sessions[session.number] = session
    if session.wide:  # its mesh is gone with all workers that it had
        session.home, session.place = worker.layout, (worker.layout,)
    stop_waiting(state, session)
    offer(state, session)
    for upload in list(session.uploads.values()):
        if not upload.sink:
            _begin_held(state, session, worker, upload)


def await_worker(state: State, session: Session) -> None:
    """The session needs a worker and there is none. The wait counts from the first need."""
    if session.waiting_since_s is None:
        session.waiting_since_s = state.now_s
        state.homeless[session.number] = session


def stop_waiting(state: State, session: Session) -> None:
    session.waiting_since_s = None
    state.homeless.pop(session.number, None)


def begin_upload(state: State, session: Session, worker: Worker, upload: Upload) -> None:
    """Count the tensor's bytes; if the worker has no room for them the tensor is lost."""
    if worker.memory and worker.nbytes + upload.total > worker.memory:
        text = f"an upload of {show_nbytes(upload.total)}: {memory_text(session, worker)}"
        lose(state, session, upload, Failure("OutOfMemory", text))
        return
    session.tensors[upload.key] = Tensor(upload.spec, upload.total, None)
    state.charge(session, upload.total)


def lose(state: State, session: Session, upload: Upload, failure: Failure) -> None:
    """This tensor will never arrive."""
    state.uncount(session, session.tensors[upload.key])
    session.tensors[upload.key] = Tensor(upload.spec, 0, None, failure)
    session.hollow = True
    state.sink(session, upload)


def offer(state: State, session: Session) -> None:
    """Tell the session's worker of its ring, if it has both."""
    share = session.share
    if share is not None and session.worker is not None:
        state.send(session.worker.control, Share(session.number, share.ring, share.fd, share.name, share.pid))


def pass_chunk(state: State, session: Session, worker: Worker, chunk: Chunk, payload: Buffer | None) -> None:
    c = chunk
    state.send(worker.control, Chunk(session.number, c.key, c.offset, c.total, c.shape, c.dtype, c.slot), payload)


def memory_text(session: Session, worker: Worker) -> str:
    """How full a worker is, as far as it is this session's business."""
    free = max(0, worker.memory - worker.nbytes)
    return (
        f"its worker has {show_nbytes(free)} free of {show_nbytes(worker.memory)}, "
        f"this session holds {show_nbytes(session.nbytes)}"
    )


def _begin_held(state: State, session: Session, worker: Worker, upload: Upload) -> None:
    begin_upload(state, session, worker, upload)
    if not upload.sink:
        for chunk, payload in upload.held:
            pass_chunk(state, session, worker, chunk, payload)
        state.let_go(upload)
