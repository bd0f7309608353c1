"""Plans of the solver, followed, give the values that one worker gives: a share of `python -m tests.solver.values`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gt.dispatcher.planner.memo import forget
from gt.layout import Mesh
from gt.ops import Op
from gt.solver import solve
from tests.sharding.cases import OPS
from tests.sharding.table import sample

from .cases import CASES
from .values import MESHES, NARROW, check_case, followed, listing, step_of

LINE, THREE, GRID, UNEVEN = MESHES
SMALL_ON_GRIDS = ["eight experts", "adapters", "clipped gradients", "diamond"]


@pytest.fixture(autouse=True, scope="module")
def few_plans() -> Iterator[None]:
    """Of the plans that are emitted to find a faster one, a few: values are compared here, not prices."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solve, "EMITTED", solve.EMITTED // 8)
        yield
    forget()
    step_of.cache_clear()


@pytest.mark.parametrize(
    ("name", "m"),
    [(name, (LINE, THREE)[k % 2]) for k, name in enumerate(CASES)]
    + [(name, m) for name in SMALL_ON_GRIDS for m in (GRID, UNEVEN)],
    ids=str,
)
def test_a_case_in_float64(name: str, m: Mesh) -> None:
    solved, wrong = check_case(name, m)
    assert wrong == []
    assert solved.price.collectives
    assert any(one.axes() for one in solved.inputs)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", NARROW[:3])
def test_a_case_in_a_narrow_dtype(name: str, dtype: str) -> None:
    assert check_case(name, LINE, dtype)[1] == []


@pytest.mark.parametrize("op", [op for op in OPS if not op.pins], ids=lambda op: op.name)
def test_an_op_in_every_option(op: Op) -> None:
    args, attrs = sample(op)
    assert [line for _, _, wrong in followed(op, args, attrs, LINE, most=12) for line in wrong] == []


def test_the_listing_says_what_each_option_communicates() -> None:
    lines = list(listing(next(op for op in OPS if op.name == "matmul"), LINE))
    assert lines[0] == "matmul (7x10 10x11)"
    moved = {line.split("  [")[1].split(" us")[0].rsplit("  ", 1)[0]: line.split()[0] for line in lines[1:]}
    assert moved["7@x] [] -> [7@x]"] == "-"
    assert moved[". 10@x] [10@x] -> [] sum x"] == "all_reduce"
