"""A worker core in the hands of a test: messages in, work done, messages out."""

from __future__ import annotations

from typing import Any

import numpy as np

from gt import dtypes
from gt.config import Config
from gt.program import Program
from gt.transport import messages as msg
from gt.worker.core import WorkerCore
from gt.worker.run.store import Entry


class Driver:
    """One session of a worker: its first, unless `core` is one that others use too."""

    def __init__(
        self, engine: Any, config: Config | None = None, session: int = 1, core: WorkerCore | None = None
    ) -> None:
        self.core = core or WorkerCore(engine, config or Config())
        self.session = session
        self.seq = 0
        self.request = 0
        self.payloads: list[bytes] = []  #: of the chunks that came last

    def beside(self) -> Driver:
        """Another session on the same worker."""
        return Driver(self.core.engine, session=self.session + 1, core=self.core)

    def work(self) -> list[Any]:
        """Let the core do all there is to do; the messages it sent."""
        sent = []
        while (out := self.core.step()) is not None or self.on_device():
            sent += out or []
        self.payloads = [bytes(p) for _, p in sent if p is not None]
        return [m for m, _ in sent]

    def on_device(self) -> bool:
        """Whether a real device still has calls of ours. One that a test plays does its work only when the core can
        do nothing before."""
        engine: Any = self.core.engine  # it may be a worker_building.Device
        if engine.device == "cpu" and self.core.waiting:
            engine.done += 1
            return True
        return engine.device != "cpu" and self.core.in_flight > 0

    def send(self, message: Any, payload: bytes | None = None) -> list[Any]:
        answers = [m for m, _ in self.core.receive(message, payload)]
        return answers + self.work()

    def receive(self, *messages: Any) -> None:
        """Messages that come before anything is done about them."""
        for message in messages:
            self.core.receive(message)

    def define(self, *programs: Program, timed: bool = False) -> None:
        for program in programs:
            assert self.send(msg.Define(program, timed)) == []

    def call_message(self, program: Program, inputs: list[int], outputs: int, **more: Any) -> msg.Call:
        self.seq += 1
        frees = msg.pack_ids(more.get("frees", ()))
        return msg.Call(
            self.session, self.seq, program.hash(), msg.pack_ids(inputs), tuple(more.get("scalars", ())), outputs,
            frees, more.get("acked", 0), more.get("refused"),
        )  # fmt: skip

    def call(self, program: Program, inputs: list[int], outputs: int, **more: Any) -> list[Any]:
        """Call a program, bringing its text if it is asked for; what the worker reports."""
        answers = self.send(self.call_message(program, inputs, outputs, **more))
        if answers and isinstance(answers[-1], msg.Need):
            return [*answers[:-1], *self.send(msg.Define(program))]
        return answers

    def fails(self, program: Program, inputs: list[int], outputs: int, **more: Any) -> msg.CallFailed:
        """Call a program that fails; its failure."""
        (failed,) = self.call(program, inputs, outputs, **more)
        assert isinstance(failed, msg.CallFailed)
        return failed

    def upload(self, id: int, array: np.ndarray[Any, Any]) -> list[Any]:
        data = array.tobytes()
        answers = []
        for offset in range(0, max(1, len(data)), msg.CHUNK):
            head = (array.shape, dtypes.dtype(array.dtype).name) if offset == 0 else ()
            chunk = msg.Chunk(self.session, id, offset, len(data), *head)
            answers += self.send(chunk, data[offset : offset + msg.CHUNK])
        assert answers == [msg.ChunkAck(self.session, id, True)] * len(answers)
        return answers

    def holding(self, *arrays: np.ndarray[Any, Any]) -> Driver:
        """Itself, when it has these as tensors 1, 2, ..."""
        for id, array in enumerate(arrays, 1):
            self.upload(id, array)
        return self

    def entry(self, id: int) -> Entry:
        return self.core.sessions[self.session].store.entries[id]

    def free(self, ids: list[int]) -> None:
        assert self.send(msg.Free(self.session, msg.pack_ids(ids))) == []

    def fetch_message(self, id: int) -> msg.Fetch:
        self.request += 1
        return msg.Fetch(self.session, self.request, id)

    def fetch(self, id: int) -> np.ndarray[Any, Any]:
        """A value that fits in a few chunks."""
        chunks = [m for m in self.send(self.fetch_message(id)) if isinstance(m, msg.Chunk)]
        first = chunks[0]
        assert sum(map(len, self.payloads)) == first.total
        return np.frombuffer(b"".join(self.payloads), dtypes.BY_NAME[first.dtype].numpy).reshape(first.shape)

    def fetch_error(self, id: int) -> msg.Failure:
        answer = self.send(self.fetch_message(id))[-1]
        assert isinstance(answer, msg.FetchFailed)
        return answer.error

    def stats(self) -> dict[str, Any]:
        (answer,) = self.send(msg.GetStats(7))
        assert isinstance(answer, msg.Stats)
        return answer.data

    def tensors(self) -> int:
        return int(self.stats()["sessions"][str(self.session)]["tensors"])
