"""What the solver reads off a program before anything is chosen: which values are made of numbers alone, where the
backward pass begins and ends, and how reshapes cut dimensions into pieces.
"""

from __future__ import annotations

from collections.abc import Sequence

from gt.dispatcher.planner.decide import DEPTH
from gt.dispatcher.planner.ways import Use, bound_of
from gt.ops.check import Checked, alive_nbytes
from gt.ops.record import TABLE
from gt.solver.pricing import work_of

#: How values are cut into pieces: by value, (dimension, sizes).
Pieces = dict[int, dict[tuple[int, tuple[int, ...]], None]]


def numbers(checked: Checked) -> list[int]:
    """Of each instruction: the number of its first result."""
    return [made.start for _, made in checked.program.numbered()]


def deferred(checked: Checked) -> list[bool]:
    """Of each instruction: whether its results are made of numbers alone."""
    depth = [0] * len(checked.program.inputs)  # of each value; 0: it is not deferred
    found = []
    for ins in checked.program.code:
        mine = [depth[a] for a in ins.args if a >= 0]
        deferred = all(mine) and max(mine, default=0) < DEPTH and not TABLE[ins.op].pins
        found.append(deferred)
        depth += [(1 + max(mine, default=0)) if deferred else 0] * ins.results
    return found


def is_product(use: Use) -> bool:
    """Whether an op does much more arithmetic than it has elements: a product, a convolution, attention."""
    tensors = [s for s in use.specs if not s.weak]
    if len(tensors) < 2 or use.op.inplace:
        return False
    most = max(s.size for s in (*tensors, *use.results))
    return work_of(use)[0] > 4 * most and not use.op.aliases


def passes(checked: Checked, uses: Sequence[Use]) -> tuple[int, int]:
    """The first instruction of the backward pass, and the first one after it. Backward begins when the most memory is
    in use; it ends with the last product."""
    program = checked.program
    nbytes = [0] * len(program.inputs) + [0 if use.op.aliases else s.nbytes for use in uses for s in use.results]
    alive = list(alive_nbytes(program, nbytes, checked.last_use))
    boundary = alive.index(max(alive)) + 1 if any(alive) else len(alive)
    end = max([i + 1 for i, use in enumerate(uses) if is_product(use)], default=0)
    return min(boundary, end), end


def forms(checked: Checked, uses: Sequence[Use]) -> Pieces:
    """How values are cut into pieces by the reshapes that they pass through: by value, (dimension, sizes)."""
    found: Pieces = {}
    rules = []
    for use, (ins, made) in zip(uses, checked.program.numbered(), strict=True):
        bound = bound_of(use)
        values = [*ins.args, *made]
        dims = [*bound.inputs, *bound.outputs]
        for v, value in zip(values, dims, strict=True):
            for d, dim in enumerate(value):
                sizes = tuple([bound.sizes[f] for f in dim if bound.sizes[f] > 1])
                if v >= 0 and len(sizes) > 1:
                    _add_form(found, v, d, sizes)
        places: dict[str, list[tuple[int, int]]] = {}
        for v, value in zip(values, dims, strict=True):
            for d, dim in enumerate(value):
                if v >= 0 and len(dim) == 1:
                    places.setdefault(dim[0], []).append((v, d))
        rules.append([mine for f, mine in places.items() if len(mine) > 1 and bound.sizes[f] > 1])
    for order in (rules, rules[::-1]) * 2:
        for shared in order:
            for mine in shared:
                forms = {form for v, d in mine for at, form in found.get(v, {}) if at == d}
                for form in forms:
                    for v, d in mine:
                        _add_form(found, v, d, form)
    return found


def _add_form(found: Pieces, v: int, d: int, sizes: tuple[int, ...]) -> None:
    mine = found.setdefault(v, {})
    if (d, sizes) not in mine and sum(at == d for at, _ in mine) < 2:
        mine[d, sizes] = None
