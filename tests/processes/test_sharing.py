"""Several users of one server: each in a world of its own, and none harmed by what becomes of the others."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gt.transport import connect
from gt.transport.messages import VERSION, Fetch, FetchFailed, GetStats, Hello, Stats, Welcome

from .hostile import USER
from .running import Serve, Server, Start, alive, answer, join, until

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """With one worker, for all tests here that leave both as they are."""
    made = Server("--engine", "numpy", "--workers", "1")
    yield made
    made.stop()


def sessions(address: str) -> int:
    """How many sessions there are on the server besides the one that asks."""
    with closing(connect(address)) as channel:
        channel.send(Hello(VERSION, "", "asks"))
        assert isinstance(answer(channel), Welcome)
        channel.send(GetStats(1))
        stats = answer(channel)
        assert isinstance(stats, Stats)
        return int(stats.data["dispatcher"]["sessions"]) - 1


def test_two_train_and_a_third_dies(server: Server, start: Start, tmp_path: Path) -> None:
    address, stop = server.address, tmp_path / "stop"
    users = [start("-c", USER, address, str(stop), str(seed)) for seed in (1, 2, 3)]
    assert len({int(user.line()) for user in users}) == 3, "each in a session of its own"

    with closing(connect(address)) as stranger:
        stranger.send(Hello(VERSION, "", "stranger"))
        assert isinstance(answer(stranger), Welcome)
        for id in range(1, 100):  # among them those of the others
            stranger.send(Fetch(0, id, id))
            failed = answer(stranger)
            assert isinstance(failed, FetchFailed)
            assert failed.error.text == f"tensor {id} does not exist"

    *good, third = users
    third.signal(signal.SIGKILL)
    third.end()
    until(lambda: sessions(address) == 2, "the end of the third session")
    stop.touch()
    for user in good:
        assert int(user.output()) >= 30
    until(lambda: sessions(address) == 0, "the end of all sessions")


def test_random_numbers_are_each_sessions_own(server: Server, start: Start) -> None:
    code = "import gt; print(gt.rand(4).tolist()); gt.manual_seed(7); print(gt.rand(4).tolist())"
    users = [start("-c", code, GT_SERVER=server.address) for _ in range(2)]
    first, second = (user.output().splitlines() for user in users)
    assert first[0] != second[0]
    assert first[1] == second[1]


LOSER = """
import sys
import gt
from gt.errors import LostError
x = gt.ones(3)
print((x + 1).tolist(), flush=True)
open(sys.argv[1]).read()  # until the worker is gone
for what in (lambda: x.tolist(), lambda: (x * 2).tolist()):
    try:
        print(what(), flush=True)
    except LostError as e:
        print(f"LostError: {e}", flush=True)
print((gt.ones(2) + 2).tolist(), flush=True)
"""


def test_a_worker_dies_under_a_client(serve: Serve, start: Start, tmp_path: Path) -> None:
    server, address = serve()
    first = join(start, address)
    gone = tmp_path / "gone"
    os.mkfifo(gone)
    user = start("-c", LOSER, str(gone), GT_SERVER=address)
    assert user.line() == "[2.0, 2.0, 2.0]"
    second = join(start, address)
    first.signal(signal.SIGKILL)
    first.end()
    gone.write_text("")
    fetched, computed, new = user.output().splitlines()
    assert fetched.startswith("LostError: the worker that held it (")
    assert f"pid {first.pid}) is gone" in fetched
    assert computed.startswith("LostError: ")
    assert new == "[3.0, 3.0]"
    second.stop()
    server.stop()


PATIENT = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs in the background has it ignored
import gt
x = gt.ones(2)
try:
    print(x.tolist(), flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
print((x + 1).tolist(), flush=True)
"""


def test_an_interrupt_during_a_wait(serve: Serve, start: Start, tmp_path: Path) -> None:
    log = tmp_path / "log"
    server, address = serve(GT_INSTRUCTION_LOG=str(log), GT_WORKER_TIMEOUT="600")
    user = start("-c", PATIENT, GT_SERVER=address)
    until(lambda: "fetch" in log.read_text().lower(), "the wait for a value")
    user.signal(signal.SIGINT)
    assert user.line() == "interrupted"
    worker = join(start, address)
    assert user.end() == (0, "[2.0, 2.0]\n", "")
    worker.stop()
    server.stop()


FORKED = """
import os, sys
import gt
x = gt.ones(2)
print(x.tolist(), flush=True)
child = os.fork()
if child == 0:
    code = 1
    for use in (lambda: x + 1, lambda: x.tolist(), lambda: gt.ones(2)):
        try:
            use()
        except gt.errors.ForkError as e:
            print(e, flush=True)
            code = 0
    del x
    sys.exit(code)
assert os.waitpid(child, 0)[1] == 0
print((x + 1).tolist(), flush=True)
"""


LATE = """
import atexit
import numpy as np
import gt
data = np.ones(1 << 17)
atexit.register(lambda: print(gt.from_numpy(data).sum().item()))
print(gt.from_numpy(data).sum().item())
"""


def test_an_upload_while_the_process_exits(server: Server, start: Start) -> None:
    """As of a script that saves something at its end."""
    assert start("-c", LATE, GT_SERVER=server.address).output() == "131072.0\n" * 2


def test_a_forked_child_gets_an_error(server: Server, start: Start) -> None:
    # Python 3.12 itself warns whoever forks with threads.
    user = start("-W", "ignore::DeprecationWarning", "-c", FORKED, GT_SERVER=server.address)
    before, *told, after = user.output().splitlines()
    assert (before, after) == ("[1.0, 1.0]", "[2.0, 2.0]")
    assert len(told) == 3
    assert set(told) == {
        "GT cannot be used in a forked child: the connection belongs to the parent process "
        "(use the 'spawn' start method, or pass numpy arrays to the child)"
    }


PARENT = """
import os, time
import gt
x = gt.ones(1 << 20)
x.numpy()
child = os.fork()
if child:
    print(child, flush=True)
time.sleep(600)
"""


def test_a_killed_client_is_noticed_though_its_forked_child_lives(server: Server, start: Start) -> None:
    user = start("-W", "ignore::DeprecationWarning", "-c", PARENT, GT_SERVER=server.address)
    child = int(user.line())
    try:
        assert sessions(server.address) == 1
        user.signal(signal.SIGKILL)
        until(lambda: sessions(server.address) == 0, "the end of the session")
        assert alive(child)
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("last", ["", "raise SystemExit(3)", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"])
def test_leaving_with_tensors_alive_is_silent(server: Server, start: Start, last: str) -> None:
    (worker,) = server.workers
    code = f"import gt\nx = gt.ones(1000, 100)\ny = x @ x.T\nz = gt.ones(5)\nz += 1\nprint(z.tolist())\n{last}"
    user = start("-c", code, GT_SERVER=server.address)
    expected = {"": 0, "raise SystemExit(3)": 3}.get(last, -signal.SIGTERM)
    assert user.end() == (expected, "[2.0, 2.0, 2.0, 2.0, 2.0]\n", "")
    until(lambda: sessions(server.address) == 0, "the end of the session")
    assert server.workers == [worker]
    assert os.path.exists(f"/proc/{worker}")
