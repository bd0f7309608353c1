"""Large tensors through shared memory between real processes, and what is left when one of them is killed."""

from __future__ import annotations

import os
import select
import signal
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from gt.transport import connect
from gt.transport.identity import url
from gt.transport.messages import VERSION, Chunk, ChunkAck, Fetch, Hello, Share, Shared, Welcome
from gt.transport.shared import ORDERED, make_ring

from .running import DEADLINE_S, Process, Serve, Start, alive, answer, open_files, until
from .test_identity import Lab

pytestmark = pytest.mark.processes

#: Sends and fetches large tensors, and checks them.
GOOD = """
import sys, threading
import numpy as np
import gt
from gt.client.session import transfers
transfers.QUEUED_NBYTES = 48 << 20
gt.connect(sys.argv[1])
rng = np.random.default_rng(0)
def some(seed):
    for n in (1 << 18, 3 << 19, 5 << 19):
        x = rng.random(n)
        kept = x.copy()
        t = gt.from_numpy(x)
        x[:] = 0  # the bytes are ours again
        assert ((t * 2).numpy() == kept * 2).all()
        y = t[::3].numpy()
        assert (y == kept[::3]).all()
        y += 1  # and so are these
        t += 1
        z = t.numpy()
        t += 1
        assert (z == kept + 1).all() and (t.numpy() == kept + 1 + 1).all()
some(0)
threads = [threading.Thread(target=some, args=(k,)) for k in range(3)]
for t in threads: t.start()
for t in threads: t.join()
big = rng.random(10 << 20)  # more than is ever queued, and than a ring holds
assert gt.from_numpy(big).sum().item() != 0
assert (gt.from_numpy(big).numpy() == big).all()
print("right", flush=True)
"""


@pytest.fixture(params=["unix", "tcp"])
def serve_here(serve: Serve, tmp_path: Path, request: pytest.FixtureRequest) -> Serve:
    """A server on a Unix socket, or on a port of this machine."""
    where = ("--address", f"ipc://{tmp_path}/s") if request.param == "unix" else ()
    return lambda *arguments, **env: serve(*where, *arguments, **env)


def rings_of(pid: int) -> list[str]:
    """The rings that a process has open or mapped."""
    mapped = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return [text for text in (*mapped, *open_files(pid).values()) if "memfd:gt-" in text]


def check_large(start: Start, address: str, before: str = "", **env: str) -> None:
    """Large tensors of a client are right, there and back."""
    assert start("-c", before + GOOD, address, **env).end(120) == (0, "right\n", "")


@pytest.mark.parametrize("share", ["1", "0"])
def test_large_tensors_are_whole_either_way(serve_here, start: Start, tmp_path: Path, share: str) -> None:
    log = tmp_path / "log"
    server, address = serve_here("--workers", "1", GT_INSTRUCTION_LOG=str(log))
    (worker,) = server.workers
    check_large(start, address, GT_SHARE_MEMORY=share)
    assert ("in slot" in log.read_text()) == (share == "1")
    until(lambda: rings_of(worker) == [], "the end of the ring")


def test_a_worker_that_cannot_look_gets_the_bytes(serve_here, start: Start, tmp_path: Path) -> None:
    """Here because the client names its ring wrongly."""
    log = tmp_path / "log"
    _, address = serve_here("--workers", "1", GT_INSTRUCTION_LOG=str(log))
    hide = "import gt.client.session.transfers as t\nmade = t.make_ring\n"
    hide += "def bad(n):\n    r = made(n); r.name = 'gt-' + '0' * 32; return r\nt.make_ring = bad\n"
    check_large(start, address, hide)
    said = log.read_text()
    assert ": no" in said
    assert "in slot" not in said


def test_over_an_encrypted_connection_nothing_is_shared(start: Start, tmp_path: Path, started: list[Process]) -> None:
    log, lab = tmp_path / "log", Lab(tmp_path / "lab", started)
    lab.serve("--workers", "1", GT_INSTRUCTION_LOG=str(log))
    check_large(start, url(lab.server.address, lab.key))
    assert "Share" not in log.read_text()


#: Two threads fetch small values of many sizes, with calls in between, some of which fail.
SMALL = """
import random, sys, threading
import numpy as np
import gt
from gt.client.session import waiting
from gt.client.record.recorder import recorder
from gt.errors import IndexOutOfRange
from gt.transport.shared import Ring
gt.connect(sys.argv[1])
waiting.LOOK_S = 1.0  # however slow the others are
wrong, found, answer = [], [], Ring.answer
def look(*args):
    got = answer(*args)
    if got is not None:
        found.append(got)
    return got
Ring.answer = look
def some(seed, n):
    r = random.Random(seed)
    rng = np.random.default_rng(seed)
    kept = rng.random(700)
    t = gt.from_numpy(kept)
    for k in range(n):
        if r.random() < 0.3:
            s = r.random()
            t, kept = t * s + k, kept * s + k
        a = r.randrange(700)
        b = r.randrange(a, 700)  # up to more than a mailbox holds
        got = (t[a:b] + 1.0).numpy()
        if not (got == kept[a:b] + 1.0).all():
            wrong.append((seed, k, a, b))
        if r.random() < 0.1:
            got += 1  # ours
            if t[a].item() != kept[a]:
                wrong.append((seed, k, a))
threads = [threading.Thread(target=some, args=(seed, 400)) for seed in (1, 2)]
for t in threads: t.start()
for t in threads: t.join()
# A failure is raised at the next fetch, whatever that fetches and however it is answered.
x = gt.tensor([1.0, 2.0])
for k in range(50):
    for _ in range(3):
        if (x + k).numpy().tolist() != [1.0 + k, 2.0 + k]:
            wrong.append(k)
    bad = gt.gather(x, 0, gt.tensor([0, 5 * (k % 2)]))
    recorder().settle()
    try:
        y = (x + k).numpy()
        if k % 2:
            wrong.append(("not raised", k))
    except IndexOutOfRange:
        if not k % 2:
            wrong.append(("raised", k))
print("wrong" if wrong else "right" if len(found) > 200 else "by messages", wrong[:3] or "", flush=True)
"""


