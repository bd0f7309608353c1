"""What is communicated when one dimension of one operand is split: op by op, dimension by dimension.

`expected.txt` holds the table, so that a rule that gets lost, or one that says "must be whole" where it need not, is
seen. Ops of which the same is true are listed together. Under their names and the shapes of their operands, a line is:
operand.dimension that is split over two workers, collectives in order, layouts of the results. Where the rule takes the
split, the op runs so, whatever it costs (`-`: nothing is communicated). Where it does not, the line says what is done
instead: `gather`, or `expand` and the collectives of the ops that it is written in.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gt.dispatcher.planner.redistribute import LOCAL, redistribute
from gt.dispatcher.planner.ways import Use, bound_of, halo_steps, make_way, merge_step, use_of
from gt.layout import Layout, layout, mesh, split
from gt.ops import Op
from tests.sharding.cases import OPS, cases
from tests.sharding.simulate import Log, apply, collectives, place, spec_of

EXPECTED = Path(__file__).with_name("expected.txt")
MESH = mesh(x=2)


def sample(op: Op) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A use of the op whose operands have dimensions to split, larger ones first."""
    every = [(args, attrs) for name, args, attrs in cases() if name == op.name]
    every += op.samples(np.random.default_rng(0))
    return next((s for s in every if any(np.ndim(a) and np.size(a) > 1 for a in s[0])), every[0])


def lines(op: Op) -> Iterator[str]:
    """The shapes of the operands of a sample, and what each split of them costs."""
    args, attrs = sample(op)
    use = use_of(op, [spec_of(a) for a in args], attrs)
    bound = bound_of(use)
    arrays = [k for k, a in enumerate(args) if isinstance(a, np.ndarray)]
    yield f"({','.join('x'.join(map(str, use.specs[k].shape)) or '()' for k in arrays)})"
    if not arrays:
        free = [str(d) for d, dim in enumerate(bound.outputs[0]) if dim and dim[0] not in bound.rule.whole]
        yield f"    created, free to split: {' '.join(free) or 'nothing'}"
    for k in arrays:
        for d, n in enumerate(args[k].shape):
            if n < 2:
                continue
            have = [split(MESH, a.shape, {d: "x"}) if i == k else layout(MESH) for i, a in enumerate(args)]
            moved, gives = allowed(use, have, k, d) or instead(op, args, attrs, arrays, have)
            yield f"    {k}.{d}  {moved:40}  {'  '.join(map(repr, gives))}".rstrip()


def allowed(use: Use, have: list[Layout], k: int, d: int) -> tuple[str, Sequence[Layout]] | None:
    """What the op costs if the largest factor of that dimension that may be split is split."""
    bound = bound_of(use)
    free = [f for f in bound.inputs[k][d] if f in bound.splittable()]
    if not free:
        return None
    factor = max(free, key=lambda f: bound.sizes[f])
    way = make_way(use, MESH, {factor: ((bound.sizes[factor], ("x",)),)}, {}, [(one,) for one in have])
    if way is None:
        return None
    kinds = []
    for i, (s, want) in enumerate(zip(use.specs, way.wants, strict=True)):
        if want is not None:
            steps = (*redistribute(have[i], want, s.shape), *halo_steps(way, i))
            kinds += [step.kind for step in steps if step.kind not in LOCAL]
    if way.has_phases:
        kinds.append(merge_step(way).kind)
    return " ".join(kinds) or "-", way.gives


def instead(
    op: Op, args: Sequence[Any], attrs: dict[str, Any], arrays: list[int], have: list[Layout]
) -> tuple[str, Sequence[Layout]]:
    draws, log = np.random.default_rng(0), Log()
    operands = [place(a, have[i], draws) if i in arrays else a for i, a in enumerate(args)]
    made = apply(op, operands, attrs, MESH, log)
    return " ".join(["expand" if op.expands else "gather", *collectives(log)]), [v.layout for v in made]


def table() -> str:
    names: dict[tuple[str, ...], list[str]] = {}
    for op in sorted(OPS, key=lambda op: op.name):
        names.setdefault(tuple(lines(op)), []).append(op.name)
    return "".join(written(alike, *found) for found, alike in names.items())


def written(names: list[str], shapes: str, *costs: str) -> str:
    head = textwrap.wrap(" ".join([*names, shapes]), 118, break_long_words=False, break_on_hyphens=False)
    return "\n".join([*head, *costs]) + "\n"
