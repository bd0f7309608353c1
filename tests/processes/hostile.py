"""Hostile peers: connections that say whatever they like, and messages that nobody should believe."""

from __future__ import annotations

import random
import re
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
import zmq

from gt import dtypes
from gt.errors import ProgramError
from gt.ops import TABLE
from gt.ops.check import check
from gt.program import SCALARS, Instruction, Program, as_tuple, input_spec
from gt.transport import messages as msg
from gt.transport.curve import use_key
from gt.transport.frames import FrameReader, head_of
from gt.transport.identity import Key
from gt.transport.shared import SLOTS, Ring, make_ring

from .running import DEADLINE_S

Frames = list[bytes]
SAMPLES = {name: op.samples(np.random.default_rng(0)) for name, op in TABLE.items()}
#: No client may send this; that it is rejected shows that all before was read.
ECHO = msg.encode(msg.Welcome(0, 0, 0))


class ZmqPeer:
    """A raw ZeroMQ connection, with a key where one is needed."""

    def __init__(self, address: str, key: Key | None = None) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.sndhwm = self.socket.rcvhwm = 0
        self.socket.setsockopt(zmq.RECONNECT_IVL, -1)
        if key is not None:
            use_key(self.socket, key)
        self.monitor = self.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self.socket.connect(f"tcp://{address}")

    def send(self, frames: Frames) -> None:
        self.socket.send_multipart(frames)

    def receive(self, timeout_s: float) -> list[Any] | None:
        """What came; None once the connection is over."""
        poller = zmq.Poller()
        poller.register(self.socket, zmq.POLLIN)
        poller.register(self.monitor, zmq.POLLIN)
        found: list[Any] = []
        while not found:
            ready = dict(poller.poll(timeout_s * 1000))
            if self.socket in ready:
                frames = self.socket.recv_multipart()
                if frames[0]:  # else it is a probe
                    found += [m for m, _ in msg.decode_all(frames)]
            elif ready:
                return None
            else:
                break
        return found

    def close(self) -> None:
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(0)
        self.context.term()


class RawPeer:
    """A raw socket."""

    def __init__(self, address: str) -> None:
        if address.startswith("ipc://"):
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.connect(address.removeprefix("ipc://"))
        else:
            host, _, port = address.rpartition(":")
            self.socket = socket.create_connection((host, int(port)))
        self.socket.settimeout(30)
        self.stream = FrameReader()

    def send(self, frames: Frames) -> None:
        self.write(head_of([*map(len, frames)]) + b"".join(frames))

    def write(self, data: bytes) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(data)

    def receive(self, timeout_s: float) -> list[Any] | None:
        self.socket.settimeout(max(timeout_s, 0.001))
        try:
            data = self.socket.recv(1 << 20)
        except TimeoutError:
            return []
        except OSError:
            return None
        finally:
            self.socket.settimeout(30)
        if not data:
            return None
        return [m for frames in self.stream.feed(data) for m, _ in msg.decode_all(frames)]

    def close(self) -> None:
        self.socket.close()


def program(rng: random.Random) -> Program:
    """A small program that is right."""
    n = rng.randrange(1, 5)
    if rng.random() < 0.5:
        add = Instruction("add", (0, ~0), {})
        return Program((((n,), "float32"),), "f", (add,), (1,), (0,) * rng.randrange(2), ((0, 0),) * rng.randrange(2))
    return Program((), "f", (Instruction("full", (~0,), {"shape": [n], "dtype": "float32"}),), (0,), (), ())


def any_program(rng: random.Random) -> tuple[Program, tuple[Any, ...]]:
    """Some op on tensors that hold one number each, and the call's scalars. Now and then it even fits."""
    name = rng.choice(list(SAMPLES))
    operands, attrs = rng.choice(SAMPLES[name])
    code: list[Instruction] = []
    args: list[int] = []
    scalars: list[Any] = []
    for x in operands:
        if isinstance(x, np.ndarray):
            shape = [n if rng.random() < 0.95 else rng.randrange(5) for n in x.shape]
            filled = {"shape": shape, "dtype": dtypes.dtype(x.dtype).name}
            args.append(len(code))
            code.append(Instruction("full", (~len(scalars),), filled))
            x = rng.choice([0, 0, 1, 1, 2, -1, 99])
        else:
            args.append(~len(scalars))
            x = x if rng.random() < 0.8 or type(x) is not int else rng.choice([-1, 7, 1 << 62])
        scalars.append(x)
    attrs = dict(attrs)
    if attrs and rng.random() < 0.4:
        attrs[rng.choice(list(attrs))] = rng.choice([None, -1, 0, 5, "x", 1.5, [], [0], [0, 0], [-1, 99], True, [[1]]])
    kinds = "".join({float: "f", int: "i", bool: "b", bytes: "d"}[type(x)] for x in scalars)
    specs = [input_spec(code[a].attrs["shape"], code[a].attrs["dtype"]) if a >= 0 else SCALARS[kinds[~a]] for a in args]
    results = 1
    with suppress(Exception):
        results = len(as_tuple(TABLE[name].infer(*specs, **attrs)))
    code.append(Instruction(name, tuple(args), attrs, results))
    outputs = tuple(range(len(code) - 1, len(code) - 1 + results))
    return Program((), kinds, tuple(code), outputs, (), ()), tuple(scalars)


