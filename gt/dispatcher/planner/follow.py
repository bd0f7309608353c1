"""Following: an instruction runs in the way that a plan chose for it (gt/chosen.py), not in the planner's own.

Law 1: a choice is carried out exactly: operands are brought to the layouts that the way wants, and the results have the
       layouts that it gives. Conversions are shared with other readers, as always.
Law 2: a choice that does not fit the instruction (unknown factors or axes, a split that the op's rule does not allow)
       is refused with a `ChoiceError`. `plan_program` then decides as without it, and notes why.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gt.chosen import Chosen
from gt.dispatcher.planner.choose import Goals
from gt.dispatcher.planner.decide import Decider, PlannedValue
from gt.dispatcher.planner.memo import memo
from gt.dispatcher.planner.ways import KeepPartial, Layouts, Use, Way, bound_of, make_way
from gt.errors import GTError
from gt.layout import Layout, Mesh, Pieces, layout, parse

encode_choice = msgspec.msgpack.Encoder(order="deterministic").encode
_decode_choice = msgspec.msgpack.Decoder(Chosen).decode


class ChoiceError(GTError):
    """A choice does not fit the instruction that it was made for."""


def choice_for(way: Way, whole_windows: bool = False, drops: bool = False) -> Chosen:
    """The choice that leads to a way."""
    pieces = {f: tuple([(n, tuple(axes)) for n, axes in each]) for f, each in way.split.items()}
    keep = {a: (role.operands, role.kind) for a, role in way.keep.items()}
    return Chosen(pieces, keep, whole_windows, drops=drops)


@memo(1 << 14)
def way_for(use: Use, mesh: Mesh, encoded: bytes) -> Way:
    """The way that a choice leads to; raises ChoiceError if there is none."""
    chosen = _decode_choice(encoded)
    bound = bound_of(use)
    split: dict[str, Pieces] = {}
    used: list[str] = list(chosen.keep)
    for f, pieces in chosen.split.items():
        if f not in bound.sizes or f in bound.whole:
            raise ChoiceError(f"{use.op.name}: its rule has no factor {f!r} that can be split")
        split[f] = tuple([(n, tuple(axes)) for n, axes in pieces])
        used += [a for _, axes in pieces for a in axes]
        if product([n for n, _ in pieces]) != bound.sizes[f]:
            raise ChoiceError(f"{use.op.name}: factor {f!r} has size {bound.sizes[f]}, got pieces {pieces}")
    if len(set(used)) != len(used) or any(a not in mesh.sizes for a in used):
        raise ChoiceError(f"{use.op.name}: expected each axis of {mesh!r} at most once, got {used}")
    keep = {a: KeepPartial(tuple(operands), kind) for a, (operands, kind) in chosen.keep.items()}
    have: Sequence[Layouts] | None = [()] * len(use.specs) if chosen.whole_windows else None
    way = make_way(use, mesh, split, keep, have)
    if way is None:
        raise ChoiceError(f"{use.op.name}: cannot run with split {split} and partial values over {list(keep)}")
    return way


def product(sizes: Sequence[int]) -> int:
    """The product of some sizes."""
    made = 1
    for n in sizes:
        made *= n
    return made


def follow(
    decider: Decider, use: Use, operands: Sequence[PlannedValue], goals: Goals, chosen: Chosen
) -> list[PlannedValue]:
    """The results of one use of an op, in a chosen way: Law 1."""
    for k, texts in chosen.via:
        if not 0 <= k < len(operands) or operands[k].is_number:
            raise ChoiceError(f"{use.op.name}: has no tensor operand {k}")
        if operands[k].deferred is None:
            decider.lead(operands[k], [decider.layout_in(text, use.specs[k]) for text in texts])
    if chosen.expand is None:
        return decider.run_way(way_for(use, decider.home, encode_choice(chosen)), operands)
    if not use.op.expands:
        raise ChoiceError(f"{use.op.name}: cannot be expanded into other ops")
    return decider.expand(
        use, [at_layout(decider, v, one) for v, one in wanted(decider, use, operands, chosen)], goals, ()
    )


def wanted(
    decider: Decider, use: Use, operands: Sequence[PlannedValue], chosen: Chosen
) -> list[tuple[PlannedValue, Layout | None]]:
    """The operands, each with the layout that an expansion wants it in; None for a number."""
    assert chosen.expand is not None
    if len(chosen.expand) != len(operands):
        raise ChoiceError(f"{use.op.name}: expected {len(operands)} layouts, got {len(chosen.expand)}")
    return [
        (v, None if v.is_number else parse(text, decider.home) if text else layout(decider.home))
        for v, text in zip(operands, chosen.expand, strict=True)
    ]


def at_layout(decider: Decider, value: PlannedValue, want: Layout | None) -> PlannedValue:
    """A value that is in one layout only, so that an expansion starts from it."""
    if want is None or value.deferred is not None:
        return value
    return decider.only_at(value, want)
