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

from gt.dispatcher.planner.redistribute import Step, cost, count, overlap, redistribute
from gt.errors import GTError
from gt.layout import Axes, Layout, Mesh, Pieces, bounds, cut, held, joined, largest, layout, local_shape
from gt.ops.record import Op
from gt.ops.shard import first_phase, parts_at, shard_spec
from gt.ops.sharding import Bound, Dim, added, bind, groups, has
from gt.program import Spec

#: Reading or writing a byte of memory, in bytes that travel between workers: about what a network costs more.
MEMORY_SHARE = 1 / 16
#: A partial result has to be reduced later, but it may be added to another one first, and both reduced at once.
PARTIAL_SHARE = 0.85


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
    steps: tuple[tuple[Step, ...], ...]  #: of each operand; the exchange of an op in two phases is with the first
    cost: float
    #: Whether an operand was gathered because no rule covers its split.
    gathered: bool


def choose(
    op: Op, specs: Sequence[Spec], results: Sequence[Spec], attrs: dict[str, Any], have: Sequence[Layout | None]
) -> Choice | None:
    """The cheapest way to run an op on operands that lie like this (None: numbers); None if it is to be expanded.
    It runs on the mesh of its largest operand."""
    placed = [(-s.nbytes, k, one.mesh) for k, (s, one) in enumerate(zip(specs, have, strict=True)) if one is not None]
    if not placed:
        raise GTError(f"{op.name}: no operand says on which mesh it shall run")
    mesh = min(placed)[2]
    expands = op.parts is not None or op.compose is not None
    bound = bind(op, specs, results, attrs)
    if not bound.covered and expands and any(one is not None and not one.is_whole for one in have):
        return None
    seen = _Seen(op, bound, specs, attrs, have, mesh)
    blocked = seen.blocked()
    if expands and blocked:
        return None
    best: Choice | None = None
    for picks in itertools.product(*seen.options.values()):
        sharding = seen.built(dict(zip(seen.options, picks, strict=True)))
        if sharding is None:
            continue
        steps, price = seen.price(sharding, results)
        if best is None or price < best.cost:
            best = Choice(sharding, steps, price, bool(blocked))
        if not any(step.nbytes for mine in steps for step in mine) and not any(one.partial for one in sharding.gives):
            break  # nothing moves, nothing is owed: no other way is better
    assert best is not None  # dropping every axis is always possible
    return best


# -- what each axis can do -------------------------------------------------------------------

#: ("split", factor) or ("keep", group, kind) or ("drop",)
Pick = tuple[Any, ...]


class _Seen:
    """The layouts of an op's operands, in the words of its rule."""

    def __init__(
        self, op: Op, bound: Bound, specs: Sequence[Spec], attrs: dict[str, Any], have: Sequence[Layout | None],
        mesh: Mesh,
    ) -> None:  # fmt: skip
        self.bound, self.mesh, self.have, self.specs, self.op, self.attrs = bound, mesh, have, specs, op, attrs
        self.groups = groups(op, specs, attrs)
        #: Pieces of factors as the operands have them, the largest operand first.
        self.found: list[tuple[str, Pieces]] = []
        self.options: dict[str, list[Pick]] = {}
        order = sorted(range(len(specs)), key=lambda k: -specs[k].size)
        for k in order:
            one = have[k]
            if one is not None and one.mesh is mesh:  # what lies on another mesh comes over as it is wanted
                for d, dim in enumerate(bound.inputs[k]):
                    self._see_dim(one.pieces(d), dim, (k, d) in bound.rule.windows)
                for a, kind in one.partial:
                    self._see_partial(k, a, kind)
        for picks in self.options.values():
            picks.append(("drop",))

    def _see_dim(self, pieces: Pieces, dim: Dim, window: bool) -> None:
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

    def _see_partial(self, k: int, axis: str, kind: str) -> None:
        for group in self.groups if kind == "sum" else ():
            if k in group:
                self._offer(axis, ("keep", group, kind))
        if self.op.moves:
            everyone = tuple(i for i, s in enumerate(self.specs) if not s.weak)
            self._offer(axis, ("keep", everyone, kind))
        # Reduced on the way to a split: half the bytes of reducing it everywhere.
        for dim in self.bound.inputs[k]:
            for f in dim:
                if f not in self.bound.whole and self.bound.sizes[f] >= self.mesh.sizes[axis]:
                    self._offer(axis, ("split", f))

    def _offer(self, axis: str, pick: Pick) -> None:
        picks = self.options.setdefault(axis, [])
        if pick not in picks:
            picks.append(pick)

    def blocked(self) -> list[str]:
        """The axes that split only what must be whole."""
        return [
            a
            for a, picks in self.options.items()
            if any(p[0] == "split" and p[1] in self.bound.whole for p in picks)
            and not any(p[0] == "split" and p[1] not in self.bound.whole for p in picks)
        ]

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

    def price(self, sharding: Sharding, results: Sequence[Spec]) -> tuple[tuple[tuple[Step, ...], ...], float]:
        """The steps to the layouts that it wants; what they cost, what the op itself costs, and what a partial
        result will cost."""
        steps, total = [], 0.0
        for k, (one, s) in enumerate(zip(self.have, self.specs, strict=True)):
            want = sharding.wants[k]
            mine: tuple[Step, ...] = ()
            if one is not None and want is not None:
                mine = redistribute(one, want, s.shape, s.dtype.itemsize)
                total += cost(mine) + largest(want, s.shape) * s.dtype.itemsize * MEMORY_SHARE
                mine += tuple(halo_step(self.op, self.attrs, self.specs, sharding, k))
                total += sum(step.nbytes for step in mine if step.kind == "halo")
            steps.append(mine)
        if sharding.merges:
            merge = merge_step(self.op, self.attrs, self.specs, sharding)
            steps[0] += (merge,)
            total += merge.nbytes
        for one, s in zip(sharding.gives, results, strict=True):
            nbytes = largest(one, s.shape) * s.dtype.itemsize
            p = self.mesh.size(one.pending)
            total += nbytes * (MEMORY_SHARE + PARTIAL_SHARE * (p - 1) / p)
        return tuple(steps), total


