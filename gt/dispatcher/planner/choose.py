"""The planner's choice: the cheapest way to run one op on operands in given layouts.

Law 1: only axes that an operand or a goal uses get a role. What is replicated stays so.
Law 2: an op whose operand is split along a factor that must be whole is expanded, if it can be written in other ops:
       `choose` returns None. Otherwise the operand is gathered, and the choice says so (`blocked`).

Every axis in use has a few roles to choose from: split the factor that an operand has there, keep a partial value if
the op is linear in it, or nothing (the operand is gathered or reduced first). Each combination is priced in bytes
between workers: what has to move, that workers have to meet at all, a share for memory and arithmetic, and what is
still to be paid for the results.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from gt.dispatcher.planner.redistribute import (
    MEETING_NBYTES,
    SCATTERED_NBYTES,
    Step,
    cheapest,
    largest_shard,
    price,
    redistribute,
)
from gt.dispatcher.planner.ways import (
    KeepPartial,
    Layouts,
    Role,
    Split,
    Use,
    Way,
    axes_of,
    bound_of,
    by_role,
    halo_steps,
    make_way,
    merge_step,
)
from gt.errors import GTError
from gt.layout import Axes, Layout, Mesh, Pieces, cut
from gt.ops.sharding import Bound, Dim, groups

#: Price of reading or writing one byte of memory, in bytes between workers: about what a network costs more.
MEMORY_SHARE = 1 / 16
#: Floating-point operations that a worker does while it receives one byte.
FLOPS_PER_BYTE = 100
#: A partial result has to be reduced later; but it may be added to another one first, and both reduced at once.
PARTIAL_SHARE = 0.85
#: If a partial result is made of a partial operand that other ops read too, both are reduced where one reduction, of
#: the operand, would have done.
TWICE_SHARE = 2.0
#: Moving a result to its goal cannot overlap with anything: nothing is left to compute.
GOAL_SHARE = 1.5

#: The layouts that results have to end in, where they have to.
Goals = tuple[Layout | None, ...]
#: The operands that are partial in all their layouts and that other ops read after this one. If this op has one of
#: them reduced, it is reduced for all.
Reread = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """A way to run an op, and how its operands get to the layouts that it wants."""

    way: Way
    starts: tuple[Layout | None, ...]  #: of each operand: the one of its layouts that it comes from
    steps: tuple[tuple[Step, ...], ...]  #: of each operand; the exchange of an op in two phases is with the first
    cost: float
    is_free: bool  #: nothing moves, and nothing is still to be paid for the results
    blocked: Axes  #: axes that are gathered because they split what must be whole


def choose(use: Use, have: Sequence[Layouts], goals: Goals = (), reread: Reread = ()) -> Choice | None:
    """The cheapest way to run an op on operands in these layouts; None if it is to be expanded. The op runs on the mesh
    that has most of its operands."""
    op = use.op
    goals = goals or (None,) * len(use.results)
    mesh = _mesh(use, have, goals)
    if op.expands and not bound_of(use).covered and any(one and not any(a.is_whole for a in one) for one in have):
        return None
    options = _Options(use, have, goals, mesh, reread)
    blocked = options.blocked()
    if op.expands and blocked:
        return None
    best: Choice | None = None
    for roles in itertools.product(*options.roles.values()):
        way = options.way(dict(zip(options.roles, roles, strict=True)))
        if way is None:
            continue
        found = options.priced(way, blocked, best.cost if best is not None else math.inf)
        if found is None:
            continue
        if best is None or found.cost < best.cost:
            best = found
        if found.is_free:
            break  # no other way is cheaper
    assert best is not None  # a way in which no axis has a role is always possible
    if op.expands and options.moves_blocked(best):
        return None
    return best


def _mesh(use: Use, have: Sequence[Layouts], goals: Sequence[Layout | None]) -> Mesh:
    """The mesh that an op runs on."""
    meshes = {one.mesh for layouts in have if layouts for one in layouts}
    if len(meshes) == 1:
        return meshes.pop()
    specs = use.specs
    nbytes: dict[Mesh, int] = {}
    for k in sorted(range(len(specs)), key=lambda k: -specs[k].nbytes):
        for m in dict.fromkeys(one.mesh for one in have[k] or ()):
            nbytes[m] = nbytes.get(m, 0) + specs[k].nbytes
    for goal in goals:
        if goal is not None:
            nbytes.setdefault(goal.mesh, -1)
    if not nbytes:
        raise GTError(f"{use.op.name}: neither an operand nor a result has a mesh to run on")
    return max(nbytes, key=lambda m: nbytes[m])


class _Options:
    """The roles that each axis can have in one use of an op, and the price of a combination of them."""

    def __init__(
        self, use: Use, have: Sequence[Layouts], goals: Sequence[Layout | None], mesh: Mesh, reread: Reread
    ) -> None:
        bound = bound_of(use)
        self.use, self.bound, self.have, self.goals, self.mesh, self.reread = use, bound, have, goals, mesh, reread
        self.roles: dict[str, list[Role]] = {}  #: by axis
        self.linear = groups(use.op, use.specs, use.attrs.value)
        #: Pieces of factors as the operands have them, the largest operand first.
        self.found: list[tuple[str, Pieces]] = []
        self.splits: set[tuple[str, str]] = set()  #: (factor, axis) that operands and goals have
        self.stuck: set[tuple[int, str]] = set()  #: (operand, axis): the axis splits what must be whole of it
        self.read, self.flops = _flops(bound)
        for k in sorted(range(len(use.specs)), key=lambda k: -use.specs[k].size):
            for one in have[k] or ():
                if one.mesh is mesh:  # an operand from another mesh arrives in the layout that is wanted
                    for d, dim in enumerate(bound.inputs[k]):
                        self._add_dim(k, one.pieces(d), dim, (k, d) in bound.rule.windows)
                    for a, kind in one.partial:
                        self._add_partial(k, a, kind)
        for goal, value in zip(goals, bound.outputs, strict=True):
            if goal is not None and goal.mesh is mesh:
                for d, dim in enumerate(value):
                    self._add_goal(goal.pieces(d), dim)
        for roles in self.roles.values():
            roles.append(None)

    def _add_goal(self, pieces: Pieces, dim: Dim) -> None:
        parts = cut(pieces, [self.bound.sizes[f] for f in dim], self.mesh) if pieces and dim else None
        for f, part in zip(dim, parts or (), strict=False):
            if part and f not in self.bound.whole:
                self._add_split(f, part)

    def _add_dim(self, k: int, pieces: Pieces, dim: Dim, is_window: bool) -> None:
        axes = axes_of(pieces)
        if not axes or not dim:
            for a in axes:
                self.roles.setdefault(a, [])
            return
        sizes = [self.bound.sizes[f] for f in dim]
        parts = None if is_window else cut(pieces, sizes, self.mesh)
        if parts is None:
            # The bounds of shards and factors do not coincide. Split the largest factor that may be split: that costs
            # a small permute.
            free = [f for f in dim if f not in self.bound.whole] or list(dim)
            largest_one = max(free, key=lambda f: self.bound.sizes[f])
            parts = [((n, axes),) if f == largest_one else () for f, n in zip(dim, sizes, strict=True)]
        for f, part in zip(dim, parts, strict=True):
            if part:
                self._add_split(f, part)
                if f in self.bound.whole:
                    self.stuck.update([(k, a) for a in axes_of(part)])

    def _add_split(self, factor: str, pieces: Pieces) -> None:
        self.found.append((factor, pieces))
        for a in axes_of(pieces):
            self._offer(a, Split(factor))
            self.splits.add((factor, a))

    def _add_partial(self, k: int, axis: str, kind: str) -> None:
        for group in self.linear if kind == "sum" else ():
            if k in group:
                self._offer(axis, KeepPartial(group, kind))
        specs = self.use.specs
        if self.use.op.moves:
            self._offer(axis, KeepPartial(tuple(i for i, s in enumerate(specs) if not s.weak), kind))
        # Reduced on the way to a split: half the bytes of reducing it everywhere.
        for dim in self.bound.inputs[k] if specs[k].nbytes >= SCATTERED_NBYTES else ():
            for f in dim:
                if f not in self.bound.whole and self.bound.sizes[f] >= self.mesh.sizes[axis]:
                    self._offer(axis, Split(f))

    def _offer(self, axis: str, role: Role) -> None:
        roles = self.roles.setdefault(axis, [])
        if role not in roles:
            roles.append(role)

    # -- what must be whole --------------------------------------------------------------------

    def blocked(self) -> Axes:
        """The axes that split only what must be whole, if some operand has no layout without them."""
        axes = []
        for a, roles in self.roles.items():
            whole = [role.factor in self.bound.whole for role in roles if type(role) is Split]
            if whole and all(whole):
                axes.append(a)
        if axes and all(not one or any(not each.axes() & set(axes) for each in one) for one in self.have):
            return ()
        return tuple(axes)

    def moves_blocked(self, choice: Choice) -> bool:
        """Whether an operand moves only because it is split where it must be whole."""
        return any(
            start is not None and price(steps) and any((k, a) in self.stuck for a in start.axes())
            for k, (start, steps) in enumerate(zip(choice.starts, choice.steps, strict=True))
        )

    # -- ways ----------------------------------------------------------------------------------

    def way(self, roles: dict[str, Role]) -> Way | None:
        over, keep = by_role(roles)
        for f in over:
            if f in self.bound.whole or self.bound.sizes[f] < 2:
                return None
        return make_way(self.use, self.mesh, {f: self._pieces(f, axes) for f, axes in over.items()}, keep, self.have)

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

    def priced(self, way: Way, blocked: Axes, limit: float) -> Choice | None:
        """The steps to the layouts that a way wants, and what all of it costs. None if something moves and that alone
        costs as much as the limit."""
        every: list[tuple[Step, ...]] = []
        starts: list[Layout | None] = []
        total = memory = 0.0
        for k, (layouts, s) in enumerate(zip(self.have, self.use.specs, strict=True)):
            want = way.wants[k]
            start: Layout | None = None
            mine: tuple[Step, ...] = ()
            if layouts is not None and want is not None:
                start, mine, nbytes = cheapest(layouts, want, s)
                total += nbytes
                memory += largest_shard(want, s.shape) * s.dtype.itemsize * MEMORY_SHARE
                halos = tuple(halo_steps(way, k))
                total += price(halos)
                mine += halos
                if total and total + memory >= limit:
                    return None
            starts.append(start)
            every.append(mine)
        if way.has_phases:
            merge = merge_step(way)
            every[0] += (merge,)
            total += price((merge,))
        # Where nothing was split before, some op will want the result whole again.
        new = {a for f, pieces in way.split.items() for a in axes_of(pieces) if (f, a) not in self.splits}
        for one, goal, s in zip(way.gives, self.goals, self.use.results, strict=True):
            nbytes = largest_shard(one, s.shape) * s.dtype.itemsize
            memory += nbytes * MEMORY_SHARE
            if goal is not None:
                total += GOAL_SHARE * price(redistribute(one, goal, s.shape, s.dtype.itemsize))
            elif one.partial:
                p = self.mesh.size(one.pending)
                twice = any((read := way.wants[k]) and read.partial for k in self.reread)
                total += (TWICE_SHARE if twice else PARTIAL_SHARE) * (nbytes * (p - 1) / p + MEETING_NBYTES)
            if goal is None and new & one.axes():
                p = self.mesh.size(new & one.axes())
                total += PARTIAL_SHARE * (nbytes * (p - 1) + MEETING_NBYTES)
        if self.flops:
            axes = [a for f, pieces in way.split.items() if f in self.read for a in axes_of(pieces)]
            memory += self.flops / self.mesh.size(axes) / FLOPS_PER_BYTE
        return Choice(way, tuple(starts), tuple(every), total + memory, total == 0, blocked)


def _flops(bound: Bound) -> tuple[set[str], int]:
    """The factors of the operands, and the floating-point operations over all of them; 0 for an op that is not a
    product: it costs what it reads and writes."""
    values = [{f for dim in value for f in dim} for value in bound.inputs]
    read = set().union(*values)
    shared = {f for f in read if sum(f in v for v in values) > 1 and f not in bound.rule.at}
    if not any(f in shared for f in bound.contracted()):
        return read, 0
    return read, 2 * math.prod(bound.sizes[f] for f in read)
