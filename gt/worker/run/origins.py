"""What is known of the elements of indices, from where they come.

Law 1: only what a record says is known: which results an op puts in a range (`Op.ranges`, `Op.spans`), and of which ops
       the results have only elements of their operands (`Op.keeps`, `Op.moves`). Of everything else nothing is known: a
       kernel that reads an index which is out of range would destroy what others have on a GPU.
Law 2: where a value comes from depends on the program alone. Whether it is in range depends on the inputs and numbers
       of a call: each entry of the store says in which range its elements are (`Entry.below`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from gt.dtypes import INT, DType
from gt.ops.record import Op
from gt.program import Spec
from gt.worker.run.store import Entry


class Numbers(NamedTuple):
    """What numbers of a call say of the range of a value."""

    end: Callable[..., int]  #: Of these numbers; -1: nothing is known.
    operands: tuple[Any, ...]  #: ~k for scalar k of the call, or a lowering.Literal.

    def below(self, scalars: Sequence[Any]) -> int:
        try:
            return self.end(*[scalars[~a] if isinstance(a, int) else a.value for a in self.operands])
        except Exception:
            return -1  # the call fails for that: its kernels raise the error


Source = int | Numbers  #: What a range follows from; an int is the number of an input.
Need = tuple[Source, int]  #: All elements of that input, or what follows from these numbers, must be in [0, n).


class Origin(NamedTuple):
    """Where the elements of a value come from: all are in [0, max(n, the ranges of these sources)), if the range of
    each of them is known, and is [0, most) at most."""

    n: int  #: > 0
    sources: frozenset[Source] = frozenset()
    most: int = 1 << 64


class KnownOrigin(NamedTuple):
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
    op: Op, operands: Sequence[Any], specs: Sequence[Spec], attrs: dict[str, Any],
    origins: Callable[[Any], Origin | None], results: Sequence[Spec],
) -> list[Origin | None]:  # fmt: skip
    """The origins of an op's results; `origins` knows those of values, None: nothing is known of that one."""
    kept = _joined([_of_operand(operands[k], origins) for k in kept_operands(op, specs, attrs)])
    made: dict[int, Origin | None] = {}
    if op.spans is not None:
        numbers = tuple([a for a, s in zip(operands, specs, strict=True) if s.weak])
        made = {k: _of_numbers(Numbers(end, numbers)) for k, end in op.spans(*specs, **attrs).items()}
    if op.ranges is not None:
        made.update({k: Origin(max(n, 1)) for k, n in op.ranges(*specs, **attrs).items()})
    return [_as(made.get(k, kept), s) for k, s in enumerate(results)]


def kept_operands(op: Op, specs: Sequence[Spec], attrs: dict[str, Any]) -> Sequence[int]:
    """The operands of which the results keep the range; see `Op.keeps`."""
    if callable(op.keeps):
        return op.keeps(*specs, **attrs)
    return op.keeps or ([k for k, s in enumerate(specs) if not s.weak] if op.moves else ())


def _of_operand(operand: Any, origins: Callable[[Any], Origin | None]) -> Origin | None:
    if isinstance(operand, int) and operand >= 0:
        return origins(operand)
    return _of_numbers(Numbers(_end_of_number, (operand,)))


def _end_of_number(value: Any) -> int:
    return value + 1 if type(value) is int and value >= 0 else -1


def _of_numbers(numbers: Numbers) -> Origin | None:
    if any(isinstance(a, int) for a in numbers.operands):
        return Origin(1, frozenset((numbers,)))
    n = numbers.below(())  # they are the same in every call
    return Origin(max(n, 1)) if n >= 0 else None


def _joined(origins: Sequence[Origin | None]) -> Origin | None:
    """The origin of what has elements of all of these."""
    known = [o for o in origins if o is not None]
    if not known or len(known) < len(origins):
        return None
    if len(known) == 1:
        return known[0]
    sources = frozenset[Source]().union(*(o.sources for o in known))
    return Origin(max(o.n for o in known), sources, min(o.most for o in known))


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


def needed(origin: Origin, n: int) -> list[Need] | None:
    """What must be known so that all elements are in [0, n); None if they may be others whatever is known."""
    return [(source, min(n, origin.most)) for source in origin.sources] if origin.n <= n else None


def meet(needs: Sequence[Need], entries: Sequence[Entry | None], scalars: Sequence[Any]) -> bool:
    """Whether a call with these inputs and numbers is known to meet all of this."""
    for source, n in needs:
        if not 0 <= _below(source, entries, scalars) <= n:
            return False
    return True


def _below(source: Source, entries: Sequence[Entry | None], scalars: Sequence[Any]) -> int:
    if not isinstance(source, int):
        return source.below(scalars)
    entry = entries[source] if source < len(entries) else None
    return -1 if entry is None else entry.below


def ranges_of(
    bounds: Sequence[KnownOrigin], entries: Sequence[Entry | None], scalars: Sequence[Any]
) -> list[tuple[int, int]]:
    """(output, n) of the outputs that are known to be in [0, n), in a call with these inputs and numbers."""
    found = []
    for output, (n, sources, most) in bounds:
        for source in sources:
            below = _below(source, entries, scalars)
            if not 0 <= below <= most:
                break
            n = max(n, below)
        else:
            found.append((output, n))
    return found


def bounds_of(outputs: Sequence[int], origins: Mapping[Any, Origin]) -> tuple[KnownOrigin, ...]:
    """The outputs whose origin is known."""
    return tuple(KnownOrigin(k, origins[o]) for k, o in enumerate(outputs) if o in origins)
