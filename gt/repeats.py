"""Stretches of a sequence that repeat: equal layers of a program, for the solver and for compilers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

#: A stretch shorter than this is not worth finding.
LEAST = 8


def runs(tokens: Sequence[int], longest: int = 0, saving: bool = False) -> list[tuple[int, int, int]]:
    """Stretches that repeat, as (start, period, stop), none of which overlap. The longest is taken first; with `saving`
    the one with the most elements that repeat earlier ones. With `longest`, only periods up to that.

    >>> runs([9, *[1, 2, 3, 4] * 3, 8])
    [(1, 4, 13)]
    >>> tokens = [*[1, 2] * 6, 9, *[1, 2] * 3, 9]
    >>> runs(tokens), runs(tokens, saving=True)
    ([(6, 7, 20)], [(0, 2, 12)])
    """
    row = np.asarray(tokens)
    n = len(row)
    free = np.ones(n, bool)
    found: list[tuple[int, int, int]] = []
    candidates: list[tuple[int, int, int, int]] = []  # (what counts, length, -period, start)
    for period in range(1, min(n // 2, longest or n) + 1):
        equal = row[:-period] == row[period:]
        edges = np.flatnonzero(np.diff(np.concatenate(([False], equal, [False])).astype(np.int8)))
        for start, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            if stop - start >= period and stop - start + period >= LEAST:
                length = stop - start + period
                candidates.append((length - period if saving else length, length, -period, start))
    for _, length, minus, start in sorted(candidates, reverse=True):
        period = -minus
        # A longer run may have taken some of it: what is left in the middle may still repeat.
        inside = np.concatenate(([False], free[start : start + length], [False]))
        edges = np.flatnonzero(np.diff(inside.astype(np.int8)))
        for a, b in zip((edges[::2] + start).tolist(), (edges[1::2] + start).tolist(), strict=True):
            if b - a >= max(2 * period, LEAST):
                found.append((a, period, b))
                free[a:b] = False
    return sorted(found)
