"""How one op runs on shards: from its record, its specs and the layouts of its operands to the layouts it wants and
gives, and the collectives that bring its operands there.

Law 1: no op is named here. What an op can do stands in its record.
Law 2: an operand that is added to a contraction is made partial over it (whole at index 0, zero elsewhere), so that
       nothing is added once per worker.

Every axis that some operand uses has a few things it can do: split the factor that an operand has there, carry a
partial value through if the op is linear in it, or nothing (the operand is gathered or reduced first). The cheapest
combination is taken. Where an operand is split along a factor that must be whole, and the op can be written in
other ops, `choose` returns None: whoever asked expands it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gt.dispatcher.planner.redistribute import (
    MEETING_NBYTES,
    SCATTERED_NBYTES,
    Step,
    cheapest,
    count,
    largest_shard,
    overlap,
    price_of,
    redistribute,
    shape_at,
)
from gt.errors import GTError
from gt.layout import Axes, Layout, Mesh, Pieces, bounds, cut, held, joined, layout
from gt.ops.record import Op
from gt.ops.shard import first_phase, parts_at, shard_spec
from gt.ops.sharding import Bound, Dim, added, bind, groups, has
from gt.program import Spec

#: Reading or writing a byte of memory, in bytes that travel between workers: about what a network costs more.
MEMORY_SHARE = 1 / 16
#: Multiplying and adding, in bytes that travel: a worker does so much while one byte comes in.
FLOPS_PER_BYTE = 100
#: A partial result has to be reduced later, but it may be added to another one first, and both reduced at once.
PARTIAL_SHARE = 0.85
#: If it comes of a partial operand that somebody else reads too, that one is reduced as well: two reductions where one,
#: of the operand, would have done.
TWICE_SHARE = 2.0
#: A result that still has to get to its goal keeps everybody waiting: nothing is left to be computed meanwhile.
GOAL_SHARE = 1.5

#: How an operand lies: in one layout, in each of several, or () in any that is wanted, because nobody has made it yet.
#: None for numbers.
Have = Layout | tuple[Layout, ...] | None


@dataclass(frozen=True, slots=True)
class Halo:
    """One dimension of an operand that each worker holds a window of, rather than a shard."""

    dim: int
    factor: str
    axes: Axes


@dataclass(frozen=True, slots=True)
class Sharding:
    """One way to run an op on shards."""

    bound: Bound
    mesh: Mesh
    split: dict[str, Pieces]  #: of the factors that are split
    wants: tuple[Layout | None, ...]  #: of each operand; None for numbers
    halos: tuple[tuple[Halo, ...], ...]  #: of each operand
    gives: tuple[Layout, ...]

    @property
    def merges(self) -> bool:
        """Whether it runs in two phases, with an exchange between them."""
        return self.bound.merged in self.split


@dataclass(frozen=True, slots=True)
class Choice:
    """A way to run an op, and how its operands get there."""

    sharding: Sharding
    starts: tuple[Layout | None, ...]  #: of each operand: the one of its layouts that it comes from
    steps: tuple[tuple[Step, ...], ...]  #: of each operand; the exchange of an op in two phases is with the first
    cost: float
    blocked: tuple[str, ...]  #: axes that are gathered because they split what must be whole

    @property
    def gathered(self) -> bool:
        """Whether an operand was gathered because no rule covers its split."""
        return bool(self.blocked)


def choose(
    op: Op, specs: Sequence[Spec], results: Sequence[Spec], attrs: dict[str, Any], have: Sequence[Have],
    goals: Sequence[Layout | None] = (), bound: Bound | None = None, again: Sequence[int] = (),
) -> Choice | None:  # fmt: skip
    """The cheapest way to run an op on operands that lie like this; None if it is to be expanded. Results with a goal
    are brought there afterwards. It runs on the mesh that has most of its operands. `bound`: its rule, if it is known
    already. `again`: the operands that are partial, and that others read after this op."""
    lying = [one if one is None or isinstance(one, tuple) else (one,) for one in have]
    goals = goals or (None,) * len(results)
    mesh = _mesh(op, specs, lying, goals)
    expands = op.parts is not None or op.compose is not None
    bound = bound or bind(op, specs, results, attrs)
    if not bound.covered and expands and any(one and not any(a.is_whole for a in one) for one in lying):
        return None
    seen = _Seen(op, bound, specs, attrs, lying, goals, mesh, again)
    blocked = seen.blocked()
    if expands and blocked:
        return None
    best: Choice | None = None
    for picks in itertools.product(*seen.options.values()):
        sharding = seen.built(dict(zip(seen.options, picks, strict=True)))
        if sharding is None:
            continue
        made = seen.price(sharding, results, blocked, best.cost if best is not None else math.inf)
        if made is None:
            continue
        if best is None or made.cost < best.cost:
            best = made
        if made.cost <= seen.floor:
            break  # nothing moves, nothing is owed: no other way is better
    assert best is not None  # dropping every axis is always possible
    if expands and seen.is_dragged(best):
        return None
    return best


def _mesh(op: Op, specs: Sequence[Spec], have: Sequence[tuple[Layout, ...] | None], goals: Sequence[Any]) -> Mesh:
    meshes = {one.mesh for ways in have if ways for one in ways}
    if len(meshes) == 1:
        return meshes.pop()
    there: dict[Mesh, int] = {}
    for k in sorted(range(len(specs)), key=lambda k: -specs[k].nbytes):
        for m in dict.fromkeys(one.mesh for one in have[k] or ()):
            there[m] = there.get(m, 0) + specs[k].nbytes
    for goal in goals:
        if goal is not None:
            there.setdefault(goal.mesh, -1)
    if not there:
        raise GTError(f"{op.name}: no operand says on which mesh it shall run")
    return max(there, key=lambda m: there[m])


# -- what each axis can do -------------------------------------------------------------------

#: ("split", factor) or ("keep", group, kind) or ("drop",)
Pick = tuple[Any, ...]


class _Seen:
    """The layouts of an op's operands, in the words of its rule."""

    def __init__(
        self, op: Op, bound: Bound, specs: Sequence[Spec], attrs: dict[str, Any],
        have: Sequence[tuple[Layout, ...] | None], goals: Sequence[Layout | None], mesh: Mesh, again: Sequence[int],
    ) -> None:  # fmt: skip
        self.bound, self.mesh, self.have, self.specs, self.op, self.attrs = bound, mesh, have, specs, op, attrs
        self.goals, self.again = goals, again
        self.groups = groups(op, specs, attrs)
        #: Pieces of factors as the operands have them, the largest operand first.
        self.found: list[tuple[str, Pieces]] = []
        self.options: dict[str, list[Pick]] = {}
        self.floor = -1.0
        self.read, self.flops = _work(bound)
        self.splits: set[tuple[str, str]] = set()  #: (factor, axis) that operands and goals have
        #: (operand, axis): the axis splits what must be whole of it.
        self.stuck: set[tuple[int, str]] = set()
        order = sorted(range(len(specs)), key=lambda k: -specs[k].size)
        for k in order:
            for one in have[k] or ():
                if one.mesh is mesh:  # what lies on another mesh comes over as it is wanted
                    for d, dim in enumerate(bound.inputs[k]):
                        self._see_dim(k, one.pieces(d), dim, (k, d) in bound.rule.windows)
                    for a, kind in one.partial:
                        self._see_partial(k, a, kind)
        for goal, value in zip(goals, bound.outputs, strict=True):
            if goal is not None and goal.mesh is mesh:
                for d, dim in enumerate(value):
                    self._see_goal(goal.pieces(d), dim)
        for picks in self.options.values():
            picks.append(("drop",))

    def _see_goal(self, pieces: Pieces, dim: Dim) -> None:
        parts = cut(pieces, [self.bound.sizes[f] for f in dim], self.mesh) if pieces and dim else None
        for f, part in zip(dim, parts or (), strict=False):
            if part and f not in self.bound.whole:
                self.found.append((f, part))
                for a in (a for _, over in part for a in over):
                    self._offer(a, ("split", f))
                    self.splits.add((f, a))

    def _see_dim(self, k: int, pieces: Pieces, dim: Dim, window: bool) -> None:
        axes = tuple(a for _, over in pieces for a in over)
        if not axes or not dim:
            for a in axes:
                self.options.setdefault(a, [])
            return
        sizes = [self.bound.sizes[f] for f in dim]
        parts = None if window else cut(pieces, sizes, self.mesh)
        if parts is None:
            # Bounds do not coincide: split the largest factor that may be split, which costs a small permute.
            free = [f for f in dim if f not in self.bound.whole] or list(dim)
            largest_one = max(free, key=lambda f: self.bound.sizes[f])
            parts = [((n, axes),) if f == largest_one else () for f, n in zip(dim, sizes, strict=True)]
        for f, part in zip(dim, parts, strict=True):
            if part:
                self.found.append((f, part))
                for a in (a for _, over in part for a in over):
                    self._offer(a, ("split", f))
                    self.splits.add((f, a))
                    if f in self.bound.whole:
                        self.stuck.add((k, a))

    def _see_partial(self, k: int, axis: str, kind: str) -> None:
        for group in self.groups if kind == "sum" else ():
            if k in group:
                self._offer(axis, ("keep", group, kind))
        if self.op.moves:
            everyone = tuple(i for i, s in enumerate(self.specs) if not s.weak)
            self._offer(axis, ("keep", everyone, kind))
        # Reduced on the way to a split: half the bytes of reducing it everywhere.
        for dim in self.bound.inputs[k] if self.specs[k].nbytes >= SCATTERED_NBYTES else ():
            for f in dim:
                if f not in self.bound.whole and self.bound.sizes[f] >= self.mesh.sizes[axis]:
                    self._offer(axis, ("split", f))

    def _offer(self, axis: str, pick: Pick) -> None:
        picks = self.options.setdefault(axis, [])
        if pick not in picks:
            picks.append(pick)

    def blocked(self) -> tuple[str, ...]:
        """The axes that split only what must be whole, of an operand that has no other layout."""
        axes = [
            a
            for a, picks in self.options.items()
            if any(p[0] == "split" and p[1] in self.bound.whole for p in picks)
            and not any(p[0] == "split" and p[1] not in self.bound.whole for p in picks)
        ]
        if axes and all(not one or any(not one_way.axes() & set(axes) for one_way in one) for one in self.have):
            return ()
        return tuple(axes)

    def is_dragged(self, choice: Choice) -> bool:
        """Whether an operand moves only because it is split where it must be whole."""
        return any(
            start is not None and price_of(steps) and any((k, a) in self.stuck for a in start.axes())
            for k, (start, steps) in enumerate(zip(choice.starts, choice.steps, strict=True))
        )

    def built(self, picks: dict[str, Pick]) -> Sharding | None:
        over: dict[str, list[str]] = {}
        keep: dict[str, tuple[tuple[int, ...], str]] = {}
        for a, pick in picks.items():
            if pick[0] == "split":
                if pick[1] in self.bound.whole or self.bound.sizes[pick[1]] < 2:
                    return None
                over.setdefault(pick[1], []).append(a)
            elif pick[0] == "keep":
                keep[a] = pick[1:]
        split = {f: self._pieces(f, axes) for f, axes in over.items()}
        return instantiate(self.op, self.bound, self.specs, self.attrs, self.mesh, split, keep, self.have)

    def _pieces(self, factor: str, axes: list[str]) -> Pieces:
        """The pieces of a factor over these axes, as much as possible like an operand has them."""
        rest, pieces = list(axes), list[tuple[int, Axes]]()
        for f, found in self.found:
            if f == factor and any(a in axes for _, over in found for a in over):
                pieces = [(n, tuple(a for a in over if a in axes)) for n, over in found]
                rest = [a for a in axes if all(a not in over for _, over in found)]
                break
        if not pieces:
            return ((self.bound.sizes[factor], tuple(axes)),)
        n, over = pieces[-1]
        pieces[-1] = (n, (*over, *rest))
        return tuple(pieces)

    def price(
        self, sharding: Sharding, results: Sequence[Spec], blocked: tuple[str, ...], limit: float
    ) -> Choice | None:
        """The steps to the layouts that it wants; what they cost, what the op itself costs, and what a partial
        result will cost. None if something moves, and that alone costs as much as the limit."""
        every: list[tuple[Step, ...]] = []
        starts: list[Layout | None] = []
        total = memory = 0.0
        for k, (ways, s) in enumerate(zip(self.have, self.specs, strict=True)):
            want = sharding.wants[k]
            start: Layout | None = None
            mine: tuple[Step, ...] = ()
            if ways is not None and want is not None:
                start, mine, nbytes = cheapest(ways, want, s)
                total += nbytes
                memory += largest_shard(want, s.shape) * s.dtype.itemsize * MEMORY_SHARE
                halos = tuple(halo_step(self.op, self.attrs, self.specs, sharding, k))
                total += price_of(halos)
                mine += halos
                if total and total + memory >= limit:
                    return None
            starts.append(start)
            every.append(mine)
        if sharding.merges:
            merge = merge_step(self.op, self.attrs, self.specs, sharding)
            every[0] += (merge,)
            total += price_of((merge,))
        # Where nothing was split before, somebody will want the result whole again.
        over = {(f, a) for f, pieces in sharding.split.items() for _, axes in pieces for a in axes}
        new = {a for f, a in over if (f, a) not in self.splits}
        owed = TWICE_SHARE if any(_is_partial(sharding.wants[k]) for k in self.again) else PARTIAL_SHARE
        for one, goal, s in zip(sharding.gives, self.goals, results, strict=True):
            nbytes = largest_shard(one, s.shape) * s.dtype.itemsize
            memory += nbytes * MEMORY_SHARE
            if goal is not None:
                total += GOAL_SHARE * price_of(redistribute(one, goal, s.shape, s.dtype.itemsize))
            elif one.partial:
                p = self.mesh.size(one.pending)
                total += owed * (nbytes * (p - 1) / p + MEETING_NBYTES)
            if goal is None and new & one.axes():
                p = self.mesh.size(new & one.axes())
                total += PARTIAL_SHARE * (nbytes * (p - 1) + MEETING_NBYTES)
        if self.flops:
            axes = [a for f, p in sharding.split.items() if f in self.read for _, over in p for a in over]
            memory += self.flops / self.mesh.size(axes) / FLOPS_PER_BYTE
        self.floor = memory if total == 0 else -1.0
        return Choice(sharding, tuple(starts), tuple(every), total + memory, blocked)


