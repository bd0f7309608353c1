"""Training on two workers: GT beside torch's DDP and DTensor, the same model, data, optimizer and starting weights.

`python benchmarks/sharded.py [--model mlp,gpt] [--tier1] [--quick] [--json FILE]`. On the CPU: two workers (two ranks)
of one thread each, talking over gloo. Data parallel: the batch is split, GT against DistributedDataParallel. Tensor
parallel: the weights are split by columns and then by rows, GT against DTensor. Rounds are in turn; what counts is the
ratio of medians. GT compiles parts of a step in the background: it trains until that is over before it is timed, and
the table says which tier that was (--tier1 keeps it from compiling). Its workers count the bytes that they send to
each other; beside them stands what went over the loopback device meanwhile (with its headers, and with what others
sent), and the textbook's count.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import zoo
from measuring import arguments, print_table, write
from processes import Failed, Rival, serving

TARGETS = {"data": 1.05, "tensor": 0.9}  #: GT's time over torch's, at most.
RIVALS = {"data": "DDP", "tensor": "DTensor"}
MODELS = {"mlp": "4 x 1024 wide, batch 256", "gpt": "4 layers, 256 wide, 8 heads, T=64, batch 32"}
BATCH = {"mlp": 256, "gpt": 32}
WIDTH, LAYERS = 1024, 4
GPT_WIDTH, HEADS, LENGTH, LETTERS = 256, 8, 64, 128
LR = 1e-3
COMPARED = 5  #: Steps whose losses must agree.

#: Which parameters are split for tensor parallel, and along which dimension: columns of the first, rows of the second.
COLUMNS = {"mlp": ["0", "4"], "gpt": ["q", "k", "v", "up"]}
ROWS = {"mlp": ["2", "6"], "gpt": ["out", "down"]}


# --- the models -------------------------------------------------------------------------------------------------------

NETWORKS = {
    "mlp": partial(zoo.mlp, sizes=(WIDTH,) * (LAYERS + 1)),
    "gpt": partial(
        zoo.gpt, layers=LAYERS, width=GPT_WIDTH, heads=HEADS, length=LENGTH, vocabulary=LETTERS, tied=False, fused=False
    ),
}
LOSSES = {"mlp": zoo.squared_error, "gpt": zoo.next_letter}


def data(name: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    if name == "mlp":
        x, y = rng.normal(size=(2, BATCH[name], WIDTH)).astype(np.float32)
        return x, y
    x, y = zoo.letters(LETTERS, LENGTH)(rng, BATCH[name])
    return x, y


def start(lib: Any, name: str) -> Any:
    """The model with its starting weights, the same for all."""
    network = NETWORKS[name](lib)
    rng = np.random.default_rng(1)
    with lib.no_grad():
        for p in network.parameters():
            scale = np.float32(0.5 * p.shape[-1] ** -0.5)
            p.copy_(lib.from_numpy(rng.standard_normal(tuple(p.shape), np.float32) * scale))
    return network


# --- the sides --------------------------------------------------------------------------------------------------------


class GTSide:
    """A client whose session lives on two workers."""

    def __init__(self, name: str, how: str) -> None:
        import gt

        self.name, self.gt = name, gt
        gt.mesh(x=2)
        self.network = start(gt, name)
        x, y = data(name)
        rows = {0: "x"} if how == "data" else {}
        self.x, self.y = (gt.from_numpy(a, layout=rows) for a in (x, y))
        if how == "tensor":
            split = {f"*{each}.*": {0: "x"} for each in COLUMNS[name]}
            split |= {f"*{each}.weight": {1: "x"} for each in ROWS[name]}
            gt.shard_(self.network, split)
        self.optimizer = gt.optim.AdamW(self.network.parameters(), lr=LR)
        self.losses(3)

    def step(self) -> Any:
        loss = LOSSES[self.name](self.gt, self.network, self.x, self.y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def losses(self, steps: int) -> list[float]:
        return [self.step().item() for _ in range(steps)]

    def round(self, steps: int) -> float:
        begin = time.perf_counter()
        for _ in range(steps):
            loss = self.step()
        loss.item()
        return (time.perf_counter() - begin) / steps

    def settle(self, limit_s: float) -> int:
        """Train until the workers' tier will not change, or time is up: the tier."""
        import watching

        end = time.monotonic() + limit_s
        while True:
            self.round(5)
            workers = self.gt.debug.get_worker_stats()["workers"].values()
            facts = [max(w["programs"].values(), key=lambda p: p["run_us"]) for w in workers]
            over = all(map(watching.settled, facts)) or any(map(watching.given_up, facts))
            if over or time.monotonic() > end:
                return min(int(each["tier"]) for each in facts)
            time.sleep(0.5)  # the compilers need the time

    def sent(self, steps: int) -> tuple[float, float]:
        """Bytes that the workers send to each other in a step, together: as they count, and as the machine does."""
        before, there = self._sent(), loopback_bytes()
        self.round(steps)
        return (self._sent() - before) / steps, (loopback_bytes() - there) / steps

    def _sent(self) -> int:
        workers = self.gt.debug.get_worker_stats()["workers"].values()
        return sum(int(about["sent_to_peers"]) for about in workers)

    def parameters(self) -> int:
        """Bytes of all parameters."""
        return sum(p.numel() * 4 for p in self.network.parameters())


