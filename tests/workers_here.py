"""Several workers without a dispatcher: a test sends each of them its messages.

`Many` are worker cores in this thread: a seed decides which of them goes on next. `Crew` are workers in processes of
their own, that meet over gloo. Tests use both in the same way: `upload`, `call`, `kinds` and `fetch`.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from gt import config, dtypes
from gt.program import Program
from gt.transport import messages as msg
from gt.worker import engines
from gt.worker.core import WorkerCore
from tests.sim.memory_groups import MemoryHub
from tests.worker.worker_building import Builder

DEADLINE_S = 60.0  #: For a loaded machine; nothing takes that long when all is well.


# --- local programs written by hand -----------------------------------------------------------------------


@dataclass
class Part:
    """What one worker runs of a call."""

    program: Program
    inputs: Sequence[int] = ()
    scalars: tuple[Any, ...] = ()


def together(b: Builder, workers: Sequence[int], outputs: list[int], **ends: Any) -> Program:
    """A builder's program as a part of a call that these workers run."""
    return msgspec.structs.replace(b.program(outputs, **ends), workers=tuple(workers))


def parts(
    workers: Sequence[int], write: Callable[[int], Program], inputs: Sequence[int], *scalars: Any
) -> dict[int, Part]:
    """The parts of a call: `write` makes the program of each rank."""
    return {w: Part(write(rank), inputs, scalars) for rank, w in enumerate(workers)}


def sum_program(workers: Sequence[int], rank: int, size: int = 2) -> Program:
    """x -> -(sum of all x), and x + 1, which has nothing to do with it."""
    b = Builder((size,), scalars="f")
    total = b.add("all_reduce", 0, workers=tuple(workers), rank=rank, kind="sum")
    beside = b.add("add", 0, ~0)
    return together(b, workers, [b.add("neg", total), beside])


def sums(workers: Sequence[int], inputs: Sequence[int]) -> dict[int, Part]:
    return parts(workers, lambda rank: sum_program(workers, rank), inputs, 1.0)


def steps(workers: Sequence[int], inputs: Sequence[int], wide: int = 0) -> dict[int, Part]:
    """(state, gradient) -> state + sum of gradients, in place, and minus the sum. A `wide` array is made in between."""

    def write(rank: int) -> Program:
        b = Builder((2,), (2,))
        group: dict[str, Any] = {"workers": tuple(workers), "rank": rank, "kind": "sum"}
        total = b.add("all_reduce", 1, **group)
        beside = b.add("neg", total)
        if wide:
            large = b.add("expand", b.add("reshape", beside, shape=(2, 1)), shape=(2, wide))
            beside = b.add("all_reduce", b.add("sum", b.add("neg", large), dims=(1,), keepdim=False), **group)
        new = b.add("assign", 0, b.add("add", 0, total))
        return together(b, workers, [new, beside], donate=(0,), updates=((0, 0),))

    return parts(workers, write, inputs)


# --- workers ----------------------------------------------------------------------------------------------


class Workers:
    """What a test does with workers, wherever they run."""

    def __init__(self, numbers: Iterable[int]) -> None:
        #: What each worker has sent, with payloads; what a test asked for is taken out.
        self.heard: dict[int, list[tuple[Any, bytes | None]]] = {n: [] for n in numbers}
        self.defined: set[tuple[int, bytes]] = set()
        self.seq = 0
        self.request = 0

    def send(self, worker: int, message: Any, payload: bytes | None = None) -> None:
        raise NotImplementedError

    def answer(self, worker: int, wanted: Callable[[Any], bool]) -> tuple[Any, Any]:
        """The first thing heard that is wanted; (None, None) if it will not come."""
        for k, (message, payload) in enumerate(self.heard[worker]):
            if wanted(message):
                del self.heard[worker][k]
                return message, payload
        return None, None

    def upload(self, worker: int, id: int, array: np.ndarray[Any, Any], session: int = 1, **more: Any) -> None:
        data = array.tobytes()
        name = dtypes.dtype(array.dtype).name
        self.send(worker, msg.Chunk(session, id, 0, len(data), array.shape, name, **more), data)

    def call(
        self, parts: dict[int, Part], outputs: int, session: int = 1, acked: int = 0, refused: msg.Failure | None = None
    ) -> int:
        """Send a call to all its workers; its number."""
        self.seq += 1
        for worker, part in parts.items():
            hash = part.program.hash()
            if (worker, hash) not in self.defined:
                self.defined.add((worker, hash))
                self.send(worker, msg.Define(part.program))
            packed = msg.pack_ids(part.inputs)
            self.send(worker, msg.Call(session, self.seq, hash, packed, part.scalars, outputs, b"", acked, refused))
        return self.seq

    def outcome(self, worker: int, seq: int) -> Any:
        """CallDone or CallFailed, whichever came; None if neither has."""
        ended = [m for m, _ in self.heard[worker] if isinstance(m, msg.CallDone | msg.CallFailed) and m.seq == seq]
        assert len(ended) < 2
        return ended[0] if ended else None

    def kinds(self, seq: int, workers: Iterable[int] | None = None) -> dict[int, str]:
        """How a call ended, by worker: "" if well, else the kind of failure. Who has not answered is left out."""
        found = {w: self.outcome(w, seq) for w in (self.heard if workers is None else workers)}
        return {w: a.error.kind if isinstance(a, msg.CallFailed) else "" for w, a in found.items() if a is not None}

    def run(self, parts: dict[int, Part], outputs: int, session: int = 1, acked: int = 0) -> dict[int, str]:
        """Send a call, wait for it, and say how it ended."""
        return self.kinds(self.call(parts, outputs, session, acked), parts)

    def fetch(self, worker: int, id: int, session: int = 1) -> Any:
        """A value of one chunk; the Failure if there is none."""
        self.request += 1
        self.send(worker, msg.Fetch(session, self.request, id))
        answer, payload = self.answer(worker, lambda m: isinstance(m, msg.Chunk | msg.FetchFailed))
        if isinstance(answer, msg.FetchFailed):
            return answer.error
        dtype = dtypes.BY_NAME[answer.dtype].numpy
        return np.frombuffer(payload if answer.total else b"", dtype).reshape(answer.shape)

    def close(self, session: int) -> None:
        for worker in self.heard:
            self.send(worker, msg.CloseSession(session))


