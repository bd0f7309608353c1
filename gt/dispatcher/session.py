"""One client's world: its tensors, its queue, what it waits for, the workers it runs on.

Law 1: ids belong to a session. Nothing outside it is reachable from it.
Law 2: calls, frees and fetches leave the queue in the order they came; only the head may wait, and
       it always waits for something nameable: a program, a plan, an upload, a worker, a turn.
Law 3: what a session can make the dispatcher hold is bounded, by the numbers below.
Law 4: a session has any number of workers, and there is one way for all numbers. Most sessions have one: then every
       layout is `Worker.layout`, every plan has one local program, every transfer has one shard.

These are records. queues.py, calls.py, uploads.py, fetches.py, meshes.py and workers.py change them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import msgspec

from gt.chosen import Chosen
from gt.dispatcher.events import Peer
from gt.layout import Layout, Mesh
from gt.program import Spec
from gt.transport.identity import User
from gt.transport.messages import Buffer, Call, Chunk, Failure, Fetch, Free, Keep, Message, SetMesh, Share

if TYPE_CHECKING:
    from gt.dispatcher.plans import ProgramPlan
    from gt.dispatcher.schedule import Lane
    from gt.dispatcher.shelf import Copying, Shelf
    from gt.dispatcher.state import Worker
    from gt.dispatcher.switches import Switch, Tuned

MAX_ID = (1 << 62) - 1  #: of a client's tensors; copies that the dispatcher makes are above (moves.py)
HASH_NBYTES = 16
QUEUE_ITEMS = 1024  #: Calls, frees and fetches of one session that are not finished.
QUEUE_NBYTES = 64 << 20  #: Their bytes, and those of its programs that are being checked.
TENSORS = 1 << 18  #: Tensors of one session. With twice as many that are lost or named twice it is cut off.
STATS = 16  #: Questions for statistics of one session under way.


class Move(msgspec.Struct, eq=False, gc=False):
    """A call of the dispatcher's own: it copies tensors into other layouts (moves.py). It comes first in a queue."""

    call: Call
    plan: ProgramPlan


Item = Call | Fetch | Free | Keep | Move


# --- tensors ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A tensor that workers hold. Immutable, and shared by all of its spec and layout: see `plans.tensor_at`."""

    spec: Spec
    layout: Layout
    parts: Mapping[int, int]  #: bytes by worker
    nbytes: int  #: the sum over `parts`


@dataclass(frozen=True, slots=True, eq=False)
class Lost:
    """A tensor that is gone for good."""

    spec: Spec
    failure: Failure  #: why
    root: int = 0  #: the failed call to blame; 0: none
    layout: ClassVar[None] = None
    parts: ClassVar[Mapping[int, int]] = {}
    nbytes: ClassVar[int] = 0


@dataclass(slots=True, eq=False)
class ShardUpload:
    """What one worker gets of an upload: a range of its bytes, or all of them, to cut the shard out itself."""

    start: int
    stop: int
    shape: tuple[int, ...]
    keep: tuple[tuple[tuple[int, int], ...], ...]  #: see Chunk
    begun: bool = False
    #: The chunks it has not acknowledged, oldest first.
    unacked: deque[SentChunk] = field(default_factory=deque)


@dataclass(slots=True, eq=False)
class SentChunk:
    """A chunk of an upload on its way to workers."""

    nbytes: int
    left: int = 0  #: workers that have yet to acknowledge it


