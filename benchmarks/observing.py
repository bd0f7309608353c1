"""What it costs to be watched: training and reading with the instruction log, `gt top` and `gt trace` on.

`python benchmarks/observing.py [--quick] [--json FILE]`. Three servers, each with one worker and one client: nobody
looks at the first, the second writes the log, the third also has a `gt top` that asks every second and a `gt trace`
that records all the time. The clients train in turn, so that other load on the machine affects all alike. What a change
did to the case in which nobody looks, `against.py` measures with `overhead.py`.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from measuring import Report, arguments, in_turn
from processes import Rival, serving

import gt
from gt import nn
from gt.cli.asking import Asker
from gt.cli.top import overview
from gt.cli.trace import record

STEPS, READS = 40, 100  #: In a round.
TARGET = 1.15


class Client:
    """Trains an MLP of 784-256-256-10 with batch 64, or reads one small value after the other."""

    def __init__(self, address: str) -> None:
        gt.connect(address)
        gt.manual_seed(0)
        layers = [nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)]
        self.model = nn.Sequential(*layers)
        self.optimizer = gt.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.x, self.y = gt.randn(64, 784), gt.randint(0, 10, (64,))
        self.small = gt.ones(4)
        self.train()
        self.read()

    def train(self) -> float:
        """Microseconds of a step."""
        start = time.perf_counter()
        for step in range(STEPS):
            loss = nn.functional.cross_entropy(self.model(self.x), self.y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if step % 10 == 9:
                loss.item()
        return (time.perf_counter() - start) / STEPS * 1e6

    def read(self) -> float:
        """Microseconds of an op and the fetch of its result."""
        start = time.perf_counter()
        for _ in range(READS):
            (self.small + 1.0).numpy()
        return (time.perf_counter() - start) / READS * 1e6


class Top:
    """Asks as `gt top` does, for so long."""

    def __init__(self, address: str) -> None:
        self.address = address

    def watch(self, seconds: float) -> int:
        """How often it got an answer."""
        end, asked = time.monotonic() + seconds, 0
        with Asker(self.address, "", "gt top", 10.0) as asker:
            while time.monotonic() < end:
                asked += 1
                overview(asker, asked)
                time.sleep(1.0)
        return asked


class Tracer(Top):
    """Records as `gt trace` does, for so long."""

    def watch(self, seconds: float) -> int:
        """How many spans it got."""
        end, spans = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            with Asker(self.address, "", "gt trace", 10.0) as asker:
                found = record(asker, min(5.0, max(0.2, end - time.monotonic())))
            spans += sum(len(p.spans) for p in found.processes.values())
        return spans


def main() -> None:
    args = arguments(__doc__).parse_args()
    rounds = 3 if args.quick else 40
    report = Report("observing", ("watched", "nobody looks"))
    with ExitStack() as ending:
        log = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="gt-"))) / "log"
        settings: tuple[dict[str, str], ...] = ({}, {"GT_INSTRUCTION_LOG": str(log)}, {"GT_INSTRUCTION_LOG": f"{log}2"})
        addresses = [ending.enter_context(serving("cpu", GT_AUTO_COMPILE="0", GT_THREADS="1", **s)) for s in settings]
        clients = [ending.enter_context(Rival(Client, (address,))) for address in addresses]
        watchers = [ending.enter_context(Rival(kind, (addresses[2],))) for kind in (Top, Tracer)]
        for what, method, unit in (("training step", "train", "us"), ("op and fetch", "read", "us")):
            runs = [lambda c=client, m=method: c.ask(m) for client in clients]
            in_turn(2, *runs)
            begin = time.monotonic()
            in_turn(1, *runs)
            lasts_s = 1.2 * rounds * (time.monotonic() - begin) + 1.0
            for watcher in watchers:
                watcher.send("watch", lasts_s)
            nobody, logged, watched = in_turn(rounds, *runs)
            answers, spans = (watcher.answer() for watcher in watchers)
            report.compare(f"{method}_log", f"{what}, with the log", logged, nobody, unit, TARGET, digits=0)
            report.compare(f"{method}_all", f"{what}, with log, top and trace", watched, nobody, unit, TARGET, digits=0)
            report.figure(f"{method}_spans", f"{what}: spans that were recorded, {answers} answers to top", spans, "")
    report.finish(args.json)


if __name__ == "__main__":
    main()
