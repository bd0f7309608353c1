"""Uploads and fetches of wide sessions: the bytes of a tensor go to its workers, and come from them, in parts.

Law 1: a worker gets the bytes that are its own where they lie in one piece: to it that is an upload like any other.
       Else it gets them all, and which positions to keep. A chunk is acknowledged to the client when everyone who got
       some of it has acknowledged it.
Law 2: a fetch asks as few workers as hold the tensor together: one of those with the same shard, all over which it is
       partial. They talk to the client, each about its part, and never to each other.
Law 3: what a fetch brings is passed on when the client has heard how the call ended that made the value: workers
       answer apart, and one may be quick to answer where another has yet to say that the call failed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from gt.dispatcher import joint
from gt.dispatcher.placement import lose
from gt.dispatcher.session import Download, Piece, Session, Target, Tensor, Upload, show_nbytes
from gt.dispatcher.state import State, Worker
from gt.errors import ArgumentError, GTError
from gt.layout import Layout, Mesh, Runs, fits, local_shape, parse, shards, split
from gt.program import Spec
from gt.transport.codec import Buffer
from gt.transport.messages import Cancel, Chunk, ChunkAck, Failure, Fetch, FetchFailed, Free, Message, Sharded, pack_ids

SPLIT_NBYTES = 1 << 16  #: Smaller uploads that say nothing are whole on every worker.
TEXT = 1000  #: Characters of a layout.


# --- layouts that clients write --------------------------------------------------------------


def parse_layout(text: str, shape: tuple[int, ...], meshes: Mapping[str, Mesh]) -> Layout:
    """The layout that a text like "[100@x .]" or "stage1: [100@x .]" means; raises GTError if it means none.

    >>> from gt.layout import mesh
    >>> parse_layout("stage1: [100@x]", (100, 3), {"stage1": mesh([4, 5], x=2)})
    [100@x]
    """
    found = re.fullmatch(r"(?:(\w+): )?(\[.*)", text) if len(text) <= TEXT else None
    if found is None:
        raise ArgumentError("layout: a text like '[100@x .]' or 'stage1: [100@x .]' was expected")
    name = found[1] or ""
    if name not in meshes:
        raise ArgumentError(
            f"layout: this session has no mesh {name!r}" if name else "layout: this session has no mesh"
        )
    meant = parse(found[2], meshes[name])
    fits(meant, shape)
    return meant


def _upload_layout(session: Session, text: str, what: Spec) -> Layout:
    """Where an upload goes."""
    if text:
        wish = parse_layout(text, what.shape, session.meshes)
        if wish.partial:
            raise ArgumentError(f"layout: {wish!r} is partial; an upload has all of its values")
        return joint.plain_layout(wish)
    home = session.home
    assert home is not None
    axes = home.mesh.axes
    if session.split and axes and what.ndim and what.nbytes >= SPLIT_NBYTES:
        return split(home.mesh, what.shape, {0: axes[0][0]})
    return home


# --- uploads ---------------------------------------------------------------------------------


def upload_problem(session: Session, text: str, what: Spec) -> str:
    """Why an upload cannot lie as its client wishes; empty if it can."""
    if session.broken is not None:
        return ""  # it will be lost, and that is the reason to give
    try:
        _upload_layout(session, text, what)
    except (GTError, ValueError, RecursionError) as e:  # a stranger's text may hold any number
        return str(e)[:200]
    return ""


def begin_upload(state: State, session: Session, upload: Upload, text: str) -> None:
    """Decide who gets what, and count it; if somebody has no room the tensor is lost."""
    if session.broken is not None:
        lose(state, session, upload, session.broken)
        return
    upload.layout = at = _upload_layout(session, text, upload.spec)
    tensor = joint.tensor_at(upload.spec, at)
    assert tensor.parts is not None
    for number, nbytes in tensor.parts.items():
        worker = state.workers[number]
        if worker.memory and worker.nbytes + nbytes > worker.memory:
            free_nbytes = max(0, worker.memory - worker.nbytes)
            text = (
                f"an upload of {show_nbytes(nbytes)} to worker {number}, which has "
                f"{show_nbytes(free_nbytes)} free of {show_nbytes(worker.memory)}"
            )
            lose(state, session, upload, Failure("OutOfMemory", text))
            return
    session.tensors[upload.key] = Tensor(upload.spec, tensor.nbytes, None, parts=tensor.parts)
    state.spread(session, tensor.parts)
    upload.targets = targets(upload.spec, at)


def targets(what: Spec, at: Layout) -> dict[int, Target]:
    """By worker: which bytes it gets.

    >>> from gt import dtypes
    >>> from gt.layout import mesh
    >>> from gt.program import spec
    >>> m, what = mesh(x=2), spec((4, 2), dtypes.float32)
    >>> [(t.start, t.stop, t.shape, t.keep) for t in targets(what, split(m, (4, 2), {0: "x"})).values()]
    [(0, 16, (2, 2), ()), (16, 32, (2, 2), ())]
    >>> [(t.start, t.stop, t.shape, t.keep) for t in targets(what, split(m, (4, 2), {1: "x"})).values()]
    [(0, 32, (4, 2), (((0, 4),), ((0, 1),))), (0, 32, (4, 2), (((0, 4),), ((1, 2),)))]
    """
    found = {}
    for (worker, runs), where in zip(shards(at, what.shape).items(), at.mesh.coordinates, strict=True):
        shape = local_shape(at, what.shape, where)
        piece = _in_one_piece(what.shape, runs)
        if not math.prod(shape):
            found[worker] = Target(0, 0, shape, ())
        elif piece is not None:
            start, stop = (n * what.dtype.itemsize for n in piece)
            found[worker] = Target(start, stop, shape, ())
        else:
            found[worker] = Target(0, what.nbytes, what.shape, runs)
    return found


def _in_one_piece(shape: tuple[int, ...], runs: tuple[Runs, ...]) -> tuple[int, int] | None:
    """The elements [start, stop) of a row-major tensor that these positions are; None if they lie apart."""
    cut = [d for d, n in enumerate(shape) if runs[d] != ((0, n),)]
    if not cut:
        return 0, math.prod(shape)
    d = cut[0]
    if len(cut) > 1 or len(runs[d]) != 1 or math.prod(shape[:d]) != 1:
        return None
    inner = math.prod(shape[d + 1 :])
    return runs[d][0][0] * inner, runs[d][0][1] * inner


def pass_chunk(state: State, session: Session, upload: Upload, chunk: Chunk, payload: Buffer) -> None:
    """Send each worker what it gets of a chunk."""
    first, last = chunk.offset, chunk.offset + len(payload)
    whole = memoryview(payload)
    waits = [0]  #: Workers that have yet to acknowledge it.
    for number, target in upload.targets.items():
        start, stop = max(first, target.start), min(last, target.stop)
        if start >= stop and (target.start < target.stop or target.begun):
            continue
        shape, dtype, keep = ((), "", ()) if target.begun else (target.shape, upload.spec.dtype.name, target.keep)
        target.begun = True
        target.unacked.append(waits)
        waits[0] += 1
        total, offset = target.stop - target.start, max(start - target.start, 0)
        part = Chunk(session.number, upload.key, offset, total, shape, dtype, keep=keep)
        piece = whole[start - first : stop - first] if start < stop else b""
        state.send(state.workers[number].control, part, piece)


def upload_acked(state: State, session: Session, worker: Worker, upload: Upload) -> bool:
    """A worker has taken its part of a chunk; whether the upload is complete."""
    target = upload.targets.get(worker.number)
    if target is None or not target.unacked:
        return False
    waits = target.unacked.popleft()
    waits[0] -= 1
    if waits[0]:
        return False
    upload.unacked -= 1
    state.send(session.peer, ChunkAck(0, upload.key, True))
    if not upload.complete:
        return False
    del session.uploads[upload.key]
    tensor = session.tensors[upload.key]
    session.tensors[upload.key] = Tensor(tensor.spec, tensor.nbytes, upload.layout, parts=tensor.parts)
    return True


# --- fetches ---------------------------------------------------------------------------------


def describe(session: Session, request: int, tensor: Tensor, positions: tuple[int, ...] = ()) -> Sharded:
    """How a tensor lies, in words."""
    at = tensor.layout
    assert at is not None
    m = at.mesh
    name = next((name for name, each in session.meshes.items() if each is m), "")
    spec = tensor.spec
    return Sharded(request, name, m.axes, m.workers, repr(at), spec.shape, spec.dtype.name, positions)


def fetch(state: State, session: Session, fetch: Fetch, tensor: Tensor, again: bool = False) -> None:
    """Ask the workers that hold a tensor together for their parts; `again` for those of one that is gone."""
    at = tensor.layout
    assert at is not None
    positions = fewest(at, tensor.spec.shape)
    numbers = [at.mesh.workers[k] for k in positions]
    download = _begin_fetch(session, fetch)
    download.pieces = {n: Piece(part) for part, n in enumerate(numbers)}
    if len(at.mesh.workers) > 1 or again:
        _pass_on(state, session, download, describe(session, fetch.request, tensor, positions), None)
    for number in numbers:
        state.send(state.workers[number].control, Fetch(session.number, fetch.request, fetch.id))


def fetch_lost(state: State, session: Session, fetch: Fetch, failure: Failure) -> None:
    """Of a tensor that is lost the reason is told; if that is a call under way, behind its outcome."""
    download = _begin_fetch(session, fetch)
    _pass_on(state, session, download, FetchFailed(0, fetch.request, failure), None)
    _end_if_over(session, fetch.request, download)


def _begin_fetch(session: Session, fetch: Fetch) -> Download:
    download = session.fetches[fetch.request] = Download(pieces={}, id=fetch.id)
    download.after = _maker(session, fetch.id)
    return download


def _maker(session: Session, id: int) -> int:
    """The call under way that makes this value; 0 if there is none."""
    making = (s.seq for s in session.sent.values() if s.outputs <= id < s.outputs + len(s.plan.outputs))
    return next(making, 0)


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


def fetched(state: State, session: Session, worker: Worker, download: Download, chunk: Chunk, payload: Buffer) -> None:
    """A worker sends a piece of its part."""
    piece = (download.pieces or {}).get(worker.number)
    if piece is None or piece.whole or piece.received != chunk.offset:
        return
    piece.unacked += 1
    piece.received += len(payload)
    piece.whole = piece.received >= chunk.total
    c = chunk
    message = Chunk(0, c.key, c.offset, c.total, c.shape, c.dtype, part=piece.part)
    _pass_on(state, session, download, message, payload)
    _end_if_over(session, chunk.key, download)


def failed(state: State, session: Session, worker: Worker, request: int, error: Failure) -> None:
    """A worker cannot send its part: the others need not either."""
    download = session.fetches[request]
    if download.pieces is not None and worker.number in download.pieces:
        download.pieces[worker.number].whole = True  # there is nothing to cancel there
        cancel(state, session, request, download)
        download.pieces.clear()
        _pass_on(state, session, download, FetchFailed(0, request, error), None)
        _end_if_over(session, request, download)


def cancel(state: State, session: Session, request: int, download: Download) -> None:
    """The client has lost interest."""
    for number, piece in (download.pieces or {}).items():
        if not piece.whole:
            state.send(state.workers[number].control, Cancel(session.number, request))


def acked(state: State, session: Session, download: Download, ack: ChunkAck) -> None:
    """The client has taken a chunk of a part."""
    for number, piece in (download.pieces or {}).items():
        if piece.part == ack.part and piece.unacked:
            piece.unacked -= 1
            if not piece.whole:
                state.send(state.workers[number].control, ChunkAck(session.number, ack.key, False))


def pass_on_held(state: State, session: Session) -> None:
    """The client knows how more calls have ended."""
    for request, download in list(session.fetches.items()):
        if download.held and download.after <= session.done:
            for message, payload in download.held:
                state.send(session.peer, message, payload)
            download.held.clear()
            _end_if_over(session, request, download)


def _pass_on(state: State, session: Session, download: Download, message: Message, payload: Buffer | None) -> None:
    if download.after > session.done:
        download.held.append((message, payload))
    else:
        state.send(session.peer, message, payload)


def _end_if_over(session: Session, request: int, download: Download) -> None:
    if not download.held and all(piece.whole for piece in (download.pieces or {}).values()):
        del session.fetches[request]


# --- losing a worker -------------------------------------------------------------------------


def lose_transfers(state: State, session: Session, worker: Worker, failure: Failure) -> list[Fetch]:
    """What came from a worker that is gone, or went there, and what is fetched of calls that fail with it. Returns the
    fetches that others may be able to answer."""
    again: list[Fetch] = []
    for upload in list(session.uploads.values()):
        there = worker.number in upload.targets if upload.targets else session.worker is worker
        if there and not upload.sink:
            _abort(state, session, upload, worker)
            lose(state, session, upload, failure)
    for request, download in list(session.fetches.items()):
        pieces = download.pieces
        if pieces is None:  # from before the session had several: its first worker answers, and nothing is held back
            over = session.worker is worker or _maker(session, download.id) > session.done
            if over and session.worker is not worker and session.worker is not None:
                state.send(session.worker.control, Cancel(session.number, request))
        else:
            over = download.after > session.done or (worker.number in pieces and not pieces[worker.number].whole)
            pieces.pop(worker.number, None)
        if not over:
            continue
        cancel(state, session, request, download)
        del session.fetches[request]
        if pieces is not None and download.after <= session.done:
            again.append(Fetch(0, request, download.id))
        else:
            state.send(session.peer, FetchFailed(0, request, failure))
    return again


def fetch_again(state: State, session: Session, fetches: list[Fetch], failure: Failure) -> None:
    """Of those that are left, somebody may have all of it."""
    for each in fetches:
        tensor = session.tensors.get(each.id)
        if tensor is not None and tensor.layout is not None:
            fetch(state, session, each, tensor, again=True)
        else:
            state.send(session.peer, FetchFailed(0, each.request, failure))


def _abort(state: State, session: Session, upload: Upload, gone: Worker) -> None:
    """The workers that are left shall not wait for more of it: a chunk that does not fit ends an upload."""
    for number, target in upload.targets.items():
        if number != gone.number and target.begun:
            control = state.workers[number].control
            state.send(control, Chunk(session.number, upload.key, -1, target.stop - target.start), b"")
            state.send(control, Free(session.number, pack_ids([upload.key])))
