"""A plan: from a checked program and the layouts of its inputs to what each worker runs.

Law 1: pure. The same program, layouts and meshes give the same plan.
Law 2: an output that replaces an input gets that input's layout, so that a loop repeats its plan. Other outputs are
       reduced where they are partial, except gradients. A gradient is a partial sum that no instruction reads, of the
       shape of an input that is whole along the partial axes. The next backward pass adds to it before it is reduced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gt.chosen import Chosen
from gt.dispatcher.planner import decide
from gt.dispatcher.planner.choose import Goals, Reread
from gt.dispatcher.planner.decide import Decider, PlannedValue, ValueState, number, state_of
from gt.dispatcher.planner.emit import Local, Output, emit
from gt.dispatcher.planner.follow import encode_choice, follow
from gt.dispatcher.planner.memo import forget, memo
from gt.dispatcher.planner.order import needed, ordered
from gt.dispatcher.planner.redistribute import largest_shard
from gt.dispatcher.planner.ways import Attrs, Use, encode_attrs
from gt.dispatcher.planner.work import Action, op_named, placed
from gt.errors import GTError
from gt.layout import Layout, Mesh, fits, layout, split
from gt.ops.check import Checked
from gt.program import SCALARS, Instruction, Spec

SPLIT_NBYTES = 1 << 12  #: What is smaller, and nothing says how it is sharded, is replicated.


@dataclass(frozen=True, slots=True)
class Planned:
    """A program made ready for several workers."""

    workers: tuple[int, ...]  #: all that take part, sorted
    locals: dict[int, Local]  #: by worker
    #: The layouts of the program's outputs. An output that replaces an input, but is pinned to another layout, does not
    #: take the input's value if the call fails.
    outputs: tuple[Layout, ...]
    nbytes: dict[int, int]  #: by worker: the memory of a call beside its inputs
    notes: tuple[str, ...]  #: what is gathered because no rule covers it
    actions: tuple[Action, ...] = ()  #: what the workers do, in order; for those who read plans


def plan_program(
    checked: Checked, inputs: Sequence[Layout], home: Mesh, meshes: Mapping[str, Mesh],
    ways: Mapping[int, Chosen] | None = None, split_new: bool = False,
) -> Planned:  # fmt: skip
    """The plan of a program whose inputs have these layouts. `home` is the session's mesh, where results go if nothing
    else decides; `meshes` are others, by name. `ways`: for some instructions, the way in which they run. `split_new`:
    results that are created from numbers alone are sharded over the first axis, if they are not small.

    >>> from gt.layout import mesh, split
    >>> from gt.ops.check import check
    >>> from gt.program import Program
    >>> product = Instruction("matmul", (0, 1), {})
    >>> program = Program((((8, 6), "float32"), ((6, 4), "float32")), "", (product,), (2,), (), ())
    >>> two = mesh(x=2)
    >>> plan = plan_program(check(program), [split(two, (8, 6), {1: "x"}), split(two, (6, 4), {0: "x"})], two, {})
    >>> [ins.op for ins in plan.locals[0].program.code], plan.outputs
    (['matmul', 'reshape', 'all_reduce', 'reshape'], ([],))
    """
    if len(decide.decisions) > decide.LIMIT:
        forget()
    return _Planner(checked, inputs, home, meshes, ways or {}, split_new).run()


def layouts_of(checked: Checked, inputs: Sequence[Layout], home: Mesh) -> list[tuple[Layout, ...]]:
    """Of each value of a program: the layouts in which the planner has it, the one that it is made in first. A value
    that is made of numbers alone has none of its own."""
    planner = _Planner(checked, inputs, home, {}, {})
    planner.decide(planner.goals())
    return [value.state.layouts for value in planner.values]


@memo(1 << 12)
def input_state(s: Spec, one: Layout) -> ValueState:
    """The state of an input."""
    fits(one, s.shape)
    return state_of(s, (one,))


class _Planner:
    """Makes one plan. The first slots are those of the inputs, then come the program's scalars."""

    def __init__(
        self, checked: Checked, inputs: Sequence[Layout], home: Mesh, meshes: Mapping[str, Mesh],
        ways: Mapping[int, Chosen], split_new: bool = False,
    ) -> None:  # fmt: skip
        self.checked, self.program, self.home, self.ways = checked, checked.program, home, ways
        self.split_new = split_new
        self.layouts = tuple(inputs)
        n, kinds = len(self.layouts), self.program.scalars
        self.decider = Decider(home, meshes, n + len(kinds))
        self.pinned: set[int] = set()  #: values whose layout the program says
        #: The program's values so far, by number.
        self.values = [
            PlannedValue(input_state(s, one), (i,))
            for i, (s, one) in enumerate(zip(checked.specs, self.layouts, strict=False))
        ]
        self.scalars = [number(SCALARS[kind], n + k) for k, kind in enumerate(kinds)]

    def run(self) -> Planned:
        program, decider = self.program, self.decider
        n = len(self.layouts)
        goals = self.goals()
        self.decide(goals)
        outputs = [self.output(o, goals.get(o)) for o in program.outputs]
        actions = needed(decider.actions, [output.slot for output in outputs], decider.count)
        actions = ordered(actions, n, [*range(n, n + len(self.scalars)), *decider.constants])
        layouts = tuple([output.layout for output in outputs])
        meshes = {one.mesh.workers for one in (*self.layouts, *layouts)} | {action.work.workers for action in actions}
        workers = tuple(sorted({w for mesh in meshes for w in mesh} or self.home.workers))
        inputs = list(map(placed, self.layouts, self.checked.specs))
        made, nbytes = emit(program, workers, inputs, actions, outputs, decider.constants, decider.count)
        return Planned(workers, made, layouts, nbytes, tuple(decider.notes), tuple(actions))

    def goals(self) -> dict[int, Layout]:
        """The layouts that values have to end in, because they replace inputs."""
        program, specs = self.program, self.checked.specs
        return {
            program.outputs[o]: self.layouts[i]
            for o, i in program.updates
            if specs[program.outputs[o]].shape == specs[i].shape
        }

    # -- instructions --------------------------------------------------------------------------

    def decide(self, goals: Mapping[int, Layout]) -> None:
        """Decide about each instruction; apply a decision about an instruction that was alike, if there is one."""
        values, scalars, decider, home, decisions = self.values, self.scalars, self.decider, self.home, decide.decisions
        last_use = self.checked.last_use
        start = len(self.layouts)
        upcoming = sorted(goals, reverse=True)
        for i, ins in enumerate(self.program.code):
            decider.instruction = i
            args, end = ins.args, start + ins.results
            operands = [values[a] if a >= 0 else scalars[~a] for a in args]
            same = wanted = None
            if len(args) > 1 and len(set(args)) < len(args):
                same = tuple([args.index(a) for a in args])
            if upcoming and upcoming[-1] < end:
                wanted = tuple([goals.get(v) for v in range(start, end)])
                while upcoming and upcoming[-1] < end:
                    upcoming.pop()
            attrs = encode_attrs(ins.attrs) if ins.attrs else b""
            chosen = self.ways.get(i) if self.ways else None
            if chosen is not None:
                if chosen.drops:
                    self.drop_copies()
                if any(v.deferred is None for v in operands if not v.is_number):
                    made = self.follow(ins, start, operands, chosen, (attrs, wanted, same))
                    if made is not None:
                        values += made
                        start = end
                        continue
            key: tuple[object, ...] = (ins.op, attrs, home, wanted, same, *[v.state for v in operands])
            decision = decisions.get(key)
            reread: Reread = ()
            if decision is None or decision.reads_partial:
                reread = tuple([k for k, v in enumerate(operands) if v.state.is_partial and last_use[args[k]] > i])
                if reread:
                    key = (*key, reread)
                    decision = decisions.get(key)
            if decision is not None:
                values += decision.apply(decider, operands)
            else:
                values += self.first(ins, start, operands, wanted or (None,) * ins.results, same, reread, key)
            start = end

    def first(
        self, ins: Instruction, start: int, operands: Sequence[PlannedValue], goals: Goals, same: Sequence[int] | None,
        reread: Reread, key: tuple[object, ...],
    ) -> list[PlannedValue]:  # fmt: skip
        """The results of an instruction that is like none before."""
        results = tuple(self.checked.specs[start : start + ins.results])
        use = Use(op_named(ins.op), Attrs.of(ins.attrs), tuple([v.spec for v in operands]), results)
        if use.op.pins:
            self.pinned.add(start)
        elif not self.has_deep(operands):
            states = [v.state for v in operands]
            decision = decide.decide(use, self.home, goals, same or range(len(states)), reread, states)
            if decision is not None:
                decide.decisions[key] = decision
                return decision.apply(self.decider, operands)
        return self.decider.run(use, operands, goals, reread)

    def follow(
        self, ins: Instruction, start: int, operands: Sequence[PlannedValue], chosen: Chosen, facts: tuple[Any, ...]
    ) -> list[PlannedValue] | None:
        """The results of an instruction in the way that was chosen for it; None, with a note, if the choice does not
        fit. `facts`: its attributes, goals and repeated operands."""
        _, wanted, same = facts
        key = (ins.op, *facts, self.home, encode_choice(chosen), *[v.state for v in operands])
        found = decide.decisions.get(key)
        if found is not None:
            return found.apply(self.decider, operands)
        results = tuple(self.checked.specs[start : start + ins.results])
        use = Use(op_named(ins.op), Attrs.of(ins.attrs), tuple([v.spec for v in operands]), results)
        goals: Goals = wanted or (None,) * ins.results
        if use.op.pins:
            return None

        def run(decider: Decider, values: Sequence[PlannedValue]) -> list[PlannedValue]:
            return follow(decider, use, values, goals, chosen)

        try:
            if self.has_deep(operands):
                return run(self.decider, operands)
            states = [v.state for v in operands]
            decision = decide.decide(use, self.home, goals, same or range(len(states)), (), states, run)
        except GTError as error:
            self.decider.notes.setdefault(f"a choice was not followed: {error}")
            return None
        if decision is None:
            return run(self.decider, operands)
        decide.decisions[key] = decision
        return decision.apply(self.decider, operands)

    def drop_copies(self) -> None:
        """Forget copies of values that take more memory than the values as they were made. Who needs one makes it
        again."""
        for value in self.values:
            state = value.state
            if value.deferred is None and len(state.places) > 1:
                size = largest_shard(state.layouts[0], state.spec.shape)
                kept = [
                    k for k, one in enumerate(state.places)
                    if not k or (isinstance(one, Layout) and largest_shard(one, state.spec.shape) <= size)
                ]  # fmt: skip
                value.state = state_of(state.spec, tuple([state.places[k] for k in kept]))
                value.slots = tuple([value.slots[k] for k in kept])

    def has_deep(self, operands: Sequence[PlannedValue]) -> bool:
        """Whether an operand is made of deferred values, or a result would be: no decision covers that."""
        tensors = [v for v in operands if not v.is_number]
        if any(v.deferred is not None and v.state.recipe is None for v in tensors):
            return True
        return bool(tensors) and all(v.deferred is not None for v in tensors)

    # -- outputs -------------------------------------------------------------------------------

    def output(self, number: int, goal: Layout | None) -> Output:
        """An output of the program: Law 2."""
        value, spec = self.values[number], self.checked.specs[number]
        place = self.decider.place
        if goal is not None and number not in self.pinned:
            slot = value.at(goal)  # most are there
            return Output(place(value, goal) if slot is None else slot, goal, spec)
        one = next((one for one in value.state.layouts if not one.partial), None)
        if one is None and value.deferred is not None:
            one = self.new(spec)
        if one is None:
            one = value.state.layouts[0]
            if number not in self.pinned and not self.is_gradient(number, one):
                one = layout(one.mesh, one.dims)
        return Output(place(value, one), one, spec)

    def new(self, s: Spec) -> Layout:
        """The layout of a result that is created from numbers alone, and that nothing else reads."""
        axis, count = next(iter(self.home.axes), ("", 1))
        if self.split_new and s.nbytes >= SPLIT_NBYTES and s.shape[0] >= count > 1:
            return split(self.home, s.shape, {0: axis})
        return layout(self.home)

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
