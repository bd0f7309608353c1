"""Users of one worker: one who asks for little beside greedy ones; equals beside each other; shares of 2 to 1.

`python benchmarks/fairness.py [--greedy matmul,long,middling,conv,...] [--counts 1,4,8] [--light op|mlp|batch]`. The
light user runs a small op, reads its result and pauses, again and again; or trains a small network, on what it has
(`mlp`) or on a batch that it uploads (`batch`). The greedy ones send programs as fast as the server takes them: long
ones, or many of some 10 ms (`middling`); `trained` is a training step that was compiled. For each number of greedy
users: the light user's round trip, its median and its 99th percentile, over the same figures of the idle worker; and
what the greedy ones get done without it, over what they get done beside it. Rounds with and without the light user take
turns. Where clients and worker share cores, what the light user's own process needs of them is lost to the others too:
that is shown. All are processes of their own.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import watching
from measuring import Report, arguments, quantile
from processes import Failed, Rival, serving

from gt.cli.asking import Asker
from gt.cli.top import overview
from gt.server import users
from gt.transport.identity import WORKER, url

SMALL = 64
MEDIAN_TARGET, P99_TARGET, LOSS_TARGET = 3.0, 10.0, 1 / 0.95
KINDS = ("matmul", "long", "middling", "layers", "tiny", "conv", "trained", "sharded")
COMPILED = ("trained",)  #: Only these are compiled, before anything is timed, for up to
SETTLE_S = 120.0  #: so many seconds.


def connected(address: str) -> Any:
    """GT, as a client of this server."""
    import gt

    gt.connect(address)
    return gt


def session() -> Any:
    from gt.client.record.recorder import recorder

    return recorder().session


class Light:
    """Asks for little: one small op, or a training step of a small network; reads the result; pauses."""

    def __init__(self, address: str, kind: str) -> None:
        gt = self.gt = connected(address)
        self.rng = random.Random(0)
        a, b = (np.random.default_rng(k).standard_normal((SMALL, SMALL), np.float32) for k in (0, 1))
        self.a, self.b = gt.from_numpy(a), gt.from_numpy(b)
        if kind != "op":
            nn = gt.nn
            self.model = nn.Sequential(nn.Linear(SMALL, 128), nn.ReLU(), nn.Linear(128, 10))
            self.optimizer = gt.optim.AdamW(self.model.parameters())
            self.once = self._train if kind == "mlp" else self._train_on_a_batch
        for _ in range(50):
            self.once()

    def once(self) -> float:
        return float((self.a @ self.b).relu().sum().item())

    def _train(self) -> float:
        self.optimizer.zero_grad()
        loss = (self.model(self.a) - self.b[:, :10]).square().mean()
        loss.backward()
        self.optimizer.step()
        return float(loss.item())

    def _train_on_a_batch(self) -> float:
        self.a = self.gt.tensor([[self.rng.random() for _ in range(SMALL)] for _ in range(SMALL)])
        return self._train()

    def rounds(self, seconds: float, pause_s: float) -> tuple[list[float], float]:
        """The seconds of each round trip, for so long, with about such pauses; and how much of a core it used."""
        took = []
        began_s, used_s = time.monotonic(), time.process_time()
        until = began_s + seconds
        while time.monotonic() < until:
            begin = time.perf_counter()
            self.once()
            took.append(time.perf_counter() - begin)
            time.sleep(pause_s * self.rng.uniform(0.5, 1.5))  # the user reads, thinks and types
        return took, (time.process_time() - used_s) / (time.monotonic() - began_s)


class Greedy:
    """Sends long programs as fast as the server takes them, and reads nothing."""

    def __init__(self, address: str, kind: str, seed: int) -> None:
        gt = self.gt = connected(address)
        gt.manual_seed(seed)
        getattr(self, f"_{kind}")()
        self.last: Any = None
        for _ in range(3):
            self.last = self.step()
        self.last.sum().item()
        if kind in COMPILED:
            watching.settle(lambda: [self.step() for _ in range(10)], SETTLE_S)

    def _matmul(self) -> None:
        gt = self.gt
        a = gt.randn(1280, 1280)
        self.step = gt.function(lambda: (a @ a).mean())

    def _long(self) -> None:
        gt = self.gt
        a = gt.randn(2304, 2304)
        self.step = gt.function(lambda: (a @ a).mean())

    def _middling(self) -> None:
        """What a researcher with a small model does."""
        gt, nn = self.gt, self.gt.nn
        model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
        optimizer = gt.optim.SGD(model.parameters(), lr=0.01)
        x, y = gt.randn(512, 256), gt.randint(0, 10, (512,))

        def step() -> Any:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        self.step = step

    def _layers(self) -> None:
        gt = self.gt
        a, w = gt.randn(512, 512), gt.randn(512, 512) / 23

        def step() -> Any:
            x = a
            for _ in range(40):
                x = (x @ w).relu()
            return x.mean()

        self.step = gt.function(step)

    def _tiny(self) -> None:
        gt = self.gt
        a = gt.randn(8, 8)

        def step() -> Any:
            x = a
            for _ in range(20_000):
                x = x + 1
            return x.mean()

        self.step = gt.function(step)

    def _conv(self) -> None:
        gt, nn = self.gt, self.gt.nn
        model = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),
            nn.MaxPool2d(4), nn.Flatten(), nn.Linear(32 * 64, 10),
        )  # fmt: skip
        optimizer = gt.optim.AdamW(model.parameters())
        x, y = gt.randn(64, 3, 32, 32), gt.randint(0, 10, (64,))

        def step() -> Any:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        self.step = step

    def _trained(self) -> None:
        gt, nn = self.gt, self.gt.nn
        layers = [each for _ in range(6) for each in (nn.Linear(512, 512), nn.GELU(), nn.LayerNorm(512))]
        model = nn.Sequential(*layers)
        optimizer = gt.optim.AdamW(model.parameters())
        x, y = gt.randn(1024, 512), gt.randn(1024, 512)

        def step() -> Any:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        self.step = step

    def _sharded(self) -> None:
        gt = self.gt
        gt.mesh(x=2)
        a = gt.shard(gt.randn(2560, 1280), {0: "x"})
        w = gt.randn(1280, 1280)
        self.step = gt.function(lambda: (a @ w).mean())

    def number(self) -> int:
        return int(session().number)

    def run(self, until: float) -> None:
        """Go on until this moment, then leave: what is still queued is dropped with the session."""
        while time.monotonic() < until:
            self.last = self.step()
        os._exit(0)

    def count(self, at: float, seconds: float) -> int:
        """Calls that are done from this moment on, in so many seconds."""
        here, done = session(), 0
        while time.monotonic() < at + seconds:
            if time.monotonic() < at:
                done = here.done
            self.last = self.step()
        return int(here.done) - done


class Watch:
    """The server's sessions, as `gt top` sees them."""

    def __init__(self, address: str) -> None:
        self.asker = Asker(address, "", "fairness", 10.0)
        self.asked = 0

    def look(self) -> tuple[float, dict[int, dict[str, Any]]]:
        """When it was asked; calls and run time of each session so far."""
        self.asked += 1
        seen = overview(self.asker, self.asked)
        return seen["now_s"], {int(number): row for number, row in seen["sessions"].items()}


