"""How long planning takes: `python -m tests.sharding --plan`; of more models `python benchmarks/planning.py`.

A training step of the models of tests/training is planned for several meshes: cold, with nothing remembered, and again,
with every instruction seen before. CPU time, the least of some runs, in milliseconds per 100 instructions of the
client's program. The hash and the text of the local programs are not included.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gt.dispatcher.planner.memo import forget
from gt.dispatcher.planner.plan import plan_program
from gt.layout import Layout, Mesh, layout, mesh, split
from gt.ops.check import Checked
from tests.sharding.recorded import is_update, record

MESHES = (mesh(x=2), mesh(x=4), mesh(x=2, y=2))


def step_of(name: str) -> Checked:
    """The program of a whole training step."""
    return next(call for call in record(name).calls if is_update(call)).checked


def cases(checked: Checked) -> Iterator[tuple[str, Mesh, list[Layout]]]:
    """(name, mesh, layouts of the inputs)"""
    shapes = [tuple(shape) for shape, _ in checked.program.inputs]
    state = {i for _, i in checked.program.updates}
    for m in MESHES:
        first, last = m.axes[0][0], m.axes[-1][0]
        data = [layout(m) if i in state or not s else split(m, s, {0: first}) for i, s in enumerate(shapes)]
        yield f"data split, {m!r}", m, data
        both = [split(m, s, {0: last}) if i in state and s else data[i] for i, s in enumerate(shapes)]
        yield f"both split, {m!r}", m, both


@dataclass(frozen=True)
class Timed:
    """Milliseconds per 100 instructions."""

    cold: float
    seen: float
    local: int  #: instructions of all workers' programs


def timed(checked: Checked, m: Mesh, layouts: list[Layout], colds: int = 5, seens: int = 40) -> Timed:
    """How long it takes to plan a program for these layouts of its inputs."""
    # Between any two plans comes another one of the same program, with one input in another layout.
    other = list(layouts)
    k = next(i for _, i in checked.program.updates if checked.specs[i].ndim)
    other[k] = split(m, checked.specs[k].shape, {0: m.axes[-1][0]}) if layouts[k].is_whole else layout(m)

    def plan(given: list[Layout]) -> Any:
        return plan_program(checked, given, m, {})

    def cold() -> float:
        forget()
        return _milliseconds(lambda: plan(layouts))

    def seen() -> float:
        plan(other)
        return _milliseconds(lambda: plan(layouts))

    share = 100 / len(checked.program.code)
    least = min(cold() for _ in range(colds)) * share
    again = min(seen() for _ in range(seens)) * share
    count = sum(len(each.program.code) for each in plan(layouts).locals.values())
    return Timed(least, again, count)


def _milliseconds(run: Callable[[], Any]) -> float:
    began = time.process_time()
    made = run()
    took = time.process_time() - began
    del made  # not timed
    return took * 1e3


def main() -> None:
    checked = step_of("gpt")
    print(f"GPT step of {len(checked.program.code)} instructions; ms per 100 of them")
    print(f"{'':28}  cold   seen  local instructions")
    for name, m, layouts in cases(checked):
        found = timed(checked, m, layouts)
        print(f"{name:28} {found.cold:5.1f}  {found.seen:5.2f}  {found.local}")
