"""Laws of the solver on random small programs and on models. `python -m tests.solver` asks the same of many more."""

from __future__ import annotations

import ast
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gt
from gt.layout import mesh
from gt.ops import check
from gt.ops.check import Checked
from gt.program import Instruction, Program
from gt.solver import pricing
from gt.solver.hardware import HARDWARE, Link
from gt.solver.memory import memory_row
from gt.solver.problem import Problem
from gt.solver.recorded import record_step
from gt.solver.regions import alone, find_classes
from gt.solver.search import Infeasible, search

from . import models
from .graphs import Graph, graph, pins_for
from .judging import EXACT, SAME, exactly, judged, mistakes_propagated

NOT_DEARER = 1 + SAME


@pytest.mark.parametrize("part", range(4))
def test_the_search_finds_the_best_and_what_is_emitted_keeps_it(part: int) -> None:
    """On each mesh: the price is that of exhaustive search, with followers merged too; the plan follows every choice,
    takes no longer, receives the bytes that it says, and computes what one worker computes."""
    for seed in range(part, 48, 4):
        seen = judged(graph(seed))
        assert seen.wrong == [], graph(seed)
        assert seen.merging < SAME, graph(seed)


def test_shared_conversions_decide_which_assignment_is_best() -> None:
    assert sum(judged(graph(seed)).sharing_decides for seed in (10, 22, 51, 72, 73, 143)) > 0


@pytest.mark.parametrize("part", range(4))
def test_propagation_ends_and_is_idempotent_and_keeps_pins(part: int) -> None:
    for seed in range(1000 + part, 1200, 4):
        assert mistakes_propagated(graph(seed)) == [], graph(seed)


def test_pricing_knows_nothing_of_the_search() -> None:
    tree = ast.parse(Path(pricing.__file__).read_text())
    found = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    found += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert [name for name in found if name and name.startswith("gt.solver")] == ["gt.solver.hardware"]


# -- more and less ---------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_more_pins_are_never_cheaper(seed: int) -> None:
    made, rng = graph(seed), random.Random(seed)
    pins = pins_for(made, rng, 3)
    before = 0.0
    for count in range(len(pins) + 1):
        price = exactly(replace(made, pins=dict(list(pins.items())[:count])).problem()).price_us
        assert price * NOT_DEARER + 1e-9 >= before
        before = price


@pytest.mark.parametrize("seed", range(12))
def test_better_hardware_is_never_dearer(seed: int) -> None:
    made = graph(seed)
    price, h = exactly(made.problem()).price_us, made.hardware
    for better in (
        {"inside": Link(h.inside.latency_us, 2 * h.inside.bandwidth)},
        {"between": Link(h.between.latency_us / 2, 3 * h.between.bandwidth)},
        {"memory_bandwidth": 2 * h.memory_bandwidth},
        {"flops": {8: 4 * h.flops[8]}},
    ):
        assert exactly(made.on(**better).problem()).price_us <= price * NOT_DEARER + 1e-9, better


@pytest.mark.parametrize("seed", range(12))
def test_more_memory_is_never_dearer(seed: int) -> None:
    """And what is found fits, wherever the limit is."""
    problem = graph(seed).problem()
    if not problem.nodes:
        return
    free = exactly(problem)
    points = range(len(problem.program.code))
    most = max(memory_row(problem, at, 0.0).nbytes(free.assigned) for at in points)
    before = free.price_us
    for share in (1.0, 0.8, 0.6, 0.4):
        rows = [memory_row(problem, at, share * most) for at in points]
        try:
            found = search(problem, gap=EXACT, rows=rows)
        except Infeasible:
            before = float("inf")
            continue
        assert all(row.holds(found.assigned) for row in rows)
        assert found.price_us * NOT_DEARER + 1e-9 >= before
        before = found.price_us


# -- what changes nothing --------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3, 43, 4))
def test_names_of_axes_and_numbers_of_workers_change_no_price(seed: int) -> None:
    made = replace(graph(seed), pins={})
    price = exactly(made.problem()).price_us
    per_node = made.hardware.workers_per_node
    others = [mesh(b=2, a=2), mesh([1, 0, 3, 2], x=2, y=2)] + ([mesh([2, 3, 0, 1], x=2, y=2)] if per_node > 1 else [])
    for other in others:
        assert exactly(replace(made, mesh=other).problem()).price_us == pytest.approx(price, rel=SAME)


def reordered(made: Graph, rng: random.Random) -> Checked:
    """The same program with its instructions in another order that is possible."""
    program, n = made.checked.program, len(made.checked.program.inputs)
    number = {k: k for k in range(n)}
    left, code = list(range(len(program.code))), []
    while left:
        ready = [i for i in left if all(a < 0 or a in number for a in program.code[i].args)]
        i = rng.choice(ready)
        left.remove(i)
        ins = program.code[i]
        code.append(Instruction(ins.op, tuple(a if a < 0 else number[a] for a in ins.args), ins.attrs))
        number[n + i] = n + len(code) - 1
    outputs = tuple(number[v] for v in program.outputs)
    return check(Program(program.inputs, program.scalars, tuple(code), outputs, program.donate, program.updates))


@pytest.mark.parametrize("seed", range(12))
def test_the_order_of_independent_instructions_changes_no_price(seed: int) -> None:
    made = graph(seed, overlap=False)  # which pass an instruction belongs to depends on the order
    price = exactly(made.problem()).price_us
    for k in range(2):
        other = replace(made, checked=reordered(made, random.Random(k)))
        assert exactly(other.problem()).price_us == pytest.approx(price, rel=SAME)


# -- layers that are alike -------------------------------------------------------------------


def block_stack(width: int, heads: int, rows: int, length: int) -> models.Training:
    """Two transformer blocks."""
    model = gt.nn.Sequential(models.Block(width, heads), models.Block(width, heads))
    return models.trained(model, lambda x: model(x).square().mean(), gt.ones(rows, length, width))


LAYERS: dict[str, Any] = {
    "mlp": lambda: models.mlp(2),
    "large mlp": lambda: models.mlp(2, 4096, 8192),
    "blocks": lambda: block_stack(16, 2, 4, 8),
    "large blocks": lambda: block_stack(2048, 16, 8, 1024),
    "llama": lambda: models.llama(dtype=None, clip=0.0),
    "large llama": lambda: models.llama(**{**models.LLAMA_8B, "layers": 2, "rows": 8}),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_that_share_their_choices_cost_what_they_cost_apart(name: str) -> None:
    """Sharing is a restriction, so it is never cheaper. The best two large blocks differ: there it costs 1.0%.

    Without overlap: what is hidden is counted by the first member of a class, so the two prices differ in meaning.
    """
    with gt.on_paper():
        training = LAYERS[name]()
        checked = record_step(training.step, *training.batch).checked
    hardware = replace(HARDWARE["h100"], overlap=0.0)
    together, apart = (
        search(Problem(checked, mesh(x=4), hardware, classes, {}), gap=1e-6).price_us
        for classes in (find_classes(checked), alone(checked))
    )
    assert apart <= together * NOT_DEARER
    assert together <= apart * (1.011 if name == "large blocks" else NOT_DEARER)
