"""The time of a training step: GT beside PyTorch, the same model, data, optimizer and starting weights.

`python benchmarks/steps.py --model mlp,cnn --device cpu|cuda [--rivals eager,compile] [--quick] [--json FILE]`. GT runs
twice: as a plain Python loop, and with the step as a `@gt.function`. Rivals are PyTorch eager, and with the forward
pass and the loss under torch.compile; `reduce-overhead` is the mode of that name. Each side has a process of its own,
and they have their turns round by round. On the CPU each computes with one thread.

`--batches` says where batches come from: see training.py. `--zoo` trains every model as most people do: other batches
in each step, clipped gradients, a schedule, the loss read every 50 steps. There GT runs as a plain loop, once as it is
and once without compiling anything.

Losses are compared first: all must train alike. GT compiles what proves hot in the background; so its loop runs for up
to --settle seconds until that is over, and the table says which tier was timed. --tier1 keeps it from compiling.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
from measuring import arguments, print_table, quantile, write
from models import FIRST, NAMES, model
from processes import Failed, Rival, threads
from training import REAL, SOURCES, Loop, gt_trainer, torch_trainer

COLUMNS = {
    "gt": "GT, plain loop",
    "gt_tier1": "GT, tier 1",
    "gt_function": "GT, @gt.function",
    "eager": "eager",
    "compile": "torch.compile",
    "reduce-overhead": "reduce-overhead",
}
MODES = {"eager": None, "compile": "default", "reduce-overhead": "reduce-overhead"}
COMPARED = 20  #: Steps whose losses must agree.
ROUND_S = 1.0  #: How long a round of steps is meant to be: so often the host waits for a loss.
READ_EVERY = 50  #: Steps after which a loop reads its loss.
COUNTED = 100  #: Steps over which calls and programs are counted.
GIB = 1 << 30

#: The most that a step may take: of eager's time (tier 1, then compiled) on the CPU, in milliseconds on one H200.
CPU_TARGETS = {"mlp": (1.05, 1.0), "cnn": (1.05, 1.0), "gpt-char": (1.05, 1.0), "lstm": (1.0, 1.0), "gru": (1.0, 1.0)}
H200_TARGETS_MS = {
    "mlp": {"gt": 0.5, "gt_function": 0.15},
    "cnn": {"gt": 1.5, "gt_function": 1.5},
    "gpt-char": {"gt": 5.3, "gt_function": 5.3},
}


def options() -> argparse.Namespace:
    parser = arguments(__doc__)
    parser.add_argument("--model", help=f"some of {', '.join(NAMES)} ({','.join(FIRST)}; with --zoo all)")
    parser.add_argument("--zoo", action="store_true", help="loops as people write them, with clipping and a schedule")
    parser.add_argument("--batches", choices=SOURCES, help="where batches come from (sliced; with --zoo rotating)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where all compute (%(default)s)")
    parser.add_argument("--steps", type=int, metavar="N", help="steps in a round (as many as take half a second)")
    parser.add_argument("--rivals", help=f"some of {', '.join(MODES)} (eager,compile; with --zoo eager)")
    parser.add_argument(
        "--settle", type=float, default=120, metavar="S", help="seconds to wait for tiers (%(default)s)"
    )
    parser.add_argument("--tier1", action="store_true", help="GT compiles nothing")
    args = parser.parse_args()
    args.models = args.model.split(",") if args.model else [*(NAMES if args.zoo else FIRST)]
    rivals = ("eager" if args.zoo else "eager,compile") if args.rivals is None else args.rivals
    args.rivals = [r for r in rivals.split(",") if r]
    args.ours = ["gt_tier1" if args.zoo else "gt_function"]
    if not (args.zoo and args.tier1):
        args.ours.insert(0, "gt")
    args.loop = dataclasses.replace(REAL if args.zoo else Loop(), **({"source": args.batches} if args.batches else {}))
    for given, known in ((args.models, NAMES), (args.rivals, tuple(MODES))):
        if wrong := [x for x in given if x not in known]:
            parser.error(f"{', '.join(wrong)}: expected {', '.join(known)}")
    return args


# --- one side, in a process of its own ----------------------------------------------------------------


class Side:
    """What both kinds of sides do when they are asked to."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def losses(self, steps: int) -> list[float]:
        return [self.trainer.step().item() for _ in range(steps)]

    def round(self, steps: int) -> float:
        """Seconds for so many steps, up to the last one's loss in the host's hands."""
        start = time.perf_counter()
        for k in range(steps):
            loss = self.trainer.step()
            if k % READ_EVERY == READ_EVERY - 1:
                loss.item()
        loss.item()
        return time.perf_counter() - start

    def counts(self) -> dict[str, float] | None:
        """What GT's client sends for a step."""
        return None


