"""A thousand simulated worlds, and some where clients live on several workers. What each of them checks is in
simulation.py and oracle.py.
"""

from __future__ import annotations

import pytest

from .simulation import simulate

PLAIN = [(range(k, k + 100), False) for k in range(0, 1000, 100)]
SHARDED = [(range(k, k + 25), True) for k in range(0, 200, 25)]


@pytest.mark.parametrize(("seeds", "sharded"), [*PLAIN, *SHARDED])
def test_worlds(seeds: range, sharded: bool) -> None:
    for seed in seeds:
        try:
            simulate(seed, sharded=sharded)
        except Exception as e:
            alone = f"python -m tests.sim {'--sharded ' if sharded else ''}{seed}"
            raise AssertionError(f"seed {seed} is wrong; alone: {alone}\n{e!r}") from e


@pytest.mark.parametrize("sharded", [False, True])
def test_a_seed_replays(sharded: bool) -> None:
    once, again = simulate(9, sharded=sharded), simulate(9, sharded=sharded)
    assert once.cluster.moves == again.cluster.moves > 100
    assert once.rng.getstate() == again.rng.getstate()
