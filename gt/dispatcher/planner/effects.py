"""What one use of an op does to a plan, remembered: layers repeat, and so do programs.

An effect is a piece of a plan whose numbers are not filled in yet. It follows from the op, its attributes, the states
of the operands, which of them are one value, which are read again, and where the results shall lie; nothing else, so it
is decided once (`recorded`, by `Deciding` on values that stand for any) and carried out for every instruction that is
alike.

What is made late of other late values has no effect of its own: when it is made depends on who uses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gt.dispatcher.planner.actions import Work
from gt.dispatcher.planner.deciding import Again, Attrs, Deciding, Goals, State, Value, made_late
from gt.dispatcher.planner.template import Pick, picking
from gt.layout import Mesh
from gt.ops.record import Op
from gt.program import Spec

#: Effects that are remembered. When there are more, all is forgotten before the next plan (`program.forget`): what is
#: in use is soon back.
LIMIT = 1 << 12

#: By (op, attributes as they are encoded, home, goals, which operands are one value, *states of the operands); and,
#: behind that, which operands are read again, if any are: see `Again`.
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
    owed: bool  #: whether an operand is partial wherever it lies: then it matters who else reads it
    late: bool  #: whether a result is made late
    #: Of what is only one action, on those numbers of the operands, that makes the results: what is done, and their
    #: states. Most effects are.
    plain: tuple[Work, tuple[State, ...]] | None

    def carry_out(self, plan: Deciding, operands: Sequence[Value]) -> list[Value]:
        """Do it, to these operands; the results."""
        n = plan.count
        plan.count = n + self.count
        numbers = [operands[k].numbers[i] for k, i in self.picks]
        if self.plain is not None:
            work, states = self.plain
            if len(states) == 1:
                made: tuple[int, ...] = (n,)
                values = [Value(states[0], made)]
            else:
                made = tuple(range(n, plan.count))
                values = [Value(state, (r,)) for state, r in zip(states, made, strict=True)]
            plan.actions.append((work, tuple(numbers), made, plan.instruction))
            return values
        env = (*numbers, *range(n, plan.count))
        if self.literals:
            at = len(self.picks)
            env = (*env[:at], *map(plan.literal, self.literals), *env[at:])
        act, instruction = plan.actions.append, plan.instruction
        for work, sources, results in self.actions:
            act((work, sources(env), results(env), instruction))
        for k, state, pick in self.grown:
            operands[k].state, operands[k].numbers = state, pick(env)
        for text in self.notes:
            plan.notes.setdefault(text)
        if self.late:
            return [(made_late if state.maker else Value)(state, pick(env)) for state, pick in self.results]
        return [Value(state, pick(env)) for state, pick in self.results]


def recorded(
    op: Op, attrs: Attrs, results: Sequence[Spec], home: Mesh, goals: Goals, same: Sequence[int],
    again: Again, states: Sequence[State],
) -> Effect | None:  # fmt: skip
    """The effect of an op on operands in these states; None if a result is made late of others. `same`: the first
    operand that is the same value, for each of them."""
    values: dict[int, Value] = {}
    args: list[Value | int] = []
    # Of each placed value, and of each scalar: (operand, which of its numbers).
    whose: list[tuple[int, int]] = []
    scalars: list[tuple[int, int]] = []
    for k, (first, state) in enumerate(zip(same, states, strict=True)):
        if not state.places and state.maker is None:
            args.append(~len(scalars))
            scalars.append((k, 0))
            continue
        if first == k:
            numbers = [~(len(scalars) + i) for i in range(state.first)]
            numbers += range(len(whose), len(whose) + len(state.places))
            values[k] = (made_late if state.maker else Value)(state, tuple(numbers))
            scalars += [(k, i) for i in range(state.first)]
            whose += [(k, i) for i in range(state.first, len(numbers))]
        args.append(values[first])
    plan = Deciding(home, {}, len(whose), len(scalars))
    made = plan.use(op, args, attrs, tuple([s.spec for s in states]), results, goals, again)
    if any(v.late is not None and v.state.maker is None for v in made):
        return None
    grown = {k: v for k, v in values.items() if v.state is not states[k]}
    used = {s for _, sources, _, _ in plan.actions for s in sources} | {n for v in grown.values() for n in v.numbers}
    used |= {n for v in made for n in v.numbers}  # of a view of nothing
    taken = [n for n in sorted(used) if n < len(whose) and n >= -len(scalars)]
    literals = list(plan.literals.values())
    count = plan.count - len(whose)
    plain = None
    if len(plan.actions) == 1 and not (grown or literals or plan.notes):
        work, sources, ends, _ = plan.actions[0]
        if len(ends) == count and [v.numbers for v in made] == [(n,) for n in ends]:
            plain, taken = (work, tuple([v.state for v in made])), list(sources)
    order = [*taken, *[~(len(scalars) + i) for i in range(len(literals))], *range(len(whose), plan.count)]
    place = {number: i for i, number in enumerate(order)}

    def pick(numbers: Sequence[int]) -> Pick:
        return picking([place[n] for n in numbers])

    return Effect(
        tuple([whose[n] if n >= 0 else scalars[~n] for n in taken]),
        tuple(literals),
        count,
        tuple([(work, pick(sources), pick(ends)) for work, sources, ends, _ in plan.actions]),
        tuple([(k, v.state, pick(v.numbers)) for k, v in grown.items()]),
        tuple([(v.state, pick(v.numbers)) for v in made]),
        tuple(plan.notes),
        any(s.owed for s in states),
        any(v.late is not None for v in made),
        plain,
    )
