"""Does an op on shards give what it gives unsharded? Every way that its rule allows is tried.

A way says for every axis of the mesh what it does: it splits a factor of the rule, carries a partial value through a
group of operands that the op is linear in, or does nothing. A factor that is split lies in one piece, over its axes in
each order; and cut in two at each divisor of its size, with the axes in each order on the major piece, on the minor
one, and on both. Two ways that come to the same layouts of factors, operands and results are one. An operand
that is used in windows is split like its factor, or whole. Three pieces and more are left to layouts drawn at random.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from gt.dispatcher.planner.choose import Have, Sharding, instantiate
from gt.layout import Layout, Mesh, Pieces, canonical
from gt.ops import Op
from gt.ops.record import as_tuple
from gt.ops.sharding import Bound, bind, groups
from gt.program import Spec
from tests.sharding.cases import uses
from tests.sharding.layouts import drawn
from tests.sharding.simulate import Known, Value, apply, close, place, plain, read, run_sharded, spec_of


class Use:
    """One use of an op, and what is the same of it for every way and mesh."""

    def __init__(self, op: Op, args: Sequence[Any], attrs: dict[str, Any]) -> None:
        self.op, self.args, self.attrs = op, args, attrs
        self.specs = [spec_of(a) for a in args]
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
        return f"{self.op.name} {[s.shape for s in self.specs]} {self.attrs}"


def ways(op: Op, specs: Sequence[Spec], attrs: dict[str, Any], m: Mesh) -> Iterator[Sharding]:
    """All shardings of one use of an op, each once."""
    bound = bind(op, specs, as_tuple(op.infer(*specs, **attrs)), attrs)
    seen = set()
    # A window is fetched from shards of its operand; or, if nobody says where that lies, cut out of all of it.
    everywhere: list[Sequence[Have] | None] = [None, [()] * len(specs)] if bound.rule.windows else [None]
    for over, keep in picked(op, bound, specs, attrs, m):
        for split, have in itertools.product(splits(over, bound.sizes), everywhere):
            made = instantiate(op, bound, specs, attrs, m, split, keep, have)
            if made is None:
                continue
            factors = frozenset((f, canonical(pieces, m)) for f, pieces in made.split.items())
            if (factors, made.wants, made.gives) not in seen:
                seen.add((factors, made.wants, made.gives))
                yield made


def picked(
    op: Op, bound: Bound, specs: Sequence[Spec], attrs: dict[str, Any], m: Mesh
) -> Iterator[tuple[dict[str, list[str]], dict[str, tuple[tuple[int, ...], str]]]]:
    """What the axes may do: the axes of each factor that is split, and what is carried over the others."""
    picks: list[tuple[Any, ...]] = [("split", f) for f in bound.splittable()]
    picks += [("keep", group, "sum") for group in groups(op, specs, attrs)]
    if op.moves:
        everyone = tuple(k for k, s in enumerate(specs) if not s.weak)
        ordered = all(not specs[k].dtype.is_complex for k in everyone)
        picks += [("keep", everyone, kind) for kind in ("sum", "max", "min") if kind == "sum" or ordered]
        if any(not specs[k].dtype.is_differentiable for k in everyone):
            picks = [p for p in picks if p[0] != "keep" or p[2] != "sum"]
    for chosen in itertools.product([("drop",), *picks], repeat=len(m.sizes)):
        over: dict[str, list[str]] = {}
        keep = {}
        for a, pick in zip(m.sizes, chosen, strict=True):
            if pick[0] == "split":
                over.setdefault(pick[1], []).append(a)
            elif pick[0] == "keep":
                keep[a] = pick[1:]
        yield over, keep


def splits(over: dict[str, list[str]], sizes: dict[str, int]) -> Iterator[dict[str, Pieces]]:
    """The factors over these axes: in every order, in one piece and in two."""
    forms = []
    for f, axes in over.items():
        n, mine = sizes[f], list[Pieces]()
        divisors = [d for d in range(2, n) if n % d == 0]
        for order in itertools.permutations(axes):
            mine.append(((n, order),))
            mine += [((d, order[:i]), (n // d, order[i:])) for d in divisors for i in range(len(order) + 1)]
        forms.append(mine)
    for pieces in itertools.product(*forms):
        yield dict(zip(over, pieces, strict=True))


def mistakes(use: Use, m: Mesh, rng: random.Random) -> list[str]:
    """What went wrong in the ways that the rule allows, as lines of text."""
    found = []
    draws = np.random.default_rng(rng.randrange(1 << 30))
    for way in ways(use.op, use.specs, use.attrs, m):
        try:
            operands = [a if one is None else use.placed(k, one, draws)
                        for k, (a, one) in enumerate(zip(use.args, way.wants, strict=True))]  # fmt: skip
            said: list[Any] = use.wrong(run_sharded(use.op, use.attrs, use.specs, way, operands, use.known))
        except Exception as e:  # whatever a wrong rule leads to is a finding
            said = [f"{type(e).__name__}: {str(e)[:200]}"]
        if said:
            found.append(f"{use!r} on {m!r}: split {way.split} {way.wants} -> {way.gives}: {said}")
    return found


def mistakes_anyhow(use: Use, m: Mesh, rng: random.Random, count: int = 1) -> list[str]:
    """What went wrong with operands in layouts drawn at random, redistributed as the algorithm chooses."""
    found = []
    draws = np.random.default_rng(rng.randrange(1 << 30))
    for _ in range(count):
        layouts = [drawn(rng, m, a.shape, kinds_of(a)) if isinstance(a, np.ndarray) else None for a in use.args]
        try:
            operands = [a if one is None else place(a, one, draws) for a, one in zip(use.args, layouts, strict=True)]
            said: list[Any] = use.wrong(apply(use.op, operands, use.attrs, m))
        except Exception as e:
            said = [f"{type(e).__name__}: {str(e)[:200]}"]
        if said:
            found.append(f"{use!r} on {m!r}: {layouts}: {said}")
    return found


def sweep(op: Op, meshes: Sequence[Mesh], look: Callable[[Use, Mesh, random.Random], list[str]]) -> list[str]:
    """What a look at every use of an op on these meshes finds."""
    found = []
    for i, (args, attrs) in enumerate(uses(op)):
        use = Use(op, args, attrs)
        for m in meshes:
            found += look(use, m, random.Random(f"{op.name} {i} {m!r}"))
    return found


def kinds_of(a: np.ndarray) -> tuple[str, ...]:
    """What a tensor may be partial in. Values that are not finite have no addends."""
    if a.dtype.kind == "f" and a.dtype.itemsize == 8:
        return ("sum", "max", "min") if np.isfinite(a).all() else ("max", "min")
    return ("sum",) if a.dtype.kind == "c" else ("max", "min") if a.dtype.kind == "b" else ()
