"""Every op on shards gives what it gives unsharded: every sample of it, in every way that its rule allows, and once
from layouts drawn by a seed.
"""

from __future__ import annotations

import pytest

from gt.ops import Op
from tests.sharding.cases import OPS
from tests.sharding.checking import mistakes, mistakes_from_any_layout, sweep
from tests.sharding.layouts import MESHES

of_ops = pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)


@of_ops
def test_every_way(op: Op) -> None:
    assert sweep(op, MESHES, mistakes) == []


@of_ops
def test_from_any_layout(op: Op) -> None:
    assert sweep(op, MESHES, mistakes_from_any_layout) == []
