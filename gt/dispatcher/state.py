"""All that the dispatcher knows, and the few changes that every part of it makes.

Law 1: bytes are counted twice, per session and per worker, and always together (`count`).
Law 2: whatever is to be sent goes through `send`, in order; nothing else has an effect outside.
Law 3: containers whose order is visible in what is sent are lists and dictionaries, never sets, so that
       the same events give the same messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from gt.dispatcher.events import Disconnect, Effect, Peer, Send
from gt.dispatcher.plans import Programs
from gt.dispatcher.schedule import Lane, unclaim
from gt.dispatcher.session import AnyTensor, Lost, SentCall, Session, Upload, show_nbytes
from gt.layout import Layout
from gt.transport.messages import Buffer, ChunkAck, CloseSession, Failure, Forget, Message, Refused, Rejected

SESSIONS = 1024
HELD_NBYTES = 1 << 30  #: Chunks of all sessions kept here while there is no worker.


class Settings(Protocol):
    """What the machine reads of gt.config.Config."""

    @property
    def worker_timeout_s(self) -> float: ...
    @property
    def cache_bytes(self) -> int: ...


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
    control: Peer | None = None  #: takes commands
    results: Peer | None = None
    lane: Lane = field(init=False)
    sessions: dict[int, Session] = field(default_factory=dict)  #: those placed here
    nbytes: int = 0  #: the sum over `sessions`
    programs: set[bytes] = field(default_factory=set)  #: those it was sent; only membership is asked
    calls: int = 0

    def __post_init__(self) -> None:
        self.lane = Lane(self.number)

    def has_room(self, nbytes: int) -> bool:
        return not self.memory or self.nbytes + nbytes <= self.memory

    @property
    def usable(self) -> bool:
        return self.control is not None and self.results is not None

    def __str__(self) -> str:
        return f"{self.host or 'unknown host'}, pid {self.pid}"


@dataclass(slots=True)
class Question:
    """A client's GetStats, until all workers have answered or the deadline has passed."""

    session: Session
    request: int
    deadline_s: float
    waiting: dict[int, Worker]
    answers: dict[int, dict[str, object]] = field(default_factory=dict)


class State:
    """See the file's header."""

    def __init__(self, settings: Settings, token: str, join: str) -> None:
        self.settings = settings
        self.token = token
        self.join = join  #: the command that starts a worker, for an error; empty: there is none
        self.now_s = 0.0
        self.out: list[Effect] = []
        self.peers: dict[Peer, Session | Worker] = {}
        self.sessions: dict[int, Session] = {}
        self.workers: dict[int, Worker] = {}
        self.links: dict[str, Worker] = {}
        self.programs = Programs(settings.cache_bytes)
        self.homeless: dict[int, Session] = {}  #: sessions that need a worker and have none
        self.wishes: dict[int, Session] = {}  #: sessions that wait for more, for a mesh
        self.held_nbytes = 0  #: the sum over all uploads' `held`
        self.questions: dict[int, Question] = {}
        self.last_session = 0
        self.last_worker = 0
        self.last_question = 0
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
        session.tensors[id] = Lost(old.spec, failure, root)
        session.lost += 1

    def give_back(self, sent: SentCall) -> None:
        """A call's credit, on all its workers that still have it."""
        for number in sent.left:
            worker = self.workers[number]
            worker.lane.give_back(sent.cost_us)
            self.touched[number] = worker

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

    # --- uploads that will never arrive --------------------------------------------------

    def lose_upload(self, session: Session, upload: Upload, failure: Failure) -> None:
        """This tensor will never arrive. Its chunks are taken from now on, and dropped."""
        self.put_lost(session, upload.key, failure)
        upload.sink, upload.becomes = True, None
        upload.shards.clear()
        self.let_go(upload)
        for _ in range(upload.unacked):
            self.send(session.peer, ChunkAck(0, upload.key, True))
        upload.unacked = 0
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

    def stop_waiting(self, session: Session) -> None:
        session.waiting_since_s = None
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

    def close(self, session: Session) -> None:
        """A session ends, however it ends. Nothing of it is left."""
        session.closed = True
        del self.peers[session.peer]
        del self.sessions[session.number]
        self.drop_head(session)
        for sent in session.sent.values():
            sent.plan.uses -= 1
            self.give_back(sent)
        for plan in session.orphans.values():
            plan.uses -= 1
        for tensor in session.tensors.values():
            self.count(session, tensor, -1)
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
        for upload in session.uploads.values():
            self.let_go(upload)
        for number in [n for n, q in self.questions.items() if q.session is session]:
            del self.questions[number]
        for kept in (session.queue, session.sizes, session.tensors, session.uploads, session.sent, session.workers):
            kept.clear()


def memory_text(session: Session, worker: Worker, nbytes: int) -> str:
    """What is missing, for an error: so many bytes do not fit there. Says nothing of other sessions."""
    free = max(0, worker.memory - worker.nbytes)
    return (
        f"{show_nbytes(nbytes)} on worker {worker.number}, which has {show_nbytes(free)} free of "
        f"{show_nbytes(worker.memory)}; this session holds {show_nbytes(session.nbytes)}"
    )
