"""Driving the dispatcher's state machine by hand: clients and workers that say exactly what they are told."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from gt import dtypes
from gt.dispatcher import events as ev
from gt.dispatcher.machine import Machine
from gt.dispatcher.planner.emit import Local
from gt.dispatcher.planner.plan import Planned
from gt.dispatcher.plans import Planner, work_off
from gt.dispatcher.session import Lost
from gt.layout import layout
from gt.program import Instruction, Program, spec
from gt.transport import messages as msg

TOKEN = "the secret"


@dataclass(frozen=True)
class Settings:
    worker_timeout_s: float = 15.0
    cache_bytes: int = 1 << 20
    plan_after_s: float = 0.0
    lease_s: float = 3600.0


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
CREATE = Program((), "f", (Instruction("full", (~0,), {"shape": [8], "dtype": "float32"}),), (0,), (), ())
#: x[:] = y
WRITE = Program((((8,), "float32"),) * 2, "", (Instruction("assign", (0, 1), {}),), (2,), (0,), ((0, 0),))
BROKEN = Program((((8,), "float32"),), "", (Instruction("nonsense", (0,), {}),), (1,), (), ())


@dataclass
class Hand:
    """A machine whose invariants are looked at after each event, and the record of what went in and out."""

    settings: Settings = field(default_factory=Settings)
    checking: bool = True  #: answer each CheckProgram at once
    looking: bool = True  #: look at the invariants
    events: list[ev.Event] = field(default_factory=list)
    actions: list[list[ev.Effect]] = field(default_factory=list)
    now_s: float = 100.0

    def __post_init__(self) -> None:
        self.machine = Machine(self.settings, TOKEN, "gt worker --host here -p 1")
        self.state = self.machine.state
        self.pending: list[ev.CheckProgram | ev.MakePlan] = []
        self.planner: Planner = copies
        self.peers = 0
        self.pass_time(0.0)

    def feed(self, event: ev.Event) -> list[ev.Effect]:
        """Handle an event and, unless told otherwise, the checks it asks for."""
        out = self.handle(event)
        for action in list(out):
            if isinstance(action, ev.CheckProgram | ev.MakePlan):
                if self.checking:
                    out = out + self.feed(self.ready(action))
                else:
                    self.pending.append(action)
        return out

    def handle(self, event: ev.Event) -> list[ev.Effect]:
        self.events.append(event)
        out = self.machine.handle(event)
        if self.looking:
            self.machine.invariants()
        self.actions.append(out)
        return out

    def pass_time(self, seconds: float) -> list[ev.Effect]:
        self.now_s += seconds
        return self.feed(ev.TimePassed(self.now_s))

    def peer(self) -> ev.Peer:
        self.peers += 1
        return b"peer%d" % self.peers

    def say(self, peer: ev.Peer, message: msg.Message, payload: bytes | None = None) -> list[ev.Effect]:
        return self.feed(ev.MessageCame(peer, message, payload))

    def client(self, *known: Program, name: str = "somebody", **axes: int) -> Client:
        """A client that has defined these programs, and has a mesh if axes are named."""
        client = Client(self, name)
        if axes:
            client.set_mesh(**axes)
        for each in known:
            client.define(each)
        return client

    def worker(self, memory: int = 0, peers: str = "") -> FakeWorker:
        return FakeWorker(self, memory, peers)

    def workers(self, count: int, memory: int = 0) -> list[FakeWorker]:
        """Workers that can work together."""
        return [FakeWorker(self, memory, f"there:{k}") for k in range(1, count + 1)]

    def ready(self, job: ev.CheckProgram | ev.MakePlan) -> ev.ProgramChecked | ev.PlanReady:
        return work_off(job, self.planner)


def start(hand: Hand, count: int = 2, memory: int = 0, **axes: int) -> tuple[Client, list[FakeWorker]]:
    """A client that lives on so many workers, and has defined what it calls."""
    workers = hand.workers(count, memory)
    return hand.client(PLAIN, STEP, **(axes or {"x": count})), workers


def start_with_tensor(hand: Hand, count: int = 2, layout: str = "") -> tuple[Client, list[FakeWorker], int]:
    """A client on so many workers, and a tensor of 8 floats that is replicated on them or has this layout."""
    client, workers = start(hand, count)
    return client, workers, client.upload(*workers, layout=layout)


def copies(checked: Any, inputs: Any, home: Any, *_: Any) -> Planned:
    """A plan in which every worker that holds something runs all of the program, and results are whole at home."""
    workers = tuple(sorted({n for at in inputs for n in at.mesh.workers} | set(home.workers)))
    local = Local(msgspec.structs.replace(checked.program, workers=workers), ())
    need = {n: max(0, checked.peak_nbytes) for n in workers}
    updates = dict(checked.program.updates)
    outputs = tuple(inputs[updates[o]] if o in updates else layout(home) for o in range(len(checked.program.outputs)))
    return Planned(workers, dict.fromkeys(workers, local), outputs, need, ("a note",), ())


def at_the_input(plan: Planned, inputs: Any, home: Any) -> Planned:
    """The call runs where its first input is, and its results are where its inputs are. For `planning`."""
    return replace(plan, workers=inputs[0].mesh.workers, outputs=tuple(inputs))


def planning(change: Callable[[Planned, Any, Any], Planned]) -> Planner:
    """A planner that makes the plans of copies(), each changed by `change(plan, inputs, home)`."""
    return lambda checked, inputs, home, *_: change(copies(checked, inputs, home), inputs, home)


def calls(worker: FakeWorker, out: list[ev.Effect]) -> list[msg.Call]:
    return worker.hears(out, msg.Call)


def finish(client: Client, workers: list[FakeWorker], seq: int) -> list[ev.Effect]:
    """All workers of a call say that it went well."""
    return [action for w in workers for action in w.done(client, seq)]


def fail(client: Client, workers: list[FakeWorker], seq: int, **how: Any) -> list[ev.Effect]:
    """All workers of a call say that it failed."""
    return [action for w in workers for action in w.failed(client, seq, **how)]


def sent_to(peer: ev.Peer | tuple[ev.Peer, ...], actions: list[ev.Effect], *kinds: type) -> list[Any]:
    """The messages to a peer, or to several; of these kinds, if any are named."""
    peers = (peer,) if isinstance(peer, bytes) else peer
    sent = [a.message for a in actions if isinstance(a, ev.Send) and a.peer in peers]
    return [m for m in sent if isinstance(m, kinds or object)]


def types(messages: Iterable[Any]) -> list[type]:
    return [type(m) for m in messages]


def disconnected(actions: list[ev.Effect]) -> list[ev.Peer]:
    return [a.peer for a in actions if isinstance(a, ev.Disconnect)]


class Client:
    def __init__(self, hand: Hand, name: str) -> None:
        self.hand = hand
        self.peer = hand.peer()
        (welcome,) = sent_to(self.peer, hand.say(self.peer, msg.Hello(msg.VERSION, TOKEN, name)))
        assert isinstance(welcome, msg.Welcome)
        self.number = welcome.session
        self.seq = 0
        self.next_id = 1

    def say(self, message: msg.Message, payload: bytes | None = None) -> list[ev.Effect]:
        return self.hand.say(self.peer, message, payload)

    def hears(self, actions: list[ev.Effect], *kinds: type) -> list[Any]:
        return sent_to(self.peer, actions, *kinds)

    def rejection(self, actions: list[ev.Effect]) -> str:
        """What the client hears is this alone: why its message is rejected."""
        (rejected,) = self.hears(actions)
        assert isinstance(rejected, msg.Rejected)
        return rejected.text

    def fetch_error(self, id: int, request: int = 1) -> msg.Failure:
        """A fetch fails at once; why."""
        (failed,) = self.hears(self.fetch(request, id))
        assert isinstance(failed, msg.FetchFailed)
        assert failed.request == request
        return failed.error

    @property
    def session(self) -> Any:
        return self.hand.state.sessions[self.number]

    def lost(self, id: int) -> msg.Failure | None:
        """Why a tensor is lost; None if it is not."""
        tensor = self.session.tensors[id]
        return tensor.failure if isinstance(tensor, Lost) else None

    def define(self, what: Program, timed: bool = False) -> list[ev.Effect]:
        return self.say(msg.Define(what, timed))

    def make_call(self, what: Program, inputs: list[int], scalars: tuple[Any, ...] = (), **fields: Any) -> msg.Call:
        """The next call, well formed unless `fields` say otherwise."""
        self.seq += 1
        call = {
            "session": 0, "seq": self.seq, "program": what.hash(), "inputs": msg.pack_ids(inputs), "scalars": scalars,
            "outputs": self.next_id, "frees": b"", "acked": 0,
        }  # fmt: skip
        self.next_id += len(what.outputs)
        return msg.Call(**{**call, **fields})

    def call(self, what: Program, inputs: list[int], scalars: tuple[Any, ...] = (), **fields: Any) -> list[ev.Effect]:
        return self.say(self.make_call(what, inputs, scalars, **fields))

    def chunk(self, n: int = 8) -> msg.Chunk:
        """The first and only chunk of an upload of n floats, under the next id."""
        self.next_id += 1
        return msg.Chunk(0, self.next_id - 1, 0, 4 * n, (n,), "float32")

    def upload(self, *workers: FakeWorker, n: int = 8, layout: str = "") -> int:
        """Upload n floats in one chunk, which these workers acknowledge."""
        chunk = msgspec.structs.replace(self.chunk(n), layout=layout)
        self.say(chunk, bytes(4 * n))
        for worker in workers:
            worker.ack(self, chunk.key)
        return chunk.key

    def set_mesh(self, name: str = "", members: tuple[int, ...] = (), split: bool = False, **axes: int) -> msg.MeshSet:
        """Have a mesh, which must be answered at once."""
        (answer,) = self.hears(self.say(msg.SetMesh(1, name, tuple(axes.items()), members, split)))
        assert isinstance(answer, msg.MeshSet)
        return answer

    def fetch(self, request: int, id: int) -> list[ev.Effect]:
        return self.say(msg.Fetch(0, request, id))

    def free(self, *ids: int) -> list[ev.Effect]:
        return self.say(msg.Free(0, msg.pack_ids(ids)))

    def leave(self) -> list[ev.Effect]:
        return self.hand.feed(ev.PeerLost(self.peer))

    def garble(self) -> list[ev.Effect]:
        return self.hand.feed(ev.BadFramesCame(self.peer, "not a message"))


class FakeWorker:
    def __init__(self, hand: Hand, memory: int, peers: str = "") -> None:
        self.hand = hand
        self.control, self.results = hand.peer(), hand.peer()
        hello = msg.WorkerHello(msg.VERSION, TOKEN, self.control.hex(), True, "numpy", "cpu", memory, "host", 7, peers)
        (welcome,) = self.hears(hand.say(self.control, hello))
        assert isinstance(welcome, msg.WorkerWelcome)
        self.number = welcome.worker
        results = msg.WorkerHello(msg.VERSION, TOKEN, self.control.hex(), False)
        self.joined = hand.say(self.results, results)  #: what its arrival led to
        assert self.hears(self.joined)[0] == welcome

    def hears(self, actions: list[ev.Effect], *kinds: type) -> list[Any]:
        return sent_to((self.control, self.results), actions, *kinds)

    @property
    def state(self) -> Any:
        return self.hand.state.workers[self.number]

    def say(self, message: msg.Message, payload: bytes | None = None) -> list[ev.Effect]:
        return self.hand.say(self.results, message, payload)

    def ack(self, client: Client, key: int) -> list[ev.Effect]:
        return self.hand.say(self.control, msg.ChunkAck(client.number, key, True))

    def done(self, client: Client, seq: int, run_us: int = 100) -> list[ev.Effect]:
        return self.say(msg.CallDone(client.number, seq, run_us))

    def failed(
        self, client: Client, seq: int, root: int = 0, text: str = "no", kind: str = "WorkerError"
    ) -> list[ev.Effect]:
        return self.say(msg.CallFailed(client.number, seq, root or seq, msg.Failure(kind, text)))

    def fetch_failed(self, client: Client, request: int) -> list[ev.Effect]:
        return self.say(msg.FetchFailed(client.number, request, msg.Failure("WorkerError", "no")))

    def die(self) -> list[ev.Effect]:
        return self.hand.feed(ev.PeerLost(self.results))


def floats(n: int) -> Any:
    return spec((n,), dtypes.float32)
