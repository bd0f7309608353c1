"""The worker as a process, against a dispatcher played by the test."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from worker_building import unary

from gt.transport import listen
from gt.transport import messages as msg
from tests.processes.running import Process, environment

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
        self.started: list[Process] = []

    def start(self, *more: str) -> Process:
        command = ["-m", "gt.worker", "--address", self.address, "--engine", "numpy", "--quiet", *more]
        self.started.append(Process(command, environment()))
        return self.started[-1]

    def receive(self) -> tuple[bytes, Any, Any]:
        deadline_s = time.monotonic() + WAIT_S
        while not self.came:
            assert time.monotonic() < deadline_s, "nothing came"
            self.router.wait(0.05)
            self.router.lost()
            while (got := self.router.receive()) is not None:
                self.came += [(got[0], *each) for each in msg.decode_all(got[1])]
        return self.came.pop(0)

    def welcome(self) -> list[msg.WorkerHello]:
        hellos = []
        for _ in range(2):
            peer, hello, _ = self.receive()
            assert isinstance(hello, msg.WorkerHello)
            if hello.control:
                self.control = peer
            else:
                self.results = peer
            hellos.append(hello)
        for peer in (self.control, self.results):
            self.send(msg.WorkerWelcome(msg.VERSION, 1), to=peer)
        return hellos

    def send(self, message: Any, payload: bytes | None = None, to: bytes = b"") -> None:
        self.router.send(to or self.control, msg.encode(message, payload))

    def close(self) -> None:
        self.router.close()
        for process in self.started:
            process.popen.kill()
            process.popen.communicate()


@pytest.fixture
def dispatcher(tmp_path: Path) -> Iterator[Dispatcher]:
    d = Dispatcher(tmp_path)
    yield d
    d.close()


def test_a_worker_joins_runs_and_leaves(dispatcher: Dispatcher) -> None:
    process = dispatcher.start("--token", "secret")
    first, second = dispatcher.welcome()
    assert first.link == second.link
    assert {first.control, second.control} == {True, False}
    assert (first.version, first.token, first.engine, first.pid) == (msg.VERSION, "secret", "numpy", process.pid)

    program = unary("neg")
    data = np.arange(4, dtype=np.float32)
    dispatcher.send(msg.Chunk(1, 5, 0, 16, (4,), "float32"), data.tobytes())
    dispatcher.send(msg.Define(program))
    dispatcher.send(msg.Call(1, 1, program.hash(), msg.pack_ids([5]), (), 10, b"", 0))
    dispatcher.send(msg.Fetch(1, 3, 10))
    dispatcher.send(msg.GetStats(9))
    came: dict[type, tuple[bytes, Any, Any]] = {}
    for _ in range(4):
        peer, message, payload = dispatcher.receive()
        came[type(message)] = (peer, message, payload)
    assert came[msg.ChunkAck][0] == came[msg.Stats][0] == dispatcher.control
    assert came[msg.CallDone][0] == came[msg.Chunk][0] == dispatcher.results
    assert came[msg.CallDone][1].seq == 1
    assert np.array_equal(np.frombuffer(came[msg.Chunk][2], np.float32), -data)

    dispatcher.send(msg.Goodbye())
    assert process.end(WAIT_S) == (0, "", "")


def test_a_worker_ends_with_its_dispatcher(dispatcher: Dispatcher) -> None:
    process = dispatcher.start()
    dispatcher.welcome()
    dispatcher.send(msg.GetStats(1))
    dispatcher.receive()
    dispatcher.router.close()
    dispatcher.router = listen(dispatcher.address)
    code, _, said = process.end(WAIT_S)
    assert code == 1
    assert said.count("\n") == 1
    assert "lost" in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_good_order(dispatcher: Dispatcher, number: signal.Signals) -> None:
    process = dispatcher.start()
    dispatcher.welcome()
    dispatcher.send(msg.GetStats(1))
    dispatcher.receive()
    process.signal(number)
    peer, message, _ = dispatcher.receive()
    assert (peer, message) == (dispatcher.control, msg.Goodbye())
    assert process.end(WAIT_S) == (0, "", "")


def test_a_worker_does_not_outlive_its_parent(dispatcher: Dispatcher) -> None:
    process = dispatcher.start("--parent", "1")  # which is not the one that started it
    assert process.end(WAIT_S) == (1, "", "")
