"""What each worker runs to bring a tensor from one layout to another: a template per worker for each step.

A collective is one instruction on a flat array; cutting, joining and casting around it are ordinary ops.

Law 1: the workers of a group find out by the same computation who sends what to whom, so both ends agree.
Law 2: 16-bit sums are added in float32. A max or min of floats carries a flag that tells where a NaN was: reductions
       on the wire lose it on some workers.
Law 3: nothing is sent where nobody lacks anything, and no group meets to exchange nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from gt import dtypes
from gt.dispatcher.planner.blocks import (
    Block,
    amount,
    assembled,
    block_at,
    cat,
    common,
    elements,
    empty,
    flat,
    pieces,
    reshaped,
    sizes_of,
    take,
    turns,
)
from gt.dispatcher.planner.redistribute import Shape, Step
from gt.dispatcher.planner.template import Sketch, Template
from gt.dtypes import DType
from gt.layout import Axes, Coordinate, Layout, Mesh
from gt.ops.record import ops
from gt.ops.trace import Symbol
from gt.program import Spec, spec

#: By worker.
Templates = dict[int, Template]


def step_templates(source: Layout, step: Step, s: Spec) -> Templates:
    """What the workers run for one step of `redistribute`, of a tensor of this spec."""
    if step.kind == "permute":
        return _permute(source, step.to, step.axes, s)
    m = source.mesh
    blocks = [(block_at(source, s.shape, at), block_at(step.to, s.shape, at)) for at in m.coordinates]
    made = {}
    # Some worker may have all of a dimension that others cut, if that is small.
    cut = [d for d in range(s.ndim) if any(a[d] != b[d] for a, b in blocks)] if step.kind == "slice" else []
    for worker, at, (have, want) in zip(m.workers, m.coordinates, blocks, strict=True):
        sketch = Sketch()
        x = sketch.symbol(spec(sizes_of(have), s.dtype))
        if step.kind == "slice":
            made[worker] = sketch.finish(take(x, have, want, cut))
        else:
            made[worker] = sketch.finish(_step(x, source, step, at, have, want, s))
    return made


def _step(x: Symbol, source: Layout, step: Step, at: Coordinate, have: Block, want: Block, s: Spec) -> Symbol:
    m = source.mesh
    match step.kind:
        case "partial":
            new = [a for a in step.to.pending if a not in source.pending]
            first = step.to.kind != "sum" or all(at[m.place[a]] == 0 for a in new)
            # A view, where nothing would do: so that all workers number what they make alike.
            return _sym(ops.reshape(x, shape=x.shape)) if first else empty(x.trace, s.dtype.name, x.shape)
        case "all_reduce":
            assert source.kind is not None
            group = group_of(m, step.axes, at)
            sent, back = wire(source.kind, s.dtype)
            return back(_reduced(sent(x), source.kind, group), x.shape)
        case "reduce_scatter":
            assert source.kind is not None
            group = group_of(m, step.axes, at)
            parts = [block_at(step.to, s.shape, m.coordinates[j]) for j in m.group(step.axes, at)]
            return _scattered(x, source.kind, have, want, parts, group)
        case "all_gather":
            group = group_of(m, step.axes, at)
            parts = [block_at(source, s.shape, m.coordinates[j]) for j in m.group(step.axes, at)]
            return _gathered(x, want, parts, group)
        case "all_to_all":
            group, members = group_of(m, step.axes, at), m.group(step.axes, at)
            holds = [block_at(source, s.shape, m.coordinates[j]) for j in members]
            wants = [block_at(step.to, s.shape, m.coordinates[j]) for j in members]
            sends, takes = [common(have, w) for w in wants], [common(h, want) for h in holds]
            return exchanged(x, have, want, sends, takes, group)
    raise AssertionError(f"no step of kind {step.kind}")


#: The workers of a group in order, and which of them this one is.
Group = tuple[tuple[int, ...], int]


def group_of(m: Mesh, axes: Axes, at: Coordinate) -> Group:
    members = m.group(axes, at)
    return tuple(m.workers[j] for j in members), members.index(m.coordinates.index(at))


# -- reductions ------------------------------------------------------------------------------

Sent = Callable[[Symbol], Symbol]
Back = Callable[[Symbol, Shape], Symbol]


def wire_dtype(kind: str, dtype: DType) -> DType:
    """The dtype in which values of this dtype are reduced."""
    if dtype.is_complex:
        return dtype.to_real()
    if dtype.is_floating_point:
        return dtypes.float32 if dtype.itemsize == 2 else dtype
    if dtype is dtypes.bool_:
        return dtypes.uint8
    return dtypes.int32 if dtype is dtypes.int16 else dtype


def wire(kind: str, dtype: DType) -> tuple[Sent, Back]:
    """How a value becomes a flat array that can be reduced on the wire, and what comes back a value again."""
    width = wire_dtype(kind, dtype)
    if dtype.is_complex:

        def pairs(x: Symbol) -> Symbol:
            return flat(ops.view_as_real(x))

        return pairs, lambda y, shape: _sym(ops.view_as_complex(reshaped(y, (*shape, 2))))
    if dtype.is_floating_point and kind != "sum":
        low = -math.inf if kind == "max" else math.inf

        def flagged(x: Symbol) -> Symbol:
            x = cast(flat(x), width)
            nan = _sym(ops.isnan(x))
            flag = cast(nan, width)
            return cat([_sym(ops.where(nan, low, x)), flag if kind == "max" else _sym(ops.neg(flag))], 0)

        def unflagged(y: Symbol, shape: Shape) -> Symbol:
            values, flags = pieces(y, [y.spec.size // 2] * 2, 0)
            nan = _sym(ops.ne(flags, 0.0))
            return cast(reshaped(_sym(ops.where(nan, math.nan, values)), shape), dtype)

        return flagged, unflagged
    return lambda x: cast(flat(x), width), lambda y, shape: cast(reshaped(y, shape), dtype)


def cast(x: Symbol, dtype: DType) -> Symbol:
    return x if x.dtype is dtype else _sym(ops.cast(x, dtype=dtype.name))


def _sym(made: Any) -> Symbol:
    assert isinstance(made, Symbol)
    return made


def _reduced(x: Symbol, kind: str, group: Group) -> Symbol:
    return _sym(ops.all_reduce(x, workers=group[0], rank=group[1], kind=kind)) if x.spec.size else x


def joint_templates(mesh: Mesh, axes: Axes, kind: str, members: tuple[tuple[Layout, Spec], ...]) -> Templates:
    """Several all-reduces as one: of tensors that lie like this before."""
    made = {}
    for worker, at in zip(mesh.workers, mesh.coordinates, strict=True):
        sketch = Sketch()
        xs = [sketch.symbol(spec(sizes_of(block_at(one, s.shape, at)), s.dtype)) for one, s in members]
        ways = [wire(kind, s.dtype) for _, s in members]
        arrays = [sent(x) for x, (sent, _) in zip(xs, ways, strict=True)]
        y = _reduced(cat(arrays, 0), kind, group_of(mesh, axes, at))
        parts = pieces(y, [array.spec.size for array in arrays], 0)
        results = [back(part, x.shape) for part, x, (_, back) in zip(parts, xs, ways, strict=True)]
        made[worker] = sketch.finish(*results)
    return made


def _scattered(x: Symbol, kind: str, have: Block, want: Block, parts: Sequence[Block], group: Group) -> Symbol:
    """Each member gets all members' addends of its part, and adds them up itself."""
    if not elements(have):
        return reshaped(x, sizes_of(want))
    seen = turns(have, parts)
    if seen is None:
        sends = [elements(p) for p in parts]
        array = cat([flat(take(x, have, p)) for p in parts if elements(p)], 0)
    else:
        sends, array = seen.lengths(), seen.apart(x)
    mine, count = elements(want), len(parts)
    got = _sym(ops.all_to_all(array, workers=group[0], rank=group[1], sends=tuple(sends), takes=(mine,) * count))
    rows = reshaped(got, (count, mine))
    dtype = x.dtype
    if kind == "sum":
        rows = cast(rows, dtypes.float32) if dtype.is_floating_point and dtype.itemsize == 2 else rows
        total = _sym(ops.sum(rows, dims=(0,), keepdim=False))
    else:
        rows = cast(rows, dtypes.uint8) if dtype is dtypes.bool_ else rows
        total = _sym((ops.amax if kind == "max" else ops.amin)(rows, dims=(0,), keepdim=False))
    return reshaped(cast(total, dtype), sizes_of(want))


