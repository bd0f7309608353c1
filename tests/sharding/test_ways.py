"""Every op on shards gives what it gives unsharded: every sample of it, in every way that its rule allows, and once
from layouts drawn by a seed.
"""

from __future__ import annotations

import pytest

from gt.layout import Mesh
from gt.ops import Op
from tests.sharding.cases import OPS
from tests.sharding.checking import mistakes, mistakes_from_any_layout, sweep
from tests.sharding.layouts import GRIDS, LINES

on_meshes = pytest.mark.parametrize("meshes", [LINES, GRIDS], ids=["lines", "grids"])
of_ops = pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)


@of_ops
@on_meshes
def test_every_way(op: Op, meshes: list[Mesh]) -> None:
    assert sweep(op, meshes, mistakes) == []


@of_ops
@on_meshes
def test_from_any_layout(op: Op, meshes: list[Mesh]) -> None:
    assert sweep(op, meshes, mistakes_from_any_layout) == []
