"""The ways to run one op on shards.

Law 1: no op is named here, nor anywhere in the planner. What an op can do is in its record.
Law 2: an operand that is added to a contraction over split factors is made partial over their axes (its value at index
       0, zero elsewhere), so that it is not added once per worker.

A way gives every axis of the mesh a role: it splits a factor of the op's rule (`Split`), it carries partial values of
some operands through to the results (`KeepPartial`), or it does nothing (None). `make_way` derives the layouts of
operands and results from that, or finds that the op cannot do it. The planner's own choice is in choose.py.
`all_ways` lists what there is to choose from:

    >>> from gt.layout import mesh
    >>> from gt.ops.record import ops
    >>> from gt.program import dtypes, spec
    >>> x, w = spec((8, 6), dtypes.float32), spec((6, 5), dtypes.float32)
    >>> for way in all_ways(use_of(ops.matmul, (x, w), {}), mesh(x=2), pieces=1):
    ...     print(way)
    [] [] -> []
    [8@x] [] -> [8@x]
    [. 6@x] [6@x] -> [] sum x
    [] [. 5@x] -> [. 5@x]
    [] sum x [] -> [] sum x
    [] [] sum x -> [] sum x
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from gt.dispatcher.planner.memo import memo
from gt.dispatcher.planner.redistribute import Step, count, largest_shard, overlap, shape_at
from gt.dispatcher.planner.work import Sketch, op_named
from gt.layout import KINDS, Axes, Layout, Mesh, Pieces, bounds, canonical, held, joined, layout
from gt.ops.check import Checked
from gt.ops.record import Op
from gt.ops.shard import first_phase, parts_at, shard_spec
from gt.ops.sharding import Bound, Dim, added, bind, groups, has
from gt.ops.trace import Symbol, scalar_kind
from gt.program import SCALARS, Spec, as_tuple

# -- uses of ops -----------------------------------------------------------------------------


class Attrs(bytes):
    """Attributes of an op, hashed and compared by their encoding: 1, 1.0 and True are different."""

    value: dict[str, Any]

    @staticmethod
    def of(attrs: dict[str, Any]) -> Attrs:
        made = Attrs(encode_attrs(attrs)) if attrs else _NO_ATTRS
        made.value = attrs
        return made


encode_attrs = msgspec.msgpack.Encoder().encode
_NO_ATTRS = Attrs()


class Use(NamedTuple):
    """One use of an op, whatever the layouts of its operands."""

    op: Op
    attrs: Attrs
    specs: tuple[Spec, ...]  #: of the operands; a weak spec is that of a number
    results: tuple[Spec, ...]


def use_of(op: Op, specs: Sequence[Spec], attrs: dict[str, Any]) -> Use:
    """The use of an op on operands of these specs."""
    return Use(op, Attrs.of(attrs), tuple(specs), as_tuple(op.infer(*specs, **attrs)))


def uses_of(checked: Checked) -> list[Use]:
    """The use of each instruction of a program."""
    specs, scalars = checked.specs, checked.program.scalars
    found = []
    for ins, made in checked.program.numbered():
        operands = tuple([specs[a] if a >= 0 else SCALARS[scalars[~a]] for a in ins.args])
        found.append(Use(op_named(ins.op), Attrs.of(ins.attrs), operands, specs[made.start : made.stop]))
    return found


@memo(1 << 13)
def bound_of(use: Use) -> Bound:
    """The op's rule with the sizes of its factors in this use."""
    return bind(use.op, use.specs, use.results, use.attrs.value)


# -- ways ------------------------------------------------------------------------------------

#: The layouts that an operand has. () means any: it is not made yet, and can be made in each. None is for a number.
Layouts = tuple[Layout, ...] | None


class Split(NamedTuple):
    """The axis splits a factor."""

    factor: str


class KeepPartial(NamedTuple):
    """These operands are partial over the axis, and so are the results."""

    operands: tuple[int, ...]
    kind: str  #: sum, max or min


#: What one axis of the mesh does in a way; None: nothing.
Role = Split | KeepPartial | None


