"""Whole plans: the local programs of all workers, run together, give what the program gives on one.

Every sample of every op on every mesh: from layouts drawn by a seed, and from those that one of its ways wants.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from gt.dispatcher.planner.plan import plan_program
from gt.layout import Mesh, layout, mesh, split
from gt.ops import TABLE, Op, check
from gt.program import Instruction, Program
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


@pytest.mark.parametrize(("m", "checks"), [(mesh(x=3), [0]), (mesh(x=2, y=2), [0, 2])], ids=str)
def test_what_a_worker_runs_is_known_by_what_it_is_run_for(m: Mesh, checks: list[int]) -> None:
    """So an error names the user's op and line."""
    shapes = [((11, 4), "float64"), ((6,), "int64"), ((6,), "int64")]
    attrs = {"padding_idx": -1, "scale_grad_by_freq": False}
    loss = {"reduction": "mean", "ignore_index": -100, "smoothing": 0.0}
    code = (
        Instruction("embedding", (0, 1), attrs), Instruction("relu", (3,), {}),
        Instruction("cross_entropy", (4, 2), loss, 2),
    )  # fmt: skip
    program = Program(tuple(shapes), "", code, (5,), (), ())
    axes = [axis for axis, _ in m.axes]
    layouts = [split(m, (11, 4), dict(enumerate(axes))), layout(m), layout(m)]
    for local in plan_program(check(program), layouts, m, {}).locals.values():
        made = [(local.program.code[k].op, origin) for k, origin in enumerate(local.origins)]
        assert len(made) <= len(local.program.code)
        assert [origin for op, origin in made if op == "in_range"] == checks
        assert ("relu", 1) in made
