"""The first step when the disk cache is warm: GT in a new server, beside the first step of PyTorch eager.

`python benchmarks/warm.py [--model mlp] [--device cpu|cuda] [--quick] [--json FILE]`. One process trains with an empty
cache until its step is compiled. Then new processes, each with a new server, train the same with that cache. The time
is from the beginning of the first step to its loss in the host's hands; the model and the data are there before.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from typing import Any

from measuring import arguments, print_table, write
from models import NAMES, model
from processes import Failed, Rival, threads
from training import gt_trainer, torch_trainer

TARGET_S = 2.0  #: The first step may take so much longer than eager's.


class First:
    """A process that is about to make its first step."""

    def __init__(self, name: str, device: str, kind: str) -> None:
        what = model(name, device)
        if kind == "eager":
            import torch

            if device == "cpu":
                torch.set_num_threads(1)
            self.trainer = torch_trainer(what, device)
        else:
            self.trainer = gt_trainer(what)
        self.trainer.data[0][:1].sum().item()  # all of it has arrived
        self.begin = 0.0

    def step(self) -> float:
        """Seconds of the first step."""
        self.begin = time.monotonic()
        self.trainer.step().item()
        return time.monotonic() - self.begin

    def settle(self, limit_s: float) -> tuple[int, float]:
        """Train until the step runs compiled: its tier, and the seconds since the first step began."""
        import watching

        def run() -> None:
            for _ in range(2):
                self.trainer.step().item()

        end = self.begin + limit_s
        while True:
            facts = watching.hottest(run)
            now = time.monotonic()
            if watching.compiled(facts) or watching.given_up(facts) or now > end:
                return int(facts["tier"]), now - self.begin


def once(args: argparse.Namespace, kind: str, cache: str, settle_s: float) -> dict[str, Any]:
    """One new process of this kind, from its first step until it runs compiled."""
    env = threads(args.device) | {"GT_DEVICE": args.device, "GT_CACHE_DIR": cache}
    with Rival(First, (args.model, args.device, kind), **env) as process:
        found = {"first_step_s": process.ask("step")}
        if kind == "gt":
            found["tier"], found["settled_s"] = process.ask("settle", settle_s)
    return found


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--model", choices=NAMES, default="mlp", help="what is trained (%(default)s)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where (%(default)s)")
    parser.add_argument("--settle", type=float, default=180, metavar="S", help="seconds to compile in (%(default)s)")
    args = parser.parse_args()
    settle_s = 0.0 if args.quick else args.settle
    warm: list[dict[str, Any]] = []
    eager: list[dict[str, Any]] = []
    try:
        with tempfile.TemporaryDirectory(prefix="gt-") as cache:
            cold = once(args, "gt", cache, settle_s)
            if cold["tier"] < 3 and not args.quick:
                raise Failed(f"nothing was compiled within {settle_s:g} s")
            for _ in range(1 if args.quick else 3):
                warm.append(once(args, "gt", cache, settle_s))
                eager.append(once(args, "eager", cache, 0.0))
    except Failed as e:
        sys.exit(f"warm: {e}")
    show(args, cold, warm, eager)


def show(
    args: argparse.Namespace, cold: dict[str, Any], warm: list[dict[str, Any]], eager: list[dict[str, Any]]
) -> None:
    def median(runs: list[dict[str, Any]], key: str) -> float:
        return statistics.median(run[key] for run in runs)

    first, rival = median(warm, "first_step_s"), median(eager, "first_step_s")
    late = first - rival
    rows = [("", "GT, warm", "GT, empty cache", "eager", "target")]
    goal = f"warm - eager <= {TARGET_S:g} s" + ("" if late <= TARGET_S else "  missed")
    rows.append(("first step", f"{first:.3f} s", f"{cold['first_step_s']:.3f} s", f"{rival:.3f} s", goal))
    settled = median(warm, "settled_s")
    rows.append(("until it ran compiled", f"{settled:.1f} s", f"{cold['settled_s']:.1f} s", "", ""))
    rows.append(("that tier", str(min(run["tier"] for run in warm)), str(cold["tier"]), "", ""))
    print_table(f"warm {args.model} {args.device}", rows)
    if args.json:
        found = {"model": args.model, "device": args.device, "warm": warm, "cold": cold, "eager": eager}
        write(args.json, "warm", {**found, "late_s": round(late, 4), "target_s": TARGET_S})


if __name__ == "__main__":
    main()
