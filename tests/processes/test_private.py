"""A private server: it starts whole, stays out of the way, and ends with its client however that ends."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from gt import config
from gt.config import Config
from gt.errors import StartError
from gt.server import PrivateServer, start_private
from gt.server.local import last_line
from gt.server.workers import count_gpus
from gt.transport.messages import Refused, Welcome

from .running import Start, alive, children, greet, until, until_gone

pytestmark = pytest.mark.processes

#: A client that starts a private server, says which process and where it is, and waits for a signal.
CLIENT = """
import os, signal
from gt import config
from gt.server import start_private
r, w = os.pipe()
signal.signal(signal.SIGINT, lambda *_: os.write(w, b"x"))
server = start_private(config.load())
print(server.pid, server.address, flush=True)
os.read(r, 1)
print(server.alive(), flush=True)
server.close()
"""

#: A client that is killed while it waits for its server to be ready; it says which process that is.
HASTY_CLIENT = """
import os, signal, subprocess
from gt import config
from gt.server import local

def die(*_):
    with open(f"/proc/{os.getpid()}/task/{os.getpid()}/children") as f:
        print(f.read(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

local._read_answer = die
local.start_private(config.load())
"""

#: A client whose worker is killed.
ORPHAN = """
import os, signal
import gt
from gt.errors import LostError
gt.ones(3).sum().item()
pid = next(iter(gt.debug.get_worker_stats()["workers"].values()))["pid"]
os.kill(pid, signal.SIGKILL)
for _ in range(20):
    try:
        gt.ones(3).sum().item()
    except LostError as e:
        if "private server" in str(e):
            print(e, flush=True)
            break
gt.disconnect()
print(gt.ones(3).sum().item(), flush=True)
"""

#: A client without standard streams, as some daemons are.
BARE = """
import os, sys
for fd in (0, 1, 2):
    os.close(fd)
from gt import config
from gt.server import start_private
server = start_private(config.load())
server.close()
os._exit(7)
"""

#: A client with more open files than `select` can handle, as in a long notebook.
CROWDED = """
import os, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (3000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1500)]
import gt
print(gt.arange(300_000).sum().item(), flush=True)
"""


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Config:
    for variable, _, _ in config.settings():
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("GT_ENGINE", "numpy")
    return config.load()


@pytest.fixture
def server(settings: Config) -> Iterator[PrivateServer]:
    s = start_private(settings)
    yield s
    s.close()


def test_start_and_close(server: PrivateServer, capfd: pytest.CaptureFixture[str]) -> None:
    directory = Path(server.address.removeprefix("ipc://")).parent
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert server.alive()
    workers = children(server.pid)
    assert len(workers) == 1
    assert isinstance(greet(server.address, server.token), Welcome)
    assert isinstance(greet(server.address, "wrong"), Refused)
    for pid in (server.pid, *workers):
        assert server.token.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
        assert os.getsid(pid) != os.getsid(0), "Ctrl-C in the terminal must not reach it"
    server.close()
    assert not server.alive()
    assert not any(alive(p) for p in [server.pid, *workers])
    assert not directory.exists()
    server.close()  # a second time changes nothing
    assert capfd.readouterr() == ("", "")


def test_close_after_the_server_was_killed(server: PrivateServer) -> None:
    directory = Path(server.address.removeprefix("ipc://")).parent
    workers = children(server.pid)
    os.kill(server.pid, signal.SIGKILL)
    until_gone([server.pid, *workers], 5.0)
    assert not server.alive()
    server.close()
    assert not directory.exists()


def test_close_when_the_server_is_stuck(server: PrivateServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gt.server.local.END_S", 0.1)
    workers = children(server.pid)
    os.kill(server.pid, signal.SIGSTOP)
    server.close()
    until_gone([server.pid, *workers], 5.0)


def test_kill_of_the_client_ends_everything(start: Start, tmp_path: Path) -> None:
    client = start("-c", CLIENT, GT_ENGINE="numpy", TMPDIR=str(tmp_path))
    pid, address = client.line().split()
    directory = Path(address.removeprefix("ipc://")).parent
    pids = [int(pid), *children(int(pid))]
    assert len(pids) == 2
    assert directory.exists()
    client.signal(signal.SIGKILL)
    until_gone(pids, 5.0)
    assert not directory.exists()


def test_kill_of_the_client_while_its_server_starts(start: Start, tmp_path: Path) -> None:
    client = start("-c", HASTY_CLIENT, GT_ENGINE="numpy", TMPDIR=str(tmp_path))
    pids = [int(p) for p in client.line().split()]
    assert len(pids) == 1
    until_gone(pids, 5.0)
    until(lambda: not list(tmp_path.iterdir()), "the removal of the directory")


def test_interrupt_of_the_client_leaves_the_server(start: Start, tmp_path: Path) -> None:
    client = start("-c", CLIENT, GT_ENGINE="numpy", TMPDIR=str(tmp_path))
    pid, _ = client.line().split()
    os.killpg(client.pid, signal.SIGINT)  # what a terminal does
    assert client.line() == "True"
    assert client.end() == (0, "", "")
    assert not alive(int(pid))
    assert list(tmp_path.iterdir()) == []


def test_its_worker_is_killed(start: Start, tmp_path: Path) -> None:
    client = start("-c", ORPHAN, GT_ENGINE="numpy", TMPDIR=str(tmp_path), GT_WORKER_TIMEOUT="0.5")
    assert client.line() == (
        "GT's private server has lost its worker; gt.disconnect() ends it, and the next tensor starts a new one"
    )
    assert client.line() == "3.0"
    assert client.end() == (0, "", "")


def test_a_client_without_standard_streams(start: Start, tmp_path: Path) -> None:
    assert start("-c", BARE, GT_ENGINE="numpy", TMPDIR=str(tmp_path)).end()[0] == 7


@pytest.mark.parametrize(
    ("module", "why"),
    [
        ("torch", "the torch engine needs torch: pip install 'gt[torch]', or use --engine numpy"),
        ("msgspec", "ImportError: it is broken"),
    ],
)
def test_a_module_that_cannot_be_imported(
    settings: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, why: str
) -> None:
    """The engine cannot be loaded; or the server dies before it can speak. Nothing is left but the broken module."""
    shim = tmp_path / "shim"
    shim.mkdir()
    (shim / f"{module}.py").write_text("raise ImportError('it is broken')\n")
    monkeypatch.setenv("PYTHONPATH", str(shim), prepend=os.pathsep)
    with pytest.raises(StartError) as caught:
        start_private(config.replace(settings, engine="torch"))
    assert str(caught.value) == f"cannot start a private server: {why}"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["shim"]


def test_time_out(settings: Config, tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"it was not ready after 0\.001 s \(GT_START_TIMEOUT\)"):
        start_private(config.replace(settings, start_timeout_s=0.001))
    assert list(tmp_path.iterdir()) == []


def test_a_process_with_many_files(start: Start, tmp_path: Path) -> None:
    code, said, _ = start("-c", CROWDED, GT_ENGINE="numpy", TMPDIR=str(tmp_path)).end()
    assert (code, said) == (0, f"{300_000 * 299_999 // 2}\n")


def test_a_long_temporary_directory(settings: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    server = start_private(settings)
    try:
        assert isinstance(greet(server.address, server.token), Welcome)
    finally:
        server.close()


@pytest.mark.parametrize(
    ("visible", "count"), [(None, 3), ("", 0), ("-1", 0), ("2,0", 2), ("0,1,2,7", 3), ("0,-1,2", 1)]
)
def test_gpus_are_counted(visible: str | None, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text('#!/bin/sh\nfor i in 0 1 2; do echo "GPU $i: Fake (UUID: x)"; done\n')
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path) + os.pathsep + os.environ["PATH"])
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert count_gpus() == count


def test_last_line() -> None:
    assert last_line(b"Traceback\n  File\ngt worker: no torch\n\n") == "no torch"
    assert last_line(b"") == ""
