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

from gt.dispatcher.events import MessageCame
from gt.dispatcher.machine import Machine
from gt.transport import messages as msg

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
        elif choice < 0.65 and self.tensors and self.seq - self.done < msg.WINDOW:
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
            self.say(msg.Cancel(0, request))
        elif self.several and self.rng.random() < 0.5 and not self.asking:
            self.requests += 1
            self.asking.add(self.requests)
            axes = self.rng.choice([(("x", 2),), (("x", 2),), (("x", 3),), (("x", 1),), (("y", 2), ("x", 1))])
            self.say(msg.SetMesh(self.requests, self.rng.choice(["", "", "other"]), axes, (), self.rng.random() < 0.5))
        elif len(self.asking) < 4:
            self.requests += 1
            self.asking.add(self.requests)
            self.say(self.rng.choice([self.question, self.publication, self.taking])(self.requests))

    def question(self, request: int) -> msg.Message:
        return self.rng.choice([msg.GetStats(request), msg.GetKept(request, True), msg.Drop(request, "s", True)])

    def publication(self, request: int) -> msg.Message:
        ids = self.rng.sample(list(self.tensors), min(2, len(self.tensors)))
        return msg.Keep(request, "s", "form", msg.pack_ids(ids), self.done, True)

    def taking(self, request: int) -> msg.Message:
        self.next_id += 10
        return msg.Take(request, "s", self.next_id - 10, True, more=self.rng.random() < 0.5)

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
        call = self.make_call(what, [i], (0.5,) * len(what.scalars), frees=msg.pack_ids(frees), acked=self.done)
        self.tensors.update(dict.fromkeys(range(first, self.next_id), n))
        self.say(call)

    def take(self, message) -> None:
        assert not isinstance(message, msg.Rejected | msg.Refused), message
        if isinstance(message, msg.CallDone):
            assert message.seq > self.done
            self.done = message.seq
        elif isinstance(message, msg.CallFailed):
            assert self.done < message.seq
            assert message.root <= message.seq
        elif isinstance(message, msg.ChunkAck):
            del self.sending[message.key]
        elif isinstance(message, msg.Sharded):
            self.parts[message.request] = len(message.parts)
        elif isinstance(message, msg.MeshSet):
            self.asking.discard(message.request)
            self.meshed = bool(self.session.meshes.get(""))
        elif isinstance(message, msg.Chunk):
            self.parts[message.key] = self.parts.get(message.key, 1) - 1
            if not self.parts[message.key]:
                self.fetching.discard(message.key)
            if self.rng.random() < 0.5:
                self.say(msg.ChunkAck(0, message.key, False, message.part))
        elif isinstance(message, msg.FetchFailed):
            self.fetching.discard(message.request)
        elif isinstance(message, msg.Need):
            self.define(BY_HASH[message.program])
        elif isinstance(message, msg.Stats):
            self.asking.discard(message.request)
        elif isinstance(message, msg.Kept):
            assert message.request in self.asking
            self.asking.discard(message.request)
            for thing in message.things if message.first else ():
                self.tensors.update((message.first + k, shape[0]) for k, (shape, _) in enumerate(thing.specs))

    @property
    def content(self) -> bool:
        return self.done == self.seq and not (self.sending or self.fetching or self.asking)


class Working(FakeWorker):
    """Answers what it was told, in an order that the rules allow."""

    def __init__(self, hand: Hand, rng: random.Random, peers: str = "") -> None:
        self.rng = rng
        self.calls: deque[msg.Call] = deque()
        self.others: list = []
        self.known: set[bytes] = set()
        self.away: dict[int, set[int]] = {}  # session -> tensors that are not on the device for sure
        super().__init__(hand, rng.choice([0, 0, 100, 300]), peers)

    def take(self, message) -> None:
        if isinstance(message, msg.Call):
            assert message.program in self.known, "a call before its program"
            away = self.away.get(message.session, set())
            assert message.refused or away.isdisjoint(msg.unpack_ids(message.inputs)), "a call before its inputs"
            self.calls.append(message)
        elif isinstance(message, msg.Define):
            self.known.add(message.program.hash())
        elif isinstance(message, msg.Forget):
            self.known.discard(message.program)
        elif isinstance(message, msg.CloseSession):
            self.calls = deque(c for c in self.calls if c.session != message.session)
            self.others = [m for m in self.others if getattr(m, "session", 0) != message.session]
            self.away.pop(message.session, None)
        elif isinstance(message, msg.Chunk | msg.Fetch | msg.GetStats | msg.Copy | msg.Spill | msg.Return):
            self.others.append(message)
            if isinstance(message, msg.Spill):
                self.away.setdefault(message.session, set()).update(msg.unpack_ids(message.ids))

    def act(self) -> None:
        if self.calls and (not self.others or self.rng.random() < 0.6):
            call = self.calls.popleft()
            if call.refused or self.rng.random() < 0.15:
                error = call.refused or msg.Failure("WorkerError", "bad luck")
                self.say(msg.CallFailed(call.session, call.seq, call.seq, error))
            else:
                self.say(msg.CallDone(call.session, call.seq, self.rng.randrange(30_000)))
        elif self.others:
            message = self.others.pop(self.rng.randrange(len(self.others)))
            if isinstance(message, msg.Chunk):
                self.hand.say(self.control, msg.ChunkAck(message.session, message.key, True))
            elif isinstance(message, msg.Copy):
                error = msg.Failure("OutOfMemory", "no") if self.rng.random() < 0.2 else None
                self.say(msg.Copied(message.request, error))
            elif isinstance(message, msg.GetStats):
                self.say(msg.Stats(message.request, {"calls": 1}))
            elif isinstance(message, msg.Spill):
                self.spill(message)
            elif isinstance(message, msg.Return):
                self.away[message.session].difference_update(msg.unpack_ids(message.ids))
                self.say(msg.Returned(message.session, message.ids))
            elif self.rng.random() < 0.2:
                self.say(msg.FetchFailed(message.session, message.request, msg.Failure("WorkerError", "no")))
            else:
                self.say(msg.Chunk(message.session, message.request, 0, 4, (1,), "float32"), bytes(4))

    def spill(self, message: msg.Spill) -> None:
        ids = msg.unpack_ids(message.ids)
        kept = [i for i in ids if self.rng.random() < 0.1]
        why = self.rng.choice(["", "the disk is full"]) if kept else ""
        self.away[message.session].difference_update(kept)
        self.say(msg.Spilled(message.session, message.ids, msg.pack_ids(kept), why))


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
    payload = bytes(rng.choice([0, 4, 12, 32, 33])) if isinstance(message, msg.Chunk) else None
    try:
        return msg.decode(msg.encode(message, payload))  # what the wire lets through
    except (msg.BadMessage, OverflowError, TypeError):
        return msg.GetStats(1), None


