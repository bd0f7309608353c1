"""A program for several workers: from a checked program and the layouts of its inputs to what each worker runs.

Law 1: pure. The same program, layouts and meshes give the same plan.
Law 2: an output that replaces an input lies as that input does, so that a loop repeats its plan. Other outputs are
       reduced where they are partial; except a gradient: a partial sum that nobody here reads, of the shape of an input
       that lies whole along those axes. The next one is added to it before anything has to be reduced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from gt.dispatcher.planner import actions, blocks, deciding, effects, local, redistribute
from gt.dispatcher.planner.actions import Action, needed_actions, ordered
from gt.dispatcher.planner.deciding import Again, Attrs, Deciding, Goals, State, Value, encode, state_of
from gt.dispatcher.planner.local import Local, written
from gt.dispatcher.planner.template import op_named
from gt.layout import Layout, Mesh, fits, layout
from gt.ops.check import Checked
from gt.program import SCALARS, Instruction, Spec


@dataclass(frozen=True, slots=True)
class Planned:
    """A program made ready for several workers."""

    workers: tuple[int, ...]  #: all that take part, sorted
    locals: dict[int, Local]  #: by worker
    #: Of the program's outputs. One that replaces an input, but does not lie as it does (it was told to lie elsewhere),
    #: does not take its value if the call fails.
    outputs: tuple[Layout, ...]
    nbytes: dict[int, int]  #: memory a call needs on each worker beside its inputs
    notes: tuple[str, ...]  #: what no rule covers
    actions: tuple[Action, ...] = ()  #: what the workers do together, in order; for those who read plans


def plan_program(checked: Checked, inputs: Sequence[Layout], home: Mesh, meshes: Mapping[str, Mesh]) -> Planned:
    """The plan of a program whose inputs lie like this. `home` is the session's mesh, where results go that nothing
    else decides; `meshes` are others, by name."""
    if len(effects.known) > effects.LIMIT:
        forget()
    return _Plan(checked, inputs, home, meshes).run()


@lru_cache(1 << 12)
def given(s: Spec, one: Layout) -> State:
    """The state of an input that lies like this."""
    fits(one, s.shape)
    return state_of(s, (one,))


def forget() -> None:
    """Let go of what is remembered of all programs planned so far. Never within a plan, where what is equal is one
    object."""
    effects.known.clear()
    for memo in (
        deciding.use_of, deciding.bound_to, deciding.expansion, deciding.state_of, deciding.maker_of, given,
        actions.step_work, actions.joint_work, redistribute.redistribute, redistribute.missing,
        redistribute.largest_shard, redistribute.shape_at, redistribute.held_at, blocks.block_at, local.shards_of,
    ):  # fmt: skip
        memo.cache_clear()


class _Plan:
    def __init__(self, checked: Checked, inputs: Sequence[Layout], home: Mesh, meshes: Mapping[str, Mesh]) -> None:
        self.checked, self.program, self.home = checked, checked.program, home
        self.layouts = tuple(inputs)
        self.pins: set[int] = set()  #: values that were told where to lie
        self.deciding = Deciding(home, meshes, len(self.layouts), len(self.program.scalars))
        self.env: list[Value] = []  #: the program's values; behind them its scalars, which indices below zero name
        for i, (s, one) in enumerate(zip(checked.specs, self.layouts, strict=False)):
            self.env.append(Value(given(s, one), (i,)))
        for k in reversed(range(len(self.program.scalars))):
            self.env.append(Value(state_of(SCALARS[self.program.scalars[k]], ()), (~k,)))

    def run(self) -> Planned:
        program, deciding = self.program, self.deciding
        goals = self.goals()
        self.decide(goals)
        outputs = [self.output(o, goals.get(o)) for o in program.outputs]
        scalars = len(program.scalars) + len(deciding.literals)
        needed = needed_actions(deciding.actions, [n for n, _ in outputs], deciding.count, scalars)
        actions = ordered(needed, len(self.layouts))
        meshes = {one.mesh.workers for one in self.layouts} | {one.mesh.workers for _, one in outputs}
        meshes |= {work.workers for work, _, _, _ in actions}
        workers = tuple(sorted({w for m in meshes for w in m} or self.home.workers))
        inputs = list(zip(self.layouts, self.checked.specs, strict=False))
        ends = [(n, one, self.checked.specs[o]) for (n, one), o in zip(outputs, program.outputs, strict=True)]
        literals = list(deciding.literals.values())
        made, nbytes = written(program, workers, inputs, actions, ends, literals, deciding.count)
        layouts = tuple([one for _, one in outputs])
        return Planned(workers, made, layouts, nbytes, tuple(deciding.notes), tuple(actions))

    def goals(self) -> dict[int, Layout]:
        """Where values have to get, that replace inputs."""
        program, specs = self.program, self.checked.specs
        return {
            program.outputs[o]: self.layouts[i]
            for o, i in program.updates
            if specs[program.outputs[o]].shape == specs[i].shape
        }

    # -- instructions --------------------------------------------------------------------------

    def decide(self, goals: Mapping[int, Layout]) -> None:
        """What is done for each instruction: what is known of others that were alike, if there were any."""
        env, deciding, home, known = self.env, self.deciding, self.home, effects.known
        last_use = self.checked.last_use
        number = len(self.layouts)
        upcoming = sorted(goals, reverse=True)
        for i, ins in enumerate(self.program.code):
            deciding.instruction = i
            args, end = ins.args, number + ins.results
            operands = [env[a] for a in args]
            same = wanted = None
            if len(args) > 1 and len(set(args)) < len(args):
                same = tuple([args.index(a) for a in args])
            if upcoming and upcoming[-1] < end:
                wanted = tuple([goals.get(n) for n in range(number, end)])
                while upcoming and upcoming[-1] < end:
                    upcoming.pop()
            attrs = encode(ins.attrs) if ins.attrs else b""
            key: tuple[object, ...] = (ins.op, attrs, home, wanted, same, *[v.state for v in operands])
            found = known.get(key)
            again: Again = ()
            if found is None or found.owed:
                again = tuple([k for k, v in enumerate(operands) if v.state.owed and last_use[args[k]] > i])
                if again:
                    key = (*key, again)
                    found = known.get(key)
            if found is not None:
                env[number:number] = found.carry_out(deciding, operands)
            else:
                told = wanted or (None,) * ins.results
                env[number:number] = self.first(ins, number, operands, told, same, again, key)
            number = end

    def first(
        self, ins: Instruction, number: int, operands: Sequence[Value], goals: Goals, same: Sequence[int] | None,
        again: Again, key: tuple[object, ...],
    ) -> list[Value]:  # fmt: skip
        """The results of an instruction that nothing is known of."""
        op, attrs, results = op_named(ins.op), Attrs.of(ins.attrs), self.checked.specs[number : number + ins.results]
        values = [v for v, a in zip(operands, ins.args, strict=True) if a >= 0]
        if op.pins:
            self.pins.add(number)
        elif not self.is_deep(values):
            states = [v.state for v in operands]
            effect = effects.recorded(op, attrs, results, self.home, goals, same or range(len(states)), again, states)
            if effect is not None:
                effects.known[key] = effect
                return effect.carry_out(self.deciding, operands)
        args = [v if a >= 0 else a for v, a in zip(operands, ins.args, strict=True)]
        return self.deciding.use(op, args, attrs, tuple([v.spec for v in operands]), results, goals, again)

    def is_deep(self, values: Sequence[Value]) -> bool:
        """Whether some of these are made late of others, or something would be, of these."""
        if any(v.late is not None and v.state.maker is None for v in values):
            return True
        return bool(values) and all(v.late is not None for v in values)

    # -- outputs -------------------------------------------------------------------------------

    def output(self, number: int, goal: Layout | None) -> tuple[int, Layout]:
        """The placed value that is returned, and its layout."""
        value, lay = self.env[number], self.deciding.lay
        if goal is not None and number not in self.pins:
            here = value.at(goal)  # as most do
            return (lay(value, goal) if here is None else here), goal
        one = next((one for one in value.state.layouts if not one.partial), None)
        if one is None and value.late is not None:
            one = layout(self.home)
        if one is None:
            one = value.state.layouts[0]
            if number not in self.pins and not self.is_gradient(number, one):
                one = layout(one.mesh, one.dims)
        return lay(value, one), one

    def is_gradient(self, number: int, one: Layout) -> bool:
        """See Law 2."""
        if one.kind != "sum" or self.checked.last_use[number] >= 0:
            return False
        s = self.checked.specs[number]
        return any(
            mine.shape == s.shape and mine.dtype is s.dtype
            and there.mesh is one.mesh and not set(one.pending) & there.axes()
            for mine, there in zip(self.checked.specs, self.layouts, strict=False)
        )  # fmt: skip


__all__ = ["Local", "Planned", "plan_program"]
