"""Instructions written down once and used many times: what one worker runs for an op, or for a step between layouts.

A template is a short program over values that are numbered from 0: its operands first, then what it makes, then the
numbers that it writes down (starts, fill values). It is made out of a trace, kept in a memo, and copied into the local
program of a worker (local.py). The numbers become scalars of that program, so that workers of different places may
share a text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
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
    nbytes: int  #: the memory of all that it makes; a view takes none
    kept: tuple[int, ...]  #: that of each result
    #: What is taken at most, less what the results take: until the last operand was read, and after that.
    beside: tuple[int, int]

    def has_numbering_of(self, other: Template) -> bool:
        """Whether both take as many operands, make as many values, and have the same results."""
        return (
            (self.operands, self.results) == (other.operands, other.results)
            and [ins.results for ins in self.code] == [ins.results for ins in other.code]
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
    behind = operands + sum([len(numbers) for _, _, _, numbers in lines])
    literals: list[Any] = []
    code: list[Instruction] = []
    nbytes: dict[int, int] = {}
    for op, args, attrs, numbers in lines:
        places = []
        for a in args:
            if isinstance(a, Symbol):
                places.append(a.number)
            else:
                places.append(behind + len(literals))
                literals.append(a)
        code.append(Instruction(op.name, tuple(places), attrs, len(numbers)))
        nbytes.update({n: 0 if op.aliases else made[n].nbytes for n in numbers})
    ends = tuple([r.number for r in results])
    kept = tuple([nbytes.get(n, 0) for n in ends])  # an operand is there anyway
    return Template(
        operands, tuple(literals), tuple(code), ends, sum(nbytes.values()), kept, _beside(operands, code, nbytes, ends)
    )


def _beside(
    operands: int, code: Sequence[Instruction], nbytes: Mapping[int, int], ends: Collection[int]
) -> tuple[int, int]:
    """See `Template.beside`."""
    if len(code) < 2:
        return sum([n for number, n in nbytes.items() if number not in ends]), 0
    last = {a: i for i, ins in enumerate(code) for a in ins.args}
    reads = max([last[a] for a in range(operands) if a in last], default=-1)
    kept = sum([nbytes.get(n, 0) for n in set(ends)])
    dies = [0] * len(code)
    most = [0, kept]  # in the end, the results are there
    alive, number = 0, operands
    for i, ins in enumerate(code):
        for n in range(number, number + ins.results):
            alive += nbytes[n]
            if n not in ends:
                dies[max(last.get(n, i), i)] += nbytes[n]
        number += ins.results
        most[i > reads] = max(most[i > reads], alive)
        alive -= dies[i]
    return most[0] - kept, most[1] - kept
