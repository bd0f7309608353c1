"""What is done for each instruction of a program: which way it runs, and how its operands get there.

Law 1: a value may have several layouts at once. A conversion is done once, from the layout where it is cheapest, and
       adds a layout that all later readers use.
Law 2: a partial value that several ops read is reduced once, for all of them, unless what an op makes of it is so much
       smaller that this is reduced instead (`Reread` in choose.py).
Law 3: a value made of numbers alone (zeros, a range, random numbers) is deferred: it is made where it is used, in the
       layout that its user wants. So is a value made of deferred values only. Random numbers do not depend on it.
Law 4: what is done for an instruction depends only on its op and attributes, the states of its operands, which of them
       are the same value, which are read again, and the goals of its results.

A `PlannedValue` is a value of the program, and its `ValueState` lists its layouts. A `Decider` appends actions to a
plan, one use of an op after the other. Because of Law 4 it decides once: a `Decision` is a piece of a plan whose slots
are not filled in yet, and `apply` fills them in for every instruction that is alike. Layers repeat, and so do programs.

An op runs in a way that was chosen elsewhere through follow.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from gt.dispatcher.planner.choose import Choice, Goals, Reread, choose
from gt.dispatcher.planner.memo import memo, table
from gt.dispatcher.planner.op_work import op_work
from gt.dispatcher.planner.redistribute import LOCAL, Step, cheapest, direct
from gt.dispatcher.planner.step_work import scatter_works, step_work
from gt.dispatcher.planner.ways import Constant, Frame, Layouts, Use, Way, expansion_of
from gt.dispatcher.planner.work import Action, Pick, Work, picking
from gt.errors import ArgumentError, GTError
from gt.layout import Layout, Mesh, fits, layout, parse
from gt.program import Spec

#: At most this many ops in a row are deferred.
DEPTH = 8


# -- values ----------------------------------------------------------------------------------


class Windowed(NamedTuple):
    """Windows of what the workers hold in a layout."""

    layout: Layout
    frames: tuple[Frame, ...]  #: of every worker of the mesh


Place = Layout | Windowed


class ValueState:
    """What is known of a value beside its slots. Made by `state_of`. That of a number has no places."""

    __slots__ = ("index", "is_partial", "layouts", "numbers", "places", "recipe", "spec")

    def __init__(self, spec: Spec, places: tuple[Place, ...], recipe: Use | None = None) -> None:
        self.spec = spec
        self.places = places  #: in the order in which the value got there
        #: How it is made, if it is deferred and made of numbers alone.
        self.recipe = recipe
        self.numbers = 0 if recipe is None else len(recipe.specs)  #: how many numbers it is made of
        self.layouts = tuple([p for p in places if isinstance(p, Layout)])
        #: Where in `PlannedValue.slots` a place has its slot.
        self.index = {p: i for i, p in enumerate(places, self.numbers)}
        #: Whether it is partial in all its layouts: an op that wants it reduced has to reduce it.
        self.is_partial = bool(self.layouts) and all(one.partial for one in self.layouts)


@memo(1 << 15)
def state_of(spec: Spec, places: tuple[Place, ...], recipe: Use | None = None) -> ValueState:
    """The one state of these."""
    return ValueState(spec, places, recipe)


@dataclass(slots=True, eq=False)
class PlannedValue:
    """A value of the program, or a number that an op takes."""

    state: ValueState
    #: The slots of the numbers that it is made of, if its state has a recipe; then one for each of the state's
    #: places. A number has one slot.
    slots: tuple[int, ...]
    #: How it is made, if that can be done in any layout. Then its state has a recipe, or is its own.
    deferred: Deferred | None = None

    @property
    def spec(self) -> Spec:
        return self.state.spec

    @property
    def is_number(self) -> bool:
        return self.state.spec.weak

    def at(self, place: Place) -> int | None:
        """The slot that it has in a place."""
        i = self.state.index.get(place)
        return None if i is None else self.slots[i]

    def add(self, place: Place, slot: int) -> None:
        """Note one more place; nothing if it was there."""
        if place not in self.state.index:
            places = (*self.state.places, place)
            recipe = self.state.recipe
            shared = self.deferred is None or recipe is not None
            self.state = state_of(self.spec, places, recipe) if shared else ValueState(self.spec, places)
            self.slots = (*self.slots, slot)

    def settle(self) -> None:
        """It is deferred no longer: it has the places where it was made, and no others."""
        self.slots = self.slots[self.state.numbers :]
        self.deferred, self.state = None, state_of(self.spec, self.state.places)


def number(spec: Spec, slot: int) -> PlannedValue:
    """A scalar of the program, or a constant."""
    return PlannedValue(state_of(spec, ()), (slot,))


class Deferred:
    """How deferred values are made: an op of numbers and other deferred values, and its results."""

    __slots__ = ("depth", "operands", "results", "use")

    def __init__(self, use: Use, operands: tuple[PlannedValue, ...], results: list[PlannedValue], depth: int) -> None:
        self.use, self.operands, self.results = use, operands, results
        self.depth = depth  #: how many ops in a row are deferred, with this one


def from_recipe(state: ValueState, slots: tuple[int, ...]) -> PlannedValue:
    """A deferred value whose state has a recipe."""
    assert state.recipe is not None
    value = PlannedValue(state, slots)
    numbers = tuple([number(s, slot) for s, slot in zip(state.recipe.specs, slots, strict=False)])
    value.deferred = Deferred(state.recipe, numbers, [value], 1)
    return value


# -- deciding --------------------------------------------------------------------------------


@memo(1 << 15)
def choice_of(use: Use, have: tuple[Layouts, ...], goals: Goals, reread: Reread) -> Choice | None:
    """The planner's choice, remembered; None if the op is expanded."""
    return choose(use, have, goals, reread)


