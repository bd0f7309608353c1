"""Whether an op gives on shards what it gives unsharded: in every way that its rule allows (`ways.all_ways`), and from
layouts drawn at random, where a dimension may also be in three pieces or more.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gt.dispatcher.planner.ways import all_ways, use_of
from gt.layout import Layout, Mesh
from gt.ops import Op
from tests.sharding.cases import uses
from tests.sharding.layouts import drawn
from tests.sharding.simulate import Known, Value, apply, close, place, plain, read, run_way, spec_of


class Example:
    """A use of an op on arrays, its results unsharded, and what is the same for every way and mesh."""

    def __init__(self, op: Op, args: Sequence[Any], attrs: dict[str, Any]) -> None:
        self.op, self.args, self.attrs = op, args, attrs
        self.use = use_of(op, [spec_of(a) for a in args], attrs)
        self.wanted = plain(op, args, attrs)
        self.known = Known()
        self._placed: dict[tuple[int, Layout], Value] = {}

    def placed(self, k: int, one: Layout, draws: np.random.Generator) -> Value:
        """An operand in a layout: each time in the same parts."""
        if (k, one) not in self._placed:
            self._placed[k, one] = place(self.args[k], one, draws)
        return self._placed[k, one]

    def wrong(self, made: Sequence[Value]) -> list[int]:
        """Which results are not what they are unsharded."""
        pairs = zip(made, self.wanted, strict=True)
        return [i for i, (v, w) in enumerate(pairs) if v.spec.shape != w.shape or not close(read(v), w, v.spec.dtype)]

    def __repr__(self) -> str:
        return f"{self.op.name} {[s.shape for s in self.use.specs]} {self.attrs}"


def mistakes(example: Example, m: Mesh, rng: random.Random) -> list[str]:
    """What went wrong in the ways that the rule allows, as lines of text."""
    found = []
    draws = np.random.default_rng(rng.randrange(1 << 30))
    for way in all_ways(example.use, m):
        try:
            operands = [a if one is None else example.placed(k, one, draws)
                        for k, (a, one) in enumerate(zip(example.args, way.wants, strict=True))]  # fmt: skip
            said: list[Any] = example.wrong(run_way(way, operands, example.known))
        except Exception as e:  # whatever a wrong rule leads to is a finding
            said = [f"{type(e).__name__}: {str(e)[:200]}"]
        if said:
            found.append(f"{example!r} on {m!r}: split {way.split} {way!r}: {said}")
    return found


def mistakes_from_any_layout(example: Example, m: Mesh, rng: random.Random, count: int = 1) -> list[str]:
    """What went wrong with operands in layouts drawn at random, redistributed as the algorithm chooses."""
    found = []
    draws = np.random.default_rng(rng.randrange(1 << 30))
    for _ in range(count):
        layouts = [drawn(rng, m, a.shape, kinds_of(a)) if isinstance(a, np.ndarray) else None for a in example.args]
        try:
            operands = [a if at is None else place(a, at, draws) for a, at in zip(example.args, layouts, strict=True)]
            said: list[Any] = example.wrong(apply(example.op, operands, example.attrs, m))
        except Exception as e:
            said = [f"{type(e).__name__}: {str(e)[:200]}"]
        if said:
            found.append(f"{example!r} on {m!r}: {layouts}: {said}")
    return found


def sweep(op: Op, meshes: Sequence[Mesh], look: Callable[[Example, Mesh, random.Random], list[str]]) -> list[str]:
    """What a look at every use of an op on these meshes finds."""
    found = []
    for i, (args, attrs) in enumerate(uses(op)):
        example = Example(op, args, attrs)
        for m in meshes:
            found += look(example, m, random.Random(f"{op.name} {i} {m!r}"))
    return found


def kinds_of(a: np.ndarray) -> tuple[str, ...]:
    """What a tensor may be partial in. Values that are not finite have no addends."""
    if a.dtype.kind == "f" and a.dtype.itemsize == 8:
        return ("sum", "max", "min") if np.isfinite(a).all() else ("max", "min")
    return ("sum",) if a.dtype.kind == "c" else ("max", "min") if a.dtype.kind == "b" else ()