class Many(Workers):
    """Workers 1, 2, ... in this thread. A seed decides who comes next; without one they take turns."""

    def __init__(self, engines: Sequence[Any], seed: int | None = None, **settings: Any) -> None:
        super().__init__(range(1, 1 + len(engines)))
        self.hall = MemoryHub()
        self.random = random.Random(seed) if seed is not None else None
        self.cores: dict[int, WorkerCore] = {}
        for number, engine in enumerate(engines, 1):
            mine = {k: v[number - 1] if isinstance(v, list) else v for k, v in settings.items()}
            core = WorkerCore(engine, config.replace(config.load(), **mine), network=self.hall.network)
            core.receive(msg.WorkerWelcome(1, number))
            self.cores[number] = core

    def send(self, worker: int, message: Any, payload: bytes | None = None) -> None:
        if worker in self.cores:
            self._note(worker, self.cores[worker].receive(message, payload))

    def _note(self, worker: int, out: Any) -> None:
        self.heard[worker] += [(message, None if payload is None else bytes(payload)) for message, payload in out or ()]

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

    def answer(self, worker: int, wanted: Callable[[Any], bool]) -> tuple[Any, Any]:
        self.work()
        return super().answer(worker, wanted)

    def kinds(self, seq: int, workers: Iterable[int] | None = None) -> dict[int, str]:
        self.work()
        return super().kinds(seq, self.cores)

    def kill(self, worker: int) -> None:
        del self.cores[worker]
        self.hall.kill(worker)


class Crew(Workers):
    """Workers 1, 2, ... in processes of their own. They know each other."""

    def __init__(self, names: Sequence[str], settings: Sequence[dict[str, Any]]) -> None:
        super().__init__(range(1, 1 + len(names)))
        # torch is imported once, by the process that all of them are forked from.
        fork = multiprocessing.get_context("forkserver")
        fork.set_forkserver_preload(["tests.workers_here", "torch", "torch.distributed"])
        self.pipes: dict[int, Any] = {}
        self.processes: dict[int, Any] = {}
        for n, (name, mine) in enumerate(zip(names, settings, strict=True), 1):
            self.pipes[n], theirs = fork.Pipe()
            self.processes[n] = fork.Process(target=serve, args=(theirs, name, mine), daemon=True)
            self.processes[n].start()
            theirs.close()
        self.addresses: dict[int, str] = {}
        for n, pipe in self.pipes.items():
            assert pipe.poll(DEADLINE_S)
            self.addresses[n] = pipe.recv()
            self.send(n, msg.WorkerWelcome(1, n))
        self.tell()

    def tell(self) -> None:
        """Tell those that live of each other."""
        for n in self.addresses:
            self.send(n, msg.Peers(self.addresses))

    def send(self, worker: int, message: Any, payload: bytes | None = None) -> None:
        self.pipes[worker].send((message, payload))

    def _hear(self, worker: int, found: Callable[[], Any]) -> Any:
        """Listen to a worker until something is found."""
        until_s = time.monotonic() + DEADLINE_S
        while (got := found()) is None:
            assert self.pipes[worker].poll(max(0.0, until_s - time.monotonic())), f"worker {worker} says nothing"
            self.heard[worker].append(self.pipes[worker].recv())
        return got

    def answer(self, worker: int, wanted: Callable[[Any], bool]) -> tuple[Any, Any]:
        def found() -> Any:
            got = Workers.answer(self, worker, wanted)
            return got if got[0] is not None else None

        return self._hear(worker, found)  # type: ignore[no-any-return]

    def outcome(self, worker: int, seq: int) -> Any:
        return self._hear(worker, lambda: Workers.outcome(self, worker, seq))

    def kill(self, worker: int) -> None:
        self.signal(worker, signal.SIGKILL)
        self.processes[worker].join()
        del self.addresses[worker]
        self.tell()

    def signal(self, worker: int, number: int) -> None:
        os.kill(self.processes[worker].pid, number)

    def end(self) -> None:
        for n, process in self.processes.items():
            process.kill()
            process.join()
            self.pipes[n].close()


