"""Named sessions with real processes: clients that are killed, come back, and get back what they kept."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import gt
from gt.client.session.connecting import current, disconnect
from gt.errors import ArgumentError, GTError, ServerError, StateError
from gt.server import users
from gt.transport.identity import url

from .running import Process, Serve, Start, until
from .test_identity import Lab

pytestmark = pytest.mark.processes

#: Trains to step 16 from wherever the session is, and prints every loss to the last bit. With dropout, AdamW, a
#: scheduler, a second optimizer, and random batches.
TRAIN = """
import sys
import gt
from gt import nn
address, name, sharded = sys.argv[1], sys.argv[2], sys.argv[3] == "sharded"
gt.connect(address, session=name, mesh={"x": 2} if sharded else None)
gt.manual_seed(1)
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 16))
head = nn.Linear(16, 1)
if sharded:
    gt.shard_(net, {"0.*": {0: "x"}, "3.weight": {1: "x"}})
adam = gt.optim.AdamW(net.parameters(), lr=0.01)
sgd = gt.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)
schedule = gt.optim.lr_scheduler.CosineAnnealingLR(adam, T_max=30)
parts = {"net": net, "head": head, "adam": adam, "sgd": sgd, "schedule": schedule}
step = 0
if "all" in gt.kept():
    saved = gt.kept("all")
    if sharded:
        assert repr(saved["net"]["0.weight"].layout) == "[32@x]", saved["net"]["0.weight"].layout
    for part, state in parts.items():
        state.load_state_dict(saved[part])
    gt.set_rng_state(saved["random"])
    step = saved["step"]
    print("back at", step, flush=True)
while step < 16:
    x = gt.randn(16, 8)
    y = x.square().sum(dim=1, keepdim=True)
    loss = (head(net(x)) - y).square().mean()
    adam.zero_grad(), sgd.zero_grad()
    loss.backward()
    adam.step(), sgd.step(), schedule.step()
    step += 1
    gt.keep("all", {**{part: state.state_dict() for part, state in parts.items()}, "step": step,
                    "random": gt.get_rng_state()})
    print(step, loss.item().hex(), flush=True)
"""


@pytest.mark.parametrize("form", ["sharded", "alone"])
def test_training_goes_on_after_kill_9(serve: Serve, start: Start, form: str) -> None:
    """Must be the same to the last bit, whenever the client was killed."""
    _, address = serve("--workers", "2")
    whole = start("-c", TRAIN, address, "straight", form)
    expected = dict(line.split() for line in iter(whole.line, ""))
    assert whole.end() == (0, "", "")
    assert [*map(int, expected)] == list(range(1, 17))
    found: dict[str, str] = {}
    for stops in (4, 9, None):
        client = start("-c", TRAIN, address, "killed", form)
        if found:
            first = client.line()
            assert first.startswith("back at ")
            assert int(first.split()[2]) >= max(map(int, found)), "what gt.keep had returned for was lost"
        alive = stops is not None
        for line in iter(client.line, ""):  # also what it has printed before it was killed
            step, loss = line.split()
            found[step] = loss
            if alive and int(step) >= (stops or 0):
                client.signal(signal.SIGKILL)
                alive = False
        assert client.end()[0] == (0 if stops is None else -signal.SIGKILL)
    missing = expected.keys() - found.keys()  # a step may have been kept, and its client killed before it said so
    assert len(missing) <= 2
    assert found == {step: loss for step, loss in expected.items() if step not in missing}


@contextmanager
def client(address: str, **arguments: str) -> Iterator[None]:
    """A client in this process, for the block."""
    gt.connect(address, **arguments)
    try:
        yield
    finally:
        disconnect()


@pytest.mark.usefixtures("own_settings")
def test_as_a_stranger_would(serve: Serve, start: Start) -> None:
    """Cases that a newcomer meets with names of sessions and things that are kept."""
    _, address = serve("--workers", "1")
    with client(address), pytest.raises(StateError, match=r"no name; connect with gt.connect\(address, session="):
        gt.keep("x", gt.ones(2))
    for name in ("resnet/lr=1e-3 é \"quoted\" 'too'", "\N{SNOWMAN}" * 100):
        with client(address, session=name):
            gt.keep(name, gt.arange(3))
        with client(address, session=name):
            assert gt.kept() == {name: "i64[3]"}
    for name in ("two\nlines", "\x1b[31m", "x" * 101):
        with pytest.raises(ServerError, match="1 to 100 printable characters"):
            gt.connect(address, session=name)
    with pytest.raises(ArgumentError, match="must be a str, got 3"):
        gt.connect(address, session=3)  # type: ignore[arg-type]

    with client(address, session="s"):
        gt.keep("number", 3)
        gt.keep("mixed", {"a": [1.5, None, True, "text"], 7: (gt.ones(2), np.arange(2)), "inf": float("inf")})
        assert gt.kept("number") == 3
        mixed = gt.kept("mixed")
        assert mixed["a"] == [1.5, None, True, "text"]
        assert mixed["inf"] == float("inf")
        assert mixed[7][0].tolist() == [1.0, 1.0]
        np.testing.assert_array_equal(mixed[7][1], np.arange(2))
        with pytest.raises(ArgumentError, match=r"keep: net is a Linear; keep its state_dict\(\)"):
            gt.keep("mixed", {"net": gt.nn.Linear(2, 2)})
        with pytest.raises(ArgumentError, match="keep: the object is a object; expected tensors, dicts"):
            gt.keep("mixed", object())
        assert gt.kept("mixed")["a"] == mixed["a"], "what could not be kept has replaced what was"
        with pytest.raises(ArgumentError, match="nothing is kept as 'nobody'"):
            gt.kept("nobody")
        gt.drop("number")
        assert list(gt.kept()) == ["mixed"]

    with client(address, session="s"):
        again = start("-c", "import sys, gt; gt.connect(sys.argv[1], session='s'); print(list(gt.kept()))", address)
        assert again.line() == "['mixed']"
        with pytest.raises(ServerError, match="session 's' was opened by another client"):
            (gt.ones(2) + 1).numpy()
        with pytest.raises(ServerError, match="was opened by another client"):
            gt.keep("mixed", 4)
        assert again.end()[0] == 0


@pytest.mark.usefixtures("own_settings")
def test_a_lease_ends_without_a_client_only(serve: Serve) -> None:
    _, address = serve("--workers", "1", "--lease", "0.3")
    with client(address, session="brief"):
        gt.keep("x", gt.ones(2))
    with client(address, session="other"):
        gt.keep("y", gt.ones(2))
        # Its own session and what that keeps are left.
        until(lambda: current().stats()["dispatcher"]["sessions"] == 2, "the end of the lease")
        assert gt.kept("y").tolist() == [1, 1]
    with client(address, session="brief"):
        assert gt.kept() == {}


@pytest.mark.usefixtures("own_settings")
def test_a_server_that_was_started_again_has_nothing(serve: Serve) -> None:
    server, address = serve("--workers", "1")
    gt.connect(address, session="s")
    gt.keep("x", gt.ones(2))
    server.stop()
    with pytest.raises(GTError):
        gt.keep("x", gt.ones(3))
    serve("--workers", "1", "-p", address.rpartition(":")[2])
    with client(address, session="s"):
        assert gt.kept() == {}
        with pytest.raises(ArgumentError, match="nothing is kept as 'x' in this session"):
            gt.kept("x")


PUBLISH = """
import signal, sys, gt
gt.connect(sys.argv[1], session="exp")
x = gt.arange(3)
gt.publish("all", x)
gt.publish("bobs", x * 2, to=["bob"])
gt.keep("mine", x)
x.add_(100)
print("published", flush=True)
signal.pause()
"""

READ = """
import sys, gt
gt.connect(sys.argv[1])
for name in sys.argv[2:]:
    try:
        t = gt.get(name)
        t.add_(1)
        print(t.tolist())
    except gt.GTError as e:
        print(e)