class Decider:
    """See the file's header. `count` slots are in use already: of the inputs and of the scalars."""

    def __init__(self, home: Mesh, meshes: Mapping[str, Mesh], count: int) -> None:
        self.home = home  #: where values go that nothing else decides about
        self.meshes = meshes  #: other meshes, by name
        self.count = count  #: of slots
        self.constants: dict[int, Any] = {}  #: by slot: the numbers that expansions take
        self.actions: list[Action] = []
        self.notes: dict[str, None] = {}  #: what is gathered because no rule covers it
        self.instruction = -1  #: of the program, that actions are for
        self._constant_slots: dict[tuple[type, str], int] = {}

    def new_slot(self) -> int:
        self.count += 1
        return self.count - 1

    def constant(self, value: Any) -> int:
        """The slot of a constant."""
        key = (type(value), repr(value))
        slot = self._constant_slots.get(key)
        if slot is None:
            slot = self._constant_slots[key] = self.new_slot()
            self.constants[slot] = value
        return slot

    def act(self, work: Work, sources: tuple[int, ...], results: tuple[int, ...]) -> None:
        self.actions.append(Action(work, sources, results, self.instruction))

    # -- running an op -------------------------------------------------------------------------

    def run(self, use: Use, operands: Sequence[PlannedValue], goals: Goals, reread: Reread = ()) -> list[PlannedValue]:
        """The results of one use of an op, in the planner's own way."""
        tensors = [v for v in operands if not v.is_number]
        if use.op.pins:
            return [self.pinned(tensors[0], use.attrs.value["layout"])]
        if all(v.deferred is not None for v in tensors):
            depth = 1 + max((v.deferred.depth for v in tensors if v.deferred is not None), default=0)
            if depth <= DEPTH:
                return self.defer(use, operands, depth)
            for v in tensors:
                self.place(v, layout(self.home))
                v.settle()
        have = tuple([
            None if v.is_number else () if v.deferred is not None else v.state.layouts for v in operands
        ])  # fmt: skip
        choice = choice_of(use, have, goals, reread)
        if choice is None:
            return self.expand(use, operands, goals, reread)
        if choice.blocked:
            self.note(choice)
        made = self.run_way(choice.way, operands)
        if use.op.aliases and len(tensors) == 1 and len(tensors[0].state.layouts) > 1:
            self.view_everywhere(use, operands, tensors[0], made)
        return made

    def run_way(self, way: Way, operands: Sequence[PlannedValue]) -> list[PlannedValue]:
        """The results of one use of an op, in a given way."""
        slots = self.run_on(way, operands)
        return [
            PlannedValue(state_of(s, (one,)), (slot,))
            for s, one, slot in zip(way.use.results, way.gives, slots, strict=True)
        ]

    def run_on(self, way: Way, operands: Sequence[PlannedValue]) -> tuple[int, ...]:
        """Bring the operands to the layouts that a way wants, and run the op; the slots of its results."""
        work = op_work(way)
        sources: list[int] = []
        for k, (v, want) in enumerate(zip(operands, way.wants, strict=True)):
            if want is None:
                sources.append(v.slots[0])
                continue
            slot = self.place(v, want)
            windows = work.windows[k]
            if windows is not None:
                place = Windowed(want, windows.frames)
                shard, found = slot, v.at(place)
                if found is None:
                    found = self.new_slot()
                    v.add(place, found)
                    self.act(windows.work, (shard,), (found,))
                slot = found
            sources.append(slot)
        results = tuple([self.new_slot() for _ in way.use.results])
        self.act(work.work, tuple(sources), results)
        return results

    def view_everywhere(
        self, use: Use, operands: Sequence[PlannedValue], base: PlannedValue, made: Sequence[PlannedValue]
    ) -> None:
        """A view costs nothing: it gets every layout that its operand has, so that it is not gathered once more."""
        for one in base.state.layouts:
            have = tuple([(one,) if v is base else None for v in operands])
            choice = choice_of(use, have, (None,) * len(made), ())
            if choice is None or choice.way.gives[0] in made[0].state.index:
                continue
            if all(step.kind in LOCAL for steps in choice.steps for step in steps):
                slots = self.run_on(choice.way, operands)
                for v, there, slot in zip(made, choice.way.gives, slots, strict=True):
                    v.add(there, slot)

    def expand(self, use: Use, operands: Sequence[PlannedValue], goals: Goals, reread: Reread) -> list[PlannedValue]:
        """The results of an op that is written in other ops."""
        expansion = expansion_of(use)
        goal_of = dict(zip(expansion.results, goals, strict=True))
        env: dict[int, PlannedValue] = dict(enumerate(operands))
        for inner in expansion.code:
            mine = [
                number(s, self.constant(a.value)) if isinstance(a, Constant) else env[a]
                for a, s in zip(inner.args, inner.use.specs, strict=True)
            ]
            again = tuple([
                k for k, (a, v) in enumerate(zip(inner.args, mine, strict=True))
                if v.state.is_partial and (not inner.last[k] or a in reread)
            ])  # fmt: skip
            made = self.run(inner.use, mine, tuple([goal_of.get(n) for n in inner.numbers]), again)
            env.update(zip(inner.numbers, made, strict=True))
        return [env[n] for n in expansion.results]

    def note(self, choice: Choice) -> None:
        """Note what is gathered because no rule covers it."""
        axes = set(choice.blocked)
        use = choice.way.use
        for start, s in zip(choice.starts, use.specs, strict=True):
            if start is not None:
                for d in range(s.ndim):
                    if any(a in axes for _, over in start.pieces(d) for a in over):
                        self.notes.setdefault(f"{use.op.name}: gathers {start!r} of {s!r} (dim {d} must be whole)")

    # -- layouts -------------------------------------------------------------------------------

    def pinned(self, value: PlannedValue, text: str) -> PlannedValue:
        """The same value, in the layout that a program asks for, and in no other."""
        return self.only_at(value, self.layout_in(text, value.spec))

    def only_at(self, value: PlannedValue, target: Layout) -> PlannedValue:
        """The same value, in one layout and in no other."""
        return PlannedValue(state_of(value.spec, (target,)), (self.place(value, target),))

    def layout_in(self, text: str, s: Spec) -> Layout:
        """The layout that a text says: "[8@x]", or "name: [8@x]" on a mesh of the session."""
        name, colon, rest = text.rpartition(":")
        mesh = self.home
        if colon:
            found = self.meshes.get(name.strip())
            if found is None:
                known = ", ".join(sorted(self.meshes)) or "none"
                raise ArgumentError(f"shard: the session has no mesh {name.strip()!r}; it has {known}")
            mesh = found
        one = parse(rest.strip(), mesh) if rest.strip() else layout(mesh)
        fits(one, s.shape)
        return one

    def place(self, value: PlannedValue, want: Layout) -> int:
        """The slot of a value in a layout: converted if it is not there yet."""
        slot = value.at(want)
        if slot is not None:
            return slot
        if value.deferred is not None:
            path = cheapest(value.state.layouts, want, value.spec)
            if path.start is None or path.price:
                self.make(value, value.deferred, want)
                slot = value.at(want)
                if slot is not None:
                    return slot
        start, steps, _ = cheapest(value.state.layouts, want, value.spec)
        assert start is not None
        slot = value.at(start)
        assert slot is not None
        for step in steps:
            slot = self.take_step(value, start, slot, step)
            start = step.to
        return slot

    def lead(self, value: PlannedValue, path: Sequence[Layout]) -> None:
        """Convert a value from the layout in which it was made, through these layouts one after the other, in
        one step each."""
        start = value.state.layouts[0]
        for one in path:
            slot = value.at(start)
            assert slot is not None
            for step in direct(start, one, value.spec):
                slot = self.take_step(value, start, slot, step)
                start = step.to

    def take_step(self, value: PlannedValue, start: Layout, source: int, step: Step) -> int:
        slot = value.at(step.to)
        if slot is None:
            slot = self.new_slot()
            value.add(step.to, slot)
            if step.kind == "reduce_scatter":
                first, last = scatter_works(start, step, value.spec)
                addends = self.new_slot()
                self.act(first, (source,), (addends,))
                self.act(last, (addends,), (slot,))
            else:
                self.act(step_work(start, step, value.spec), (source,), (slot,))
        return slot

    # -- deferred values -----------------------------------------------------------------------

    def defer(self, use: Use, operands: Sequence[PlannedValue], depth: int) -> list[PlannedValue]:
        """The results of an op that is run when they are used."""
        if depth == 1 and len(use.results) == 1:
            return [from_recipe(state_of(use.results[0], (), use), tuple([v.slots[0] for v in operands]))]
        made: list[PlannedValue] = []
        deferred = Deferred(use, tuple(operands), made, depth)
        made += [PlannedValue(ValueState(s, ()), (), deferred) for s in use.results]
        return made

    def make(self, value: PlannedValue, deferred: Deferred, want: Layout) -> None:
        """Make a deferred value, in a layout as near as possible to this one."""
        use = deferred.use
        goals = tuple([want if v is value else None for v in deferred.results])
        have: tuple[Layouts, ...] = tuple([None if v.is_number else () for v in deferred.operands])
        choice = choice_of(use, have, goals, ())
        if choice is None:
            raise GTError(f"{use.op.name}: cannot be made on shards")
        slots = self.run_on(choice.way, deferred.operands)
        for v, there, slot in zip(deferred.results, choice.way.gives, slots, strict=True):
            v.add(there, slot)


