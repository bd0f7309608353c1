"""All that the dispatcher knows, and the few changes that every part of it makes.

Law 1: bytes are counted twice, per session and per worker, and always together (`count`).
Law 2: whatever is to be sent goes through `send`, in order; nothing else has an effect outside.
Law 3: containers whose order is visible in what is sent are lists and dictionaries, never sets, so that
       the same events give the same messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from gt.dispatcher.events import Disconnect, Effect, Noted, Peer, Send
from gt.dispatcher.plans import ProgramCache
from gt.dispatcher.schedule import Lane, unclaim
from gt.dispatcher.session import AnyTensor, Bereft, Lost, SentCall, Session, Upload, show_nbytes
from gt.dispatcher.shelf import Copying, Shelf, ShelfKey
from gt.layout import Layout
from gt.transport.identity import User
from gt.transport.messages import Buffer, Cancel, ChunkAck, CloseSession, Failure, Forget, Message, Refused, Rejected

SESSIONS = 1024
SESSIONS_OF_USER = 256  #: At least four users can join.
STAYS_S = 300.0  #: So long after it could not move to another worker a session stays where it is.
TOLD_S = 2.0  #: So long after a loss was told, work may come that was sent before the client heard of it.
HELD_NBYTES = 1 << 30  #: Chunks of all sessions kept here while there is no worker.


class Settings(Protocol):
    """What the machine reads of gt.config.Config."""

    @property
    def worker_timeout_s(self) -> float: ...
    @property
    def cache_bytes(self) -> int: ...
    @property
    def plan_after_s(self) -> float: ...
    @property
    def lease_s(self) -> float: ...


@dataclass(slots=True, eq=False)
class Worker:
    """A process that computes. Usable once both of its connections are there."""

    number: int
    link: str
    layout: Layout  #: of a tensor that it holds alone
    engine: str = ""
    device: str = ""
    memory: int = 0  #: bytes it may use; 0: it does not say
    host: str = ""
    pid: int = 0
    peers: str = ""  #: where other workers connect to it; "": it cannot run calls together with others
    tries: bool = False  #: it says which of the others it reaches
    reached: dict[int, str] = field(default_factory=dict)  #: what it said of each: "", or what went wrong
    user: User | None = None  #: whose key it joined with
    control: Peer | None = None  #: takes commands
    results: Peer | None = None
    alive: Peer | None = None  #: has signs of life and nothing else; see messages.Alive
    lane: Lane = field(init=False)
    sessions: dict[int, Session] = field(default_factory=dict)  #: those placed here
    nbytes: int = 0  #: the sum over `sessions`, wherever the tensors are
    away: int = 0  #: of these: what is not on the device (memory.py),
    leaving: int = 0  #: and what is still there and on its way out
    reserved: int = 0  #: for calls that have their memory and wait for their turn
    full: str = ""  #: why it could not move tensors out; "": it could
    full_until_s: float = 0.0  #: until when it is not asked again
    programs: set[bytes] = field(default_factory=set)  #: those it was sent; only membership is asked
    calls: int = 0

    def __post_init__(self) -> None:
        self.lane = Lane(self.number)

    def has_room(self, nbytes: int) -> bool:
        """Whether so many bytes more fit on the device now."""
        return not self.memory or self.nbytes - self.away + self.reserved + nbytes <= self.memory  # on_device, quicker

    @property
    def on_device(self) -> int:
        """Bytes that are on the device or have their place there."""
        return self.nbytes - self.away + self.reserved

    @property
    def usable(self) -> bool:
        return self.control is not None and self.results is not None

    @property
    def connections(self) -> list[Peer]:
        return [peer for peer in (self.control, self.results, self.alive) if peer is not None]

    def __str__(self) -> str:
        return f"{self.host or 'unknown host'}, pid {self.pid}"


@dataclass(slots=True, eq=False)
class Crossing:
    """A tensor on its way from one worker to another."""

    id: int
    received: int = 0  #: bytes that have come from the one
    total: int = -1  #: bytes of all of it; -1: none has come
    unacked: int = 0  #: chunks that the other has not acknowledged


@dataclass(slots=True, eq=False)
class Relocation:
    """A session that moves to another worker; see relocation.py."""

    session: Session
    here: Worker
    there: Worker
    since_s: float
    left: list[int]  #: tensors that are to be copied next
    crossing: dict[int, Crossing] = field(default_factory=dict)  #: by request at the worker that has them
    #: By id, what was copied or is being copied: bytes that are reserved for it; 0: it stays outside of the device.
    copies: dict[int, int] = field(default_factory=dict)
    held_s: float | None = None  #: since when the session's calls wait; None: they do not
    question: int = 0  #: asked of the new worker: whether it has all of them; 0: not yet
    sure: bool = False  #: it has
    problem: str = ""  #: why it cannot be

    def holds(self, session: Session) -> bool:
        """Whether calls of a session wait for this."""
        return session is self.session and self.held_s is not None


@dataclass(slots=True, eq=False)
class Uploading:
    """How much a user may upload now; see limits.py."""

    left: float  #: bytes, as it was at
    at_s: float  #: this time
    #: Chunks that workers have taken, and clients will hear of later, oldest first.
    waiting: deque[tuple[Session, Upload, int]] = field(default_factory=deque)


@dataclass(slots=True)
class Question:
    """A client's GetStats, until all workers have answered or the deadline has passed."""

    session: Session
    request: int
    deadline_s: float
    waiting: dict[int, Worker]
    overview: bool = False  #: it is about all sessions
    answers: dict[int, dict[str, object]] = field(default_factory=dict)


