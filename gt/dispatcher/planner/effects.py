"""What one use of an op does to a plan, remembered: layers repeat, and so do programs.

An effect is a piece of a plan whose numbers are not filled in yet. It follows from the op, its attributes, the states
of the operands, which of them are one value, and where the results shall lie; nothing else, so it is decided once
(`recorded`, by `Deciding` on values that stand for any) and carried out for every instruction that is alike.

What is made late has no effect of its own: when it is made depends on who uses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gt.dispatcher.planner.actions import Work
from gt.dispatcher.planner.deciding import Attrs, Deciding, Goals, State, Value
from gt.dispatcher.planner.template import Pick, picking
from gt.layout import Mesh
from gt.ops.record import Op
from gt.program import Spec

#: Effects that are remembered. When there are more, all are forgotten: those in use are soon back.
LIMIT = 1 << 14

#: By (op, attributes as they are encoded, home, goals, which operands are one value, *states of the operands).
known: dict[tuple[Any, ...], Effect] = {}


@dataclass(frozen=True, slots=True)
class Effect:
    """See the file's header. `Pick`s are out of (picked numbers of operands, literals, new placed values)."""

    picks: tuple[tuple[int, int], ...]  #: (operand, which of its numbers)
    literals: tuple[Any, ...]
    count: int  #: of new placed values
    actions: tuple[tuple[Work, Pick, Pick], ...]  #: with its sources and results
    grown: tuple[tuple[int, State, Pick], ...]  #: (operand, its state afterwards, what its numbers are then)
    results: tuple[tuple[State, Pick], ...]
    notes: tuple[str, ...]

    def carry_out(self, plan: Deciding, operands: Sequence[Value]) -> list[Value]:
        """Do it, to these operands; the results."""
        n = plan.count
        plan.count = n + self.count
        env = (*[operands[k].numbers[i] for k, i in self.picks], *range(n, plan.count))
        if self.literals:
            at = len(self.picks)
            env = (*env[:at], *map(plan.literal, self.literals), *env[at:])
        act, instruction = plan.actions.append, plan.instruction
        for work, sources, results in self.actions:
            act((work, sources(env), results(env), instruction))
        for k, state, numbers in self.grown:
            operands[k].state, operands[k].numbers = state, numbers(env)
        for text in self.notes:
            plan.notes.setdefault(text)
        return [Value(state, numbers(env)) for state, numbers in self.results]


def recorded(
    op: Op, attrs: Attrs, results: Sequence[Spec], home: Mesh, goals: Goals, same: Sequence[int],
    states: Sequence[State],
) -> Effect | None:  # fmt: skip
    """The effect of an op on operands in these states; None if a result is late. `same`: the first operand that is the
    same value, for each of them."""
    values: dict[int, Value] = {}
    args: list[Value | int] = []
    whose: list[tuple[int, int]] = []  # of each number of an operand: (operand, which of its numbers)
    for k, (first, state) in enumerate(zip(same, states, strict=True)):
        if state.places and first == k:
            values[k] = Value(state, tuple(range(len(whose), len(whose) + len(state.places))))
            whose += [(k, i) for i in range(len(state.places))]
        args.append(values[first] if state.places else ~k)
    plan = Deciding(home, {}, len(whose), len(args))
    made = plan.use(op, args, attrs, tuple([s.spec for s in states]), results, goals)
    if any(v.late is not None for v in made):
        return None
    grown = {k: v for k, v in values.items() if v.state is not states[k]}
    used = {s for _, sources, _, _ in plan.actions for s in sources} | {n for v in grown.values() for n in v.numbers}
    used |= {n for v in made for n in v.numbers}  # of a view of nothing
    taken = [n for n in sorted(used) if n < len(whose) and n >= -len(args)]
    literals = list(plan.literals.values())
    order = [*taken, *[~(len(args) + i) for i in range(len(literals))], *range(len(whose), plan.count)]
    place = {number: i for i, number in enumerate(order)}

    def pick(numbers: Sequence[int]) -> Pick:
        return picking([place[n] for n in numbers])

    return Effect(
        tuple([whose[n] if n >= 0 else (~n, 0) for n in taken]),
        tuple(literals),
        plan.count - len(whose),
        tuple([(work, pick(sources), pick(ends)) for work, sources, ends, _ in plan.actions]),
        tuple([(k, v.state, pick(v.numbers)) for k, v in grown.items()]),
        tuple([(v.state, pick(v.numbers)) for v in made]),
        tuple(plan.notes),
    )


def remember(key: tuple[Any, ...], effect: Effect) -> None:
    if len(known) >= LIMIT:
        known.clear()
    known[key] = effect