def mutated(rng: random.Random, value):
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice([0, 1, -1, value + 1, value - 1, rng.randrange(1, 40), 2**63 - 1, 2**63, 2**60, -(2**63)])
    if isinstance(value, bytes):
        ids = msg.unpack_ids(value[: len(value) // 8 * 8])
        some = [mutated_id(rng, i) for i in ids] + [rng.randrange(1, 60)] * rng.randrange(3)
        return rng.choice([msg.pack_ids(some), value + b"x", b"", rng.randbytes(16)])
    if isinstance(value, str):
        return rng.choice(["", "float64", "int8", "?", "x" * 300])
    if isinstance(value, tuple):
        return rng.choice([(), (1,), (2**60,), (-1,), (0.5,), (True,), (3, 3), value + value])
    return value


def mutated_id(rng: random.Random, i: int) -> int:
    return i if rng.random() < 0.7 else rng.choice([0, -1, i + 1, 2**62])


MADE_UP = [
    msg.Hello(msg.VERSION, TOKEN, "x"), msg.Goodbye(), msg.Define(BROKEN), msg.Define(PROGRAMS[0], True),
    msg.Need(b"x"), msg.GetStats(3), msg.Cancel(0, 1), msg.Fetch(0, 1, 1), msg.Free(0, msg.pack_ids([1, 2])),
    msg.ChunkAck(0, 1, False), msg.ChunkAck(0, 1, True), msg.Chunk(0, 1, 0, 32, (8,), "float32"),
    msg.Call(0, 1, PROGRAMS[0].hash(), msg.pack_ids([1]), (), 5, b"", 0),
    msg.Call(0, 1, b"an unknown one..", b"", (), 1, b"", 0), msg.CallDone(1, 1, 5), msg.Welcome(1, 1, 1),
    msg.CloseSession(1), msg.Rejected("x"), msg.SetMesh(1, "", (("x", 2),)),
    msg.SetMesh(1, "m", (("x", 1), ("y", 2)), (0, 1), True), msg.Chunk(0, 1, 0, 32, (8,), "float32", layout="[8@x]"),
    msg.Fetch(0, 1, 1, layout=True), msg.MeshSet(1, (1,)),
    msg.Sharded(1, "", (("x", 2),), (1, 2), "[]", (8,), "float32"), msg.Peers({1: "x"}),
    msg.Spill(1, msg.pack_ids([1])), msg.Spilled(1, msg.pack_ids([1])), msg.Returned(1, msg.pack_ids([1])),
    msg.WorkerHello(msg.VERSION, "wrong", "link", True), msg.Alive("link"), msg.WorkerWelcome(1, 1), msg.Stats(1, {}),
    msg.Hello(msg.VERSION, TOKEN, "x", "name"), msg.Keep(1, "a", "form", msg.pack_ids([1]), 0),
    msg.Keep(2, "a", "form", b"", 1 << 40), msg.Keep(3, "s", "form", msg.pack_ids([1, 1]), 9, True, ("bob",)),
    msg.Take(4, "a", 50), msg.Take(5, "s", 60, True, "", True), msg.Drop(6, ""), msg.Drop(7, "a"), msg.GetKept(8),
    msg.Drop(9, "s", True), msg.Kept(1), msg.Copied(1), msg.Copy(1, 1, 2, msg.pack_ids([1]), 5),
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
            self.let_in()
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

    def let_in(self) -> None:
        """Another hostile client."""
        self.hostile.append(self.hand.peer())
        name = self.rng.choice(["", "name", "name", "other"])
        self.hand.say(self.hostile[-1], msg.Hello(msg.VERSION, TOKEN, "hostile", name))
        self.hostile = [peer for peer in self.hostile if peer in self.hand.state.peers]

    def attack(self) -> None:
        peer = self.rng.choice(self.hostile)
        message, payload = hostile_message(self.rng, self.seen)
        if isinstance(message, msg.WorkerHello):
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
            if not busy and not self.hand.state.memory_queue:
                break
            if busy:
                busy[0].act()
            else:
                self.hand.pass_time(1.0)  # a turn with memory ends
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
            world.let_in()
        world.attack()
        if n % 6 == 0:
            world.honest[0].act()
        while any(w.calls or w.others for w in world.workers):
            world.workers[0].act()
            world.deliver()
        while world.hand.pending:
            world.hand.feed(world.hand.ready(world.hand.pending.pop(0)))
        world.deliver()
        world.seen = [e.message for e in world.hand.events[-200:] if isinstance(e, MessageCame)]
        if n % 50 == 0:
            world.hand.machine.invariants()
    world.finish()
    world.hand.machine.invariants()
    (client,) = world.honest
    assert client.content
    assert client.done > 100
