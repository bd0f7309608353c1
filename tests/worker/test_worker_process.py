"""The worker as a process, against a dispatcher played by the test."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from worker_building import Builder

from gt.transport import listen, messages
from gt.transport.messages import (
    VERSION,
    Call,
    CallDone,
    Chunk,
    ChunkAck,
    Define,
    Fetch,
    GetStats,
    Goodbye,
    Refused,
    Stats,
    WorkerHello,
    WorkerWelcome,
    pack_ids,
)  # fmt: skip

pytestmark = pytest.mark.processes

WAIT_S = 60.0


class Dispatcher:
    """Just enough of one."""

    def __init__(self, folder: Path) -> None:
        self.address = f"ipc://{folder}/s"
        self.router = listen(self.address)
        self.came: list[tuple[bytes, Any, Any]] = []
        self.control = b""
        self.results = b""
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *more: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "gt.worker", "--address", self.address, "--engine", "numpy", *more]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.started.append(process)
        return process

    def receive(self) -> tuple[bytes, Any, Any]:
        deadline_s = time.monotonic() + WAIT_S
        while not self.came:
            assert time.monotonic() < deadline_s, "nothing came"
            self.router.wait(0.05)
            self.router.lost()
            while (got := self.router.receive()) is not None:
                self.came += [(got[0], *each) for each in messages.decode_all(got[1])]
        return self.came.pop(0)

    def welcome(self) -> list[WorkerHello]:
        hellos = []
        for _ in range(2):
            peer, hello, _ = self.receive()
            assert isinstance(hello, WorkerHello)
            if hello.control:
                self.control = peer
            else:
                self.results = peer
            hellos.append(hello)
        for peer in (self.control, self.results):
            self.send(WorkerWelcome(VERSION, 1), to=peer)
        return hellos

    def send(self, message: Any, payload: bytes | None = None, to: bytes = b"") -> None:
        self.router.send(to or self.control, messages.encode(message, payload))

    def close(self) -> None:
        self.router.close()
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def dispatcher(tmp_path: Path) -> Iterator[Dispatcher]:
    d = Dispatcher(tmp_path)
    yield d
    d.close()


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, said = process.communicate(timeout=WAIT_S)
    return process.returncode, said


def test_a_worker_joins_runs_and_leaves(dispatcher: Dispatcher) -> None:
    process = dispatcher.start("--token", "secret")
    first, second = dispatcher.welcome()
    assert first.link == second.link
    assert {first.control, second.control} == {True, False}
    assert (first.version, first.token, first.engine, first.pid) == (VERSION, "secret", "numpy", process.pid)

    b = Builder((4,))
    program = b.program([b.add("neg", 0)])
    data = np.arange(4, dtype=np.float32)
    dispatcher.send(Chunk(1, 5, 0, 16, (4,), "float32"), data.tobytes())
    dispatcher.send(Define(program))
    dispatcher.send(Call(1, 1, program.hash(), pack_ids([5]), (), 10, b"", 0))
    dispatcher.send(Fetch(1, 3, 10))
    dispatcher.send(GetStats(9))
    came: dict[type, tuple[bytes, Any, Any]] = {}
    for _ in range(4):
        peer, message, payload = dispatcher.receive()
        came[type(message)] = (peer, message, payload)
    assert came[ChunkAck][0] == came[Stats][0] == dispatcher.control
    assert came[CallDone][0] == came[Chunk][0] == dispatcher.results
    assert came[CallDone][1].seq == 1
    assert np.array_equal(np.frombuffer(came[Chunk][2], np.float32), -data)

    dispatcher.send(Goodbye())
    assert ended(process) == (0, "")


def test_a_worker_ends_with_its_dispatcher(dispatcher: Dispatcher) -> None:
    process = dispatcher.start()
    dispatcher.welcome()
    dispatcher.send(GetStats(1))
    dispatcher.receive()
    dispatcher.router.close()
    dispatcher.router = listen(dispatcher.address)
    code, said = ended(process)
    assert code == 1
    assert said.count("\n") == 1
    assert "lost" in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_good_order(dispatcher: Dispatcher, number: signal.Signals) -> None:
    process = dispatcher.start()
    dispatcher.welcome()
    dispatcher.send(GetStats(1))
    dispatcher.receive()
    process.send_signal(number)
    peer, message, _ = dispatcher.receive()
    assert (peer, message) == (dispatcher.control, Goodbye())
    assert ended(process) == (0, "")


def test_a_refused_worker_says_why(dispatcher: Dispatcher) -> None:
    process = dispatcher.start()
    peer, _, _ = dispatcher.receive()
    other, _, _ = dispatcher.receive()
    for p in (peer, other):
        dispatcher.send(Refused("wrong token"), to=p)
    code, said = ended(process)
    assert code == 1
    assert said.count("\n") == 1
    assert "wrong token" in said


def test_no_server(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gt.worker", "--address", f"ipc://{tmp_path}/none", "--engine", "numpy"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "no server at" in done.stderr


def test_a_worker_does_not_outlive_its_parent(dispatcher: Dispatcher) -> None:
    process = dispatcher.start("--parent", "1")  # which is not the one that started it
    assert ended(process) == (1, "")
