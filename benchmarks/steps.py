"""A training step of GT over one of PyTorch eager: the same model, data, optimizer and starting weights.

`python benchmarks/steps.py --model mlp [--device cpu|cuda] [--steps N] [--quick] [--json FILE]`. On the
CPU each side computes with one thread. Losses are compared first: both must train alike.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from measuring import Report, arguments, in_turn

SIZES = (784, 256, 256, 10)
BATCH = 64
ROWS = 4096
LR = 1e-3


def options() -> Any:
    parser = arguments(__doc__)
    parser.add_argument("--model", choices=["mlp"], default="mlp", help="784-256-256-10, AdamW, batch 64")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where both compute (%(default)s)")
    parser.add_argument("--steps", type=int, default=50, metavar="N", help="steps in a round (%(default)s)")
    return parser.parse_args()


class Trainer:
    """One side. `lib` is torch or gt: the code of a step is the same."""

    def __init__(self, lib: Any, model: Any, x: Any, y: Any) -> None:
        self.lib, self.model, self.x, self.y = lib, model, x, y
        self.optimizer = lib.optim.AdamW(model.parameters(), lr=LR)
        self.at = 0

    def step(self) -> Any:
        i = self.at
        self.at = (i + BATCH) % ROWS
        return self.step_at(self.x, self.y, i)

    def step_at(self, x: Any, y: Any, i: Any) -> Any:
        logits = self.model(x[i : i + BATCH])
        loss = self.lib.nn.functional.cross_entropy(logits, y[i : i + BATCH])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def mlp(nn: Any) -> Any:
    a, b, c, d = SIZES
    return nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Linear(b, c), nn.ReLU(), nn.Linear(c, d))


def sides(device: str) -> tuple[Trainer, Trainer, Trainer]:
    """GT, GT with @gt.function, and torch, all with torch's initial weights."""
    import gt

    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, SIZES[0])).astype(np.float32)
    y = rng.integers(0, SIZES[-1], size=ROWS)
    torch.manual_seed(0)
    reference = mlp(torch.nn)
    weights = [p.detach().numpy().copy() for p in reference.parameters()]
    gx, gy = gt.from_numpy(x), gt.from_numpy(y)
    ours = []
    for _ in range(2):
        model = mlp(gt.nn)
        with gt.no_grad():
            for p, w in zip(model.parameters(), weights, strict=True):
                p.copy_(gt.from_numpy(w))
        ours.append(Trainer(gt, model, gx, gy))
    eager, replayed = ours
    replayed.step_at = gt.function(replayed.step_at)  # type: ignore[method-assign]
    reference.to(device)
    rival = Trainer(torch, reference, torch.from_numpy(x).to(device), torch.from_numpy(y).to(device))
    return eager, replayed, rival


def round_of(trainer: Trainer, steps: int) -> Callable[[], float]:
    """Seconds for so many steps, up to the last one's loss in the host's hands."""

    def run() -> float:
        start = time.perf_counter()
        for _ in range(steps):
            loss = trainer.step()
        loss.item()
        return time.perf_counter() - start

    return run


def main() -> None:
    args = options()
    os.environ["GT_DEVICE"] = args.device
    if args.device == "cpu":
        os.environ["GT_THREADS"] = "1"
        torch.set_num_threads(1)
    trainers = sides(args.device)
    losses = [[t.step().item() for _ in range(20)] for t in trainers]
    for each in losses[:2]:
        np.testing.assert_allclose(each, losses[2], rtol=1e-3)
    rounds = [round_of(t, 5 if args.quick else args.steps) for t in trainers]
    in_turn(2, *rounds)
    eager_s, replayed_s, torch_s = in_turn(3 if args.quick else 15, *rounds)
    per_step_ms = 1e3 / (5 if args.quick else args.steps)
    report = Report(f"steps {args.model} {args.device}")
    target = 1.1 if args.device == "cpu" else None
    name = f"{args.model}_{args.device}"
    for key, extra, seconds in ((name, "", eager_s), (f"{name}_function", ", @gt.function", replayed_s)):
        what = f"{args.model}, AdamW, batch {BATCH}, {args.device}{extra}"
        report.compare(key, what, seconds * per_step_ms, torch_s * per_step_ms, "ms", target, digits=3)
    report.finish(args.json)


if __name__ == "__main__":
    main()
