"""All that the dispatcher knows, and the few changes that every part of it makes.

Law 1: bytes are counted twice, per session and per worker, and always together (`charge`).
Law 2: whatever is to be sent goes through `send`, in order; nothing else has an effect outside.
Law 3: containers whose order is visible in what is sent are lists and dictionaries, never sets, so that
       the same events give the same messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from gt.dispatcher.events import Action, Disconnect, Peer, Send
from gt.dispatcher.plans import Entry, Plan, Programs
from gt.dispatcher.schedule import Lane, unclaim
from gt.dispatcher.session import Sent, Session, Tensor, Upload
from gt.layout import Layout
from gt.transport.codec import Buffer
from gt.transport.messages import ChunkAck, CloseSession, Failure, Forget, Message, Refused, Rejected, Shared

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
    layout: Layout  #: of a tensor that lies whole on it
    engine: str = ""
    device: str = ""
    memory: int = 0  #: bytes it may use; 0: it does not say
    host: str = ""
    pid: int = 0
    peers: str = ""  #: where other workers meet it; "": it runs nothing together with others
    control: Peer | None = None  #: takes commands
    results: Peer | None = None
    lane: Lane = field(init=False)
    sessions: dict[int, Session] = field(default_factory=dict)  #: those placed here
    nbytes: int = 0  #: the sum over `sessions`
    programs: set[bytes] = field(default_factory=set)  #: those it was sent; only membership is asked
    calls: int = 0

    def __post_init__(self) -> None:
        self.lane = Lane(self.number)

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
        self.join = join  #: the command that starts a worker, for the message that there is none; empty: nobody can
        self.now_s = 0.0
        self.out: list[Action] = []
        self.peers: dict[Peer, Session | Worker] = {}
        self.sessions: dict[int, Session] = {}
        self.workers: dict[int, Worker] = {}
        self.links: dict[str, Worker] = {}
        self.programs = Programs(settings.cache_bytes)
        self.homeless: dict[int, Session] = {}  #: sessions that wait for a worker to join
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
        """The last word to a connection."""
        self.send(peer, Refused(text))
        self.disconnect(peer)

    def disconnect(self, peer: Peer) -> None:
        self.out.append(Disconnect(peer))

    def cut_off(self, session: Session, text: str) -> None:
        """This client cannot go on."""
        self.refuse(session.peer, text)
        self.close(session)

    # --- counting ------------------------------------------------------------------------

    def charge(self, session: Session, nbytes: int) -> None:
        """The session's tensors take so many bytes more on its worker."""
        session.nbytes += nbytes
        if session.worker is not None:
            session.worker.nbytes += nbytes

    def spread(self, session: Session, parts: dict[int, int], sign: int = 1) -> None:
        """The same for a wide session: bytes by worker."""
        for number, nbytes in parts.items():
            session.nbytes += sign * nbytes
            self.workers[number].nbytes += sign * nbytes

    def uncount(self, session: Session, tensor: Tensor) -> None:
        """This tensor's bytes are not taken any more."""
        if tensor.parts is None:
            self.charge(session, -tensor.nbytes)
        else:
            self.spread(session, tensor.parts, -1)

    def give_back(self, sent: Sent) -> None:
        """A call's credit, on all its workers that still have it."""
        for number in sent.plan.workers if sent.left is None else sent.left:
            worker = self.workers[number]
            worker.lane.give_back(sent.cost_us)
            self.touched[number] = worker

    def release(self, entry: Entry, plan: Plan) -> None:
        """A call does not need its program and plan any more."""
        entry.uses -= 1
        plan.uses -= 1

    def touch(self, lanes: Iterable[Lane]) -> None:
        """Look at these workers before the event is over."""
        for lane in lanes:
            self.touched[lane.number] = self.workers[lane.number]

    def forget_programs(self) -> None:
        """Keep the cache within its limit, and the workers' with it."""
        for entry in self.programs.evict():
            self.forget(entry.hash)
            for name in self.programs.drop_plans(entry):
                self.forget(name)

    def forget_plans(self, worker: Worker) -> None:
        """Plans with a worker that is gone are of no use."""
        for entry in self.programs:
            for name in self.programs.drop_plans(entry, worker.number):
                self.forget(name)

    def forget(self, name: bytes) -> None:
        """The workers need this program no longer, unless somebody else does."""
        if name in self.programs:
            return
        for worker in self.workers.values():
            if name in worker.programs:
                worker.programs.discard(name)
                self.send(worker.control, Forget(name))

    # --- uploads that will never arrive --------------------------------------------------

    def sink(self, session: Session, upload: Upload) -> None:
        """Take an upload's chunks from now on, and drop them: its tensor is lost."""
        upload.sink = True
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

    # --- endings -------------------------------------------------------------------------

    def unplace(self, session: Session) -> None:
        """Take a session off its workers, with its calls and its bytes."""
        if session.worker is None:
            return
        self.drop_head(session)
        for sent in session.sent.values():
            self.release(sent.entry, sent.plan)
            if not sent.finished:
                self.give_back(sent)
        session.sent.clear()
        if session.wide:
            for key in list(session.orphans):
                self.release(*session.orphans.pop(key))
            for tensor in session.tensors.values():
                self.uncount(session, tensor)
        else:
            self.charge(session, -session.nbytes)
        self.stop_sharing(session)
        for worker in session.workers.values():
            del worker.sessions[session.number]
            self.touched[worker.number] = worker
        session.workers.clear()
        session.meshes.clear()
        session.worker = None

    def stop_sharing(self, session: Session) -> None:
        """Its ring is used no longer."""
        if session.share is not None:
            if not session.closed:
                self.send(session.peer, Shared(0, session.share.ring, False))
            session.share, session.sharing = None, False

    def drop_head(self, session: Session) -> None:
        """The head is no longer ready; it stays in the queue."""
        if session.head is not None:
            self.release(session.head.entry, session.head.plan)
            session.head = None
        if session.claims:
            self.touch(unclaim(session))
        if session.enlisted:
            assert session.worker is not None
            session.worker.lane.leave(session, self.now_s)
            self.touched[session.worker.number] = session.worker

    def close(self, session: Session) -> None:
        """A session ends, however it ends. Nothing of it is left."""
        session.closed = True
        del self.peers[session.peer]
        del self.sessions[session.number]
        for worker in session.workers.values():
            self.send(worker.control, CloseSession(session.number))
        self.unplace(session)
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
        session.queue.clear()
        session.sizes.clear()
        session.tensors.clear()
        session.uploads.clear()


def lost_error(text: str) -> Failure:
    return Failure("LostError", text)
