"""Workers in processes of their own, without a dispatcher: a test sends each of them its messages."""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from gt import config, dtypes
from gt.transport.messages import (
    Call,
    CallDone,
    CallFailed,
    Chunk,
    ChunkAck,
    Define,
    Fetch,
    FetchFailed,
    Peers,
    WorkerWelcome,
    pack_ids,
)
from gt.worker import engines
from gt.worker.core import WorkerCore

DEADLINE_S = 60.0  #: For a loaded machine; nothing takes that long when all is well.


def serve(pipe: Any, engine: str, settings: dict[str, Any]) -> None:
    """The worker's process: one thread reads, one runs programs."""
    listening = socket.create_server(("127.0.0.1", 0))
    configured = config.replace(config.load(), **settings)
    core = WorkerCore(
        engines.load(engine, "cpu" if engine == "torch" else "", 1),
        configured,
        network=lambda: engines.network(listening, configured.peer_timeout_s, "cpu"),
    )
    sending = threading.Lock()

    def send(out: Any) -> None:
        with sending:
            for message, payload in out:
                pipe.send((message, None if payload is None else bytes(payload)))

    def run() -> None:
        try:
            while True:
                out = core.step()
                if out:
                    send(out)
                elif out is None:
                    core.wait(1.0)
        except BaseException as e:
            print(f"the runner ended: {e!r}", flush=True)
            os._exit(3)

    threading.Thread(target=run, daemon=True).start()
    pipe.send("{}:{}".format(*listening.getsockname()))
    while True:
        try:
            message, payload = pipe.recv()
        except EOFError:
            os._exit(0)
        send(core.receive(message, payload))


class Member:
    """One worker, as the test sees it."""

    def __init__(self, number: int, engine: str, settings: dict[str, Any]) -> None:
        # torch is imported once, by the process that all of them are forked from.
        fork = multiprocessing.get_context("forkserver")
        fork.set_forkserver_preload(["tests.processes.crew", "torch", "torch.distributed"])
        self.number = number
        self.pipe, theirs = fork.Pipe()
        self.process = fork.Process(target=serve, args=(theirs, engine, settings), daemon=True)
        self.process.start()
        theirs.close()
        self.heard: list[Any] = []

    def send(self, message: Any, payload: bytes | None = None) -> None:
        self.pipe.send((message, payload))

    def until(self, wanted: Any, deadline_s: float = DEADLINE_S) -> Any:
        """The first thing heard of which `wanted(message)` is true; it is taken out."""
        until_s = time.monotonic() + deadline_s
        while True:
            for k, (message, payload) in enumerate(self.heard):
                if wanted(message):
                    del self.heard[k]
                    return message, payload
            assert self.pipe.poll(max(0.0, until_s - time.monotonic())), f"worker {self.number} says nothing"
            self.heard.append(self.pipe.recv())

    def upload(self, session: int, id: int, array: np.ndarray[Any, Any]) -> None:
        data = array.tobytes()
        self.send(Chunk(session, id, 0, len(data), array.shape, dtypes.dtype(array.dtype).name), data)
        self.until(lambda m: isinstance(m, ChunkAck))

    def fetch(self, session: int, id: int) -> Any:
        """A value of one chunk; the Failure if there is none."""
        self.send(Fetch(session, 1, id))
        answer, payload = self.until(lambda m: isinstance(m, Chunk | FetchFailed))
        if isinstance(answer, FetchFailed):
            return answer.error
        return np.frombuffer(payload, dtypes.BY_NAME[answer.dtype].numpy).reshape(answer.shape)

    def outcome(self, seq: int, deadline_s: float = DEADLINE_S) -> str:
        """How a call ended: "" if well, else the kind of failure."""
        ended = lambda m: isinstance(m, CallDone | CallFailed) and m.seq == seq  # noqa: E731
        answer, _ = self.until(ended, deadline_s)
        return answer.error.kind if isinstance(answer, CallFailed) else ""


class Crew:
    """Workers 1, 2, ... that know each other."""

    def __init__(self, names: Sequence[str], settings: Sequence[dict[str, Any]] | None = None) -> None:
        given = settings or [{}] * len(names)
        self.members = {n: Member(n, name, given[n - 1]) for n, name in enumerate(names, 1)}
        self.addresses: dict[int, str] = {}
        for n, member in self.members.items():
            assert member.pipe.poll(DEADLINE_S)
            self.addresses[n] = member.pipe.recv()
            member.send(WorkerWelcome(1, n))
        self.seq = 0
        self.tell()

    def tell(self) -> None:
        for n, member in self.members.items():
            if n in self.addresses:
                member.send(Peers(self.addresses))

    def call(self, session: int, parts: dict[int, Any], outputs: int, acked: int = 0) -> int:
        """Send a call to all its workers; its number."""
        self.seq += 1
        for n, (program, inputs, scalars) in parts.items():
            self.members[n].send(Define(program))
            self.members[n].send(
                Call(session, self.seq, program.hash(), pack_ids(inputs), scalars, outputs, b"", acked)
            )
        return self.seq

    def outcomes(self, seq: int, workers: Sequence[int], deadline_s: float = DEADLINE_S) -> list[str]:
        return [self.members[n].outcome(seq, deadline_s) for n in workers]

    def end(self) -> None:
        for member in self.members.values():
            member.process.kill()
            member.process.join()
            member.pipe.close()
