"""Replay worlds of the simulation: `python -m tests.sim SEED [LAST SEED]`, with all checks on."""

from __future__ import annotations

import sys
import time

from .simulation import simulate

first = int(sys.argv[1])
last = int(sys.argv[2]) if len(sys.argv) > 2 else first
start_s = time.perf_counter()
for seed in range(first, last + 1):
    try:
        world = simulate(seed, check_always=True)
    except BaseException:
        print(f"seed {seed} fails; alone: python -m tests.sim {seed}", file=sys.stderr)
        raise
    if first == last:
        print(f"seed {seed}: {world.cluster.moves} moves, {len(world.clients)} clients, right")
seconds = time.perf_counter() - start_s
print(f"{last - first + 1} seeds in {seconds:.1f} s, {(last - first + 1) / seconds:.0f} per second")
