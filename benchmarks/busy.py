"""A CPU worker on a busy machine: GT with its own choice of threads beside PyTorch with one.

`python benchmarks/busy.py [--model mlp,cnn] [--spinners N] [--json FILE]`. On each core a process computes without end
(`--spinners`, one per core). Beside them GT and PyTorch train the zoo's models, round by round, and again without them.
PyTorch has one thread: with several it is many times slower there, because its threads wait for each other, spinning,
while another process has the core of one of them. GT's worker is as it starts by itself; nothing is compiled.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from typing import Any

from measuring import Report, arguments, quantile
from models import NAMES, model
from processes import Rival
from training import REAL, gt_trainer, torch_trainer

SMALL = ("mlp", "cnn", "gpt-char", "vit", "vae", "audio", "llama", "bert", "graph", "actor-critic")
ROUND_S = 0.5  #: How long a round is meant to be.
BUSY_TARGET, IDLE_TARGET = 1.3, 1.05


def alone() -> None:
    """Be a session of its own: Linux may divide the cores between sessions first, and GT's worker is one."""
    os.setsid()


class Spinner:
    """Computes without end."""

    def __init__(self) -> None:
        alone()
        while True:
            pass


class Side:
    """GT or PyTorch, with one model at a time."""

    def __init__(self, kind: str) -> None:
        alone()
        self.kind = kind

    def start(self, name: str) -> float:
        """Train until it runs as it will; the seconds of a step."""
        what = model(name, "cpu")
        if self.kind == "torch":
            import torch

            torch.set_num_threads(1)
            self.trainer = torch_trainer(what, "cpu", loop=REAL)
        else:
            self.trainer = gt_trainer(what, loop=REAL)
        self.round(10)
        return self.round(20) / 20

    def round(self, steps: int) -> float:
        """Seconds for so many steps, up to the last one's loss in the host's hands."""
        begin = time.perf_counter()
        for _ in range(steps):
            loss = self.trainer.step()
        loss.item()
        return time.perf_counter() - begin


def compare(sides: dict[str, Rival], name: str, rounds: int) -> dict[str, float]:
    """The median seconds of a step of each side."""
    step_s = min(side.ask("start", name) for side in sides.values())
    steps = max(3, int(ROUND_S / step_s))
    seconds: dict[str, list[float]] = {kind: [] for kind in sides}
    for _ in range(rounds):
        for kind, side in sides.items():
            seconds[kind].append(side.ask("round", steps) / steps)
    return {kind: quantile(found, 0.5) for kind, found in seconds.items()}


def measure(names: list[str], spinners: int, rounds: int, report: Report) -> None:
    with ExitStack() as ending:
        for _ in range(spinners):
            ending.enter_context(Rival(Spinner))
        environment = {"GT_AUTO_COMPILE": "0", "GT_DEVICE": "cpu"}
        sides = {kind: ending.enter_context(Rival(Side, (kind,), **environment)) for kind in ("gt", "torch")}
        for name in names:
            found = compare(sides, name, rounds)
            where, target = ("busy", BUSY_TARGET) if spinners else ("idle", IDLE_TARGET)
            report.compare(
                f"{name}, {where}", f"{name}, {where}", found["gt"] * 1e3, found["torch"] * 1e3, "ms", target
            )


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--model", default=",".join(SMALL), help=f"some of {', '.join(NAMES)} (%(default)s)")
    parser.add_argument("--spinners", type=int, default=os.cpu_count(), help="busy processes (%(default)s)")
    args: Any = parser.parse_args()
    names, rounds = args.model.split(","), 3 if args.quick else 9
    report = Report("busy", ("GT", "torch, 1 thread"))
    for spinners in (args.spinners, 0):
        measure(names, spinners, rounds, report)
    report.finish(args.json)


if __name__ == "__main__":
    main()
