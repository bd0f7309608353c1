"""What one client feels of another's compiling: op-and-fetch before, and while the worker compiles a training step.

`python benchmarks/compiling.py [--device cpu|cuda] [--model mlp] [--quick] [--json FILE]`. Both clients have one server
with one worker and an empty cache of compiled programs. The other client calls its training step now and then, ten
times a second: first one that is never compiled, then one that is compiled at its first call. The second measurement
lasts until the worker runs the compiled program: so the compiling was within it.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
import time
from typing import Any

from measuring import Report, arguments, quantile
from models import NAMES, model
from processes import Failed, Rival, serving, threads
from training import gt_trainer

PAUSE_S = 0.1  #: Between two steps of the other client.
TARGET = 2.0


class Other:
    """The client whose program is compiled."""

    def __init__(self, device: str, name: str) -> None:
        self.device, self.name = device, name

    def make(self, batch: int, compiled: bool) -> None:
        """A training step of its own for this batch size, so that it is a new program; ready to be called."""
        import gt

        what = dataclasses.replace(model(self.name, self.device), batch=batch)
        self.trainer = gt_trainer(what)
        step_at = gt.function(self.trainer.step_at, compile=compiled)
        self.trainer.step_at = step_at  # type: ignore[method-assign]  # as users wrap it
        self.trainer.data[0][:1].sum().item()  # all of it has arrived

    def train(self, until_compiled: bool, seconds: float) -> tuple[bool, str]:
        """Call the step for so many seconds, or until it runs compiled: whether it did, or why it never will."""
        import watching

        end = time.monotonic() + seconds
        while True:
            facts = watching.hottest(lambda: self.trainer.step().item())
            done, why = watching.compiled(facts), watching.given_up(facts)
            if time.monotonic() > end or (until_compiled and (done or why)):
                return done, why
            time.sleep(PAUSE_S)  # the compiler shall have the time, not the question whether it is done


def op_and_fetch(x: Any) -> float:
    begin = time.perf_counter()
    (x + 1.0).numpy()
    return time.perf_counter() - begin


def during(other: Rival, x: Any, *asked: Any) -> tuple[list[float], bool, str]:
    """Samples taken while the other client trains; whether its step was compiled then, or why not."""
    other.send("train", *asked)
    samples = []
    while not other.ready():
        samples.append(op_and_fetch(x))
    return samples, *other.answer()


def measure(args: argparse.Namespace, address: str) -> Report:
    import gt

    gt.connect(address)
    x = gt.ones(4)
    for _ in range(200):
        op_and_fetch(x)
    before: list[float] = []
    busy: list[float] = []
    compiling_s: list[float] = []
    size = model(args.model, args.device).batch
    with Rival(Other, (args.device, args.model), GT_SERVER=address) as other:
        for turn in range(1 if args.quick else args.turns):
            other.ask("make", size + 2 * turn, False)
            samples, *_ = during(other, x, False, 0.5 if args.quick else 10.0)
            before += samples
            other.ask("make", size + 2 * turn + 1, True)
            begin = time.monotonic()
            samples, done, why = during(other, x, True, 1.0 if args.quick else args.limit)
            if not done and not args.quick:
                raise Failed(f"nothing was compiled within {args.limit:g} s {why}")
            took = time.monotonic() - begin
            compiling_s += [took] if done else []
            busy += samples
            print(f"  {'' if done else 'not '}compiled after {took:.1f} s", file=sys.stderr, flush=True)
    report = Report(f"compiling {args.model} {args.device}", ("compiling", "before"))
    for key, q, target in (("median", 0.5, None), ("p99", 0.99, TARGET)):
        what = f"{key} of op-and-fetch, while another's step compiles"
        now, then = quantile(busy, q) * 1e6, quantile(before, q) * 1e6
        report.compare(f"{key}_while_compiling", what, now, then, "us", target, digits=0)
    report.figure("samples", "samples while compiling", len(busy), "")
    if compiling_s:
        report.figure("compiling_s", "until the compiled program ran", quantile(compiling_s, 0.5), "s", digits=1)
    return report


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="of the worker (%(default)s)")
    parser.add_argument("--model", choices=NAMES, default="mlp", help="what the other trains (%(default)s)")
    parser.add_argument("--turns", type=int, default=3, help="programs to compile, one after the other (%(default)s)")
    parser.add_argument("--limit", type=float, default=180, metavar="S", help="seconds to compile in (%(default)s)")
    args = parser.parse_args()
    import gt

    try:
        with tempfile.TemporaryDirectory(prefix="gt-") as cache:
            with serving(args.device, GT_CACHE_DIR=cache, **threads(args.device)) as address:
                try:
                    report = measure(args, address)
                finally:
                    gt.disconnect()
    except Failed as e:
        sys.exit(f"compiling: {e}")
    report.finish(args.json)


if __name__ == "__main__":
    main()