def serve(pipe: Any, engine: str, settings: dict[str, Any]) -> None:
    """The process of a worker of a crew: one thread reads, one runs programs."""
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


# --- what workers do together, wherever they run ----------------------------------------------------------

ALL = (1, 2, 3)


def check_exchanges(workers: Workers, session: int = 1) -> None:
    """Exchanges and gathers of uneven sizes, sums, and a group of some of three workers; twice."""
    sizes = [[0, 3, 1], [2, 0, 0], [1, 4, 2]]  # from each to each
    mine = (3, 0, 2)

    def write(r: int) -> Program:
        b = Builder((sum(sizes[r]),), (mine[r],), (4,))
        takes = tuple(sizes[s][r] for s in range(3))
        group: dict[str, Any] = {"workers": ALL, "rank": r}
        exchanged = b.add("all_to_all", 0, sends=tuple(sizes[r]), takes=takes, **group)
        gathered = b.add("all_gather", 1, sizes=mine, **group)
        total = b.add("all_reduce", 2, kind="sum", **group)
        outputs = [exchanged, gathered, b.add("neg", total)]
        if r != 1:  # a group of some of them
            outputs.append(b.add("all_reduce", 2, workers=(1, 3), rank=r // 2, kind="max"))
        return together(b, ALL, outputs)

    for r in range(3):
        values = [100 * r + 10 * to + i for to in range(3) for i in range(sizes[r][to])]
        workers.upload(r + 1, 1, np.array(values, np.float32), session)
        workers.upload(r + 1, 2, np.arange(10 * r, 10 * r + mine[r], dtype=np.float32), session)
        workers.upload(r + 1, 3, np.array([r, -r, 1, 2 * r], np.float32), session)
    for first in (10, 20):
        assert workers.run(parts(ALL, write, [1, 2, 3]), first, session) == dict.fromkeys(ALL, "")
    for r in range(3):
        want = [100 * s + 10 * r + i for s in range(3) for i in range(sizes[s][r])]
        np.testing.assert_array_equal(workers.fetch(r + 1, 20, session), want)
        np.testing.assert_array_equal(workers.fetch(r + 1, 21, session), [0, 1, 2, 20, 21])
        np.testing.assert_array_equal(workers.fetch(r + 1, 22, session), [-3, 3, -3, -6])
        if r != 1:
            np.testing.assert_array_equal(workers.fetch(r + 1, 23, session), [2, 0, 1, 4])


def check_reductions(workers: Workers, session: int = 1) -> None:
    """Every kind of reduction of every dtype, by three workers. A nan stays one."""
    kinds = [(d, k) for d in dtypes.ALL for k in ("sum", "max", "min") if k == "sum" or not d.is_complex]
    values = [np.array(v) for v in ([0, 1, 3, 1, 0], [1, 1, 2, 0, 2], [0, 1, 5, 0, 0])]

    def write(r: int) -> Program:
        b = Builder(*[(5,)] * len(dtypes.ALL), kinds={i: d.name for i, d in enumerate(dtypes.ALL)})
        made = [b.add("all_reduce", dtypes.ALL.index(d), workers=ALL, rank=r, kind=k) for d, k in kinds]
        return together(b, ALL, made)

    for r, value in enumerate(values):
        for i, d in enumerate(dtypes.ALL):
            array = value.astype(d.numpy)
            if d.is_floating_point and r == 1:
                array[4] = np.nan
            workers.upload(r + 1, 1 + i, array, session)
    ended = workers.run(parts(ALL, write, range(1, 1 + len(dtypes.ALL))), 100, session)
    assert ended == dict.fromkeys(ALL, "")
    for k, (d, kind) in enumerate(kinds):
        f = {"sum": np.add, "max": np.maximum, "min": np.minimum}[kind]
        want = f(f(values[0].astype(d.numpy), values[1].astype(d.numpy)), values[2].astype(d.numpy)).astype(complex)
        if d.is_floating_point:
            want[4] = np.nan
        for w in ALL:
            made = workers.fetch(w, 100 + k, session).astype(complex)
            np.testing.assert_array_equal(made.real, want.real, f"{kind} of {d.name} on worker {w}")
