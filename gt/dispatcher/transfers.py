"""Tensor bytes on their way through: uploads in, fetches out. They are relayed, never looked at.

Law 1: chunks of an upload come in order and sum to what the first one declared; the tensor can be used
       when the worker has acknowledged them all.
Law 2: at most CHUNKS_IN_FLIGHT chunks of an upload that bring their bytes are unacknowledged, at most SLOTS that
       name a slot, at most UPLOADS uploads under way.
Law 3: a chunk is always acknowledged in the end, also where its tensor is lost: a client's pump never sticks.
Law 4: a ring is offered to its session's worker with the process that the sockets say it is of, and is used while
       that worker, having answered, is there. A chunk that names a slot at any other time counts as not sent: its
       client did not know yet, and will send it again.
"""

from __future__ import annotations

from gt import dtypes
from gt.dispatcher import parts
from gt.dispatcher.calls import advance, advance_fetch, check_queue, enqueue
from gt.dispatcher.placement import await_worker, begin_upload, offer, pass_chunk, place
from gt.dispatcher.session import MAX_ID, Session, Tensor, Upload
from gt.dispatcher.state import HELD_NBYTES, State, Worker
from gt.ops.check import MAX_DIMS, MAX_ELEMENTS
from gt.program import spec
from gt.transport.codec import Buffer
from gt.transport.messages import (
    CHUNK,
    CHUNKS_IN_FLIGHT,
    UPLOADS,
    Cancel,
    Chunk,
    ChunkAck,
    Fetch,
    FetchFailed,
    Share,
    Shared,
)
from gt.transport.shared import SLOTS, nbytes_of

# --- uploads: client to worker ---------------------------------------------------------------


def chunk_came(state: State, session: Session, chunk: Chunk, payload: Buffer | None) -> None:
    """A client uploads."""
    upload = session.uploads.get(chunk.key)
    not_sent = chunk.slot >= 0 and not session.sharing
    if not_sent and upload is not None:
        return
    problem = _chunk_problem(session, upload, chunk, payload)
    if problem:
        state.reject(session, f"upload {chunk.key}: {problem}")
        return
    if upload is None:
        upload = _begin(state, session, chunk)
    if not_sent:
        return  # but the tensor is known from now on
    upload.begun = True
    upload.received += _nbytes(chunk, payload)
    if upload.sink:
        state.send(session.peer, ChunkAck(0, upload.key, True))
        if upload.complete:
            del session.uploads[upload.key]
        return
    upload.unacked += 1
    if upload.targets:
        parts.pass_chunk(state, session, upload, chunk, b"" if payload is None else payload)
        return
    if session.worker is not None:
        pass_chunk(state, session, session.worker, chunk, payload)
        return
    assert payload is not None
    upload.held.append((chunk, payload))
    state.held_nbytes += len(payload)
    await_worker(state, session)
    if state.held_nbytes > HELD_NBYTES:
        state.cut_off(session, "too much is uploaded while no worker has joined this server")


def _chunk_problem(session: Session, upload: Upload | None, chunk: Chunk, payload: Buffer | None) -> str:
    """Why this chunk cannot be taken; empty if it can."""
    if chunk.slot >= 0 and payload is None:
        if chunk.slot >= SLOTS:
            return f"slot {chunk.slot}; a ring has {SLOTS}"
    elif payload is None or len(payload) > CHUNK:
        return f"a chunk brings 0 to {CHUNK} bytes"
    nbytes = _nbytes(chunk, payload)
    if nbytes <= 0 and chunk.total:
        return "an empty chunk"
    if upload is None:
        return _begin_problem(session, chunk, nbytes)
    if chunk.offset != upload.received or chunk.total != upload.total:
        return f"a chunk at {chunk.offset} of {chunk.total}; expected {upload.received} of {upload.total}"
    if upload.received + nbytes > upload.total or upload.received == upload.total:
        return "more bytes than declared"
    most = most_unacked(chunk)
    if upload.unacked >= most:
        return f"more than {most} chunks that are not acknowledged"
    return ""


def _nbytes(chunk: Chunk, payload: Buffer | None) -> int:
    """How many bytes of the tensor this chunk stands for."""
    return nbytes_of(chunk) if payload is None else len(payload)


def most_unacked(chunk: Chunk) -> int:
    """How many chunks of an upload may be unacknowledged once this one has come."""
    return SLOTS if chunk.slot >= 0 else CHUNKS_IN_FLIGHT


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
    return parts.upload_problem(session, chunk.layout, what) if session.wide else ""


def _begin(state: State, session: Session, chunk: Chunk) -> Upload:
    what = spec(chunk.shape, dtypes.BY_NAME[chunk.dtype])
    upload = session.uploads[chunk.key] = Upload(chunk.key, what, chunk.total)
    session.tensors[chunk.key] = Tensor(what, 0, None)
    session.upload_mark = chunk.key
    if session.wide and session.worker is not None:
        parts.begin_upload(state, session, upload, chunk.layout)
    elif session.worker is not None:
        begin_upload(state, session, session.worker, upload)
    else:
        place(state, session)  # which begins its uploads
    return upload


