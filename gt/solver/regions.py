"""Layers that are alike: instructions that repeat in the same order are one class, and share one choice.

A program of 32 equal layers is 32 times the same stretch of instructions forward, 32 times another one backward, and
32 times a third one in the optimizer. `find_classes` finds such stretches as runs in which every instruction equals the
one a period later: the same op, attributes and specs. Sharing a choice is a restriction and never an error, so what the
operands of equal instructions are does not matter here.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from gt.ops.check import Checked

#: A run shorter than this many instructions is not worth a class.
LEAST = 8


@dataclass(frozen=True, slots=True)
class Classes:
    """Which instructions and inputs share a choice. Each class is known by its first member."""

    instructions: tuple[int, ...]  #: of each instruction: the first one of its class
    inputs: tuple[int, ...]  #: of each input: the first one of its class


def alone(checked: Checked) -> Classes:
    """Every instruction and every input in a class of its own."""
    return Classes(tuple(range(len(checked.program.code))), tuple(range(len(checked.program.inputs))))


def find_classes(checked: Checked) -> Classes:
    """The classes of a program."""
    known: dict[Hashable, int] = {}
    tokens = []
    number = len(checked.program.inputs)
    for ins in checked.program.code:
        specs = tuple([checked.specs[a] if a >= 0 else None for a in ins.args])
        results = checked.specs[number : number + ins.results]
        number += ins.results
        key = (ins.op, repr(sorted(ins.attrs.items())), specs, results)
        tokens.append(known.setdefault(key, len(known)))
    same = list(range(len(tokens)))
    for start, period, stop in runs(tokens):
        for i in range(start + period, stop):
            same[i] = same[i - period]
    return Classes(tuple(same), _input_classes(checked, same))


def runs(tokens: Sequence[int]) -> list[tuple[int, int, int]]:
    """Stretches that repeat, as (start, period, stop), none of which overlap: the longest first.

    >>> runs([9, *[1, 2, 3, 4] * 3, 8])
    [(1, 4, 13)]
    """
    row = np.asarray(tokens)
    n = len(row)
    free = np.ones(n, bool)
    found: list[tuple[int, int, int]] = []
    candidates: list[tuple[int, int, int]] = []  # (length, -period, start)
    for period in range(1, n // 2 + 1):
        equal = row[:-period] == row[period:]
        edges = np.flatnonzero(np.diff(np.concatenate(([False], equal, [False])).astype(np.int8)))
        for start, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            if stop - start >= period and stop - start + period >= LEAST:
                candidates.append((stop - start + period, -period, start))
    for length, minus, start in sorted(candidates, reverse=True):
        period = -minus
        # A longer run may have taken some of it: what is left in the middle may still repeat.
        inside = np.concatenate(([False], free[start : start + length], [False]))
        edges = np.flatnonzero(np.diff(inside.astype(np.int8)))
        for a, b in zip((edges[::2] + start).tolist(), (edges[1::2] + start).tolist(), strict=True):
            if b - a >= max(2 * period, LEAST):
                found.append((a, period, b))
                free[a:b] = False
    return sorted(found)


def _input_classes(checked: Checked, same: Sequence[int]) -> tuple[int, ...]:
    """Inputs are alike if equal instructions read them in the same places, and equal ones make what replaces them."""
    program = checked.program
    uses: list[set[tuple[int, int]]] = [set() for _ in program.inputs]
    maker: dict[int, tuple[int, int]] = {}
    number = len(program.inputs)
    for i, ins in enumerate(program.code):
        for k, a in enumerate(ins.args):
            if 0 <= a < len(program.inputs):
                uses[a].add((same[i], k))
        for r in range(ins.results):
            maker[number + r] = (same[i], r)
        number += ins.results
    replaced = {i: maker.get(program.outputs[o]) for o, i in program.updates}
    first: dict[Hashable, int] = {}
    return tuple([
        first.setdefault((checked.specs[j], frozenset(uses[j]), replaced.get(j)), j) for j in range(len(program.inputs))
    ])  # fmt: skip
