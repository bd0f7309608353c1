"""Driving the dispatcher's state machine by hand: clients and workers that say exactly what they are told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from gt import dtypes
from gt.dispatcher.events import (
    BadFramesCame,
    CheckProgram,
    Disconnect,
    Effect,
    Event,
    MakePlan,
    MessageCame,
    Peer,
    PeerLost,
    PlanReady,
    ProgramChecked,
    Send,
    TimePassed,
)
from gt.dispatcher.machine import Machine
from gt.dispatcher.planner.emit import Local
from gt.dispatcher.planner.plan import Planned
from gt.dispatcher.plans import Planner, work_off
from gt.dispatcher.session import Lost
from gt.layout import layout
from gt.program import Instruction, Program, spec
from gt.transport.messages import (
    VERSION,
    Call,
    CallDone,
    CallFailed,
    Chunk,
    ChunkAck,
    Define,
    Failure,
    Fetch,
    FetchFailed,
    Free,
    Hello,
    MeshSet,
    Message,
    SetMesh,
    Welcome,
    WorkerHello,
    WorkerWelcome,
    pack_ids,
)

TOKEN = "the secret"


@dataclass(frozen=True)
class Settings:
    worker_timeout_s: float = 15.0
    cache_bytes: int = 1 << 20


def program(
    n: int = 8, outputs: int = 1, donate: bool = False, update: bool = False, scalars: str = "", length: int = 1
) -> Program:
    """%0 + %0, + %0, ...: one input of n floats; the last results are the outputs."""
    arg = ~0 if scalars else 0
    count = max(length, outputs)
    code = tuple(Instruction("add", (i, arg), {}) for i in range(count))
    results = tuple(range(count + 1 - outputs, count + 1))
    updates = ((0, 0),) if update else ()
    return Program((((n,), "float32"),), scalars, code, results, (0,) if donate else (), updates)


PLAIN = program()
STEP = program(donate=True, update=True, scalars="f")  #: a training step: its input is replace
BROKEN = Program((((8,), "float32"),), "", (Instruction("nonsense", (0,), {}),), (1,), (), ())


@dataclass
class Hand:
    """A machine whose invariants are looked at after each event, and the record of what went in and out."""

    settings: Settings = field(default_factory=Settings)
    checking: bool = True  #: answer each CheckProgram at once
    looking: bool = True  #: look at the invariants
    events: list[Event] = field(default_factory=list)
    actions: list[list[Effect]] = field(default_factory=list)
    now_s: float = 100.0

    def __post_init__(self) -> None:
        self.machine = Machine(self.settings, TOKEN, "gt worker --host here -p 1")
        self.state = self.machine.state
        self.pending: list[CheckProgram | MakePlan] = []
        self.planner: Planner = copies
        self.peers = 0
        self.pass_time(0.0)

    def feed(self, event: Event) -> list[Effect]:
        """Handle an event and, unless told otherwise, the checks it asks for."""
        out = self.handle(event)
        for action in list(out):
            if isinstance(action, CheckProgram | MakePlan):
                if self.checking:
                    out = out + self.feed(self.ready(action))
                else:
                    self.pending.append(action)
        return out

    def handle(self, event: Event) -> list[Effect]:
        self.events.append(event)
        out = self.machine.handle(event)
        if self.looking:
            self.machine.invariants()
        self.actions.append(out)
        return out

    def pass_time(self, seconds: float) -> list[Effect]:
        self.now_s += seconds
        return self.feed(TimePassed(self.now_s))

    def peer(self) -> Peer:
        self.peers += 1
        return b"peer%d" % self.peers

    def say(self, peer: Peer, message: Message, payload: bytes | None = None) -> list[Effect]:
        return self.feed(MessageCame(peer, message, payload))

    def client(self, name: str = "somebody") -> Client:
        return Client(self, name)

    def worker(self, memory: int = 0, peers: str = "") -> FakeWorker:
        return FakeWorker(self, memory, peers)

    def workers(self, count: int, memory: int = 0) -> list[FakeWorker]:
        """Workers that can work together."""
        return [FakeWorker(self, memory, f"there:{k}") for k in range(1, count + 1)]

    def ready(self, job: CheckProgram | MakePlan) -> ProgramChecked | PlanReady:
        return work_off(job, self.planner)


def start(hand: Hand, count: int = 2, memory: int = 0, **axes: int) -> tuple[Client, list[FakeWorker]]:
    """A client that lives on so many workers, and has defined what it calls."""
    workers = hand.workers(count, memory)
    client = hand.client()
    client.set_mesh(**(axes or {"x": count}))
    for each in (PLAIN, STEP):
        client.define(each)
    return client, workers


def copies(checked: Any, inputs: Any, home: Any, meshes: Any) -> Planned:
    """A plan in which every worker that holds something runs all of the program, and results are whole at home."""
    workers = tuple(sorted({n for at in inputs for n in at.mesh.workers} | set(home.workers)))
    local = Local(msgspec.structs.replace(checked.program, workers=workers), ())
    need = {n: max(0, checked.peak_nbytes) for n in workers}
    updates = dict(checked.program.updates)
    outputs = tuple(inputs[updates[o]] if o in updates else layout(home) for o in range(len(checked.program.outputs)))
    return Planned(workers, dict.fromkeys(workers, local), outputs, need, ("a note",), ())


def calls(worker: FakeWorker, out: list[Effect]) -> list[Call]:
    return [m for m in worker.hears(out) if isinstance(m, Call)]


def finish(client: Client, workers: list[FakeWorker], seq: int) -> list[Effect]:
    """All workers of a call say that it went well."""
    return [action for w in workers for action in w.done(client, seq)]


def sent_to(peer: Peer | tuple[Peer, ...], actions: list[Effect]) -> list[Any]:
    peers = (peer,) if isinstance(peer, bytes) else peer
    return [a.message for a in actions if isinstance(a, Send) and a.peer in peers]


def disconnected(actions: list[Effect]) -> list[Peer]:
    return [a.peer for a in actions if isinstance(a, Disconnect)]


class Client:
    def __init__(self, hand: Hand, name: str) -> None:
        self.hand = hand
        self.peer = hand.peer()
        (welcome,) = sent_to(self.peer, hand.say(self.peer, Hello(VERSION, TOKEN, name)))
        assert isinstance(welcome, Welcome)
        self.number = welcome.session
        self.seq = 0
        self.next_id = 1

    def say(self, message: Message, payload: bytes | None = None) -> list[Effect]:
        return self.hand.say(self.peer, message, payload)

    def hears(self, actions: list[Effect]) -> list[Any]:
        return sent_to(self.peer, actions)

    @property
    def session(self) -> Any:
        return self.hand.state.sessions[self.number]

    def lost(self, id: int) -> Failure | None:
        """Why a tensor is lost; None if it is not."""
        tensor = self.session.tensors[id]
        return tensor.failure if isinstance(tensor, Lost) else None

    def define(self, what: Program, timed: bool = False) -> list[Effect]:
        return self.say(Define(what, timed))

    def make_call(self, what: Program, inputs: list[int], scalars: tuple[Any, ...] = (), **fields: Any) -> Call:
        """The next call, well formed unless `fields` say otherwise."""
        self.seq += 1
        call = {
            "session": 0, "seq": self.seq, "program": what.hash(), "inputs": pack_ids(inputs), "scalars": scalars,
            "outputs": self.next_id, "frees": b"", "acked": 0,
        }  # fmt: skip
        self.next_id += len(what.outputs)
        return Call(**{**call, **fields})

    def call(self, what: Program, inputs: list[int], scalars: tuple[Any, ...] = (), **fields: Any) -> list[Effect]:
        return self.say(self.make_call(what, inputs, scalars, **fields))

    def chunk(self, n: int = 8) -> Chunk:
        """The first and only chunk of an upload of n floats, under the next id."""
        self.next_id += 1
        return Chunk(0, self.next_id - 1, 0, 4 * n, (n,), "float32")

    def upload(self, worker: FakeWorker | None, n: int = 8, *others: FakeWorker, layout: str = "") -> int:
        """Upload n floats in one chunk; with workers it is acknowledged."""
        chunk = msgspec.structs.replace(self.chunk(n), layout=layout)
        self.say(chunk, bytes(4 * n))
        for each in (worker, *others):
            if each is not None:
                each.ack(self, chunk.key)
        return chunk.key

    def set_mesh(self, name: str = "", members: tuple[int, ...] = (), split: bool = False, **axes: int) -> MeshSet:
        """Have a mesh, which must be answered at once."""
        (answer,) = self.hears(self.say(SetMesh(1, name, tuple(axes.items()), members, split)))
        assert isinstance(answer, MeshSet)
        return answer

    def fetch(self, request: int, id: int) -> list[Effect]:
        return self.say(Fetch(0, request, id))

    def free(self, *ids: int) -> list[Effect]:
        return self.say(Free(0, pack_ids(ids)))

    def leave(self) -> list[Effect]:
        return self.hand.feed(PeerLost(self.peer))

    def garble(self) -> list[Effect]:
        return self.hand.feed(BadFramesCame(self.peer, "not a message"))


class FakeWorker:
    def __init__(self, hand: Hand, memory: int, peers: str = "") -> None:
        self.hand = hand
        self.control, self.results = hand.peer(), hand.peer()
        hello = WorkerHello(VERSION, TOKEN, self.control.hex(), True, "numpy", "cpu", memory, "host", 7, peers)
        (welcome,) = self.hears(hand.say(self.control, hello))
        assert isinstance(welcome, WorkerWelcome)
        self.number = welcome.worker
        results = WorkerHello(VERSION, TOKEN, self.control.hex(), False)
        self.joined = hand.say(self.results, results)  #: what its arrival led to
        assert self.hears(self.joined)[0] == welcome

    def hears(self, actions: list[Effect]) -> list[Any]:
        return sent_to((self.control, self.results), actions)

    @property
    def state(self) -> Any:
        return self.hand.state.workers[self.number]

    def say(self, message: Message, payload: bytes | None = None) -> list[Effect]:
        return self.hand.say(self.results, message, payload)

    def ack(self, client: Client, key: int) -> list[Effect]:
        return self.hand.say(self.control, ChunkAck(client.number, key, True))

    def done(self, client: Client, seq: int, run_us: int = 100) -> list[Effect]:
        return self.say(CallDone(client.number, seq, run_us))

    def failed(
        self, client: Client, seq: int, root: int = 0, text: str = "no", kind: str = "WorkerError"
    ) -> list[Effect]:
        return self.say(CallFailed(client.number, seq, root or seq, Failure(kind, text)))

    def fetch_failed(self, client: Client, request: int) -> list[Effect]:
        return self.say(FetchFailed(client.number, request, Failure("WorkerError", "no")))

    def die(self) -> list[Effect]:
        return self.hand.feed(PeerLost(self.results))


def floats(n: int) -> Any:
    return spec((n,), dtypes.float32)
