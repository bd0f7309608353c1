"""Tensor bytes on their way through: uploads in, fetches out. They are relayed, never looked at.

Law 1: chunks of an upload come in order and sum to what the first one declared; the tensor can be used
       when the worker has acknowledged them all.
Law 2: at most CHUNKS_IN_FLIGHT chunks of an upload are unacknowledged, at most UPLOADS uploads under way.
Law 3: a chunk is always acknowledged in the end, also where its tensor is lost: a client's pump never sticks.
"""

from __future__ import annotations

from gt import dtypes
from gt.dispatcher.calls import advance, advance_fetch, check_queue, enqueue
from gt.dispatcher.placement import await_worker, begin_upload, pass_chunk, place
from gt.dispatcher.session import MAX_ID, Session, Tensor, Upload
from gt.dispatcher.state import HELD_NBYTES, State, Worker
from gt.ops.check import MAX_DIMS, MAX_ELEMENTS
from gt.program import spec
from gt.transport.codec import Buffer
from gt.transport.messages import CHUNK, CHUNKS_IN_FLIGHT, UPLOADS, Cancel, Chunk, ChunkAck, Fetch, FetchFailed

# --- uploads: client to worker ---------------------------------------------------------------


def chunk_came(state: State, session: Session, chunk: Chunk, payload: Buffer | None) -> None:
    """A client uploads."""
    upload = session.uploads.get(chunk.key)
    problem = _chunk_problem(session, upload, chunk, payload)
    if problem:
        state.reject(session, f"upload {chunk.key}: {problem}")
        return
    assert payload is not None
    if upload is None:
        upload = _begin(state, session, chunk)
    upload.begun = True
    upload.received += len(payload)
    if upload.sink:
        state.send(session.peer, ChunkAck(0, upload.key, True))
        if upload.complete:
            del session.uploads[upload.key]
        return
    upload.unacked += 1
    if session.worker is not None:
        pass_chunk(state, session, session.worker, chunk, payload)
        return
    upload.held.append((chunk, payload))
    state.held_nbytes += len(payload)
    await_worker(state, session)
    if state.held_nbytes > HELD_NBYTES:
        state.cut_off(session, "too much is uploaded while no worker has joined this server")


def _chunk_problem(session: Session, upload: Upload | None, chunk: Chunk, payload: Buffer | None) -> str:
    """Why this chunk cannot be taken; empty if it can."""
    if payload is None or len(payload) > CHUNK:
        return f"a chunk brings 0 to {CHUNK} bytes"
    if not payload and chunk.total:
        return "an empty chunk"
    if upload is None:
        return _begin_problem(session, chunk, len(payload))
    if chunk.offset != upload.received or chunk.total != upload.total:
        return f"a chunk at {chunk.offset} of {chunk.total}; expected {upload.received} of {upload.total}"
    if upload.received + len(payload) > upload.total or upload.received == upload.total:
        return "more bytes than declared"
    if upload.unacked >= CHUNKS_IN_FLIGHT:
        return f"more than {CHUNKS_IN_FLIGHT} chunks that are not acknowledged"
    return ""


def _begin_problem(session: Session, chunk: Chunk, nbytes: int) -> str:
    if not session.upload_mark < chunk.key <= MAX_ID or chunk.key in session.tensors:
        return f"not a new id; the last id that was uploaded is {session.upload_mark}"
    if chunk.offset:
        return f"begins at byte {chunk.offset}"
    if len(session.uploads) >= UPLOADS:
        return f"more than {UPLOADS} uploads at once"
    if chunk.dtype not in dtypes.BY_NAME:
        return f"dtype {chunk.dtype!r} is not known"
    shape = chunk.shape
    if len(shape) > MAX_DIMS or any(n < 0 for n in shape):
        return f"{shape} is not a shape"
    what = spec(shape, dtypes.BY_NAME[chunk.dtype])
    if what.size > MAX_ELEMENTS:
        return f"{shape} has more than {MAX_ELEMENTS} elements"
    if chunk.total != what.nbytes or nbytes > chunk.total:
        return f"{chunk.total} bytes declared; {what!r} has {what.nbytes}"
    return ""