def upload_acked(state: State, worker: Worker, ack: ChunkAck, _: Buffer | None = None) -> None:
    """A worker has taken a chunk."""
    session = worker.sessions.get(ack.session)
    upload = session.uploads.get(ack.key) if session is not None and ack.upload else None
    if session is None or upload is None or not upload.unacked:
        return
    if upload.targets:
        if parts.upload_acked(state, session, worker, upload):
            advance(state, session)
        return
    upload.unacked -= 1
    state.send(session.peer, ChunkAck(0, ack.key, True))
    if upload.complete:
        del session.uploads[ack.key]
        session.tensors[ack.key] = Tensor(upload.spec, upload.total, worker.layout)
        advance(state, session)


# --- rings -----------------------------------------------------------------------------------


def share_came(state: State, session: Session, share: Share, _: Buffer | None = None) -> None:
    """A client offers its ring; `pid` is the sockets' word. The worker hears of it when there is one."""
    session.share, session.sharing = share, False
    if share.pid <= 0 or session.wide:
        session.share = None
        state.send(session.peer, Shared(0, share.ring, False))
    else:
        offer(state, session)


def share_answered(state: State, worker: Worker, answer: Shared, _: Buffer | None = None) -> None:
    """A worker has opened a ring, or could not."""
    session = worker.sessions.get(answer.session)
    if session is None or session.share is None or session.share.ring != answer.ring:
        return  # of one that was replaced meanwhile
    session.sharing = answer.ok
    state.send(session.peer, Shared(0, answer.ring, answer.ok))
    if not answer.ok:
        session.share = None


# --- fetches: worker to client ---------------------------------------------------------------


def fetch_came(state: State, session: Session, fetch: Fetch, _: Buffer | None = None) -> None:
    """A client wants a value. If it exists by now, calls that came before need not be waited for."""
    if fetch.request in session.fetches or (
        session.queue and any(type(item) is Fetch and item.request == fetch.request for item in session.queue)
    ):
        state.reject(session, f"fetch {fetch.request}: that number is in use")
        return
    tensor = session.tensors.get(fetch.id)
    if tensor is not None and (tensor.layout is not None or tensor.lost is not None):
        advance_fetch(state, session, fetch)
        check_queue(state, session)
    else:
        enqueue(state, session, fetch)


def cancel_came(state: State, session: Session, cancel: Cancel, _: Buffer | None = None) -> None:
    """Not an error if there is no such fetch: its end may have crossed this message."""
    if cancel.request in session.fetches:
        download = session.fetches.pop(cancel.request)
        if download.pieces is not None:
            parts.cancel(state, session, cancel.request, download)
        elif session.worker is not None:
            state.send(session.worker.control, Cancel(session.number, cancel.request))
        return
    for k, item in enumerate(session.queue):
        if type(item) is Fetch and item.request == cancel.request:
            session.unqueue(k)
            if k == 0:
                advance(state, session)
            return


def ack_came(state: State, session: Session, ack: ChunkAck, _: Buffer | None = None) -> None:
    """A client has taken a chunk of a fetch. Late ones, after a cancel, are nobody's business."""
    if ack.upload:
        state.reject(session, "only a worker acknowledges uploads")
        return
    download = session.fetches.get(ack.key)
    if download is not None and download.pieces is not None:
        parts.acked(state, session, download, ack)
    elif download is not None and download.unacked:
        assert session.worker is not None
        download.unacked -= 1
        state.send(session.worker.control, ChunkAck(session.number, ack.key, False))


def fetched(state: State, worker: Worker, chunk: Chunk, payload: Buffer | None) -> None:
    """A worker sends a piece of a value."""
    session = worker.sessions.get(chunk.session)
    download = session.fetches.get(chunk.key) if session is not None else None
    if session is None or download is None:
        return
    if download.pieces is not None:
        if payload is not None:
            parts.fetched(state, session, worker, download, chunk, payload)
        return
    if download.received != chunk.offset:
        return
    nbytes = _nbytes(chunk, payload)
    if nbytes < 0 or (payload is None and chunk.slot < 0):
        return
    download.unacked += 1
    download.received += nbytes
    if download.received >= chunk.total:
        del session.fetches[chunk.key]
    c = chunk
    state.send(session.peer, Chunk(0, c.key, c.offset, c.total, c.shape, c.dtype, c.slot), payload)


def fetch_failed(state: State, worker: Worker, message: FetchFailed, _: Buffer | None = None) -> None:
    session = worker.sessions.get(message.session)
    download = session.fetches.get(message.request) if session is not None else None
    if session is None or download is None:
        return
    if download.pieces is not None:
        parts.failed(state, session, worker, message.request, message.error)
    else:
        del session.fetches[message.request]
        state.send(session.peer, FetchFailed(0, message.request, message.error))
