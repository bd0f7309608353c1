"""What is seen while the Python of a @gt.function runs: which tensors it reads and writes, where its numbers come from.

traced.py makes a recipe of it: how to call what was recorded again, without the Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from gt.client.programs.numbers import Finder, Guards, Number
from gt.client.programs.pending import Value
from gt.client.programs.tree import users_line
from gt.client.record.recorder import Recorder
from gt.client.tensor import Leaf, Tensor
from gt.client.views import aliases as views
from gt.errors import FunctionError


class FunctionTrace:
    """What a function reads, writes and computes with while its Python runs."""

    def __init__(self, rec: Recorder, name: str, arguments: list[Any]) -> None:
        self.rec = rec
        self.name = name
        self.replayable = True
        #: False after a deepcopy: two tensors have one value, and it is not known which of them a replay must read.
        #: The next trace may know it.
        self.clear = True
        self.guards: Guards = []  #: What must be as it was for a replay to be right.
        self.effects: list[
            tuple[Callable[[], None], Callable[[], None]]
        ] = []  #: What a replay does, and how that is undone.
        self.seeds: list[int] = []  #: Those of the latest run.
        # What follows is known by id(), kept alive by `kept`, and forgotten when the trace ends.
        self.arguments = arguments
        self.owners: dict[int, Finder] = {}  #: Input values: the value for another call.
        self.homes: dict[int, Finder] = {}  #: Arguments' leaves: that argument's leaf.
        self.leaves: dict[int, tuple[Leaf, Finder, Tensor | None, Value | None]] = {}  #: With the gradient it had.
        self.grads: set[int] = set()  #: Cells of those gradients.
        self.cells: dict[int, Finder | None] = {}  #: Arguments' cells; None: an argument is a view of it.
        self.written: dict[int, tuple[Tensor, Finder]] = {}  #: Cells, or tensors that have none.
        self.kept: list[Any] = []
        for place, x in enumerate(arguments):
            if isinstance(x, Tensor):
                self._argument(place, x)

    def _argument(self, place: int, t: Tensor) -> None:
        if type(t._fn) is Leaf:
            self.homes[id(t._fn)] = lambda args: args[place]._fn
        self.learn(t, lambda args: args[place])
        cell, root = views.cell_of(t), views.root_cell(t)
        self.cells[id(root)] = (lambda args: args[place]) if root is cell else None

    def learn(self, t: Tensor, find: Finder | None = None) -> None:
        """An operand from outside: remember where a replay finds it."""
        value = t._v or t._read()
        if id(value) in self.owners:
            return
        if views.cells_of(value) > 1:
            self.clear = False
        self.kept.append(value)
        if type(t._fn) is Leaf:
            self.touch(t._fn)
        elif t._fn is not None and self.rec.grad:
            self.replayable = False  # backward would walk a graph that a replay does not have
        where: Finder = find or (lambda args: t)
        self.owners[id(value)] = lambda args: where(args)._v or where(args)._read()

    def touch(self, leaf: Leaf) -> None:
        """A leaf whose gradient is read or written here."""
        if id(leaf) in self.leaves:
            return
        find: Finder = self.homes.get(id(leaf)) or (lambda args: leaf)
        g = leaf.grad
        value = None if g is None else g._v or g._read()
        if g is not None:
            self.grads.add(id(views.cell_of(g)))
            if id(value) in self.owners:
                self.clear = False
            self.owners[id(value)] = lambda args: find(args).grad._v or find(args).grad._read()
        self.leaves[id(leaf)] = (leaf, find, g, value)
        self.kept.append((leaf, g))

    def wrote(self, t: Tensor, old: Value) -> None:
        """A tensor that is not a view was written to; its value was `old`."""
        key = id(t if t._x is None else t._x.cell)
        if key in self.written or key in self.grads or old.owner is self.rec.pending:
            return  # known, or made inside of the function
        find = self.cells.get(key, lambda args: t)
        if find is None:
            self.replayable = False
        else:
            self.written[key] = (t, find)
        self.kept.append((t, t._x))

    def end(self) -> None:
        """Drop all values, so that the call may donate their memory."""
        self.arguments = []
        for seen in (self.owners, self.homes, self.leaves, self.grads, self.cells, self.written, self.kept):
            seen.clear()

    def seed(self) -> Number:
        k = len(self.seeds)
        self.seeds.append(self.rec.session.next_seed())
        return Number(self.guards, self.seeds[k], lambda args: self.seeds[k])

    def live(self, read: Callable[[], Any]) -> Number:
        """A number that a replay reads again: an optimizer's setting, a step count."""
        return Number(self.guards, read(), lambda args: read())

    def effect(self, do: Callable[[], None], undo: Callable[[], None]) -> None:
        """Something that a replay does first (counting a step), and undoes if its call fails."""
        self.effects.append((do, undo))

    def mode(self, module: Any) -> None:
        """Whether a module is in training mode must be the same for a replay."""
        self.guards.append((lambda args: module.training, module.training))

    def refuse_sync(self) -> NoReturn:
        file, line = users_line()
        raise FunctionError(
            f"{self.name}: {file}:{line} reads a value inside a @gt.function; "
            "return the tensor and read it outside of the function"
        )
