"""The work of a step between layouts (redistribute.py): what each worker runs to bring a tensor from one to the next.

A collective is one instruction on a flat array. Cutting, joining and casting around it are ordinary ops.

Law 1: all workers of a group derive by the same computation who sends what to whom, so that both ends agree.
Law 2: 16-bit sums are added in float32. A max or min of floats carries a flag where a NaN was, because reductions on
       the wire lose it on some workers.
Law 3: nothing is sent that is not missing, and a group does not meet to exchange nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gt import dtypes
from gt.dispatcher.planner.blocks import (
    Block,
    assembled,
    block_at,
    cat,
    common,
    elements,
    empty,
    flat,
    interleaved,
    only,
    reshape,
    sizes_of,
    split,
    take,
)
from gt.dispatcher.planner.memo import memo
from gt.dispatcher.planner.redistribute import Shape, Step
from gt.dispatcher.planner.work import BucketKey, Placed, Sketch, Templates, Work
from gt.dtypes import DType
from gt.layout import Axes, Coordinate, Layout, Mesh, largest
from gt.ops.record import ops
from gt.ops.trace import Symbol
from gt.program import Spec, spec


@memo(1 << 13)
def step_work(source: Layout, step: Step, s: Spec) -> Work:
    """One step, of a tensor of this spec."""
    bucket, wire_nbytes = None, 0
    if step.kind == "all_reduce":
        assert source.kind is not None
        dtype = wire_dtype(s.dtype)
        bucket = BucketKey(step.to.mesh, step.axes, source.kind, dtype.name)
        wire_nbytes = largest(source, s.shape) * dtype.itemsize
    return Work(step_templates(source, step, s), step, Placed(source, s), bucket, wire_nbytes)


@memo(1 << 12)
def joint_work(bucket: BucketKey, step: Step, operands: tuple[Placed, ...]) -> Work:
    """Several all-reduces as one, of operands like these before. `step`: that of the first."""
    made = {}
    for worker, at in zip(bucket.mesh.workers, bucket.mesh.coordinates, strict=True):
        sketch = Sketch()
        xs = [sketch.symbol(spec(sizes_of(block_at(one, s.shape, at)), s.dtype)) for one, s in operands]
        forms = [wire_form(bucket.kind, s.dtype) for _, s in operands]
        arrays = [form.encode(x) for x, form in zip(xs, forms, strict=True)]
        y = _all_reduced(cat(arrays, 0), bucket.kind, group_of(bucket.mesh, bucket.axes, at))
        parts = split(y, [array.spec.size for array in arrays], 0)
        results = [form.decode(part, x.shape) for part, x, form in zip(parts, xs, forms, strict=True)]
        made[worker] = sketch.finish(*results)
    return Work(made, step)


@memo(1 << 12)
def scatter_works(source: Layout, step: Step, s: Spec) -> tuple[Work, Work]:
    """A reduce-scatter in two works: workers exchange addends, and each adds up those of its part. They compute
    something else in between."""
    m, kind = source.mesh, source.kind
    assert kind is not None
    first, last = {}, {}
    for worker, at in zip(m.workers, m.coordinates, strict=True):
        have, want = block_at(source, s.shape, at), block_at(step.to, s.shape, at)
        sketch = Sketch()
        sent = _scattered(sketch.symbol(spec(sizes_of(have), s.dtype)), step, at, have, s)
        first[worker] = sketch.finish(sent)
        sketch = Sketch()
        last[worker] = sketch.finish(_added(sketch.symbol(sent.spec), kind, want, s.dtype))
    return Work(first, step, Placed(source, s)), Work(last)


def step_templates(source: Layout, step: Step, s: Spec) -> Templates:
    """What the workers run for one step."""
    if step.kind == "permute":
        return _permuted(source, step.to, step.axes, s)
    m = source.mesh
    blocks = [(block_at(source, s.shape, at), block_at(step.to, s.shape, at)) for at in m.coordinates]
    made = {}
    # A worker may have all of a dimension that others cut, if the dimension is small.
    cut = [d for d in range(s.ndim) if any(a[d] != b[d] for a, b in blocks)] if step.kind == "slice" else []
    for worker, at, (have, want) in zip(m.workers, m.coordinates, blocks, strict=True):
        if step.kind == "slice":
            sketch = Sketch()
            x = sketch.symbol(spec(sizes_of(have), s.dtype))
            made[worker] = sketch.finish(take(x, have, want, cut))
        else:
            sketch, y = step_at(source, step, s, at)
            made[worker] = sketch.finish(y)
    return made


def step_at(source: Layout, step: Step, s: Spec, at: Coordinate) -> tuple[Sketch, Symbol]:
    """What the worker at a coordinate does for a step, and its result. Not for a permute, which every group does at
    once."""
    sketch = Sketch()
    have, want = block_at(source, s.shape, at), block_at(step.to, s.shape, at)
    x = sketch.symbol(spec(sizes_of(have), s.dtype))
    if step.kind == "slice":
        return sketch, take(x, have, want, [d for d in range(s.ndim) if have[d] != want[d]])
    return sketch, _step(x, source, step, at, have, want, s)


def _step(x: Symbol, source: Layout, step: Step, at: Coordinate, have: Block, want: Block, s: Spec) -> Symbol:
    m = source.mesh
    match step.kind:
        case "partial":
            new = [a for a in step.to.pending if a not in source.pending]
            first = step.to.kind != "sum" or all(at[m.place[a]] == 0 for a in new)
            # A view, where returning x would do, so that all workers number their values alike.
            return only(ops.reshape(x, shape=x.shape)) if first else empty(x.trace, s.dtype.name, x.shape)
        case "all_reduce":
            assert source.kind is not None
            form = wire_form(source.kind, s.dtype)
            total = _all_reduced(form.encode(x), source.kind, group_of(m, step.axes, at))
            return form.decode(total, x.shape)
        case "reduce_scatter":
            assert source.kind is not None
            addends = _scattered(x, step, at, have, s)
            return _added(addends, source.kind, want, s.dtype)
        case "all_gather":
            group = group_of(m, step.axes, at)
            parts = [block_at(source, s.shape, m.coordinates[j]) for j in m.group(step.axes, at)]
            return _all_gathered(x, want, parts, group)
        case "all_to_all":
            group, members = group_of(m, step.axes, at), m.group(step.axes, at)
            holds = [block_at(source, s.shape, m.coordinates[j]) for j in members]
            wants = [block_at(step.to, s.shape, m.coordinates[j]) for j in members]
            sends, takes = [common(have, w) for w in wants], [common(h, want) for h in holds]
            return exchanged(x, have, want, sends, takes, group)
    raise AssertionError(f"no step of kind {step.kind}")


class Members(NamedTuple):
    """The workers that meet in a collective, as one of them sees it."""

    workers: tuple[int, ...]
    rank: int  #: which of them this one is


def group_of(m: Mesh, axes: Axes, at: Coordinate) -> Members:
    members = m.group(axes, at)
    return Members(tuple(m.workers[j] for j in members), members.index(m.coordinates.index(at)))


# -- reductions ------------------------------------------------------------------------------


class WireForm(NamedTuple):
    """How a tensor becomes a flat array that can be reduced on the wire, and a tensor again."""

    encode: Callable[[Symbol], Symbol]
    decode: Callable[[Symbol, Shape], Symbol]


def wire_dtype(dtype: DType) -> DType:
    """The dtype in which values of this dtype are reduced."""
    if dtype.is_complex:
        return dtype.to_real()
    if dtype.is_floating_point:
        return dtypes.float32 if dtype.itemsize == 2 else dtype
    if dtype is dtypes.bool_:
        return dtypes.uint8
    return dtypes.int32 if dtype is dtypes.int16 else dtype


def wire_form(kind: str, dtype: DType) -> WireForm:
    """The form of tensors of this dtype in a reduction of this kind: Law 2."""
    width = wire_dtype(dtype)
    if dtype.is_complex:
        return WireForm(
            lambda x: flat(ops.view_as_real(x)), lambda y, shape: only(ops.view_as_complex(reshape(y, (*shape, 2))))
        )
    if dtype.is_floating_point and kind != "sum":
        neutral = -math.inf if kind == "max" else math.inf

        def flagged(x: Symbol) -> Symbol:
            x = cast(flat(x), width)
            nan = only(ops.isnan(x))
            flag = cast(nan, width)
            return cat([only(ops.where(nan, neutral, x)), flag if kind == "max" else only(ops.neg(flag))], 0)

        def unflagged(y: Symbol, shape: Shape) -> Symbol:
            values, flags = split(y, [y.spec.size // 2] * 2, 0)
            nan = only(ops.ne(flags, 0.0))
            return cast(reshape(only(ops.where(nan, math.nan, values)), shape), dtype)

        return WireForm(flagged, unflagged)
    return WireForm(lambda x: cast(flat(x), width), lambda y, shape: cast(reshape(y, shape), dtype))


def cast(x: Symbol, dtype: DType) -> Symbol:
    return x if x.dtype is dtype else only(ops.cast(x, dtype=dtype.name))


def _all_reduced(x: Symbol, kind: str, group: Members) -> Symbol:
    return only(ops.all_reduce(x, workers=group.workers, rank=group.rank, kind=kind)) if x.spec.size else x


def _scattered(x: Symbol, step: Step, at: Coordinate, have: Block, s: Spec) -> Symbol:
    """Each member receives all members' addends of its part, one after the other."""
    m = step.to.mesh
    group = group_of(m, step.axes, at)
    parts = [block_at(step.to, s.shape, m.coordinates[j]) for j in m.group(step.axes, at)]
    if not elements(have):
        return flat(x)
    order = interleaved(have, parts)
    if order is None:
        sends = [elements(p) for p in parts]
        array = cat([flat(take(x, have, p)) for p in parts if elements(p)], 0)
    else:
        sends, array = order.lengths(), order.to_parts(x)
    takes = (elements(parts[group.rank]),) * len(parts)
    return only(ops.all_to_all(array, workers=group.workers, rank=group.rank, sends=tuple(sends), takes=takes))


