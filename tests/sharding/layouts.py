"""Layouts drawn at random, and meshes to draw them on."""

from __future__ import annotations

import random
from collections.abc import Sequence

from gt.layout import KINDS, Layout, Mesh, Pieces, layout, mesh

LINES = [mesh(x=2), mesh(x=3), mesh(x=4)]
GRIDS = [mesh(x=2, y=2), mesh(x=2, y=3)]
MESHES = [*LINES, *GRIDS]


def drawn(rng: random.Random, m: Mesh, shape: Sequence[int], partial: Sequence[str] = KINDS) -> Layout:
    """Some layout of a tensor: axes in any order, nested or apart, strided pieces, partial of one kind."""
    dims: list[list[tuple[int, tuple[str, ...]]]] = [[(n, ())] for n in shape]
    waiting: dict[str, str] = {}
    kind = rng.choice(list(partial)) if partial else ""
    for a in rng.sample(list(m.sizes), len(m.sizes)):
        chance = rng.random()
        if chance < 0.2:
            continue
        if kind and chance < 0.4:
            waiting[a] = kind
            continue
        if not shape:
            continue
        d = rng.randrange(len(shape))
        n, over = dims[d][-1]
        factors = [f for f in range(2, n) if n % f == 0]
        if factors and not over and rng.random() < 0.3:
            f = rng.choice(factors)
            dims[d][-1:] = [(f, (a,)), (n // f, ())] if rng.random() < 0.5 else [(f, ()), (n // f, (a,))]
        else:
            dims[d][-1] = (n, (*over, a))
    pieces: list[Pieces] = [tuple(d) for d in dims]
    return layout(m, pieces, waiting)