# -- decisions -------------------------------------------------------------------------------

#: Runs one use of an op on values of a plan; the results.
Run = Callable[["Decider", Sequence["PlannedValue"]], list["PlannedValue"]]

#: How many decisions are remembered. When there are more, everything is forgotten before the next plan: what is in use
#: is soon found again.
LIMIT = 1 << 12

#: Decisions by what they depend on: see Law 4, and plan.py for the order of the key.
decisions: dict[tuple[Any, ...], Decision] = table()


class DecidedAction(msgspec.Struct, frozen=True, gc=False):
    """An action whose slots are picked when a decision is applied."""

    work: Work
    sources: Pick
    results: Pick


class DecidedValue(msgspec.Struct, frozen=True, gc=False):
    """The state of a value after a decision, and its slots."""

    state: ValueState
    slots: Pick


class OneAction(msgspec.Struct, frozen=True, gc=False):
    """A decision that is a single action: on slots of the operands, and making the results in order."""

    work: Work
    states: tuple[ValueState, ...]  #: of the results


class Decision(msgspec.Struct, frozen=True, gc=False):
    """What is done for one use of an op. `Pick`s are out of (slots of the operands, constants, new slots)."""

    operand_slots: tuple[tuple[int, int], ...]  #: those in use: (operand, which of its slots)
    constants: tuple[Any, ...]
    new: int  #: how many slots it makes
    actions: tuple[DecidedAction, ...]
    operands: tuple[tuple[int, DecidedValue], ...]  #: the operands that have more layouts afterwards
    results: tuple[DecidedValue, ...]
    notes: tuple[str, ...]
    reads_partial: bool  #: whether an operand is partial in all its layouts: then it matters who else reads it
    defers: bool  #: whether a result is deferred
    one_action: OneAction | None  #: most decisions are

    def apply(self, plan: Decider, operands: Sequence[PlannedValue]) -> list[PlannedValue]:
        """Carry it out on these operands; the results."""
        n = plan.count
        plan.count = n + self.new
        slots = [operands[k].slots[i] for k, i in self.operand_slots]
        one = self.one_action
        if one is not None:
            states = one.states
            if len(states) == 1:
                made: tuple[int, ...] = (n,)
                values = [PlannedValue(states[0], made)]
            else:
                made = tuple(range(n, plan.count))
                values = [PlannedValue(state, (slot,)) for state, slot in zip(states, made, strict=True)]
            plan.actions.append(Action(one.work, tuple(slots), made, plan.instruction))
            return values
        env = (*slots, *map(plan.constant, self.constants), *range(n, n + self.new))
        act, instruction = plan.actions.append, plan.instruction
        for each in self.actions:
            act(Action(each.work, each.sources(env), each.results(env), instruction))
        for k, after in self.operands:
            operands[k].state, operands[k].slots = after.state, after.slots(env)
        for text in self.notes:
            plan.notes.setdefault(text)
        if self.defers:
            return [(from_recipe if r.state.recipe else PlannedValue)(r.state, r.slots(env)) for r in self.results]
        return [PlannedValue(r.state, r.slots(env)) for r in self.results]


