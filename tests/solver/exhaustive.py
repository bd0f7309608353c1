"""The best assignment of a small problem by looking at all of them: what tests/solver compares the search with.

It states the objective again, from the program: a choice for each input and each instruction, its time; each value
once in each layout in which somebody reads it in a phase; the way back of a value that replaces an input; what is
partial at the end. Of the solver it uses only the options of one instruction and the price of one conversion.

Law: `least` is exact. Where choices overlap (`Hardware.overlap`) all assignments are priced; else choices are
     eliminated one after the other, each with all choices that share a value with it: the same assignments.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gt.dispatcher.planner.ways import Use
from gt.layout import Layout, layout
from gt.solver.options import Option, conversion, making_cost
from gt.solver.problem import Problem

#: A table with more entries than this is not made.
MOST_ENTRIES = 2 * 10**7


class TooMany(Exception):
    """There are too many assignments to look at."""


@dataclass
class Table:
    """A price for each combination of some choices."""

    choices: tuple[int, ...]  #: ascending
    us: np.ndarray  #: one axis for each


class Exhaustive:
    """All assignments of a problem without classes. Choices are numbered: inputs first, then instructions."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        program, specs = problem.program, problem.checked.specs
        n = len(program.inputs)
        stored = {node.input: [o.gives[0] for o in node.options] for node in problem.nodes if node.input >= 0}
        self.options: dict[int, list[Option]] = {}
        self.made: dict[int, tuple[int, list[Layout]]] = {j: (j, stored[j]) for j in range(n)}  #: of each value
        self.sizes: dict[int, int] = {j: len(stored[j]) for j in range(n)}
        self.unary: dict[int, np.ndarray] = {j: np.zeros(len(stored[j])) for j in range(n)}
        self.compute: dict[int, np.ndarray] = {}
        self.recipes: dict[int, int] = {}  #: values of numbers alone, with their instructions
        replacing = {program.outputs[o] for o, _ in program.updates}
        number = n
        for i, ins in enumerate(program.code):
            tensors = [a for a in ins.args if a >= 0]
            if all(a in self.recipes for a in tensors):
                self.recipes[number] = i
                number += ins.results
                continue
            options = self.options[n + i] = problem.options_at(i)
            self.sizes[n + i] = len(options)
            self.unary[n + i] = np.array([o.cost.time_us for o in options])
            self.compute[n + i] = np.array([o.cost.compute_us for o in options])
            for r in range(ins.results):
                layouts = [o.gives[r] for o in options]
                self.made[number + r] = (n + i, layouts)
                if number + r in program.outputs and number + r not in replacing:
                    for k, one in enumerate(layouts):
                        if one.partial:
                            each = conversion(one, layout(one.mesh, one.dims), specs[number + r], problem.hardware)
                            self.unary[n + i][k] += each.time_us
                            self.compute[n + i][k] += each.compute_us
            number += ins.results
        self.shared, self.late = self._conversions()
        whole = layout(problem.mesh)
        ends = [v for v in program.outputs if v in self.recipes]
        self.fixed = sum(making_cost(self._uses(v), whole, problem.hardware).time_us for v in ends)

    def _conversions(self) -> tuple[list[Table], list[Table]]:
        """The conversions of each value in each phase; and those that are reductions for the optimizer."""
        problem, program = self.problem, self.problem.program
        n = len(program.inputs)
        readers: dict[tuple[int, int], list[tuple[int, list[Layout], int]]] = {}  # choice, wanted, instruction
        for i, ins in enumerate(program.code):
            if n + i in self.options:
                phase = int(problem.phases > 1 and i >= problem.boundary)
                for k, a in enumerate(ins.args):
                    if a >= 0:
                        wants = [o.wants[k] for o in self.options[n + i]]
                        readers.setdefault((a, phase), []).append((n + i, [w for w in wants if w is not None], i))
        for o, j in program.updates:
            a = program.outputs[o]
            if problem.checked.specs[a].shape == problem.checked.specs[j].shape:
                readers.setdefault((a, problem.phases - 1), []).append((j, self.made[j][1], len(program.code)))
        every, late = [], []
        for (a, _), mine in readers.items():
            table = self._table(a, mine)
            every.append(table)
            maker = self.made[a][0] - n if a in self.made else -1
            if 0 <= maker < problem.update_start and all(i >= problem.update_start for _, _, i in mine):
                late.append(table)
        return every, late

    def _table(self, value: int, readers: Sequence[tuple[int, list[Layout], int]]) -> Table:
        """What the conversions of one value cost: each wanted layout once."""
        problem, s = self.problem, self.problem.checked.specs[value]
        targets = list(dict.fromkeys(one for _, wants, _ in readers for one in wants))
        if value in self.recipes:
            uses = self._uses(value)
            maker, row = -1, np.array([making_cost(uses, one, problem.hardware).time_us for one in targets])
        else:
            maker, layouts = self.made[value]
            prices = problem.tables[s].prices(layouts, targets)
        choices = tuple(sorted({c for c, _, _ in readers} | ({maker} if maker >= 0 else set())))
        shape = [self.sizes[c] for c in choices]
        if math.prod(shape) > MOST_ENTRIES:
            raise TooMany
        total = np.zeros(shape)
        for t, target in enumerate(targets):
            wanted = np.zeros(shape, bool)
            for c, wants, _ in readers:
                wanted |= self._along(choices, c, np.array([one is target for one in wants]))
            price = row[t] if maker < 0 else self._along(choices, maker, prices[:, t])
            total += np.where(wanted, price, 0.0)
        return Table(choices, total)

    def _uses(self, value: int) -> tuple[Use, ...]:
        return tuple([self.problem.uses[i] for i in sorted(self._chain(value))])

    def _chain(self, value: int) -> set[int]:
        """The instructions that make a value of numbers alone."""
        i = self.recipes[value]
        return {i}.union(*[self._chain(a) for a in self.problem.program.code[i].args if a >= 0])

    def _along(self, choices: Sequence[int], choice: int, row: np.ndarray) -> np.ndarray:
        return row.reshape([-1 if c == choice else 1 for c in choices])

    def least(self) -> float:
        """The price of the best assignment."""
        overlap = self.problem.hardware.overlap
        behind = [
            c for c in self.compute
            if self.problem.boundary <= c - len(self.problem.program.inputs) < self.problem.update_start
        ]  # fmt: skip
        if not overlap or not self.late or not behind:
            return self._eliminated()
        every = tuple(sorted(self.sizes))
        if math.prod(self.sizes.values()) > MOST_ENTRIES:
            raise TooMany
        total = np.zeros([self.sizes[c] for c in every])
        hidden, work = np.zeros_like(total), np.zeros_like(total)
        for c in every:
            total += self._along(every, c, self.unary[c])
        for c in behind:
            work += overlap * self._along(every, c, self.compute[c])
        for table in self.shared:
            total += self._spread(every, table)
        for table in self.late:
            hidden += self._spread(every, table)
        return self.fixed + float((total - np.minimum(hidden, work)).min())

    def _spread(self, every: Sequence[int], table: Table) -> np.ndarray:
        return table.us.reshape([self.sizes[c] if c in table.choices else 1 for c in every])

    def _eliminated(self) -> float:
        tables = [Table((c,), us) for c, us in self.unary.items()] + list(self.shared)
        left = set(self.sizes)
        total = self.fixed
        while left:
            near = {c: {d for t in tables if c in t.choices for d in t.choices} for c in left}
            c = min(left, key=lambda c: (math.prod(self.sizes[d] for d in near[c]), c))
            choices = tuple(sorted(near[c]))
            if math.prod(self.sizes[d] for d in choices) > MOST_ENTRIES:
                raise TooMany
            joint = np.zeros([self.sizes[d] for d in choices])
            for table in tables:
                if c in table.choices:
                    joint += self._spread(choices, table)
            tables = [table for table in tables if c not in table.choices]
            rest = tuple(d for d in choices if d != c)
            least = joint.min(axis=choices.index(c))
            if rest:
                tables.append(Table(rest, least))
            else:
                total += float(least)
            left.discard(c)
        return total
