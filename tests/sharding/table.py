"""What is communicated when one dimension of one operand is split: op by op, dimension by dimension.

`expected.txt` holds the table, so that a rule that gets lost, or one that says "must be whole" where it need not, is
seen. Under the op and the shapes of its operands, a line is: operand.dimension that is split over two workers,
collectives in order, layouts of the results. Where the rule takes the split, the op runs so, whatever it costs
(`-`: nothing is communicated). Where it does not, the line says what is done instead: `gather`, or `expand` and the
collectives of the ops that it is written in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gt.dispatcher.planner.choose import halo_step, instantiate, merge_step
from gt.dispatcher.planner.redistribute import LOCAL, redistribute
from gt.layout import Layout, layout, mesh, split
from gt.ops import Op
from gt.ops.record import as_tuple
from gt.ops.sharding import Bound, bind
from gt.program import Spec
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
    args, attrs = sample(op)
    specs = [spec_of(a) for a in args]
    results = as_tuple(op.infer(*specs, **attrs))
    bound = bind(op, specs, results, attrs)
    arrays = [k for k, a in enumerate(args) if isinstance(a, np.ndarray)]
    yield f"{op.name} ({' '.join('x'.join(map(str, specs[k].shape)) or '()' for k in arrays)})"
    if not arrays:
        free = [str(d) for d, dim in enumerate(bound.outputs[0]) if dim and dim[0] not in bound.rule.whole]
        yield f"    created, free to split: {' '.join(free) or 'nothing'}"
    for k in arrays:
        for d, n in enumerate(args[k].shape):
            if n < 2:
                continue
            have = [split(MESH, a.shape, {d: "x"}) if i == k else layout(MESH) for i, a in enumerate(args)]
            moved, gives = allowed(op, bound, specs, attrs, have, k, d) or instead(op, args, attrs, arrays, have)
            yield f"    {k}.{d}  {moved:40}  {'  '.join(map(repr, gives))}".rstrip()


def allowed(
    op: Op, bound: Bound, specs: Sequence[Spec], attrs: dict[str, Any], have: list[Layout], k: int, d: int
) -> tuple[str, Sequence[Layout]] | None:
    """What the op costs if the largest factor of that dimension that may be split is split."""
    free = [f for f in bound.inputs[k][d] if f in bound.splittable()]
    if not free:
        return None
    factor = max(free, key=lambda f: bound.sizes[f])
    way = instantiate(op, bound, specs, attrs, MESH, {factor: ((bound.sizes[factor], ("x",)),)}, {}, have)
    if way is None:
        return None
    kinds = []
    for i, (s, want) in enumerate(zip(specs, way.wants, strict=True)):
        if want is not None:
            steps = (*redistribute(have[i], want, s.shape), *halo_step(op, attrs, specs, way, i))
            kinds += [step.kind for step in steps if step.kind not in LOCAL]
    if way.merges:
        kinds.append(merge_step(op, attrs, specs, way).kind)
    return " ".join(kinds) or "-", way.gives


def instead(
    op: Op, args: Sequence[Any], attrs: dict[str, Any], arrays: list[int], have: list[Layout]
) -> tuple[str, Sequence[Layout]]:
    draws, log = np.random.default_rng(0), Log()
    operands = [place(a, have[i], draws) if i in arrays else a for i, a in enumerate(args)]
    made = apply(op, operands, attrs, MESH, log)
    expands = op.parts is not None or op.compose is not None
    return " ".join(["expand" if expands else "gather", *collectives(log)]), [v.layout for v in made]


def table() -> str:
    return "\n".join(line for op in sorted(OPS, key=lambda op: op.name) for line in lines(op)) + "\n"