def _is_partial(one: Layout | None) -> bool:
    return one is not None and bool(one.partial)


def _work(bound: Bound) -> tuple[set[str], int]:
    """The factors of the operands, and how much is multiplied and added over all of them; 0 of an op that is no
    product: it costs what it reads and writes."""
    values = [{f for dim in value for f in dim} for value in bound.inputs]
    read = set().union(*values)
    shared = {f for f in read if sum(f in v for v in values) > 1 and f not in bound.rule.at}
    if not any(f in shared for f in bound.contracted()):
        return read, 0
    return read, 2 * math.prod(bound.sizes[f] for f in read)


# -- a way to run it -------------------------------------------------------------------------


def instantiate(
    op: Op, bound: Bound, specs: Sequence[Spec], attrs: dict[str, Any], mesh: Mesh, split: dict[str, Pieces],
    keep: dict[str, tuple[tuple[int, ...], str]], have: Sequence[Have] | None = None,
) -> Sharding | None:  # fmt: skip
    """The layouts of operands and results when these factors are split like this, and partial values of these axes
    are carried through in these groups of operands; None if the op cannot do that.

    `have`: how the operands lie now. It only decides whether a window is cut out of a whole operand, or fetched.
    """
    contiguous = bound.contiguous
    split = {f: (_one(bound.sizes[f], p) if f in contiguous else p) for f, p in split.items()}
    waiting: list[dict[str, str]] = [{} for _ in specs]
    ends: list[dict[str, str]] = [{} for _ in bound.outputs]
    for a, (group, kind) in keep.items():
        for k in group:
            waiting[k][a] = kind
        for end in ends:
            end[a] = kind
    contracted = bound.contracted()
    for f, pieces in split.items():
        if f not in contracted or f == bound.merged:  # the second phase leaves nothing to be added up
            continue
        kind = bound.kind(f)
        axes = [a for _, over in pieces for a in over]
        for end, value, logical in zip(ends, bound.outputs, bound.logical, strict=True):
            if not has(value, f):
                end.update(dict.fromkeys(axes, "max" if logical and kind == "sum" else kind))
        if kind == "sum":
            for k in added(op, bound, specs, attrs, f):
                if specs[k].weak:
                    return None
                waiting[k].update(dict.fromkeys(axes, kind if specs[k].dtype.category else "max"))
    for kinds in (*waiting, *ends):
        if len(kinds) > 1 and len(set(kinds.values())) > 1:
            return None
    wants: list[Layout | None] = []
    halos: list[tuple[Halo, ...]] = []
    laid = _Laid(bound, split, mesh)
    windowed = {k for k, d in bound.rule.windows if bound.inputs[k][d][0] in split}
    for k, s in enumerate(specs):
        if k not in windowed:
            halos.append(())
            wants.append(None if s.weak else laid.out(bound.inputs[k], waiting[k]))
            continue
        given = have[k] if have is not None else None
        ways = (given,) if isinstance(given, Layout) else given or ()
        mine = [
            Halo(d, dim[0], tuple(a for _, over in split[dim[0]] for a in over))
            for d, dim in enumerate(bound.inputs[k])
            if (k, d) in bound.rule.windows and dim[0] in split
        ]
        halos.append(tuple(mine))
        dims = [_pieces(bound, dim, split, mesh) for dim in bound.inputs[k]]
        for halo in mine:
            free = given == () or any(one.mesh is mesh and not one.pieces(halo.dim) for one in ways)
            dims[halo.dim] = () if free else ((s.shape[halo.dim], halo.axes),)
        wants.append(layout(mesh, dims, waiting[k]))
    gives = [laid.out(value, end) for value, end in zip(bound.outputs, ends, strict=True)]
    return Sharding(bound, mesh, split, tuple(wants), tuple(halos), tuple(gives))