class TorchSide(Side):
    def __init__(self, name: str, device: str, kind: str, loop: Loop) -> None:
        import torch

        if device == "cpu":
            torch.set_num_threads(1)
        self.cuda = torch.cuda if device == "cuda" else None
        super().__init__(torch_trainer(model(name, device), device, MODES[kind], loop))
        self.most = 0

    def settle(self, limit_s: float) -> tuple[None, float]:
        if self.cuda:  # what compiling took is not what training takes
            self.most = self.cuda.max_memory_reserved()
            self.cuda.synchronize()
            self.cuda.empty_cache()
            self.cuda.reset_peak_memory_stats()
        return None, 0.0

    def memory(self) -> tuple[int, int] | None:
        if not self.cuda:
            return None
        now = self.cuda.max_memory_reserved()
        return now, max(now, self.most)


class GTSide(Side):
    def __init__(self, name: str, device: str, kind: str, loop: Loop) -> None:
        self.device = device
        super().__init__(gt_trainer(model(name, device), kind == "gt_function", loop))

    def settle(self, limit_s: float) -> tuple[dict[str, Any], float]:
        import watching

        return watching.settle(lambda: self.round(10), limit_s)

    def counts(self) -> dict[str, float] | None:
        import gt

        before = gt.debug.get_client_stats()
        self.round(COUNTED)
        after = gt.debug.get_client_stats()
        return {key: (after[key] - before[key]) / COUNTED for key in ("calls", "programs_sent")}

    def memory(self) -> tuple[int, int] | None:
        import watching

        return watching.memory() if self.device == "cuda" else None


# --- the race -----------------------------------------------------------------------------------------


