"""What it costs to bring a value from any layout to any other: for all pairs at once.

`redistribute` (gt/dispatcher/planner/redistribute.py) finds the cheapest steps between two layouts. The search asks for
all pairs among dozens of layouts of the same spec, so the steps between them are written down once, as a graph, and the
shortest paths of all pairs are found together.

Law: a path is the fastest one. `redistribute` takes the fewest bytes, whatever link they take; where that is another
     path, the layouts in between are part of what is chosen (`Chosen.via`).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from gt.dispatcher.planner.redistribute import SCATTERED_NBYTES, Step, dropped, largest_shard, missing
from gt.layout import Layout, held, layout
from gt.program import Spec
from gt.solver.hardware import Hardware
from gt.solver.options import step_cost

#: See `Conversions._may_permute`.
MANY = 16
#: What one more step counts beside its time: it only breaks ties.
_STEP_US = 1e-6


class Conversions:
    """The prices of all conversions of values of one spec. Made for a set of layouts; more can be asked for later."""

    def __init__(self, s: Spec, hardware: Hardware) -> None:
        self.spec, self.hardware = s, hardware
        self.place: dict[Layout, int] = {}  #: of each layout in the graph
        self.wanted: dict[Layout, None] = {}
        self.us = np.zeros((0, 0))  #: [source, target]
        self._known_ranges: dict[Layout, np.ndarray | None] = {}

    def add(self, layouts: Iterable[Layout]) -> None:
        """Layouts that will be asked for. Call `find` after that."""
        self.wanted.update(dict.fromkeys(layouts))

    def find(self) -> None:
        """Find the paths between all layouts."""
        if len(self.wanted) <= 1:
            self.place = dict.fromkeys(self.wanted, 0)
            self.us, self.first, self.nodes = np.zeros((1, 1)), np.zeros((1, 1), int), list(self.wanted)
            return
        self.nodes = nodes = self._closure()
        self.place = {one: i for i, one in enumerate(nodes)}
        n = len(nodes)
        us = np.full((n, n), np.inf)
        self.first = np.tile(np.arange(n), (n, 1))  #: [source, target]: the first layout on the way
        np.fill_diagonal(us, 0.0)
        for i, here in enumerate(nodes):
            reached: set[Layout] = set()
            for step in self._steps(here):
                if step.kind == "permute" and step.to in reached:
                    continue  # `redistribute.direct` takes the collective
                reached.add(step.to)
                j = self.place[step.to]
                us[i, j] = min(us[i, j], step_cost(here, step, self.spec, self.hardware).time_us + _STEP_US)
        for k in range(n):  # Floyd and Warshall
            through = us[:, k, None] + us[None, k, :]
            better = through < us
            if better.any():
                us = np.where(better, through, us)
                self.first = np.where(better, self.first[:, k, None], self.first)
        self.us = us

    def between(self, source: Layout, target: Layout) -> list[Layout]:
        """The layouts on the way from one to another."""
        found, i, j = [], self.place[source], self.place[target]
        while (i := int(self.first[i, j])) != j:
            found.append(self.nodes[i])
        return found

    def prices(self, sources: Iterable[Layout], targets: Iterable[Layout]) -> np.ndarray:
        """[source, target]: microseconds."""
        return self.us[np.ix_([self.place[a] for a in sources], [self.place[b] for b in targets])]

    # -- the graph -----------------------------------------------------------------------------

    def _closure(self) -> list[Layout]:
        """The layouts, and what they become without some of their axes."""
        found = dict(self.wanted)
        todo = list(found)
        while todo:
            here = todo.pop()
            more = [layout(here.mesh, here.dims, {b: k for b, k in here.partial if b != a}) for a in here.pending]
            more += [one for a in here.mesh.sizes if (one := self._without(here, a)) is not None]
            for one in more:
                if one not in found:
                    found[one] = None
                    todo.append(one)
        self._parent: dict[tuple[Layout, str], Layout | None] = {
            (one, a): self._without(one, a) for one in found for a in one.mesh.sizes
        }
        self._children: dict[tuple[Layout, str], list[Layout]] = {}  #: what arises by splitting over one more axis
        for (one, a), parent in self._parent.items():
            if parent is not None:
                self._children.setdefault((parent, a), []).append(one)
        self._alike: dict[tuple[tuple[tuple[str, str], ...], frozenset[str]], list[Layout]] = {}
        for one in found:
            self._alike.setdefault((one.partial, one.axes()), []).append(one)
        return list(found)

    def _without(self, one: Layout, axis: str) -> Layout | None:
        if axis in one.pending:
            return None
        dims = dropped(one.dims, axis)
        return None if dims is None else layout(one.mesh, dims, dict(one.partial))

    def _steps(self, here: Layout) -> Iterable[Step]:
        """All steps from a layout: see redistribute.py, `_next`, which only takes those towards one target."""
        m, s = here.mesh, self.spec
        size = s.dtype.itemsize
        local = largest_shard(here, s.shape) * size
        used = here.axes()
        if len(here.pending) > 1:
            n = m.size(here.pending)
            yield Step("all_reduce", here.pending, layout(m, here.dims), 2 * -(-local * (n - 1) // n))
        for a, n in m.axes:
            if n == 1:
                continue
            share = -(-local * (n - 1) // n)
            if a in here.pending:
                reduced = layout(m, here.dims, {b: k for b, k in here.partial if b != a})
                yield Step("all_reduce", (a,), reduced, 2 * share)
                if s.nbytes >= SCATTERED_NBYTES:
                    yield from (Step("reduce_scatter", (a,), to, share) for to in self._children.get((reduced, a), ()))
            elif a not in used:
                yield from (Step("slice", (), to, 0) for to in self._children.get((here, a), ()))
                if here.kind in (None, "sum"):
                    partial = layout(m, here.dims, {**dict(here.partial), a: "sum"})
                    if partial in self.place:
                        yield Step("partial", (), partial, 0)
            else:
                gathered = self._parent[here, a]
                if gathered is not None:
                    yield Step("all_gather", (a,), gathered, largest_shard(gathered, s.shape) * size - local)
                    for to in self._children.get((gathered, a), ()):
                        if to is not here:
                            yield Step("all_to_all", (a,), to, share)
        if len(used) > 1:
            axes = tuple([a for a, _ in m.axes if a in used and a not in here.pending])
            parents = [self._parent.get((here, a)) for a in m.sizes]
            for (kinds, theirs), alike in self._alike.items():
                if kinds == here.partial and theirs <= used:
                    for to in alike:
                        if to is not here and to not in parents and self._may_permute(here, to):
                            yield Step("permute", axes, to, self._missing(here, to) * size)

    def _may_permute(self, source: Layout, target: Layout) -> bool:
        """Counting what workers lack takes long where they hold several ranges and are many. Such values go the long
        way, by gathering and cutting."""
        if len(source.mesh.workers) <= MANY:
            return True
        return self._ranges(source) is not None and self._ranges(target) is not None

    def _missing(self, source: Layout, target: Layout) -> int:
        """The number of elements that a worker lacks in the target, at most: `missing`, for all workers at once."""
        have, want = self._ranges(source), self._ranges(target)
        if have is None or want is None:
            return missing(source, target, self.spec.shape)
        need = np.prod(want[1] - want[0], axis=0)
        both = np.prod(np.maximum(np.minimum(have[1], want[1]) - np.maximum(have[0], want[0]), 0), axis=0)
        return int((need - both).max())

    def _ranges(self, one: Layout) -> np.ndarray | None:
        """[start or stop, dimension, worker] of what each worker holds; None if that is not one range everywhere."""
        if one not in self._known_ranges:
            m, shape = one.mesh, self.spec.shape
            found = np.zeros((2, max(len(shape), 1), len(m.workers)), np.int64)
            found[1] = 1
            for d, n in enumerate(shape):
                runs = [held(one.pieces(d), n, m, at) for at in m.coordinates]
                if any(len(run) > 1 for run in runs):
                    self._known_ranges[one] = None
                    return None
                found[0, d] = [run[0][0] if run else 0 for run in runs]
                found[1, d] = [run[0][1] if run else 0 for run in runs]
            self._known_ranges[one] = found
        return self._known_ranges[one]
