"""Uploads: tensor bytes of clients on their way to workers. They are relayed, never looked at.

Law 1: chunks of an upload come in order and sum to what the first one declared; the tensor can be used
       when its workers have acknowledged them all.
Law 2: at most CHUNKS_IN_FLIGHT chunks of an upload that bring their bytes are unacknowledged, at most SLOTS that
       name a slot, at most UPLOADS uploads under way.
Law 3: a chunk is always acknowledged in the end, also where its tensor is lost: a client never waits for ever.
Law 4: where the bytes of a shard are contiguous, its worker gets only these, as an upload like any other. Otherwise it
       gets all bytes, and the positions that it must keep. A chunk is acknowledged to the client when every worker that
       got some of it has acknowledged it.
Law 5: a ring is offered to the only worker of its session, with the process that the sockets say it is of, and is used
       while that worker, having accepted it, is connected. A chunk that names a slot at any other time counts as not
       sent: its client did not know yet, and will send it again. Until a chunk has been taken, no worker is chosen for
       a tensor: it cannot be lost with one that never had a byte of it.

On one worker an upload has one shard, which is all of the tensor.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from gt import dtypes
from gt.dispatcher import memory
from gt.dispatcher.limits import due, may_upload, missing_text
from gt.dispatcher.planner.plan import SPLIT_NBYTES
from gt.dispatcher.plans import plain_layout, tensor_at
from gt.dispatcher.session import MAX_ID, TENSORS, RingOffer, SentChunk, Session, ShardUpload, Upload, many_tensors
from gt.dispatcher.state import HELD_NBYTES, State, Worker
from gt.errors import ArgumentError, GTError
from gt.layout import Layout, Mesh, Runs, fits, local_shape, parse, shards, split
from gt.ops.check import MAX_DIMS, misfit
from gt.program import Spec, spec
from gt.transport import messages as msg
from gt.transport.messages import Buffer, Chunk
from gt.transport.shared import SLOTS, nbytes_of

TEXT = 1000  #: Characters of a layout.


def chunk_came(state: State, session: Session, chunk: Chunk, payload: Buffer | None) -> bool:
    """A client uploads. Returns whether the tensor was lost now: then calls that wait for it fail."""
    upload = session.uploads.get(chunk.key)
    not_sent = chunk.slot >= 0 and not session.shares_ring
    if not_sent and upload is not None:
        return False
    problem = _chunk_problem(session, upload, chunk, payload)
    if problem:
        state.reject(session, f"upload {chunk.key}: {problem}")
        return False
    begins = upload is None or not upload.begun
    if upload is None:
        what = spec(chunk.shape, dtypes.BY_NAME[chunk.dtype])
        upload = Upload(chunk.key, what, chunk.total)
        session.uploads[chunk.key] = session.tensors[chunk.key] = upload
        session.upload_mark = chunk.key
    if not_sent:
        return False  # but the tensor is known from now on
    if not upload.begun:
        upload.layout_text = chunk.layout
        if session.workers:
            _begin(state, session, upload)
        elif (loss := state.loss_of(session)) is not None:
            state.lose_upload(session, upload, loss.failure)
        else:
            state.await_worker(session)
        upload.begun = True
    upload.received += _nbytes(chunk, payload)
    if upload.sink:
        state.send(session.peer, msg.ChunkAck(0, upload.key, True))
        if upload.complete:
            del session.uploads[upload.key]
        return begins
    upload.unacked += 1
    if upload.becomes is not None:
        _pass_chunk(state, session, upload, chunk, payload)
        return False
    assert payload is not None
    upload.held.append((chunk, payload))
    state.held_nbytes += len(payload)
    if state.held_nbytes > HELD_NBYTES:
        state.cut_off(session, "too much is uploaded while no worker has joined this server")
    return False


def _chunk_problem(session: Session, upload: Upload | None, chunk: Chunk, payload: Buffer | None) -> str:
    """Why this chunk cannot be taken; empty if it can."""
    if chunk.slot >= 0 and payload is None:
        if chunk.slot >= SLOTS:
            return f"slot must be < {SLOTS}, got {chunk.slot}"
    elif payload is None or len(payload) > msg.CHUNK:
        return f"a chunk must have 0 to {msg.CHUNK} bytes"
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
    return SLOTS if chunk.slot >= 0 else msg.CHUNKS_IN_FLIGHT


def _begin_problem(session: Session, chunk: Chunk, nbytes: int) -> str:
    if not session.upload_mark < chunk.key <= MAX_ID or chunk.key in session.tensors:
        return f"the id must be new and above {session.upload_mark}, the last one that was uploaded"
    if len(session.tensors) >= 2 * TENSORS:
        return f"a session can have at most {TENSORS} tensors"
    if chunk.offset:
        return f"the first chunk must begin at byte 0, got {chunk.offset}"
    if len(session.uploads) >= msg.UPLOADS:
        return f"at most {msg.UPLOADS} uploads at once"
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
    planned = session.upload_layouts.get(what)
    if planned is not None:
        return planned
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
    if len(session.tensors) > TENSORS:
        state.lose_upload(session, upload, many_tensors(session))
        return
    tensor = tensor_at(upload.spec, _upload_layout(session, upload.layout_text, upload.spec))
    for number, nbytes in tensor.parts.items():
        worker = state.workers[number]
        if not memory.fits(session, worker, nbytes):
            text = f"an upload of {missing_text(session, worker, nbytes)}"
            state.lose_upload(session, upload, msg.Failure("OutOfMemory", text))
            return
    for number, nbytes in tensor.parts.items():
        if nbytes and not state.workers[number].has_room(nbytes):
            memory.keep_out(state, session, upload.key, state.workers[number], nbytes)
    upload.becomes = tensor
    if session.split and upload.layout_text:
        session.pins.add(upload.key)
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
    sent = SentChunk(last - first)
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


def upload_acked(state: State, worker: Worker, ack: msg.ChunkAck) -> Session | None:
    """A worker has taken its part of a chunk; returns the session if its tensor has thereby arrived."""
    session = worker.sessions.get(ack.session)
    upload = session.uploads.get(ack.key) if session is not None and ack.upload else None
    shard = upload.shards.get(worker.number) if upload is not None else None
    if session is None or upload is None or shard is None or not shard.unacked:
        return None
    sent = shard.unacked.popleft()
    sent.left -= 1
    if sent.left or not may_upload(state, session, upload, sent.nbytes):
        return None
    return _acknowledge(state, session, upload)


def slowed_acked(state: State) -> list[Session]:
    """Time has passed: acknowledge what had to wait for that; returns the sessions of tensors that have arrived."""
    found = []
    for session, upload in due(state):
        upload.slowed -= 1
        arrived = _acknowledge(state, session, upload)
        if arrived is not None:
            found.append(arrived)
    return found


def _acknowledge(state: State, session: Session, upload: Upload) -> Session | None:
    """A client may count a chunk as taken; returns the session if its tensor has thereby arrived."""
    upload.unacked -= 1
    state.send(session.peer, msg.ChunkAck(0, upload.key, True))
    if not upload.complete:
        return None
    del session.uploads[upload.key]
    assert upload.becomes is not None
    session.tensors[upload.key] = upload.becomes
    return session


def lose_uploads(state: State, session: Session, worker: Worker, failure: msg.Failure) -> None:
    """What was on its way to a worker that is gone is lost."""
    for upload in list(session.uploads.values()):
        if worker.number not in upload.shards:
            continue
        for number, shard in upload.shards.items():
            if number != worker.number and shard.begun:
                # It must not wait for more: a chunk at a wrong offset ends an upload.
                control = state.workers[number].control
                state.send(control, Chunk(session.number, upload.key, -1, shard.stop - shard.start), b"")
                state.send(control, msg.Free(session.number, msg.pack_ids([upload.key])))
        state.lose_upload(session, upload, failure)


# --- rings -----------------------------------------------------------------------------------


def share_came(state: State, session: Session, share: msg.Share, _: Buffer | None = None) -> None:
    """A client offers its ring. `pid` comes from the socket, not from the client. The worker hears of it in time."""
    session.offer = None
    if share.pid <= 0 or len(session.workers) > 1:
        state.send(session.peer, msg.Shared(0, share.ring, False))
    else:
        session.offer = RingOffer(share)
        offer_ring(state, session)


def offer_ring(state: State, session: Session) -> None:
    """Tell the session's worker of its ring, if it has both."""
    if session.offer is not None:
        share = session.offer.share
        for worker in session.workers.values():
            state.send(worker.control, msg.Share(session.number, share.ring, share.fd, share.name, share.pid))


def share_answered(state: State, worker: Worker, answer: msg.Shared, _: Buffer | None = None) -> None:
    """A worker has opened a ring, or could not."""
    session = worker.sessions.get(answer.session)
    if session is None or session.offer is None or session.offer.share.ring != answer.ring:
        return  # of one that was replaced meanwhile
    session.offer.taken = answer.ok
    state.send(session.peer, msg.Shared(0, answer.ring, answer.ok))
    if not answer.ok:
        session.offer = None
