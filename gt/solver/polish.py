"""Other layouts of the inputs, a few at a time, at the price of what is emitted.

The search adds up times; in an emitted plan communication overlaps with computation. So what it finds is good, and
something beside it may be better: a bias that is gathered while nothing waits for it, weights that are split along
other dimensions. Here the planner decides from the layouts of the inputs alone, which takes little time, and what it
emits is priced. A parameter and the optimizer's state for it change together, as do those of layers that are alike.

Law 1: nothing is accepted that is slower, or takes more memory than there is.
Law 2: pins are kept: a pinned input has one layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gt.dispatcher.planner.plan import Planned, plan_program
from gt.layout import Layout
from gt.solver.pricing import Price, price_plan
from gt.solver.problem import Problem


@dataclass(frozen=True, slots=True)
class PlainPlan:
    """What the planner makes of layouts of the inputs, without choices."""

    inputs: list[Layout]
    planned: Planned
    price: Price


def plain_plan(problem: Problem, inputs: Sequence[Layout]) -> PlainPlan:
    planned = plan_program(problem.checked, inputs, problem.mesh, {})
    return PlainPlan(list(inputs), planned, price_plan(planned, problem.checked, inputs, problem.hardware))


def polished(problem: Problem, best: PlainPlan, memory: float, most: int) -> PlainPlan:
    """The best of this plan and those with other layouts of some inputs, of which at most so many are tried."""
    tried = {tuple(best.inputs)}
    is_better = True
    while is_better:
        is_better = False
        for family in _families(problem):
            for inputs in _changed(problem, best.inputs, family):
                if tuple(inputs) in tried:
                    continue
                if len(tried) > most:
                    return best
                tried.add(tuple(inputs))
                made = plain_plan(problem, inputs)
                if made.price.time_us < best.price.time_us and made.price.peak_nbytes <= memory:
                    best, is_better = made, True
    return best


def _families(problem: Problem) -> list[list[int]]:
    """Inputs that change together, each the first of its class: those of which one instruction makes the new value of
    one of them. The largest first."""
    program, class_of = problem.program, problem.classes.inputs
    maker = {
        number + r: ins for number, ins in zip(problem.number_of, program.code, strict=True) for r in range(ins.results)
    }
    replaced = {class_of[j] for _, j in program.updates}
    leader = {c: c for c in class_of}

    def first(c: int) -> int:
        while leader[c] != c:
            c = leader[c]
        return c

    for o, j in program.updates:
        ins = maker.get(program.outputs[o])
        for a in ins.args if ins is not None else ():
            if 0 <= a < len(class_of) and class_of[a] in replaced:
                leader[first(class_of[a])] = first(class_of[j])
    found: dict[int, list[int]] = {}
    for c in leader:
        found.setdefault(first(c), []).append(c)
    return sorted(found.values(), key=lambda family: -sum(problem.checked.specs[c].nbytes for c in family))


def _changed(problem: Problem, inputs: Sequence[Layout], family: Sequence[int]) -> Iterator[list[Layout]]:
    """The inputs with another layout of this family: one of its largest member, for all that have its shape."""
    specs = problem.checked.specs
    largest = max(family, key=lambda c: specs[c].nbytes)
    alike = [c for c in family if specs[c].shape == specs[largest].shape]
    layouts = {node.input: {o.gives[0]: None for o in node.options} for node in problem.nodes if node.input in alike}
    for one in layouts[largest]:
        takes = {c for c in alike if one in layouts[c]}
        yield [one if c in takes else old for c, old in zip(problem.classes.inputs, inputs, strict=True)]
