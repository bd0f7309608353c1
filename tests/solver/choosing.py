"""Plans for tests: for each instruction a way that its rule allows, at random or the planner's own."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from gt.chosen import Chosen
from gt.dispatcher.planner.ways import Attrs, Use, bound_of, make_way
from gt.dispatcher.planner.work import op_named
from gt.layout import mesh, split
from gt.ops.check import Checked
from gt.program import SCALARS
from gt.solver.recorded import RecordedProgram


@dataclass(frozen=True)
class SomePlan:
    """What `gt.use_plan` needs of a plan."""

    mesh: dict[str, int]
    layouts: dict[str, str]
    ways: dict[int, Chosen]
    body: str
    notes: list[str] = field(default_factory=list)


def uses(checked: Checked) -> list[Use]:
    """The use of each instruction."""
    program = checked.program
    found, number = [], len(program.inputs)
    for ins in program.code:
        specs = tuple(checked.specs[a] if a >= 0 else SCALARS[program.scalars[~a]] for a in ins.args)
        results = checked.specs[number : number + ins.results]
        found.append(Use(op_named(ins.op), Attrs.of(ins.attrs), specs, tuple(results)))
        number += ins.results
    return found


def random_plan(recorded: RecordedProgram, axes: dict[str, int], seed: int, share: float = 0.7) -> SomePlan:
    """Random ways for a share of the instructions, each over one axis, and random layouts of the inputs."""
    rng, grid = random.Random(seed), mesh(**axes)
    ways: dict[int, Chosen] = {}
    for i, use in enumerate(uses(recorded.checked)):
        if rng.random() > share or use.op.pins or not use.specs:
            continue
        axis = rng.choice([*axes])
        bound = bound_of(use)
        fit = []
        for f in sorted(set(bound.sizes) - set(bound.whole)):
            pieces = ((bound.sizes[f], (axis,)),)
            if bound.sizes[f] > 1 and make_way(use, grid, {f: pieces}, {}, None) is not None:
                fit.append(Chosen({f: pieces}))
        if fit:
            ways[i] = rng.choice(fit)
    layouts = {}
    for i in recorded.inputs:
        dims = [d for d, n in enumerate(i.spec.shape) if n > 1]
        wish = {rng.choice(dims): rng.choice([*axes])} if dims and rng.random() < 0.7 else {}
        layouts[i.name] = repr(split(grid, i.spec.shape, wish))
    return SomePlan(axes, layouts, ways, recorded.body)
