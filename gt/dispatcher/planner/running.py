"""What each worker runs for one use of an op: the op on its shards, or what its record says instead.

`Use` is one use of an op on operands that lie in certain layouts, with all that was decided about it. It is made once
and remembered: layers repeat.

Law: an index that a shard masks (it answers for a part of the indexed dimension) is checked against the whole first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gt.dispatcher.planner.actions import Work
from gt.dispatcher.planner.blocks import Block, block_at, cat, counted, flat, pieces, reshaped, select, sizes_of
from gt.dispatcher.planner.choose import Choice, needed
from gt.dispatcher.planner.moving import Templates, group_exchange
from gt.dispatcher.planner.redistribute import LOCAL, shape_at
from gt.dispatcher.planner.template import Sketch, Template, single
from gt.layout import Coordinate, Runs
from gt.ops.record import Op, ops
from gt.ops.shard import Part, first_phase, last_phase, on_shard, parts_at, shard_spec
from gt.ops.trace import Symbol, Trace
from gt.program import Spec

#: Of one worker, for each dimension that is a window: (dimension, lo, hi, border).
Frame = tuple[tuple[int, int, int, str], ...]


@dataclass(frozen=True)
class Windows:
    """An operand of which each worker has a window rather than a shard."""

    frames: tuple[Frame, ...]  #: of every worker of the mesh
    work: Work
    shapes: dict[int, tuple[int, ...]]  #: of the windows, by worker


class Use:
    """See the file's header."""

    def __init__(
        self, op: Op, specs: Sequence[Spec], results: Sequence[Spec], attrs: dict[str, Any], choice: Choice
    ) -> None:
        self.op, self.specs, self.results, self.attrs, self.choice = op, specs, tuple(results), attrs, choice
        self.wants, self.gives = choice.sharding.wants, choice.sharding.gives
        self.moves = any(step.kind not in LOCAL for steps in choice.steps for step in steps)
        self.has_windows = any(choice.sharding.halos)

    @cached_property
    def windows(self) -> tuple[Windows | None, ...]:
        """Of each operand that has them."""
        return tuple(self._windows(k) if halos else None for k, halos in enumerate(self.choice.sharding.halos))

    def _windows(self, k: int) -> Windows:
        s, m, want = self.choice.sharding, self.choice.sharding.mesh, self.wants[k]
        assert want is not None
        shape = self.specs[k].shape
        frames: list[Frame] = []
        for at in m.coordinates:
            spans = [(h.dim, *needed(self.op, self.attrs, self.specs, s, k, h, at)) for h in s.halos[k]]
            frames.append(tuple(spans))
        axes = [a for h in s.halos[k] for a in h.axes if want.pieces(h.dim)]
        holds: dict[int, Block] = {}
        seen: dict[int, Block] = {}
        by_worker: dict[int, Frame] = {}
        for worker, at, frame in zip(m.workers, m.coordinates, frames, strict=True):
            holds[worker] = block_at(want, shape, at)
            inside = list(holds[worker])
            for d, lo, hi, border in frame:
                inside[d] = _inside(lo, hi, border, shape[d])
            seen[worker], by_worker[worker] = tuple(inside), frame
        groups = {tuple(m.workers[j] for j in m.group(axes, at)) for at in m.coordinates}
        made: Templates = {}

        def framed(worker: int, x: Symbol) -> Symbol:
            return _framed(x, seen[worker], by_worker[worker], shape)

        for workers in sorted(groups):
            made.update(group_exchange(workers, holds, seen, self.specs[k], framed))
        shapes = {}
        for worker in m.workers:
            sizes = list(sizes_of(seen[worker]))
            for d, lo, hi, _ in by_worker[worker]:
                sizes[d] = hi - lo
            shapes[worker] = tuple(sizes)
        step = next((step for step in self.choice.steps[k] if step.kind == "halo"), None)
        return Windows(tuple(frames), Work(made, step), shapes)

    @cached_property
    def work(self) -> Work:
        """What workers do with their operands; windows of these are made before."""
        steps = self.choice.steps
        return Work(self._templates(), next((s for s in steps[0] if s.kind == "merge"), None) if steps else None)

    def _templates(self) -> Templates:
        m = self.choice.sharding.mesh
        if self.choice.sharding.merges:
            return {worker: self._phases(worker, at) for worker, at in zip(m.workers, m.coordinates, strict=True)}
        made: Templates = {}
        known: dict[Any, Template] = {}  # workers whose parts are equal run the same,
        alike: dict[Coordinate, Template] = {}  # and those that differ only along axes that nothing is split over do
        axes = self._splitting()
        for worker, at in zip(m.workers, m.coordinates, strict=True):
            here = tuple([at[m.place[a]] for a in axes])
            if here in alike:
                made[worker] = alike[here]
                continue
            local, results, parts = self._operands(worker, at), self._made(at), self._parts(at)
            told = self.op.local is not None or not all(part.size for part in parts.values())
            key = (*local, *results, *(parts.values() if told else ()))
            if key not in known:
                known[key] = self._plain(local, results, parts)
            made[worker] = alike[here] = known[key]
        return made

    def _splitting(self) -> list[str]:
        """The axes that some factor is split over, and so operands and results."""
        return [a for pieces in self.choice.sharding.split.values() for _, over in pieces for a in over]

    def _operands(self, worker: int, at: Coordinate) -> list[Spec]:
        local = []
        for s, want, window in zip(self.specs, self.wants, self.windows, strict=True):
            if want is None:
                local.append(s)
            else:
                local.append(shard_spec(s, window.shapes[worker] if window else shape_at(want, s.shape, at)))
        return local

    def _parts(self, at: Coordinate) -> dict[str, Part]:
        s = self.choice.sharding
        return parts_at(s.split, s.bound.sizes, s.mesh, at)

    def _made(self, at: Coordinate) -> list[Spec]:
        return [shard_spec(r, shape_at(one, r.shape, at)) for r, one in zip(self.results, self.gives, strict=True)]

    def _plain(self, local: list[Spec], made: list[Spec], parts: dict[str, Part]) -> Template:
        trace, results = on_shard(
            self.op, self.choice.sharding.bound, self.specs, self.attrs, parts, local, made
        )  # fmt: skip
        if self.op.indices is None and len(trace.code) == 1:
            return single(len(local), trace, results)
        sketch = Sketch()
        operands = [sketch.symbol(s) for s in local]
        return sketch.finish(*sketch.include(trace, self._checked(sketch, trace, operands), results))

    def _checked(self, sketch: Sketch, trace: Trace, operands: list[Symbol]) -> list[Symbol]:
        """The operands; indices among them checked, if what runs here does not check them against the whole."""
        if self.op.indices is None:
            return operands
        checked = list(operands)
        for k, (n, extra) in self.op.indices(*self.specs, **self.attrs).items():
            if not operands[k].spec.weak and not self._checks(trace, k, n, extra):
                checked[k] = sketch.add(ops.in_range, (operands[k],), {"n": n, "extra": extra})
        return checked

    def _checks(self, trace: Trace, k: int, n: int, extra: int | None) -> bool:
        for op, args, attrs, _ in trace.code:
            if op is self.op and isinstance(args[k], Symbol) and args[k].number == k:
                specs = [a.spec if isinstance(a, Symbol) else s for a, s in zip(args, self.specs, strict=True)]
                assert op.indices is not None
                if op.indices(*specs, **attrs).get(k) == (n, extra):
                    return True
        return False

    def _phases(self, worker: int, at: Coordinate) -> Template:
        """In two phases: what each worker sends comes together along a new first dimension."""
        s, m = self.choice.sharding, self.choice.sharding.mesh
        assert s.bound.merged is not None
        axes = [a for _, over in s.split[s.bound.merged] for a in over]
        members = sorted(m.group(axes, at), key=lambda j: m.index(axes, m.coordinates[j]))
        workers = tuple(m.workers[j] for j in members)
        local, parts = self._operands(worker, at), self._parts(at)
        first, kept, sent = first_phase(self.op, s.bound, self.specs, self.attrs, parts, local)
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
            rows = reshaped(sketch.add(ops.all_gather, (array,), attrs), (len(workers), sizes[0]))
            for i, part in zip(mine, pieces(rows, [goes[i].spec.size for i in mine], 1), strict=True):
                theirs[i] = reshaped(part, (len(workers), *goes[i].shape))
        last, results = last_phase(
            self.op, s.bound, self.specs, self.attrs, parts,
            [x.spec for x in stays], [x.spec for x in theirs], self._made(at),
        )  # fmt: skip
        return sketch.finish(*sketch.include(last, [*stays, *theirs], results))


# -- windows ---------------------------------------------------------------------------------


def _inside(lo: int, hi: int, border: str, n: int) -> Runs:
    """The positions that a window sees, each once and in order."""
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
    """The same positions as the window has them, counted modulo n."""
    runs = []
    while lo < hi:
        a = lo % n
        b = min(a + hi - lo, n)
        runs.append((a, b))
        lo += b - a
    return runs


def _framed(x: Symbol, have: Block, frame: Frame, shape: tuple[int, ...]) -> Symbol:
    """The window, out of the positions that it sees."""
    pads = [0] * (2 * x.ndim)
    for d, lo, hi, border in frame:
        if border == "wrap":
            places = []
            for run in _wrapped(lo, hi, shape[d]):
                (inner,) = counted((run,), have[d])
                places.append(inner)
            x = select(x, d, tuple(places)) if places != [(0, x.shape[d])] else x
        else:
            before = min(max(0, -lo), hi - lo)
            pads[2 * d : 2 * d + 2] = before, hi - lo - before - x.shape[d]
    zero = False if x.dtype.name == "bool" else 0
    made = ops.pad(x, zero, pads=tuple(pads)) if any(pads) else x
    assert isinstance(made, Symbol)
    return made