def _begin(state: State, session: Session, chunk: Chunk) -> Upload:
    what = spec(chunk.shape, dtypes.BY_NAME[chunk.dtype])
    upload = session.uploads[chunk.key] = Upload(chunk.key, what, chunk.total)
    session.tensors[chunk.key] = Tensor(what, 0, None)
    session.upload_mark = chunk.key
    if session.worker is not None:
        begin_upload(state, session, session.worker, upload)
    else:
        place(state, session)  # which begins its uploads
    return upload


def upload_acked(state: State, worker: Worker, ack: ChunkAck) -> None:
    """A worker has taken a chunk."""
    session = worker.sessions.get(ack.session)
    upload = session.uploads.get(ack.key) if session is not None and ack.upload else None
    if session is None or upload is None or not upload.unacked:
        return
    upload.unacked -= 1
    state.send(session.peer, ChunkAck(0, ack.key, True))
    if upload.complete:
        del session.uploads[ack.key]
        session.tensors[ack.key] = Tensor(upload.spec, upload.total, worker.layout)
        advance(state, session)


# --- fetches: worker to client ---------------------------------------------------------------


def fetch_came(state: State, session: Session, fetch: Fetch) -> None:
    """A client wants a value. If it exists by now, calls that came before need not be waited for."""
    if fetch.request in session.fetches or any(
        type(item) is Fetch and item.request == fetch.request for item in session.queue
    ):
        state.reject(session, f"fetch {fetch.request}: that number is in use")
        return
    tensor = session.tensors.get(fetch.id)
    if tensor is not None and (tensor.layout is not None or tensor.lost is not None):
        advance_fetch(state, session, fetch)
        check_queue(state, session)
    else:
        enqueue(state, session, fetch)


def cancel_came(state: State, session: Session, cancel: Cancel) -> None:
    """Not an error if there is no such fetch: its end may have crossed this message."""
    if cancel.request in session.fetches:
        assert session.worker is not None
        del session.fetches[cancel.request]
        state.send(session.worker.control, Cancel(session.number, cancel.request))
        return
    for k, item in enumerate(session.queue):
        if type(item) is Fetch and item.request == cancel.request:
            session.unqueue(k)
            if k == 0:
                advance(state, session)
            return


def ack_came(state: State, session: Session, ack: ChunkAck) -> None:
    """A client has taken a chunk of a fetch. Late ones, after a cancel, are nobody's business."""
    if ack.upload:
        state.reject(session, "only a worker acknowledges uploads")
        return
    download = session.fetches.get(ack.key)
    if download is not None and download.unacked:
        assert session.worker is not None
        download.unacked -= 1
        state.send(session.worker.control, ChunkAck(session.number, ack.key, False))


def fetched(state: State, worker: Worker, chunk: Chunk, payload: Buffer | None) -> None:
    """A worker sends a piece of a value."""
    session = worker.sessions.get(chunk.session)
    download = session.fetches.get(chunk.key) if session is not None else None
    if session is None or download is None or payload is None or download.received != chunk.offset:
        return
    download.unacked += 1
    download.received += len(payload)
    if download.received >= chunk.total:
        del session.fetches[chunk.key]
    shape, dtype = chunk.shape, chunk.dtype
    state.send(session.peer, Chunk(0, chunk.key, chunk.offset, chunk.total, shape, dtype), payload)


def fetch_failed(state: State, worker: Worker, message: FetchFailed) -> None:
    session = worker.sessions.get(message.session)
    if session is not None and session.fetches.pop(message.request, None) is not None:
        state.send(session.peer, FetchFailed(0, message.request, message.error))
