"""Replay worlds of the simulation: `python -m tests.sim [--sharded] SEED [LAST SEED]`, with all checks on.

Many seeds are shared out to a process for each CPU. Those that fail are named at the end; the exit code is 1 then.
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from .simulation import simulate

EACH = 20  #: Seeds that a process takes at a time.


def wrong(seeds: range, sharded: bool) -> list[str]:
    """The seeds among these that fail, and why."""
    found = []
    for seed in seeds:
        try:
            simulate(seed, check_always=True, sharded=sharded)
        except Exception as e:
            alone = f"python -m tests.sim{' --sharded' * sharded} {seed}"
            found.append(f"seed {seed} fails; alone: {alone}\n{type(e).__name__}: {e}")
    return found


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
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        failed = [each for found in pool.map(partial(wrong, sharded=sharded), parts) for each in found]
    seconds = time.perf_counter() - start_s
    count = last - first + 1
    print(*failed, f"{count} seeds in {seconds:.1f} s, {count / seconds:.0f} per second, {len(failed)} wrong", sep="\n")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