@dataclass(slots=True, eq=False)
class Upload:
    """A tensor on its way in: it stands among the session's tensors until it has arrived. Its chunks come in order."""

    key: int
    spec: Spec
    total: int
    layout_text: str = ""  #: the layout that the client asks for; "": the session's choice
    #: What it will be, counted from the first chunk; None before that, while the session has no worker, and when it is
    #: lost.
    becomes: Tensor | None = None
    shards: dict[int, ShardUpload] = field(default_factory=dict)  #: by worker
    begun: bool = False  #: a chunk was taken
    received: int = 0
    unacked: int = 0  #: chunks the client may not yet count as taken; see `most_unacked`
    slowed: int = 0  #: of these: taken by workers, but faster than the user may upload; see limits.py
    #: Chunks kept here because there is no worker yet.
    held: list[tuple[Chunk, Buffer]] = field(default_factory=list)
    sink: bool = False  #: the tensor is lost: chunks are acknowledged and dropped
    layout: ClassVar[None] = None

    @property
    def parts(self) -> Mapping[int, int]:
        return self.becomes.parts if self.becomes is not None else {}

    @property
    def nbytes(self) -> int:
        return self.becomes.nbytes if self.becomes is not None else 0

    @property
    def waits_for_worker(self) -> bool:
        """Whether it has begun, and no worker is there to take it."""
        return self.begun and self.becomes is None and not self.sink

    @property
    def complete(self) -> bool:
        return self.begun and self.received == self.total and not self.unacked


#: What is known of one tensor: its value is on workers exactly if it has a layout.
AnyTensor = Tensor | Upload | Lost


def lost_of(tensors: Iterable[AnyTensor]) -> Lost | None:
    """Of a call's inputs the lost one that says best why it fails: where others failed before it, the first to blame,
    so that all calls that fail for one reason are one error to the client."""
    return min((t for t in tensors if type(t) is Lost), key=lambda t: (not t.root, t.root), default=None)


# --- fetches, calls --------------------------------------------------------------------------


# Structs, as events are: these are made for every fetch and call. No garbage collection: they are in no cycle.


class ShardDownload(msgspec.Struct, eq=False, gc=False):
    """What one worker sends of a value."""

    part: int  #: as the client knows it
    received: int = 0
    unacked: int = 0  #: chunks that the client has not acknowledged
    whole: bool = False  #: all of it has come


class Download(msgspec.Struct, eq=False, gc=False):
    """A fetch that workers answer."""

    id: int  #: the tensor
    after: int  #: the call under way that makes the value; 0: none
    shards: dict[int, ShardDownload] = {}  #: by worker
    held: list[tuple[Message, Buffer | None]] = []  #: what is passed on once `after` is done


class ReadyCall(msgspec.Struct, eq=False, gc=False):
    """The call at the head of a queue: checked, planned, its inputs there; it only waits for its turn."""

    call: Call
    plan: ProgramPlan
    inputs: list[int]
    frees: list[int]
    refused: Failure | None  #: why it may not run
    root: int  #: the call where that began; 0: this one


class SentCall(msgspec.Struct, eq=False, gc=False):
    """A call that was sent to its workers."""

    seq: int
    plan: ProgramPlan
    inputs: list[int]
    outputs: int
    cost_us: int  #: what the schedule charged for it
    left: list[int]  #: the workers that have not answered; it is finished when there is none
    failure: Failure | None  #: why it was refused, or what a worker said
    root: int  #: the call to blame if it fails: itself, or an earlier one whose results are lost
    beside: bool = False  #: it was sent beside long ones; see schedule.py
    run_us: int = 0
    tier: int = 0  #: the lowest on which a worker ran it; 0: none has answered
    good: bool = False  #: a worker said that it went well


@dataclass(slots=True, eq=False)
class Moved:
    """Tensors of a session that are not, or not for sure, on the device of a worker: id -> bytes; see memory.py."""

    away: dict[int, int] = field(default_factory=dict)
    leaving: dict[int, int] = field(default_factory=dict)  #: on their way out,
    coming: dict[int, int] = field(default_factory=dict)  #: and back

    def clear_of(self, ids: Iterable[int]) -> bool:
        """Whether all of these tensors are on the device."""
        return not any(i in self.away or i in self.leaving or i in self.coming for i in ids)


# --- the session -----------------------------------------------------------------------------


