"""The integer program of a step without anything that makes it smaller: what plans of real sizes are compared with.

It states the objective again, from the program, in the form of one node per instruction: no followers, no classes, no
propagation. Of the solver it uses only the options of one instruction and the price of one conversion, like
exhaustive.py; unlike there, HiGHS looks at the assignments, because there are too many to look at one by one.

    minimise  sum time * y + sum conversion * z
    for each instruction and input           sum of y over its options = 1
    for each reader of a value and layout    what flows out of a layout is y of its maker; into one, y of the reader
    for each value, layout and target        z >= what flows for each reader
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import highspy
import numpy as np

from gt.layout import Layout, Mesh, layout
from gt.ops.check import Checked
from gt.solver.conversions import Conversions
from gt.solver.hardware import Hardware
from gt.solver.options import conversion, making_cost
from gt.solver.problem import Problem
from gt.solver.regions import alone


@dataclass
class Choice:
    """One decision: the layouts of an input, or the options of an instruction."""

    first: int  #: its first variable
    wants: list[tuple[Layout | None, ...]]
    gives: list[tuple[Layout, ...]]


class Full:
    """The integer program. Overlap is left out: it adds up times."""

    def __init__(self, checked: Checked, mesh: Mesh, hardware: Hardware) -> None:
        self.hardware = hardware
        #: Only for options, recipes and the choices that a plan follows; its nodes are single instructions.
        self.problem = Problem(checked, mesh, hardware, alone(checked), {}, merge_followers=False)
        self.cost: list[float] = []
        self.rows: list[tuple[float, float, list[int], list[float]]] = []
        self.choices: dict[int, Choice] = {}  #: inputs as ~j, instructions as i
        self.fixed = 0.0
        program, specs = checked.program, checked.specs
        n = len(program.inputs)
        self.maker: dict[int, tuple[int, int]] = {j: (~j, 0) for j in range(n)}  #: value -> (choice, result)
        recipes: dict[int, int] = {}  # values of numbers alone -> their instruction
        replacing = {program.outputs[o] for o, _ in program.updates}
        for node in self.problem.nodes:
            if node.input >= 0:
                stored = [o.gives for o in node.options]
                self._choose(~node.input, [()] * len(stored), stored, [0.0] * len(stored))
        number = n
        for i, ins in enumerate(program.code):
            mine = range(number, number + ins.results)
            number += ins.results
            if all(a in recipes for a in ins.args if a >= 0):
                recipes.update(dict.fromkeys(mine, i))
                continue
            options = self.problem.options_at(i)
            time_us = [o.cost.time_us for o in options]
            for r, v in enumerate(mine):
                self.maker[v] = (i, r)
                if v in program.outputs and v not in replacing:
                    for k, o in enumerate(options):
                        time_us[k] += self._reduced_us(o.gives[r], specs[v])
            self._choose(i, [o.wants for o in options], [o.gives for o in options], time_us)
        readers: dict[int, list[tuple[int, list[Layout]]]] = {}  # value -> choices, and the layouts that they want
        for i, ins in enumerate(program.code):
            for k, a in enumerate(ins.args):
                if a >= 0 and i in self.choices:
                    wanted = [want[k] for want in self.choices[i].wants]
                    readers.setdefault(a, []).append((i, [one for one in wanted if one is not None]))
        for o, j in program.updates:
            if specs[program.outputs[o]].shape == specs[j].shape:
                back = (~j, [given[0] for given in self.choices[~j].gives])
                readers.setdefault(program.outputs[o], []).append(back)
        for v, theirs in readers.items():
            if v in recipes:
                self._make(self._recipe(recipes[v], recipes, program), theirs)
            else:
                self._convert(v, theirs, specs[v])
        for v in [v for v in program.outputs if v in recipes]:
            self.fixed += making_cost(self._recipe(recipes[v], recipes, program), layout(mesh), hardware).time_us

    def _reduced_us(self, one: Layout, s: Any) -> float:
        return conversion(one, layout(one.mesh, one.dims), s, self.hardware).time_us if one.partial else 0.0

    def _recipe(self, i: int, recipes: dict[int, int], program: Any) -> tuple[Any, ...]:
        found, todo = set(), [i]
        while todo:
            at = todo.pop()
            found.add(at)
            todo += [recipes[a] for a in program.code[at].args if a >= 0]
        return tuple(self.problem.uses[at] for at in sorted(found))

    def _variables(self, costs: Sequence[float]) -> list[int]:
        start = len(self.cost)
        self.cost += costs
        return list(range(start, len(self.cost)))

    def _choose(
        self, key: int, wants: list[tuple[Layout | None, ...]], gives: list[tuple[Layout, ...]], time_us: list[float]
    ) -> None:
        made = self._variables(time_us)
        self.choices[key] = Choice(made[0], wants, gives)
        self.rows.append((1.0, 1.0, made, [1.0] * len(made)))

    def _by_layout(self, key: int, layouts: Sequence[Layout]) -> dict[Layout, list[int]]:
        found: dict[Layout, list[int]] = {}
        for k, one in enumerate(layouts):
            found.setdefault(one, []).append(self.choices[key].first + k)
        return found

    def _make(self, recipe: tuple[Any, ...], readers: Sequence[tuple[int, list[Layout]]]) -> None:
        """A value of numbers alone is made once in each layout that somebody wants."""
        copies: dict[Layout, int] = {}
        for key, wants in readers:
            for one, mine in self._by_layout(key, wants).items():
                if one not in copies:
                    (copies[one],) = self._variables([making_cost(recipe, one, self.hardware).time_us])
                self.rows.append((0.0, np.inf, [copies[one], *mine], [1.0, *[-1.0] * len(mine)]))

    def _convert(self, value: int, readers: Sequence[tuple[int, list[Layout]]], s: Any) -> None:
        """A value is converted once to each layout that somebody wants."""
        key, r = self.maker[value]
        made = self._by_layout(key, [given[r] for given in self.choices[key].gives])
        table = Conversions(s, self.hardware)
        table.add([*made, *[one for _, wants in readers for one in wants]])
        table.find()
        copies: dict[tuple[Layout, Layout], int] = {}
        for reader, wants in readers:
            wanted = self._by_layout(reader, wants)
            prices = table.prices(made, wanted)
            flows: dict[tuple[Layout, Layout], int] = {}
            for a, source in enumerate(made):
                for b, target in enumerate(wanted):
                    if np.isfinite(prices[a, b]):
                        (flows[source, target],) = self._variables([0.0])
                        if (source, target) not in copies:
                            (copies[source, target],) = self._variables([float(prices[a, b])])
                        self.rows.append((0.0, np.inf, [copies[source, target], flows[source, target]], [1.0, -1.0]))
            for side, mine in ((0, made), (1, wanted)):
                for one, variables in mine.items():
                    row = [f for ends, f in flows.items() if ends[side] is one]
                    self.rows.append((0.0, 0.0, row + variables, [1.0] * len(row) + [-1.0] * len(variables)))

    def solve(self, gap: float = 1e-4, limit_s: float = 300.0) -> tuple[float, float, list[int]]:
        """Price, proven bound, and the assignment of `problem`."""
        make: Any = highspy.Highs
        h = make()
        for name, setting in (("output_flag", False), ("time_limit", limit_s), ("mip_rel_gap", gap)):
            h.setOptionValue(name, setting)
        n = len(self.cost)
        h.addVars(n, np.zeros(n), np.ones(n))
        h.changeColsCost(n, np.arange(n, dtype=np.int32), np.array(self.cost))
        whole = np.array([k for each in self.choices.values() for k in range(each.first, each.first + len(each.gives))])
        kinds = np.array([highspy.HighsVarType.kInteger] * len(whole))
        h.changeColsIntegrality(len(whole), whole.astype(np.int32), kinds)
        lengths = [len(row[2]) for row in self.rows]
        h.addRows(
            len(self.rows), np.array([row[0] for row in self.rows]), np.array([row[1] for row in self.rows]),
            sum(lengths), np.concatenate(([0], np.cumsum(lengths)[:-1])).astype(np.int32),
            np.concatenate([row[2] for row in self.rows]).astype(np.int32),
            np.concatenate([row[3] for row in self.rows]),
        )  # fmt: skip
        h.run()
        found, values = h.getInfo(), np.array(h.getSolution().col_value)
        assigned = []
        for node in self.problem.nodes:
            choice = self.choices[~node.input if node.input >= 0 else node.instructions[0]]
            best = int(values[choice.first : choice.first + len(choice.gives)].argmax())
            wants = tuple(one for one in choice.wants[best] if one is not None)
            assigned.append(
                next(k for k, o in enumerate(node.options) if (o.wants, o.gives[: len(node.values)])
                     == (wants, tuple(choice.gives[best][r] for r in self._kept(node))))
            )  # fmt: skip
        return float(found.objective_function_value) + self.fixed, float(found.mip_dual_bound) + self.fixed, assigned

    def _kept(self, node: Any) -> list[int]:
        """Which results of an instruction somebody reads."""
        by_value = {v: key for key, v in self.problem.value_of.items()}
        return [by_value[v][1] for v in node.values]
