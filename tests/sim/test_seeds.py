"""A thousand simulated worlds, and some where clients live on several workers. What each of them checks is in
simulation.py and oracle.py.
"""

from __future__ import annotations

import pytest

from .simulation import simulate

BLOCK = 100


@pytest.mark.parametrize("first", range(0, 1000, BLOCK))
def test_worlds(first: int) -> None:
    for seed in range(first, first + BLOCK):
        try:
            simulate(seed)
        except Exception as e:
            raise AssertionError(f"seed {seed} is wrong; alone: python -m tests.sim {seed}\n{e!r}") from e


@pytest.mark.parametrize("first", range(0, 200, BLOCK // 4))
def test_worlds_of_several_workers(first: int) -> None:
    for seed in range(first, first + BLOCK // 4):
        try:
            simulate(seed, sharded=True)
        except Exception as e:
            raise AssertionError(f"seed {seed} is wrong; alone: python -m tests.sim --sharded {seed}\n{e!r}") from e


@pytest.mark.parametrize("sharded", [False, True])
def test_a_seed_replays(sharded: bool) -> None:
    once, again = simulate(7, sharded=sharded), simulate(7, sharded=sharded)
    assert once.cluster.moves == again.cluster.moves > 100
    assert once.rng.getstate() == again.rng.getstate()