@pytest.mark.skipif(not ORDERED, reason="no mailboxes on this processor")
@pytest.mark.parametrize("engine", ["numpy", "torch"])
def test_small_values_by_mailbox(serve_here, start: Start, tmp_path: Path, engine: str) -> None:
    pytest.importorskip(engine)
    log = tmp_path / "log"
    _, address = serve_here("--workers", "1", "--engine", engine, GT_INSTRUCTION_LOG=str(log), GT_DEVICE="cpu")
    user = start("-c", SMALL, address)
    assert user.end(120) == (0, "right \n", "")
    said = log.read_text()
    assert said.count("slots lent") > 400
    assert "in slot" not in said


#: Uploads and fetches without end.
BUSY = """
import sys
import numpy as np
import gt
gt.connect(sys.argv[1])
x = np.ones(6 << 20)
print("begun", flush=True)
while True:
    t = gt.from_numpy(x)
    assert t.numpy().sum() == x.size
"""


def test_clients_are_killed_in_the_middle(serve_here, start: Start) -> None:
    server, address = serve_here("--workers", "1")
    (worker,) = server.workers
    for wait_s in (0.0, 0.05, 0.3):
        users = [start("-c", BUSY, address) for _ in range(2)]
        for user in users:
            assert user.line() == "begun"
        until(lambda: len(rings_of(worker)) >= 2, "rings on the worker")
        select.select([], [], [], wait_s)
        for user in users:
            user.signal(signal.SIGKILL)
            user.end()
        until(lambda: rings_of(worker) == [], "the end of their rings")
        assert alive(worker)
    check_large(start, address)


LOSER = """
import sys
import numpy as np
import gt
from gt.errors import LostError
gt.connect(sys.argv[1])
x = np.random.default_rng(0).random(6 << 20)
print("begun", flush=True)
lost = 0
while lost < 2:
    try:
        t = gt.from_numpy(x)
        assert (t.numpy() == x).all()
        if lost:
            break
    except LostError:
        lost += 1
print("lost", lost, flush=True)
"""


def test_a_worker_is_killed_in_the_middle(serve_here, start: Start, tmp_path: Path) -> None:
    server, address = serve_here("--workers", "2")
    user = start("-c", LOSER, address)
    assert user.line() == "begun"
    workers = server.workers
    until(lambda: any(rings_of(w) for w in workers), "a ring on a worker")
    (its,) = [w for w in workers if rings_of(w)]
    os.kill(its, signal.SIGKILL)
    # It goes on with the other worker, through shared memory again.
    assert user.end() == (0, "lost 1\n", "")


def test_a_client_cannot_make_the_worker_read_the_ring_of_another(serve_here, start: Start) -> None:
    """It knows all there is to know of the other's ring, but it is not that process."""
    server, address = serve_here("--workers", "1")
    (worker,) = server.workers
    victim = start("-c", BUSY, address)
    assert victim.line() == "begun"
    until(lambda: rings_of(worker), "the victim's ring on the worker")
    fd, link = next((n, to) for n, to in open_files(victim.pid).items() if to.startswith("/memfd:gt-"))
    name = link.removeprefix("/memfd:").removesuffix(" (deleted)")

    with closing(connect(address)) as thief:
        thief.send(Hello(VERSION, "", "thief"))
        assert isinstance(answer(thief), Welcome)
        own = make_ring(3)
        thief.send(Chunk(0, 1, 0, 8, (1,), "float64"), bytes(8))  # a place on the worker
        assert answer(thief) == ChunkAck(0, 1, True)
        for lie in (Share(0, 1, fd, name, victim.pid), Share(0, 2, own.fd, name, victim.pid), Share(0, 2, 10**6, name)):
            thief.send(lie)
            assert answer(thief) == Shared(0, lie.ring, False)
        # What it says of a ring that is not shared changes nothing, and gives nothing.
        thief.send(Chunk(0, 2, 0, 8, (1,), "float64", 0))
        # Its own it may share, if it says who it is where the system does not; closed ones it cannot.
        thief.send(Share(0, 3, own.fd, own.name, victim.pid if address.startswith("ipc://") else os.getpid()))
        assert answer(thief) == Shared(0, 3, True)
        own.put(0, np.full(8, 7, np.uint8))
        thief.send(Chunk(0, 3, 0, 8, (1,), "float64", 0))
        assert answer(thief) == ChunkAck(0, 3, True)
        thief.send(Fetch(0, 1, 3))
        got = thief.receive(DEADLINE_S)
        assert bytes(got[1] or b"") == b"\7" * 8
        fd = own.fd
        del own
        thief.send(Share(0, 4, fd, name))
        assert answer(thief) == Shared(0, 4, False)
    assert alive(worker)
    assert alive(victim.pid)
