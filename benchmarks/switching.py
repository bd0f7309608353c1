"""What a change of plan costs: the pause in the loop, and what another session notices of it.

`python benchmarks/switching.py [--workers 2] [--quick] [--json FILE]`. A plain loop (training, with an evaluation every
tenth step) runs under GT_AUTO_SHARD=1 until its plan has changed or was kept. A second session runs an op and reads it,
over and over. Its baseline is itself while the loop runs and nothing is searched for or changed.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
from measuring import Report, arguments, quantile
from processes import Rival, serving

WIDTH, ROWS = 768, 64
SETTLED_S = 5.0  #: How long the loop goes on after the last decision.


class Loop:
    """A training loop with evaluations, without a word about layouts."""

    def __init__(self, address: str) -> None:
        import gt
        from gt.client.session.connecting import current

        gt.connect(address)
        self.session = current()
        self.gt, nn = gt, gt.nn
        gt.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.optimizer = gt.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.rng = np.random.default_rng(0)
        self.stages: list[tuple[float, str, str]] = []  #: when, stage, decision: as they were first seen

    def step(self) -> float:
        gt = self.gt
        x = gt.from_numpy(self.rng.standard_normal((ROWS, WIDTH)).astype(np.float32))
        began = time.perf_counter()
        loss = (self.model(x) - x).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        loss.item()
        return time.perf_counter() - began

    def evaluate(self) -> None:
        with self.gt.no_grad():
            x = self.gt.from_numpy(self.rng.standard_normal((2 * ROWS, WIDTH)).astype(np.float32))
            (self.model(x) - x).square().mean().item()

    def run(self, steps: int, limit_s: float) -> dict[str, Any]:
        """Run so many steps, and until what was begun is decided. Times of steps, and what happened when."""
        began = time.monotonic()
        times: list[tuple[float, float]] = []
        while time.monotonic() - began < limit_s:
            at = time.monotonic()
            times.append((at, self.step()))
            if len(times) % 10 == 0:
                self.evaluate()
                row = self.session.stats()["session"]["plans"][0]
                stage, decision = str(row["stage"]), str(row["decision"])
                if not self.stages or self.stages[-1][1:] != (stage, decision):
                    self.stages.append((time.monotonic(), stage, decision))
                decided = decision and not stage and time.monotonic() - self.stages[-1][0] > SETTLED_S
                if len(times) >= steps and decided:
                    break
        return {"times": times, "stages": self.stages}


class Bystander:
    """Another session: an op and a read, over and over."""

    def __init__(self, address: str) -> None:
        import gt

        gt.connect(address, mesh={"x": 1})
        self.x = gt.ones(64, 64)

    def run(self, seconds: float) -> list[tuple[float, float]]:
        found = []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            at = time.monotonic()
            (self.x + 1.0).sum().item()
            found.append((at, time.monotonic() - at))
            time.sleep(0.005)
        return found


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    seconds = 20.0 if args.quick else 90.0
    with serving("cpu", args.workers, GT_AUTO_COMPILE="0", GT_PLAN_AFTER="3") as address:
        loop = Rival(Loop, (address,), GT_AUTO_SHARD="1", GT_AUTO_COMPILE="0")
        bystander = Rival(Bystander, (address,))
        try:
            loop.send("run", 60 if args.quick else 500, seconds)
            bystander.send("run", seconds / 2)
            seen, felt = loop.answer(), bystander.answer()
        finally:
            loop.close()
            bystander.close()
    report = Report("switching", ("meanwhile", "otherwise"))
    _show(report, seen, felt)
    report.finish(args.json)


def _show(report: Report, seen: dict[str, Any], felt: list[tuple[float, float]]) -> None:
    times, stages = seen["times"], seen["stages"]
    for at, stage, decision in stages:
        print(f"  {at - times[0][0]:6.1f} s  {stage or '-':10} {decision}")
    changes = sum(stage == "trial" or "took" in decision for _, stage, decision in stages)  # there, and back
    solving = next((at for at, stage, _ in stages if stage), times[-1][0])
    after = next((at for at, stage, decision in stages if decision), times[-1][0])
    median = statistics.median(t for at, t in times if at < solving)
    # The first step of the new plan is the last one before its trial was seen.
    arrived = [at for at, stage, _ in stages if stage == "trial"]
    around = [t for at, t in times if any(seen - 12 * median - 1 <= at <= seen for seen in arrived)]
    searching = [t for at, t in times if solving <= at <= (arrived or [after])[0]]
    settled = [t for at, t in times if at > after + 1] or [median]
    report.figure("before_ms", "step before", median * 1e3, "ms", 1)
    report.figure("after_ms", "step after", statistics.median(settled) * 1e3, "ms", 1)
    report.figure("searching_ms", "step while searching", statistics.median(searching or [median]) * 1e3, "ms", 1)
    pause = max(around, default=median) - median  # the step that waits takes as long as another, and the pause
    report.compare("pause", "pause at the change, beside a step", pause * 1e3, median * 1e3, "ms", 2.0)
    busy = [t for at, t in felt if solving <= at <= after]
    idle = [t for at, t in felt if not solving <= at <= after]
    if busy and idle:
        ours, usual = quantile(busy, 0.99) * 1e3, quantile(idle, 0.99) * 1e3
        report.compare("p99", "p99 of another session", ours, usual, "ms", 2.0)
    report.figure("changes", f"changes of plan in {len(times)} steps, with evaluations", changes, "")


if __name__ == "__main__":
    main()
