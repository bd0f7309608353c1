"""GT beside PyTorch, op by op: a large matmul, Linear, a loss, a backward pass, activations.

`python benchmarks/compare.py [--device cpu|cuda] [--quick] [--json FILE]`. Both compute the same numbers, which is
checked first. In a row: 20 ops are issued, and then waited for; this is what a training loop does. Alone: every op is
waited for; the difference to PyTorch is the way to the worker and back. Workers do not compile here
(GT_AUTO_COMPILE=0), so both run the same kernels.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from measuring import Report, arguments, in_turn

os.environ.setdefault("GT_THREADS", str(torch.get_num_threads()))
os.environ["GT_AUTO_COMPILE"] = "0"

import gt

IN_A_ROW = 20

Case = Callable[[], Any]


def cases(lib: Any, tensor: Callable[..., Any]) -> dict[str, tuple[str, Case]]:
    """What is measured, by name: a description, and a function that issues it once. Both libraries run this text."""
    rng = np.random.default_rng(0)

    def random(*shape: int, **options: bool) -> Any:
        return tensor(rng.standard_normal(shape).astype(np.float32), **options)

    a, b = random(1000, 1000), random(1000, 1000)
    x, target = random(256, 784), random(256, 256)
    weight, bias = random(256, 784, requires_grad=True), random(256, requires_grad=True)
    F = lib.nn.functional

    def forward() -> Any:
        with lib.no_grad():
            return F.linear(x, weight, bias)

    def backward() -> Any:
        weight.grad = bias.grad = None
        F.mse_loss(F.linear(x, weight, bias).relu(), target).backward()
        return weight.grad

    return {
        "matmul": ("1000 x 1000 @ 1000 x 1000", lambda: a @ b),
        "linear": ("Linear(784, 256), batch 256", forward),
        "mse": ("mse_loss, 256 x 256", lambda: F.mse_loss(x[:, :256], target)),
        "backward": ("Linear, ReLU, MSE: backward", backward),
        "relu": ("relu, 1000 x 1000", lambda: a.relu()),
        "sigmoid": ("sigmoid, 1000 x 1000", lambda: a.sigmoid()),
        "tanh": ("tanh, 1000 x 1000", lambda: a.tanh()),
        "softmax": ("softmax, 1000 x 1000", lambda: F.softmax(a, dim=1)),
    }


def timed(case: Case, count: int, wait: Callable[[], None]) -> Callable[[], float]:
    """Microseconds per op, of `count` that are issued before they are waited for."""

    def measure() -> float:
        start = time.perf_counter()
        kept = [case() for _ in range(count)]  # a result that nobody holds would not be computed at all
        wait()
        taken = time.perf_counter() - start
        kept.clear()
        return taken / count * 1e6

    return measure


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options = parser.parse_args()
    os.environ["GT_DEVICE"] = options.device

    def to_torch(data: Any, requires_grad: bool = False) -> Any:
        return torch.from_numpy(data).to(options.device).requires_grad_(requires_grad)

    ours, theirs = cases(gt, gt.from_numpy), cases(torch, to_torch)
    wait_torch = torch.cuda.synchronize if options.device == "cuda" else lambda: None
    report = Report("compare", ("GT", "PyTorch"))
    for key, (what, case) in ours.items():
        rival = theirs[key][1]
        np.testing.assert_allclose(case().detach().numpy(), rival().detach().cpu().numpy(), rtol=1e-3, atol=1e-3)
        for name, count in (("in a row", 3 if options.quick else IN_A_ROW), ("alone", 1)):
            measured = timed(case, count, gt.cuda.synchronize), timed(rival, count, wait_torch)
            for warm in measured:
                warm()
            found = in_turn(1 if options.quick else 15, *measured)
            report.compare(f"{key} {name}", f"{what}, {name}", *found, "us", digits=0)
    report.finish(options.json)


if __name__ == "__main__":
    main()