def _one(n: int, pieces: Pieces) -> Pieces:
    return ((n, tuple(a for _, over in pieces for a in over)),)


class _Laid:
    """The layouts of operands and results under one split: most of them have the same factors."""

    def __init__(self, bound: Bound, split: dict[str, Pieces], mesh: Mesh) -> None:
        self.bound, self.split, self.mesh = bound, split, mesh
        self.known: dict[tuple[object, ...], Layout] = {}

    def out(self, value: tuple[Dim, ...], partial: dict[str, str]) -> Layout:
        key = (value, *partial.items())
        found = self.known.get(key)
        if found is None:
            dims = [_pieces(self.bound, dim, self.split, self.mesh) for dim in value]
            found = self.known[key] = layout(self.mesh, dims, partial)
        return found


def _pieces(bound: Bound, dim: Dim, split: dict[str, Pieces], mesh: Mesh) -> Pieces:
    if not dim or (dim[0] not in split if len(dim) == 1 else split.keys().isdisjoint(dim)):
        return ()
    return joined([(bound.sizes[f], split.get(f, ())) for f in dim], mesh)


# -- windows ---------------------------------------------------------------------------------


def needed(
    op: Op, attrs: dict[str, Any], specs: Sequence[Spec], sharding: Sharding, k: int, halo: Halo, at: tuple[int, ...]
) -> tuple[int, int, str]:
    """The part of an operand's dimension that the worker at a coordinate needs, and what stands beyond its ends."""
    assert op.window is not None
    lo, hi = bounds(
        sharding.mesh.index(halo.axes, at), sharding.bound.sizes[halo.factor], sharding.mesh.size(halo.axes)
    )
    if lo == hi:
        return 0, 0, "clip"
    lo, hi, border = op.window(*specs, **attrs)[halo.factor](k, lo, hi)
    if border == "clip":
        n = specs[k].shape[halo.dim]
        lo, hi = min(max(lo, 0), n), min(max(hi, 0), n)
    return lo, max(lo, hi), border


