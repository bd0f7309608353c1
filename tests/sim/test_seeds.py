"""A thousand simulated worlds. What each of them checks is in simulation.py and oracle.py."""

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


def test_a_seed_replays() -> None:
    once, again = simulate(7), simulate(7)
    assert once.cluster.moves == again.cluster.moves > 100
    assert once.rng.getstate() == again.rng.getstate()
