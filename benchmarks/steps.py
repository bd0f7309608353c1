"""The time of a training step: GT beside PyTorch, the same model, data, optimizer and starting weights.

`python benchmarks/steps.py --model mlp,cnn --device cpu|cuda [--rivals eager,compile] [--quick] [--json FILE]`. GT runs
twice: as a plain Python loop, and with the step as a `@gt.function`. Rivals are PyTorch eager, and with the forward
pass and the loss under torch.compile; `reduce-overhead` is the mode of that name. Each side has a process of its own,
and they have their turns round by round. On the CPU each computes with one thread.

`--batches` says where batches come from: see training.py. `--zoo` trains every model as most people do: other batches
in each step, clipped gradients, a schedule, the loss read every 50 steps. There GT runs as a plain loop, once as it is
and once without compiling anything: on a GPU as captured graphs (tier 2).

`--together N` gets N models ready at once, where there are cores enough: most of the time goes into compilers. Each
side then has an empty cache of its own, so the time to full speed is that of a first run.

Losses are compared first: all must train alike. GT compiles what proves hot in the background; so its loop runs for up
to --settle seconds until that is over, and the table says which tier was timed. --tier1 keeps it from compiling.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from measuring import arguments, print_table, quantile, write
from models import FIRST, NAMES, model
from processes import Failed, Rival, threads
from training import REAL, SOURCES, Loop, gt_trainer, torch_trainer

COLUMNS = {
    "gt": "GT, plain loop",
    "gt_tier1": "GT, not compiled",
    "gt_function": "GT, @gt.function",
    "eager": "eager",
    "compile": "torch.compile",
    "reduce-overhead": "reduce-overhead",
}
MODES = {"eager": None, "compile": "default", "reduce-overhead": "reduce-overhead"}
COMPARED = 20  #: Steps whose losses must agree.
ROUND_S = 0.5  #: How long a round of steps is meant to be: so often the host waits for a loss.
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
    parser.add_argument("--alone", action="store_true", help="GT runs in one way only: as a plain loop")
    parser.add_argument(
        "--together", type=int, default=1, metavar="N", help="models that get ready at once (%(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=15, metavar="N", help="rounds that are timed (%(default)s)")
    args = parser.parse_args()
    args.models = args.model.split(",") if args.model else [*(NAMES if args.zoo else FIRST)]
    rivals = ("eager" if args.zoo else "eager,compile") if args.rivals is None else args.rivals
    args.rivals = [r for r in rivals.split(",") if r]
    args.ours = ["gt_tier1" if args.zoo else "gt_function"]
    if not (args.zoo and args.tier1):
        args.ours.insert(0, "gt")
    if args.alone:
        del args.ours[1:]
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
        self.began = 0.0  #: When the first step began.

    def losses(self, steps: int) -> tuple[list[float], list[float]]:
        """The losses of the first steps, and the seconds after which each of them was there."""
        self.began = time.perf_counter()
        found = [(self.trainer.step().item(), time.perf_counter() - self.began) for _ in range(steps)]
        return [loss for loss, _ in found], [at for _, at in found]

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

    def settle(self, limit_s: float) -> None:
        if self.cuda:  # what compiling took is not what training takes
            self.most = self.cuda.max_memory_reserved()
            self.cuda.synchronize()
            self.cuda.empty_cache()
            self.cuda.reset_peak_memory_stats()

    def memory(self) -> tuple[int, int] | None:
        if not self.cuda:
            return None
        now = self.cuda.max_memory_reserved()
        return now, max(now, self.most)


class GTSide(Side):
    def __init__(self, name: str, device: str, kind: str, loop: Loop) -> None:
        self.device = device
        super().__init__(gt_trainer(model(name, device), kind == "gt_function", loop))

    def settle(self, limit_s: float) -> dict[str, Any]:
        import watching

        steps_s: list[float] = []
        facts = watching.settle(lambda: steps_s.append(self.round(10) / 10), limit_s)[0]
        way = {"settled_s": time.perf_counter() - self.began, "way_ms": [1e3 * quantile(steps_s, q) for q in (0.5, 1)]}
        return {**facts, **way}

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


def race(names: list[str], args: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Everything that is found about each of these models, which get ready together. What fails is among the errors,
    and the others go on."""
    with ExitStack() as ending:
        all_sides = {name: start(name, args, ending) for name in names}
        waiting = [(name, kind) for name, sides in all_sides.items() for kind in sides]

        def prepare(which: tuple[str, str]) -> Ready | Failed:
            name, kind = which
            quick = args.quick or args.tier1 or kind == "gt_tier1"
            return get_ready(all_sides[name][kind], 0.0 if quick else args.settle)

        # Beside a GPU there are cores enough to get all of them ready at once.
        with ThreadPoolExecutor(len(waiting) if args.device == "cuda" else 1) as pool:
            outcomes = dict(zip(waiting, pool.map(prepare, waiting), strict=True))
        for name, sides in all_sides.items():
            found: dict[str, Any] = {"text": model(name, args.device).text, "errors": {}}
            for kind in list(sides):
                compare(name, kind, outcomes[name, kind], sides, args, found)
            if sides:
                take_turns(sides, args, found)
            yield name, found
            for side in sides.values():
                side.close()


