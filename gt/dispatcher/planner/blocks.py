"""Cutting arrays into blocks and joining blocks to arrays, written in ops.

A block is a product of positions: for each dimension, the runs that belong to it. What a worker holds of a tensor is a
block, and so is what it wants, and what one worker has for another. A collective takes a flat array: the functions here
cut and join what goes in and comes out. Where the parts alternate along one dimension (`Interleaved`), one reshape and
one permute are enough.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

from gt.dispatcher.planner.memo import memo
from gt.dispatcher.planner.redistribute import Shape, count, overlap
from gt.layout import Layout, Runs, held
from gt.ops.record import ops
from gt.ops.trace import OpTrace, Symbol

Block = tuple[Runs, ...]


@memo(1 << 13)
def block_at(one: Layout, shape: Shape, at: tuple[int, ...]) -> Block:
    """The block that the worker at a coordinate holds."""
    return tuple(held(one.pieces(d), n, one.mesh, at) for d, n in enumerate(shape))


def common(a: Block, b: Block) -> Block:
    """What is in both blocks."""
    return tuple(overlap(p, q) for p, q in zip(a, b, strict=True))


def sizes_of(block: Block) -> Shape:
    return tuple(count(runs) for runs in block)


def elements(block: Block | None) -> int:
    """The number of elements; 0 of no block."""
    return 0 if block is None else math.prod(sizes_of(block))


def positions_in(part: Runs, whole: Runs) -> Runs:
    """Where positions are among those of `whole`, counted from its first one.

    >>> positions_in(((7, 9), (20, 22)), ((5, 10), (20, 30)))
    ((2, 4), (5, 7))
    """
    found: list[tuple[int, int]] = []
    base, i = 0, 0
    for lo, hi in overlap(whole, part):
        while whole[i][1] <= lo:
            base += whole[i][1] - whole[i][0]
            i += 1
        a, b = lo - whole[i][0] + base, hi - whole[i][0] + base
        if found and found[-1][1] == a:
            a = found.pop()[0]
        found.append((a, b))
    return tuple(found)


# -- small ops -------------------------------------------------------------------------------


def reshape(x: Symbol, shape: Shape) -> Symbol:
    """x in another shape; x itself if it has it."""
    return x if x.shape == shape else only(ops.reshape(x, shape=shape))


def flat(x: Symbol) -> Symbol:
    return reshape(x, (x.spec.size,))


def cat(parts: Sequence[Symbol], dim: int) -> Symbol:
    return parts[0] if len(parts) == 1 else only(ops.cat(*parts, dim=dim))


def narrow(x: Symbol, cuts: dict[int, tuple[int, int]], always: Collection[int] = ()) -> Symbol:
    """x[lo:hi] in some dimensions, and in those of `always` even if that is all of x.

    It is written as a `split`, whose sizes are attributes: a compiler sees where the cuts are. Always into three parts,
    even if one is empty, so that every worker writes the same instruction.
    """
    for d, (lo, hi) in cuts.items():
        n = x.shape[d]
        if (lo, hi) != (0, n) or d in always:
            x = split(x, [lo, hi - lo, n - hi], d)[1]
    return x


def split(x: Symbol, sizes: Sequence[int], dim: int) -> list[Symbol]:
    """x cut along one dimension."""
    made = ops.split(x, sizes=tuple(sizes), dim=dim) if len(sizes) > 1 else (x,)
    return list(made)


def only(made: Any) -> Symbol:
    """The result of an op that has one."""
    assert isinstance(made, Symbol)
    return made


def empty(trace: OpTrace, dtype: str, shape: Shape = (0,)) -> Symbol:
    """An array without elements, or one of zeros."""
    zero = False if dtype == "bool" else 0
    return only(trace.add(ops.full, (zero,), {"shape": shape, "dtype": dtype}))


def select(x: Symbol, dim: int, runs: Runs) -> Symbol:
    """These positions of one dimension, in this order."""
    n, m = x.shape[dim], len(runs)
    if m <= 1:
        return narrow(x, {dim: runs[0] if runs else (0, 0)})
    for rounds in range(m, 1, -1):  # are they the same in each of so many equal parts of the dimension?
        each, turn = n // rounds, m // rounds
        if m % rounds == 0 and n % rounds == 0 and runs[turn - 1][1] <= each and _repeats(runs, turn, each):
            shape = (*x.shape[:dim], rounds, each, *x.shape[dim + 1 :])
            part = select(reshape(x, shape), dim + 1, runs[:turn])
            total = rounds * count(runs[:turn])
            return reshape(part, (*x.shape[:dim], total, *x.shape[dim + 1 :]))
    return cat([narrow(x, {dim: run}) for run in runs], dim)


def _repeats(runs: Runs, turn: int, each: int) -> bool:
    if any(lo < 0 or hi > each for lo, hi in runs[:turn]):
        return False
    return all(runs[i] == (runs[i - turn][0] + each, runs[i - turn][1] + each) for i in range(turn, len(runs)))


def take(x: Symbol, have: Block, want: Block, always: Collection[int] = ()) -> Symbol:
    """A block out of a larger one, x. `always`: see `narrow`."""
    places = [positions_in(w, h) for w, h in zip(want, have, strict=True)]
    x = narrow(x, {d: runs[0] if runs else (0, 0) for d, runs in enumerate(places) if len(runs) <= 1}, always)
    for d, runs in enumerate(places):
        if len(runs) > 1:
            x = select(x, d, runs)
    return x


# -- many blocks, one flat array -------------------------------------------------------------


def rounds(parts: Sequence[Runs], whole: Runs) -> tuple[int, list[int]] | None:
    """If the parts alternate in the whole: how many rounds there are, and the size of each part in one round.

    >>> rounds([((0, 2), (5, 7)), ((2, 5), (7, 10))], ((0, 10),))
    (2, [2, 3])
    """
    local = [positions_in(p, whole) for p in parts]
    times = max((len(runs) for runs in local), default=0)
    if any(len(runs) not in (0, times) for runs in local):
        return None
    sizes = [runs[0][1] - runs[0][0] if runs else 0 for runs in local]
    at = 0
    for k in range(times):
        for runs, n in zip(local, sizes, strict=True):
            if n and runs[k] != (at, at + n):
                return None
            at += n
    return (max(times, 1), sizes) if at == count(whole) else None


class Interleaved:
    """A block as (before, sum of sizes, after): its parts alternate along the middle."""

    __slots__ = ("after", "before", "shape", "sizes")

    def __init__(self, before: int, sizes: list[int], after: int, shape: Shape) -> None:
        self.before, self.sizes, self.after, self.shape = before, sizes, after, shape

    def lengths(self) -> list[int]:
        """How many elements each part has."""
        return [self.before * n * self.after for n in self.sizes]

    def _even(self) -> bool:
        return len(set(self.sizes)) == 1

    def to_parts(self, x: Symbol) -> Symbol:
        """The parts, one after the other, in a flat array."""
        if self.before == 1 or sum(n > 0 for n in self.sizes) <= 1:
            return flat(x)
        if self._even():
            x = reshape(x, (self.before, len(self.sizes), self.sizes[0], self.after))
            return flat(only(ops.permute(x, dims=(1, 0, 2, 3))))
        x = reshape(x, (self.before, sum(self.sizes), self.after))
        return cat([flat(part) for part in split(x, [n for n in self.sizes if n], 1)], 0)

    def from_parts(self, x: Symbol) -> Symbol:
        """The block, out of a flat array of its parts."""
        if self.before == 1 or sum(n > 0 for n in self.sizes) <= 1:
            return reshape(x, self.shape)
        if self._even():
            x = reshape(x, (len(self.sizes), self.before, self.sizes[0], self.after))
            return reshape(only(ops.permute(x, dims=(1, 0, 2, 3))), self.shape)
        sizes = [n for n in self.sizes if n]
        parts = split(x, [self.before * n * self.after for n in sizes], 0)
        shapes = [(self.before, n, self.after) for n in sizes]
        return reshape(cat([reshape(p, s) for p, s in zip(parts, shapes, strict=True)], 1), self.shape)


def interleaved(whole: Block, parts: Sequence[Block | None]) -> Interleaved | None:
    """How the parts alternate along one dimension of a block; None if they do not, or do not have all of the others."""
    shape = sizes_of(whole)
    there = [p if p is not None and elements(p) else None for p in parts]
    different = [d for d in range(len(shape)) if any(p is not None and p[d] != whole[d] for p in there)]
    if len(different) > 1 or not shape:
        return None
    d = different[0] if different else 0
    found = rounds([p[d] if p is not None else () for p in there], whole[d])
    if found is None:
        return None
    times, sizes = found
    return Interleaved(math.prod(shape[:d]) * times, sizes, math.prod(shape[d + 1 :]), shape)


def assembled(parts: Sequence[tuple[Block, Symbol]], want: Block) -> Symbol:
    """A block out of others that tile it like a grid."""
    return _assembled(list(parts), want, 0)


def _assembled(parts: list[tuple[Block, Symbol]], want: Block, dim: int) -> Symbol:
    if dim == len(want) or len(parts) == 1:
        assert len(parts) == 1, "blocks overlap"
        return parts[0][1]
    rows: dict[Runs, list[tuple[Block, Symbol]]] = {}
    for part in parts:
        rows.setdefault(part[0][dim], []).append(part)
    order = sorted(rows)
    x = cat([_assembled(rows[runs], want, dim + 1) for runs in order], dim)
    # Each row has its runs one after the other; in the whole they may alternate.
    places, at = [], 0
    for runs in order:
        for lo, hi in runs:
            places.append((lo, at, at + hi - lo))
            at += hi - lo
    places.sort()
    merged: list[tuple[int, int]] = []
    for _, a, b in places:
        if merged and merged[-1][1] == a:
            a = merged.pop()[0]
        merged.append((a, b))
    return x if merged == [(0, at)] else select(x, dim, tuple(merged))
