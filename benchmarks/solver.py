"""Plans of the solver on real workers, with the hardware as measured: beside layouts by hand, and as predicted.

`python benchmarks/solver.py [--workers 2,4] [--model NAME ...] [--compile] [--auto] [--quick] [--json FILE]`. A server
with workers on the CPU of this machine; each plan has a session of its own with a model and an optimizer of its own.
Rounds are in turn. Three things are shown for each model:

- the time of a step with the solver's plan, over that of the best layouts by hand (one worker, data parallel, Megatron,
  fully sharded, and their mixtures on a mesh of two axes),
- the rank correlation (Spearman's) of predicted and measured times of a step, over all plans: those by hand, and those
  that the solver finds if some inputs are pinned, and mixtures of those by hand if that are fewer than 12,
- whether the workers sent each other as many bytes as predicted.

Nothing is compiled unless --compile says so. With --auto a plain loop under GT_AUTO_SHARD=1 is timed beside them.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import zoo
from measuring import arguments, print_table, write
from processes import Failed, Rival, serving

sys.path.insert(0, str(Path(__file__).parent.parent))  # the models and strategies are those of tests/solver

import gt
from gt import nn
from gt.chosen import Chosen
from gt.client.session import connecting
from gt.dispatcher.planner.plan import Planned, plan_program
from gt.layout import Layout, layout, mesh
from gt.ops.check import check
from gt.ops.record import TABLE
from gt.solver.calibrate import hardware_for
from gt.solver.hardware import Hardware
from gt.solver.pricing import exchanged_nbytes, price_plan
from gt.solver.recorded import RecordedProgram, record_step
from gt.solver.solve import Limits, candidate_meshes, solve_on
from tests.sim.cluster import using
from tests.solver import models
from tests.solver.models import Training, trained
from tests.solver.pins import strategies

F = nn.functional
COMPARED = 3  #: Steps whose losses must agree.
ROUNDS, ROUND_S = 12, 0.1  #: Rounds of each plan, and how long one takes, at least one step.
LR = 1e-4
CORRELATION, RATIO = 0.85, 1.1  #: What is aimed at.
PLANS = 12  #: As many are compared, at least.
#: Inputs that are pinned as a strategy lays them out, while the solver chooses the rest.
PINNED = (("all", ("data", "parameter", "state", "buffer")), ("data", ("data",)))

# --- models -----------------------------------------------------------------------------------------------------------


def mlp(layers: int, width: int, rows: int) -> Training:
    parts: list[Any] = []
    for _ in range(layers):
        parts += [nn.Linear(width, width), nn.ReLU()]
    model = nn.Sequential(*parts[:-1])
    x, y = (gt.from_numpy(numbers(seed, rows, width)) for seed in (1, 2))
    return trained(model, lambda x, y: F.mse_loss(model(x), y), x, y, lr=LR)


def cnn(channels: int, rows: int, size: int) -> Training:
    parts: list[Any] = []
    for a, b in ((3, channels), (channels, channels), (channels, 2 * channels)):
        parts += [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()]
    model = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * channels, 10))
    x, y = gt.from_numpy(numbers(1, rows, 3, size, size)), gt.from_numpy(labels(2, 10, rows))
    return trained(model, lambda x, y: F.cross_entropy(model(x), y), x, y, lr=LR)


def gpt(vocabulary: int, width: int, heads: int, layers: int, rows: int, length: int) -> Training:
    model = models.LanguageModel(vocabulary, width, heads, layers, length, tied=False)
    x, y = (gt.from_numpy(labels(seed, vocabulary, rows, length)) for seed in (1, 2))
    return trained(model, lambda x, y: F.cross_entropy(model(x).flatten(0, 1), y.flatten()), x, y, lr=LR)


def unet(width: int, rows: int, size: int) -> Training:
    model = zoo.unet(gt, channels=3, width=width)
    x, noise = (gt.from_numpy(numbers(seed, rows, 3, size, size)) for seed in (1, 2))
    times = gt.from_numpy(labels(3, zoo.TIMES, rows))
    return trained(model, lambda x, t, y: F.mse_loss(model(x, t), y), x, times, noise, lr=LR)


def experts(width: int, hidden: int, count: int, rows: int) -> Training:
    model = models.Experts(width, hidden, count)
    x, y = (gt.from_numpy(numbers(seed, rows, width)) for seed in (1, 2))
    return trained(model, lambda x, y: F.mse_loss(model(x), y), x, y, lr=LR)


class Words(nn.Module):
    """An embedding, one layer, and a head that is larger than all of it."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.tokens, self.up = nn.Embedding(vocabulary, width), nn.Linear(width, width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: Any) -> Any:
        return self.head(F.gelu(self.up(self.tokens(x))))


