"""Followers: instructions that run in the way that the layout of their operand asks for, as part of the node that makes
the operand.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from gt.chosen import Chosen
from gt.dispatcher.planner.redistribute import cheapest
from gt.dispatcher.planner.ways import Use
from gt.layout import Layout, layout
from gt.program import Spec
from gt.solver.hardware import Hardware
from gt.solver.options import Cost, Option, conversion

#: A node with more options than this takes no further followers.
MOST_JOINT = 1500


@dataclass(slots=True)
class Joint:
    """An option of a leader and its followers so far."""

    cost: Cost
    wants: tuple[Layout, ...]
    gives: dict[int, Layout]  #: by the number of the value
    chosen: tuple[Chosen | None, ...]
    extra_nbytes: float = 0.0


def loses_nothing(use: Use, options: Sequence[Option]) -> bool:
    """Whether an instruction that is the only reader of its operand may as well follow: it exchanges nothing itself,
    and makes no more bytes than it reads, so a conversion is not dearer after it than before it."""
    read = sum(s.nbytes for s in use.specs if not s.weak)
    return use.results[0].nbytes <= read and not any(option.cost.exchange_us for option in options)


def follow(
    joints: list[Joint], use: Use, operand: int, result: int, options: Sequence[Option], hardware: Hardware,
    is_large: bool,
) -> list[Joint] | None:  # fmt: skip
    """The options of a node with one more follower, a use of an op on a value of the node; None if that would be too
    many, or if there is a layout of the operand that the follower cannot take."""
    position = next(k for k, s in enumerate(use.specs) if not s.weak)
    s = use.specs[position]
    by_want: dict[Layout, list[Option]] = {}
    for option in options:
        want = option.wants[position]
        assert want is not None
        by_want.setdefault(want, []).append(option)
    best: dict[tuple[object, ...], Joint] = {}
    for joint in joints:
        here = joint.gives[operand]
        reachable = [here] if here in by_want else []
        if here.partial:
            reachable += [one for one in _reduced(here, s) if one in by_want]
        elif not is_large:
            reachable += [one for one in by_want if _is_slice(here, one, s)]
        if not reachable:
            return None
        for there in reachable:
            moved = conversion(here, there, s, hardware) if there is not here else Cost()
            for option in by_want[there]:
                made = Joint(
                    joint.cost.plus(option.cost).plus(moved), joint.wants,
                    {**joint.gives, result: option.gives[0]}, (*joint.chosen, option.chosen), joint.extra_nbytes,
                )  # fmt: skip
                key = (made.wants, *made.gives.values())
                if key not in best or made.cost.time_us < best[key].cost.time_us:
                    best[key] = made
    return list(best.values()) if len(best) <= MOST_JOINT else None


def _is_slice(here: Layout, there: Layout, s: Spec) -> bool:
    """Whether every worker has what it needs of a value, and more."""
    if there.partial or not here.axes() < there.axes():
        return False
    return all(step.kind == "slice" for step in cheapest((here,), there, s).steps)


def _reduced(one: Layout, s: Spec) -> list[Layout]:
    """What a partial value becomes when it is reduced: everywhere, or scattered along a dimension."""
    found = {layout(one.mesh, one.dims): None}
    for scatter in itertools.product([None, *range(s.ndim)], repeat=len(one.pending)):
        dims = [one.pieces(d) or ((s.shape[d], ()),) for d in range(s.ndim)]
        for axis, d in zip(one.pending, scatter, strict=True):
            if d is not None and len(dims[d]) == 1:
                n, axes = dims[d][0]
                if one.mesh.size((*axes, axis)) <= n:
                    dims[d] = ((n, (*axes, axis)),)
        found[layout(one.mesh, dims)] = None
    return list(found)
