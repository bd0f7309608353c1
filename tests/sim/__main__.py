"""Replay worlds of the simulation, with all checks on: `python -m tests.sim [--sharded] SEED [LAST SEED]`.

Many seeds are shared out to a process for each CPU. Those that fail are named at the end; the exit code is 1 then.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from .changes import Changes
from .simulation import simulate

EACH = 20  #: Seeds that a process takes at a time.


def replayed(seeds: range, sharded: bool) -> tuple[list[str], Changes]:
    """The seeds among these that fail, and why; what happened while plans changed in the others."""
    failed, changes = [], Changes()
    for seed in seeds:
        try:
            changes.update(simulate(seed, check_always=True, sharded=sharded).changes)
        except Exception as e:
            alone = f"python -m tests.sim{' --sharded' * sharded} {seed}"
            failed.append(f"seed {seed} fails; alone: {alone}\n{type(e).__name__}: {e}")
    return failed, changes


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=(__doc__ or "").split(":")[0])
    parser.add_argument("--sharded", action="store_true", help="sessions on several workers")
    parser.add_argument("first", type=int, metavar="SEED")
    parser.add_argument("last", type=int, nargs="?", metavar="LAST SEED", help="run all seeds up to this one")
    args = parser.parse_args()
    sharded, first = args.sharded, args.first
    last = first if args.last is None else args.last
    if first == last:
        world = simulate(first, check_always=True, sharded=sharded)
        print(f"seed {first}: {world.cluster.moves} moves, {len(world.clients)} clients, right")
        return
    start_s = time.perf_counter()
    parts = [range(k, min(k + EACH, last + 1)) for k in range(first, last + 1, EACH)]
    wrong: list[str] = []
    changes = Changes()
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for failed, more in pool.map(partial(replayed, sharded=sharded), parts):
            wrong += failed
            changes.update(more)
    seconds = time.perf_counter() - start_s
    count = last - first + 1
    print(*wrong, f"{count} seeds in {seconds:.1f} s, {count / seconds:.0f} per second, {len(wrong)} wrong", sep="\n")
    for what, times in sorted(changes.items()):
        print(f"{times:8,} x {what}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
