"""Interactive use: small programs whose results are read at once, with pauses in between.

`python benchmarks/interactive.py [--device cpu|cuda] [--json FILE]`.

- A light loop: a product of two 64x64 matrices, relu, sum, `item()`, then 1 ms of pause. After a pause all processes
  sleep, so this is mostly the time to wake them. Over a Unix socket (a private server) and over TCP; beside PyTorch.
  The same without the pause shows what waking costs.
- A policy-gradient loop: a policy of two layers acts on an environment in numpy, one observation at a time, and learns
  at the end of each episode. In microseconds per step of the environment, beside PyTorch on the same device.
"""

from __future__ import annotations

import importlib
import os
import statistics
import time
from typing import Any

import numpy as np
from measuring import Report, arguments
from processes import Rival, serving

SIZE, PAUSE_S = 64, 0.001
EPISODE = 50


def library(kind: str, address: str) -> Any:
    """torch with one thread, or gt connected to a server."""
    lib = importlib.import_module(kind)
    if kind == "torch":
        lib.set_num_threads(1)
    elif address:
        lib.connect(address)
    return lib


class Light:
    """The light loop of one side."""

    def __init__(self, kind: str, device: str, address: str = "") -> None:
        lib = library(kind, address)
        a, b = (np.random.default_rng(k).standard_normal((SIZE, SIZE), np.float32) for k in (0, 1))
        self.a, self.b = lib.from_numpy(a), lib.from_numpy(b)
        if kind == "torch":
            self.a, self.b = self.a.to(device), self.b.to(device)
        self.once(), self.once()

    def once(self) -> float:
        return float((self.a @ self.b).relu().sum().item())

    def rounds(self, count: int, pause_s: float) -> float:
        """The median seconds of a round, without the pause."""
        took = []
        for _ in range(count):
            begin = time.perf_counter()
            self.once()
            took.append(time.perf_counter() - begin)
            if pause_s:
                time.sleep(pause_s)
        return statistics.median(took)


class Pole:
    """An environment: a pole on a cart, pushed to the left or to the right."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.reset()

    def reset(self) -> np.ndarray[Any, Any]:
        self.state = self.rng.uniform(-0.05, 0.05, 4)
        return self.state.astype(np.float32)

    def step(self, action: int) -> tuple[np.ndarray[Any, Any], float]:
        _, v, angle, turning = self.state
        force = 10.0 if action else -10.0
        inner = (force + 0.05 * turning**2 * np.sin(angle)) / 1.1
        pull = (9.8 * np.sin(angle) - np.cos(angle) * inner) / (0.5 * (4 / 3 - 0.1 * np.cos(angle) ** 2 / 1.1))
        push = inner - 0.05 * pull * np.cos(angle) / 1.1
        self.state = self.state + 0.02 * np.array([v, push, turning, pull])
        return self.state.astype(np.float32), 1.0 if abs(angle) < 0.2 else 0.0


class Policy:
    """A policy-gradient loop with batches of one, as people write it."""

    def __init__(self, kind: str, device: str, address: str = "") -> None:
        lib = library(kind, address)
        self.lib, self.move = lib, (lambda t: t.to(device)) if kind == "torch" else (lambda t: t)
        nn = lib.nn
        lib.manual_seed(0)
        self.policy = self.move(nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2)))
        self.optimizer = lib.optim.Adam(self.policy.parameters(), lr=1e-2)
        self.environment, self.rng = Pole(0), np.random.default_rng(0)
        self.rounds(1)

    def rounds(self, episodes: int) -> float:
        """The median seconds of a step of the environment."""
        took = []
        for _ in range(episodes):
            begin = time.perf_counter()
            self.episode()
            took.append((time.perf_counter() - begin) / EPISODE)
        return statistics.median(took)

    def episode(self) -> None:
        lib, F = self.lib, self.lib.nn.functional
        seen, log_probs, rewards = self.environment.reset(), [], []
        for _ in range(EPISODE):
            logits = self.policy(self.move(lib.from_numpy(seen)))
            p = F.softmax(logits, dim=-1)
            action = int(self.rng.random() < float(p[1].item()))
            log_probs.append(F.log_softmax(logits, dim=-1)[action])
            seen, reward = self.environment.step(action)
            rewards.append(reward)
        returns = np.cumsum(np.array(rewards, np.float32)[::-1])[::-1].copy()
        returns = (returns - returns.mean()) / (returns.std() + 1e-6)
        loss = -(lib.stack(log_probs) * self.move(lib.from_numpy(returns))).sum()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def in_turn(sides: dict[str, Rival], turns: int, *arguments: Any) -> dict[str, float]:
    """The median over the turns of what each side's `rounds` returns."""
    found: dict[str, list[float]] = {kind: [] for kind in sides}
    for _ in range(turns):
        for kind, side in sides.items():
            found[kind].append(side.ask("rounds", *arguments))
    return {kind: statistics.median(each) for kind, each in found.items()}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where all compute (%(default)s)")
    args: Any = parser.parse_args()
    turns = 2 if args.quick else 7
    report = Report("interactive", ("GT", "PyTorch"))
    environment = {"GT_DEVICE": args.device, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    with serving(args.device, tcp=True, **environment) as tcp, serving(args.device, **environment) as unix:
        where = {"tcp": tcp, "unix": unix}
        with (
            Rival(Light, ("gt", args.device, tcp)) as a,
            Rival(Light, ("gt", args.device, unix)) as b,
            Rival(Light, ("torch", args.device)) as c,
        ):
            sides = {"tcp": a, "unix": b, "torch": c}
            for what, pause_s in (("light loop", PAUSE_S), ("without the pause", 0.0)):
                found = in_turn(sides, turns, 100 if args.quick else 300, pause_s)
                for kind in where:
                    name = f"{what}, {kind}"
                    report.compare(name, name, found[kind] * 1e6, found["torch"] * 1e6, "us", digits=0)
        with (
            Rival(Policy, ("gt", args.device, tcp)) as a,
            Rival(Policy, ("gt", args.device, unix)) as b,
            Rival(Policy, ("torch", args.device)) as c,
        ):
            found = in_turn({"tcp": a, "unix": b, "torch": c}, turns, 2 if args.quick else 5)
            for kind in where:
                name = f"policy gradient, {kind}"
                report.compare(name, name, found[kind] * 1e6, found["torch"] * 1e6, "us", digits=0)
    report.finish(args.json)


if __name__ == "__main__":
    main()
