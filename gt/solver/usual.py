"""What people do by hand, for any program: layouts of its inputs, from which the planner decides the rest.

Each axis of the mesh either splits data or weights (columns, then rows: Megatron's way); the optimizer's state, or all
that is trained, can be sharded over axes that split data. Nothing is known by name: what an update replaces is trained,
a parameter is what the forward pass reads of it, and the batch is the first input that is read of all others. What this
says about the other inputs follows by propagation.

Law: pins are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, product
from math import prod

import numpy as np

from gt.dispatcher.planner.ways import bound_of
from gt.layout import Layout
from gt.solver.facts import is_product
from gt.solver.problem import Problem
from gt.solver.propagate import WHOLE, Facts, Propagation, inputs_of, pinned


def usual_inputs(problem: Problem) -> Iterator[tuple[str, list[Layout]]]:
    """By name: the layouts of the program's inputs."""
    propagation = Propagation(problem)
    names, axes = list(problem.mesh.sizes), range(len(problem.mesh.sizes))
    trained = [(v, shape) for v, is_trained, shape in inputs_of(problem) if is_trained]
    parameters = _parameters(problem)
    for splits_data in product((True, False), repeat=len(axes)):
        data = [j for j in axes if splits_data[j]]
        weights = [j for j in axes if not splits_data[j]]
        followed = propagation.run(pinned(problem, _batch(problem, data) | _columns_and_rows(problem, weights)))
        facts = {(v, j): followed.get((v, j), WHOLE) for v, _, _ in inputs_of(problem) for j in axes}
        facts |= {(v, j): WHOLE for v, _ in trained for j in data}
        name = " and ".join(
            [f"{what} over {', '.join(names[j] for j in mine)}"
             for what, mine in (("batch", data), ("columns and rows", weights)) if mine]
        )  # fmt: skip
        yield name, _layouts(propagation, pinned(problem, facts))
        for over in chain.from_iterable(combinations(data, n + 1) for n in range(len(data))):
            where = ", ".join(names[j] for j in over)
            for what in ("state", "parameters"):
                mine = [(v, shape) for v, shape in trained if what == "parameters" or v not in parameters]
                sharded = facts | _sharded(problem, mine, over, facts)
                yield f"{name}, {what} sharded over {where}", _layouts(propagation, pinned(problem, sharded))


def _parameters(problem: Problem) -> set[int]:
    """The values that the forward pass reads."""
    return {
        edge.value for edge in problem.edges
        if edge.operand >= 0 and problem.nodes[edge.node].operands[edge.operand][0] < problem.boundary
    }  # fmt: skip


def _batch(problem: Problem, axes: Sequence[int]) -> Facts:
    """Of the first input that is read and not replaced, the first dimension that is large enough is split."""
    given = {v: shape for v, is_trained, shape in inputs_of(problem) if not is_trained and shape}
    reads = [
        (problem.nodes[edge.node].operands[edge.operand], edge.value) for edge in problem.edges
        if edge.operand >= 0 and edge.value in given
    ]  # fmt: skip
    if not reads:
        return {}
    _, first = min(reads)
    least = prod(problem.mesh.sizes[a] for j, a in enumerate(problem.mesh.sizes) if j in axes)
    d = next((d for d, n in enumerate(given[first]) if n >= least), 0)
    return {(first, j): d for j in axes}


@dataclass(slots=True)
class _Product:
    """An instruction that multiplies something with a weight, and which dimensions of it are columns and rows."""

    weight: int
    source: int  #: the value that is multiplied, before ops of one operand
    column: int
    row: int


def _columns_and_rows(problem: Problem, axes: Sequence[int]) -> Facts:
    """A weight is split over its results; one that multiplies what follows from them is split over what it sums up:
    Megatron's way. Where several weights multiply one value, gathering that once is cheaper than a sum for each."""
    products = _products(problem)
    weights_of: dict[int, set[int]] = {}
    for each in products.values():
        weights_of.setdefault(each.source, set()).add(each.weight)
    is_split: set[int] = set()  # values that follow from results of columns
    facts: Facts = {}
    for i, ins in enumerate(problem.program.code[: problem.boundary]):
        was_split = any(a in is_split for a in ins.args)
        found = products.get(i)
        if found is not None:
            by_rows = was_split and len(weights_of[found.source]) == 1
            v = problem.value_of[problem.key_of(found.weight)]
            for axis in axes:
                facts.setdefault((v, axis), found.row if by_rows else found.column)
            was_split = not by_rows
        if was_split:
            start = problem.number_of[i]
            is_split |= set(range(start, start + ins.results))
    return facts


def _products(problem: Problem) -> dict[int, _Product]:
    """The products with weights before the backward pass, by instruction."""
    found: dict[int, _Product] = {}
    #: Of each value that is a trained input in another form, as a cast or a permutation is: the input, and which of its
    #: dimensions each dimension is, -1 for none.
    weights = {j: (j, tuple(range(len(problem.checked.specs[j].shape)))) for _, j in problem.program.updates}
    source: dict[int, int] = {}
    for i, ins in enumerate(problem.program.code[: problem.boundary]):
        bound = bound_of(problem.uses[i])
        results = range(problem.number_of[i], problem.number_of[i] + ins.results)
        tensors = [p for p, a in enumerate(ins.args) if a >= 0]
        if len(tensors) == 1:
            at, a = tensors[0], ins.args[tensors[0]]
            source |= dict.fromkeys(results, source.get(a, a))
            if a in weights:
                j, dims = weights[a]
                place_of = {over[0]: d for over, d in zip(bound.inputs[at], dims, strict=False) if over}
                for v, made in zip(results, bound.outputs, strict=True):
                    weights[v] = j, tuple([place_of.get(over[0], -1) if over else -1 for over in made])
        others = [p for p in tensors if ins.args[p] not in weights]
        if not others or len(others) == len(tensors) or not is_product(problem.uses[i]):
            continue
        given = {f for p in others for over in bound.inputs[p] for f in over}
        made_of = {f for over in bound.outputs[0] for f in over}
        for at in [p for p in tensors if p not in others]:
            j, dims = weights[ins.args[at]]
            mine = [(over[0], d) for over, d in zip(bound.inputs[at], dims, strict=False) if over and d >= 0]
            columns = [d for f, d in mine if f in made_of - given]
            rows = [d for f, d in mine if f in given - made_of]
            if columns and rows:
                a = ins.args[others[0]]
                found[i] = _Product(j, source.get(a, a), columns[0], rows[0])
    return found


def _sharded(
    problem: Problem, trained: Sequence[tuple[int, tuple[int, ...]]], over: Sequence[int], facts: Facts
) -> Facts:  # fmt: skip
    """Each of these is split along its first dimension that is large enough and not split otherwise."""
    names = list(problem.mesh.sizes)
    least = prod(problem.mesh.sizes[names[j]] for j in over)
    found: Facts = {}
    for v, shape in trained:
        taken = {facts[v, j] for j in range(len(names)) if j not in over}
        d = next((d for d, n in enumerate(shape) if d not in taken and n >= least), WHOLE)
        found |= {(v, j): d for j in over}
    return found


def _layouts(propagation: Propagation, facts: Facts) -> list[Layout]:
    """Of each input the layout that agrees with the facts."""
    problem = propagation.problem
    by_class = {
        node.input: node.options[int(np.argmax(propagation.agreeing(k, facts)))].gives[0]
        for k, node in enumerate(problem.nodes) if node.input >= 0
    }  # fmt: skip
    return [by_class[c] for c in problem.classes.inputs]