@dataclass(slots=True)
class RingOffer:
    """A client's ring, offered to the only worker of its session."""

    share: Share
    taken: bool = False  #: the worker has opened it


@dataclass(frozen=True, slots=True)
class Followed:
    """What a plan says about programs with one body: see UsePlan."""

    axes: tuple[tuple[str, int], ...]
    ways: Mapping[int, Chosen]  #: by instruction
    digest: bytes  #: of its content
    solved: bool = False  #: not the client's: the dispatcher's own (switches.py)


@dataclass(slots=True)
class MeshWish:
    """A mesh that waits for workers to join."""

    asked: SetMesh
    since_s: float


@dataclass(slots=True, eq=False)
class Session:
    number: int
    peer: Peer | None  #: None: its client is gone and its work goes on, or it never had one (shelf.py)
    name: str
    closed: bool = False

    tensors: dict[int, AnyTensor] = field(default_factory=dict)
    nbytes: int = 0  #: the sum over `tensors`
    lost: int = 0  #: how many of `tensors` are lost
    call_mark: int = 0  #: the highest id a call has made
    upload_mark: int = 0  #: the highest id an upload has made

    queue: deque[Item] = field(default_factory=deque)
    sizes: deque[int] = field(default_factory=deque)  #: of each item in `queue`: what it keeps in memory
    queue_nbytes: int = 0  #: the sum over `sizes`, plus `checking`
    checking: dict[bytes, int] = field(default_factory=dict)  #: its programs being checked, and their bytes
    head: ReadyCall | None = None  #: of queue[0], once it is ready
    ring: Lane | None = None  #: where it waits for its turn; it has a head exactly while it waits there or has claims
    claims: tuple[Lane, ...] = ()  #: where its head waits for room; see schedule.py
    blocked_on: bytes = b""  #: the program that the head waits for
    asked: bool = False  #: the client was asked for that program

    queued_calls: int = 0  #: calls in `queue`
    seq: int = 0  #: the last call that left the queue
    #: Calls on workers, oldest first; a finished one stays until all before it are finished.
    sent: dict[int, SentCall] = field(default_factory=dict)
    done: int = 0  #: all calls up to here are finished
    run_us: int = 0  #: run time of the last one of them
    told: int = 0  #: `done` as the client knows it

    uploads: dict[int, Upload] = field(default_factory=dict)
    fetches: dict[int, Download] = field(default_factory=dict)  #: by request, those that workers answer
    offer: RingOffer | None = None  #: never with several workers
    stats: int = 0  #: questions for statistics under way

    workers: dict[int, Worker] = field(default_factory=dict)  #: the first is the one in whose ring it waits
    meshes: dict[str, Mesh] = field(default_factory=dict)  #: by name; results go to the one named ""
    home: Layout = field(init=False)  #: the layout of results that nothing else decides; set once it has a worker
    #: `home`, then its other meshes, then what is in `followed`: as plans are keyed; () without a worker.
    place: tuple[object, ...] = ()
    split: bool = False  #: see SetMesh
    grid: Mesh | None = None  #: the mesh of the plan that it was switched to: its home, instead of the mesh ""
    upload_layouts: Mapping[Spec, Layout] = field(default_factory=dict)  #: what that plan says of uploads
    switch: Switch | None = None  #: the change of its plan that is under way
    moving: SentCall | None = None  #: the move that is on workers; then no call is
    moves: int = 0  #: how many moves it has had
    copies: int = 0  #: and how many tensors they copied
    switched: int = 0  #: how many calls it had had when its plan last changed; 0: that never happened
    tuned: dict[str, Tuned] = field(default_factory=dict)  #: by body; only where `split` is set
    ended_s: float = 0.0  #: when its last call succeeded; only where `split` is set
    pins: set[int] = field(default_factory=set)  #: tensors whose layout the client chose; only membership is asked
    followed: Mapping[str, Followed] = field(default_factory=dict)  #: by body, the latest last; never changed in place
    broken: Failure | None = None  #: why calls and uploads fail until a new mesh is set,
    broken_root: int = 0  #: and the call that is named for those that the client does not know of; 0: none failed
    #: Calls that failed with one worker of several, by another that still has them, and their number: it may yet ask
    #: for their programs.
    orphans: dict[tuple[int, int], ProgramPlan] = field(default_factory=dict)
    wish: MeshWish | None = None
    waiting_since_s: float | None = None  #: set while it needs a worker and has none
    bereft: Bereft | None = None  #: how it lost its last worker, and with it tensors or work
    lost_worker: str = ""  #: the last worker that it has lost
    no_worker: Failure | None = None  #: set while what waited too long for a worker is failed

    shelf: Shelf | None = None  #: where it keeps and publishes things
    holds: Shelf | None = None  #: it has the tensors of this shelf
    keeps: int = 0  #: what is to be kept, in `queue`,
    kept: int = 0  #: and how many of these have left it
    copying: Copying | None = None  #: what the head of its queue, a Keep, waits for
    coming: set[int] = field(default_factory=set)  #: of `tensors`: copies that are not there yet; nobody may name them
    failed: int = 0  #: the last call that has failed
    acked: int = 0  #: of the last call that was sent: up to which call the client knew of failures
    #: By call, the latest that have failed: the call to blame and why, as the client was told.
    blamed: dict[int, tuple[int, Failure]] = field(default_factory=dict)
    moved: dict[int, Moved] = field(default_factory=dict)  #: by worker; none of them is empty
    grant: dict[int, int] | None = None  #: by worker: bytes that are reserved for the head; None: they are not
    demand: float = 0.0  #: the part of the last time in which it had calls to run; see meshes.py
    used_s: float = -math.inf  #: when it last sent a call,
    used: int = 0  #: and how many calls of all sessions were done by then
    given_s: float = -math.inf  #: when its turn with memory that others want began
    rests_until_s: float = -math.inf  #: until when it does not move to another worker
    yields_to: int = 0  #: the session that waits for this one's memory; 0: none

    user: User | None = None  #: who has joined; None where no keys are needed
    deficit_us: int = 0  #: run time it may still use in this round; see schedule.py
    left_s: float = 0.0  #: when it last left a ring
    allowance_us: int = 0  #: run time it may use beside long calls, as it was at
    allowed_s: float = 0.0  #: this time; see schedule.py
    calls: int = 0
    total_us: int = 0

    @property
    def first(self) -> Worker | None:
        """The worker in whose ring it waits for its turn."""
        return next(iter(self.workers.values()), None)

    @property
    def away_nbytes(self) -> int:
        """Bytes of its tensors that are not on devices."""
        return sum(sum(moved.away.values()) for moved in self.moved.values())

    def tidy(self, number: int) -> None:
        """Forget what has moved on a worker if that is nothing."""
        moved = self.moved[number]
        if not (moved.away or moved.leaving or moved.coming):
            del self.moved[number]

    @property
    def shares_ring(self) -> bool:
        """Whether chunks may travel in its ring now."""
        return self.offer is not None and self.offer.taken


@dataclass(slots=True, eq=False)
class Bereft:
    """The loss of a session's last worker. Work that was sent before the client heard of it fails with it at once, and
    does not wait for another worker."""

    failure: Failure
    root: int  #: the call to blame; 0: none so far
    told_s: float | None  #: when the client was told; None: not yet


def many_tensors(session: Session) -> Failure:
    """Why a session cannot have more tensors."""
    text = f"this session has {len(session.tensors):,} tensors; the limit is {TENSORS:,}. Delete some, or stack them"
    return Failure("OutOfMemory", text)


def show_nbytes(n: int) -> str:
    """A size as people read it.

    >>> show_nbytes(3 << 29), show_nbytes(200)
    ('1.5 GiB', '200 bytes')
    """
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if n >= size:
            return f"{n / size:.1f} {unit}"
    return f"{n} bytes"
