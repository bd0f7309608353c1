"""A hundred thousand messages that are wrong, to a live server with a user on it. Nothing comes of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from gt.transport import connect
from gt.transport import messages as msg

from .hostile import ECHO, OVERSIZED, Liar, UnixPeer, ZmqPeer, borrowing_program, garbage
from .running import DEADLINE_S, Process, answer, children, greet

pytestmark = pytest.mark.processes
Start = Callable[..., Process]
Serve = Callable[..., tuple[Process, str]]
PEERS = 6
BATCH = 25

#: The user beside: a training loop that checks every loss against numpy's.
USER = """
import os, sys
import numpy as np
import gt
session = gt.connect(sys.argv[1])
rng = np.random.default_rng(1)
X, w = rng.normal(size=(32, 8)), rng.normal(size=(8, 1))
Y = X @ rng.normal(size=(8, 1))
x, y = gt.from_numpy(X), gt.from_numpy(Y)
p = gt.nn.Parameter(gt.from_numpy(w))
optimizer = gt.optim.SGD([p], lr=0.05)
(x @ p).sum().item()  # now it has its worker: a false worker that joins later will not be given it
print(session.number, flush=True)
steps = 0
while steps < 20 or not os.path.exists(sys.argv[2]):
    optimizer.zero_grad()
    loss = ((x @ p - y) ** 2).mean()
    loss.backward()
    optimizer.step()
    e = X @ w - Y
    assert abs(loss.item() - (e ** 2).mean()) < 1e-9, (steps, loss.item(), (e ** 2).mean())
    w = w - 0.05 * 2 / 32 * X.T @ e
    steps += 1
    if steps % 200 == 0:  # from the start again, or there would be nothing left to go wrong
        w = rng.normal(size=(8, 1))
        p.data.copy_(gt.from_numpy(w))
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


def where(wire: str, folder: Path) -> list[str]:
    return [] if wire == "tcp" else ["--address", f"ipc://{folder}/s"]


def warm_up(address: str) -> None:
    """Have the worker load what it may need: meanwhile nobody's calls would run."""
    p, scalars = borrowing_program()
    with closing(connect(address)) as channel:
        channel.send(msg.Hello(msg.VERSION, "", "first"))
        channel.send(msg.Define(p))
        channel.send(msg.Call(0, 1, p.hash(), b"", scalars, 1, b"", 0))
        while not isinstance(answer(channel), (msg.CallDone, msg.CallFailed)):
            pass


def resident_nbytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise AssertionError(f"process {pid} has no memory")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("wire", "count"), [("tcp", 100_000), ("ipc", 20_000)])
def test_a_flood_of_false_messages(serve: Serve, start: Start, tmp_path: Path, wire: str, count: int) -> None:
    limits = {"GT_CACHE_BYTES": str(8 << 20), "GT_WORKER_MEMORY": str(64 << 20)}
    server, address = serve(*where(wire, tmp_path), "--workers", "1", **limits)
    pids = [server.pid, *children(server.pid)]
    assert len(pids) == 2
    warm_up(address)
    stop = tmp_path / "stop"
    user = start("-c", USER, address, str(stop))
    victim = int(user.line())

    rng = random.Random(20)
    new = (lambda: ZmqPeer(address)) if wire == "tcp" else (lambda: UnixPeer(address))
    warm = count // 2  # by then the server has loaded what it only needs for some of them
    before = 0
    with ExitStack() as ending:
        attackers = [ending.enter_context(closing(Attacker(new, rng, victim))) for _ in range(PEERS)]
        for sent in range(0, count, BATCH):
            attacker = attackers[sent // BATCH % PEERS]
            # Of seven batches four are well-formed messages with wrong contents.
            attacker.attack(BATCH, wrong=sent // BATCH % 7 < 4)
            if wire == "ipc" and rng.random() < 0.1 and attacker.peer is not None:
                attacker.peer.write(garbage(rng))
                attacker.close()
            if sent == warm:
                before = resident_nbytes(server.pid)
        grown = resident_nbytes(server.pid) - before
        errors, ran = sum(a.errors for a in attackers), sum(a.ran for a in attackers)

    stop.touch()
    code, steps, said = user.end()
    assert (code, said) == (0, "")
    assert int(steps) >= 20
    assert [server.pid, *children(server.pid)] == pids
    assert errors > count // 4, "the false messages were not even noticed"
    assert ran > count // 400, "they did not get past the door"
    assert grown < 100 << 20
    server.stop()


@pytest.mark.parametrize("wire", ["tcp", "ipc"])
def test_messages_that_are_too_large_or_of_another_version(serve: Serve, tmp_path: Path, wire: str) -> None:
    server, address = serve(*where(wire, tmp_path))

    for hello in (
        msg.Hello(msg.VERSION + 1, "", "new"),
        msg.Hello(0, "", "old"),
        msg.WorkerHello(msg.VERSION + 1, "", "x", True),
    ):
        with closing(connect(address)) as channel:
            channel.send(hello)
            refused = answer(channel)
            assert isinstance(refused, msg.Refused)
            assert f"speaks version {msg.VERSION} of GT's protocol, the other side {hello.version}" in refused.text

    new: Any = ZmqPeer(address) if wire == "tcp" else UnixPeer(address)
    with closing(new):
        new.send(msg.encode(msg.Hello(msg.VERSION, "", "test")))
        assert isinstance(new.receive(DEADLINE_S)[0], msg.Welcome)
        reasons = [f"a payload of at most {msg.CHUNK} bytes", "not a message"]
        for frames, reason in zip(OVERSIZED, reasons, strict=True):
            new.send(frames)
            (rejected,) = new.receive(DEADLINE_S)
            assert isinstance(rejected, msg.Rejected)
            assert reason in rejected.text
        # What is larger than any frame is not even read: the connection ends.
        new.send([bytes(msg.MAX_FRAME + 1)])
        assert new.receive(DEADLINE_S) is None

    assert isinstance(greet(address), msg.Welcome)
    server.stop()