@dataclass(frozen=True, slots=True)
class Halo:
    """A dimension of an operand of which each worker reads a window: its shard and some elements of the neighbours."""

    dim: int
    factor: str
    axes: Axes


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """One way to run an op on shards."""

    use: Use
    bound: Bound
    mesh: Mesh
    split: dict[str, Pieces]  #: the pieces of each factor that is split
    keep: Mapping[str, KeepPartial]  #: by axis
    wants: tuple[Layout | None, ...]  #: of each operand; None for a number
    halos: tuple[tuple[Halo, ...], ...]  #: of each operand
    gives: tuple[Layout, ...]  #: of each result

    @property
    def has_phases(self) -> bool:
        """Whether it runs in two phases, with an exchange between them (Op.merge)."""
        return self.bound.merged in self.split

    def split_axes(self) -> list[str]:
        """The axes that split some factor."""
        return [a for pieces in self.split.values() for a in axes_of(pieces)]

    def __repr__(self) -> str:
        operands = " ".join("number" if want is None else repr(want) for want in self.wants)
        return f"{operands} -> {' '.join(map(repr, self.gives))}"


def axes_of(pieces: Pieces) -> Axes:
    """The axes that these pieces are split over, in order."""
    return tuple([a for _, axes in pieces for a in axes])


def by_role(roles: Mapping[str, Role]) -> tuple[dict[str, list[str]], dict[str, KeepPartial]]:
    """The axes of each factor that is split, and the axes that keep partial values."""
    over: dict[str, list[str]] = {}
    keep: dict[str, KeepPartial] = {}
    for axis, role in roles.items():
        if type(role) is Split:
            over.setdefault(role.factor, []).append(axis)
        elif type(role) is KeepPartial:
            keep[axis] = role
    return over, keep


def make_way(
    use: Use, mesh: Mesh, split: dict[str, Pieces], keep: Mapping[str, KeepPartial],
    have: Sequence[Layouts] | None = None,
) -> Way | None:  # fmt: skip
    """The way that splits these factors like this, and keeps partial values over these axes; None if the op cannot.

    `have` only matters for windows: a window is cut out of an operand that is whole somewhere, or that can be made in
    any layout. Without `have`, and for other operands, it is fetched from the neighbours.
    """
    bound, specs = bound_of(use), use.specs
    contiguous = bound.contiguous
    split = {f: (((bound.sizes[f], axes_of(p)),) if f in contiguous else p) for f, p in split.items()}
    partial = _partial(use, bound, split, keep)
    if partial is None:
        return None
    partial_in, partial_out = partial
    wants: list[Layout | None] = []
    halos: list[tuple[Halo, ...]] = []
    made = _Layouts(bound, split, mesh)
    windowed = {k for k, d in bound.rule.windows if bound.inputs[k][d][0] in split}
    for k, s in enumerate(specs):
        if k not in windowed:
            halos.append(())
            wants.append(None if s.weak else made.of(bound.inputs[k], partial_in[k]))
            continue
        given = have[k] if have is not None else None
        mine = [
            Halo(d, dim[0], axes_of(split[dim[0]]))
            for d, dim in enumerate(bound.inputs[k])
            if (k, d) in bound.rule.windows and dim[0] in split
        ]
        halos.append(tuple(mine))
        dims = [_pieces(bound, dim, split, mesh) for dim in bound.inputs[k]]
        for halo in mine:
            is_whole = given == () or any(one.mesh is mesh and not one.pieces(halo.dim) for one in given or ())
            dims[halo.dim] = () if is_whole else ((s.shape[halo.dim], halo.axes),)
        wants.append(layout(mesh, dims, partial_in[k]))
    gives = [made.of(value, kinds) for value, kinds in zip(bound.outputs, partial_out, strict=True)]
    return Way(use, bound, mesh, split, keep, tuple(wants), tuple(halos), tuple(gives))