# -- moves -----------------------------------------------------------------------------------


def _gathered(x: Symbol, want: Block, parts: Sequence[Block], group: Group) -> Symbol:
    sizes = tuple(elements(p) for p in parts)
    if not sum(sizes):
        return reshaped(x, sizes_of(want))
    got = _sym(ops.all_gather(flat(x), workers=group[0], rank=group[1], sizes=sizes))
    seen = turns(want, parts)
    if seen is not None:
        return seen.together(got)
    return assembled(_cut(got, parts), want)


def _cut(x: Symbol, parts: Sequence[Block | None]) -> list[tuple[Block, Symbol]]:
    """The blocks that lie one behind the other in a flat array."""
    there = [p for p in parts if p is not None and elements(p)]
    if not there:
        return []
    cuts = pieces(x, [elements(p) for p in there], 0)
    return [(p, reshaped(part, sizes_of(p))) for p, part in zip(there, cuts, strict=True)]


def exchanged(
    x: Symbol, have: Block | None, want: Block | None, sends: Sequence[Block | None], takes: Sequence[Block | None],
    group: Group,
) -> Symbol:  # fmt: skip
    """The block that this worker wants, out of those that the members have for it: `sends` of its own goes to each of
    them, `takes` comes from each. A worker that holds nothing has an empty array for x; one that wants nothing gets
    one."""
    workers, rank = group
    out = turns(have, sends) if have is not None else None
    back = turns(want, takes) if want is not None else None
    if out is not None and back is not None and amount(sends[rank]) == amount(takes[rank]):
        got = ops.all_to_all(
            out.apart(x), workers=workers, rank=rank, sends=tuple(out.lengths()), takes=tuple(back.lengths())
        )
        return back.together(_sym(got))
    # What stays here need not go through the buffers.
    away, come = ([None if j == rank else p for j, p in enumerate(side)] for side in (sends, takes))
    lengths = [tuple(amount(p) for p in side) for side in (away, come)]
    parts = [flat(take(x, have, p)) for p in away if p is not None and have is not None and elements(p)]
    array = cat(parts, 0) if parts else empty(x.trace, x.dtype.name)
    got = _sym(ops.all_to_all(array, workers=workers, rank=rank, sends=lengths[0], takes=lengths[1]))
    if want is None:
        return got
    if not elements(want):
        return empty(x.trace, x.dtype.name, sizes_of(want))
    pieces = _cut(got, come)
    mine = takes[rank]
    if mine is not None and elements(mine):
        assert have is not None
        pieces.append((mine, take(x, have, mine)))
    return assembled(pieces, want)