class TorchRank:
    """One of two processes that run torch's way of it."""

    def __init__(self, name: str, how: str, rank: int, port: int) -> None:
        import torch
        import torch.distributed as dist

        self.name, self.torch = name, torch
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
        network = start(torch, name)
        x, y = (torch.from_numpy(a) for a in data(name))
        if how == "data":
            half = len(x) // 2
            self.x, self.y = (a[rank * half : (rank + 1) * half] for a in (x, y))
            self.network = torch.nn.parallel.DistributedDataParallel(network)
        else:
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

            self.x, self.y = x, y
            plan = {}
            for path, _ in network.named_modules():
                last = path.rpartition(".")[2]
                if last in COLUMNS[name]:
                    plan[path] = ColwiseParallel()
                elif last in ROWS[name]:
                    plan[path] = RowwiseParallel()
            self.network = parallelize_module(network, init_device_mesh("cpu", (2,)), plan)
        self.optimizer = torch.optim.AdamW(self.network.parameters(), lr=LR)
        self.losses(3)

    def step(self) -> Any:
        loss = LOSSES[self.name](self.torch, self.network, self.x, self.y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def losses(self, steps: int) -> list[float]:
        return [float(self.step()) for _ in range(steps)]

    def round(self, steps: int) -> float:
        begin = time.perf_counter()
        for _ in range(steps):
            loss = self.step()
        float(loss)
        return (time.perf_counter() - begin) / steps


class Pair:
    """Both ranks as one side."""

    def __init__(self, ranks: list[Rival]) -> None:
        self.ranks = ranks

    def ask(self, method: str, *given: Any) -> Any:
        for rank in self.ranks:
            rank.send(method, *given)
        answers = [rank.answer() for rank in self.ranks]
        return np.mean(answers, 0).tolist() if method == "losses" else max(answers)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


# --- the race ---------------------------------------------------------------------------------------------------------


def textbook_bytes(name: str, how: str, parameters: int) -> float:
    """What two workers send each other in a step by the book. In an all-reduce each sends as many bytes as there are.

    Data parallel: every gradient, the loss, and what it is divided by (how many targets count, forward and backward).
    Tensor parallel, as Megatron does it with the sequence split between the layers: the activations behind each pair of
    layers, forward, and in front of it, backward (where something there needs a gradient); what is made of split rows:
    the gradients of the norms, and of the biases behind the layers that are split by rows; and the loss. The planner
    may do with less."""
    numbers = 1 if name == "mlp" else 3
    if how == "data":
        return 2.0 * (parameters + 4 * numbers)
    if name == "mlp":
        activations = BATCH[name] * WIDTH * (LAYERS // 2 + LAYERS // 2 - 1)
        return 2.0 * 4 * (activations + len(ROWS[name]) * WIDTH + numbers)
    activations = BATCH[name] * LENGTH * GPT_WIDTH * 2 * LAYERS * 2
    rows = LAYERS * (len(ROWS[name]) + 2 * 2) * GPT_WIDTH + 2 * GPT_WIDTH
    return 2.0 * 4 * (activations + rows + numbers)


def loopback_bytes() -> int:
    """What the machine has sent to itself over the network so far; 0 where that is not known."""
    try:
        lines = Path("/proc/net/dev").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.partition(":")[2].split()[8]) for line in lines if line.strip().startswith("lo:"))