def wrong_program(rng: random.Random) -> Program:
    """One that is wrong in some way, or too large, or odd."""
    p = program(rng)
    ins = p.code[0]
    any_int = lambda: rng.choice([-1, 0, 1, 2, 3, 7, 1 << 20, -(1 << 31), (1 << 63) - 1])  # noqa: E731
    attrs: Any = rng.choice([
        {"shape": [1 << 60], "dtype": "float32"}, {"shape": [1 << 30, 1 << 30], "dtype": "float32"},
        {"shape": [1 << 40], "dtype": "float64"}, {"shape": [-1], "dtype": "float32"},
        {"shape": "x" * 10_000, "dtype": 3}, {"shape": [1] * 1000, "dtype": "float32"}, {"dim": [[[[]]]]}, {},
        {"shape": [2], "dtype": "float33"}, {"shape": None, "dtype": None}, {"shape": {"a": 1.5}, "dtype": "float32"},
        {"x" * rng.randrange(5000): rng.random()}, {"shape": [2.5], "dtype": "float32"},
        {"shape": [True], "dtype": "bool"},
    ])  # fmt: skip
    op = rng.choice(
        ["add", "full", "matmul", "gather", "slice", "sgd", "data", "reshape", "sum", "nop", "", "__import__"]
    )
    some = lambda: tuple(any_int() for _ in range(rng.randrange(4)))  # noqa: E731
    changes: list[Callable[[], dict[str, Any]]] = [
        lambda: {"code": (Instruction(op, ins.args, attrs),)},
        lambda: {"code": (Instruction(ins.op, (any_int(), any_int()), ins.attrs),)},
        lambda: {"code": (Instruction(ins.op, ins.args, ins.attrs, any_int()),)},
        lambda: {"outputs": some()},
        lambda: {"donate": (any_int(), any_int()), "updates": ((any_int(), any_int()),)},
        lambda: {"scalars": rng.choice(["", "q", "ff", "fibd" * 100, "\0"])},
        lambda: {"inputs": ((some(), rng.choice(["float32", "float99", ""])),)},
        lambda: {"code": p.code * rng.randrange(2, 200)},
    ]
    if rng.randrange(9) == 0:
        return Program((), "", (Instruction(op, (), attrs),), (0,), (), ())
    return msgspec.structs.replace(p, **rng.choice(changes)())


def borrowing_program() -> tuple[Program, tuple[Any, ...]]:
    """One that has a worker without torch fetch it first, which takes seconds."""
    rng = random.Random(0)
    while True:
        p, scalars = any_program(rng)
        op = TABLE[p.code[-1].op]
        if op.compose is None and not op.kernels.keys() & {"numpy", "array"} and runs(p):
            return p, scalars


def runs(p: Program) -> bool:
    """Whether the server will take it for a program."""
    try:
        check(p)
    except ProgramError:
        return False
    return True