def _permute(source: Layout, target: Layout, axes: Axes, s: Spec) -> Templates:
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
        made.update(group_exchange(workers, holds, wants, s))
    return made


def group_exchange(
    workers: tuple[int, ...], holds: dict[int, Block], wants: dict[int, Block], s: Spec,
    finish: Callable[[int, Symbol], Symbol] = lambda worker, x: x,
) -> Templates:  # fmt: skip
    """What the workers of one group run so that each has what it wants of what they hold."""
    table: dict[tuple[int, int], Block] = {}
    for j, taker in enumerate(workers):
        if taker in wants:
            table.update({(i, j): common(holds[workers[i]], wants[taker]) for i in _sources(workers, holds, taker)})
    talk = any(i != j and elements(block) for (i, j), block in table.items())
    made = {}
    for k, worker in enumerate(workers):
        sketch = Sketch()
        have, want = holds.get(worker), wants.get(worker)
        x = sketch.symbol(spec(sizes_of(have), s.dtype)) if have is not None else empty(sketch, s.dtype.name)
        if talk:
            sends = [table.get((k, j)) for j in range(len(workers))]
            takes = [table.get((i, k)) for i in range(len(workers))]
            y = exchanged(x, have, want, sends, takes, (workers, k))
        elif want is not None:
            lies = have is not None and elements(want)
            y = take(x, have or (), want) if lies else empty(sketch, s.dtype.name, sizes_of(want))
        made[worker] = sketch.finish(finish(worker, y)) if want is not None else sketch.finish()
    return made


def _sources(workers: tuple[int, ...], holds: dict[int, Block], taker: int) -> list[int]:
    """Whom a worker takes each block from: itself if it has it, else one of those who do, spread among the takers."""
    owners: dict[Block, list[int]] = {}
    for i, worker in enumerate(workers):
        if worker in holds and elements(holds[worker]):
            owners.setdefault(holds[worker], []).append(i)
    me = workers.index(taker)
    return [me if me in mine else mine[me * len(mine) // len(workers)] for mine in owners.values()]