def decide(
    use: Use, home: Mesh, goals: Goals, same: Sequence[int], reread: Reread, states: Sequence[ValueState],
    run: Run | None = None,
) -> Decision | None:  # fmt: skip
    """The decision about a use of an op on operands in these states; None if a result is made of deferred values: when
    it is made depends on who uses it. `same`: for each operand, the first one that is the same value. `run`: what to do
    instead of `Decider.run`."""
    values: list[PlannedValue] = []
    origins: list[tuple[int, int]] = []  # of each slot: (operand, which of its slots)
    for k, (first, state) in enumerate(zip(same, states, strict=True)):
        if first < k and not state.spec.weak:
            values.append(values[first])
            continue
        count = 1 if state.spec.weak else state.numbers + len(state.places)
        slots = tuple(range(len(origins), len(origins) + count))
        origins += [(k, i) for i in range(count)]
        values.append((from_recipe if state.recipe else PlannedValue)(state, slots))
    plan = Decider(home, {}, len(origins))
    made = plan.run(use, values, goals, reread) if run is None else run(plan, values)
    if any(v.deferred is not None and v.state.recipe is None for v in made):
        return None
    grown = {k: v for k, v in enumerate(values) if same[k] == k and v.state is not states[k]}
    used = {s for action in plan.actions for s in action.sources} | {s for v in grown.values() for s in v.slots}
    used |= {s for v in made for s in v.slots}  # of a view of nothing
    taken = [s for s in sorted(used) if s < len(origins)]
    new = [s for s in range(len(origins), plan.count) if s not in plan.constants]
    one_action = None
    if len(plan.actions) == 1 and not (grown or plan.constants or plan.notes):
        action = plan.actions[0]
        if list(action.results) == new and [v.slots for v in made] == [(s,) for s in new]:
            one_action, taken = OneAction(action.work, tuple([v.state for v in made])), list(action.sources)
    place = {slot: i for i, slot in enumerate([*taken, *plan.constants, *new])}

    def pick(slots: Sequence[int]) -> Pick:
        return picking([place[s] for s in slots])

    return Decision(
        operand_slots=tuple([origins[s] for s in taken]),
        constants=tuple(plan.constants.values()),
        new=len(new),
        actions=tuple([DecidedAction(a.work, pick(a.sources), pick(a.results)) for a in plan.actions]),
        operands=tuple([(k, DecidedValue(v.state, pick(v.slots))) for k, v in grown.items()]),
        results=tuple([DecidedValue(v.state, pick(v.slots)) for v in made]),
        notes=tuple(plan.notes),
        reads_partial=any(state.is_partial for state in states),
        defers=any(v.deferred is not None for v in made),
        one_action=one_action,
    )
