"""Many users of one device: N GT clients with one worker, beside N PyTorch processes, each training its own MLP.

`python benchmarks/sharing.py [--clients 8] [--device cpu|cuda] [--seconds 5] [--quick] [--json FILE]`. What counts is
the steps per second of all together, and on CUDA the memory that they take of the GPU. All run at once from the same
moment on; GT's and PyTorch's processes have their turns. GT's clients run the step as a `@gt.function`, and then as a
plain loop. Memory is what all take while they train; compilers have ended by then.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from measuring import arguments, print_table, write
from models import model
from processes import Failed, Rival, serving, threads, wait_until
from training import Trainer, gt_trainer, torch_trainer

TARGET = 1.5  #: GT's steps per second over PyTorch's, on one H200 with 8 clients.
MEMORY_TARGET = 0.5  #: GT's GPU memory over PyTorch's.
TEXT = {"gt_function": "GT, @gt.function", "gt": "GT, plain loop", "torch": "PyTorch eager"}
MIB = 1 << 20
ENDED_S = 8.0  #: After so long without work a compiler has ended.


class User:
    """One process that trains its own model."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.trainers: dict[str, Trainer] = {}

    def warm(self, kind: str, settle_s: float) -> int | None:
        """Make this kind's trainer and run it until it is as fast as it gets; GT's tier."""
        what = model("mlp", self.device)
        if kind == "torch":
            import torch

            if self.device == "cpu":
                torch.set_num_threads(1)
            self.trainers[kind] = torch_trainer(what, self.device)
            self._steps(kind, 20)
            return None
        import watching

        self.trainers[kind] = gt_trainer(what, replayed=kind == "gt_function")
        return int(watching.settle(lambda: self._steps(kind, 20), settle_s)[0]["tier"])

    def _steps(self, kind: str, steps: int) -> None:
        for _ in range(steps):
            loss = self.trainers[kind].step()
        loss.item()

    def run(self, kind: str, at: float, seconds: float) -> float:
        """Steps per second, from this moment on for so many seconds, until the last one is done."""
        step, steps = self.trainers[kind].step, 0
        wait_until(at)
        while time.monotonic() < at + seconds:
            loss = step()
            steps += 1
        loss.item()
        return steps / (time.monotonic() - at)


def everyone(users: list[Rival], method: str, *arguments: Any) -> list[Any]:
    """What all answer, who are asked at the same time."""
    for user in users:
        user.send(method, *arguments)
    return [user.answer() for user in users]


def together(users: list[Rival], kind: str, seconds: float) -> float:
    """The steps per second of all of them."""
    return sum(everyone(users, "run", kind, time.monotonic() + 0.2, seconds))


def cpu_seconds(clients: list[Rival]) -> dict[str, float]:
    """What the processes of GT have computed so far, by what they are."""
    spent = {"client": 0.0, "dispatcher": 0.0, "worker": 0.0}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            command = Path(entry.path, "cmdline").read_bytes().split(b"\0")
            fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        if int(entry.name) in {user.pid for user in clients}:
            spent["client"] += seconds
        elif b"gt.worker" in command:
            spent["worker"] += seconds
        elif b"gt.server" in command:
            spent["dispatcher"] += seconds
    return spent


