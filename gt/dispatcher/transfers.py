"""Tensor bytes on their way through: uploads in, fetches out. They are relayed, never looked at.

Law 1: chunks of an upload come in order and sum to what the first one declared; the tensor can be used
       when its workers have acknowledged them all.
Law 2: at most CHUNKS_IN_FLIGHT chunks of an upload that bring their bytes are unacknowledged, at most SLOTS that
       name a slot, at most UPLOADS uploads under way.
Law 3: a chunk is always acknowledged in the end, also where its tensor is lost: a client never waits for ever.
Law 4: a worker gets the bytes of its shard where they are in one piece: to it that is an upload like any other. Else
       it gets all bytes, and which positions to keep. A chunk is acknowledged to the client when every worker that got
       some of it has acknowledged it.
Law 5: a fetch asks as few workers as hold the tensor together: one of those with the same shard, all over which it is
       partial. They answer the client, each with its shard, and never each other.
Law 6: what a fetch brings is passed on when the client has heard how the call ended that made the value: one worker
       may be quick to answer where another has yet to say that the call failed. A value from the only worker of a
       session is passed on at once: that worker knows that the call went well.
Law 7: a ring is offered to the only worker of its session, with the process that the sockets say it is of, and is used
       while that worker, having accepted it, is connected. A chunk that names a slot at any other time counts as not
       sent: its client did not know yet, and will send it again. Until a chunk has been taken, no worker is chosen for
       a tensor: it cannot be lost with one that never had a byte of it.

On one worker an upload and a fetch have one shard, which is all of the tensor.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache

from gt import dtypes
from gt.dispatcher.plans import plain_layout, tensor_at
from gt.dispatcher.session import (
    MAX_ID,
    Download,
    RingOffer,
    SentChunk,
    Session,
    ShardDownload,
    ShardUpload,
    Tensor,
    Upload,
)
from gt.dispatcher.state import HELD_NBYTES, State, Worker, memory_text
from gt.errors import ArgumentError, GTError
from gt.layout import Layout, Mesh, Runs, fits, local_shape, parse, shards, split
from gt.ops.check import MAX_DIMS, misfit
from gt.program import Spec, spec
from gt.transport.messages import (
    CHUNK,
    CHUNKS_IN_FLIGHT,
    UPLOADS,
    Buffer,
    Cancel,
    Chunk,
    ChunkAck,
    Failure,
    Fetch,
    FetchFailed,
    Free,
    Message,
    Sharded,
    Share,
    Shared,
    pack_ids,
)
from gt.transport.shared import SLOTS, nbytes_of

SPLIT_NBYTES = 1 << 16  #: Smaller uploads that say nothing are whole on every worker.
TEXT = 1000  #: Characters of a layout.

# --- uploads: client to workers --------------------------------------------------------------


def chunk_came(state: State, session: Session, chunk: Chunk, payload: Buffer | None) -> None:
    """A client uploads."""
    upload = session.uploads.get(chunk.key)
    not_sent = chunk.slot >= 0 and not session.shares_ring
    if not_sent and upload is not None:
        return
    problem = _chunk_problem(session, upload, chunk, payload)
    if problem:
        state.reject(session, f"upload {chunk.key}: {problem}")
        return
    if upload is None:
        what = spec(chunk.shape, dtypes.BY_NAME[chunk.dtype])
        upload = Upload(chunk.key, what, chunk.total)
        session.uploads[chunk.key] = session.tensors[chunk.key] = upload
        session.upload_mark = chunk.key
    if not_sent:
        return  # but the tensor is known from now on
    if not upload.begun:
        upload.layout_text = chunk.layout
        if session.workers:
            _begin(state, session, upload)
        else:
            state.await_worker(session)
        upload.begun = True
    upload.received += _nbytes(chunk, payload)
    if upload.sink:
        state.send(session.peer, ChunkAck(0, upload.key, True))
        if upload.complete:
            del session.uploads[upload.key]
        return
    upload.unacked += 1
    if upload.becomes is not None:
        _pass_chunk(state, session, upload, chunk, payload)
        return
    assert payload is not None
    upload.held.append((chunk, payload))
    state.held_nbytes += len(payload)
    if state.held_nbytes > HELD_NBYTES:
        state.cut_off(session, "too much is uploaded while no worker has joined this server")


def _chunk_problem(session: Session, upload: Upload | None, chunk: Chunk, payload: Buffer | None) -> str:
    """Why this chunk cannot be taken; empty if it can."""
    if chunk.slot >= 0 and payload is None:
        if chunk.slot >= SLOTS:
            return f"slot must be < {SLOTS}, got {chunk.slot}"
    elif payload is None or len(payload) > CHUNK:
        return f"a chunk must have 0 to {CHUNK} bytes"
    nbytes = _nbytes(chunk, payload)
    if nbytes <= 0 and chunk.total:
        return "an empty chunk"
    if upload is None:
        return _begin_problem(session, chunk, nbytes)
    if not upload.begun and not chunk.offset:
        problem = _layout_problem(session, chunk.layout, upload.spec)
        if problem:
            return problem
    if chunk.offset != upload.received or chunk.total != upload.total:
        return f"a chunk at {chunk.offset} of {chunk.total}; expected {upload.received} of {upload.total}"
    if upload.received + nbytes > upload.total or upload.received == upload.total:
        return "more bytes than declared"
    most = most_unacked(chunk)
    if upload.unacked >= most:
        return f"at most {most} chunks may be unacknowledged"
    return ""


def _nbytes(chunk: Chunk, payload: Buffer | None) -> int:
    """How many bytes of the tensor this chunk stands for."""
    return nbytes_of(chunk) if payload is None else len(payload)


def most_unacked(chunk: Chunk) -> int:
    """How many chunks of an upload may be unacknowledged once this one has come."""
    return SLOTS if chunk.slot >= 0 else CHUNKS_IN_FLIGHT


def _begin_problem(session: Session, chunk: Chunk, nbytes: int) -> str:
    if not session.upload_mark < chunk.key <= MAX_ID or chunk.key in session.tensors:
        return f"the id must be new and above {session.upload_mark}, the last one that was uploaded"
    if chunk.offset:
        return f"the first chunk must begin at byte 0, got {chunk.offset}"
    if len(session.uploads) >= UPLOADS:
        return f"at most {UPLOADS} uploads at once"
    if chunk.dtype not in dtypes.BY_NAME:
        return f"unknown dtype {chunk.dtype!r}"
    if len(chunk.shape) > MAX_DIMS:  # before anything is computed with it
        return f"a shape of {len(chunk.shape)} dimensions; the limit is {MAX_DIMS}"
    what = spec(chunk.shape, dtypes.BY_NAME[chunk.dtype])
    problem = misfit(what)
    if problem:
        return problem
    if chunk.total != what.nbytes or nbytes > chunk.total:
        return f"{chunk.total} bytes declared; {what!r} has {what.nbytes}"
    return _layout_problem(session, chunk.layout, what)


def _layout_problem(session: Session, text: str, what: Spec) -> str:
    """Why an upload cannot have this layout; empty if it can."""
    try:
        if session.workers and session.broken is None:  # else it waits, or will be lost
            _upload_layout(session, text, what)
    except (GTError, ValueError, RecursionError) as e:  # a client may write any text
        return str(e)[:200]
    return ""


def _upload_layout(session: Session, text: str, what: Spec) -> Layout:
    """The layout that an upload will have. On one worker there is only one, whatever the client asks for."""
    home = session.home
    if len(session.workers) == 1:
        return home
    if text:
        meant = parse_layout(text, what.shape, session.meshes)
        if meant.partial:
            raise ArgumentError(f"layout: {meant!r} is partial; an upload has all of its values")
        return plain_layout(meant)
    axes = home.mesh.axes
    if session.split and axes and what.ndim and what.nbytes >= SPLIT_NBYTES:
        return split(home.mesh, what.shape, {0: axes[0][0]})
    return home


def parse_layout(text: str, shape: tuple[int, ...], meshes: Mapping[str, Mesh]) -> Layout:
    """The layout that a text like "[100@x .]" or "stage1: [100@x .]" means; raises GTError if it means none.

    >>> from gt.layout import mesh
    >>> parse_layout("stage1: [100@x]", (100, 3), {"stage1": mesh([4, 5], x=2)})
    [100@x]
    """
    found = re.fullmatch(r"(?:(\w+): )?(\[.*)", text) if len(text) <= TEXT else None
    if found is None:
        raise ArgumentError("layout: expected a text like '[100@x .]' or 'stage1: [100@x .]'")
    name = found[1] or ""
    if name not in meshes:
        raise ArgumentError(
            f"layout: this session has no mesh {name!r}" if name else "layout: this session has no mesh"
        )
    meant = parse(found[2], meshes[name])
    fits(meant, shape)
    return meant


def _begin(state: State, session: Session, upload: Upload) -> None:
    """Decide which worker gets what, and count it; if one has no room the tensor is lost."""
    if session.broken is not None:
        state.lose_upload(session, upload, session.broken)
        return
    tensor = tensor_at(upload.spec, _upload_layout(session, upload.layout_text, upload.spec))
    for number, nbytes in tensor.parts.items():
        worker = state.workers[number]
        if not worker.has_room(nbytes):
            text = f"an upload of {memory_text(session, worker, nbytes)}"
            state.lose_upload(session, upload, Failure("OutOfMemory", text))
            return
    upload.becomes = tensor
    state.count(session, tensor)
    upload.shards = shard_uploads(upload.spec, tensor.layout)


def shard_uploads(what: Spec, at: Layout) -> dict[int, ShardUpload]:
    """By worker: which bytes it gets.

    >>> from gt.layout import mesh
    >>> m, what = mesh(x=2), spec((4, 2), dtypes.float32)
    >>> [(t.start, t.stop, t.shape, t.keep) for t in shard_uploads(what, split(m, (4, 2), {0: "x"})).values()]
    [(0, 16, (2, 2), ()), (16, 32, (2, 2), ())]
    >>> [(t.start, t.stop, t.shape, t.keep) for t in shard_uploads(what, split(m, (4, 2), {1: "x"})).values()]
    [(0, 32, (4, 2), (((0, 4),), ((0, 1),))), (0, 32, (4, 2), (((0, 4),), ((1, 2),)))]
    """
    if at.is_whole:
        return {worker: ShardUpload(0, what.nbytes, what.shape, ()) for worker in at.mesh.workers}
    found = {}
    for (worker, runs), where in zip(shards(at, what.shape).items(), at.mesh.coordinates, strict=True):
        shape = local_shape(at, what.shape, where)
        piece = _in_one_piece(what.shape, runs)
        if not math.prod(shape):
            found[worker] = ShardUpload(0, 0, shape, ())
        elif piece is not None:
            start, stop = (n * what.dtype.itemsize for n in piece)
            found[worker] = ShardUpload(start, stop, shape, ())
        else:
            found[worker] = ShardUpload(0, what.nbytes, what.shape, runs)
    return found


def _in_one_piece(shape: tuple[int, ...], runs: tuple[Runs, ...]) -> tuple[int, int] | None:
    """The elements [start, stop) of a row-major tensor that these positions are; None if they are apart."""
    cut = [d for d, n in enumerate(shape) if runs[d] != ((0, n),)]
    if not cut:
        return 0, math.prod(shape)
    d = cut[0]
    if len(cut) > 1 or len(runs[d]) != 1 or math.prod(shape[:d]) != 1:
        return None
    inner = math.prod(shape[d + 1 :])
    return runs[d][0][0] * inner, runs[d][0][1] * inner


def _pass_chunk(state: State, session: Session, upload: Upload, chunk: Chunk, payload: Buffer | None) -> None:
    """Send each worker what it gets of a chunk. A chunk that names a slot has no payload, and one worker."""
    first, last = chunk.offset, chunk.offset + _nbytes(chunk, payload)
    sent = SentChunk()
    for number, shard in upload.shards.items():
        start, stop = max(first, shard.start), min(last, shard.stop)
        if start >= stop and (shard.start < shard.stop or shard.begun):
            continue
        shape, dtype, keep = ((), "", ()) if shard.begun else (shard.shape, upload.spec.dtype.name, shard.keep)
        shard.begun = True
        shard.unacked.append(sent)
        sent.left += 1
        piece = payload
        if payload is not None and (start, stop) != (first, last):
            piece = memoryview(payload)[start - first : stop - first] if start < stop else b""
        total, offset = shard.stop - shard.start, max(start - shard.start, 0)
        message = Chunk(session.number, upload.key, offset, total, shape, dtype, chunk.slot, keep=keep)
        state.send(state.workers[number].control, message, piece)


def pass_held(state: State, session: Session) -> None:
    """The session has a worker now: it is offered the ring, and gets what was kept here."""
    offer_ring(state, session)
    for upload in list(session.uploads.values()):
        if upload.waits_for_worker:
            _begin(state, session, upload)
        if not upload.sink:
            for chunk, payload in upload.held:
                _pass_chunk(state, session, upload, chunk, payload)
            state.let_go(upload)


def upload_acked(state: State, worker: Worker, ack: ChunkAck) -> Session | None:
    """A worker has taken its part of a chunk; returns the session if its tensor has thereby arrived."""
    session = worker.sessions.get(ack.session)
    upload = session.uploads.get(ack.key) if session is not None and ack.upload else None
    shard = upload.shards.get(worker.number) if upload is not None else None
    if session is None or upload is None or shard is None or not shard.unacked:
        return None
    sent = shard.unacked.popleft()
    sent.left -= 1
    if sent.left:
        return None
    upload.unacked -= 1
    state.send(session.peer, ChunkAck(0, upload.key, True))
    if not upload.complete:
        return None
    del session.uploads[upload.key]
    assert upload.becomes is not None
    session.tensors[upload.key] = upload.becomes
    return session


# --- rings -----------------------------------------------------------------------------------


def share_came(state: State, session: Session, share: Share, _: Buffer | None = None) -> None:
    """A client offers its ring. `pid` comes from the socket, not from the client. The worker hears of it in time."""
    session.offer = None
    if share.pid <= 0 or len(session.workers) > 1:
        state.send(session.peer, Shared(0, share.ring, False))
    else:
        session.offer = RingOffer(share)
        offer_ring(state, session)


def offer_ring(state: State, session: Session) -> None:
    """Tell the session's worker of its ring, if it has both."""
    if session.offer is not None:
        share = session.offer.share
        for worker in session.workers.values():
            state.send(worker.control, Share(session.number, share.ring, share.fd, share.name, share.pid))


