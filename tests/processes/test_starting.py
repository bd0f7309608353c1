"""Starting and stopping by hand: whatever ends, and however, nothing is left running."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import pytest

import gt
from gt.errors import LostError
from gt.server import users
from gt.transport.messages import Refused, Welcome

from .running import DEADLINE_S, Process, Serve, Start, alive, children, greet, join, until, until_gone

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_server_and_workers_in_order(serve: Serve, start: Start, number: int) -> None:
    server, address = serve("--workers", "2")
    workers = children(server.pid)
    assert len(workers) == 2
    by_hand = join(start, address)
    assert isinstance(greet(address), Welcome)
    server.signal(number)
    assert server.end() == (0, "", "")
    assert not any(alive(p) for p in workers)
    assert by_hand.end() == (0, "", "")


def test_a_signal_during_the_start(start: Start) -> None:
    server = start("-m", "gt.server", "-p", "0", "--engine", "numpy", "--workers", "1", GT_VERBOSE="1")
    server.line("stderr")  # the worker's first connection
    workers = children(server.pid)
    server.signal(signal.SIGTERM)
    code, _, _ = server.end()
    assert code == 0
    assert not any(alive(p) for p in workers)


def test_kill_of_the_server_ends_its_workers(serve: Serve, start: Start) -> None:
    server, address = serve("--workers", "1")
    by_hand = join(start, address)
    workers = children(server.pid)
    assert len(workers) == 1
    server.signal(signal.SIGKILL)
    code, _, said = by_hand.end(5.0)
    assert code != 0
    assert said.count("\n") == 1, said
    assert "is lost" in said
    until_gone(workers, 5.0)


def test_kill_of_a_worker_leaves_the_server_serving(serve: Serve, start: Start) -> None:
    server, address = serve("--workers", "1", GT_VERBOSE="1")
    (worker,) = children(server.pid)
    os.kill(worker, signal.SIGKILL)
    while "ended" not in server.line("stderr"):
        pass
    assert isinstance(greet(address), Welcome)
    by_hand = join(start, address)
    by_hand.signal(signal.SIGINT)
    assert by_hand.end() == (0, "", "")
    server.signal(signal.SIGINT)
    assert server.end()[0] == 0


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_a_worker_that_is_stopped_is_given_up(start: Start, tmp_path: Path, kind: str) -> None:
    """Others may wait for it. When it goes on, it finds that it is not wanted any more, and ends."""
    where = ("--address", f"ipc://{tmp_path}/s") if kind == "unix" else ("-p", "0")
    server = start("-m", "gt.server", *where, "--engine", "numpy", "--workers", "1")
    address = server.line().removeprefix("gt: serving on ").partition(",")[0]
    (worker,) = children(server.pid)
    gt.connect(address)
    try:
        calls, until_s = 0, time.monotonic() + 0.5
        while time.monotonic() < until_s:  # it gives signs of life now
            calls += 1
            assert gt.full((2,), calls).sum().item() == 2 * calls
        os.kill(worker, signal.SIGSTOP)
        with pytest.raises(LostError, match=f"pid {worker}\\) is gone"):
            gt.ones(3).sum().item()
    finally:
        gt.disconnect()
        os.kill(worker, signal.SIGCONT)
    until_gone([worker], DEADLINE_S)
    server.signal(signal.SIGTERM)
    assert server.end()[0] == 0


def test_the_parent_is_watched(start: Start) -> None:
    code = (
        "import os, subprocess, sys\n"
        "args = '-m gt.server -p 0 --engine numpy --workers 1 --parent'.split() + [str(os.getpid())]\n"
        "p = subprocess.Popen([sys.executable, *args], stdout=subprocess.PIPE)\n"
        "p.stdout.readline(); print(p.pid, flush=True); p.wait()"
    )
    parent = start("-c", code)
    server = int(parent.line())
    pids = [server, *children(server)]
    assert len(pids) == 2
    parent.signal(signal.SIGKILL)
    until_gone(pids, 5.0)


def test_the_ready_line_says_how_to_start_workers(start: Start) -> None:
    server = start("-m", "gt.server", "-p", "0")
    line = server.line()
    host, _, port = line.removeprefix("gt: serving on ").partition(",")[0].rpartition(":")
    assert line == f"gt: serving on {host}:{port}, start workers with: gt worker --host {host} -p {port}"
    assert host == "127.0.0.1"


def test_unix_socket(start: Start, tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/s"
    server = start("-m", "gt.server", "--address", address, "--engine", "numpy", "--workers", "1")
    assert server.line() == f"gt: serving on {address}, start workers with: gt worker --address {address}"
    assert isinstance(greet(address), Welcome)
    server.stop()
    assert not (tmp_path / "s").exists()


def one_line(process: Process) -> tuple[int, str]:
    code, out, err = process.end()
    assert out == ""
    assert err.count("\n") == 1, err
    return code, err.strip()


def test_port_in_use(serve: Serve, start: Start) -> None:
    _, address = serve()
    port = address.rpartition(":")[2]
    second = start("-m", "gt.server", "-p", port)
    assert one_line(second) == (2, f"gt: port {port} on 127.0.0.1 is in use; choose another with -p")


def test_bad_host_and_port(start: Start, tmp_path: Path) -> None:
    users.add(tmp_path, "ada")
    bad_port = start("-m", "gt.server", "-p", "70000")
    bad_host = start("-m", "gt.server", "--host", "no such host")
    foreign = start("-m", "gt.server", "--host", "192.0.2.1", GT_CONFIG_DIR=str(tmp_path))
    code, said = one_line(bad_port)
    assert (code, "70000" in said) == (2, True)
    code, said = one_line(bad_host)
    assert (code, "unknown host 'no such host'" in said) == (2, True)
    assert one_line(foreign) == (2, "gt: host 192.0.2.1 is not an address of this machine")


def test_a_worker_without_a_server(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    worker = start("-m", "gt.worker", "--host", "127.0.0.1", "-p", str(port), "--engine", "numpy")
    code, said = one_line(worker)
    assert code != 0
    assert said == f"gt worker: no server at 127.0.0.1:{port}; start one with: gt serve"


def test_instruction_log(serve: Serve, start: Start, tmp_path: Path) -> None:
    log = tmp_path / "log"
    server, address = serve("--workers", "1", GT_INSTRUCTION_LOG=str(log))
    assert isinstance(greet(address), Welcome)
    server.stop()
    words = log.read_text().split()
    for word in ("RECV", "SEND", "WORKER_RECV", "WORKER_SEND", "CONNECT"):
        assert word in words, word
    nowhere = start("-m", "gt.server", "-p", "0", GT_INSTRUCTION_LOG=str(tmp_path / "none" / "log"))
    code, said = one_line(nowhere)
    assert code == 2
    assert said == f"gt: GT_INSTRUCTION_LOG={tmp_path}/none/log: No such file or directory"


def test_the_log_of_a_server_that_is_killed(serve: Serve, tmp_path: Path) -> None:
    log = tmp_path / "log"
    server, address = serve(GT_INSTRUCTION_LOG=str(log))
    (writer,) = map(int, Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split())
    assert isinstance(greet(address), Welcome)
    until(lambda: " Welcome " in log.read_text(), "the line of the answer")
    server.signal(signal.SIGKILL)
    server.end()
    until_gone([writer], DEADLINE_S)


def test_a_log_on_a_full_disk_ends_and_the_server_does_not(serve: Serve) -> None:
    server, address = serve(GT_INSTRUCTION_LOG="/dev/full")
    assert isinstance(greet(address), Welcome)
    assert isinstance(greet(address), Welcome)
    server.signal(signal.SIGTERM)
    code, _, said = server.end()
    assert (code, said) == (0, "gt: logging stopped: OSError: [Errno 28] No space left on device\n")


def test_a_server_whose_output_nobody_reads(serve: Serve) -> None:
    """As after a terminal was closed."""
    server, address = serve("--workers", "1", GT_VERBOSE="1")
    assert server.popen.stderr is not None
    server.popen.stderr.close()
    for _ in range(2):
        assert isinstance(greet(address), Welcome)
    server.signal(signal.SIGTERM)
    assert server.popen.wait(DEADLINE_S) == 0


def test_token(serve: Serve, start: Start) -> None:
    server, address = serve("--workers", "1", GT_TOKEN="open sesame")
    assert isinstance(greet(address, "open sesame"), Welcome)
    refused = greet(address, "open barley")
    assert isinstance(refused, Refused)
    assert "token" in refused.text
    host, _, port = address.rpartition(":")
    worker = start("-m", "gt.worker", "--host", host, "-p", port, "--engine", "numpy", GT_TOKEN="x")
    code, said = one_line(worker)
    assert code != 0
    assert "wrong token" in said
    for pid in [server.pid, *children(server.pid)]:
        assert b"sesame" not in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_local_worker_that_cannot_start_ends_the_server(start: Start) -> None:
    server = start("-m", "gt.server", "-p", "0", "--workers", "1", "--engine", "abacus")
    code, out, said = server.end()
    assert (code, out) == (2, "")
    assert "unknown engine 'abacus'; expected one of: torch, numpy" in said
    assert not children(server.pid)
