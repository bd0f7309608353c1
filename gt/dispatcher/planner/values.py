"""The values of a program while it is planned: the layouts that each has, and the slots it has there.

Law 1: a value may have several layouts at once. A conversion adds a layout, and nothing takes one away.
Law 2: equal states are the same object (`state_of`), so that a decision can be looked up by the states of its operands.

A value made of numbers alone (zeros, a range, random numbers) is deferred: it has no layout until an op needs it, and
is then made in the layout that this op wants. So is a value made of deferred values only.
"""

from __future__ import annotations

from typing import NamedTuple

from gt.dispatcher.planner.memo import memo
from gt.dispatcher.planner.ways import Frame, Use
from gt.layout import Layout
from gt.program import Spec


class Windowed(NamedTuple):
    """Windows of what the workers hold in a layout."""

    layout: Layout
    frames: tuple[Frame, ...]  #: of every worker of the mesh


Place = Layout | Windowed


class State:
    """What is known of a value beside its slots. Made by `state_of`. That of a number has no places."""

    __slots__ = ("index", "is_partial", "layouts", "numbers", "places", "recipe", "spec")

    def __init__(self, spec: Spec, places: tuple[Place, ...], recipe: Use | None = None) -> None:
        self.spec = spec
        self.places = places  #: in the order in which the value got there
        #: How it is made, if it is deferred and made of numbers alone.
        self.recipe = recipe
        self.numbers = 0 if recipe is None else len(recipe.specs)  #: how many numbers it is made of
        self.layouts = tuple([p for p in places if isinstance(p, Layout)])
        #: Where in `Value.slots` a place has its slot.
        self.index = {p: i for i, p in enumerate(places, self.numbers)}
        #: Whether it is partial in all its layouts: an op that wants it reduced has to reduce it.
        self.is_partial = bool(self.layouts) and all(one.partial for one in self.layouts)


@memo(1 << 15)
def state_of(spec: Spec, places: tuple[Place, ...], recipe: Use | None = None) -> State:
    """The one state of these."""
    return State(spec, places, recipe)


class Value:
    """A value of the program, or a number that an op takes."""

    __slots__ = ("deferred", "slots", "state")

    def __init__(self, state: State, slots: tuple[int, ...], deferred: Deferred | None = None) -> None:
        self.state = state
        #: The slots of the numbers that it is made of, if its state has a recipe; then one for each of the state's
        #: places. A number has one slot.
        self.slots = slots
        #: How it is made, if that can be done in any layout. Then its state has a recipe, or is its own.
        self.deferred = deferred

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
            self.state = state_of(self.spec, places, recipe) if shared else State(self.spec, places)
            self.slots = (*self.slots, slot)

    def settle(self) -> None:
        """It is deferred no longer: it has the places where it was made, and no others."""
        self.slots = self.slots[self.state.numbers :]
        self.deferred, self.state = None, state_of(self.spec, self.state.places)


def number(spec: Spec, slot: int) -> Value:
    """A scalar of the program, or a constant."""
    return Value(state_of(spec, ()), (slot,))


class Deferred:
    """How deferred values are made: an op of numbers and other deferred values, and its results."""

    __slots__ = ("depth", "operands", "results", "use")

    def __init__(self, use: Use, operands: tuple[Value, ...], results: list[Value], depth: int) -> None:
        self.use, self.operands, self.results = use, operands, results
        self.depth = depth  #: how many ops in a row are deferred, with this one


def from_recipe(state: State, slots: tuple[int, ...]) -> Value:
    """A deferred value whose state has a recipe."""
    assert state.recipe is not None
    value = Value(state, slots)
    numbers = tuple([number(s, slot) for s, slot in zip(state.recipe.specs, slots, strict=False)])
    value.deferred = Deferred(state.recipe, numbers, [value], 1)
    return value