def share_answered(state: State, worker: Worker, answer: Shared, _: Buffer | None = None) -> None:
    """A worker has opened a ring, or could not."""
    session = worker.sessions.get(answer.session)
    if session is None or session.offer is None or session.offer.share.ring != answer.ring:
        return  # of one that was replaced meanwhile
    session.offer.taken = answer.ok
    state.send(session.peer, Shared(0, answer.ring, answer.ok))
    if not answer.ok:
        session.offer = None


# --- fetches: workers to client --------------------------------------------------------------


def describe(session: Session, request: int, tensor: Tensor, positions: tuple[int, ...] = ()) -> Sharded:
    """A tensor's layout, in words."""
    m, what = tensor.layout.mesh, tensor.spec
    name = next((name for name, each in session.meshes.items() if each is m), "")
    return Sharded(request, name, m.axes, m.workers, repr(tensor.layout), what.shape, what.dtype.name, positions)


def fetch(state: State, session: Session, fetch: Fetch, tensor: Tensor, again: bool = False) -> None:
    """Ask the workers that hold a tensor together for their shards; `again` where one that was asked is gone."""
    at, workers = tensor.layout, tensor.layout.mesh.workers
    positions = fewest(at, tensor.spec.shape) if len(workers) > 1 else (0,)
    download = session.fetches[fetch.request] = Download(fetch.id, _maker(session, fetch.id))
    if len(workers) > 1 or again:
        _pass_on(state, session, download, describe(session, fetch.request, tensor, positions))
    ring, slots = fetch.ring, fetch.slots
    if slots and not (session.offer is not None and session.offer.taken and session.offer.share.ring == ring):
        ring, slots = 0, ()  # of a ring that the worker does not have: it sends the bytes themselves
    for part, k in enumerate(positions):
        number = workers[k]
        download.shards[number] = ShardDownload(part)
        state.send(state.workers[number].control, Fetch(session.number, fetch.request, fetch.id, ring, slots))


