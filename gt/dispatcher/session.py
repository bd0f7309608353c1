"""One client's world: its tensors, its queue, what it waits for.

Law 1: ids belong to a session. Nothing outside it is reachable from it.
Law 2: calls, frees and fetches leave the queue in the order they came; only the head may wait, and
       it always waits for something nameable: a program, an upload, a worker, a turn.
Law 3: what a session can make the dispatcher hold is bounded, by the numbers below.

Most sessions live on one worker. One that set a mesh is *wide*: it may have several, and its calls, uploads and fetches
go through joint.py and parts.py.

These are records; calls.py, transfers.py and placement.py move them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from gt.dispatcher.events import Peer
from gt.layout import Layout, Mesh
from gt.program import Spec
from gt.transport.codec import Buffer
from gt.transport.messages import Call, Chunk, Failure, Fetch, Free, Message, SetMesh, Share

if TYPE_CHECKING:
    from gt.dispatcher.plans import Entry, Plan
    from gt.dispatcher.schedule import Lane
    from gt.dispatcher.state import Worker

MAX_ID = (1 << 63) - 1
HASH_NBYTES = 16
QUEUE_ITEMS = 1024  #: Calls, frees and fetches of one session that are not finished.
QUEUE_NBYTES = 64 << 20  #: Their bytes, and those of its programs that are being checked.
STATS = 16  #: Questions for statistics of one session under way.

Item = Call | Fetch | Free


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """What is known of one tensor. Immutable: a change of state is another record under the same id.

    On a worker if `layout` is given; gone for good if `lost` is; else still being uploaded.
    """

    spec: Spec
    nbytes: int  #: it takes on all its workers; 0 where it holds no value
    layout: Layout | None
    lost: Failure | None = None
    root: int = 0  #: of a lost tensor: the failed call to blame, 0 if none
    #: Bytes by worker; None: all of them lie on the session's `worker`.
    parts: dict[int, int] | None = None


@dataclass(slots=True)
class Target:
    """A worker that gets its part of an upload: a range of its bytes, or all of them, to cut the part out itself."""

    start: int
    stop: int
    shape: tuple[int, ...]
    keep: tuple[tuple[tuple[int, int], ...], ...]  #: see Chunk
    begun: bool = False
    #: Of each chunk it has not acknowledged, oldest first: how many workers have yet to, shared by all that got it.
    unacked: deque[list[int]] = field(default_factory=deque)


@dataclass(slots=True)
class Upload:
    """A tensor on its way in. Its chunks come in order."""

    key: int
    spec: Spec
    total: int
    begun: bool = False  #: a chunk was taken; tells an empty tensor that came from one that did not
    received: int = 0
    unacked: int = 0  #: chunks the client may not yet count as taken; see `most_unacked`
    #: Chunks kept here because there is no worker yet.
    held: list[tuple[Chunk, Buffer]] = field(default_factory=list)
    sink: bool = False  #: the tensor is lost: chunks are acknowledged and dropped
    layout: Layout | None = None  #: the one it will have, where several workers get their parts of it
    targets: dict[int, Target] = field(
        default_factory=dict
    )  #: by worker; none: all of it goes to the session's `worker`

    @property
    def complete(self) -> bool:
        return self.begun and self.received == self.total and not self.unacked


@dataclass(slots=True)
class Download:
    """A fetch that the worker answers."""

    received: int = 0
    unacked: int = 0  #: chunks that the client has not acknowledged
    #: Of a wide session: by worker, what is still to come from it; None: the session's `worker` answers alone.
    pieces: dict[int, Piece] | None = None
    id: int = 0  #: the tensor
    after: int = 0  #: the call that makes the value: nothing is passed on before the client knows how that ended
    held: list[tuple[Message, Buffer | None]] = field(default_factory=list)  #: what waits for that


@dataclass(slots=True)
class Piece:
    """What one worker sends of a value."""

    part: int  #: as the client knows it
    received: int = 0
    unacked: int = 0
    whole: bool = False  #: all of it has come


class Head(msgspec.Struct, eq=False):  # a struct, as events are: one is made for every call
    """The call at the head of a queue: checked, its inputs there; it only waits for its turn."""

    call: Call
    entry: Entry
    plan: Plan
    inputs: list[int]
    frees: list[int]
    lost: Tensor | None  #: an input that is gone, if one is
    refused: Failure | None = None  #: of a wide session: there is no mesh, or was no memory


class Sent(msgspec.Struct, eq=False):
    """A call that a worker has."""

    seq: int
    entry: Entry
    plan: Plan
    outputs: int
    failed: tuple[Tensor, ...]  #: its results if it fails
    cost_us: int  #: what the schedule charged for it
    root: int  #: the call to blame if it fails: itself, or an earlier one whose results are lost
    finished: bool = False
    #: Of a joint call: the workers that have not answered; None: it is one worker's.
    left: list[int] | None = None
    kept: tuple[int, ...] = ()  #: of a joint call: those of its results that keep a value if it fails
    run_us: int = 0
    good: bool = False  #: a worker said that it went well
    failure: Failure | None = None  #: what the others said, or why it was refused

    @property
    def ids(self) -> range:
        return range(self.outputs, self.outputs + len(self.failed))


@dataclass(slots=True, eq=False)
class Session:
    number: int
    peer: Peer
    name: str
    closed: bool = False

    tensors: dict[int, Tensor] = field(default_factory=dict)
    nbytes: int = 0  #: the sum over `tensors`; all of it lies on `worker`, unless it is wide
    hollow: bool = False  #: something failed: there may be tensors without a value
    call_mark: int = 0  #: the highest id a call has made
    upload_mark: int = 0  #: the highest id an upload has made

    queue: deque[Item] = field(default_factory=deque)
    sizes: deque[int] = field(default_factory=deque)  #: of each item in `queue`: what it keeps in memory
    queue_nbytes: int = 0  #: the sum over `sizes`, plus `checking`
    checking: dict[bytes, int] = field(default_factory=dict)  #: its programs being checked, and their bytes
    head: Head | None = None  #: of queue[0], once it is ready
    enlisted: bool = False  #: it stands in its worker's ring; exactly while it has a head
    blocked_on: bytes = b""  #: the program that the head waits for
    asked: bool = False  #: the client was asked for that program

    queued_calls: int = 0  #: calls in `queue`
    seq: int = 0  #: the last call that left the queue
    #: Calls on the worker, oldest first; a finished one stays until all before it are finished.
    sent: dict[int, Sent] = field(default_factory=dict)
    done: int = 0  #: all calls up to here are finished
    run_us: int = 0  #: run time of the last one of them
    told: int = 0  #: `done` as the client knows it

    uploads: dict[int, Upload] = field(default_factory=dict)
    share: Share | None = None  #: the ring that it offers to its worker
    sharing: bool = False  #: the worker has that ring; never without a worker
    fetches: dict[int, Download] = field(default_factory=dict)  #: by request, those that the worker has
    stats: int = 0  #: questions for statistics under way

    worker: Worker | None = None  #: in whose ring it stands; the only one, unless it is wide
    workers: dict[int, Worker] = field(default_factory=dict)  #: all that it has, `worker` among them
    wide: bool = False  #: it has set a mesh
    home: Layout | None = None  #: of a wide one: results that nothing else decides lie there
    meshes: dict[str, Mesh] = field(default_factory=dict)  #: by name; "" is the one of `home`
    place: tuple[object, ...] = ()  #: home and meshes, as they stand in the keys of plans
    split: bool = False  #: see SetMesh
    broken: Failure | None = None  #: why calls and uploads fail until a mesh is set anew
    #: Calls that failed with one worker of several, by another that still has them, and their number: it may yet ask
    #: for their programs.
    orphans: dict[tuple[int, int], tuple[Entry, Plan]] = field(default_factory=dict)
    wish: SetMesh | None = None  #: a mesh that waits for workers to join
    wish_since_s: float = 0.0
    claims: tuple[Lane, ...] = ()  #: where its head waits for room; see schedule.py
    waiting_since_s: float | None = None  #: set while it needs a worker and there is none
    no_worker: Failure | None = None  #: set while what waited too long for a worker is failed

    deficit_us: int = 0  #: run time it may still use in this round; see schedule.py
    left_s: float = 0.0  #: when it last left its worker's ring
    calls: int = 0
    total_us: int = 0

    def unqueue(self, position: int = 0) -> None:
        """Take an item out of the queue: its head, or a cancelled fetch further back."""
        item = self.queue[position]
        del self.queue[position]
        self.queue_nbytes -= self.sizes[position]
        del self.sizes[position]
        if type(item) is Call:
            self.queued_calls -= 1


def lost_of(tensors: Iterable[Tensor]) -> Tensor | None:
    """Of a call's inputs the lost one that says best why it fails: where others failed before it, the first to blame,
    so that all calls that fail for one reason are one error to the client."""
    return min((t for t in tensors if t.lost is not None), key=lambda t: (not t.root, t.root), default=None)


def item_nbytes(item: Item) -> int:
    """A measure of what a queued message keeps in memory."""
    if type(item) is Fetch:
        return 100
    if type(item) is Free:
        return 100 + len(item.ids)
    assert type(item) is Call
    nbytes = 200 + len(item.inputs) + len(item.frees) + 16 * len(item.scalars)
    for s in item.scalars:
        if type(s) is bytes:
            nbytes += len(s)
    return nbytes


def show_nbytes(n: int) -> str:
    """A size as people read it.

    >>> show_nbytes(3 << 29), show_nbytes(200)
    ('1.5 GiB', '200 bytes')
    """
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if n >= size:
            return f"{n / size:.1f} {unit}"
    return f"{n} bytes"
