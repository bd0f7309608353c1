"""What is known of the elements of indices, from where they come.

Law 1: only what a record says is known: which results an op puts in a range (`Op.ranges`), and of which ops the
       results have only elements of their operands (`Op.keeps`, `Op.moves`). Of everything else nothing is known: a
       kernel that reads an index which is out of range would destroy what others have on a GPU.
Law 2: where a value comes from depends on the program alone. Whether it is in range depends on the inputs of a call:
       each entry of the store says in which range its elements are (`Entry.below`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from gt.dtypes import INT, DType
from gt.ops.record import Op
from gt.program import Spec
from gt.worker.run.store import Entry


class Origin(NamedTuple):
    """Where the elements of a value come from: all are in [0, max(n, the ranges of these inputs)), if the range of
    each of these inputs is known, and is [0, most) at most."""

    n: int  #: > 0
    inputs: frozenset[int] = frozenset()
    most: int = 1 << 64


class Bound(NamedTuple):
    """An output of a program of which a call may know in which range it is."""

    output: int
    origin: Origin


@cache
def end_of(dtype: DType) -> int:
    """What all numbers of an integer dtype are below; 0 for other dtypes, whose values are no indices."""
    if dtype.category != INT:
        return 0
    return 1 << 8 * dtype.itemsize - dtype.is_signed


def of_input(number: int, spec: Spec) -> Origin | None:
    """The origin of an input."""
    most = end_of(spec.dtype)
    if not most:
        return None
    return Origin(1, frozenset((number,)), most) if spec.size else Origin(1)


def of_results(
    op: Op, specs: Sequence[Spec], attrs: dict[str, Any], origins: Sequence[Origin | None], results: Sequence[Spec]
) -> list[Origin | None]:
    """The origins of an op's results. `origins`: of its operands; None: nothing is known of that one."""
    if not any(map(end_of, (s.dtype for s in results))):
        return [None] * len(results)
    ranges = {} if op.ranges is None else op.ranges(*specs, **attrs)
    kept = _joined([origins[k] for k in kept_operands(op, specs, attrs)])
    return [_as(Origin(max(ranges[k], 1)) if k in ranges else kept, s) for k, s in enumerate(results)]


def kept_operands(op: Op, specs: Sequence[Spec], attrs: dict[str, Any]) -> Sequence[int]:
    """The operands of which the results keep the range; see `Op.keeps`."""
    if callable(op.keeps):
        return op.keeps(*specs, **attrs)
    return op.keeps or ([k for k, s in enumerate(specs) if not s.weak] if op.moves else ())


def of_number(value: Any) -> Origin | None:
    """The origin of a number that is the same in every call."""
    return Origin(value + 1) if type(value) is int and value >= 0 else None


def _joined(origins: Sequence[Origin | None]) -> Origin | None:
    """The origin of what has elements of all of these."""
    known = [o for o in origins if o is not None]
    if not known or len(known) < len(origins):
        return None
    if len(known) == 1:
        return known[0]
    return Origin(max(o.n for o in known), frozenset().union(*(o.inputs for o in known)), min(o.most for o in known))


def _as(origin: Origin | None, spec: Spec) -> Origin | None:
    """The origin of the same elements in an array of this dtype: numbers that it cannot hold would become others."""
    most = end_of(spec.dtype)
    if not most:
        return None
    if not spec.size:
        return Origin(1)
    if origin is None or origin.n > most:
        return None
    return origin if origin.most <= most else origin._replace(most=most)


def needed(origin: Origin, n: int) -> dict[int, int] | None:
    """In which range the inputs must be so that all elements are in [0, n); None if that is not enough."""
    return dict.fromkeys(origin.inputs, min(n, origin.most)) if origin.n <= n else None


def meet(needs: Sequence[tuple[int, int]], entries: Sequence[Entry | None]) -> bool:
    """Whether each of these inputs is known to be in its range."""
    for i, n in needs:
        entry = entries[i] if i < len(entries) else None
        if entry is None or not 0 <= entry.below <= n:
            return False
    return True


def ranges_of(bounds: Sequence[Bound], entries: Sequence[Entry | None]) -> list[tuple[int, int]]:
    """(output, n) of the outputs that are known to be in [0, n), in a call on these inputs."""
    found = []
    for output, (n, inputs, most) in bounds:
        for i in inputs:
            entry = entries[i]
            if entry is None or not 0 <= entry.below <= most:
                break
            n = max(n, entry.below)
        else:
            found.append((output, n))
    return found


def bounds_of(outputs: Sequence[int], origins: Mapping[Any, Origin]) -> tuple[Bound, ...]:
    """The outputs whose origin is known."""
    return tuple(Bound(k, origins[o]) for k, o in enumerate(outputs) if o in origins)