# -- a way to run it -------------------------------------------------------------------------


def instantiate(
    op: Op, bound: Bound, specs: Sequence[Spec], attrs: dict[str, Any], mesh: Mesh, split: dict[str, Pieces],
    keep: dict[str, tuple[tuple[int, ...], str]], have: Sequence[Layout | None] | None = None,
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
    if any(len(set(kinds.values())) > 1 for kinds in (*waiting, *ends)):
        return None
    wants: list[Layout | None] = []
    halos = []
    for k, s in enumerate(specs):
        one = have[k] if have is not None else None
        mine = [
            Halo(d, dim[0], tuple(a for _, over in split[dim[0]] for a in over))
            for d, dim in enumerate(bound.inputs[k])
            if (k, d) in bound.rule.windows and dim[0] in split
        ]
        halos.append(tuple(mine))
        dims = [_pieces(bound, dim, split, mesh) for dim in bound.inputs[k]]
        for halo in mine:
            free = one is not None and one.mesh is mesh and not one.pieces(halo.dim)
            dims[halo.dim] = () if free else ((s.shape[halo.dim], halo.axes),)
        wants.append(None if s.weak else layout(mesh, dims, waiting[k]))
    gives = [
        layout(mesh, [_pieces(bound, dim, split, mesh) for dim in value], end)
        for value, end in zip(bound.outputs, ends, strict=True)
    ]
    return Sharding(bound, mesh, split, tuple(wants), tuple(halos), tuple(gives))


def _one(n: int, pieces: Pieces) -> Pieces:
    return ((n, tuple(a for _, over in pieces for a in over)),)


def _pieces(bound: Bound, dim: Dim, split: dict[str, Pieces], mesh: Mesh) -> Pieces:
    if not any(f in split for f in dim):
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
        rest = largest(want, s.shape) // max(-(-n // m.size(halo.axes)), 1)
        yield Step("halo", halo.axes, want, math.ceil(most * rest) * s.dtype.itemsize)


# -- two phases ------------------------------------------------------------------------------


def merge_step(op: Op, attrs: dict[str, Any], specs: Sequence[Spec], sharding: Sharding) -> Step:
    """The exchange between the two phases of an op: what it sends, from every part of the factor to all."""
    m, factor = sharding.mesh, sharding.bound.merged
    assert factor is not None
    axes = tuple(a for _, over in sharding.split[factor] for a in over)
    local = [
        s if want is None else shard_spec(s, local_shape(want, s.shape, m.coordinates[-1]))
        for s, want in zip(specs, sharding.wants, strict=True)
    ]
    parts = parts_at(sharding.split, sharding.bound.sizes, m, m.coordinates[-1])
    _, _, sent = first_phase(op, sharding.bound, specs, attrs, parts, local)
    return Step("merge", axes, sharding.gives[0], sum(x.spec.nbytes for x in sent) * (m.size(axes) - 1))
