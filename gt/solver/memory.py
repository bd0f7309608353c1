"""Memory as rows of the integer program: what is alive at one point of a program may not exceed what a worker has.

A row is added where a solution violates it (solve.py). It counts the shards of all inputs, of the values that are alive
at the point, and of the copies that conversions have made of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gt.solver.options import nbytes_at
from gt.solver.problem import Problem


@dataclass(slots=True)
class MemoryRow:
    """The bytes of each choice at one point of the program."""

    at: int  #: the instruction
    limit: float
    options: list[tuple[int, int, float]]  #: (node, option, bytes)
    copies: list[tuple[int, int, int, float]]  #: (sharing, layout, target, bytes)
    problem: Problem

    def nbytes(self, assigned: Sequence[int]) -> float:
        """What an assignment takes."""
        total = sum(nbytes for node, option, nbytes in self.options if assigned[node] == option)
        wanted = [self.problem.conversions(sharing, assigned) for sharing in self.problem.sharings]
        for sharing, source, target, nbytes in self.copies:
            made, targets = wanted[sharing]
            if made == source and target in targets:
                total += nbytes
        return total

    def holds(self, assigned: Sequence[int]) -> bool:
        """Whether an assignment fits."""
        return self.nbytes(assigned) <= self.limit * (1 + 1e-9)


def memory_row(problem: Problem, at: int, limit: float) -> MemoryRow:
    """The row of one instruction: what is alive while it runs."""
    checked, program = problem.checked, problem.program
    n = len(program.inputs)
    kept = set(program.outputs)
    replaced = {program.outputs[o]: j for o, j in program.updates}
    alive: dict[int, int] = {}  # chosen value -> how many are alive
    for number, s in enumerate(checked.specs):
        key = problem.key_of(number)
        value = problem.value_of.get(key)
        if value is None:
            continue
        if number < n:
            alive[value] = alive.get(value, 0) + 1
            continue
        made_at = problem.maker[number - n]
        last = checked.last_use[number]
        is_alive = made_at <= at and (last >= at or (number in kept and number not in replaced))
        if is_alive and not problem.values[value].is_view and problem.values[value].node >= 0 and s.nbytes:
            alive[value] = alive.get(value, 0) + 1
    options: list[tuple[int, int, float]] = []
    for value, count in alive.items():
        one = problem.values[value]
        sizes = problem.nbytes_of(value)
        for option, place in enumerate(one.layout_of.tolist()):
            options.append((one.node, option, float(count * sizes[place])))
    running = problem.classes.instructions[at]
    for k, node in enumerate(problem.nodes):
        if node.input < 0 and node.instructions[0] == running:
            options += [(k, o, option.extra_nbytes) for o, option in enumerate(node.options) if option.extra_nbytes]
    copies: list[tuple[int, int, int, float]] = []
    phase = int(problem.phases > 1 and at >= problem.boundary)
    for k, sharing in enumerate(problem.sharings):
        one = problem.values[sharing.value]
        if one.node < 0 or sharing.phase != phase:
            continue
        # Of how many values a copy is alive: from its first to its last reader in the phase.
        count = sum(first <= at <= last for first, last in problem.spans(k).values())
        if not count:
            continue
        for a, source in enumerate(one.layouts):
            for b, target in enumerate(one.targets):
                if source is not target and one.price_us[a, b] > 1e-5:
                    copies.append((k, a, b, float(count * nbytes_at(target, one.spec))))
    return MemoryRow(at, limit, options, copies, problem)
