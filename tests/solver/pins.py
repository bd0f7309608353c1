"""What people do by hand: layouts of parameters, optimizer state and batch, planned by the planner alone.

Each strategy gives a layout to every input of a recorded step. The planner decides the rest op by op, and the plan is
priced by the same code as the solver's. A solver is worth its time only if no strategy is cheaper.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from gt.dispatcher.planner.plan import plan_program
from gt.layout import Axes, Layout, Mesh, split
from gt.solver.hardware import Hardware
from gt.solver.pricing import Price, price_plan
from gt.solver.recorded import Input, RecordedProgram

#: Weights (results, features) that Megatron splits over what they sum up; all others are split over their results.
ROWS = re.compile(r"\.(out|o|down|join)\.weight$|\.down$")
#: Their modules add a bias after the sum, so it stays whole.
ROW_BIASES = re.compile(r"\.(out|o|down|join)\.bias$")


@dataclass(frozen=True, slots=True)
class Pinned:
    """A strategy on a program."""

    name: str
    inputs: list[Layout]
    price: Price


def parameter_of(one: Input) -> str:
    """The parameter that an input is, or is the state of."""
    return one.name.split(":", 1)[-1]


def along(m: Mesh, shape: tuple[int, ...], wish: Mapping[int, Axes]) -> Layout:
    """The layout with these dimensions split; an axis that does not fit is not used."""
    fits = {d: axes for d, axes in wish.items() if d < len(shape) and axes and shape[d] >= m.size(axes)}
    return split(m, shape, fits)


def batch_dim(one: Input, m: Mesh, axes: Axes) -> int:
    """The first dimension of a batch that is large enough: rows, or positions where there are too few rows."""
    return next((d for d, n in enumerate(one.spec.shape) if n >= m.size(axes)), 0)


def megatron_dims(program: RecordedProgram) -> dict[str, int]:
    """By parameter: the dimension that Megatron splits. Numbered layers take turns: columns, rows, columns, ..."""
    found: dict[str, int] = {}
    numbered = [
        i.name.rsplit(".", 1)[0] for i in program.inputs
        if i.role == "parameter" and len(i.spec.shape) >= 2 and re.search(r"\.\d+\.weight$", i.name)
    ]  # fmt: skip
    for one in program.inputs:
        if one.role != "parameter" or not one.spec.shape:
            continue
        module = one.name.rsplit(".", 1)[0]
        if module in numbered:
            columns = numbered.index(module) % 2 == 0
            if len(one.spec.shape) >= 2 or columns:
                found[one.name] = 0 if columns else 1
        elif len(one.spec.shape) == 3:  # experts
            found[one.name] = 0
        elif ROWS.search(one.name):
            found[one.name] = 1
        elif len(one.spec.shape) >= 2 or (
            re.search(r"\.(qkv|q|k|v|up|gate|stem|left|right)\.bias$", one.name) and not ROW_BIASES.search(one.name)
        ):
            found[one.name] = 0
    return found


def strategies(program: RecordedProgram, m: Mesh) -> Iterator[tuple[str, Callable[[Input], Layout]]]:
    """Name, and the layout of each input."""
    dims = megatron_dims(program)
    every = tuple(m.sizes)

    def pinned(data: Axes, parameters: Axes, state: Axes, megatron: Axes) -> Callable[[Input], Layout]:
        def of(one: Input) -> Layout:
            shape = one.spec.shape
            if one.role == "data":
                return along(m, shape, {batch_dim(one, m, data): data} if data else {})
            if one.role == "buffer":
                return split(m, shape, {})
            wish: dict[int, Axes] = {}
            d = dims.get(parameter_of(one))
            if megatron and d is not None and d < len(shape) and shape[d] >= m.size(megatron):
                wish[d] = megatron
            sharded = parameters if one.role == "parameter" else state
            if sharded:
                free = next((k for k, n in enumerate(shape) if k not in wish and n >= m.size(sharded)), None)
                if free is not None:
                    wish[free] = sharded
            return along(m, shape, wish)

        return of

    yield "replicated", pinned((), (), (), ())
    yield "data-parallel", pinned(every, (), (), ())
    yield "data-parallel, state sharded", pinned(every, (), every, ())
    yield "fully-sharded", pinned(every, every, every, ())
    yield "Megatron", pinned((), (), (), every)
    if len(every) > 1:
        for outer, inner in (every, every[::-1]):
            a, b = (outer,), (inner,)
            yield f"data over {outer}, Megatron over {inner}", pinned(a, (), (), b)
            yield f"data over {outer}, Megatron over {inner}, state sharded", pinned(a, (), a, b)
            yield f"sharded over {outer}, Megatron over {inner}", pinned(a, a, a, b)
            yield f"data over both, sharded over {inner}", pinned(every, b, b, ())


def priced(program: RecordedProgram, m: Mesh, hardware: Hardware, memory_nbytes: float) -> list[Pinned]:
    """The strategies whose plans fit, the cheapest first."""
    found = []
    for name, of in strategies(program, m):
        inputs = [of(one) for one in program.inputs]
        price = price_plan(plan_program(program.checked, inputs, m, {}), program.checked, inputs, hardware)
        if price.peak_nbytes <= memory_nbytes:
            found.append(Pinned(name, inputs, price))
    return sorted(found, key=lambda each: each.price.time_us)
