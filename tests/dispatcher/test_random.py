"""Long random lives of a dispatcher, from seeds: honest clients, hostile ones, workers that die.

After every event the invariants hold. An honest client is never rejected, and once a worker is there and
answers, everything an honest client asked for is answered too. A failing seed replays alone.
"""

from __future__ import annotations

import random
from collections import deque

import msgspec
import pytest
from dispatching import BROKEN, TOKEN, Client, FakeWorker, Hand, Settings, program, sent_to

from gt.dispatcher.events import MessageCame, ProgramChecked
from gt.dispatcher.machine import Machine
from gt.transport import messages
from gt.transport.messages import (
    VERSION,
    WINDOW,
    Call,
    CallDone,
    CallFailed,
    Cancel,
    Chunk,
    ChunkAck,
    CloseSession,
    Define,
    Failure,
    Fetch,
    FetchFailed,
    Forget,
    Free,
    GetStats,
    Goodbye,
    Hello,
    MeshSet,
    Need,
    Peers,
    Refused,
    Rejected,
    SetMesh,
    Sharded,
    Stats,
    Welcome,
    WorkerHello,
    WorkerWelcome,
    pack_ids,
    unpack_ids,
)

SIZES = (0, 3, 8)
PROGRAMS = [
    program(n, outputs=outputs, donate=donate, update=donate, scalars=scalars, length=length)
    for n in SIZES
    for outputs in (1, 3)
    for donate in (False, True)
    for scalars in ("", "f")
    for length in (1, 4)
]
BY_HASH = {p.hash(): p for p in PROGRAMS}


class Honest(Client):
    """Does only what a client may do, and remembers what it is owed."""

    def __init__(self, hand: Hand, rng: random.Random, several: bool = False) -> None:
        super().__init__(hand, "honest")
        self.rng = rng
        self.several = several  # it may set meshes
        self.meshed = False
        self.parts: dict[int, int] = {}  # fetch -> parts that are still to come
        self.tensors: dict[int, int] = {}  # id -> number of elements
        self.sending: dict[int, int] = {}  # uploads -> chunks not acknowledged
        self.defined: set[bytes] = set()
        self.done = 0
        self.fetching: set[int] = set()
        self.asking: set[int] = set()
        self.requests = 0

    def act(self) -> None:
        choice = self.rng.random()
        if choice < 0.2 and len(self.sending) < 8:
            n = self.rng.choice(SIZES)
            chunk = self.chunk(n)
            if self.meshed and self.rng.random() < 0.5:
                chunk = msgspec.structs.replace(chunk, layout=f"[{n}@x]")
            self.tensors[chunk.key] = n
            self.sending[chunk.key] = 1
            self.say(chunk, bytes(4 * n))
        elif choice < 0.65 and self.tensors and self.seq - self.done < WINDOW:
            self.call_something()
        elif choice < 0.8 and self.tensors:
            self.requests += 1
            self.fetching.add(self.requests)
            self.fetch(self.requests, self.rng.choice(list(self.tensors)))
        elif choice < 0.9 and len(self.tensors) > 3:
            free = [i for i in self.rng.sample(list(self.tensors), 2) if i not in self.sending]
            for i in free:
                del self.tensors[i]
            self.free(*free)
        elif choice < 0.95 and self.fetching:
            request = self.rng.choice(list(self.fetching))
            self.fetching.discard(request)
            self.say(Cancel(0, request))
        elif self.several and self.rng.random() < 0.5 and not self.asking:
            self.requests += 1
            self.asking.add(self.requests)
            axes = self.rng.choice([(("x", 2),), (("x", 2),), (("x", 3),), (("x", 1),), (("y", 2), ("x", 1))])
            self.say(SetMesh(self.requests, self.rng.choice(["", "", "other"]), axes, (), self.rng.random() < 0.5))
        elif len(self.asking) < 4:
            self.requests += 1
            self.asking.add(self.requests)
            self.say(GetStats(self.requests))

    def call_something(self) -> None:
        i, n = self.rng.choice(list(self.tensors.items()))
        what = self.rng.choice([p for p in PROGRAMS if p.inputs[0][0] == (n,)])
        if what.hash() not in self.defined:
            self.defined.add(what.hash())
            self.define(what, timed=self.rng.random() < 0.3)
        if what.donate:
            del self.tensors[i]
        frees = []
        if self.rng.random() < 0.3 and len(self.tensors) > 5:
            frees = [f for f in self.rng.sample(list(self.tensors), 1) if f != i and f not in self.sending]
            for f in frees:
                del self.tensors[f]
        first = self.next_id
        call = self.make_call(what, [i], (0.5,) * len(what.scalars), frees=pack_ids(frees), acked=self.done)
        self.tensors.update(dict.fromkeys(range(first, self.next_id), n))
        self.say(call)

    def take(self, message) -> None:
        assert not isinstance(message, Rejected | Refused), message
        if isinstance(message, CallDone):
            assert message.seq > self.done
            self.done = message.seq
        elif isinstance(message, CallFailed):
            assert self.done < message.seq
            assert message.root <= message.seq
        elif isinstance(message, ChunkAck):
            del self.sending[message.key]
        elif isinstance(message, Sharded):
            self.parts[message.request] = len(message.parts)
        elif isinstance(message, MeshSet):
            self.asking.discard(message.request)
            self.meshed = bool(self.session.meshes.get(""))
        elif isinstance(message, Chunk):
            self.parts[message.key] = self.parts.get(message.key, 1) - 1
            if not self.parts[message.key]:
                self.fetching.discard(message.key)
            if self.rng.random() < 0.5:
                self.say(ChunkAck(0, message.key, False, message.part))
        elif isinstance(message, FetchFailed):
            self.fetching.discard(message.request)
        elif isinstance(message, Need):
            self.define(BY_HASH[message.program])
        elif isinstance(message, Stats):
            self.asking.discard(message.request)

    @property
    def content(self) -> bool:
        return self.done == self.seq and not (self.sending or self.fetching or self.asking)