def start(name: str, args: argparse.Namespace, ending: ExitStack) -> dict[str, Rival]:
    """The sides of one model. Rivals come first: the losses are compared with the first one's."""
    sides: dict[str, Rival] = {}
    for kind in [*args.rivals, *args.ours]:
        env = threads(args.device) | ({} if kind in MODES else {"GT_DEVICE": args.device})
        if args.tier1 or kind == "gt_tier1":
            env["GT_AUTO_COMPILE"] = "0"
        if args.together > 1:
            cache = ending.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
            env["GT_COMPILE_NICE"] = "0"  # all of them compete for the cores: GT would get what the others leave
            env |= {"GT_CACHE_DIR": cache, "TORCHINDUCTOR_CACHE_DIR": cache, "TRITON_CACHE_DIR": f"{cache}/triton"}
        make = TorchSide if kind in MODES else GTSide
        sides[kind] = ending.enter_context(Rival(make, (name, args.device, kind, args.loop), **env))
    return sides


class Ready(NamedTuple):
    """What is known of a side before it is timed."""

    losses: list[float]
    at_s: list[float]  #: When each of them was there, after the begin of the first step.
    facts: dict[str, Any] | None  #: Of the tier that GT settled on.


def get_ready(side: Rival, settle_s: float) -> Ready | Failed:
    try:
        losses, at_s = side.ask("losses", COMPARED)
        return Ready(losses, at_s, side.ask("settle", settle_s))
    except Failed as e:
        return e


def compare(
    name: str,
    kind: str,
    outcome: Ready | Failed,
    sides: dict[str, Rival],
    args: argparse.Namespace,
    found: dict[str, Any],
) -> None:
    """Note what is known of a side before it is timed, or take it out."""
    if isinstance(outcome, Failed):
        fail(kind, outcome, sides, found)
        return
    losses, at_s, facts = outcome
    wanted = found.setdefault("losses", losses)
    apart = float(np.max(np.abs(np.array(losses) / np.array(wanted) - 1)))
    found.setdefault("losses_apart", {})[kind] = apart
    if not apart <= model(name, args.device).rtol:
        fail(kind, Failed(f"losses differ from {next(iter(sides))}'s by {apart:.1e}"), sides, found)
        return
    found.setdefault("second_step_s", {})[kind] = round(at_s[1], 2)
    note = f"  {name}: {kind} after {at_s[0]:.1f}, {at_s[1]:.1f}, ..., {at_s[-1]:.1f} s"
    if facts is not None:
        found.setdefault("tier", {})[kind] = facts["tier"]
        found.setdefault("settled_s", {})[kind] = round(facts["settled_s"], 1)
        found.setdefault("way_ms", {})[kind] = [round(ms, 3) for ms in facts["way_ms"]]
        usual_ms, most_ms = facts["way_ms"]
        note += (
            f"; {usual_ms:.2f} ms a step, at most {most_ms:.2f}, tier {facts['tier']} after {facts['settled_s']:.1f} s"
        )
        if why := facts["given_up"]:
            found.setdefault("given_up", {})[kind] = why
            note += f"; given up: {why}"
    print(note, file=sys.stderr, flush=True)


def take_turns(sides: dict[str, Rival], args: argparse.Namespace, found: dict[str, Any]) -> None:
    seconds: dict[str, list[float]] = {kind: [] for kind in sides}
    steps, rounds, warming = args.steps or (3 if args.quick else 0), 3 if args.quick else args.rounds, 2
    for turn in range(-warming, rounds):
        for kind in list(sides):
            try:
                if not steps:
                    steps = int(min(200, max(4, 5 * ROUND_S / sides[kind].ask("round", 5))))
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
    groups = [args.models[k : k + args.together] for k in range(0, len(args.models), args.together)]
    for name, found in chain.from_iterable(race(group, args) for group in groups):
        results[name] = found
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
