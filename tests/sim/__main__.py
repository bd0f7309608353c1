"""Replay worlds of the simulation: `python -m tests.sim [--sharded] SEED [LAST SEED]`, with all checks on."""

from __future__ import annotations

import sys
import time

from .changes import Changes
from .simulation import simulate

sharded = "--sharded" in sys.argv
numbers = [int(a) for a in sys.argv[1:] if a != "--sharded"]
first, last = numbers[0], numbers[-1]
changes = Changes()
start_s = time.perf_counter()
for seed in range(first, last + 1):
    try:
        world = simulate(seed, check_always=True, sharded=sharded)
    except BaseException:
        print(f"seed {seed} fails; alone: python -m tests.sim{' --sharded' * sharded} {seed}", file=sys.stderr)
        raise
    changes.update(world.changes)
    if first == last:
        print(f"seed {seed}: {world.cluster.moves} moves, {len(world.clients)} clients, right")
seconds = time.perf_counter() - start_s
print(f"{last - first + 1} seeds in {seconds:.1f} s, {(last - first + 1) / seconds:.0f} per second")
for what, times in sorted(changes.items()):
    print(f"{times:8,} x {what}")