def gpu_memory() -> int | None:
    """Bytes of the first GPU that are in use, by anybody; None: that cannot be asked here."""
    command = ["nvidia-smi", "-i", "0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        return int(said.stdout) * MIB
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def growth(device: str, act: Callable[[], None]) -> int | None:
    """By how much the GPU's memory in use has grown when this is done."""
    before = gpu_memory() if device == "cuda" else None
    act()
    after = gpu_memory() if device == "cuda" else None
    return None if before is None or after is None else after - before


def measure(args: argparse.Namespace) -> dict[str, Any]:
    seconds, settle_s, rounds = (0.3, 0.0, 1) if args.quick else (args.seconds, args.settle, 3)
    found: dict[str, Any] = {"clients": args.clients, "device": args.device, "steps_per_s": {}, "memory_mib": {}}
    groups: dict[str, list[Rival]] = {}
    tiers: dict[str, list[int]] = {}
    with ExitStack() as ending:

        def start(**env: str) -> list[Rival]:
            return [ending.enter_context(Rival(User, (args.device,), **env)) for _ in range(args.clients)]

        def start_gt() -> None:
            address = ending.enter_context(serving(args.device, **threads(args.device)))
            groups["gt_function"] = groups["gt"] = start(GT_SERVER=address)
            tiers["gt_function"] = everyone(groups["gt"], "warm", "gt_function", settle_s)
            together(groups["gt"], "gt_function", min(seconds, 1.0) if args.device == "cpu" else ENDED_S)

        def start_torch() -> None:
            groups["torch"] = start()
            everyone(groups["torch"], "warm", "torch", 0.0)
            together(groups["torch"], "torch", min(seconds, 1.0))

        for kind, act in (("gt_function", start_gt), ("torch", start_torch)):
            nbytes = growth(args.device, act)
            print(f"  {args.clients} of {TEXT[kind]} are ready", file=sys.stderr, flush=True)
            if nbytes is not None:
                found["memory_mib"][kind] = nbytes // MIB
        tiers["gt"] = everyone(groups["gt"], "warm", "gt", settle_s)
        per_s: dict[str, list[float]] = {kind: [] for kind in TEXT}
        for _ in range(rounds):
            for kind in TEXT:
                before = cpu_seconds(groups["gt"])
                per_s[kind].append(together(groups[kind], kind, seconds))
                if kind == "gt_function":
                    after, steps = cpu_seconds(groups["gt"]), per_s[kind][-1] * seconds
                    found["cpu_us"] = {who: round((after[who] - before[who]) / steps * 1e6, 1) for who in after}
        found["steps_per_s"] = {kind: round(statistics.median(each), 1) for kind, each in per_s.items()}
        found["tiers"] = {kind: [min(each), max(each)] for kind, each in tiers.items()}
    return found


def show(found: dict[str, Any]) -> None:
    per_s, memory = found["steps_per_s"], found["memory_mib"]
    rows = [("", "steps/s, all", "over PyTorch", "GPU memory", "target")]
    for kind, text in TEXT.items():
        ratio = per_s[kind] / per_s["torch"]
        goal = ""
        if kind == "gt_function" and found["device"] == "cuda":
            goal = f">= {TARGET:g}" + ("" if ratio >= TARGET else "  missed")
        if kind in found["tiers"]:
            low, high = found["tiers"][kind]
            text += f", tier {low}" + (f" to {high}" if high != low else "")
        used = f"{memory[kind]:,} MiB" if kind in memory else ""
        rows.append((text, f"{per_s[kind]:,.0f}", f"{ratio:.2f}", used, goal))
    for who, us in found["cpu_us"].items():
        each = f", each of {found['clients']}" if who == "client" else ""
        rows.append((f"CPU time of a step, {who}{each}", f"{us:.0f} us", "", "", ""))
    if len(memory) == 2:
        ratio = memory["gt_function"] / max(1, memory["torch"])
        goal = f"<= {MEMORY_TARGET:g}" + ("" if ratio <= MEMORY_TARGET else "  missed")
        rows.append(("GPU memory over PyTorch's", "", f"{ratio:.2f}", "", goal))
    print_table(f"sharing, {found['clients']} clients, mlp, {found['device']}", rows)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--clients", type=int, default=8, metavar="N", help="users of the device (%(default)s)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda", help="which they share (%(default)s)")
    parser.add_argument("--seconds", type=float, default=5, metavar="S", help="length of a round (%(default)s)")
    parser.add_argument(
        "--settle", type=float, default=120, metavar="S", help="seconds to wait for tiers (%(default)s)"
    )
    args = parser.parse_args()
    try:
        found = measure(args)
    except Failed as e:
        sys.exit(f"sharing: {e}")
    show(found)
    if args.json:
        write(args.json, "sharing", found)


if __name__ == "__main__":
    main()
