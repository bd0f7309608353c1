"""The ways in which one instruction can run on a mesh, each with its price.

An option wants its operands in some layouts and gives its results in others. It is a way of the op's own rule
(gt/dispatcher/planner/ways.py), or the op expanded into others, where a factor that must be whole is split. What moves
inside an option (halos, the exchange of two phases, collectives of an expansion) is part of its price; what moves
before it is a conversion, priced by `conversion`.

Law 1: options are priced by what the last worker runs, whose shards are the largest.
Law 2: of two options with the same layouts the cheaper one is kept. No option leaves a worker without work: a factor
       is not split over more workers than it has elements.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from gt.chosen import Chosen
from gt.dispatcher.planner.decide import Decider, PlannedValue, number, state_of
from gt.dispatcher.planner.follow import choice_for
from gt.dispatcher.planner.memo import memo
from gt.dispatcher.planner.order import BUCKET_NBYTES
from gt.dispatcher.planner.redistribute import LOCAL, Step, cheapest, largest_shard, shape_at
from gt.dispatcher.planner.step_work import step_at, wire_dtype
from gt.dispatcher.planner.ways import (
    KeepPartial,
    Split,
    Use,
    Way,
    all_roles,
    bound_of,
    by_role,
    expansion_of,
    halo_steps,
    make_way,
    merge_step,
    use_of,
    window_at,
)
from gt.errors import GTError
from gt.layout import Axes, Layout, Mesh, Pieces, joined, layout
from gt.ops.shard import first_phase, last_phase, on_shard, parts_at, shard_spec
from gt.ops.sharding import Dim
from gt.ops.trace import OpTrace, Symbol, scalar_kind
from gt.program import SCALARS, Spec, spec
from gt.solver.hardware import Hardware
from gt.solver.pricing import arithmetic_us, exchanged_nbytes, use_us

#: How else than in one piece a factor is cut: by its name, the sizes of the pieces.
Forms = tuple[tuple[str, tuple[int, ...]], ...]
K = TypeVar("K", str, int)
#: At most so many options of an instruction are kept, the cheapest.
MOST_OPTIONS = 400


class Cost(NamedTuple):
    """Time on a worker, and the bytes that it receives."""

    compute_us: float = 0.0
    exchange_us: float = 0.0
    received_nbytes: float = 0.0

    @property
    def time_us(self) -> float:
        return self.compute_us + self.exchange_us

    def plus(self, other: Cost) -> Cost:
        return Cost(*[a + b for a, b in zip(self, other, strict=True)])


@dataclass(frozen=True, slots=True)
class Option:
    """One way to run an instruction."""

    chosen: Chosen
    wants: tuple[Layout | None, ...]  #: of each operand; None for a number
    gives: tuple[Layout, ...]  #: of each result
    cost: Cost
    extra_nbytes: float = 0.0  #: memory that it takes beside operands and results, while it runs

    def __repr__(self) -> str:
        operands = " ".join("number" if want is None else repr(want) for want in self.wants)
        kind = "expanded " if self.chosen.expand is not None else ""
        return f"{kind}{operands} -> {' '.join(map(repr, self.gives))}  {self.cost.time_us:.1f} us"


@memo(1 << 12)
def options_of(use: Use, mesh: Mesh, hardware: Hardware, forms: Forms = ()) -> tuple[Option, ...]:
    """All options of one use of an op, the cheapest first.

    >>> from gt.layout import mesh
    >>> from gt.ops.record import ops
    >>> from gt.program import dtypes
    >>> from gt.solver.hardware import HARDWARE
    >>> x, w = spec((4096, 4096), dtypes.float32), spec((4096, 512), dtypes.float32)
    >>> for option in options_of(use_of(ops.matmul, (x, w), {}), mesh(x=4), HARDWARE["h100"])[:3]:
    ...     print(option)
    [4096@x] [] -> [4096@x]  14.3 us
    [. 4096@x] [4096@x] -> [] sum x  14.3 us
    [] [. 512@x] -> [. 512@x]  25.5 us
    """
    found: dict[tuple[object, ...], Option] = {}
    for option in itertools.chain(_fused(use, mesh, hardware, forms), _expanded(use, mesh, hardware)):
        key = (option.wants, option.gives)
        if key not in found or option.cost.time_us < found[key].cost.time_us:
            found[key] = option
    made = sorted(found.values(), key=lambda option: option.cost.time_us)
    return tuple(made[:MOST_OPTIONS])


# -- ways of the op's own rule ---------------------------------------------------------------


def _fused(use: Use, mesh: Mesh, hardware: Hardware, forms: Forms) -> Iterator[Option]:
    bound = bound_of(use)
    extra: dict[str, list[tuple[int, ...]]] = {}
    for f, sizes in forms:
        extra.setdefault(f, []).append(sizes)
    having = (False, True) if bound.rule.windows else (False,)
    # A max or min that is not taken yet passes through moves only: it is cheaper to take it at once.
    roles = [role for role in all_roles(use) if not isinstance(role, KeepPartial) or role.kind == "sum"]
    for given in itertools.product(roles, repeat=len(mesh.sizes)):
        over, keep = by_role(dict(zip(mesh.sizes, given, strict=True)))
        if any(mesh.size(axes) > bound.sizes[f] for f, axes in over.items()):
            continue  # Law 2
        for split, whole in itertools.product(_splits(over, bound.sizes, extra, mesh), having):
            way = make_way(use, mesh, split, keep, [()] * len(use.specs) if whole else None)
            if way is not None:
                yield Option(choice_for(way, whole), way.wants, way.gives, way_cost(way, hardware))


def _splits(
    over: Mapping[K, list[str]], sizes: Mapping[K, int], forms: Mapping[K, Iterable[tuple[int, ...]]], mesh: Mesh
) -> Iterator[dict[K, Pieces]]:
    """The factors or dimensions split over these axes: in every order of axes, in one piece, and in the given forms
    with the axes on one of the pieces."""
    every = []
    for f, axes in over.items():
        mine: list[Pieces] = []
        for order in itertools.permutations(axes):
            mine.append(((sizes[f], order),))
            mine += _pieces(forms.get(f, ()), order, mesh)
        every.append(mine)
    for each in itertools.product(*every):
        yield dict(zip(over, each, strict=True))


def _pieces(forms: Iterable[tuple[int, ...]], axes: tuple[str, ...], mesh: Mesh) -> list[Pieces]:
    """The forms with these axes on the first piece that is large enough for them."""
    made: list[Pieces] = []
    for form in forms:
        place = next((i for i, n in enumerate(form) if n >= mesh.size(axes)), None)
        if place is not None:
            made.append(tuple([(n, axes if i == place else ()) for i, n in enumerate(form)]))
    return made


def way_cost(way: Way, hardware: Hardware) -> Cost:
    """What a way costs the last worker."""
    use, m = way.use, way.mesh
    at = m.coordinates[-1]
    cost = Cost()
    local: list[Spec] = []
    for k, (s, want) in enumerate(zip(use.specs, way.wants, strict=True)):
        if want is None:
            local.append(s)
            continue
        shape = list(shape_at(want, s.shape, at))
        if way.halos[k]:
            for halo in way.halos[k]:
                _, lo, hi, _ = window_at(way, k, halo, at)
                shape[halo.dim] = hi - lo
            window = shard_spec(s, tuple(shape))
            for step in halo_steps(way, k):
                cost = cost.plus(_exchange(step, way.mesh, hardware))
            cost = cost.plus(Cost(hardware.compute_us(0, 2 * window.nbytes, None)))
        local.append(shard_spec(s, tuple(shape)))
    results = [shard_spec(s, shape_at(one, s.shape, at)) for s, one in zip(use.results, way.gives, strict=True)]
    parts = parts_at(way.split, way.bound.sizes, m, at)
    attrs = use.attrs.value
    if way.has_phases:
        step = merge_step(way)
        first, kept, sent = first_phase(use.op, way.bound, use.specs, attrs, parts, local)
        count = m.size(step.axes)
        gathered = [spec((count, *x.spec.shape), x.spec.dtype) for x in sent]
        last, _ = last_phase(use.op, way.bound, use.specs, attrs, parts, [x.spec for x in kept], gathered, results)
        cost = cost.plus(trace_cost(first, hardware)).plus(trace_cost(last, hardware))
        return cost.plus(_exchange(step, way.mesh, hardware))
    trace, _ = on_shard(use.op, way.bound, use.specs, attrs, parts, local, results)
    if use.op.indices is not None:
        for k in use.op.indices(*use.specs, **attrs):
            if not use.specs[k].weak:
                cost = cost.plus(Cost(hardware.compute_us(0, 2 * local[k].nbytes, None)))
    return cost.plus(trace_cost(trace, hardware))


def trace_cost(trace: OpTrace, hardware: Hardware) -> Cost:
    """What the instructions of a trace cost."""
    compute = exchange = received = 0.0
    for op, args, attrs, _ in trace.code:
        specs = tuple([a.spec if isinstance(a, Symbol) else SCALARS[scalar_kind(a)] for a in args])
        use = use_of(op, specs, attrs)
        if op.collective:
            nbytes, mine = exchanged_nbytes(op.name, attrs, use.results[0])
            exchange += hardware.collective_us(op.name, nbytes, attrs["workers"])
            received += mine
        else:
            compute += use_us(use, hardware)
    return Cost(compute, exchange, received)


def _exchange(step: Step, mesh: Mesh, hardware: Hardware) -> Cost:
    """What an exchange costs of which only the bytes are known."""
    workers = group_at(mesh, step.axes)
    return Cost(0.0, hardware.collective_us("all_to_all", step.nbytes, workers), step.nbytes)


# -- conversions -----------------------------------------------------------------------------


@memo(1 << 18)
def conversion(source: Layout, target: Layout, s: Spec, hardware: Hardware) -> Cost:
    """What it costs to bring a value from one layout to another: in the steps that the planner takes."""
    cost, here = Cost(), source
    for step in cheapest((source,), target, s).steps:
        cost = cost.plus(step_cost(here, step, s, hardware))
        here = step.to
    return cost


@memo(1 << 16)
def step_cost(source: Layout, step: Step, s: Spec, hardware: Hardware) -> Cost:
    """What one step costs the last worker: the collective, and what step_work.py computes around it. Joining and
    cutting uneven shards takes a copy; 16-bit sums are added in float32. An all-reduce is copied, if it may share a
    bucket with others."""
    m, to = source.mesh, step.to
    if step.kind != "permute" and _is_irregular(source, step):
        cost = trace_cost(step_at(source, step, s, m.coordinates[-1])[0], hardware)
        return cost.plus(_bucket_cost(2 * nbytes_at(source, s), hardware)) if step.kind == "all_reduce" else cost
    before, after = nbytes_at(source, s), nbytes_at(to, s)
    if step.kind in LOCAL:
        return Cost(hardware.compute_us(0, 2 * after, None)) if step.kind == "partial" else Cost()
    if step.kind == "permute":
        if not step.nbytes:  # every worker has what it needs
            return Cost(hardware.compute_us(0, 2 * after, None))
        return _exchange(step, m, hardware).plus(Cost(_permute_us(source, step, s, hardware)))
    workers = group_at(m, step.axes)
    p = len(workers)
    widens = s.dtype.is_floating_point and s.dtype.itemsize == 2
    uneven = any(
        n % m.size(axes)
        for one in (source, to)
        for pieces in one.dims
        for n, axes in pieces
        if set(axes) & set(step.axes)
    )
    if step.kind == "all_reduce":
        nbytes = before * wire_dtype(s.dtype).itemsize / s.dtype.itemsize
        casts = 2 * hardware.compute_us(0, before + nbytes, None) if widens else 0.0
        cost = Cost(casts, hardware.collective_us("all_reduce", nbytes, workers), 2 * nbytes * (p - 1) / p)
        return cost.plus(_bucket_cost(nbytes, hardware))
    if step.kind == "all_gather":
        copy = hardware.compute_us(0, 2 * after, None) if uneven else 0.0
        return Cost(copy, hardware.collective_us("all_gather", after, workers), after - before)
    received = step.nbytes
    compute = hardware.compute_us(0, 2 * before, None) if uneven else 0.0
    if step.kind == "reduce_scatter":
        rows = before * (2 if widens else 1)
        compute += hardware.compute_us(0, rows + after, None) + (
            hardware.compute_us(0, before + rows, None) if widens else 0
        )
        compute += hardware.compute_us(0, 3 * after, None) if widens else 0.0
    elif uneven:
        compute += hardware.compute_us(0, 2 * after, None)
    return Cost(compute, hardware.collective_us("all_to_all", received, workers), received)


def _permute_us(source: Layout, step: Step, s: Spec, hardware: Hardware) -> float:
    """At most how long a worker copies around a permute. It joins what it sends, and then what it has received: blocks
    to rows, rows to what it wants, and that in order."""
    m, before, after = source.mesh, nbytes_at(source, s), nbytes_at(step.to, s)
    rows, split = 1, 0
    have, want = (shape_at(one, s.shape, m.coordinates[-1]) for one in (source, step.to))
    for d in range(s.ndim - 1, -1, -1):
        count = m.size([a for _, axes in source.pieces(d) for a in axes])
        if count > 1:
            rows *= min(count, -(-want[d] // max(have[d], 1)) + 1) if split else 1
            split += 1
    joined = rows * hardware.compute_us(0, 2 * after / rows, None) if rows > 1 else 0.0
    mixed = any(len(pieces) > 1 for one in (source, step.to) for pieces in one.dims)
    ordered = (3 if mixed else 1) * hardware.compute_us(0, 2 * after, None)
    return hardware.compute_us(0, 2 * max(before, step.nbytes), None) + joined + ordered


def _is_irregular(source: Layout, step: Step) -> bool:
    """Whether the last worker cuts and joins in a way of its own: a dimension in several pieces changes, or one whose
    shards differ in size, or the largest and smallest values carry flags for NaN."""
    if step.kind == "all_reduce":
        return source.kind != "sum"
    m = source.mesh
    changed = [(a, b) for a, b in itertools.zip_longest(source.dims, step.to.dims, fillvalue=()) if a != b]
    return any(
        len(pieces) > 1 or (step.axes and any(n % m.size(axes) for n, axes in pieces))
        for both in changed
        for pieces in both
    )


def _bucket_cost(nbytes: float, hardware: Hardware) -> Cost:
    """What it costs to copy an all-reduce into a bucket. A bucket saves at least one latency, which is longer than the
    launch of the copy."""
    return Cost(2 * nbytes / hardware.memory_bandwidth * 1e6 if nbytes < BUCKET_NBYTES else 0.0)


@memo(1 << 10)
def group_at(mesh: Mesh, axes: Axes) -> tuple[int, ...]:
    """The workers that the last one meets over some axes."""
    return tuple([mesh.workers[j] for j in mesh.group(axes or tuple(mesh.sizes), mesh.coordinates[-1])])


# -- expanded ops ----------------------------------------------------------------------------


class _Pricer(Decider):
    """Decides like the planner, and adds up prices instead of writing down what workers run."""

    def __init__(self, home: Mesh, count: int, hardware: Hardware) -> None:
        super().__init__(home, {}, count)
        self.hardware = hardware
        self.cost = Cost()

    def run_on(self, way: Way, operands: Sequence[PlannedValue]) -> tuple[int, ...]:
        for v, want in zip(operands, way.wants, strict=True):
            if want is not None:
                self.place(v, want)
        self.cost = self.cost.plus(way_cost(way, self.hardware))
        return tuple([self.new_slot() for _ in way.use.results])

    def take_step(self, value: PlannedValue, start: Layout, source: int, step: Step) -> int:
        slot = value.at(step.to)
        if slot is None:
            slot = self.new_slot()
            value.add(step.to, slot)
            self.cost = self.cost.plus(step_cost(start, step, value.spec, self.hardware))
        return slot


def _expanded(use: Use, mesh: Mesh, hardware: Hardware) -> Iterator[Option]:
    """The op written in other ops, for the splits that its own rule does not allow."""
    if not use.op.expands:
        return
    bound = bound_of(use)
    inputs, sizes = (bound.inputs, bound.sizes) if bound.covered else _by_size(use)
    read = {f for value in inputs for dim in value for f in dim if sizes[f] > 1}
    only = [f for f in sizes if f in read and (f in bound.whole or not bound.covered)]  # what the rule does not split
    roles = [None, *[Split(f) for f in sizes if f in read and (f in only or f in bound.splittable())]]
    for given in itertools.product(roles, repeat=len(mesh.sizes)):
        over, _ = by_role(dict(zip(mesh.sizes, given, strict=True)))
        if not any(f in over for f in only) or any(mesh.size(axes) > sizes[f] for f, axes in over.items()):
            continue
        for split in _splits(over, sizes, {}, mesh):
            option = _expansion(use, mesh, hardware, inputs, sizes, split)
            if option is not None:
                yield option


def _by_size(use: Use) -> tuple[tuple[tuple[Dim, ...], ...], dict[str, int]]:
    """Factors for an op without a rule: dimensions of one size belong together, in their order."""
    sizes: dict[str, int] = {}
    values: list[tuple[Dim, ...]] = []
    for s in use.specs:
        counts: dict[int, int] = {}
        dims: list[Dim] = []
        for n in s.shape if not s.weak else ():
            counts[n] = counts.get(n, 0) + 1
            name = f"n{n}_{counts[n]}"
            sizes[name] = n
            dims.append((name,))
        values.append(tuple(dims))
    return tuple(values), sizes


def _expansion(
    use: Use, mesh: Mesh, hardware: Hardware, inputs: Sequence[Sequence[Dim]], sizes: Mapping[str, int],
    split: dict[str, Pieces],
) -> Option | None:  # fmt: skip
    bound = bound_of(use)
    pricer = _Pricer(mesh, len(use.specs), hardware)
    wants: list[Layout | None] = []
    values: list[PlannedValue] = []
    for k, s in enumerate(use.specs):
        if s.weak:
            wants.append(None)
            values.append(number(s, k))
            continue
        dims = [
            joined([(sizes[f], split.get(f, ())) for f in dim], mesh) if any(f in split for f in dim) else ()
            for dim in inputs[k]
        ]
        if any((k, d) in bound.rule.windows for d in range(s.ndim)) and any(dims):
            return None
        want = layout(mesh, dims)
        wants.append(want)
        values.append(PlannedValue(state_of(s, (want,)), (k,)))
    try:
        made = pricer.expand(use, values, (None,) * len(use.results), ())
    except GTError:
        return None
    gives = [v.state.layouts[0] if v.state.layouts else None for v in made]
    if any(one is None for one in gives):
        return None
    texts = tuple(["" if want is None else repr(want) for want in wants])
    made_in = tuple([one for one in gives if one is not None])
    return Option(Chosen(expand=texts), tuple(wants), made_in, pricer.cost, _extra_nbytes(use, wants))


def _extra_nbytes(use: Use, wants: Sequence[Layout | None]) -> float:
    """The memory of an expansion at its peak, if its values are split as much as its largest operand."""
    largest, want = max(
        ((s, want) for s, want in zip(use.specs, wants, strict=True) if want is not None), key=lambda each: each[0].size
    )
    share = largest_shard(want, largest.shape) / max(largest.size, 1)
    expansion = expansion_of(use)
    last = {a: i for i, inner in enumerate(expansion.code) for a in inner.args if isinstance(a, int)}
    alive = most = 0
    dies: dict[int, int] = {}
    for i, inner in enumerate(expansion.code):
        for made, s in zip(inner.numbers, inner.use.results, strict=True):
            if made not in expansion.results and not inner.use.op.aliases:
                alive += s.nbytes
                at = max(last.get(made, i), i)
                dies[at] = dies.get(at, 0) + s.nbytes
        most = max(most, alive)
        alive -= dies.pop(i, 0)
    return most * share


def least_us(use: Use, workers: int, hardware: Hardware) -> float:
    """What one use of an op takes at least, by itself or expanded, if so many workers share its arithmetic equally."""
    by_itself = arithmetic_us(use, workers, hardware)
    if not use.op.expands:
        return by_itself
    # Ops that could be expanded further count nothing; an op in terms of itself is not expanded again.
    inner = [each.use for each in expansion_of(use).code if not each.use.op.expands or each.use.op is use.op]
    return min(by_itself, sum(arithmetic_us(each, workers, hardware) for each in inner))


# -- values that are given or made anywhere --------------------------------------------------


def splits_of(s: Spec, mesh: Mesh, forms: Mapping[int, Iterable[tuple[int, ...]]] = {}) -> list[Layout]:
    """The layouts in which an input can be stored: whole, and split along one or several dimensions, the axes of one
    dimension in every order. `forms`: by dimension, how else than in one piece it is cut."""
    found: dict[Layout, None] = {}
    for given in itertools.product([None, *range(s.ndim)], repeat=len(mesh.sizes)):
        over: dict[int, list[str]] = {}
        for axis, d in zip(mesh.sizes, given, strict=True):
            if d is not None:
                over.setdefault(d, []).append(axis)
        if any(mesh.size(axes) > s.shape[d] for d, axes in over.items()):
            continue
        for by_dim in _splits(over, dict(enumerate(s.shape)), forms, mesh):
            found.setdefault(layout(mesh, [by_dim.get(d, ()) for d in range(s.ndim)]))
    return list(found)


@memo(1 << 14)
def making_cost(recipe: tuple[Use, ...], target: Layout, hardware: Hardware) -> Cost:
    """What it costs to make a value of numbers alone in a layout: each worker its shard. `recipe`: the uses that lead
    to it, the last one makes it. What has another shape counts as made whole."""
    s = recipe[-1].results[0]
    share = largest_shard(target, s.shape) / max(s.size, 1)
    total = 0.0
    for use in recipe:
        if not use.op.aliases:
            mine = share if use.results[0].shape == s.shape else 1.0
            total += max(use_us(use, hardware) * mine, hardware.launch_us)
    return Cost(total)


def nbytes_at(one: Layout, s: Spec) -> int:
    """The memory of the largest shard."""
    return largest_shard(one, s.shape) * s.dtype.itemsize
