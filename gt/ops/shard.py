"""One use of an op on one shard.

`Shard` is what a record's `local` is given: which part of each factor this worker has. `on_shard` writes down the
instructions that the worker runs: the op itself, or what its `local` says.

Law: an op whose every result is decided without it is not run. If a worker has nothing of some factor, the results
that have the factor are empty and the others are partial over it, so they are the neutral element. (Unless a part of
a bias is added here: then the op runs on nothing and that.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gt.dtypes import DType
from gt.errors import ProgramError
from gt.layout import Coordinate, Mesh, Pieces, held
from gt.ops.record import TABLE, Op
from gt.ops.sharding import Bound, added
from gt.ops.trace import OpTrace, Symbol
from gt.program import Spec, spec


@dataclass(frozen=True, slots=True)
class Part:
    """What a worker has of one factor: its size, and the `start` of its first element (-1 if not contiguous)."""

    start: int
    size: int
    index: int  #: which part it is ...
    count: int  #: ... of how many


@dataclass(slots=True, eq=False)
class Shard:
    """What `local` is given before the operands. Instructions are written into a trace."""

    op: Op
    specs: Sequence[Spec]  #: of the whole operands
    sizes: dict[str, int]  #: of the whole factors
    parts: dict[str, Part]  #: of the factors that are split
    results: Sequence[Spec]  #: of the results on this shard
    trace: OpTrace = field(default_factory=OpTrace)

    def split(self, factor: str) -> bool:
        return factor in self.parts

    def start(self, factor: str) -> int:
        """Where this shard's part of a factor starts; 0 if the factor is whole."""
        part = self.parts.get(factor)
        if part is not None and part.start < 0:
            raise ProgramError(f"{self.op.name}: asks where {factor} starts, but its rule does not say {factor}@")
        return part.start if part is not None else 0

    def size(self, factor: str) -> int:
        """How much of a factor this shard has."""
        part = self.parts.get(factor)
        return part.size if part is not None else self.sizes[factor]

    def apply(self, op: Op, *args: Any, **attrs: Any) -> Any:
        """An op whose operands may all be numbers."""
        return self.trace.add(op, args, attrs)

    def again(self, *args: Any, **attrs: Any) -> Any:
        """The op itself, with these operands and attributes."""
        return self.trace.add(self.op, args, attrs)


def parts_at(split: dict[str, Pieces], sizes: dict[str, int], mesh: Mesh, at: Coordinate) -> dict[str, Part]:
    """What the worker at a coordinate has of the split factors."""
    found = {}
    for f, pieces in split.items():
        runs = held(pieces, sizes[f], mesh, at)
        count = sum(b - a for a, b in runs)
        axes = [a for _, over in pieces for a in over]
        start = runs[0][0] if len(runs) == 1 else (-1 if runs else 0)
        found[f] = Part(start, count, mesh.index(axes, at), mesh.size(axes))
    return found


def on_shard(
    op: Op, bound: Bound, specs: Sequence[Spec], attrs: dict[str, Any], parts: dict[str, Part],
    local: Sequence[Spec], results: Sequence[Spec],
) -> tuple[OpTrace, tuple[Symbol, ...]]:  # fmt: skip
    """What runs on a shard: its trace, whose first symbols are the operands, and the results in it. `specs` are those
    of the whole operands, `local` and `results` those of the shard."""
    shard = Shard(op, specs, bound.sizes, parts, results)
    operands = [shard.trace.symbol(s) for s in local]
    empty = [f for f, part in parts.items() if part.size == 0]
    if empty and not any(f in bound.contracted() and added(op, bound, specs, attrs, f) for f in empty):
        made = [neutral(shard, bound.kind(empty[0]), s) for s in results]
    elif op.local is None or not parts:
        given = shard.trace.add(op, tuple(operands), attrs)
        made = list(given) if isinstance(given, tuple) else [given]
    else:
        given = op.local(shard, *operands, **attrs)
        made = list(given) if isinstance(given, tuple) else [given]
    for m, s in zip(made, results, strict=True):
        if m.spec is not s:
            raise ProgramError(f"{op.name}: returns {m.spec!r} on a shard, but its rule says {s!r}")
    return shard.trace, tuple(made)


def first_phase(
    op: Op, bound: Bound, specs: Sequence[Spec], attrs: dict[str, Any], parts: dict[str, Part], local: Sequence[Spec]
) -> tuple[OpTrace, tuple[Symbol, ...], tuple[Symbol, ...]]:
    """Of an op in two phases: a trace whose first symbols are the operands, what is kept, and what is sent."""
    shard = Shard(op, specs, bound.sizes, parts, ())
    kept, sent = _phases(op, specs, attrs)[1](shard, *[shard.trace.symbol(s) for s in local], **attrs)
    return shard.trace, tuple(kept), tuple(sent)


def last_phase(
    op: Op, bound: Bound, specs: Sequence[Spec], attrs: dict[str, Any], parts: dict[str, Part],
    kept: Sequence[Spec], gathered: Sequence[Spec], results: Sequence[Spec],
) -> tuple[OpTrace, tuple[Symbol, ...]]:  # fmt: skip
    """The second trace: its first symbols are what was kept and what came together."""
    shard = Shard(op, specs, bound.sizes, parts, results)
    mine, theirs = (tuple(shard.trace.symbol(s) for s in side) for side in (kept, gathered))
    given = _phases(op, specs, attrs)[2](shard, mine, theirs, **attrs)
    return shard.trace, given if isinstance(given, tuple) else (given,)


def _phases(op: Op, specs: Sequence[Spec], attrs: dict[str, Any]) -> Any:
    assert op.merge is not None
    return op.merge(*specs, **attrs)


def neutral(shard: Shard, kind: str, s: Spec) -> Symbol:
    """What changes nothing when it is reduced with the other shards' results."""
    made = shard.apply(TABLE["full"], least(kind, s.dtype), shape=s.shape, dtype=s.dtype.name)
    assert isinstance(made, Symbol)
    return made


def least(kind: str, dtype: DType) -> Any:
    """The neutral number of a sum, max or min."""
    if kind == "sum":
        return 0
    if dtype.name == "bool":
        return kind == "min"
    if not dtype.is_floating_point:
        limits = np.iinfo(dtype.numpy)
        return int(limits.min if kind == "max" else limits.max)
    return float("-inf") if kind == "max" else float("inf")


def shard_spec(s: Spec, shape: tuple[int, ...]) -> Spec:
    """The spec of a shard of a value."""
    return s if s.weak or shape == s.shape else spec(shape, s.dtype)
