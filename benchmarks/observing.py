"""What it costs to be watched: training and reading with the instruction log, `gt top` and `gt trace` on.

`python benchmarks/observing.py [--quick] [--json FILE] [--loops NAME ...]`. Three servers, each with one worker and one
client: nobody looks at the first, the second writes the log, the third also has a `gt top` that asks every second and a
`gt trace` that records all the time. The clients have turns, so that other load on the machine affects all alike. A
turn is several times as long as the log is behind, and begins when the log of the turn before is written: a client pays
for its own log, and for all of it. What a change did to the case in which nobody looks, `against.py` measures with
`overhead.py`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from measuring import Report, arguments, in_turn
from processes import Rival, serving

import gt
from gt import nn
from gt.cli.asking import Asker
from gt.cli.top import overview
from gt.cli.trace import record

TURN_S = 0.4
PAUSE_S = 0.2  #: The log is written by then.
TARGET = 1.15
LOOPS = {
    "train": "training step",
    "read": "op and fetch",
    "act": "policy step, 2 reads",
    "upload": "step with an upload and a read",
}


class Client:
    """The loops. Each of them returns the microseconds of a step."""

    def __init__(self, address: str) -> None:
        gt.connect(address)
        gt.manual_seed(0)
        layers = [nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)]
        self.model = nn.Sequential(*layers)
        self.optimizer = gt.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.x, self.y = gt.randn(64, 784), gt.randint(0, 10, (64,))
        self.batches = np.random.default_rng(0).standard_normal((16, 64, 784), np.float32)
        self.policy = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
        self.policy_optimizer = gt.optim.Adam(self.policy.parameters(), lr=1e-3)
        self.small = gt.ones(4)
        self.steps = 0

    def run(self, loop: str) -> float:
        """Steps for the length of a turn."""
        step: Callable[[], None] = getattr(self, loop)
        time.sleep(PAUSE_S)
        first, start_s = self.steps, time.perf_counter()
        while (took_s := time.perf_counter() - start_s) < TURN_S:
            for _ in range(20):
                self.steps += 1
                step()
        return took_s / (self.steps - first) * 1e6

    def train(self) -> None:
        """Of an MLP of 784-256-256-10 with batch 64; every tenth loss is read."""
        loss = self._step(self.x)
        if self.steps % 10 == 0:
            loss.item()

    def read(self) -> None:
        """An op, and its result is read."""
        (self.small + 1.0).numpy()

    def act(self) -> None:
        """Policy gradient with a batch of one: an action is drawn and read, then the loss."""
        scores = self.policy(gt.tensor([0.1 * (self.steps % 10), 0.2, 0.3, 0.4]))
        action = gt.multinomial(scores.softmax(0), 1).item()
        loss = -scores.log_softmax(0)[int(action)]
        self.policy_optimizer.zero_grad()
        loss.backward()
        self.policy_optimizer.step()
        loss.item()

    def upload(self) -> None:
        """A training step on a batch of the host; each loss is read."""
        self._step(gt.from_numpy(self.batches[self.steps % len(self.batches)])).item()

    def _step(self, x: gt.Tensor) -> gt.Tensor:
        loss = nn.functional.cross_entropy(self.model(x), self.y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


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
    parser = arguments(__doc__)
    parser.add_argument("--loops", nargs="*", choices=LOOPS, help="only these")
    args = parser.parse_args()
    rounds = 2 if args.quick else 15
    report = Report("observing", ("watched", "nobody looks"))
    with ExitStack() as ending:
        log = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="gt-"))) / "log"
        settings: tuple[dict[str, str], ...] = ({}, {"GT_INSTRUCTION_LOG": str(log)}, {"GT_INSTRUCTION_LOG": f"{log}2"})
        addresses = [ending.enter_context(serving("cpu", GT_AUTO_COMPILE="0", GT_THREADS="1", **s)) for s in settings]
        clients = [ending.enter_context(Rival(Client, (address,))) for address in addresses]
        watchers = [ending.enter_context(Rival(kind, (addresses[2],))) for kind in (Top, Tracer)]
        for loop in args.loops or LOOPS:
            what = LOOPS[loop]
            runs = [lambda c=client, m=loop: c.ask("run", m) for client in clients]
            in_turn(2, *runs)
            for watcher in watchers:
                watcher.send("watch", 1.1 * rounds * len(runs) * (TURN_S + PAUSE_S))
            nobody, logged, watched = in_turn(rounds, *runs)
            answers, spans = (watcher.answer() for watcher in watchers)
            report.compare(f"{loop}_log", f"{what}, with the log", logged, nobody, "us", TARGET, digits=0)
            report.compare(f"{loop}_all", f"{what}, with log, top and trace", watched, nobody, "us", TARGET, digits=0)
            report.figure(f"{loop}_spans", f"{what}: spans that were recorded, {answers} answers to top", spans, "")
    report.finish(args.json)


if __name__ == "__main__":
    main()
