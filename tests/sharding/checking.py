"""Does an op on shards give what it gives unsharded? Every way that its rule allows is tried."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gt.dispatcher.planner.choose import Sharding, instantiate
from gt.layout import Mesh, Pieces
from gt.ops import Op
from gt.ops.record import as_tuple
from gt.ops.sharding import bind, groups
from gt.program import Spec
from tests.sharding.layouts import drawn
from tests.sharding.simulate import apply, close, place, plain, read, run_sharded, spec_of


def ways(op: Op, specs: Sequence[Spec], attrs: dict[str, Any], m: Mesh) -> Iterator[Sharding]:
    """All shardings of one use of an op: every axis splits a factor, carries a partial value, or does nothing."""
    bound = bind(op, specs, as_tuple(op.infer(*specs, **attrs)), attrs)
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
        for split in splits(over, bound.sizes):
            made = instantiate(op, bound, specs, attrs, m, split, keep)
            if made is not None:
                yield made


def splits(over: dict[str, list[str]], sizes: dict[str, int]) -> Iterator[dict[str, Pieces]]:
    """The factors over these axes: in every order, in one piece and strided."""
    forms = []
    for f, axes in over.items():
        n = sizes[f]
        mine: list[Pieces] = [((n, order),) for order in itertools.permutations(axes)]
        for k in (d for d in range(2, n) if n % d == 0):
            mine.append(((k, ()), (n // k, tuple(axes))))
            break
        forms.append(mine)
    for pieces in itertools.product(*forms):
        yield dict(zip(over, pieces, strict=True))


def mistakes(
    op: Op, args: Sequence[Any], attrs: dict[str, Any], m: Mesh, rng: random.Random, limit: int | None = None
) -> list[str]:
    """What went wrong in the ways that the rule allows (at most `limit` of them), as lines of text."""
    specs = [spec_of(a) for a in args]
    every = list(ways(op, specs, attrs, m))
    if limit is not None and len(every) > limit:
        every = rng.sample(every, limit)
    wanted, wrong = plain(op, args, attrs), []
    draws = np.random.default_rng(rng.randrange(1 << 30))
    for way in every:
        operands = [a if want is None else place(a, want, draws) for a, want in zip(args, way.wants, strict=True)]
        try:
            made = run_sharded(op, attrs, specs, way, operands)
            good = [close(read(v), w, v.spec.dtype) for v, w in zip(made, wanted, strict=True)]
        except Exception as e:  # whatever a wrong rule leads to is a finding
            good = [False]
            wrong.append(f"{type(e).__name__}: {str(e)[:200]}")
        if not all(good):
            shapes = [s.shape for s in specs]
            wrong.append(f"{op.name} {shapes} {attrs} on {m!r}: split {way.split} {way.wants} -> {way.gives}: {good}")
    return wrong


def mistakes_anyhow(
    op: Op, args: Sequence[Any], attrs: dict[str, Any], m: Mesh, rng: random.Random, count: int
) -> list[str]:
    """What went wrong with operands in layouts drawn at random, redistributed as the algorithm chooses."""
    wanted, wrong = plain(op, args, attrs), []
    draws = np.random.default_rng(rng.randrange(1 << 30))
    for _ in range(count):
        layouts = [drawn(rng, m, a.shape, kinds_of(a)) if isinstance(a, np.ndarray) else None for a in args]
        operands = [a if one is None else place(a, one, draws) for a, one in zip(args, layouts, strict=True)]
        try:
            made = apply(op, operands, attrs, m)
            good = [close(read(v), w, v.spec.dtype) for v, w in zip(made, wanted, strict=True)]
        except Exception as e:
            good = [False]
            wrong.append(f"{type(e).__name__}: {str(e)[:200]}")
        if not all(good):
            shapes = [np.shape(a) for a in args]
            wrong.append(f"{op.name} {shapes} {attrs} on {m!r}: {layouts}: {good}")
    return wrong


def kinds_of(a: np.ndarray) -> tuple[str, ...]:
    """What a tensor may be partial in. Values that are not finite have no addends."""
    if a.dtype.kind == "f" and a.dtype.itemsize == 8:
        return ("sum", "max", "min") if np.isfinite(a).all() else ("max", "min")
    return ("sum",) if a.dtype.kind == "c" else ("max", "min") if a.dtype.kind == "b" else ()