def halo_step(op: Op, attrs: dict[str, Any], specs: Sequence[Spec], sharding: Sharding, k: int) -> Iterator[Step]:
    """The exchange that makes windows of an operand's shards; nothing where the dimension is whole."""
    want = sharding.wants[k]
    assert want is not None
    s, m = specs[k], sharding.mesh
    for halo in sharding.halos[k]:
        if not want.pieces(halo.dim):
            continue
        n, most = s.shape[halo.dim], 0
        for at in m.coordinates:
            lo, hi, border = needed(op, attrs, specs, sharding, k, halo, at)
            places = sorted({i % n for i in range(lo, hi)} if border == "wrap" else range(max(lo, 0), min(hi, n)))
            mine = held(want.pieces(halo.dim), n, m, at)
            most = max(most, len(places) - count(overlap(tuple((i, i + 1) for i in places), mine)))
        rest = largest_shard(want, s.shape) // max(-(-n // m.size(halo.axes)), 1)
        yield Step("halo", halo.axes, want, math.ceil(most * rest) * s.dtype.itemsize)


# -- two phases ------------------------------------------------------------------------------


def merge_step(op: Op, attrs: dict[str, Any], specs: Sequence[Spec], sharding: Sharding) -> Step:
    """The exchange between the two phases of an op: what it sends, from every part of the factor to all."""
    m, factor = sharding.mesh, sharding.bound.merged
    assert factor is not None
    axes = tuple(a for _, over in sharding.split[factor] for a in over)
    local = [
        s if want is None else shard_spec(s, shape_at(want, s.shape, m.coordinates[-1]))
        for s, want in zip(specs, sharding.wants, strict=True)
    ]
    parts = parts_at(sharding.split, sharding.bound.sizes, m, m.coordinates[-1])
    _, _, sent = first_phase(op, sharding.bound, specs, attrs, parts, local)
    return Step("merge", axes, sharding.gives[0], sum(x.spec.nbytes for x in sent) * (m.size(axes) - 1))
