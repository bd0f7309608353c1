"""Laws of the solver on random small programs and on models. `python -m tests.solver` asks the same of many more."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import gt
from gt.layout import Mesh, mesh
from gt.ops import check
from gt.ops.check import Checked
from gt.program import Instruction, Program
from gt.solver import facts, pricing
from gt.solver.hardware import HARDWARE, Link
from gt.solver.memory import memory_row
from gt.solver.options import least_us
from gt.solver.problem import Problem
from gt.solver.propagate import propagated
from gt.solver.regions import Classes, alone, find_classes
from gt.solver.search import Infeasible, search
from gt.solver.solve import problem_on

from . import models
from .graphs import Graph, graph, pins_for
from .judging import EXACT, SAME, exactly, judged, mistakes_propagated

NOT_DEARER = 1 + SAME


@pytest.mark.parametrize("part", range(4))
def test_the_search_finds_the_best_and_what_is_emitted_keeps_it(part: int) -> None:
    """On each mesh: the price is that of exhaustive search, with followers merged too, and from a known assignment; the
    plan follows every choice,
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


def test_no_option_takes_less_than_an_equal_share_of_the_arithmetic() -> None:
    """What is said of fewer workers before anything is searched for them."""
    hardware = HARDWARE["h100"]
    for build in (models.transformer_block, models.conv_net, models.experts, models.llama):
        problem = problem_on(models.recorded_step(build).largest.checked, mesh(x=2), hardware, {})
        for i, use in enumerate(problem.uses):
            if facts.is_product(use):
                fastest_us = min(option.cost.compute_us for option in problem.options_at(i))
                assert least_us(use, 2, hardware) <= fastest_us * (1 + 1e-9)
    assert least_us(next(use for use in problem.uses if use.op.name == "linear"), 2, hardware) > 0


def test_a_known_assignment_that_is_the_cheapest_by_rounding_closes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of nothing that others may cost beside the cheapest options, rounding leaves less than nothing."""
    price = Problem.price
    monkeypatch.setattr(Problem, "price", lambda problem, *args: price(problem, *args) * (1 - 1e-12))
    for seed in range(12):
        problem = graph(seed).problem()
        found = search(problem, exactly(problem).assigned)
        assert found.price_us == pytest.approx(exactly(problem).price_us, rel=SAME)


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


def block_stack(layers: int, width: int, heads: int, rows: int, length: int) -> models.Training:
    """Transformer blocks."""
    model = gt.nn.Sequential(*[models.Block(width, heads) for _ in range(layers)])
    return models.trained(model, lambda x: model(x).square().mean(), gt.ones(rows, length, width))


def checked_step(training: Callable[[], models.Training]) -> Checked:
    return models.recorded_step(training).largest.checked


LLAMA = {**models.LLAMA_8B, "rows": 8}
#: By layers.
STACKS: dict[str, Callable[[int], models.Training]] = {
    "mlp": lambda layers: models.mlp(layers),
    "large mlp": lambda layers: models.mlp(layers, 4096, 8192),
    "mlp of few rows": lambda layers: models.mlp(layers, 8192, 16),
    "blocks": lambda layers: block_stack(layers, 16, 2, 4, 8),
    "large blocks": lambda layers: block_stack(layers, 2048, 16, 8, 1024),
    "llama": lambda layers: models.llama(dtype=None, clip=0.0, layers=layers),
    "large llama": lambda layers: models.llama(**{**LLAMA, "layers": layers}),
}
FOUR, SQUARE = mesh(x=4), mesh(x=2, y=2)
#: Layers share a choice in none of these by themselves; in the last one they would not want to.
SMALL = [
    *[(name, 2, FOUR) for name in STACKS], ("mlp", 3, FOUR), ("mlp of few rows", 3, FOUR), ("blocks", 3, FOUR),
    ("mlp", 2, SQUARE), ("mlp of few rows", 2, SQUARE), ("mlp of few rows", 6, FOUR),
]  # fmt: skip


def best(checked: Checked, m: Mesh, classes: Classes) -> float:
    return search(Problem(checked, m, HARDWARE["h100"], classes, {}), gap=1e-6).price_us


@pytest.mark.parametrize(("name", "layers", "m"), SMALL)
def test_layers_that_are_alike_cost_what_they_cost_apart(name: str, layers: int, m: Mesh) -> None:
    """Sharing a choice is a restriction, so the solver shares none where it need not."""
    checked = checked_step(lambda: STACKS[name](layers))
    apart = best(checked, m, alone(checked))
    assert problem_on(checked, m, HARDWARE["h100"], {}).classes == alone(checked)
    if layers < 4:
        assert best(checked, m, find_classes(checked)) == pytest.approx(apart, rel=SAME)


@pytest.mark.parametrize("name", ["large mlp", "large blocks"])
def test_layers_between_the_first_and_the_last_may_share_their_choices(name: str) -> None:
    """Those of a small batch may not: six of them take turns, so a class of all of them is 1.6% dearer."""
    checked = checked_step(lambda: STACKS[name](4 if "blocks" in name else 6))
    classes = find_classes(checked)
    assert len(set(classes.instructions)) < len(classes.instructions)
    assert best(checked, FOUR, classes) == pytest.approx(best(checked, FOUR, alone(checked)), rel=SAME)


@pytest.mark.parametrize("are_ends_apart", [False, True])
@pytest.mark.parametrize("name", ["mlp", "blocks", "llama"])
def test_a_class_costs_what_its_members_cost_with_the_same_choice(name: str, are_ends_apart: bool) -> None:
    checked = checked_step(lambda: STACKS[name](5))
    classes, hardware = find_classes(checked, are_ends_apart), HARDWARE["pcie"]
    shared, apart = (Problem(checked, FOUR, hardware, each, {}, 1, False) for each in (classes, alone(checked)))
    for _, assigned, price in propagated(shared):
        mine = {(~node.input if node.input >= 0 else node.instructions[0]): node.options[k]
                for node, k in zip(shared.nodes, assigned, strict=True)}  # fmt: skip
        spread = []
        for node in apart.nodes:
            key = ~classes.inputs[node.input] if node.input >= 0 else classes.instructions[node.instructions[0]]
            spread.append(
                next(k for k, o in enumerate(node.options)
                     if o.wants == mine[key].wants and set(o.gives) <= set(mine[key].gives))
            )  # fmt: skip
        assert apart.price(spread) == pytest.approx(price, rel=1e-9)
