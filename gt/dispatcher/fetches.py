"""Fetches: tensor bytes of workers on their way to clients. They are relayed, never looked at.

Law 1: a fetch asks as few workers as hold the tensor together: one of those with the same shard, all over which it is
       partial. They answer the client, each with its shard, and never each other.
Law 2: what a fetch brings is passed on when the client has heard how the call ended that made the value: one worker
       may be quick to answer where another has yet to say that the call failed. A value from the only worker of a
       session is passed on at once: that worker knows how the call went. If that call or one before it has failed,
       the client hears of the failure first, even if it began later than a call that the worker has not finished.

On one worker a fetch has one shard, which is all of the tensor.
"""

from __future__ import annotations

from collections.abc import Container
from functools import lru_cache

from gt.dispatcher.session import Download, Session, ShardDownload, Tensor
from gt.dispatcher.state import State, Worker
from gt.layout import Layout, local_shape
from gt.transport import messages as msg
from gt.transport.messages import Buffer, Chunk
from gt.transport.shared import nbytes_of


def describe(session: Session, request: int, tensor: Tensor, positions: tuple[int, ...] = ()) -> msg.Sharded:
    """A tensor's layout, in words."""
    m, what = tensor.layout.mesh, tensor.spec
    name = next((name for name, each in session.meshes.items() if each is m), "")
    return msg.Sharded(request, name, m.axes, m.workers, repr(tensor.layout), what.shape, what.dtype.name, positions)


def fetch(state: State, session: Session, fetch: msg.Fetch, tensor: Tensor, again: bool = False) -> None:
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
        state.send(state.workers[number].control, msg.Fetch(session.number, fetch.request, fetch.id, ring, slots))


def fetch_lost(state: State, session: Session, fetch: msg.Fetch, failure: msg.Failure) -> None:
    """Of a tensor that is lost the reason is told; if that is a call under way, behind its outcome."""
    download = session.fetches[fetch.request] = Download(fetch.id, _maker(session, fetch.id))
    _pass_on(state, session, download, msg.FetchFailed(0, fetch.request, failure))
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

    >>> from gt.layout import mesh, split
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
    nbytes = nbytes_of(chunk) if payload is None else len(payload)
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


def fetch_failed(state: State, worker: Worker, message: msg.FetchFailed, _: Buffer | None = None) -> None:
    """A worker cannot send its shard: the others need not either."""
    session = worker.sessions.get(message.session)
    download = session.fetches.get(message.request) if session is not None else None
    if session is None or download is None or worker.number not in download.shards:
        return
    download.shards[worker.number].whole = True  # there is nothing to cancel there
    cancel(state, session, message.request, download)
    download.shards.clear()
    _pass_on(state, session, download, msg.FetchFailed(0, message.request, message.error))
    _end_if_over(session, message.request, download)


def cancel(state: State, session: Session, request: int, download: Download) -> None:
    """The workers need not send more of it."""
    for number, shard in download.shards.items():
        if not shard.whole:
            state.send(state.workers[number].control, msg.Cancel(session.number, request))


def ack_came(state: State, session: Session, ack: msg.ChunkAck, _: Buffer | None = None) -> None:
    """A client has taken a chunk of a fetch. After a cancel this means nothing."""
    if ack.upload:
        state.reject(session, "only a worker acknowledges uploads")
        return
    download = session.fetches.get(ack.key)
    for number, shard in download.shards.items() if download is not None else ():
        if shard.part == ack.part and shard.unacked:
            shard.unacked -= 1
            if not shard.whole:
                state.send(state.workers[number].control, msg.ChunkAck(session.number, ack.key, False))


def pass_on_held(state: State, session: Session) -> None:
    """The client knows how more calls have ended."""
    ready = [each for each in session.fetches.items() if each[1].held and each[1].after <= session.done]
    for request, download in ready:
        for message, payload in download.held:
            state.send(session.peer, message, payload)
        download.held.clear()
        _end_if_over(session, request, download)


def _pass_on(
    state: State, session: Session, download: Download, message: msg.Message, payload: Buffer | None = None
) -> None:
    if download.after > session.done and (
        len(session.workers) > 1 or type(message) is msg.FetchFailed or _has_failed(session, download.after)
    ):
        download.held.append((message, payload))
    else:
        state.send(session.peer, message, payload)


def _has_failed(session: Session, last: int) -> bool:
    """Whether a call has failed, up to this one, of which the client has not heard."""
    return any(sent.failure is not None and sent.seq <= last for sent in session.sent.values())


def _end_if_over(session: Session, request: int, download: Download) -> None:
    if download.held:
        return
    for shard in download.shards.values():
        if not shard.whole:
            return
    del session.fetches[request]


def lose_fetches(
    state: State, session: Session, worker: Worker, failing: Container[int], failure: msg.Failure
) -> list[msg.Fetch]:
    """Fetches of calls that fail with a worker that is gone fail too, and so do those that it was answering, unless
    others may have all of the value: these are returned."""
    again: list[msg.Fetch] = []
    for request, download in list(session.fetches.items()):
        mine = download.shards.pop(worker.number, None)
        if download.after not in failing and (mine is None or mine.whole):
            continue
        cancel(state, session, request, download)
        del session.fetches[request]
        tensor = session.tensors.get(download.id)
        if download.after not in failing and type(tensor) is Tensor and len(tensor.parts) > 1:
            again.append(msg.Fetch(0, request, download.id))
        else:
            state.send(session.peer, msg.FetchFailed(0, request, failure))
    return again


def fetch_again(state: State, session: Session, fetches: list[msg.Fetch], failure: msg.Failure) -> None:
    """Ask the workers that are left, if they still have all of the value."""
    for each in fetches:
        tensor = session.tensors.get(each.id)
        if type(tensor) is Tensor:
            fetch(state, session, each, tensor, again=True)
        else:
            state.send(session.peer, msg.FetchFailed(0, each.request, failure))