def jain(used: list[float]) -> float:
    """1 if all have used the same, 1/n if one has used everything."""
    return sum(used) ** 2 / (len(used) * sum(u * u for u in used))


def compare(address: str, light: Rival, kind: str, count: int, args: argparse.Namespace, report: Report) -> None:
    """The light user beside so many greedy ones of this kind."""
    lone: list[float] = light.ask("rounds", args.seconds, args.pause)[0]
    beside: list[float] = []
    core: list[float] = []
    per_s: dict[bool, list[float]] = {False: [], True: []}
    fair: list[float] = []
    watch = Watch(address)
    with ExitStack() as ending:
        greedy = [ending.enter_context(Rival(Greedy, (address, kind, k))) for k in range(count)]
        numbers = [user.ask("number") for user in greedy]
        until = time.monotonic() + 2 * args.rounds * (args.seconds + 1) + 2
        for user in greedy:
            user.send("run", until)
        begun = watch.look()[1]
        while any(watch.look()[1][n]["calls"] == begun[n]["calls"] for n in numbers):
            pass  # what is measured begins when all of them compute
        for k in range(2 * args.rounds):
            with_light = k % 2 == 1
            begin_s, before = watch.look()
            if with_light:
                took, used = light.ask("rounds", args.seconds, args.pause)
                beside += took
                core.append(used)
            else:
                time.sleep(args.seconds)  # the light user does nothing for as long
            end_s, after = watch.look()
            per_s[with_light].append(sum(after[n]["calls"] - before[n]["calls"] for n in numbers) / (end_s - begin_s))
            fair.append(jain([after[n]["run_us"] - before[n]["run_us"] for n in numbers]))
    name = f"{count} x {kind}"
    ms = [s * 1e3 for s in beside], [s * 1e3 for s in lone]
    for q, what, target in ((0.5, "median", MEDIAN_TARGET), (0.99, "p99", P99_TARGET)):
        key = f"{what} beside {name}"
        report.compare(key, f"round trip, {key}", quantile(ms[0], q), quantile(ms[1], q), "ms", target)
    found = {each: statistics.median(per_s[each]) for each in per_s}
    report.compare(f"calls of {name}", f"calls of {name}", found[False], found[True], "/s", LOSS_TARGET)
    if args.device == "cpu":
        what = f"% of a core for the light user's own process beside {name}"
        report.figure(f"core beside {name}", what, 100 * statistics.mean(core), "", 1)
    if count > 1:
        report.figure(f"Jain {name}", f"Jain index of device time, {name}", min(fair), "", 3)