class Liar:
    """Makes messages. It knows the number of a session that is not its own, and enough of the protocol to
    get past the door: much of what it says is right but for one thing."""

    def __init__(self, rng: random.Random, victim: int) -> None:
        self.rng = rng
        self.victim = victim
        self.good: dict[bytes, tuple[Program, tuple[Any, ...]]] = {}  #: With a call's scalars.
        self.ids: list[int] = []  #: Tensors of its own, as far as it knows.
        self.seq = 0
        self.next_id = 1
        self.ring: Ring | None = None
        self.done = self.ran = 0  #: Calls that the server ran for it; since it was last asked.
        self.stuck = False  #: It was asked for what it does not have: nothing more will be heard of its calls.

    def entrance(self) -> list[Frames]:
        """What a good client would say first."""
        said: list[Any] = [msg.Hello(msg.VERSION, "", "hostile")]
        right = [(program(self.rng), (1.0,)) for _ in range(3)]
        for p, scalars in [*right, *(each for _ in range(20) if runs((each := any_program(self.rng))[0]))]:
            self.good[p.hash()] = p, scalars
            said.append(msg.Define(p))
        return [msg.encode(m) for m in said]

    def heard(self, message: Any) -> None:
        """Learn from the answers."""
        if isinstance(message, msg.CallDone):
            self.ran += message.seq - self.done
            self.done = message.seq
        elif isinstance(message, msg.Need):
            self.stuck = True
        elif isinstance(message, msg.Rejected) and (found := re.search("the (next|last) .* is (\\d+)$", message.text)):
            if found[1] == "next":
                self.seq = int(found[2]) - 1
            else:
                self.next_id = max(self.next_id, int(found[2]))
                self.stuck = self.next_id > 1 << 60  # no room for more

    def id(self) -> int:
        rng = self.rng
        known = rng.choice(self.ids) if self.ids and rng.random() < 0.5 else self.next_id
        return rng.choice([0, 1, 2, 3, known, known, known, rng.getrandbits(8), rng.getrandbits(62), -1])

    def some_ids(self) -> bytes:
        packed = msg.pack_ids(self.id() for _ in range(self.rng.randrange(4)))
        return packed if self.rng.random() < 0.9 else packed + b"odd"

    def new_id(self) -> int:
        self.next_id += 1
        return self.next_id

    def number(self) -> int:
        rng = self.rng
        return rng.choice([-1, 0, 1, 2, 47, 48, 1 << 20, 1 << 40, (1 << 63) - 1, -(1 << 63), rng.getrandbits(10)])

    def session(self) -> int:
        return self.rng.choice([0, self.victim, self.victim, self.rng.getrandbits(4)])

    def but_for_one(self, right: Any, lies: dict[str, Any]) -> Any:
        """A message in which one field is wrong."""
        name = self.rng.choice(list(lies))
        return msgspec.structs.replace(right, **{name: lies[name]})

    def wrong(self) -> Frames:
        """A well-formed message with something wrong in it, most of the time."""
        message, payload = getattr(self, self.rng.choices(SAYINGS, WEIGHTS)[0])()
        return msg.encode(message, payload)

    def garbled(self) -> Frames:
        """Bytes that were a message once, or never."""
        rng = self.rng
        frames = [bytes(f) for f in self.wrong()]
        head = bytearray(frames[0])
        match rng.randrange(6):
            case 0:
                for _ in range(rng.randrange(1, 9)):
                    head[rng.randrange(len(head))] ^= 1 << rng.randrange(8)
                return [bytes(head), *frames[1:]]
            case 1:
                return [bytes(head[: rng.randrange(len(head))]), *frames[1:]]
            case 2:
                return [rng.randbytes(rng.randrange(1, 60))]
            case 3:
                return frames + [rng.randbytes(rng.randrange(4)) for _ in range(rng.randrange(1, 6))]
            case 4:
                return [b"", *frames]
            case _:
                return [bytes(head) + rng.randbytes(rng.randrange(1, 20)), *frames[1:]]

    # --- what it says ---

    def hello(self) -> Any:
        return self.rng.choice([msg.Hello(msg.VERSION, "", "again"), msg.WorkerHello(msg.VERSION, "", "x", True)]), None

    def define(self) -> Any:
        p = any_program(self.rng)[0] if self.rng.random() < 0.5 else wrong_program(self.rng)
        return msg.Define(p, self.rng.random() < 0.5), None

    def call(self) -> Any:
        rng = self.rng
        name = rng.choice(list(self.good)) if self.good else rng.randbytes(16)
        p, scalars = self.good.get(name) or (program(rng), (1.0,))
        inputs = msg.pack_ids([rng.choice(self.ids)] * len(p.inputs)) if self.ids else b""
        right = msg.Call(0, self.seq + 1, name, inputs, scalars, self.new_id(), b"", 0)
        self.next_id += len(p.outputs)
        if rng.random() < 0.3:
            self.seq += 1
            self.ids = [*self.ids[-5:], right.outputs]
            return right, None
        lies: dict[str, Any] = {
            "session": self.session(), "seq": self.number(), "inputs": self.some_ids(), "outputs": self.id(),
            "program": rng.randbytes(16 if rng.random() < 0.02 else rng.choice([0, 15, 17])), "frees": self.some_ids(),
            "scalars": rng.choice([(), (1,), (True,), (b"x" * 5000,), (float("nan"), 2), (1 << 63,), (1.0,) * 500]),
            "acked": self.number(), "refused": msg.Failure("OutOfMemory", "so I say"), "root": self.id(),
        }  # fmt: skip
        return self.but_for_one(right, lies), None

    def free(self) -> Any:
        return msg.Free(self.session(), self.some_ids()), None

    def chunk(self) -> Any:
        rng = self.rng
        n = rng.randrange(1, 5)
        right = msg.Chunk(0, self.new_id(), 0, 4 * n, (n,), "float32")
        if rng.random() < 0.3:
            self.ids = [*self.ids[-5:], right.key]
            return right, rng.randbytes(4 * n)
        lies: dict[str, Any] = {
            "session": self.session(), "key": self.id(), "offset": self.number(), "total": self.number(),
            "shape": rng.choice([(n + 1,), (), (-1,), (1 << 60,), (1 << 31, 1 << 31), (0,), (1,) * 100]),
            "dtype": rng.choice(["int8", "float64", "float99", ""]),
        }  # fmt: skip
        lie = self.but_for_one(right, lies)
        if rng.random() < 0.01:  # in a ring, or so it says; without one it has begun what it will not end
            self.stuck = True
            return msgspec.structs.replace(lie, slot=rng.choice([0, 1, SLOTS - 1, SLOTS, 1 << 40])), None
        return lie, rng.randbytes(4 * n if rng.random() < 0.9 else 0)

    def share(self) -> Any:
        """A ring of its own, or something else; and whose it is."""
        rng = self.rng
        if self.ring is None or rng.random() < 0.1:
            self.ring = make_ring(1)
        assert self.ring is not None
        right = msg.Share(0, rng.randrange(3), self.ring.fd, self.ring.name)
        lies: dict[str, Any] = {
            "fd": rng.choice([0, 1, 2, 3, 4, 5, -1, 1 << 40]), "name": rng.choice(["", "gt-", "gt-" + "0" * 32, "/"]),
            "pid": self.number(), "session": self.session(), "ring": self.number(),
        }  # fmt: skip
        return right if rng.random() < 0.3 else self.but_for_one(right, lies), None

    def fetch(self) -> Any:
        request = self.number() if self.rng.random() < 0.5 else self.new_id()
        slots = self.rng.choice([(), (), (0,), (0, 1, 2), (SLOTS,), (-1,), (1 << 40,), (7,) * 300])
        return msg.Fetch(self.session(), request, self.id(), self.rng.randrange(3), slots), None

    def small_talk(self) -> Any:
        rng = self.rng
        return rng.choice([
            msg.Cancel(self.session(), self.number()), msg.ChunkAck(self.session(), self.number(), rng.random() < 0.5),
            msg.GetStats(self.number()),
        ]), None  # fmt: skip

    def keep(self) -> Any:
        rng = self.rng
        name, shared = rng.choice(["a", "b", "", "x" * 200, "\0"]), rng.random() < 0.5
        readers = rng.choice([(), (), ("bob",), ("x",) * 300])
        return rng.choice([
            msg.Keep(self.number(), name, "form", self.some_ids(), self.number(), shared, readers),
            msg.Take(self.number(), name, self.number(), shared, rng.choice(["", "ada"]), rng.random() < 0.5),
            msg.Drop(self.number(), name, shared), msg.GetKept(self.number(), shared),
        ]), None  # fmt: skip

    def as_another(self) -> Any:
        """What only a worker or the dispatcher may say."""
        rng, failure = self.rng, msg.Failure("LostError", "so I say")
        return rng.choice([
            msg.CallDone(self.session(), self.number(), self.number()), msg.Need(rng.randbytes(16)),
            msg.Forget(rng.randbytes(16)), msg.CallFailed(self.session(), self.number(), self.number(), failure),
            msg.CloseSession(self.victim), msg.FetchFailed(self.session(), self.number(), failure),
            msg.Stats(self.number(), {"a": [1, {}]}), msg.Refused("no"), msg.Rejected("no"),
            msg.WorkerWelcome(msg.VERSION, 1), msg.Shared(self.session(), self.number(), True),
            msg.Copy(self.session(), self.number(), self.victim, self.some_ids(), self.id()),
            msg.Copied(self.number()), msg.Kept(self.number()),
        ]), None  # fmt: skip


