"""Instructions written down once and used many times: what one worker runs for an op, or for a step between layouts.

A template is a short program over values that are numbered from 0: its operands first, then the numbers that it writes
down (starts, fill values), then what it makes. It is made out of a trace, kept in a memo, and copied into the local
program of a worker (local.py). The numbers become scalars of that program, so that workers of different places may
share a text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any

from gt.ops.record import Op, ops
from gt.ops.trace import Symbol, Trace
from gt.program import Instruction, Spec

#: Some elements of a tuple, as a tuple.
Pick = Callable[[tuple[int, ...]], tuple[int, ...]]
#: Of a trace: op, operands, attributes, numbers of the results.
Line = tuple[Op, tuple[Any, ...], dict[str, Any], tuple[int, ...]]


def picking(places: Sequence[int]) -> Pick:
    """The elements of a tuple at these places.

    >>> picking([2])((5, 6, 7)), picking([2, 0])((5, 6, 7))
    ((7,), (7, 5))
    """
    if len(places) > 1:
        return itemgetter(*places)
    return itemgetter(slice(places[0], places[0] + 1) if places else slice(0, 0))


@dataclass(frozen=True, slots=True)
class Template:
    """See the file's header."""

    operands: int  #: how many it takes
    numbers: tuple[Any, ...]  #: that it writes down
    code: tuple[Instruction, ...]
    results: tuple[int, ...]
    nbytes: tuple[int, ...]  #: of every value that it makes: the memory it takes

    def has_numbering_of(self, other: Template) -> bool:
        """Whether both make equally many values, out of operands in the same places."""
        return (
            (self.operands, len(self.numbers), self.results) == (other.operands, len(other.numbers), other.results)
            and [(ins.args, ins.results) for ins in self.code] == [(ins.args, ins.results) for ins in other.code]
        )  # fmt: skip


@lru_cache(None)
def op_named(name: str) -> Op:
    made = getattr(ops, name)
    assert isinstance(made, Op)
    return made


class Sketch(Trace):
    """A trace that also knows what it made, and can take in another one."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[int, Spec] = {}

    def symbol(self, spec: Spec) -> Symbol:
        s = super().symbol(spec)
        self.made[s.number] = spec
        return s

    def include(self, trace: Trace, operands: Sequence[Any], results: Sequence[Symbol]) -> list[Any]:
        """Write down what another trace says, with these operands for its first symbols."""
        env: dict[int, Any] = dict(enumerate(operands))
        for op, args, attrs, numbers in trace.code:
            made = self.add(op, tuple(env[a.number] if isinstance(a, Symbol) else a for a in args), attrs)
            env.update(zip(numbers, made if isinstance(made, tuple) else (made,), strict=True))
        return [env[r.number] for r in results]

    def finish(self, *results: Symbol) -> Template:
        operands = self.count - sum(len(numbers) for _, _, _, numbers in self.code)
        return _template(operands, self.code, self.made, results)


def single(operands: int, trace: Trace, results: Sequence[Symbol]) -> Template:
    """The template of a trace of one instruction, whose results these are."""
    return _template(operands, trace.code, {r.number: r.spec for r in results}, results)


def _template(operands: int, lines: Sequence[Line], made: Mapping[int, Spec], results: Sequence[Symbol]) -> Template:
    literals = [a for _, args, _, _ in lines for a in args if not isinstance(a, Symbol)]
    code: list[Instruction] = []
    nbytes: list[int] = []
    written = 0
    for op, args, attrs, numbers in lines:
        places = []
        for a in args:
            if not isinstance(a, Symbol):
                places.append(operands + written)
                written += 1
            else:
                places.append(a.number if a.number < operands else a.number + len(literals))
        code.append(Instruction(op.name, tuple(places), attrs, len(numbers)))
        nbytes += [0 if op.aliases else made[n].nbytes for n in numbers]  # a view takes none
    ends = [r.number if r.number < operands else r.number + len(literals) for r in results]
    return Template(operands, tuple(literals), tuple(code), tuple(ends), tuple(nbytes))
