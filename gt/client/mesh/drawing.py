"""Draws which worker holds which part of a tensor."""

from __future__ import annotations

import itertools
import math

from gt import layout
from gt.layout import Layout, Runs
from gt.program import Spec

MOST_CELLS = 16  #: Most rows or columns of a table. A layout with more is listed worker by worker.

_JOIN: dict[str | None, str] = {None: " ", "sum": " + ", "max": " max ", "min": " min "}


def drawing(lay: Layout, spec: Spec) -> str:
    """A table of the tensor's parts, each with the numbers of the workers that hold it.

    >>> from gt import dtypes
    >>> from gt.program import spec
    >>> print(drawing(layout.parse("[. 5@x]", layout.mesh([3, 4], x=2)), spec((4, 5), dtypes.float32)))
    f32[4,5] as [. 5@x] on x=2: workers 3 4
              0:2        2:5
          ┌──────────┬──────────┐
      0:4 │ worker 3 │ worker 4 │
          └──────────┴──────────┘
    """
    numbers = " ".join(map(str, lay.mesh.workers))
    head = f"{spec!r} as {lay!r} on {lay.mesh!r}: workers {numbers}"
    if len(lay.mesh.workers) == 1:
        return f"{spec!r}, whole on worker {numbers}"
    shards = layout.shards(lay, spec.shape)
    split = [d for d in range(spec.ndim) if lay.pieces(d)]
    edges = [_edges([runs[d] for runs in shards.values()]) for d in range(spec.ndim)]
    if spec.ndim == 0 or not spec.size or len(split) > 2 or any(len(edges[d]) > MOST_CELLS + 1 for d in split):
        return "\n".join([head, *_rows(lay, shards)])
    dims = sorted((split + [d for d in range(spec.ndim) if d not in split])[:2])
    notes = [f"dimension {d} is whole" for d in range(spec.ndim) if d not in dims]
    *above, across = dims
    table = [
        [_cell(lay, shards, {**dict.fromkeys(above, row), across: column}) for column in _pairs(edges[across])]
        for row in (_pairs(edges[above[0]]) if above else [(0, 0)])
    ]
    names = [_name(r) for r in _pairs(edges[above[0]])] if above else [""]
    if spec.ndim > 2:
        names = [f"dim {above[0]} {name}" for name in names]
    tops = [_name(c) if spec.ndim <= 2 else f"dim {across} {_name(c)}" for c in _pairs(edges[across])]
    return "\n".join([head, *_boxes(table, names, tops), *notes])


def _edges(runs: list[Runs]) -> list[int]:
    """The positions along a dimension where one worker's part ends and the next begins."""
    return sorted({end for each in runs for run in each for end in run})


def _pairs(edges: list[int]) -> list[tuple[int, int]]:
    return list(itertools.pairwise(edges))


def _name(part: tuple[int, int]) -> str:
    return f"{part[0]}:{part[1]}"


def _cell(lay: Layout, shards: dict[int, tuple[Runs, ...]], at: dict[int, tuple[int, int]]) -> str:
    """The workers that hold the part of the tensor at these positions."""
    holders = [
        worker
        for worker, runs in shards.items()
        if all(any(a <= lo and hi <= b for a, b in runs[d]) for d, (lo, hi) in at.items())
    ]
    return _said(lay, holders)


def _said(lay: Layout, holders: list[int]) -> str:
    """The workers' numbers: copies separated by spaces, partial results by the reduction's sign."""
    groups: dict[int, list[int]] = {}
    for worker in holders:
        at = lay.mesh.coordinates[lay.mesh.workers.index(worker)]
        groups.setdefault(lay.mesh.index(lay.pending, at), []).append(worker)
    texts = [" ".join(map(str, group)) for group in groups.values()]
    if lay.partial and any(len(group) > 1 for group in groups.values()):
        texts = [f"({text})" if " " in text else text for text in texts]
    return f"worker{'s' * (len(holders) > 1)} " + _JOIN[lay.kind].join(texts)


def _rows(lay: Layout, shards: dict[int, tuple[Runs, ...]]) -> list[str]:
    """One line per worker: the part it holds."""
    lines = []
    for worker, runs in shards.items():
        parts = ["+".join(_name(r) for r in each) or "nothing" for each in runs]
        count = math.prod(sum(b - a for a, b in each) for each in runs)
        what = f"[{', '.join(parts)}]" if parts and count else "nothing" if parts else "all"
        lines.append(f"  worker {worker}: {what}" + (f", a part of the {lay.kind}" if lay.partial else ""))
    return lines


def _boxes(table: list[list[str]], names: list[str], tops: list[str]) -> list[str]:
    widths = [max(len(c) for c in [*column, top]) for *column, top in zip(*table, tops, strict=True)]
    left = max(map(len, names)) + 2
    margin = " " * left

    def line(a: str, b: str, c: str) -> str:
        return f"{margin} {a}{b.join('─' * (w + 2) for w in widths)}{c}"

    titles = margin + " " + "".join(f"{top:^{w + 3}}" for top, w in zip(tops, widths, strict=True)).rstrip()
    lines = [titles, line("┌", "┬", "┐")]
    for k, (name, row) in enumerate(zip(names, table, strict=True)):
        if k:
            lines.append(line("├", "┼", "┤"))
        cells = " │ ".join(f"{text:^{w}}" for text, w in zip(row, widths, strict=True))
        lines.append(f"{name:>{left}} │ {cells} │")
    return [*lines, line("└", "┴", "┘")]