@dataclass(slots=True)
class RunningTrace:
    """A trace that a client asked for, until all processes have told what they did."""

    session: Session
    request: int
    number: int  #: what it is called where it is recorded
    until_s: float
    ended: bool = False  #: the time is over, and all were asked what they did
    #: By connection, those that record and have not told yet: what they are called.
    recording: dict[Peer, str] = field(default_factory=dict)
    loop: bool = True  #: the dispatcher's loop has not told yet
    programs: dict[bytes, None] = field(default_factory=dict)  #: of the calls that were told


class State:
    """See the file's header."""

    __slots__ = (
        "answering", "calls", "copies", "held_nbytes", "homeless", "join", "keeping", "last_copy",
        "last_question", "last_session", "last_worker", "leaving", "links", "memory_queue", "met", "news",
        "noted_s", "now_s", "out", "peers", "programs", "questions", "relocation", "secret", "sessions", "settings",
        "shelves", "token", "touched", "trace", "uploading", "wishes", "workers",
    )  # fmt: skip

    def __init__(self, settings: Settings, token: str, join: str, secret: str = "") -> None:
        self.settings = settings
        self.token = token
        self.secret = secret  #: see Peers
        self.met = 0  #: workers that were last told of each other (Peers)
        self.join = join  #: the command that starts a worker, for an error; empty: there is none
        self.now_s = 0.0
        self.noted_s = 0.0  #: when it was last looked what sessions want (meshes.py)
        self.out: list[Effect] = []
        self.peers: dict[Peer, Session | Worker] = {}
        self.sessions: dict[int, Session] = {}
        self.workers: dict[int, Worker] = {}
        self.links: dict[str, Worker] = {}
        self.programs = ProgramCache(settings.cache_bytes)
        self.homeless: dict[int, Session] = {}  #: sessions that need a worker and have none
        self.wishes: dict[int, Session] = {}  #: sessions that wait for more, for a mesh
        self.memory_queue: dict[int, Session] = {}  #: sessions whose head waits for memory, longest first
        self.held_nbytes = 0  #: the sum over all uploads' `held`
        self.uploading: dict[str, Uploading] = {}  #: by key, the users whose uploads are limited
        self.shelves: dict[ShelfKey, Shelf] = {}
        self.copies: dict[int, Copying] = {}  #: that workers make
        self.keeping: dict[int, Session] = {}  #: sessions whose queue has a Keep at its head, which waits
        self.leaving: dict[int, Session] = {}  #: sessions with a name whose clients are gone and whose work goes on
        self.answering: set[int] = set()  #: shelves with questions that wait for those; only whether there are
        self.questions: dict[int, Question] = {}
        self.relocation: Relocation | None = None  #: the one that is under way
        self.trace: RunningTrace | None = None  #: the one that is being recorded; see traces.py
        self.last_session = 0
        self.last_worker = 0
        self.last_question = 0
        self.last_copy = 0
        self.calls = 0
        self.touched: dict[int, Worker] = {}  #: workers to look at before this event is over
        self.news: dict[int, Session] = {}  #: sessions whose `done` may have moved

    # --- sending -------------------------------------------------------------------------

    def send(self, peer: Peer | None, message: Message, payload: Buffer | None = None) -> None:
        if peer is not None:
            self.out.append(Send(peer, message, payload))

    def reject(self, session: Session, text: str) -> None:
        """Tell a client that its message changed nothing."""
        self.send(session.peer, Rejected(text))

    def refuse(self, peer: Peer, text: str) -> None:
        """The last message to a connection."""
        self.send(peer, Refused(text))
        self.disconnect(peer)

    def disconnect(self, peer: Peer) -> None:
        self.out.append(Disconnect(peer))

    def cut_off(self, session: Session, text: str) -> None:
        """This client cannot go on."""
        if session.peer is not None:
            self.refuse(session.peer, text)
        self.close(session)

    # --- counting ------------------------------------------------------------------------

    def count(self, session: Session, tensor: AnyTensor, sign: int = 1) -> None:
        """Add a tensor's bytes to what the session has on its workers; with sign -1, take them off."""
        for number, nbytes in tensor.parts.items():
            session.nbytes += sign * nbytes
            self.workers[number].nbytes += sign * nbytes

    def put_lost(self, session: Session, id: int, failure: Failure, root: int = 0) -> None:
        """The value of this tensor is gone for good."""
        old = session.tensors[id]
        self.count(session, old, -1)
        self.forget_moved(session, id)
        session.tensors[id] = Lost(old.spec, failure, root)
        session.lost += 1

    def forget_moved(self, session: Session, id: int) -> None:
        """A tensor is gone, wherever it was."""
        for number, moved in list(session.moved.items()):
            worker = self.workers[number]
            worker.away -= moved.away.pop(id, 0)
            worker.leaving -= moved.leaving.pop(id, 0)
            moved.coming.pop(id, None)
            session.tidy(number)

    def forget_moves(self, session: Session, number: int) -> None:
        """A session leaves a worker."""
        moved = session.moved.pop(number, None)
        if moved is not None:
            self.workers[number].away -= sum(moved.away.values())
            self.workers[number].leaving -= sum(moved.leaving.values())

    def drop_grant(self, session: Session) -> None:
        """The memory of a session's head is not reserved any more."""
        for number, nbytes in (session.grant or {}).items():
            self.workers[number].reserved -= nbytes
        session.grant = None

    def give_back(self, sent: SentCall) -> None:
        """A call's credit, on all its workers that still have it."""
        for number in sent.left:
            worker = self.workers[number]
            worker.lane.give_back(sent.cost_us, sent.beside)
            self.touched[number] = worker

    def abandon(self, session: Session, sent: SentCall) -> None:
        """A call is over as far as its session is concerned. Workers may still be at it, and ask for its program."""
        self.give_back(sent)
        for number in sent.left:
            if self.workers[number].usable:
                session.orphans[number, sent.seq] = sent.plan
                sent.plan.uses += 1

    def touch(self, lanes: Iterable[Lane]) -> None:
        """Look at these workers before the event is over."""
        for lane in lanes:
            self.touched[lane.number] = self.workers[lane.number]

    def forget_programs(self) -> None:
        """Keep the cache within its limit, and the workers' with it."""
        for entry in self.programs.evict():
            for name in (entry.hash, *self.programs.drop_plans(entry)):
                self.forget(name)

    def forget_plans(self, worker: Worker) -> None:
        """Plans with a worker that is gone are of no use."""
        for entry in self.programs:
            for name in self.programs.drop_plans(entry, worker.number):
                self.forget(name)

    def forget(self, name: bytes) -> None:
        """Tell the workers to forget this program, unless an entry or a plan has it."""
        if name in self.programs:
            return
        for worker in self.workers.values():
            if name in worker.programs:
                worker.programs.discard(name)
                self.send(worker.control, Forget(name))

    # --- moving to another worker --------------------------------------------------------

    def end_relocation(self, why: str) -> None:
        """The session that moves stays where it is: its copies go. Its calls may have waited; see `queues.advance`."""
        moving, self.relocation = self.relocation, None
        assert moving is not None
        session, there = moving.session, moving.there
        there.reserved -= sum(moving.copies.values())
        session.rests_until_s = self.now_s + STAYS_S
        for request in moving.crossing:
            self.send(moving.here.control, Cancel(session.number, request))
        self.send(there.control, CloseSession(session.number))
        self.out.append(Noted(session.number, f"stays on worker {moving.here.number}: {why}"))

    # --- uploads that will never arrive --------------------------------------------------

    def lose_upload(self, session: Session, upload: Upload, failure: Failure) -> None:
        """This tensor will never arrive. Its chunks are taken from now on, and dropped."""
        self.put_lost(session, upload.key, failure)
        upload.sink, upload.becomes = True, None
        upload.shards.clear()
        self.let_go(upload)
        for _ in range(upload.unacked):
            self.send(session.peer, ChunkAck(0, upload.key, True))
        upload.unacked = upload.slowed = 0
        if upload.complete:
            del session.uploads[upload.key]

    def let_go(self, upload: Upload) -> None:
        """Drop the chunks that were kept for it."""
        self.held_nbytes -= sum(len(payload) for _, payload in upload.held)
        upload.held.clear()

    # --- waiting for a worker ------------------------------------------------------------

    def await_worker(self, session: Session) -> None:
        """The session needs a worker and has none; before the event is over it gets one, if there is one (meshes.py).
        The wait counts from the first need."""
        if session.waiting_since_s is None:
            session.waiting_since_s = self.now_s
            self.homeless[session.number] = session

    def loss_of(self, session: Session, acked: int | None = None) -> Bereft | None:
        """The loss with which work of a session without a worker fails; None: it may wait for a worker. `acked` is that
        of a call; an upload has none."""
        loss = session.bereft
        if loss is None:
            return None
        known = acked is not None and 0 < loss.root <= acked
        late = loss.told_s is not None and self.now_s > loss.told_s + TOLD_S
        if known or late or any(w.usable for w in self.workers.values()):
            session.bereft = None
            return None
        if loss.told_s is None:
            loss.told_s = self.now_s
        return loss

    def stop_waiting(self, session: Session) -> None:
        session.waiting_since_s = None
        session.bereft = None
        self.homeless.pop(session.number, None)

    # --- endings -------------------------------------------------------------------------

    def drop_head(self, session: Session) -> None:
        """The head is no longer ready; it stays in the queue."""
        if session.head is not None:
            session.head.plan.uses -= 1
            session.head = None
        if session.claims:
            self.touch(unclaim(session))
        if session.ring is not None:
            self.touch((session.ring,))
            session.ring.leave(session, self.now_s)
        self.memory_queue.pop(session.number, None)
        if session.grant is not None:
            self.drop_grant(session)

    def close(self, session: Session) -> None:
        """A session ends, however it ends. Nothing of it is left."""
        session.closed = True
        if self.relocation is not None and self.relocation.session is session:
            self.end_relocation("it has ended")
        if session.peer is not None:
            del self.peers[session.peer]
        del self.sessions[session.number]
        for table in (self.keeping, self.leaving):
            table.pop(session.number, None)
        if session.shelf is not None:
            session.shelf.let_go(session, self.now_s, self.settings.lease_s)
        if session.holds is not None:
            del self.shelves[session.holds.key]
        self.drop_head(session)
        for sent in (*session.sent.values(), *([session.moving] if session.moving is not None else [])):
            sent.plan.uses -= 1
            self.give_back(sent)
        if session.switch is not None:
            session.switch.let_go()
        for plan in session.orphans.values():
            plan.uses -= 1
        for tensor in session.tensors.values():
            self.count(session, tensor, -1)
        for number in list(session.moved):
            self.forget_moves(session, number)
        for worker in session.workers.values():
            self.send(worker.control, CloseSession(session.number))
            del worker.sessions[session.number]
            self.touched[worker.number] = worker
        self.homeless.pop(session.number, None)
        self.wishes.pop(session.number, None)
        self.news.pop(session.number, None)
        self.programs.stop_waiting(session)
        for entry in self.programs:
            entry.users.discard(session.number)
            entry.owners.discard(session.number)
        for upload in session.uploads.values():
            self.let_go(upload)
        for number in [n for n, q in self.questions.items() if q.session is session]:
            del self.questions[number]
        for kept in (session.queue, session.sizes, session.tensors, session.uploads, session.sent, session.workers):
            kept.clear()


def memory_text(session: Session, worker: Worker, nbytes: int) -> str:
    """What is missing, for an error: so many bytes do not fit there beside what the session holds. Says nothing of
    others."""
    number = worker.number
    held = sum(tensor.parts.get(number, 0) for tensor in session.tensors.values())
    free = max(0, worker.memory - held)
    return (
        f"{show_nbytes(nbytes)} on worker {number}, which can have {show_nbytes(free)} free of "
        f"{show_nbytes(worker.memory)}; this session holds {show_nbytes(held)} there"
    )