def _partial(
    use: Use, bound: Bound, split: dict[str, Pieces], keep: Mapping[str, KeepPartial]
) -> tuple[list[dict[str, str]], list[dict[str, str]]] | None:
    """The partial axes and their kinds, of each operand and of each result; None if the op cannot do it."""
    specs = use.specs
    partial_in: list[dict[str, str]] = [{} for _ in specs]
    partial_out: list[dict[str, str]] = [{} for _ in bound.outputs]
    for a, (operands, kind) in keep.items():
        for k in operands:
            partial_in[k][a] = kind
        for kinds in partial_out:
            kinds[a] = kind
    contracted = bound.contracted()
    for f, pieces in split.items():
        if f not in contracted or f == bound.merged:  # the second phase leaves nothing to be added up
            continue
        kind = bound.kind(f)
        axes = axes_of(pieces)
        for kinds, value, logical in zip(partial_out, bound.outputs, bound.logical, strict=True):
            if not has(value, f):
                kinds.update(dict.fromkeys(axes, "max" if logical and kind == "sum" else kind))
        if kind == "sum":
            for k in added(use.op, bound, specs, use.attrs.value, f):
                if specs[k].weak:
                    return None
                partial_in[k].update(dict.fromkeys(axes, kind if specs[k].dtype.category else "max"))
    for kinds in (*partial_in, *partial_out):
        if len(kinds) > 1 and len(set(kinds.values())) > 1:
            return None
    return partial_in, partial_out


class _Layouts:
    """The layouts of operands and results under one split. Most of them have the same factors."""

    def __init__(self, bound: Bound, split: dict[str, Pieces], mesh: Mesh) -> None:
        self.bound, self.split, self.mesh = bound, split, mesh
        self.known: dict[tuple[object, ...], Layout] = {}

    def of(self, value: tuple[Dim, ...], partial: dict[str, str]) -> Layout:
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


class Window(NamedTuple):
    """Positions [lo, hi) of an operand's dimension, of which some may be outside of it."""

    dim: int
    lo: int
    hi: int
    border: str  #: what is outside: see Op.window


#: The windows that one worker reads of an operand.
Frame = tuple[Window, ...]


def window_at(way: Way, k: int, halo: Halo, at: tuple[int, ...]) -> Window:
    """The window of an operand's dimension that the worker at a coordinate reads."""
    use, m = way.use, way.mesh
    assert use.op.window is not None
    lo, hi = bounds(m.index(halo.axes, at), way.bound.sizes[halo.factor], m.size(halo.axes))
    if lo == hi:
        return Window(halo.dim, 0, 0, "clip")
    lo, hi, border = use.op.window(*use.specs, **use.attrs.value)[halo.factor](k, lo, hi)
    if border == "clip":
        n = use.specs[k].shape[halo.dim]
        lo, hi = min(max(lo, 0), n), min(max(hi, 0), n)
    return Window(halo.dim, lo, max(lo, hi), border)


def halo_steps(way: Way, k: int) -> Iterator[Step]:
    """The exchanges that make windows of an operand's shards; none where the dimension is whole."""
    want, s, m = way.wants[k], way.use.specs[k], way.mesh
    assert want is not None
    for halo in way.halos[k]:
        if not want.pieces(halo.dim):
            continue
        n, most = s.shape[halo.dim], 0
        for at in m.coordinates:
            _, lo, hi, border = window_at(way, k, halo, at)
            places = sorted({i % n for i in range(lo, hi)} if border == "wrap" else range(max(lo, 0), min(hi, n)))
            mine = held(want.pieces(halo.dim), n, m, at)
            most = max(most, len(places) - count(overlap(tuple((i, i + 1) for i in places), mine)))
        rest = largest_shard(want, s.shape) // max(-(-n // m.size(halo.axes)), 1)
        yield Step("halo", halo.axes, want, most * rest * s.dtype.itemsize)


# -- two phases ------------------------------------------------------------------------------


def merge_step(way: Way) -> Step:
    """The exchange between the two phases of an op: every worker receives what all others send."""
    use, m, factor = way.use, way.mesh, way.bound.merged
    assert factor is not None
    axes = axes_of(way.split[factor])
    at = m.coordinates[-1]
    local = [
        s if want is None else shard_spec(s, shape_at(want, s.shape, at))
        for s, want in zip(use.specs, way.wants, strict=True)
    ]
    parts = parts_at(way.split, way.bound.sizes, m, at)
    _, _, sent = first_phase(use.op, way.bound, use.specs, use.attrs.value, parts, local)
    return Step("merge", axes, way.gives[0], sum(x.spec.nbytes for x in sent) * (m.size(axes) - 1))


# -- all ways --------------------------------------------------------------------------------


