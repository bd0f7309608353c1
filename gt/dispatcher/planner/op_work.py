"""The work of an op: what each worker runs to compute its part of the results, in one way (ways.py).

That is the op on the worker's shards, or what the op's record says instead (Op.local), or two phases with an exchange
between them (Op.merge). Where a rule has windows, each worker's window of an operand is made first, by a work of its
own that several ops can share.

Law: if a shard masks an index, because it holds a part of the indexed dimension only, the index is first checked
     against the whole dimension.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gt.dispatcher.planner.blocks import Block, block_at, cat, flat, positions_in, reshape, select, sizes_of, split
from gt.dispatcher.planner.memo import memo
from gt.dispatcher.planner.redistribute import shape_at
from gt.dispatcher.planner.step_work import exchange_in_group
from gt.dispatcher.planner.ways import Frame, Way, axes_of, halo_steps, merge_step, window_at
from gt.dispatcher.planner.work import Sketch, Template, Templates, Work, single
from gt.layout import Coordinate, Runs
from gt.ops.record import ops
from gt.ops.shard import Part, first_phase, last_phase, on_shard, parts_at, shard_spec
from gt.ops.trace import OpTrace, Symbol
from gt.program import Spec


@dataclass(frozen=True)
class Windows:
    """An operand of which each worker has a window rather than a shard."""

    frames: tuple[Frame, ...]  #: of every worker of the mesh
    work: Work  #: makes windows of shards
    shapes: dict[int, tuple[int, ...]]  #: of the windows, by worker


class OpWork:
    """The works of one way to run an op, made when they are asked for."""

    def __init__(self, way: Way) -> None:
        self.way = way
        self.op, self.attrs = way.use.op, way.use.attrs.value
        self.specs, self.results = way.use.specs, way.use.results

    @cached_property
    def work(self) -> Work:
        """The work of the op itself. Windows of its operands are made before."""
        return Work(self._templates(), merge_step(self.way) if self.way.has_phases else None)

    @cached_property
    def windows(self) -> tuple[Windows | None, ...]:
        """Of each operand that has them."""
        return tuple([self._windows(k) if halos else None for k, halos in enumerate(self.way.halos)])

    def _windows(self, k: int) -> Windows:
        way, m, want = self.way, self.way.mesh, self.way.wants[k]
        assert want is not None
        shape, halos = self.specs[k].shape, way.halos[k]
        frames = tuple([tuple([window_at(way, k, halo, at) for halo in halos]) for at in m.coordinates])
        axes = [a for halo in halos for a in halo.axes if want.pieces(halo.dim)]
        holds: dict[int, Block] = {}
        reads: dict[int, Block] = {}
        for worker, at, frame in zip(m.workers, m.coordinates, frames, strict=True):
            holds[worker] = block_at(want, shape, at)
            inside = list(holds[worker])
            for d, lo, hi, border in frame:
                inside[d] = _inside(lo, hi, border, shape[d])
            reads[worker] = tuple(inside)
        by_worker = dict(zip(m.workers, frames, strict=True))
        groups = {tuple(m.workers[j] for j in m.group(axes, at)) for at in m.coordinates}
        made: Templates = {}

        def framed(worker: int, x: Symbol) -> Symbol:
            return _framed(x, reads[worker], by_worker[worker], shape)

        for workers in sorted(groups):
            made.update(exchange_in_group(workers, holds, reads, self.specs[k], framed))
        shapes = {}
        for worker in m.workers:
            sizes = list(sizes_of(reads[worker]))
            for d, lo, hi, _ in by_worker[worker]:
                sizes[d] = hi - lo
            shapes[worker] = tuple(sizes)
        return Windows(frames, Work(made, next(halo_steps(way, k), None)), shapes)

    def _templates(self) -> Templates:
        m = self.way.mesh
        if self.way.has_phases:
            return {worker: self._in_phases(worker, at) for worker, at in zip(m.workers, m.coordinates, strict=True)}
        made: Templates = {}
        known: dict[Any, Template] = {}  # workers with equal parts run the same,
        alike: dict[Coordinate, Template] = {}  # and so do those that differ only along axes that split nothing
        axes = self.way.split_axes()
        for worker, at in zip(m.workers, m.coordinates, strict=True):
            here = tuple([at[m.place[a]] for a in axes])
            if here in alike:
                made[worker] = alike[here]
                continue
            local, results, parts = self._operands(worker, at), self._results(at), self._parts(at)
            needs_parts = self.op.local is not None or not all(part.size for part in parts.values())
            key = (*local, *results, *(parts.values() if needs_parts else ()))
            if key not in known:
                known[key] = self._on_shard(local, results, parts)
            made[worker] = alike[here] = known[key]
        return made

    def _operands(self, worker: int, at: Coordinate) -> list[Spec]:
        """The specs of the operands on a worker."""
        local = []
        for s, want, windows in zip(self.specs, self.way.wants, self.windows, strict=True):
            if want is None:
                local.append(s)
            else:
                local.append(shard_spec(s, windows.shapes[worker] if windows else shape_at(want, s.shape, at)))
        return local

    def _results(self, at: Coordinate) -> list[Spec]:
        """The specs of the results on a worker."""
        return [shard_spec(s, shape_at(one, s.shape, at)) for s, one in zip(self.results, self.way.gives, strict=True)]

    def _parts(self, at: Coordinate) -> dict[str, Part]:
        """What a worker has of each factor that is split."""
        return parts_at(self.way.split, self.way.bound.sizes, self.way.mesh, at)

    def _on_shard(self, local: list[Spec], results: list[Spec], parts: dict[str, Part]) -> Template:
        trace, made = on_shard(self.op, self.way.bound, self.specs, self.attrs, parts, local, results)
        if self.op.indices is None and len(trace.code) == 1:
            return single(len(local), trace, made)
        sketch = Sketch()
        operands = [sketch.symbol(s) for s in local]
        return sketch.finish(*sketch.include(trace, self._checked(sketch, trace, operands), made))

    def _checked(self, sketch: Sketch, trace: OpTrace, operands: list[Symbol]) -> list[Symbol]:
        """The operands. Indices are checked where the trace does not check them against the whole dimension."""
        if self.op.indices is None:
            return operands
        checked = list(operands)
        for k, (n, extra) in self.op.indices(*self.specs, **self.attrs).items():
            if not operands[k].spec.weak and not self._checks(trace, k, n, extra):
                checked[k] = sketch.add(ops.in_range, (operands[k],), {"n": n, "extra": extra})
        return checked

    def _checks(self, trace: OpTrace, k: int, n: int, extra: int | None) -> bool:
        for op, args, attrs, _ in trace.code:
            if op is self.op and isinstance(args[k], Symbol) and args[k].number == k:
                specs = [a.spec if isinstance(a, Symbol) else s for a, s in zip(args, self.specs, strict=True)]
                assert op.indices is not None
                if op.indices(*specs, **attrs).get(k) == (n, extra):
                    return True
        return False

    def _in_phases(self, worker: int, at: Coordinate) -> Template:
        """What all workers of a group send comes together along a new first dimension."""
        bound, m = self.way.bound, self.way.mesh
        assert bound.merged is not None
        axes = axes_of(self.way.split[bound.merged])
        members = sorted(m.group(axes, at), key=lambda j: m.index(axes, m.coordinates[j]))
        workers = tuple(m.workers[j] for j in members)
        local, parts = self._operands(worker, at), self._parts(at)
        first, kept, sent = first_phase(self.op, bound, self.specs, self.attrs, parts, local)
        sketch = Sketch()
        operands = [sketch.symbol(x) for x in local]
        arrays = sketch.include(first, self._checked(sketch, first, operands), (*kept, *sent))
        stays, goes = arrays[: len(kept)], arrays[len(kept) :]
        theirs: list[Any] = [None] * len(goes)
        for dtype in dict.fromkeys(x.dtype for x in goes):
            mine = [i for i, x in enumerate(goes) if x.dtype is dtype]
            array = cat([flat(goes[i]) for i in mine], 0)
            sizes = (array.spec.size,) * len(workers)
            attrs = {"workers": workers, "rank": workers.index(worker), "sizes": sizes}
            rows = reshape(sketch.add(ops.all_gather, (array,), attrs), (len(workers), sizes[0]))
            for i, part in zip(mine, split(rows, [goes[i].spec.size for i in mine], 1), strict=True):
                theirs[i] = reshape(part, (len(workers), *goes[i].shape))
        last, results = last_phase(
            self.op, bound, self.specs, self.attrs, parts,
            [x.spec for x in stays], [x.spec for x in theirs], self._results(at),
        )  # fmt: skip
        return sketch.finish(*sketch.include(last, [*stays, *theirs], results))


@memo(1 << 15)
def op_work(way: Way) -> OpWork:
    """The works of a way, made once."""
    return OpWork(way)


# -- windows ---------------------------------------------------------------------------------


def _inside(lo: int, hi: int, border: str, n: int) -> Runs:
    """The positions of a dimension of size n that a window reads, each once and in order.

    >>> _inside(-1, 4, "zero", 10), _inside(-1, 4, "wrap", 10)
    (((0, 4),), ((0, 4), (9, 10)))
    """
    if border != "wrap":
        a, b = max(lo, 0), min(hi, n)
        return ((a, b),) if a < b else ()
    found: list[tuple[int, int]] = []
    for a, b in sorted(_wrapped(lo, hi, n)):
        if found and a <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], b))
        else:
            found.append((a, b))
    return tuple(found)


def _wrapped(lo: int, hi: int, n: int) -> list[tuple[int, int]]:
    """The positions of a window modulo n, in the order of the window.

    >>> _wrapped(-1, 4, 10)
    [(9, 10), (0, 4)]
    """
    runs = []
    while lo < hi:
        a = lo % n
        b = min(a + hi - lo, n)
        runs.append((a, b))
        lo += b - a
    return runs


def _framed(x: Symbol, have: Block, frame: Frame, shape: tuple[int, ...]) -> Symbol:
    """The window, made of the positions that it reads."""
    pads = [0] * (2 * x.ndim)
    for d, lo, hi, border in frame:
        if border == "wrap":
            places = []
            for run in _wrapped(lo, hi, shape[d]):
                (inner,) = positions_in((run,), have[d])
                places.append(inner)
            x = select(x, d, tuple(places)) if places != [(0, x.shape[d])] else x
        else:
            before = min(max(0, -lo), hi - lo)
            pads[2 * d : 2 * d + 2] = before, hi - lo - before - x.shape[d]
    zero = False if x.dtype.name == "bool" else 0
    made = ops.pad(x, zero, pads=tuple(pads)) if any(pads) else x
    assert isinstance(made, Symbol)
    return made
