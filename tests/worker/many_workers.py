"""Several workers in one thread, and local programs written by hand for them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from worker_building import Builder

from gt import config, dtypes
from gt.program import Program
from gt.transport.messages import (
    Call,
    CallDone,
    CallFailed,
    Chunk,
    CloseSession,
    Define,
    Failure,
    Fetch,
    FetchFailed,
    WorkerWelcome,
    pack_ids,
)
from gt.worker.core import WorkerCore
from gt.worker.run.memory_groups import MemoryHub


@dataclass
class Part:
    """What one worker runs of a call."""

    program: Program
    inputs: Sequence[int] = ()
    scalars: tuple[Any, ...] = ()


def together(b: Builder, workers: Sequence[int], outputs: list[int], **ends: Any) -> Program:
    """A builder's program as a part of a call that these workers run."""
    return msgspec.structs.replace(b.program(outputs, **ends), workers=tuple(workers))


class Many:
    """Workers 1, 2, ... A seed decides who comes next; without one they take turns."""

    def __init__(self, engines: Sequence[Any], seed: int | None = None, **settings: Any) -> None:
        self.hall = MemoryHub()
        self.random = random.Random(seed) if seed is not None else None
        self.cores: dict[int, WorkerCore] = {}
        for number, engine in enumerate(engines, 1):
            mine = {k: v[number - 1] if isinstance(v, list) else v for k, v in settings.items()}
            core = WorkerCore(engine, config.replace(config.load(), **mine), network=self.hall.network)
            core.receive(WorkerWelcome(1, number))
            self.cores[number] = core
        self.sent: dict[int, list[Any]] = {n: [] for n in self.cores}
        self.payloads: dict[int, list[bytes]] = {n: [] for n in self.cores}
        self.defined: set[tuple[int, bytes]] = set()
        self.seq = 0
        self.request = 0

    def give(self, worker: int, message: Any, payload: Any = None) -> None:
        if worker in self.cores:
            self._note(worker, self.cores[worker].receive(message, payload))

    def _note(self, worker: int, out: Any) -> None:
        for message, payload in out or ():
            self.sent[worker].append(message)
            if payload is not None:
                self.payloads[worker].append(bytes(payload))

    def step(self) -> bool:
        """Let one worker that has something to do go on."""
        able = [n for n, core in self.cores.items() if core.busy]
        if not able:
            return False
        worker = self.random.choice(able) if self.random is not None else able[0]
        self._note(worker, self.cores[worker].step())
        return True

    def work(self) -> None:
        while self.step():
            pass

    def upload(self, worker: int, id: int, array: np.ndarray[Any, Any], session: int = 1, **more: Any) -> None:
        data = array.tobytes()
        name = dtypes.dtype(array.dtype).name
        self.give(worker, Chunk(session, id, 0, len(data), array.shape, name, **more), data)

    def define(self, worker: int, program: Program) -> None:
        if (worker, program.hash()) not in self.defined:
            self.defined.add((worker, program.hash()))
            self.give(worker, Define(program))

    def call(
        self, parts: dict[int, Part], outputs: int, session: int = 1, acked: int = 0, refused: Failure | None = None
    ) -> int:
        """Send a call to all its workers; its number."""
        self.seq += 1
        for worker, part in parts.items():
            self.define(worker, part.program)
            packed = pack_ids(part.inputs)
            call = Call(
                session, self.seq, part.program.hash(), packed, part.scalars, outputs, b"", acked, refused
            )  # fmt: skip
            self.give(worker, call)
        return self.seq

    def outcome(self, worker: int, seq: int) -> Any:
        """CallDone or CallFailed, whichever came; None if neither has."""
        answers = [m for m in self.sent[worker] if isinstance(m, CallDone | CallFailed) and m.seq == seq]
        assert len(answers) < 2
        return answers[0] if answers else None

    def kinds(self, seq: int) -> dict[int, str]:
        """How a call ended, by worker: "" if well, "?" if it has not ended."""
        found = {}
        for worker in self.cores:
            answer = self.outcome(worker, seq)
            if answer is not None:
                found[worker] = answer.error.kind if isinstance(answer, CallFailed) else ""
        return found

    def fetch(self, worker: int, id: int, session: int = 1) -> Any:
        """A small value; the Failure if there is none."""
        self.request += 1
        before = len(self.sent[worker])
        self.payloads[worker].clear()
        self.give(worker, Fetch(session, self.request, id))
        self.work()
        (answer,) = [m for m in self.sent[worker][before:] if isinstance(m, Chunk | FetchFailed)]
        if isinstance(answer, FetchFailed):
            return answer.error
        dtype = dtypes.BY_NAME[answer.dtype].numpy
        return np.frombuffer(self.payloads[worker][-1] if answer.total else b"", dtype).reshape(answer.shape)

    def close(self, session: int) -> None:
        for worker in self.cores:
            self.give(worker, CloseSession(session))

    def kill(self, worker: int) -> None:
        del self.cores[worker]
        self.hall.kill(worker)
