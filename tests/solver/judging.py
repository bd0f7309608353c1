"""What is asked of each random program: by tests with a few dozen of them, by `python -m tests.solver` with many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gt.dispatcher.planner.plan import plan_program
from gt.layout import Layout
from gt.solver.pricing import price_plan
from gt.solver.problem import Problem
from gt.solver.propagate import WHOLE, Propagation, improve, propagated, seeds
from gt.solver.search import Found, search
from tests.sharding.planned import received_nbytes, run_planned, unsharded
from tests.sharding.simulate import close, place, read

from .exhaustive import Exhaustive
from .graphs import Graph

EXACT = 1e-9  #: the gap of a search that has to be exact
SAME = 1e-6  #: prices that differ by less are equal


@dataclass
class Judged:
    """What was seen of one graph."""

    wrong: list[str] = field(default_factory=list)
    shares: bool = False  #: the best assignment shares a conversion
    sharing_decides: bool = False  #: another one would be best if every reader paid
    merging: float = 0.0  #: how much dearer it gets if followers are merged


def exactly(problem: Problem) -> Found:
    """The best assignment."""
    return search(problem, gap=EXACT)


def judged(graph: Graph) -> Judged:
    """The search against all assignments, and what followers and sharing change."""
    seen = Judged()
    problem = graph.problem(merge_followers=False)
    found = exactly(problem)
    least = Exhaustive(problem).least()
    if not np.isclose(found.price_us, least, rtol=SAME, atol=1e-9):
        seen.wrong.append(f"the search found {found.price_us}, the best is {least} ({found.note})")
    if not np.isclose(problem.price(found.assigned), found.price_us, rtol=SAME):
        seen.wrong.append(f"the search says {found.price_us}, the problem {problem.price(found.assigned)}")
    if found.bound_us > least * (1 + SAME) + 1e-9:
        seen.wrong.append(f"the bound {found.bound_us} is above the best price {least}")
    start = propagated(problem)[0][1]  # what cannot be better than a known assignment is left out of the search
    for overlap in (0.0, 0.5):
        alone, known = (search(problem, each, gap=EXACT, overlap=overlap) for each in (None, start))
        if not np.isclose(alone.price_us, known.price_us, rtol=SAME, atol=1e-9) or known.bound_us > (
            alone.price_us * (1 + SAME) + 1e-9
        ):
            seen.wrong.append(f"from {start} the search found {known.price_us}, without it {alone.price_us}")
    if any(len(sharing.edges) > 1 for sharing in problem.sharings):
        together = problem.sharings
        problem.sharings = [replace(sharing, edges=[e]) for sharing in together for e in sharing.edges]
        each = exactly(problem)
        problem.sharings = together
        seen.shares = each.price_us > least * (1 + SAME) + 1e-9
        seen.sharing_decides = problem.price(each.assigned) > least * (1 + SAME) + 1e-9
    merged = graph.problem()
    best = exactly(merged)
    seen.merging = best.price_us / least - 1 if least else 0.0
    seen.wrong += mistakes_emitted(graph, merged, best)
    return seen


# -- what is emitted -------------------------------------------------------------------------


def mistakes_emitted(graph: Graph, problem: Problem, found: Found) -> list[str]:
    """The plan of an assignment follows it, takes no longer, moves the bytes that it says, and computes what one worker
    computes."""
    checked, wrong = graph.checked, []
    inputs, ways = problem.inputs(found.assigned), problem.chosen(found.assigned)
    planned = plan_program(checked, inputs, graph.mesh, {}, ways)
    wrong += [note for note in planned.notes if "not followed" in note]
    slow = replace(graph.hardware, overlap=0.0)
    price = price_plan(planned, checked, inputs, slow)
    objective = price_without_overlap(problem, found.assigned)
    if price.busy_us > objective * (1 + SAME) + 1e-9:
        wrong.append(f"emitted: {price.busy_us} us, the objective is {objective}")
    if price.time_us > price.busy_us * (1 + SAME):
        wrong.append(f"emitted: {price.time_us} us with overlap, {price.busy_us} without")
    received = received_nbytes(planned, planned.workers[-1])
    if price.received_nbytes != received:
        wrong.append(f"emitted: {price.received_nbytes} bytes priced, {received} received")
    arrays = graph.arrays()
    draws = np.random.default_rng(graph.seed)
    values = [place(a, one, draws) for a, one in zip(arrays, inputs, strict=True)]
    made = run_planned(planned, checked, values, graph.scalars)
    for value, expected in zip(made, unsharded(checked, arrays, graph.scalars), strict=True):
        if not close(read(value), expected, value.spec.dtype):
            wrong.append(f"a value is wrong in {value.layout!r}")
    return wrong


def price_without_overlap(problem: Problem, assigned: Sequence[int]) -> float:
    """The price of an assignment if nothing is hidden behind anything."""
    hardware = problem.hardware
    problem.hardware = replace(hardware, overlap=0.0)
    try:
        return problem.price(assigned)
    finally:
        problem.hardware = hardware


# -- propagation -----------------------------------------------------------------------------


def mistakes_propagated(graph: Graph) -> list[str]:
    """Propagation ends, says nothing more when it is run on what it said, and keeps pins and seeds."""
    problem, wrong = graph.problem(), []
    propagation = Propagation(problem)
    most = len(problem.values) * len(problem.mesh.sizes)
    for name, seed in seeds(problem):
        facts = propagation.run(seed)
        if len(facts) > most:
            wrong.append(f"{name}: {len(facts)} facts for {most} pairs of value and axis")
        if any(facts[at] != role for at, role in seed.items()):
            wrong.append(f"{name}: a fact of the seed was changed")
        if propagation.run(facts) != facts:
            wrong.append(f"{name}: more facts follow from its own facts")
        assigned = propagation.assign(facts)
        better = improve(problem, assigned)
        if problem.price(better) > problem.price(assigned) * (1 + SAME):
            wrong.append(f"{name}: improving made it dearer")
        for each in (assigned, better):
            stored = problem.inputs(each)
            wrong += [f"{name}: input {j} is not as pinned" for j, one in graph.pins.items() if stored[j] is not one]
        for node in problem.nodes:
            if node.input in graph.pins:
                for j, axis in enumerate(problem.mesh.sizes):
                    role = dimension_of(graph.pins[node.input], axis)
                    if facts[node.values[0], j] != role:
                        wrong.append(f"{name}: of the pinned input {node.input}, axis {axis} splits another dimension")
    return wrong


def dimension_of(one: Layout, axis: str) -> int:
    """The dimension that an axis splits; WHOLE if none."""
    return next((d for d, pieces in enumerate(one.dims) if any(axis in over for _, over in pieces)), WHOLE)


def gap_of_propagation(graph: Graph) -> float:
    """How much dearer than the best assignment the best propagated one is."""
    problem = graph.problem()
    best = exactly(problem).price_us
    return propagated(problem)[0][2] / best - 1 if best > 1e-9 else 0.0