SAYINGS = ["hello", "define", "call", "free", "chunk", "share", "fetch", "keep", "small_talk", "as_another"]
WEIGHTS = [2, 10, 30, 8, 20, 4, 12, 8, 6, 12]
OVERSIZED: list[Frames] = [
    [msg.encode(msg.Chunk(0, 1, 0, msg.CHUNK + 1, (msg.CHUNK + 1,), "int8"))[0], bytes(msg.CHUNK + 1)],
    [bytes(msg.MAX_FRAME)],
]


def garbage(rng: random.Random) -> bytes:
    """Bytes for a stream that are no frames at all."""
    sizes = struct.pack("<II", rng.getrandbits(32), rng.getrandbits(32))
    return rng.choice([sizes, rng.randbytes(40), b"GET / HTTP/1.1\r\n\r\n"])


# --- connections ---------------------------------------------------------------------------------------------------

#: The user beside: a training loop that checks every loss against numpy's.
USER = """
import os, sys
import numpy as np
import zmq
import gt
session = gt.connect(sys.argv[1])
rng = np.random.default_rng(int(sys.argv[3]))
X, w = rng.normal(size=(40, 8)), rng.normal(size=(8, 1))
Y = X @ rng.normal(size=(8, 1))
x, y = gt.from_numpy(X), gt.from_numpy(Y)
p = gt.nn.Parameter(gt.from_numpy(w))
optimizer = gt.optim.SGD([p], lr=0.05)
steps = 0
while steps < 30 or not os.path.exists(sys.argv[2]):
    some = slice(steps % 20, steps % 20 + 20)
    optimizer.zero_grad()
    loss = ((x[some] @ p - y[some]) ** 2).mean()
    loss.backward()
    optimizer.step()
    e = X[some] @ w - Y[some]
    assert abs(loss.item() - (e ** 2).mean()) < 1e-9, (steps, loss.item(), (e ** 2).mean())
    w = w - 0.05 * 2 / 20 * X[some].T @ e
    steps += 1
    if steps == 10:  # now it has its worker: a false worker that joins later will not be given it
        print(session.number, flush=True)
    if steps % 200 == 0:  # from the start again, or there would be nothing left to go wrong
        w = rng.normal(size=(8, 1))
        p.data.copy_(gt.from_numpy(w))
assert np.allclose(p.detach().numpy(), w)
print(steps, flush=True)
"""


