"""A hundred thousand messages that are wrong, to a live server with a user on it. Nothing comes of them."""

from __future__ import annotations

import random
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from gt.server import users
from gt.transport import connect
from gt.transport import messages as msg
from gt.transport.identity import Key, url

from .frames import Siege
from .guesses import Guesser, Victim
from .hostile import OVERSIZED, USER, Attacker, RawPeer, ZmqPeer, borrowing_program, garbage
from .running import DEADLINE_S, Process, Serve, Start, answer, children, greet
from .test_identity import Lab
from .usage import usage_of

pytestmark = pytest.mark.processes
PEERS = 6
BATCH = 25
FALSE = 20_000  #: Messages of a flood; mutated frames are more, in one process.


def where(wire: str, folder: Path) -> list[str]:
    return [] if wire == "tcp" else ["--address", f"ipc://{folder}/s"]


def warm_up(address: str, key: Key | None) -> None:
    """Have the worker load what it may need: meanwhile nobody's calls would run."""
    p, scalars = borrowing_program()
    with closing(connect(address, key)) as channel:
        channel.send(msg.Hello(msg.VERSION, "", "first"))
        channel.send(msg.Define(p))
        channel.send(msg.Call(0, 1, p.hash(), b"", scalars, 1, b"", 0))
        while not isinstance(answer(channel), (msg.CallDone, msg.CallFailed)):
            pass


@pytest.mark.timeout(300)
@pytest.mark.parametrize("wire", ["tcp", "ipc", "keys"])
def test_a_flood_of_false_messages(
    serve: Serve, start: Start, tmp_path: Path, started: list[Process], wire: str
) -> None:
    limits = {"GT_CACHE_BYTES": str(8 << 20), "GT_WORKER_MEMORY": str(64 << 20)}
    key: Key | None = None
    if wire == "keys":
        lab = Lab(tmp_path / "lab", started)
        server, key = lab.serve("--workers", "1", **limits), lab.key
        address = server.address
    else:
        server, address = serve(*where(wire, tmp_path), "--workers", "1", **limits)
    pids = [server.pid, *children(server.pid)]
    assert len(pids) == 2
    warm_up(address, key)
    stop = tmp_path / "stop"
    user = start("-c", USER, address if key is None else url(address, key), str(stop), "1")
    victim = int(user.line())

    rng = random.Random(20)
    new = (lambda: RawPeer(address)) if key is None else (lambda: ZmqPeer(address, key))
    warm = FALSE // 2  # by then the server has loaded what it only needs for some of them
    before = 0
    with ExitStack() as ending:
        attackers = [ending.enter_context(closing(Attacker(new, rng, victim))) for _ in range(PEERS)]
        for sent in range(0, FALSE, BATCH):
            attacker = attackers[sent // BATCH % PEERS]
            # Of seven batches four are well-formed messages with wrong contents.
            attacker.attack(BATCH, wrong=sent // BATCH % 7 < 4)
            if key is None and rng.random() < 0.1 and attacker.peer is not None:
                attacker.peer.write(garbage(rng))
                attacker.close()
            if sent == warm:
                before = usage_of(server.pid).rss
        grown = usage_of(server.pid).rss - before
        errors, ran = sum(a.errors for a in attackers), sum(a.ran for a in attackers)

    stop.touch()
    assert int(user.output()) >= 20
    assert [server.pid, *children(server.pid)] == pids
    assert errors > FALSE // 4, "the false messages were not even noticed"
    assert ran > FALSE // 400, "they did not get past the door"
    assert grown < 100 << 20
    server.stop()


def test_guessed_ids_are_answered_like_missing_ones(tmp_path: Path, started: list[Process]) -> None:
    """As many as there is time for here; `python -m tests.processes.adversary` guesses more."""
    lab = Lab(tmp_path / "lab", started)
    server = lab.serve("--workers", "1")
    victim = Victim(server.address, lab.key)
    with closing(Guesser(server.address, users.add(lab.home, "eve"), victim, random.Random(3))) as guesser:
        guesser.run(1000)
    assert len(guesser.guesses) == 11, guesser.guesses
    victim.unharmed()


def test_mutated_frames() -> None:
    """As many as there is time for here; `python -m tests.processes.frames` sends more."""
    siege = Siege(7)
    siege.run(200_000)
    assert siege.seen["not a message"] > 50_000
    assert siege.seen["rejected"] > 10_000
    assert siege.seen["done"] > 100, "they did not get past the door"


@pytest.mark.parametrize("wire", ["tcp", "ipc"])
def test_messages_that_are_too_large_or_of_another_version(serve: Serve, tmp_path: Path, wire: str) -> None:
    server, address = serve(*where(wire, tmp_path))

    newer = msg.VERSION + 1
    for hello in (msg.Hello(newer, "", "new"), msg.Hello(0, "", "old"), msg.WorkerHello(newer, "", "x", True)):
        with closing(connect(address)) as channel:
            channel.send(hello)
            refused = answer(channel)
            assert isinstance(refused, msg.Refused)
            assert f"speaks version {msg.VERSION} of GT's protocol, the other side {hello.version}" in refused.text

    with closing(RawPeer(address)) as new:
        new.send(msg.encode(msg.Hello(msg.VERSION, "", "test")))
        assert isinstance((new.receive(DEADLINE_S) or [None])[0], msg.Welcome)
        reasons = [f"a payload of at most {msg.CHUNK} bytes", "not a message"]
        for frames, reason in zip(OVERSIZED, reasons, strict=True):
            new.send(frames)
            (rejected,) = new.receive(DEADLINE_S) or [None]
            assert isinstance(rejected, msg.Rejected)
            assert reason in rejected.text
        # What is larger than any frame is not even read: the connection ends.
        new.send([bytes(msg.MAX_FRAME + 1)])
        assert new.receive(DEADLINE_S) is None

    assert isinstance(greet(address), msg.Welcome)
    server.stop()
