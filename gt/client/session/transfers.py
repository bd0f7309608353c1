"""Uploads and fetches: tensors are sent in chunks that contain their bytes, or through the session's ring.

Law 1: when `upload` returns, the user's bytes have been copied: into slots of the ring, or into memory of ours.
Law 2: the chunks of a transfer go out in order, and are taken in order: after a chunk in the ring one that
       brings its bytes goes out only when all before it were acknowledged.
       What was in the ring when it was withdrawn, with the worker that had it, is sent again.
Law 3: a slot is free again when its chunk was acknowledged, or when the fetch it was lent for has ended. A worker
       may still write to the slots of a fetch that was given up: then the ring is given up too.
Law 4: what is in a mailbox is the answer to a fetch before its message is here. So mailboxes are lent only when the
       worker is known to have the ring: all that the server had to say before that has been heard.
Law 5: a tensor of several workers comes in parts, one transfer for each. Nothing is added twice: of shards that are
       copies of each other one is taken, whoever sent them. What is partial is reduced here, 16-bit floats in
       float32, as workers would do it.
Law 6: only what is alive is fetched before anybody asks: results of the latest call, of which nothing was freed since.
       What was fetched ahead and was not read is not fetched ahead again until it has been read once more.

The ring is memory that this process shares with its worker (gt/transport/shared.py). It is made for the first large
tensor, or for small ones that are fetched often, where the server is on this machine; if the worker cannot have it,
nothing is different but the speed. A session of several workers has none.

A read waits for a round trip to the worker. A loop that reads several results of a program, such as its losses, reads
the same ones each time. So a program remembers which of its results were read, and when the first of them is read the
others are fetched with it.

All of this is used with the session's lock held.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from gt import config, dtypes, layout
from gt.client.programs.pending import KEPT_NBYTES, DeadIds, RemoteId, Value
from gt.client.programs.tree import Variant
from gt.client.session import telling
from gt.client.session.meshes import Meshes
from gt.errors import ServerError
from gt.layout import Layout, Runs
from gt.program import Spec
from gt.transport import messages as msg
from gt.transport.channel import Channel
from gt.transport.shared import LARGE, LENT, PIECE, SLOTS, SMALL, Ring, make_ring, nbytes_of

QUEUED_NBYTES = 256 << 20  #: Upload bytes that wait to be sent before from_numpy blocks.
ANSWER_S = 0.2  #: How long a very large upload waits to learn whether the worker has the ring.
OFTEN = 8  #: Small fetches after which a ring is made for them.
REST_S = 5.0  #: How long a ring keeps its memory after it was last used.

Array = np.ndarray[Any, Any]

_REDUCE: dict[str | None, Any] = {"sum": np.add, "max": np.maximum, "min": np.minimum}
_NARROW = (dtypes.float16.numpy, dtypes.bfloat16.numpy)


class Download:
    """A fetch in flight."""

    __slots__ = ("box", "buffer", "done", "error", "got", "nbytes", "parts", "request", "ring", "slots")

    def __init__(self, request: int, nbytes: int) -> None:
        self.request = request
        self.nbytes = nbytes
        self.buffer: Any = None
        self.got = 0
        self.done = False
        self.error: msg.Failure | None = None
        self.ring: Ring | None = None
        self.slots: tuple[int, ...] = ()  #: of that ring, lent to the worker
        self.box = -1  #: The mailbox of that ring that was lent instead.
        self.parts: Parts | None = None  #: The shards of a tensor of several workers, instead of `buffer`.

    def arrived(self) -> bool:
        """Whether it is done: its messages have come, or the answer is in its mailbox. Needs no lock: whoever
        takes the message off the channel at the same time finds the same bytes in it."""
        if self.done:
            return True
        if self.box < 0 or self.ring is None:
            return False
        found = self.ring.answer(self.box, self.request, self.nbytes)
        if found is None:
            return False
        self.buffer, self.done = found, True
        return True


class Upload:
    """An upload in flight."""

    __slots__ = ("data", "flying", "layout", "owned", "sent", "spec", "start", "total")

    def __init__(self, data: Array, spec: Spec, layout: str) -> None:
        self.data = data  #: the bytes from `start` on
        self.start = 0
        self.owned = False  #: nobody else can change them
        self.spec = spec
        self.layout = layout  #: the layout to give it; "": the session's default
        self.total = len(data)
        self.sent = -1  #: bytes sent; -1: not even the first chunk, which an empty tensor has too
        #: Chunks not acknowledged. Of those in a ring: the ring, the slot, and the first byte.
        self.flying: deque[tuple[Ring, int, int] | None] = deque()

    def own(self) -> None:
        """Copy what is left to send."""
        self.start = max(self.sent, 0)
        self.data = self.data[self.start :].copy()
        self.owned = True

    def take_back(self, number: int) -> None:
        """What is in this ring and was not acknowledged counts as not sent."""
        parts = []
        while self.flying and (last := self.flying[-1]) is not None and last[0].number == number:
            ring, slot, offset = last
            parts.append(ring.slot(slot, self.sent - offset))
            self.sent = offset
            self.flying.pop()
        if parts:
            rest = self.data[self.sent + sum(map(len, parts)) - self.start :]
            self.data = np.concatenate([*reversed(parts), rest])
            self.start, self.owned = self.sent, True

    def piece(self, nbytes: int) -> Array:
        """The next `nbytes` bytes, or what is left."""
        at = max(self.sent, 0) - self.start
        return self.data[at : at + nbytes]


class Connection(Protocol):
    """What transfers need of their session."""

    channel: Channel
    config: config.Config
    dead: DeadIds
    meshes: Meshes
    next_id: int
    broken: str
    transfers: Transfers

    def check_usable(self) -> None: ...

    def flush_frees(self) -> None: ...

    def say(self, text: str) -> None: ...

    def wait(self, ready: Callable[[], bool], look: bool = False) -> None: ...

    def send(self, message: Any, payload: msg.Buffer | None = None) -> None: ...


class Transfers:
    """The uploads and fetches of one session, and its ring."""

    def __init__(self, session: Connection) -> None:
        self.session = session
        self.uploads: dict[int, Upload] = {}
        self.fetches: dict[int, Download] = {}
        self.queued_nbytes = 0
        self.ring: Ring | None = None
        self.sharing = False  #: The worker has the ring.
        self.may_share = session.config.share_memory and getattr(session.channel, "local", False)
        self._rings = 0
        self._small = 0  #: Small fetches so far.
        self._used_s = 0.0  #: When the ring was last used; 0: not since it gave its memory back.

    # --- uploads ---

    def upload(self, array: Array, spec: Spec, layout: str) -> Value:
        """A value with the bytes of this array, which may change afterwards; see Chunk for `layout`."""
        session = self.session
        session.check_usable()
        if self._full():
            session.wait(lambda: not self._full())
        v = Value(None, -1, spec)
        v.handle = RemoteId(session.next_id, session.dead)
        session.next_id += 1
        key = v.handle.id
        up = self.uploads[key] = Upload(np.ascontiguousarray(array).reshape(-1).view(np.uint8), spec, layout)
        self.queued_nbytes += up.total
        try:
            if up.total > LARGE:
                self._offer()
                self._pump(key, up)  # into the ring, as far as there is one
                if up.total > QUEUED_NBYTES and self.ring is not None:
                    # It would wait anyway: here for the worker to accept the ring, and for all bytes to be in it.
                    soon_s = time.monotonic() + ANSWER_S
                    session.wait(lambda: self.sharing or self.ring is None or time.monotonic() > soon_s)
                    self._pump(key, up)
                    session.wait(lambda: up.sent == up.total or not self.sharing)
        finally:
            if up.sent < up.total:
                up.own()
                self._pump(key, up)
        return v

    def _full(self) -> bool:
        return self.queued_nbytes > QUEUED_NBYTES or len(self.uploads) >= msg.UPLOADS

    def _pump(self, key: int, up: Upload) -> None:
        """Send the chunks that may be sent now."""
        while up.sent < up.total:
            slot = -1
            if up.total > LARGE and self.sharing and self.ring is not None:
                if self.ring.free and len(up.flying) < SLOTS:
                    slot = self._take(self.ring.free)
                elif up.sent >= 0:
                    return  # until a slot is free. Only the first chunk cannot wait: it announces the tensor
            if slot < 0 and (not up.owned or len(up.flying) >= msg.CHUNKS_IN_FLIGHT or any(up.flying)):
                return
            at = max(up.sent, 0)
            first = at == 0
            shape, dtype = (up.spec.shape, up.spec.dtype.name) if first else ((), "")
            chunk = msg.Chunk(0, key, at, up.total, shape, dtype, slot, layout=up.layout if first else "")
            if slot < 0:
                piece = up.piece(msg.CHUNK)
                self.session.send(chunk, piece.data)
                up.flying.append(None)
            else:
                assert self.ring is not None
                piece = up.piece(nbytes_of(chunk))
                self.ring.put(slot, piece)
                self.session.send(chunk)
                up.flying.append((self.ring, slot, at))
            up.sent = at + len(piece)

    def acknowledged(self, ack: msg.ChunkAck) -> None:
        """The server has received a chunk of an upload."""
        up = self.uploads.get(ack.key)
        if up is None or not up.flying:
            return
        lent = up.flying.popleft()
        if lent is not None:
            lent[0].free.append(lent[1])
        if up.sent == up.total and not up.flying:
            del self.uploads[ack.key]
            self.queued_nbytes -= up.total
        elif up.sent < up.total:
            self._pump(ack.key, up)
        if lent is not None:
            self._pump_all()

    def _pump_all(self) -> None:
        for key, up in self.uploads.items():
            self._pump(key, up)

    # --- fetches ---

    def fetch(self, request: int, id: int, spec: Spec) -> Download:
        """Ask for a tensor."""
        nbytes = spec.nbytes
        t = self.fetches[request] = Download(request, nbytes)
        if nbytes <= SMALL:
            self._small += 1
            if self._small >= OFTEN:
                self._offer()
            if self.sharing and self.ring is not None and self.ring.boxes:
                t.ring, t.box = self.ring, self._take(self.ring.boxes)
                t.ring.clear(t.box)
                self.session.send(msg.Fetch(0, request, id, t.ring.number, (t.box,)))
                return t
        elif nbytes > LARGE:
            self._offer()
            if self.ring is not None and self.ring.to_lend:
                # Whether the worker can use the ring may not be known yet; it is before the worker answers.
                t.ring, there = self.ring, self.ring.to_lend
                t.slots = tuple(self._take(there) for _ in range(min(LENT, len(there), -(-nbytes // PIECE))))
        self.session.send(msg.Fetch(0, request, id, t.ring.number if t.ring is not None else 0, t.slots))
        return t

    def came(self, m: msg.Chunk, payload: msg.Buffer | None) -> None:
        """A chunk of a fetched tensor has come."""
        t = self.fetches.get(m.key)
        if t is None:
            return  # cancelled, or found in its mailbox
        piece: Array
        if m.slot < 0 and payload is not None:
            piece = np.frombuffer(payload, np.uint8)
        elif t.ring is not None and m.slot in t.slots:
            piece = t.ring.slot(m.slot, nbytes_of(m))
        else:
            return
        if t.parts is not None:
            if t.parts.take(m.part, m.offset, m.total, piece):
                self.session.send(msg.ChunkAck(0, m.key, False, m.part))
            t.done = t.parts.done
            return
        nbytes = len(piece)
        if nbytes == m.total:  # all of it at once, as most are
            t.buffer, t.done = piece.copy(), True
            return
        if m.offset == 0:
            t.buffer = np.empty(m.total, np.uint8)
        t.buffer[m.offset : m.offset + nbytes] = piece
        t.got += nbytes
        if t.got >= m.total:
            t.done = True
        else:
            self.session.send(msg.ChunkAck(0, m.key, False))

    def sharded(self, m: msg.Sharded) -> None:
        """The tensor is sharded over several workers: its shards follow."""
        t = self.fetches.get(m.request)
        if t is not None:
            t.parts = Parts(m)

    def failed(self, m: msg.FetchFailed) -> None:
        """A fetch failed, or that of one of its shards."""
        t = self.fetches.get(m.request)
        if t is not None:
            t.error, t.done = m.error, True

    def end(self, request: int) -> None:
        """A fetch has been answered or given up."""
        t = self.fetches.pop(request, None)
        if t is None:
            return
        if not t.done and not self.session.broken:
            self.session.send(msg.Cancel(0, request))
        if t.ring is None:
            return
        if t.done:
            t.ring.to_lend.extend(t.slots)
            if t.box >= 0:
                t.ring.boxes.append(t.box)
        elif t.ring is self.ring:
            self._give_up()
            self._pump_all()

    # --- the ring ---

    def _offer(self) -> None:
        """Make a ring if there is none and one is allowed."""
        if self.ring is None and self.may_share:
            self._rings += 1
            ring = self.ring = make_ring(self._rings)
            if ring is None:
                self.may_share = False
            else:
                self.session.send(msg.Share(0, ring.number, ring.fd, ring.name, os.getpid()))

    def shared(self, m: msg.Shared) -> None:
        """The worker uses the ring, or cannot use it, or is gone."""
        now = self.ring is not None and m.ring == self.ring.number  # or it is an earlier ring
        if now and m.ok:
            self.sharing = True
        elif now:
            self.may_share = self.sharing  # a worker that refused it is not asked again
            self._give_up()
        if not m.ok:
            for up in self.uploads.values():
                up.take_back(m.ring)
        self._pump_all()

    def stop_sharing(self) -> None:
        """The session runs on several workers now: tensors are sent in messages only."""
        self.may_share = False
        self._give_up()
        self._pump_all()

    def _give_up(self) -> None:
        """Use this ring no more. Whoever has it can still read what is in it."""
        self.ring, self.sharing = None, False

    def _take(self, free: list[int]) -> int:
        self._used_s = time.monotonic()
        return free.pop()

    def rest(self, now_s: float) -> None:
        """Give back the memory of a ring that is not used."""
        if self._used_s and now_s - self._used_s > REST_S and self.ring is not None and self.ring.idle:
            self._used_s = 0.0
            self.ring.rest()


# --- what is read together ---------------------------------------------------------------------------

CALLS = 4  #: Calls that are remembered because results of them were read.
RESULTS = 24  #: Results of one call that are fetched ahead, at most.


class CallReads:
    """A call of which results were read."""

    __slots__ = ("coming", "first", "variant")

    def __init__(self, variant: Variant, first: int) -> None:
        self.variant = variant
        self.first = first  #: The id of its first result.
        self.coming: dict[int, Download] = {}  #: By result: the fetches that nobody has asked for yet.


class Reads:
    """The fetches of one session."""

    def __init__(self, session: Connection) -> None:
        self.session = session
        #: The latest call, and the id of its first result; None if values were freed since then: see law 6.
        self.latest: tuple[Variant, int] | None = None
        self._calls: list[CallReads] = []  #: The latest last.
        #: What was fetched ahead and is not wanted any more, until it has come: to cancel it would cost more.
        self._unread: list[Download] = []
        self.requests = 0  #: How many fetches and questions were sent.

    def next_request(self) -> int:
        """A number for a fetch, or for a question."""
        self.requests += 1
        return self.requests

    def begin(self, id: int, spec: Spec) -> Download:
        """Ask for a value, if that was not done ahead, and for what is going to be read next."""
        small = spec.nbytes <= KEPT_NBYTES and not self.session.meshes.several
        for known in self._calls:
            k = id - known.first
            if 0 <= k < len(known.variant.outputs):
                if small:
                    known.variant.reads[k] = spec
                if k in known.coming:
                    return known.coming.pop(k)
                small = False
        call = self._remember(id, spec) if small else None
        dead = set(self.session.dead)
        self.session.flush_frees()
        found = self._ask(id, spec)
        if call is not None:
            for k, expected in [*call.variant.reads.items()][:RESULTS]:
                if call.first + k != id and call.first + k not in dead:
                    call.coming[k] = self._ask(call.first + k, expected)
        return found

    def _remember(self, id: int, spec: Spec) -> CallReads | None:
        """The latest call, if this is a result of it."""
        variant, first = self.latest or (None, 0)
        if variant is None or not 0 <= id - first < len(variant.outputs):
            return None
        over = [call for call in self._calls if call.variant is variant] or self._calls[: 1 - CALLS]
        for call in over:
            self._calls.remove(call)
            for k in call.coming:
                call.variant.reads.pop(k, None)
            self._unread += call.coming.values()
        for t in [t for t in self._unread if t.arrived()]:
            self._unread.remove(t)
            self.session.transfers.end(t.request)
        made = CallReads(variant, first)
        self._calls.append(made)
        variant.reads[id - first] = spec
        return made

    def _ask(self, id: int, spec: Spec) -> Download:
        session = self.session
        if session.config.debug_client:
            session.say(f"fetch of tensor {id}: {spec!r}, {telling.told_line()}")
        return session.transfers.fetch(self.next_request(), id, spec)


# --- the shards of several workers ---------------------------------------------------------------


def layout_of(m: msg.Sharded) -> Layout:
    """The layout of a tensor, from the server's message."""
    return layout.parse(m.layout, layout.mesh(m.workers, **dict(m.axes)))