def all_ways(use: Use, mesh: Mesh, pieces: int = 2) -> Iterator[Way]:
    """Every way to run an op on a mesh, each once: ways of the same factors, operands and results are one.

    A factor is split over its axes in every order: in one piece, and if `pieces` is 2 also cut in two at each divisor
    of its size, with the axes on the major piece, on the minor one, and on both. An operand that is read in windows is
    split like its factor, or whole.
    """
    bound = bound_of(use)
    seen = set()
    having: list[list[Layouts] | None] = [None, [()] * len(use.specs)] if bound.rule.windows else [None]
    for given in itertools.product(all_roles(use), repeat=len(mesh.sizes)):
        over, keep = by_role(dict(zip(mesh.sizes, given, strict=True)))
        for split, have in itertools.product(all_splits(over, bound.sizes, pieces), having):
            way = make_way(use, mesh, split, keep, have)
            if way is None:
                continue
            factors = frozenset((f, canonical(each, mesh)) for f, each in way.split.items())
            if (factors, way.wants, way.gives) not in seen:
                seen.add((factors, way.wants, way.gives))
                yield way


def all_roles(use: Use) -> list[Role]:
    """What an axis can do for an op."""
    found: list[Role] = [None, *[Split(f) for f in bound_of(use).splittable()]]
    kept = [KeepPartial(group, "sum") for group in groups(use.op, use.specs, use.attrs.value)]
    if use.op.moves:
        tensors = [k for k, s in enumerate(use.specs) if not s.weak]
        dtypes = [use.specs[k].dtype for k in tensors]
        ordered = not any(dtype.is_complex for dtype in dtypes)
        kept += [KeepPartial(tuple(tensors), kind) for kind in KINDS if kind == "sum" or ordered]
        if not all(dtype.is_differentiable for dtype in dtypes):
            kept = [role for role in kept if role.kind != "sum"]
    return found + list(kept)


def all_splits(over: Mapping[str, list[str]], sizes: Mapping[str, int], pieces: int) -> Iterator[dict[str, Pieces]]:
    """The factors split over these axes, in every form: see `all_ways`."""
    forms = []
    for f, axes in over.items():
        n, mine = sizes[f], list[Pieces]()
        divisors = [d for d in range(2, n) if n % d == 0] if pieces > 1 else []
        for order in itertools.permutations(axes):
            mine.append(((n, order),))
            mine += [((d, order[:i]), (n // d, order[i:])) for d in divisors for i in range(len(order) + 1)]
        forms.append(mine)
    for each in itertools.product(*forms):
        yield dict(zip(over, each, strict=True))


# -- expansions ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Constant:
    """A number in an expansion."""

    value: Any


@dataclass(frozen=True, slots=True)
class InnerUse:
    """One op of an expansion. Its values are numbered: the operands of the expanded op come first."""

    use: Use
    args: tuple[int | Constant, ...]
    numbers: tuple[int, ...]  #: of its results
    last: tuple[bool, ...]  #: of each operand: whether no op after this one reads it


class Expansion(NamedTuple):
    """An op written in other ops."""

    code: tuple[InnerUse, ...]
    results: tuple[int, ...]


@memo(1 << 12)
def expansion_of(use: Use) -> Expansion:
    """The op in other ops, as its record has it."""
    sketch = Sketch()
    form = use.op.parts or use.op.compose
    assert form is not None
    made = form(*[sketch.symbol(s) for s in use.specs], **use.attrs.value)
    code = []
    reads = [{a.number for a in args if isinstance(a, Symbol)} for _, args, _, _ in sketch.code]
    for i, (op, args, attrs, numbers) in enumerate(sketch.code):
        operands = tuple(a.number if isinstance(a, Symbol) else Constant(a) for a in args)
        specs = tuple(a.spec if isinstance(a, Symbol) else SCALARS[scalar_kind(a)] for a in args)
        results = tuple(sketch.specs[n] for n in numbers)
        read_later = set().union(*reads[i + 1 :])
        last = tuple(a not in read_later for a in operands)
        code.append(InnerUse(Use(op, Attrs.of(attrs), specs, results), operands, numbers, last))
    return Expansion(tuple(code), tuple(r.number for r in (made if isinstance(made, tuple) else (made,))))