class Sentiment(nn.Module):
    """A recurrent classifier."""

    def __init__(self, vocabulary: int, width: int, classes: int) -> None:
        super().__init__()
        self.tokens, self.lstm = nn.Embedding(vocabulary, width), nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Any) -> Any:
        return self.head(self.lstm(self.tokens(x))[0].mean(1))


def lstm(vocabulary: int, width: int, rows: int, length: int) -> Training:
    model = Sentiment(vocabulary, width, 5)
    x, y = gt.from_numpy(labels(1, vocabulary, rows, length)), gt.from_numpy(labels(2, 5, rows))
    return trained(model, lambda x, y: F.cross_entropy(model(x), y), x, y, lr=LR)


class Patches(nn.Module):
    """A small vision transformer."""

    def __init__(self, width: int, heads: int, layers: int, patch: int, size: int) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, width, patch, stride=patch)
        self.where = nn.Parameter(gt.randn((size // patch) ** 2, width) * 0.02)
        self.layers = nn.ModuleList([models.Block(width, heads) for _ in range(layers)])
        self.head = nn.Linear(width, 10)

    def forward(self, x: Any) -> Any:
        x = self.cut(x).flatten(2).transpose(1, 2) + self.where
        for each in self.layers:
            x = each(x)
        return self.head(x.mean(1))


def vit(width: int, heads: int, layers: int, patch: int, size: int, rows: int) -> Training:
    model = Patches(width, heads, layers, patch, size)
    x, y = gt.from_numpy(numbers(1, rows, 3, size, size)), gt.from_numpy(labels(2, 10, rows))
    return trained(model, lambda x, y: F.cross_entropy(model(x), y), x, y, lr=LR)


def words(vocabulary: int, width: int, rows: int) -> Training:
    model = Words(vocabulary, width)
    x, y = (gt.from_numpy(labels(seed, vocabulary, rows)) for seed in (1, 2))
    return trained(model, lambda x, y: F.cross_entropy(model(x), y), x, y, lr=LR)


def numbers(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def labels(seed: int, below: int, *shape: int) -> Any:
    return np.random.default_rng(seed).integers(0, below, shape)


MODELS: dict[str, tuple[str, Callable[[], Training]]] = {
    "mlp-wide": ("3 x 2048 wide, batch 16", lambda: mlp(3, 2048, 16)),
    "mlp-batch": ("4 x 256 wide, batch 512", lambda: mlp(4, 256, 512)),
    "mlp-deep": ("24 x 128 wide, batch 64", lambda: mlp(24, 128, 64)),
    "cnn": ("3 convolutions, 16 channels, 32 pictures of 32x32", lambda: cnn(16, 32, 32)),
    "gpt": ("2 layers, 128 wide, T=64, batch 16", lambda: gpt(512, 128, 4, 2, 16, 64)),
    "unet": ("8 wide, 8 pictures of 32x32", lambda: unet(8, 8, 32)),
    "experts": ("8 experts, 256 and 512 wide, batch 64", lambda: experts(256, 512, 8, 64)),
    "words": ("8192 words, 256 wide, batch 256", lambda: words(8192, 256, 256)),
    "lstm": ("128 wide, T=16, batch 64", lambda: lstm(1000, 128, 64, 16)),
    "vit": ("2 layers, 128 wide, 16 pictures of 32x32 in 64 patches", lambda: vit(128, 4, 2, 4, 32, 16)),
}


def built(name: str) -> Training:
    gt.manual_seed(0)
    return MODELS[name][1]()


# --- plans ------------------------------------------------------------------------------------------------------------


@dataclass
class Candidate:
    """A plan: what `gt.use_plan` takes, and what is predicted."""

    name: str
    mesh: dict[str, int]
    layouts: dict[str, str]
    ways: dict[int, Chosen]
    body: str
    by_hand: bool
    predicted_us: float
    sent_nbytes: float  #: by all workers together, in a step
    compute_us: float
    communication_us: float
    seconds: list[float] = field(default_factory=list)
    sent: float = 0.0  #: as the workers counted
    losses: list[float] = field(default_factory=list)


def candidate(
    name: str, program: RecordedProgram, axes: Mapping[str, int], inputs: Sequence[Layout], ways: Mapping[int, Chosen],
    hardware: Hardware, by_hand: bool,
) -> Candidate:  # fmt: skip
    planned = plan_program(program.checked, list(inputs), mesh(None, **axes), {}, dict(ways))
    price = price_plan(planned, program.checked, list(inputs), hardware)
    layouts = {one.name: repr(each) for one, each in zip(program.inputs, inputs, strict=True)}
    return Candidate(name, dict(axes), layouts, dict(ways), program.body, by_hand, price.time_us, sent_by_all(planned),
                     price.compute_us, price.communication_us)  # fmt: skip


def sent_by_all(planned: Planned) -> float:
    """The bytes that workers send to each other: what all of them receive."""
    total = 0.0
    for local in planned.locals.values():
        mine = check(local.program)
        number = len(mine.program.inputs)
        for ins in mine.program.code:
            if TABLE[ins.op].collective:
                total += exchanged_nbytes(ins.op, ins.attrs, mine.specs[number])[1]
            number += ins.results
    return total


def candidates(program: RecordedProgram, workers: int, hardware: Hardware, quick: bool) -> Iterator[Candidate]:
    """One worker, layouts by hand, and what the solver finds: freely, and with inputs pinned to layouts by hand."""
    one = mesh(x=1)
    yield candidate("one worker", program, {"x": 1}, [layout(one)] * len(program.inputs), {}, hardware, True)
    limits = Limits(10.0)
    found: list[Candidate] = []
    for m in candidate_meshes(workers, hardware):
        axes = m.sizes
        solved = solve_on(program.checked, m, hardware, {}, limits)
        shape = "x".join(str(n) for n in axes.values())
        found.append(candidate(f"solver on {shape}", program, axes, solved.inputs, solved.ways, hardware, False))
        if len(m.workers) < workers:
            continue
        for name, of in strategies(program, m):
            inputs = [of(each) for each in program.inputs]
            yield candidate(f"{name}, {shape}", program, axes, inputs, {}, hardware, True)
            if quick or len(axes) > 1:
                continue
            for what, roles in PINNED:
                pins = {i: inputs[i] for i, each in enumerate(program.inputs) if each.role in roles}
                solved = solve_on(program.checked, m, hardware, pins, limits)
                yield candidate(
                    f"solver, {what} as {name}, {shape}", program, axes, solved.inputs, solved.ways, hardware, False
                )
    yield from found
    if quick:
        return
    # More of them: half of the inputs as one strategy lays them out, the others as another.
    m = next(m for m in candidate_meshes(workers, hardware) if len(m.workers) == workers)
    ways = [of for _, of in strategies(program, m)]
    for k in range(PLANS):
        inputs = []
        for each in program.inputs:
            named = each.name.split(":", 1)[-1]  # a parameter and its state alike
            inputs.append(ways[random.Random(f"{k} {named}").randrange(len(ways))](each))
        yield candidate(f"mixture {k}", program, m.sizes, inputs, {}, hardware, False)


def distinct(some: Iterator[Candidate]) -> list[Candidate]:
    """Plans that are predicted to do something else; mixtures only if there are too few others."""
    found: dict[tuple[Any, ...], Candidate] = {}
    for each in some:
        if each.name.startswith("mixture") and len(found) >= PLANS:
            break
        key = (tuple(each.mesh.items()), tuple(each.layouts.values()), round(each.predicted_us, 3), each.sent_nbytes)
        if key in found and each.name.startswith("solver on"):
            found[key].name += f" = {each.name}"
        found.setdefault(key, each)
    return list(found.values())


# --- running them -----------------------------------------------------------------------------------------------------


class Running:
    """A plan in a session of its own."""

    def __init__(self, model: str, plan: Candidate) -> None:
        self.plan = plan
        self.session = connecting.join_or_start()
        with using(self.session):
            self.training = built(model)
            gt.use_plan(plan, self.training.step, *self.training.batch)
            plan.losses = [self.training.step(*self.training.batch).item() for _ in range(COMPARED)]
        self.steps = 1
        self.steps = max(1, round(ROUND_S / self.round()))

    def round(self) -> float:
        """Seconds for a step."""
        with using(self.session):
            begin = time.perf_counter()
            for _ in range(self.steps):
                loss = self.training.step(*self.training.batch)
            loss.item()
            return (time.perf_counter() - begin) / self.steps

    def count_sent(self) -> None:
        """Bytes that the workers send to each other in a step."""
        before = self._sent()
        self.round()
        self.plan.sent = (self._sent() - before) / self.steps

    def _sent(self) -> int:
        with using(self.session):
            return sum(int(w["sent_to_peers"]) for w in gt.debug.get_worker_stats()["workers"].values())


class Alone:
    """A plain loop, in a process of its own, which says nothing about layouts."""

    def __init__(self, model: str) -> None:
        self.training = built(model)
        self.losses = [self.training.step(*self.training.batch).item() for _ in range(COMPARED)]

    def first(self) -> list[float]:
        return self.losses

    def round(self, seconds: float) -> float:
        count, begin = 0, time.perf_counter()
        while not count or time.perf_counter() - begin < seconds:
            loss = self.training.step(*self.training.batch)
            count += 1
            if count % 8 == 0:
                loss.item()
        loss.item()
        return (time.perf_counter() - begin) / count

    def settle(self, limit_s: float) -> int:
        """Train for so long: the plan changes meanwhile."""
        end, steps = time.monotonic() + limit_s, 0
        while time.monotonic() < end:
            self.training.step(*self.training.batch).item()
            steps += 1
        return steps


def ranks(values: Sequence[float]) -> list[float]:
    """The rank of each value; equal ones share theirs."""
    return [(sum(v < x for v in values) + sum(v <= x for v in values)) / 2 for x in values]


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """The correlation of the ranks."""
    return statistics.correlation(ranks(a), ranks(b)) if len(set(a)) > 1 and len(set(b)) > 1 else 0.0


def measured(name: str, plans: list[Candidate], auto: Rival | None, args: argparse.Namespace) -> list[float]:
    """Time all plans in turn; returns the times of the plain loop."""
    alone: list[float] = []
    with ExitStack() as ending:
        running = []
        for plan in plans:
            running.append(Running(name, plan))
            ending.callback(running[-1].session.close)
        expected = plans[0].losses
        for plan in plans:
            apart = max(abs(a / b - 1) for a, b in zip(plan.losses, expected, strict=True))
            if not apart < 1e-3:
                raise Failed(f"{name}: {plan.name}: losses differ by {apart:.1e} from those on one worker")
        if auto is not None:
            auto.ask("settle", args.settle)
        for _ in range(2 if args.quick else args.rounds):
            for each in running:
                each.plan.seconds.append(each.round())
            if auto is not None:
                alone.append(auto.ask("round", ROUND_S))
        for each in running:
            each.count_sent()
    return alone


def examine(name: str, workers: int, address: str, hardware: Hardware, args: argparse.Namespace) -> dict[str, Any]:
    with gt.on_paper():
        training = built(name)
        program = record_step(training.step, *training.batch).largest
        del training
    plans = distinct(candidates(program, workers, hardware, args.quick))
    with ExitStack() as ending:
        auto = None
        if args.auto:
            auto = ending.enter_context(Rival(Alone, (name,), GT_SERVER=address, GT_AUTO_SHARD="1"))
        alone = measured(name, plans, auto, args)
    rows = [("", "predicted", "measured", "fastest", "slowest", "compute", "moving", "sent, MB", "as predicted")]
    for each in sorted(plans, key=lambda each: statistics.median(each.seconds)):
        rows.append((
            each.name, f"{each.predicted_us / 1e3:.2f} ms", f"{statistics.median(each.seconds) * 1e3:.2f} ms",
            f"{min(each.seconds) * 1e3:.2f}", f"{max(each.seconds) * 1e3:.2f}", f"{each.compute_us / 1e3:.2f}",
            f"{each.communication_us / 1e3:.2f}", f"{each.sent / 1e6:.3f}",
            "yes" if each.sent == each.sent_nbytes else f"no, {each.sent_nbytes / 1e6:.3f}",
        ))  # fmt: skip
    print_table(f"{name} ({MODELS[name][0]}), {workers} workers", rows)
    of = {how: [statistics.median(each.seconds) for each in plans if each.by_hand is how] for how in (True, False)}
    chosen = min((each for each in plans if "solver on" in each.name), key=lambda each: each.predicted_us)
    best = min((each for each in plans if each.by_hand), key=lambda each: statistics.median(each.seconds))
    predicted, medians = [p.predicted_us for p in plans], [statistics.median(p.seconds) for p in plans]
    found = {
        "plans": len(plans),
        "solver": chosen.name,
        "solver_ms": round(statistics.median(chosen.seconds) * 1e3, 3),
        "best": best.name,
        "best_ms": round(min(of[True]) * 1e3, 3),
        "ratio": round(statistics.median([a / b for a, b in zip(chosen.seconds, best.seconds, strict=True)]), 3),
        "correlation": round(spearman(predicted, medians), 3),
        "correlation_fastest": round(spearman(predicted, [min(p.seconds) for p in plans]), 3),
        "off": round(statistics.median([a / b / 1e6 for a, b in zip(predicted, medians, strict=True)]), 3),
        "bytes_as_predicted": sum(p.sent == p.sent_nbytes for p in plans),
    }  # fmt: skip
    if alone:
        found["auto_ms"] = round(statistics.median(alone) * 1e3, 3)
        found["auto_ratio"] = round(statistics.median(alone) / min(of[True]), 3)
    print("  " + ", ".join(f"{k} {v}" for k, v in found.items()), flush=True)
    return {**found, "all": [
        {"name": p.name, "predicted_us": p.predicted_us, "compute_us": p.compute_us,
         "communication_us": p.communication_us, "seconds": p.seconds, "sent": p.sent, "sent_predicted": p.sent_nbytes}
        for p in plans
    ]}  # fmt: skip


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--workers", default="2,4", help="numbers of workers (%(default)s)")
    parser.add_argument("--model", action="append", choices=MODELS, help="only these models")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each plan (%(default)s)")
    parser.add_argument("--compile", action="store_true", help="workers compile programs in the background")
    parser.add_argument("--auto", action="store_true", help="also a plain loop under GT_AUTO_SHARD=1")
    parser.add_argument(
        "--settle", type=float, default=60, metavar="S", help="seconds before it is timed (%(default)s)"
    )
    args = parser.parse_args()
    rows = [("", "solver", "best by hand", "ratio", "correlation", "bytes as predicted", "auto", "best by hand is")]
    found: dict[str, Any] = {}
    for workers in map(int, args.workers.split(",")):
        with serving("cpu", workers=workers, GT_AUTO_COMPILE=str(int(args.compile))) as address:
            os.environ["GT_SERVER"] = address
            hardware = hardware_for(address, workers, again=not args.quick, quick=args.quick)
            for name in args.model or ([*MODELS][:1] if args.quick else MODELS):
                try:
                    one = found[f"{name}, {workers}"] = examine(name, workers, address, hardware, args)
                except Failed as e:
                    print(f"solver: {e}", file=sys.stderr)
                    found[f"{name}, {workers}"] = {"error": str(e)}
                    continue
                rows.append((
                    f"{name}, {workers} workers", f"{one['solver_ms']:.2f} ms", f"{one['best_ms']:.2f} ms",
                    f"{one['ratio']:.2f}" + ("" if one["ratio"] <= RATIO else " missed"),
                    f"{one['correlation']:.2f}" + ("" if one["correlation"] >= CORRELATION else " missed"),
                    f"{one['bytes_as_predicted']} of {one['plans']}",
                    f"{one['auto_ms']:.2f} ms" if "auto_ms" in one else "", one["best"],
                ))  # fmt: skip
    print_table("solver, CPU workers, gloo", rows)
    if args.json:
        write(args.json, "solver", {"figures": found})
    return int(any("error" in one for one in found.values()))


if __name__ == "__main__":
    sys.exit(main())