class Parts:
    """The shards of one fetch, while their chunks come."""

    def __init__(self, m: msg.Sharded) -> None:
        self.layout = layout_of(m)
        self.shape = m.shape
        self.dtype = dtypes.BY_NAME[m.dtype].numpy
        self.positions = m.parts  #: The position in the mesh of each shard.
        self._buffers: list[Array | None] = [None] * len(m.parts)
        self._got = [0] * len(m.parts)
        self._left = len(m.parts)

    @property
    def done(self) -> bool:
        """Whether every shard has come completely."""
        return self._left == 0

    def take(self, part: int, offset: int, total: int, piece: Array) -> bool:
        """Add the next piece of a shard; returns whether more of it is to come."""
        buffer = self._buffers[part]
        if buffer is None:
            buffer = self._buffers[part] = np.empty(total, np.uint8)
        buffer[offset : offset + len(piece)] = piece
        self._got[part] += len(piece)
        if self._got[part] < total:
            return True
        self._left -= 1
        return False

    def by_position(self) -> dict[int, Array]:
        """The shards that came, by their positions in the mesh."""
        found: dict[int, Array] = {}
        for k, buffer in zip(self.positions, self._buffers, strict=True):
            shape = layout.local_shape(self.layout, self.shape, self.layout.mesh.coordinates[k])
            assert buffer is not None
            if buffer.size != int(np.prod(shape)) * self.dtype.itemsize:
                raise ServerError(
                    f"shard {k} of a tensor of shape {self.shape} has {buffer.size} bytes, which is the wrong size"
                )
            found[k] = buffer.view(self.dtype).reshape(shape)
        return found

    def whole(self) -> Array:
        """The tensor."""
        return assemble(self.layout, self.shape, self.by_position())


