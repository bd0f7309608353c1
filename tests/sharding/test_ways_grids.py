"""On meshes of 2x2 and 2x3 workers, every op on shards gives what it gives unsharded: every sample of it, in every way
that its rule allows (see checking.py), and once from layouts drawn by a seed.
"""

from __future__ import annotations

import pytest

from gt.ops import Op
from tests.sharding.cases import OPS
from tests.sharding.checking import mistakes, mistakes_anyhow, sweep
from tests.sharding.layouts import GRIDS


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_every_way(op: Op) -> None:
    assert sweep(op, GRIDS, mistakes) == []


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_from_any_layout(op: Op) -> None:
    assert sweep(op, GRIDS, mistakes_anyhow) == []