def _added(addends: Symbol, kind: str, want: Block, dtype: DType) -> Symbol:
    """The sum, max or min of the addends of a block."""
    mine = elements(want)
    if not mine:
        return reshape(addends, sizes_of(want))
    rows = reshape(addends, (addends.spec.size // mine, mine))
    if kind == "sum":
        rows = cast(rows, dtypes.float32) if dtype.is_floating_point and dtype.itemsize == 2 else rows
        total = only(ops.sum(rows, dims=(0,), keepdim=False))
    else:
        rows = cast(rows, dtypes.uint8) if dtype is dtypes.bool_ else rows
        total = only((ops.amax if kind == "max" else ops.amin)(rows, dims=(0,), keepdim=False))
    return reshape(cast(total, dtype), sizes_of(want))


# -- moves -----------------------------------------------------------------------------------


def _all_gathered(x: Symbol, want: Block, parts: Sequence[Block], group: Members) -> Symbol:
    sizes = tuple(elements(p) for p in parts)
    if not sum(sizes):
        return reshape(x, sizes_of(want))
    got = only(ops.all_gather(flat(x), workers=group.workers, rank=group.rank, sizes=sizes))
    order = interleaved(want, parts)
    if order is not None:
        return order.from_parts(got)
    return assembled(_cut(got, parts), want)


def _cut(x: Symbol, parts: Sequence[Block | None]) -> list[tuple[Block, Symbol]]:
    """The blocks out of a flat array that has them one after the other."""
    there = [p for p in parts if p is not None and elements(p)]
    if not there:
        return []
    cuts = split(x, [elements(p) for p in there], 0)
    return [(p, reshape(part, sizes_of(p))) for p, part in zip(there, cuts, strict=True)]


def exchanged(
    x: Symbol, have: Block | None, want: Block | None, sends: Sequence[Block | None], takes: Sequence[Block | None],
    group: Members,
) -> Symbol:  # fmt: skip
    """The block that this worker wants, out of blocks that the members have for it. It sends the block `sends[j]` to
    member j, and receives `takes[j]` from it. A worker that holds nothing passes an empty array for x, and one
    that wants nothing gets an empty array."""
    workers, rank = group
    out = interleaved(have, sends) if have is not None else None
    back = interleaved(want, takes) if want is not None else None
    if out is not None and back is not None and elements(sends[rank]) == elements(takes[rank]):
        got = ops.all_to_all(
            out.to_parts(x), workers=workers, rank=rank, sends=tuple(out.lengths()), takes=tuple(back.lengths())
        )
        return back.from_parts(only(got))
    # What stays here does not go through the collective.
    away, come = ([None if j == rank else p for j, p in enumerate(side)] for side in (sends, takes))
    lengths = [tuple(elements(p) for p in side) for side in (away, come)]
    parts = [flat(take(x, have, p)) for p in away if p is not None and have is not None and elements(p)]
    array = cat(parts, 0) if parts else empty(x.trace, x.dtype.name)
    got = only(ops.all_to_all(array, workers=workers, rank=rank, sends=lengths[0], takes=lengths[1]))
    if want is None:
        return got
    if not elements(want):
        return empty(x.trace, x.dtype.name, sizes_of(want))
    parts_here = _cut(got, come)
    mine = takes[rank]
    if mine is not None and elements(mine):
        assert have is not None
        parts_here.append((mine, take(x, have, mine)))
    return assembled(parts_here, want)


def _permuted(source: Layout, target: Layout, axes: Axes, s: Spec) -> Templates:
    """Sends between any two workers: on one mesh within the groups of these axes, else among all of both meshes."""
    a, b = source.mesh, target.mesh
    holds = {w: block_at(source, s.shape, at) for w, at in zip(a.workers, a.coordinates, strict=True)}
    wants = {w: block_at(target, s.shape, at) for w, at in zip(b.workers, b.coordinates, strict=True)}
    if a is b:
        groups = {tuple(a.workers[j] for j in a.group(axes, at)) for at in a.coordinates}
    else:
        groups = {tuple(sorted({*a.workers, *b.workers}))}
    made: Templates = {}
    for workers in sorted(groups):
        made.update(exchange_in_group(workers, holds, wants, s))
    return made


def exchange_in_group(
    workers: tuple[int, ...], holds: dict[int, Block], wants: dict[int, Block], s: Spec,
    finish: Callable[[int, Symbol], Symbol] = lambda worker, x: x,
) -> Templates:  # fmt: skip
    """What the workers of one group run so that each gets the block that it wants, out of those that they hold."""
    table: dict[tuple[int, int], Block] = {}
    for j, taker in enumerate(workers):
        if taker in wants:
            table.update({(i, j): common(holds[workers[i]], wants[taker]) for i in _sources(workers, holds, taker)})
    meets = any(i != j and elements(block) for (i, j), block in table.items())
    made = {}
    for k, worker in enumerate(workers):
        sketch = Sketch()
        have, want = holds.get(worker), wants.get(worker)
        x = sketch.symbol(spec(sizes_of(have), s.dtype)) if have is not None else empty(sketch, s.dtype.name)
        if meets:
            sends = [table.get((k, j)) for j in range(len(workers))]
            takes = [table.get((i, k)) for i in range(len(workers))]
            y = exchanged(x, have, want, sends, takes, Members(workers, k))
        elif want is not None:
            is_here = have is not None and elements(want)
            y = take(x, have or (), want) if is_here else empty(sketch, s.dtype.name, sizes_of(want))
        made[worker] = sketch.finish(finish(worker, y)) if want is not None else sketch.finish()
    return made


def _sources(workers: tuple[int, ...], holds: dict[int, Block], taker: int) -> list[int]:
    """The members that a worker takes each block from: itself if it has it, else one that does. Different takers use
    different ones."""
    owners: dict[Block, list[int]] = {}
    for i, worker in enumerate(workers):
        if worker in holds and elements(holds[worker]):
            owners.setdefault(holds[worker], []).append(i)
    me = workers.index(taker)
    return [me if me in mine else mine[me * len(mine) // len(workers)] for mine in owners.values()]