def compare_shares(args: argparse.Namespace, report: Report) -> None:
    """Two users with long programs, of whom one has twice the share of the other."""
    with ExitStack() as ending:
        folder = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="gt-")))
        keys = [users.add(folder, name, share=share) for name, share in (("ada", 2), ("bob", 1))]
        users.add(folder, "workers", WORKER)
        env = {"GT_AUTO_COMPILE": "0", "GT_CONFIG_DIR": str(folder)}
        address = ending.enter_context(serving(args.device, keys=True, **env))
        ada, bob = (ending.enter_context(Rival(Greedy, (url(address, key), "matmul", 0))) for key in keys)
        at, seconds = time.monotonic() + 3.0, 4 * args.seconds  # by then the queues of both are full
        for user in (ada, bob):
            user.send("count", at, seconds)
        more, less = ada.answer(), bob.answer()
        for user in (ada, bob):
            user.send("run", 0.0)  # leave
    report.compare("shares", "calls of a user with share 2, and with share 1", more, less, "", digits=0)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--greedy", default="matmul", help=f"some of {', '.join(KINDS)} (%(default)s)")
    parser.add_argument("--counts", default="1,4,8", help="numbers of greedy users (%(default)s)")
    parser.add_argument(
        "--light", choices=["op", "mlp", "batch"], default="op", help="what the light user does (%(default)s)"
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="of the worker (%(default)s)")
    parser.add_argument("--pause", type=float, default=0.02, metavar="S", help="of the light user (%(default)s)")
    parser.add_argument("--seconds", type=float, default=10, metavar="S", help="length of a round (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="rounds of each (%(default)s)")
    args = parser.parse_args()
    if args.quick:
        args.seconds, args.rounds = 1.0, 1
    report = Report("fairness", ("beside", "alone"))
    try:
        for kind in args.greedy.split(","):
            with (
                serving(args.device, 1 + (kind == "sharded"), GT_AUTO_COMPILE=str(int(kind in COMPILED))) as address,
                Rival(Light, (address, args.light)) as light,
            ):
                for count in map(int, args.counts.split(",")):
                    compare(address, light, kind, count, args, report)
        compare_shares(args, report)
    except Failed as e:
        report.finish(args.json)
        sys.exit(f"fairness: {e}")
    report.finish(args.json)


if __name__ == "__main__":
    main()
