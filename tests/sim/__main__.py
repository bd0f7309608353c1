"""Replay worlds of the simulation: `python -m tests.sim [--sharded] SEED [LAST SEED]`, with all checks on.

Many seeds are shared out to a process for each CPU. Those that fail are named at the end; the exit code is 1 then.
"""

from __future__ import annotations

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
    sharded = "--sharded" in sys.argv
    numbers = [int(a) for a in sys.argv[1:] if a != "--sharded"]
    first, last = numbers[0], numbers[-1]
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