class Working(FakeWorker):
    """Answers what it was told, in an order that the rules allow."""

    def __init__(self, hand: Hand, rng: random.Random, peers: str = "") -> None:
        self.rng = rng
        self.calls: deque[Call] = deque()
        self.others: list = []
        self.known: set[bytes] = set()
        super().__init__(hand, rng.choice([0, 0, 100, 300]), peers)

    def take(self, message) -> None:
        if isinstance(message, Call):
            assert message.program in self.known, "a call before its program"
            self.calls.append(message)
        elif isinstance(message, Define):
            self.known.add(message.program.hash())
        elif isinstance(message, Forget):
            self.known.discard(message.program)
        elif isinstance(message, CloseSession):
            self.calls = deque(c for c in self.calls if c.session != message.session)
            self.others = [m for m in self.others if getattr(m, "session", 0) != message.session]
        elif isinstance(message, Chunk | Fetch | GetStats):
            self.others.append(message)

    def act(self) -> None:
        if self.calls and (not self.others or self.rng.random() < 0.6):
            call = self.calls.popleft()
            if call.refused or self.rng.random() < 0.15:
                error = call.refused or Failure("WorkerError", "bad luck")
                self.say(CallFailed(call.session, call.seq, call.seq, error))
            else:
                self.say(CallDone(call.session, call.seq, self.rng.randrange(30_000)))
        elif self.others:
            message = self.others.pop(self.rng.randrange(len(self.others)))
            if isinstance(message, Chunk):
                self.hand.say(self.control, ChunkAck(message.session, message.key, True))
            elif isinstance(message, GetStats):
                self.say(Stats(message.request, {"calls": 1}))
            elif self.rng.random() < 0.2:
                self.say(FetchFailed(message.session, message.request, Failure("WorkerError", "no")))
            else:
                self.say(Chunk(message.session, message.request, 0, 4, (1,), "float32"), bytes(4))