class Attacker:
    """One hostile connection after another, until they have sent so much."""

    def __init__(self, connect: Callable[[], Any], rng: random.Random, victim: int) -> None:
        self.connect = connect
        self.rng = rng
        self.victim = victim
        self.peer: Any = None
        self.connections = 0
        self.errors = 0
        self.ran = 0

    def greet(self) -> None:
        """A new connection. Most say hello; some do not even that, or claim to be a worker."""
        self.peer, self.liar = self.connect(), Liar(self.rng, self.victim)
        self.connections += 1
        dice = self.rng.random()
        if dice < 0.9:
            for frames in self.liar.entrance():
                self.peer.send(frames)
        elif dice < 0.95:
            # Two of these are a worker that the server believes in, until it garbles something.
            self.peer.send(msg.encode(msg.WorkerHello(msg.VERSION, "", "fake", self.rng.random() < 0.5)))

    def attack(self, count: int, wrong: bool) -> None:
        if self.peer is None:
            self.greet()
        for _ in range(count):
            self.peer.send(self.liar.wrong() if wrong else self.liar.garbled())
        self.peer.send(ECHO)
        self.listen()
        self.ran += self.liar.ran
        self.liar.ran = 0
        if self.liar.stuck or self.rng.random() < 0.01:
            self.close()

    def listen(self) -> None:
        """Until the server has read everything, or has cut us off."""
        while self.peer is not None:
            came = self.peer.receive(DEADLINE_S)
            assert came != [], "the server does not answer"
            for m in came or ():
                self.errors += isinstance(m, (msg.Refused, msg.Rejected))
                self.liar.heard(m)
            if came is None or any(isinstance(m, msg.Refused) for m in came):
                self.close()
            elif any(isinstance(m, msg.Rejected) and m.text.startswith("Welcome is not allowed") for m in came):
                return

    def close(self) -> None:
        if self.peer is not None:
            self.peer.close()
            self.peer = None