def assemble(lay: Layout, shape: tuple[int, ...], shards: Mapping[int, Array]) -> Array:
    """The tensor with these shards, given by their positions in the layout's mesh. One of several copies is enough.

    >>> rows = layout.split(layout.mesh(x=2), (3,), {0: "x"})
    >>> assemble(rows, (3,), {0: np.array([1.0]), 1: np.array([2.0, 3.0])})
    array([1., 2., 3.])
    >>> assemble(layout.layout(rows.mesh, (), {"x": "sum"}), (2,), {0: np.ones(2), 1: np.ones(2)})
    array([2., 2.])
    """
    mesh = lay.mesh
    used, pending = sorted(lay.axes()), lay.pending
    #: By position in the tensor: what is to be added up, by position along the partial axes.
    places: dict[tuple[Runs, ...], dict[int, Array]] = {}
    for k, shard in shards.items():
        at = mesh.coordinates[k]
        runs = tuple(layout.held(lay.pieces(d), n, mesh, at) for d, n in enumerate(shape))
        places.setdefault(runs, {}).setdefault(mesh.index(pending, at), shard)
    dtype = next(iter(shards.values())).dtype
    whole = np.empty(shape, dtype)
    count = 0
    for runs, addends in places.items():
        if len(addends) != mesh.size(pending):
            raise ServerError(f"shards are missing over {used} of a tensor with layout {lay!r}")
        value = _reduced(lay.kind, [addends[i] for i in sorted(addends)])
        whole[index_of(runs)] = value
        count += value.size
    if count != whole.size:
        raise ServerError(f"shards are missing of a tensor of shape {shape} with layout {lay!r}")
    return whole


def _reduced(kind: str | None, addends: list[Array]) -> Array:
    if len(addends) == 1:
        return addends[0]
    dtype = addends[0].dtype
    wide = [a.astype(np.float32) for a in addends] if dtype in _NARROW else addends
    total = wide[0]
    for a in wide[1:]:
        total = _REDUCE[kind](total, a)
    return total.astype(dtype)


def index_of(runs: tuple[Runs, ...]) -> Any:
    """A numpy index of these positions in each dimension: slices if each is one run."""
    if all(len(r) == 1 for r in runs):
        return tuple(slice(*r[0]) for r in runs)
    return np.ix_(*(np.concatenate([np.arange(a, b) for a, b in r]) if r else np.arange(0) for r in runs))