def race(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Everything that is found about one model. What fails is among the errors, and the others go on."""
    found: dict[str, Any] = {"text": model(name, args.device).text, "errors": {}}
    with ExitStack() as ending:
        sides: dict[str, Rival] = {}
        for kind in [*args.rivals, *args.ours]:  # rivals first: the losses are compared with the first one's
            env = threads(args.device) | ({} if kind in MODES else {"GT_DEVICE": args.device})
            if args.tier1 or kind == "gt_tier1":
                env["GT_AUTO_COMPILE"] = "0"
            make = TorchSide if kind in MODES else GTSide
            sides[kind] = ending.enter_context(Rival(make, (name, args.device, kind, args.loop), **env))

        def prepare(kind: str) -> tuple[list[float], float, Any, float] | Failed:
            quick = args.quick or args.tier1 or kind == "gt_tier1"
            return get_ready(sides[kind], 0.0 if quick else args.settle)

        # Beside a GPU there are cores enough to get all of them ready at once.
        with ThreadPoolExecutor(len(sides) if args.device == "cuda" else 1) as pool:
            ready = dict(zip(sides, pool.map(prepare, list(sides)), strict=True))
        for kind, outcome in ready.items():
            compare(name, kind, outcome, sides, args, found)
        if sides:
            take_turns(sides, args, found)
    return found


def get_ready(side: Rival, settle_s: float) -> tuple[list[float], float, Any, float] | Failed:
    """The losses of the first steps and the seconds they took; then the facts of the tier it settled on, and when."""
    begin = time.monotonic()
    try:
        losses = side.ask("losses", COMPARED)
        ready_s = time.monotonic() - begin
        facts, settled_s = side.ask("settle", settle_s)
        return losses, ready_s, facts, settled_s
    except Failed as e:
        return e


def compare(
    name: str,
    kind: str,
    outcome: tuple[list[float], float, Any, float] | Failed,
    sides: dict[str, Rival],
    args: argparse.Namespace,
    found: dict[str, Any],
) -> None:
    """Note what is known of a side before it is timed, or take it out."""
    if isinstance(outcome, Failed):
        fail(kind, outcome, sides, found)
        return
    losses, ready_s, facts, settled_s = outcome
    wanted = found.setdefault("losses", losses)
    apart = float(np.max(np.abs(np.array(losses) / np.array(wanted) - 1)))
    found.setdefault("losses_apart", {})[kind] = apart
    if not apart <= model(name, args.device).rtol:
        fail(kind, Failed(f"losses differ from {next(iter(sides))}'s by {apart:.1e}"), sides, found)
        return
    note = f"  {name}: {kind} ready after {ready_s:.1f} s"
    if facts is not None:
        found.setdefault("tier", {})[kind] = facts["tier"]
        found.setdefault("settled_s", {})[kind] = round(ready_s + settled_s, 1)
        note += f", on tier {facts['tier']} after {settled_s:.1f} s more"
        if why := facts["given_up"]:
            found.setdefault("given_up", {})[kind] = why
            note += f"; given up: {why}"
    print(note, file=sys.stderr, flush=True)


def take_turns(sides: dict[str, Rival], args: argparse.Namespace, found: dict[str, Any]) -> None:
    seconds: dict[str, list[float]] = {kind: [] for kind in sides}
    steps, rounds, warming = args.steps or (3 if args.quick else 0), 3 if args.quick else 15, 2
    for turn in range(-warming, rounds):
        for kind in list(sides):
            try:
                if not steps:
                    steps = int(min(200, max(5, 5 * ROUND_S / sides[kind].ask("round", 5))))
                took = sides[kind].ask("round", steps)
            except Failed as e:
                fail(kind, e, sides, found)
                continue
            if turn >= 0:
                seconds[kind].append(took)
    for kind in list(sides):
        try:
            counts, memory = sides[kind].ask("counts"), sides[kind].ask("memory")
        except Failed as e:
            fail(kind, e, sides, found)
            continue
        for key, count in (counts or {}).items():
            found.setdefault(f"{key}_per_step", {})[kind] = count
        if memory is not None:
            for key, nbytes in zip(("memory_gib", "peak_memory_gib"), memory, strict=True):
                found.setdefault(key, {})[kind] = round(nbytes / GIB, 3)
        for key, q in (("step_ms", 0.5), ("first_quartile_ms", 0.25), ("third_quartile_ms", 0.75)):
            found.setdefault(key, {})[kind] = round(quantile(seconds[kind], q) / steps * 1e3, 5)
    found |= {"steps_per_round": steps, "rounds": rounds}


def fail(kind: str, error: Failed, sides: dict[str, Rival], found: dict[str, Any]) -> None:
    sides.pop(kind).close()
    found["errors"][kind] = str(error)


# --- what came out ------------------------------------------------------------------------------------


def targets(name: str, found: dict[str, Any], args: argparse.Namespace) -> dict[str, float]:
    """The most milliseconds that GT's columns may take, where that is known."""
    step_ms = found.get("step_ms", {})
    if args.device == "cpu" and name in CPU_TARGETS and "eager" in step_ms:
        first, compiled = CPU_TARGETS[name]
        return dict.fromkeys(("gt", "gt_function"), step_ms["eager"] * (first if args.tier1 else compiled))
    if args.device == "cuda" and name == "gpt2-124m" and "compile" in step_ms:
        return dict.fromkeys(("gt", "gt_function"), step_ms["compile"])
    return H200_TARGETS_MS.get(name, {}) if args.device == "cuda" else {}


def memory_targets(name: str, found: dict[str, Any]) -> dict[str, float]:
    """The most GiB that GT may have: no more than eager, nor much more than torch.compile; while it compiles, 1.3."""
    gib = found.get("memory_gib", {})
    if name != "gpt2-124m" or not {"eager", "compile"} <= gib.keys():
        return {}
    return {"memory_gib": min(gib["eager"], 1.15 * gib["compile"]), "peak_memory_gib": 1.3 * gib["compile"]}


def judge(name: str, found: dict[str, Any], args: argparse.Namespace) -> None:
    """Add the targets, and where they were missed."""
    found["targets"] = {"step_ms": targets(name, found, args)}
    for key, most in memory_targets(name, found).items():
        found["targets"][key] = dict.fromkeys(("gt", "gt_function"), most)
    found["missed"] = {
        key: [side for side, most in goals.items() if side in found.get(key, {}) and found[key][side] > most]
        for key, goals in found["targets"].items()
    }


def show(name: str, found: dict[str, Any], args: argparse.Namespace) -> None:
    """Print the block of one model."""
    columns = [*args.ours, *args.rivals]
    step_ms = found.get("step_ms", {})
    rows = [("", *(COLUMNS[c] for c in columns), "")]

    def row(what: str, cells: dict[str, str]) -> None:
        if cells:
            rows.append((what, *(cells.get(c, "") for c in columns), ""))

    def target(key: str, unit: str, digits: int) -> None:
        missed = found["missed"].get(key, [])
        goals = found["targets"].get(key, {})
        row("  target", {c: f"{'missed: ' * (c in missed)}<= {v:.{digits}f} {unit}" for c, v in goals.items()})

    row("step", {c: f"{v:.3f} ms" for c, v in step_ms.items()} | dict.fromkeys(found["errors"], "failed"))
    target("step_ms", "ms", 3)
    if "eager" in step_ms:
        row("  over eager", {c: f"{v / step_ms['eager']:.2f}" for c, v in step_ms.items()})
    row("  tier", {c: str(v) for c, v in found.get("tier", {}).items()})
    row("  after", {c: f"{v:.0f} s" for c, v in found.get("settled_s", {}).items()})
    row("calls a step", {c: f"{v:g}" for c, v in found.get("calls_per_step", {}).items()})
    if any(found.get("programs_sent_per_step", {}).values()):
        row("new programs a step", {c: f"{v:g}" for c, v in found["programs_sent_per_step"].items()})
    for key, what in (("memory_gib", "GPU memory"), ("peak_memory_gib", "GPU memory, at most ever")):
        row(what, {c: f"{v:.2f} GiB" for c, v in found.get(key, {}).items()})
        target(key, "GiB", 2)
    print_table(f"{name}, {found['text']}, {args.device}", rows)
    for kind, error in found["errors"].items():
        print(f"  {COLUMNS[kind]}: {error}", flush=True)
    for kind, reasons in found.get("given_up", {}).items():
        print(f"  {COLUMNS[kind]}, tiers given up: {reasons}", flush=True)


def show_all(results: dict[str, dict[str, Any]], args: argparse.Namespace) -> None:
    """Print a line for each model, and the means of the ratios to eager."""
    rows = [("over eager", *(COLUMNS[c] for c in args.ours), "")]
    ratios: dict[str, list[float]] = {c: [] for c in args.ours}
    for name, found in results.items():
        step_ms = found.get("step_ms", {})
        cells = []
        for c in args.ours:
            if "eager" in step_ms and c in step_ms:
                ratios[c].append(step_ms[c] / step_ms["eager"])
                cells.append(f"{ratios[c][-1]:.2f}")
            else:
                cells.append("failed" if c in found["errors"] else "")
        rows.append((name, *cells, ""))
    means = (f"{math.exp(np.mean(np.log(r))):.2f}" if r else "" for r in ratios.values())
    rows.append(("geometric mean", *means, ""))
    print_table(f"{len(results)} models, {args.loop.source} batches, {args.device}", rows)


def device_name(device: str) -> str:
    if device == "cpu":
        return "cpu"
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cuda"


def main() -> None:
    args = options()
    results: dict[str, dict[str, Any]] = {}
    for name in args.models:
        found = results[name] = race(name, args)
        found.pop("losses", None)
        judge(name, found, args)
        show(name, found, args)
        if args.json:  # after each model: what was measured is not lost with what comes
            about = {"device": args.device, "device_name": device_name(args.device), "tier1": args.tier1}
            about |= {"zoo": args.zoo, "batches": args.loop.source}
            write(args.json, "steps", {**about, "models": results})
    if len(results) > 1 and "eager" in args.rivals:
        show_all(results, args)
    if any(found["errors"] for found in results.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