def hostile_message(rng: random.Random, seen: list):
    """Anything: mostly what honest peers said, with something changed."""
    if seen and rng.random() < 0.8:
        message = rng.choice(seen)
    else:
        message = rng.choice(MADE_UP)
    changes = {}
    for name in message.__struct_fields__:
        if rng.random() < 0.25:
            changes[name] = mutated(rng, getattr(message, name))
    message = msgspec.structs.replace(message, **changes) if changes else message
    payload = bytes(rng.choice([0, 4, 12, 32, 33])) if isinstance(message, Chunk) else None
    try:
        return messages.decode(messages.encode(message, payload))  # what the wire lets through
    except (messages.BadMessage, OverflowError, TypeError):
        return GetStats(1), None


def mutated(rng: random.Random, value):
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice([0, 1, -1, value + 1, value - 1, rng.randrange(1, 40), 2**63 - 1, 2**63, 2**60, -(2**63)])
    if isinstance(value, bytes):
        ids = unpack_ids(value[: len(value) // 8 * 8])
        some = [mutated_id(rng, i) for i in ids] + [rng.randrange(1, 60)] * rng.randrange(3)
        return rng.choice([pack_ids(some), value + b"x", b"", rng.randbytes(16)])
    if isinstance(value, str):
        return rng.choice(["", "float64", "int8", "?", "x" * 300])
    if isinstance(value, tuple):
        return rng.choice([(), (1,), (2**60,), (-1,), (0.5,), (True,), (3, 3), value + value])
    return value


def mutated_id(rng: random.Random, i: int) -> int:
    return i if rng.random() < 0.7 else rng.choice([0, -1, i + 1, 2**62])


MADE_UP = [
    Hello(VERSION, TOKEN, "x"), Goodbye(), Define(BROKEN), Define(PROGRAMS[0], True), Need(b"x"), GetStats(3),
    Cancel(0, 1), Fetch(0, 1, 1), Free(0, pack_ids([1, 2])), ChunkAck(0, 1, False), ChunkAck(0, 1, True),
    Chunk(0, 1, 0, 32, (8,), "float32"), Call(0, 1, PROGRAMS[0].hash(), pack_ids([1]), (), 5, b"", 0),
    Call(0, 1, b"an unknown one..", b"", (), 1, b"", 0), CallDone(1, 1, 5), Welcome(1, 1, 1),
    CloseSession(1), Rejected("x"), SetMesh(1, "", (("x", 2),)), SetMesh(1, "m", (("x", 1), ("y", 2)), (0, 1), True),
    Chunk(0, 1, 0, 32, (8,), "float32", layout="[8@x]"), Fetch(0, 1, 1, layout=True), MeshSet(1, (1,)),
    Sharded(1, "", (("x", 2),), (1, 2), "[]", (8,), "float32"), Peers({1: "x"}),
    WorkerHello(VERSION, "wrong", "link", True), WorkerWelcome(1, 1), Stats(1, {}),
]  # fmt: skip


class World:
    """Everybody, and a die."""

    def __init__(self, seed: int, several: bool = False) -> None:
        self.rng = random.Random(seed)
        self.several = several  # sessions may run on several workers
        self.peers = "there" if several else ""
        self.hand = Hand(Settings(worker_timeout_s=5.0, cache_bytes=self.rng.choice([3000, 1 << 20])), checking=False)
        self.honest: list[Honest] = []
        self.workers: list[Working] = []
        self.hostile: list[bytes] = []
        self.seen: list = []
        self.read = 0

    def deliver(self) -> None:
        """Give everybody what the machine sent; their answers may be events again."""
        while self.read < len(self.hand.actions):
            actions = self.hand.actions[self.read]
            self.read += 1
            for client in self.honest:
                for message in sent_to(client.peer, actions):
                    client.take(message)
            for worker in self.workers:
                for message in worker.hears(actions):
                    worker.take(message)

    def step(self) -> None:
        rng, hand = self.rng, self.hand
        choice = rng.random()
        if choice < 0.03 and len(self.honest) < 4:
            self.honest.append(Honest(hand, rng, self.several))
        elif choice < 0.05 and len(self.workers) < 3:
            self.workers.append(Working(hand, rng, self.peers))
        elif choice < 0.07 and len(self.hostile) < 3:
            peer = hand.peer()
            self.hostile.append(peer)
            hand.say(peer, Hello(VERSION, TOKEN, "hostile"))
        elif choice < 0.45 and self.honest:
            rng.choice(self.honest).act()
        elif choice < 0.75 and self.workers:
            rng.choice(self.workers).act()
        elif choice < 0.85 and hand.pending:
            hand.feed(hand.ready(hand.pending.pop(rng.randrange(len(hand.pending)))))
        elif choice < 0.97 and self.hostile:
            self.attack()
        elif choice < 0.975 and self.workers:
            self.workers.pop(rng.randrange(len(self.workers))).die()
        elif choice < 0.978 and self.honest:
            self.honest.pop(rng.randrange(len(self.honest))).leave()
        else:
            hand.pass_time(rng.choice([0.1, 0.1, 0.1, 3.0]))
        self.deliver()
        self.seen = [e.message for e in hand.events[-200:] if isinstance(e, MessageCame)]

    def attack(self) -> None:
        peer = self.rng.choice(self.hostile)
        message, payload = hostile_message(self.rng, self.seen)
        if isinstance(message, WorkerHello):
            return  # it has the token, and a worker is believed
        self.hand.say(peer, message, payload)
        if peer not in self.hand.state.peers:
            self.hostile.remove(peer)

    def finish(self) -> None:
        """No more attacks, deaths or requests: everybody must get what is owed."""
        if not self.workers:
            self.workers.append(Working(self.hand, self.rng, self.peers))
        for _ in range(5000):
            self.deliver()
            if self.hand.pending:
                self.hand.feed(self.hand.ready(self.hand.pending.pop()))
                continue
            busy = [w for w in self.workers if w.calls or w.others]
            if not busy:
                break
            busy[0].act()
        self.hand.pass_time(10.0)
        self.deliver()


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_a_random_life(seed, several):
    world = World(seed, several)
    for _ in range(400):
        world.step()
    world.finish()
    for client in world.honest:
        assert client.content, f"session {client.number} waits: {client.session}"
    again = Machine(world.hand.settings, TOKEN, "gt worker --host here -p 1")
    assert [again.handle(e) for e in world.hand.events] == world.hand.actions


def test_a_long_siege():
    """Many hostile messages beside one honest session, which must not notice."""
    world = World(10_000)
    world.workers.append(Working(world.hand, world.rng))
    world.honest.append(Honest(world.hand, world.rng))
    world.hand.looking = False
    for n in range(6000):
        while len(world.hostile) < 3:
            peer = world.hand.peer()
            world.hostile.append(peer)
            world.hand.say(peer, Hello(VERSION, TOKEN, "hostile"))
        world.attack()
        if n % 6 == 0:
            world.honest[0].act()
        while any(w.calls or w.others for w in world.workers):
            world.workers[0].act()
            world.deliver()
        while world.hand.pending:
            asked = world.hand.pending.pop(0)
            world.hand.feed(world.hand.ready(asked))
        world.deliver()
        world.seen = [e.message for e in world.hand.events[-200:] if isinstance(e, MessageCame)]
        if n % 50 == 0:
            world.hand.machine.invariants()
    world.finish()
    world.hand.machine.invariants()
    (client,) = world.honest
    assert client.content
    assert client.done > 100


def test_stray_results_of_checks_do_no_harm():
    hand = Hand()
    assert hand.feed(ProgramChecked(PROGRAMS[0].hash(), None, "never asked for")) == []
