"""What is decided for one use of an op after the other: where its operands go, and what is done for that.

Law 1: a value may lie in several layouts at once. A conversion is done once, from the layout where it is cheapest.
Law 2: a partial value that several ops read is reduced once, for all of them, unless what they make of it is so much
       smaller that this is reduced instead (`Again`).
Law 3: what is made of numbers alone is made where it is used, in the layout that its user wants; and so is what is
       made of that (`_Late`). Random numbers do not depend on the layout.

`Deciding` writes a list of actions. What it does for one use of an op follows from the op, its attributes, where its
operands lie (`State`) and where its results shall: effects.py remembers it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from gt.dispatcher.planner.actions import Action, Work, step_work
from gt.dispatcher.planner.choose import choose
from gt.dispatcher.planner.redistribute import Step, cheapest
from gt.dispatcher.planner.running import Frame, Use
from gt.dispatcher.planner.template import Sketch, op_named
from gt.errors import ArgumentError, GTError
from gt.layout import Layout, Mesh, fits, layout, parse
from gt.ops.record import Op
from gt.ops.sharding import Bound, bind
from gt.ops.trace import Symbol, scalar_kind
from gt.program import SCALARS, Spec

#: So many ops in a row, of numbers alone, are put off until somebody uses the result.
DEPTH = 8


# -- memos -----------------------------------------------------------------------------------


class Attrs(bytes):
    """Attributes of an op, compared by how they are encoded: 1, 1.0 and True are different."""

    value: dict[str, Any]

    @staticmethod
    def of(attrs: dict[str, Any]) -> Attrs:
        made = Attrs(encode(attrs)) if attrs else _NONE
        made.value = attrs
        return made


encode = msgspec.msgpack.Encoder().encode
_NONE = Attrs()

Ways = tuple[Layout, ...] | None
Goals = tuple[Layout | None, ...]
#: The operands that are partial wherever they lie, and that others read later: if this op has them reduced, it is for
#: all of them.
Again = tuple[int, ...]


@lru_cache(1 << 13)
def bound_to(name: str, attrs: Attrs, specs: tuple[Spec, ...], results: tuple[Spec, ...]) -> Bound:
    """The rule of an op, wherever its operands lie."""
    return bind(op_named(name), specs, results, attrs.value)


@lru_cache(1 << 15)
def use_of(
    name: str, attrs: Attrs, specs: tuple[Spec, ...], results: tuple[Spec, ...], have: tuple[Ways, ...], goals: Goals,
    again: Again,
) -> Use | None:  # fmt: skip
    """How an op is run on operands that lie like this; None if it is expanded."""
    op = op_named(name)
    choice = choose(op, specs, results, attrs.value, have, goals, bound_to(name, attrs, specs, results), again)
    return None if choice is None else Use(op, specs, results, attrs.value, choice)


@dataclass(frozen=True, slots=True)
class _Line:
    """One instruction of an expansion."""

    op: Op
    args: tuple[int | tuple[Any], ...]  #: the number of a symbol, or a number in a tuple
    attrs: Attrs
    specs: tuple[Spec, ...]
    results: tuple[Spec, ...]
    numbers: tuple[int, ...]
    last: tuple[bool, ...]  #: of each operand: whether no line behind this one reads it


@lru_cache(1 << 12)
def expansion(name: str, attrs: Attrs, specs: tuple[Spec, ...]) -> tuple[tuple[_Line, ...], tuple[int, ...]]:
    """An op written in other ops: their lines, and the numbers of the results. The operands come first."""
    op = op_named(name)
    sketch = Sketch()
    form = op.parts or op.compose
    assert form is not None
    made = form(*[sketch.symbol(s) for s in specs], **attrs.value)
    lines = []
    reads = [{a.number for a in args if isinstance(a, Symbol)} for _, args, _, _ in sketch.code]
    for i, (inner, args, inner_attrs, numbers) in enumerate(sketch.code):
        operands = tuple(a.number if isinstance(a, Symbol) else (a,) for a in args)
        kinds = tuple(a.spec if isinstance(a, Symbol) else SCALARS[scalar_kind(a)] for a in args)
        results = tuple(sketch.made[n] for n in numbers)
        behind = set().union(*reads[i + 1 :])
        last = tuple(a not in behind for a in operands)
        lines.append(_Line(inner, operands, Attrs.of(inner_attrs), kinds, results, numbers, last))
    return tuple(lines), tuple(r.number for r in (made if isinstance(made, tuple) else (made,)))


# -- values ----------------------------------------------------------------------------------

#: A layout; or windows of what workers hold in one.
Place = Layout | tuple[Layout, tuple[Frame, ...]]


class Maker:
    """An op of numbers alone. Made by `maker_of`: equal makers are the same object."""

    __slots__ = ("attrs", "op", "specs")

    def __init__(self, op: Op, attrs: Attrs, specs: tuple[Spec, ...]) -> None:
        self.op, self.attrs, self.specs = op, attrs, specs


@lru_cache(1 << 12)
def maker_of(name: str, attrs: Attrs, specs: tuple[Spec, ...]) -> Maker:
    return Maker(op_named(name), attrs, specs)


class State:
    """Where a value lies, in the order in which it got there. Made by `state_of`: equal states are the same object,
    as long as they are remembered. That of a scalar has no places."""

    __slots__ = ("first", "index", "layouts", "maker", "owed", "places", "spec")

    def __init__(self, spec: Spec, places: tuple[Place, ...], maker: Maker | None = None) -> None:
        self.spec = spec
        self.places = places
        self.maker = maker  #: if it is made late, of numbers alone
        self.first = 0 if maker is None else len(maker.specs)  #: how many numbers those are
        self.layouts = tuple(p for p in places if isinstance(p, Layout))
        self.index = {p: i for i, p in enumerate(places, self.first)}
        #: Whether it is partial wherever it lies: who wants it reduced has to do that.
        self.owed = bool(self.layouts) and all(one.partial for one in self.layouts)


@lru_cache(1 << 15)
def state_of(spec: Spec, places: tuple[Place, ...], maker: Maker | None = None) -> State:
    return State(spec, places, maker)


class Value:
    """A value of the program, in all layouts that it has."""

    __slots__ = ("late", "numbers", "state")

    def __init__(self, state: State, numbers: tuple[int, ...], late: _Late | None = None) -> None:
        self.state = state
        #: ~k of scalar k; of the scalars that it is made of, if its state knows; and of the placed values, one for each
        #: of the state's places.
        self.numbers = numbers
        #: How it is made, if that can be done in any layout. Its state is nobody else's then, or knows that too.
        self.late = late

    @property
    def spec(self) -> Spec:
        return self.state.spec

    def at(self, place: Place) -> int | None:
        i = self.state.index.get(place)
        return None if i is None else self.numbers[i]

    def add(self, place: Place, number: int) -> None:
        """It lies there too; nothing new if it did."""
        if place not in self.state.index:
            places = (*self.state.places, place)
            maker = self.state.maker
            shared = self.late is None or maker is not None
            self.state = state_of(self.spec, places, maker) if shared else State(self.spec, places)
            self.numbers = (*self.numbers, number)

    def settle(self) -> None:
        """It lies where it was made, and is late no more."""
        self.numbers = self.numbers[self.state.first :]
        self.late, self.state = None, state_of(self.spec, self.state.places)


def made_late(state: State, numbers: tuple[int, ...]) -> Value:
    """A value whose state knows how it is made."""
    assert state.maker is not None
    value = Value(state, numbers)
    value.late = _Late(state.maker.op, numbers[: state.first], state.maker.attrs, state.maker.specs, [value], 1)
    return value


@dataclass(frozen=True, slots=True)
class _Late:
    """An op of numbers, and of values that are late themselves."""

    op: Op
    args: tuple[Value | int, ...]
    attrs: Attrs
    specs: tuple[Spec, ...]
    values: list[Value]  #: its results
    depth: int


# -- deciding --------------------------------------------------------------------------------


class Deciding:
    """See the file's header. An operand is a value, or ~k for scalar k; behind the scalars of the program come the
    numbers that compositions write down."""

    def __init__(self, home: Mesh, meshes: Mapping[str, Mesh], count: int, scalars: int) -> None:
        self.home, self.meshes = home, meshes
        self.count = count  #: of placed values
        self.scalars = scalars  #: of the program
        self.literals: dict[tuple[type, str], Any] = {}
        self.actions: list[Action] = []
        self.notes: dict[str, None] = {}
        self.instruction = -1

    def new(self) -> int:
        self.count += 1
        return self.count - 1

    def literal(self, value: Any) -> int:
        """The operand that stands for a number."""
        key = (type(value), repr(value))
        self.literals.setdefault(key, value)
        return ~(self.scalars + list(self.literals).index(key))

    def act(self, work: Work, sources: tuple[int, ...], results: tuple[int, ...]) -> None:
        self.actions.append((work, sources, results, self.instruction))

    # -- instructions --------------------------------------------------------------------------

    def use(
        self, op: Op, args: Sequence[Value | int], attrs: Attrs, specs: tuple[Spec, ...], results: Sequence[Spec],
        goals: Goals, again: Again = (),
    ) -> list[Value]:  # fmt: skip
        """The results of one use of an op."""
        values = [a for a in args if type(a) is Value]
        if op.pins:
            return [self.pinned(values[0], attrs.value["layout"])]
        if all(v.late is not None for v in values):
            depth = 1 + max((v.late.depth for v in values if v.late is not None), default=0)
            if depth <= DEPTH:
                return self.later(op, args, attrs, specs, results, depth)
            for v in values:
                self.lay(v, layout(self.home))
                v.settle()
        have = tuple([(() if a.late is not None else a.state.layouts) if type(a) is Value else None for a in args])
        found = use_of(op.name, attrs, specs, tuple(results), have, goals, again)
        if found is None:
            return self.expanded(op, args, attrs, specs, goals, again)
        numbers = self.carried_out(found, args)
        made = [Value(state_of(s, (one,)), (n,)) for s, one, n in zip(found.results, found.gives, numbers, strict=True)]
        if op.aliases and len(values) == 1 and len(values[0].state.layouts) > 1:
            self.viewed(op, args, attrs, specs, values[0], made)
        return made

    def viewed(
        self, op: Op, args: Sequence[Value | int], attrs: Attrs, specs: tuple[Spec, ...], base: Value,
        made: Sequence[Value],
    ) -> None:  # fmt: skip
        """A view costs nothing: it lies wherever its operand does, so that nobody has to gather it once more."""
        results, goals = tuple([v.spec for v in made]), (None,) * len(made)
        for one in base.state.layouts:
            have = tuple([(one,) if a is base else None for a in args])
            found = use_of(op.name, attrs, specs, results, have, goals, ())
            if found is not None and not found.moves and found.gives[0] not in made[0].state.index:
                for v, there, number in zip(made, found.gives, self.carried_out(found, args), strict=True):
                    v.add(there, number)

    def carried_out(self, found: Use, args: Sequence[Value | int]) -> tuple[int, ...]:
        """The op's operands where it wants them, and the op on them."""
        if found.choice.blocked:
            self.note(found)
        sources: list[int] = []
        for k, (a, want) in enumerate(zip(args, found.wants, strict=True)):
            if isinstance(a, Value):
                assert want is not None
                number = self.lay(a, want)
                sources.append(self.windowed(found, k, a, want, number) if found.has_windows else number)
            else:
                sources.append(a)
        results = tuple([self.new() for _ in found.results])
        self.act(found.work, tuple(sources), results)
        return results

    def windowed(self, found: Use, k: int, value: Value, want: Layout, number: int) -> int:
        """An operand as the op uses it: windows of what the workers hold, where its rule has them."""
        seen = found.windows[k]
        if seen is None:
            return number
        place = (want, seen.frames)
        made = value.at(place)
        if made is None:
            made = self.new()
            value.add(place, made)
            self.act(seen.work, (number,), (made,))
        return made

    def expanded(
        self, op: Op, args: Sequence[Value | int], attrs: Attrs, specs: tuple[Spec, ...], goals: Goals, again: Again
    ) -> list[Value]:
        lines, results = expansion(op.name, attrs, specs)
        wanted = dict(zip(results, goals, strict=True))
        env: dict[int, Any] = dict(enumerate(args))
        for line in lines:
            operands = [env[a] if isinstance(a, int) else self.literal(a[0]) for a in line.args]
            mine = tuple([wanted.get(n) for n in line.numbers])
            more = tuple([
                k for k, (a, v) in enumerate(zip(line.args, operands, strict=True))
                if isinstance(v, Value) and v.state.owed and (not line.last[k] or a in again)
            ])  # fmt: skip
            made = self.use(line.op, operands, line.attrs, line.specs, line.results, mine, more)
            env.update(zip(line.numbers, made, strict=True))
        return [env[n] for n in results]

    def note(self, found: Use) -> None:
        """What is gathered because no rule covers it."""
        axes = set(found.choice.blocked)
        for start, s in zip(found.choice.starts, found.specs, strict=True):
            if start is not None:
                for d in range(s.ndim):
                    if any(a in axes for _, over in start.pieces(d) for a in over):
                        text = f"{found.op.name}: gathers {start!r} of {s!r} (dim {d} must be whole)"
                        self.notes.setdefault(text)

    # -- where values lie ----------------------------------------------------------------------

    def pinned(self, value: Value, text: str) -> Value:
        """The same value, that lies as it was told to, and nowhere else."""
        target = self.told(text, value.spec)
        return Value(state_of(value.spec, (target,)), (self.lay(value, target),))

    def told(self, text: str, s: Spec) -> Layout:
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

    def lay(self, value: Value, want: Layout) -> int:
        """The value in a layout."""
        here = value.at(want)
        if here is not None:
            return here
        if value.late is not None:
            start, steps, nbytes = cheapest(value.state.layouts, want, value.spec)
            if start is None or nbytes:
                self.make(value, value.late, want)
                here = value.at(want)
                if here is not None:
                    return here
        start, steps, _ = cheapest(value.state.layouts, want, value.spec)
        assert start is not None
        here = value.at(start)
        assert here is not None
        for step in steps:
            here = self.step(value, start, here, step)
            start = step.to
        return here

    def step(self, value: Value, start: Layout, here: int, step: Step) -> int:
        found = value.at(step.to)
        if found is None:
            found = self.new()
            value.add(step.to, found)
            self.act(step_work(start, step, value.spec), (here,), (found,))
        return found

    # -- what is made late ---------------------------------------------------------------------

    def later(
        self, op: Op, args: Sequence[Value | int], attrs: Attrs, specs: tuple[Spec, ...], results: Sequence[Spec],
        depth: int,
    ) -> list[Value]:  # fmt: skip
        if depth == 1 and len(results) == 1:
            state = state_of(results[0], (), maker_of(op.name, attrs, specs))
            return [made_late(state, tuple([a for a in args if isinstance(a, int)]))]
        made: list[Value] = []
        late = _Late(op, tuple(args), attrs, specs, made, depth)
        made += [Value(State(s, ()), (), late) for s in results]
        return made

    def make(self, value: Value, late: _Late, want: Layout) -> None:
        """A late value, as near as possible to a layout."""
        goals = tuple([want if v is value else None for v in late.values])
        have: tuple[Ways, ...] = tuple([() if isinstance(a, Value) else None for a in late.args])
        found = use_of(late.op.name, late.attrs, late.specs, tuple([v.spec for v in late.values]), have, goals, ())
        if found is None:
            raise GTError(f"{late.op.name}: cannot be made on shards")
        for v, there, number in zip(late.values, found.gives, self.carried_out(found, late.args), strict=True):
            v.add(there, number)