def fetch_lost(state: State, session: Session, fetch: Fetch, failure: Failure) -> None:
    """Of a tensor that is lost the reason is told; if that is a call under way, behind its outcome."""
    download = session.fetches[fetch.request] = Download(fetch.id, _maker(session, fetch.id))
    _pass_on(state, session, download, FetchFailed(0, fetch.request, failure))
    _end_if_over(session, fetch.request, download)


def _maker(session: Session, id: int) -> int:
    """The call under way that makes this value; 0 if there is none."""
    for sent in reversed(session.sent.values()):  # most often it is the last one
        if sent.outputs <= id < sent.outputs + len(sent.plan.outputs):
            return sent.seq
    return 0


@lru_cache(1 << 12)
def fewest(at: Layout, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The positions in the mesh of as few workers as hold a tensor together.

    >>> from gt.layout import mesh
    >>> fewest(split(mesh(x=2, y=2), (4,), {0: "y"}), (4,)), fewest(split(mesh(x=4), (2,), {0: "x"}), (2,))
    ((0, 1), (1, 3))
    """
    used = at.axes()
    names = [name for name, _ in at.mesh.axes]
    found = []
    for k, where in enumerate(at.mesh.coordinates):
        first = all(i == 0 or name in used for i, name in zip(where, names, strict=True))
        if first and (at.partial or 0 not in local_shape(at, shape, where)):
            found.append(k)
    return tuple(found) or (0,)


def fetched(state: State, worker: Worker, chunk: Chunk, payload: Buffer | None) -> None:
    """A worker sends a piece of its shard."""
    session = worker.sessions.get(chunk.session)
    download = session.fetches.get(chunk.key) if session is not None else None
    shard = download.shards.get(worker.number) if download is not None else None
    if session is None or download is None or shard is None or shard.whole or shard.received != chunk.offset:
        return
    nbytes = _nbytes(chunk, payload)
    if nbytes < 0 or (payload is None and chunk.slot < 0):
        return
    shard.unacked += 1
    shard.received += nbytes
    c = chunk
    message = Chunk(0, c.key, c.offset, c.total, c.shape, c.dtype, c.slot, shard.part)
    _pass_on(state, session, download, message, payload)
    if shard.received >= c.total:
        shard.whole = True
        _end_if_over(session, c.key, download)


def fetch_failed(state: State, worker: Worker, message: FetchFailed, _: Buffer | None = None) -> None:
    """A worker cannot send its shard: the others need not either."""
    session = worker.sessions.get(message.session)
    download = session.fetches.get(message.request) if session is not None else None
    if session is None or download is None or worker.number not in download.shards:
        return
    download.shards[worker.number].whole = True  # there is nothing to cancel there
    cancel(state, session, message.request, download)
    download.shards.clear()
    _pass_on(state, session, download, FetchFailed(0, message.request, message.error))
    _end_if_over(session, message.request, download)


def cancel(state: State, session: Session, request: int, download: Download) -> None:
    """The workers need not send more of it."""
    for number, shard in download.shards.items():
        if not shard.whole:
            state.send(state.workers[number].control, Cancel(session.number, request))


def ack_came(state: State, session: Session, ack: ChunkAck, _: Buffer | None = None) -> None:
    """A client has taken a chunk of a fetch. After a cancel this means nothing."""
    if ack.upload:
        state.reject(session, "only a worker acknowledges uploads")
        return
    download = session.fetches.get(ack.key)
    for number, shard in download.shards.items() if download is not None else ():
        if shard.part == ack.part and shard.unacked:
            shard.unacked -= 1
            if not shard.whole:
                state.send(state.workers[number].control, ChunkAck(session.number, ack.key, False))


def pass_on_held(state: State, session: Session) -> None:
    """The client knows how more calls have ended."""
    ready = [each for each in session.fetches.items() if each[1].held and each[1].after <= session.done]
    for request, download in ready:
        for message, payload in download.held:
            state.send(session.peer, message, payload)
        download.held.clear()
        _end_if_over(session, request, download)


def _pass_on(
    state: State, session: Session, download: Download, message: Message, payload: Buffer | None = None
) -> None:
    if download.after > session.done and (len(session.workers) > 1 or type(message) is FetchFailed):
        download.held.append((message, payload))
    else:
        state.send(session.peer, message, payload)


def _end_if_over(session: Session, request: int, download: Download) -> None:
    if download.held:
        return
    for shard in download.shards.values():
        if not shard.whole:
            return
    del session.fetches[request]


# --- losing a worker -------------------------------------------------------------------------


def lose_uploads(state: State, session: Session, worker: Worker, failure: Failure) -> None:
    """What was on its way to a worker that is gone is lost."""
    for upload in list(session.uploads.values()):
        if worker.number not in upload.shards:
            continue
        for number, shard in upload.shards.items():
            if number != worker.number and shard.begun:
                # It must not wait for more: a chunk at a wrong offset ends an upload.
                control = state.workers[number].control
                state.send(control, Chunk(session.number, upload.key, -1, shard.stop - shard.start), b"")
                state.send(control, Free(session.number, pack_ids([upload.key])))
        state.lose_upload(session, upload, failure)


def lose_fetches(state: State, session: Session, worker: Worker, failure: Failure) -> list[Fetch]:
    """Fetches of calls under way fail with a worker that is gone, and so do those that it was answering, unless others
    may have all of the value: these are returned."""
    again: list[Fetch] = []
    for request, download in list(session.fetches.items()):
        mine = download.shards.pop(worker.number, None)
        if download.after <= session.done and (mine is None or mine.whole):
            continue
        cancel(state, session, request, download)
        del session.fetches[request]
        tensor = session.tensors.get(download.id)
        if download.after <= session.done and type(tensor) is Tensor and len(tensor.parts) > 1:
            again.append(Fetch(0, request, download.id))
        else:
            state.send(session.peer, FetchFailed(0, request, failure))
    return again


def fetch_again(state: State, session: Session, fetches: list[Fetch], failure: Failure) -> None:
    """Ask the workers that are left, if they still have all of the value."""
    for each in fetches:
        tensor = session.tensors.get(each.id)
        if type(tensor) is Tensor:
            fetch(state, session, each, tensor, again=True)
        else:
            state.send(session.peer, FetchFailed(0, each.request, failure))
