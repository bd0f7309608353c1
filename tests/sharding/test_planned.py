"""Whole plans: the local programs of all workers, run together, give what the program gives on one.

Every sample of every op on every mesh: from layouts drawn by a seed, and from those that one of its ways wants.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from gt.layout import mesh
from gt.ops import TABLE, Op
from tests.sharding.cases import OPS, cases
from tests.sharding.checking import kinds_of, sweep
from tests.sharding.layouts import MESHES, drawn
from tests.sharding.planned import mistakes_planned, one_op, planned_values, unsharded
from tests.sharding.simulate import close, read


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_every_op(op: Op) -> None:
    assert sweep(op, MESHES, mistakes_planned) == []


@pytest.mark.parametrize("case", cases(), ids=lambda c: c[0])
def test_inputs_on_different_meshes(case: Any) -> None:
    """Some workers are in several of them, some in one."""
    name, args, attrs = case
    rng, draws = random.Random(f"meshes {name}"), np.random.default_rng(0)
    meshes = [mesh(x=2), mesh([1, 4], y=2), mesh([5, 6, 7], x=3), mesh([3])]
    checked, arrays, numbers = one_op(TABLE[name], args, attrs)
    wanted = unsharded(checked, arrays, numbers)
    for _ in range(3):
        layouts = [drawn(rng, rng.choice(meshes), a.shape, kinds_of(a)) for a in arrays]
        planned, made = planned_values(checked, arrays, numbers, layouts, meshes[0], draws)
        assert {w for one in layouts for w in one.mesh.workers} <= set(planned.workers)
        assert all(close(read(v), w, v.spec.dtype) for v, w in zip(made, wanted, strict=True)), layouts
