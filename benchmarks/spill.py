"""How fast tensors of an idle session leave the memory of a worker and come back, beside the bare copy.

`python benchmarks/spill.py [--device cuda:0] [--gib 4] [--quick] [--json FILE]`. One worker in this process. The bare
copy is that of the device: on a GPU between it and pinned host memory, on a CPU into memory that was used before. The
first round pins memory and is not counted. To disk: into a file in GT_SPILL_DIR, which the page cache may take.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from measuring import Report, arguments, in_turn

from gt import config, dtypes
from gt.program import spec
from gt.transport import messages as msg
from gt.worker import engines
from gt.worker.core import WorkerCore

PIECE = 64 << 20  #: Bytes of one tensor.


class Worker:
    """A worker with tensors of one session."""

    def __init__(self, engine: Any, nbytes: int, host: int) -> None:
        self.core = WorkerCore(engine, config.replace(config.load(), spill_memory=host))
        self.ids = list(range(1, 1 + nbytes // PIECE))
        session = self.core._session(1)
        self.core.engine.use(1)
        what = spec((PIECE,), dtypes.uint8)
        for i in self.ids:
            session.store.put(i, what, engine.from_bytes(np.full(PIECE, i % 251, np.uint8).data, what, given=True))

    def move(self, kind: type) -> float:
        """Seconds until all of them have left, or have come back."""
        begin = time.perf_counter()
        self.core.receive(kind(1, msg.pack_ids(self.ids)))
        while self.core.step() is not None:
            pass
        while self.core.move() is not None:
            pass
        return time.perf_counter() - begin

    def check(self) -> None:
        for i in (self.ids[0], self.ids[-1]):
            data = self.core.engine.to_bytes(self.core.sessions[1].store.entries[i].array)
            assert (np.frombuffer(data, np.uint8) == i % 251).all()


def bare(engine: Any, nbytes: int) -> tuple[Callable[[], float], Callable[[], float]]:
    """The copies out and back, without anything else."""
    count = nbytes // PIECE
    if engine.deferred:
        import torch

        here = torch.empty(PIECE, dtype=torch.uint8, device=engine.device)
        hosts = [torch.empty(PIECE, dtype=torch.uint8, pin_memory=True) for _ in range(min(count, 16))]

        def copy(out: bool) -> float:
            torch.cuda.current_stream().synchronize()
            begin = time.perf_counter()
            for k in range(count):
                host = hosts[k % len(hosts)]
                host.copy_(here, non_blocking=True) if out else here.copy_(host, non_blocking=True)
            torch.cuda.current_stream().synchronize()
            return time.perf_counter() - begin
    else:
        source = [np.ones(PIECE, np.uint8) for _ in range(count)]

        target = np.zeros(PIECE, np.uint8)

        def copy(out: bool) -> float:
            begin = time.perf_counter()
            for each in source:
                np.copyto(target, each)
            return time.perf_counter() - begin

    return lambda: copy(True), lambda: copy(False)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--gib", type=float, default=1.0, help="bytes that move, in GiB")
    args = parser.parse_args()
    nbytes = int((0.25 if args.quick else args.gib) * (1 << 30)) // PIECE * PIECE
    rounds = 2 if args.quick else 5
    engine = engines.load("torch", args.device)
    report = Report(f"spill on {args.device}", ("GT", "bare copy"))
    gib = nbytes / (1 << 30)
    for name, host in (("memory", 2 * nbytes), ("disk", 0)):
        worker = Worker(engine, nbytes, host)
        worker.move(msg.Spill)
        worker.move(msg.Return)
        bare_out, bare_back = bare(engine, nbytes)
        for way, kind, rival in (("out", msg.Spill, bare_out), ("back", msg.Return, bare_back)):
            other = msg.Return if kind is msg.Spill else msg.Spill

            def there(kind: type = kind, other: type = other, worker: Worker = worker) -> float:
                took = worker.move(kind)
                worker.move(other)
                return took

            if kind is msg.Return:
                worker.move(msg.Spill)
            mine, theirs = in_turn(rounds, there, rival)
            if kind is msg.Return:
                worker.move(msg.Return)
            report.compare(f"{name}_{way}_ms", f"{gib:g} GiB {way}, {name}", mine * 1e3, theirs * 1e3, "ms")
            report.figure(f"{name}_{way}_gib_per_s", f"its rate, {name} {way}", gib / mine, "GiB/s", digits=2)
        worker.check()
        del worker
    report.finish(args.json)


if __name__ == "__main__":
    main()
