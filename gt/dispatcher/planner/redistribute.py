"""From one layout to another: the cheapest sequence of collectives.

Law 1: a step is one collective over some axes of the mesh: a worker receives only from workers that differ from it
       along these axes. A slice, and making a whole value partial, are local.
Law 2: the cost is the number of bytes that a worker receives, at most. Among equal costs the fewest steps win; a
       permute counts as several, because more workers meet in it.

The search is Dijkstra's, over layouts. An axis can leave the dimension where it is the minor one, and can join where
the target has it, after the axes that are major to it there. By Law 1 of gt/layout.py both are collectives over that
axis alone. A permute leads to the target at once, whatever it is, by sends between pairs of workers.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gt.dispatcher.planner.memo import memo
from gt.layout import Axes, Layout, Pieces, Runs, canonical, cut, held, largest, layout, local_shape
from gt.program import Spec

Shape = tuple[int, ...]

#: Remembered: planning asks for the same shards many times.
largest_shard = memo(1 << 14)(largest)
shape_at = memo(1 << 14)(local_shape)
held_at = memo(1 << 14)(held)

#: The price of a collective beside its bytes: what its latency is worth, in bytes.
MEETING_NBYTES = 1 << 12
#: A smaller partial tensor is reduced everywhere, not scattered: it shares a bucket with others, and no gather follows.
SCATTERED_NBYTES = 1 << 14

_UNREACHED = (1 << 62, 0)
#: As how many steps a permute counts, where bytes are equal.
_PERMUTE = 3

#: Kinds of steps that move nothing between workers.
LOCAL = ("slice", "partial")


@dataclass(frozen=True, slots=True)
class Step:
    """One collective, or a local step."""

    kind: str  #: slice, partial, all_gather, all_reduce, reduce_scatter, all_to_all, permute; halo, merge (ways.py)
    axes: Axes  #: over which the workers communicate; () for a local step, and for sends between meshes
    to: Layout
    nbytes: int  #: what a worker receives, at most

    def __repr__(self) -> str:
        return f"{self.kind} {','.join(self.axes)} -> {self.to!r}".replace("  ", " ")


@memo(1 << 14)
def redistribute(source: Layout, target: Layout, shape: Shape, itemsize: int = 1) -> tuple[Step, ...]:
    """The steps from one layout of a tensor to another.

    >>> from gt.layout import mesh, split
    >>> m = mesh(x=4)
    >>> redistribute(split(m, (8, 8), {0: "x"}), split(m, (8, 8), {1: "x"}), (8, 8), 4)
    (all_to_all x -> [. 8@x],)
    >>> redistribute(split(m, (8, 8), {}, {"x": "sum"}), split(m, (8, 8), {0: "x"}), (8, 8), 4)
    (reduce_scatter x -> [8@x],)
    """
    if source is target:
        return ()
    if source.mesh is not target.mesh:
        return _across(source, target, shape, itemsize)
    order = itertools.count()  # breaks ties: layouts cannot be compared
    best: dict[Layout, tuple[int, int]] = {source: (0, 0)}
    queue: list[tuple[int, int, int, Layout, tuple[Step, ...]]] = [(0, 0, next(order), source, ())]
    while queue:
        nbytes, length, _, here, steps = heapq.heappop(queue)
        if here is target:
            return steps
        if best[here] < (nbytes, length):
            continue
        found = list(_next(here, target, shape, itemsize))
        if here.partial == target.partial:
            # A permute brings at least what the largest shard grows by: a collective of that size is as good.
            grows = max(largest_shard(target, shape) - largest_shard(here, shape), 0) * itemsize
            direct = min([(step.nbytes, 1) for step in found if step.to is target], default=_UNREACHED)
            if (grows, _PERMUTE) < direct and (nbytes + grows, length + _PERMUTE) < best.get(target, _UNREACHED):
                moved = missing(here, target, shape) * itemsize
                found.append(Step("permute", _moving(here, target), target, moved))
        for step in found:
            cost = (nbytes + step.nbytes, length + (_PERMUTE if step.kind == "permute" else 1))
            if cost < best.get(step.to, _UNREACHED) and cost < best.get(target, _UNREACHED):
                best[step.to] = cost
                heapq.heappush(queue, (*cost, next(order), step.to, (*steps, step)))
    raise AssertionError(f"no steps from {source!r} to {target!r}")  # reductions and a permute always lead there


def _across(source: Layout, target: Layout, shape: Shape, itemsize: int) -> tuple[Step, ...]:
    """To another mesh: reduce partial values, send, then make partial what the target has partial."""
    there = layout(target.mesh, target.dims)
    first = redistribute(source, layout(source.mesh, source.dims), shape, itemsize)
    send = Step("permute", (), there, missing(source, there, shape) * itemsize)
    return (*first, send, *redistribute(there, target, shape, itemsize))


def nbytes_of(steps: Sequence[Step]) -> int:
    """The bytes that a worker receives in all of the steps."""
    return sum(step.nbytes for step in steps)


def price(steps: Sequence[Step]) -> int:
    """What the steps cost: their bytes, and a fixed price for each collective."""
    return sum(step.nbytes + MEETING_NBYTES for step in steps if step.kind not in LOCAL)


class Path(NamedTuple):
    """How a tensor gets to a layout."""

    start: Layout | None  #: the one of its layouts to start from; None if it has none
    steps: tuple[Step, ...]
    price: int


_NO_PATH = Path(None, (), 0)


def cheapest(layouts: Sequence[Layout], want: Layout, s: Spec) -> Path:
    """The cheapest path from any of the layouts that a tensor has."""
    if want in layouts:
        return Path(want, (), 0)
    best = _NO_PATH
    for one in layouts:
        steps = _steps(one, want, s)
        cost = price(steps)
        if best.start is None or cost < best.price:
            best = Path(one, steps, cost)
    return best


def _steps(one: Layout, want: Layout, s: Spec) -> tuple[Step, ...]:
    """The cheapest steps; but a small tensor is reduced everywhere, together with others, and cut after that."""
    done = [a for a, kind in one.partial if (a, kind) not in want.partial]
    if not done or s.nbytes >= SCATTERED_NBYTES or one.mesh is not want.mesh:
        return redistribute(one, want, s.shape, s.dtype.itemsize)
    reduced = layout(one.mesh, one.dims, {a: kind for a, kind in one.partial if a not in done})
    first, then = (redistribute(a, b, s.shape, s.dtype.itemsize) for a, b in ((one, reduced), (reduced, want)))
    return first + then


def direct(source: Layout, target: Layout, s: Spec) -> tuple[Step, ...]:
    """The one step from a layout to another, if there is one (a collective, else a permute); else the cheapest ones."""
    if source.mesh is target.mesh and source is not target:
        size = s.dtype.itemsize
        found = [step for step in _next(source, target, s.shape, size) if step.to is target]
        if not found and source.partial == target.partial:
            found.append(Step("permute", _moving(source, target), target, missing(source, target, s.shape) * size))
        if found:
            return (min(found, key=lambda step: step.nbytes),)
    return cheapest((source,), target, s).steps


# -- the steps from a layout -----------------------------------------------------------------


def _next(here: Layout, target: Layout, shape: Shape, itemsize: int) -> Iterator[Step]:
    """The collectives over some axes, and the local steps, that may lead from one layout to another."""
    m, local = here.mesh, largest_shard(here, shape) * itemsize
    pending, wanted = dict(here.partial), dict(target.partial)
    used = here.axes()
    done = tuple(a for a in pending if wanted.get(a) != pending[a])
    if len(done) > 1:  # all at once is cheaper than one after the other
        n = m.size(done)
        rest = {b: k for b, k in pending.items() if b not in done}
        yield Step("all_reduce", done, layout(m, here.dims, rest), 2 * -(-local * (n - 1) // n))
    for a, n in m.axes:
        if n == 1:
            continue
        share = -(-local * (n - 1) // n)
        if a in pending:
            if a not in wanted or pending[a] != wanted[a]:
                rest = {b: k for b, k in pending.items() if b != a}
                yield Step("all_reduce", (a,), layout(m, here.dims, rest), 2 * share)
                dims = _added(here.dims, target, a, len(shape))
                if dims is not None:
                    yield Step("reduce_scatter", (a,), layout(m, dims, rest), share)
        elif a not in used:
            if a in wanted and here.kind in (None, wanted[a]):
                yield Step("partial", (), layout(m, here.dims, {**pending, a: wanted[a]}), 0)
            dims = _added(here.dims, target, a, len(shape))
            if dims is not None:
                yield Step("slice", (), layout(m, dims, pending), 0)
        else:
            dims = dropped(here.dims, a)
            if dims is None:
                continue
            gathered = layout(m, dims, pending)
            yield Step("all_gather", (a,), gathered, largest_shard(gathered, shape) * itemsize - local)
            again = _added(gathered.dims, target, a, len(shape))
            if again is not None and layout(m, again, pending) is not here:
                yield Step("all_to_all", (a,), layout(m, again, pending), share)


def dropped(dims: tuple[Pieces, ...], axis: str) -> tuple[Pieces, ...] | None:
    """Without an axis, if it is the minor one of its piece."""
    for d, pieces in enumerate(dims):
        for k, (n, axes) in enumerate(pieces):
            if axes and axes[-1] == axis:
                return (*dims[:d], (*pieces[:k], (n, axes[:-1]), *pieces[k + 1 :]), *dims[d + 1 :])
    return None


def _added(dims: tuple[Pieces, ...], target: Layout, axis: str, ndim: int) -> tuple[Pieces, ...] | None:
    """With an axis where the target has it, if the axes before it are there already and no more."""
    m = target.mesh
    for d, pieces in enumerate(target.dims):
        for k, (n, axes) in enumerate(pieces):
            if axis not in axes:
                continue
            before = axes[: axes.index(axis)]
            here = dims[d] if d < len(dims) else ()
            parts = cut(here, [size for size, _ in pieces], m)
            if parts is None or parts[k] != canonical(((n, before),), m):
                return None
            parts[k] = ((n, (*before, axis)),)
            new = [p for part, (size, _) in zip(parts, pieces, strict=True) for p in (part or ((size, ()),))]
            filled = [*dims, *[()] * (ndim - len(dims))]
            filled[d] = tuple(new)
            return tuple(filled)
    return None


def _moving(source: Layout, target: Layout) -> Axes:
    """The axes that split something before or after. Along the others every worker has a replica to take from."""
    split = (source.axes() | target.axes()) - set(source.pending)
    return tuple(a for a, _ in source.mesh.axes if a in split)


# -- who needs what from whom ----------------------------------------------------------------


def overlap(a: Runs, b: Runs) -> Runs:
    """The positions that are in both.

    >>> overlap(((0, 5), (8, 12)), ((3, 10),))
    ((3, 5), (8, 10))
    """
    if len(a) == len(b) == 1:
        lo, hi = max(a[0][0], b[0][0]), min(a[0][1], b[0][1])
        return ((lo, hi),) if lo < hi else ()
    if a == b:
        return a
    if len(a) < len(b):
        a, b = b, a
    found = []
    for lo, hi in b:
        i = bisect_left(a, (lo, hi))
        if i and a[i - 1][1] > lo:
            i -= 1
        while i < len(a) and a[i][0] < hi:
            found.append((max(a[i][0], lo), min(a[i][1], hi)))
            i += 1
    return tuple(found)


def count(runs: Runs) -> int:
    """How many positions there are."""
    return runs[0][1] - runs[0][0] if len(runs) == 1 else sum([b - a for a, b in runs])


@memo(1 << 14)
def missing(source: Layout, target: Layout, shape: Shape) -> int:
    """The number of elements that a worker lacks in the target, at most."""
    where = dict(zip(source.mesh.workers, source.mesh.coordinates, strict=True))
    most = 0
    for worker, at in zip(target.mesh.workers, target.mesh.coordinates, strict=True):
        need, have = 1, int(worker in where)
        for d, n in enumerate(shape):
            want = held_at(target.pieces(d), n, target.mesh, at)
            need *= count(want)
            mine = held_at(source.pieces(d), n, source.mesh, where[worker]) if worker in where else ()
            have *= count(overlap(want, mine))
        most = max(most, need - have)
    return most