def race(name: str, how: str, args: argparse.Namespace) -> dict[str, Any]:
    rounds, steps = (2, 1) if args.quick else (20, 3)
    with ExitStack() as ending:
        address = ending.enter_context(
            serving("cpu", workers=2, GT_THREADS="1", GT_AUTO_COMPILE=str(int(not args.tier1)))
        )
        ours = ending.enter_context(Rival(GTSide, (name, how), GT_SERVER=address))
        port = free_port()
        ranks = [ending.enter_context(Rival(TorchRank, (name, how, rank, port))) for rank in range(2)]
        theirs = Pair(ranks)
        losses = [side.ask("losses", COMPARED) for side in (ours, theirs)]
        apart = float(np.max(np.abs(np.array(losses[0]) / np.array(losses[1]) - 1)))
        if not apart < 1e-3:
            raise Failed(f"{name}, {how} parallel: losses differ by {apart:.1e}")
        tier = ours.ask("settle", 0.0 if args.quick or args.tier1 else args.settle)
        seconds: tuple[list[float], list[float]] = ([], [])
        for _ in range(rounds):
            for side, took in zip((ours, theirs), seconds, strict=True):
                took.append(side.ask("round", steps))
        sent, wire = ours.ask("sent", steps)
        textbook = textbook_bytes(name, how, ours.ask("parameters"))
    gt_s, torch_s = map(statistics.median, seconds)
    return {
        "gt_ms": round(gt_s * 1e3, 3),
        "torch_ms": round(torch_s * 1e3, 3),
        "ratio": round(gt_s / torch_s, 4),
        "target": TARGETS[how],
        "tier": tier,
        "losses_apart": apart,
        "sent_bytes": sent,
        "wire_bytes": wire,
        "textbook_bytes": textbook,
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--model", default="mlp,gpt", help="mlp, gpt or both (%(default)s)")
    parser.add_argument("--tier1", action="store_true", help="GT compiles nothing")
    parser.add_argument(
        "--settle", type=float, default=120, metavar="S", help="seconds to wait for tiers (%(default)s)"
    )
    args = parser.parse_args()
    rows = [("", "GT", "tier", "torch", "ratio", "bytes between workers", "on the wire", "textbook", "target")]
    found: dict[str, Any] = {}
    for name in args.model.split(","):
        for how, rival in RIVALS.items():
            what = f"{name} ({MODELS[name]}), {how} parallel, against {rival}"
            try:
                one = found[f"{name}_{how}"] = race(name, how, args)
            except Failed as e:
                print(f"sharded: {what}: {e}", file=sys.stderr)
                found[f"{name}_{how}"] = {"error": str(e)}
                continue
            goal = f"<= {one['target']:g}" + ("" if one["ratio"] <= one["target"] else "  missed")
            rows.append(
                (
                    what,
                    f"{one['gt_ms']:.2f} ms",
                    str(one["tier"]),
                    f"{one['torch_ms']:.2f} ms",
                    f"{one['ratio']:.2f}",
                    f"{one['sent_bytes'] / 1e6:.2f} MB",
                    f"{one['wire_bytes'] / 1e6:.2f} MB",
                    f"{one['textbook_bytes'] / 1e6:.2f} MB",
                    goal,
                )
            )
    print_table("sharded, 2 workers of one thread, gloo", rows)
    if args.json:
        write(args.json, "sharded", found)
    if any("error" in one for one in found.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