print(gt.published())
"""


@pytest.mark.usefixtures("own_settings")
def test_what_is_published_is_for_those_who_may_read_it(tmp_path: Path, started: list[Process], start: Start) -> None:
    lab = Lab(tmp_path / "lab", started)
    lab.serve("--workers", "1")
    keys = {"ada": lab.key, "bob": users.add(lab.home, "bob"), "eve": users.add(lab.home, "eve")}
    urls = {who: url(lab.server.address, key) for who, key in keys.items()}
    publisher = start("-c", PUBLISH, urls["ada"])
    assert publisher.line() == "published"
    names = ["ada/all", "ada/bobs", "ada/mine", "ada/no", "exp", "eve/all"]
    no = "get: nothing is published as {!r} that you may read"
    bob, eve = (start("-c", READ, urls[who], *names) for who in ("bob", "eve"))
    assert [bob.line() for _ in names] == ["[1, 2, 3]", "[1, 3, 5]", *(no.format(n) for n in names[2:])]
    assert bob.line() == "['ada/all', 'ada/bobs']"
    assert [eve.line() for _ in names] == ["[1, 2, 3]", *(no.format(n) for n in names[1:])]
    assert eve.line() == "['ada/all']"
    publisher.signal(signal.SIGKILL)  # its lease is an hour
    publisher.end()
    with client(urls["bob"]):
        assert gt.get("ada/all").tolist() == [0, 1, 2]
        users.revoke(lab.home, "ada")
        until(lambda: gt.published() == [], "the end of what a revoked user has published")
        with pytest.raises(ArgumentError, match="nothing is published as 'ada/all'"):
            gt.get("ada/all")


def test_the_example_goes_on_where_it_was_killed(serve: Serve, start: Start) -> None:
    _, address = serve("--workers", "1")
    example = str(Path(__file__).parents[2] / "examples" / "reattach.py")
    first = start(example, address, "60")
    while not first.line().startswith("step    33"):
        pass
    first.signal(signal.SIGKILL)
    first.end()
    second = start(example, address, "60")
    lines = [second.line() for _ in range(2)]
    assert lines[0] in ("continuing after step 30", "continuing after step 40", "continuing after step 50")
    assert lines[1].startswith("step ")
    assert second.end()[0] == 0
