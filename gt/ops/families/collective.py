"""What workers do together, and the op that gives a tensor a layout.

Only the planner writes the collective ops; a program of a client that has one is refused. They work on flat arrays of
declared sizes: all the cutting and joining around them is ordinary ops, so every layout needs only these three. The
worker runs them with its groups (gt/worker/run/collectives.py); the kernels here are those of a group of one.

Law: every worker of a group runs the same collectives of the group in the same order, and the sizes that one of them
declares are those that the others expect. The planner writes both ends, so they agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gt.errors import ArgumentError, ProgramError
from gt.layout import KINDS
from gt.ops import rules
from gt.ops.record import Site, op, ops
from gt.ops.sharding import pointwise, pointwise_op
from gt.program import Spec, spec


def _group(name: str, workers: Any, rank: Any) -> int:
    """How many they are."""
    if not isinstance(workers, Sequence) or not workers or len(set(workers)) != len(workers):
        raise ProgramError(f"{name}: workers must be the different ids of a group, got {rules.shown(workers)}")
    if type(rank) is not int or not 0 <= rank < len(workers):
        raise ProgramError(f"{name}: rank must be in a group of {len(workers)}, got {rules.shown(rank)}")
    return len(workers)


def _sizes(name: str, sizes: Any, count: int) -> int:
    if not isinstance(sizes, Sequence) or len(sizes) != count or any(type(n) is not int or n < 0 for n in sizes):
        raise ProgramError(f"{name}: expected {count} sizes, got {rules.shown(sizes)}")
    return sum(sizes)


def _flat(name: str, x: Spec, size: int) -> None:
    rules.tensor(name, x)
    if x.shape != (size,):
        raise ProgramError(f"{name}: expected an array of {size} elements, got shape {x.shape}")


def _infer_all_reduce(x: Spec, *, workers: Any, rank: Any, kind: Any) -> Spec:
    rules.tensor("all_reduce", x)
    _group("all_reduce", workers, rank)
    if kind not in KINDS:
        raise ProgramError(f"all_reduce: kind must be one of {', '.join(KINDS)}; got {rules.shown(kind)}")
    return x


def _infer_all_gather(x: Spec, *, workers: Any, rank: Any, sizes: Any) -> Spec:
    total = _sizes("all_gather", sizes, _group("all_gather", workers, rank))
    _flat("all_gather", x, sizes[rank])
    return spec((total,), x.dtype)


def _infer_all_to_all(x: Spec, *, workers: Any, rank: Any, sends: Any, takes: Any) -> Spec:
    count = _group("all_to_all", workers, rank)
    _flat("all_to_all", x, _sizes("all_to_all", sends, count))
    total = _sizes("all_to_all", takes, count)
    if sends[rank] != takes[rank]:
        raise ProgramError(f"all_to_all: sends {sends[rank]} elements to itself, but takes {takes[rank]}")
    return spec((total,), x.dtype)


def _copy_torch(torch: Any, site: Site, **attrs: Any) -> Any:
    return lambda x: x.clone()


_ALONE: dict[str, Any] = {"workers": (0,), "rank": 0}
_COPY: dict[str, Any] = {"array": lambda xp, x, **attrs: xp.array(x), "torch": _copy_torch}

all_reduce = op(
    "all_reduce",
    "The sum, max or min of the arrays of the workers of a group.",
    infer=_infer_all_reduce,
    vjp=None,
    kernels=_COPY,
    collective=True,
    samples=lambda rng: [((rng.normal(size=(2, 3)),), {**_ALONE, "kind": kind}) for kind in KINDS],
)

all_gather = op(
    "all_gather",
    "The arrays of the workers of a group, concatenated.",
    infer=_infer_all_gather,
    vjp=None,
    kernels=_COPY,
    collective=True,
    samples=lambda rng: [((rng.normal(size=(n,)),), {**_ALONE, "sizes": (n,)}) for n in (5, 0)],
)

all_to_all = op(
    "all_to_all",
    "The parts for this worker of the arrays of all workers of a group, concatenated.",
    infer=_infer_all_to_all,
    vjp=None,
    kernels=_COPY,
    collective=True,
    samples=lambda rng: [((rng.normal(size=(n,)),), {**_ALONE, "sends": (n,), "takes": (n,)}) for n in (5, 0)],
)


# -- checks and wishes -----------------------------------------------------------------------


def _infer_in_range(index: Spec, *, n: Any, extra: Any = None) -> Spec:
    rules.index("in_range", index)
    rules.size("in_range", "n", n)
    if extra is not None and type(extra) is not int:
        raise ArgumentError(f"in_range: extra must be an int or None, got {rules.shown(extra)}")
    return index


in_range = op(
    "in_range",
    "An index whose elements must be in [0, n) or equal to `extra`; for shards of an index.",
    infer=_infer_in_range,
    indices=lambda index, *, n, extra=None: {0: (n, extra)},
    keeps=(0,),
    factors=pointwise,  # it moves elements, but a part of a value may have another layout than the value
    vjp=None,
    kernels={"array": lambda xp, x, **attrs: xp.array(x), "torch": _copy_torch},
    samples=lambda rng: [
        ((rng.integers(0, 9, size=(2, 3)),), {"n": 9}),
        ((np.array([0, -100, 3]),), {"n": 4, "extra": -100}),
        ((np.zeros((0, 2), np.int64),), {"n": 4}),
    ],
)


def _infer_shard(x: Spec, *, layout: Any) -> Spec:
    rules.tensor("shard", x)
    if type(layout) is not str or len(layout) > 1000:
        raise ArgumentError(f"shard: layout must be a string such as '[100@x .]', got {rules.shown(layout)}")
    return x


shard = pointwise_op(
    "shard",
    "The same tensor with the given layout on the session's mesh; its gradient gets that layout too.",
    infer=_infer_shard,
    moves=True,
    pins=True,
    vjp=(lambda g, y, x, *, layout: ops.shard(g, layout=layout),),
    kernels=_COPY,
    samples=lambda rng: [
        ((rng.normal(size=(4, 3)),), {"layout": ""}),
        ((np.arange(3),), {"layout": "[]"}),
        ((np.zeros((0, 3)),), {"layout": ""}),
    ],
)
