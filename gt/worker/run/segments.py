"""A program that several workers run together, cut into segments that can be compiled. (One of a single worker is cut
into its layers, in layers.py.)

Law 1: a segment is a run of instructions between collectives. No instruction of it is a collective, checks an index on
       the device or overwrites an input; those stay where they are, as plain code between the segments.
Law 2: where a collective's result is first read a new segment begins: what comes before does not wait for it.
Law 3: views cost nothing and copies do. Each segment makes again the views that it reads; it returns what they are
       views of.
Law 4: segments depend on the program alone, and are named by their content: layers that are alike share one library.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gt.ops.check import Checked, check
from gt.ops.record import TABLE, Op
from gt.ops.work import flops
from gt.program import SCALARS, Instruction, Program
from gt.worker.run.engine import Graph
from gt.worker.run.executor import Runnable
from gt.worker.run.store import Array

LEAST = 8  #: Instructions of a segment, views not counted: in fewer there is nothing to fuse.
SEGMENTS = 32  #: Segments of one program, the largest ones: each is a library.


@dataclass(frozen=True, slots=True)
class Segment:
    """Some instructions of a program, as a program."""

    checked: Checked
    instructions: tuple[int, ...]  #: The number of each of its instructions in the whole program.
    replaces: frozenset[int]  #: The instructions that the segment stands for; its place is that of the last.
    args: tuple[int, ...]  #: The whole program's values that are its inputs, and then ~k for its scalars.
    results: tuple[int, ...]  #: The whole program's values that are its outputs.


def cut(checked: Checked) -> list[Segment]:
    """The segments of a program, in order."""
    found = list(Cutting(checked).segments())
    largest = sorted(range(len(found)), key=lambda k: -len(found[k].replaces))[:SEGMENTS]
    return [found[k] for k in sorted(largest)]


class Cutting:
    """What is known of a program that is cut."""

    def __init__(self, checked: Checked, widening: bool = False) -> None:
        self.checked, self.program = checked, checked.program
        self.widening = widening  #: Casts to a wider dtype, and the like, count as views.
        self.donated = set(self.program.donate)
        self.first: list[int] = []  #: Of every instruction: the number of its first result.
        self.maker: list[int] = [-1] * len(self.program.inputs)  #: Of every value: the instruction that makes it.
        for i, ins in enumerate(self.program.code):
            self.first.append(len(self.maker))
            self.maker += [i] * ins.results
        self.source: list[int] = list(range(len(self.program.inputs)))  #: Of every value: what it is a view of.
        for i, ins in enumerate(self.program.code):
            made = range(self.first[i], self.first[i] + ins.results)
            self.source += [self.source[ins.args[0]]] * ins.results if self.is_view(i) else made
        #: Of a value that is not a view: who reads it or a view of it; -1: the caller.
        self.readers: dict[int, set[int]] = {}
        for i, ins in enumerate(self.program.code):
            if not self.is_view(i):
                for v in self.reads(ins):
                    self.readers.setdefault(v, set()).add(i)
        for o in self.program.outputs:
            self.readers.setdefault(self.source[o], set()).add(-1)

    def is_view(self, i: int) -> bool:
        ins = self.program.code[i]
        if not ins.args or ins.args[0] < 0 or any(a >= 0 for a in ins.args[1:]):
            return False
        return TABLE[ins.op].aliases or (self.widening and self.widens(i))

    def widens(self, i: int) -> bool:
        """Whether it only writes its operand in more bytes: to make that again costs less than to read it."""
        ins = self.program.code[i]
        if not len(ins.args) == ins.results == 1 or TABLE[ins.op].indices is not None:
            return False
        operand, result = self.checked.specs[ins.args[0]], self.checked.specs[self.first[i]]
        return operand.nbytes < result.nbytes and flops(TABLE[ins.op], [operand], ins.attrs) == 0

    def reads(self, ins: Instruction) -> set[int]:
        return {self.source[a] for a in ins.args if a >= 0}

    def looks(self, ins: Instruction) -> bool:
        """Whether it reads indices that have to be checked on the device."""
        op = TABLE[ins.op]
        if op.indices is None:
            return False
        scalars = self.program.scalars
        specs = [self.checked.specs[a] if a >= 0 else SCALARS[scalars[~a]] for a in ins.args]
        return any(ins.args[k] >= 0 for k in op.indices(*specs, **ins.attrs))

    def writes(self, i: int) -> bool:
        """Whether it may overwrite inputs: that is left to the commit, at the end."""
        ins = self.program.code[i]
        targets = [ins.args[k] for k in TABLE[ins.op].inplace]
        results = range(self.first[i], self.first[i] + ins.results)
        unread = all(self.readers.get(v, set()) <= {-1} for v in results)
        return bool(targets) and unread and self.donated.issuperset(targets)

    def segments(self) -> Iterator[Segment]:
        here: list[int] = []  # the instructions of the segment that grows,
        made: set[int] = set()  # and the values they make
        coming: set[int] = set()  # results of collectives that have not been waited for
        for i, ins in enumerate(self.program.code):
            if self.is_view(i):
                continue
            reads = self.reads(ins)
            results = range(self.first[i], self.first[i] + ins.results)
            if self.writes(i):
                continue
            stays = TABLE[ins.op].collective or self.looks(ins)
            if reads & coming or (stays and reads & made):
                yield from self.closed(here)
                here, made = [], set()
            coming -= reads
            if TABLE[ins.op].collective:
                coming.update(results)
            if not stays:
                here.append(i)
                made.update(results)
        yield from self.closed(here)

    def closed(self, here: list[int], wanted: Collection[int] = ()) -> list[Segment]:
        """The segment of these instructions, unless they are few. It also returns the wanted ones of its values."""
        if len(here) < LEAST:
            return []
        code, members = self.program.code, set(here)
        order = sorted(members.union(*[self.views(code[i]) for i in here]))
        inside = set(order)
        env: dict[int, int] = {}  # the whole program's value -> the segment's
        scalars: dict[int, int] = {}
        for i in order:
            for a in code[i].args:
                if a < 0:
                    scalars.setdefault(~a, len(scalars))
                elif self.maker[a] not in inside:
                    env.setdefault(a, len(env))
        inputs = tuple(env)
        mine: list[Instruction] = []
        for i in order:
            ins = code[i]
            mine.append(
                Instruction(ins.op, tuple(env[a] if a >= 0 else ~scalars[~a] for a in ins.args), ins.attrs, ins.results)
            )
            for k in range(ins.results):
                env[self.first[i] + k] = len(env)
        made = [v for i in here for v in range(self.first[i], self.first[i] + code[i].results)]
        results = tuple(v for v in made if v in wanted or self.readers.get(v, members) - members)
        specs = self.checked.specs
        checked = check(
            Program(
                inputs=tuple((specs[v].shape, specs[v].dtype.name) for v in inputs),
                scalars="".join(self.program.scalars[k] for k in scalars),
                code=tuple(mine),
                outputs=tuple(env[v] for v in results),
                donate=(),
                updates=(),
                precision=self.program.precision,
            )
        )
        if not results or any(checked.specs[k] is not specs[v] for v, k in env.items()):
            return []  # one of its inputs has a Python number's type, which an input cannot have
        return [Segment(checked, tuple(order), frozenset(here), (*inputs, *(~k for k in scalars)), results)]

    def views(self, ins: Instruction) -> set[int]:
        """The views through which an instruction reads."""
        found: set[int] = set()
        for a in ins.args:
            while a >= 0 and self.source[a] != a:
                i = self.maker[a]
                found.add(i)
                a = self.program.code[i].args[0]
        return found


def _no_shape(*operands: Any) -> Any:
    raise AssertionError("a segment is inferred instruction by instruction")


#: The op of a segment, as a step of the whole program.
SEGMENT = Op(name="segment", doc="", infer=_no_shape, vjp=None, samples=lambda rng: [])


class CapturedSegment:
    """A compiled segment, as a step of the graph of the whole program (lowering.Whole). Equal segments share `graph`,
    the segment's own, and `library`: a function of inputs and the numbers in a buffer."""

    op = SEGMENT
    failed = ""

    def __init__(self, segment: Segment, graph: Graph, library: Callable[..., list[Array]]) -> None:
        self.graph = graph
        self.kernel = self._run
        self.replaces, self.place = segment.replaces, max(segment.replaces)
        self.args, self.results = segment.args, segment.results
        self.specs = tuple([segment.checked.specs[o] for o in segment.checked.program.outputs])
        self._library = library
        self._order = [graph.wants.index(o) for o in graph.outputs]

    def _run(self, arrays: Sequence[Array], buffer: Array) -> Any:
        made = self._library(arrays, buffer)
        return [made[k] for k in self._order] if len(self._order) > 1 else made[self._order[0]]

    def where(self, error: BaseException) -> int:
        return -1


class CompiledSegment:
    """A compiled segment, as a step of the whole program (lowering.Whole), with plain code to fall back to."""

    op = SEGMENT

    def __init__(
        self, segment: Segment, library: Callable[..., list[Array]], order: list[int], plain: Runnable
    ) -> None:
        self.kernel = self._run
        self.replaces, self.place = segment.replaces, max(segment.replaces)
        self.args, self.results = segment.args, segment.results
        self.specs = tuple([segment.checked.specs[o] for o in segment.checked.program.outputs])
        self.failed = ""  #: Why the plain code had to run.
        self._library, self._plain = library, plain
        self._order = order  #: Of its results among those of the library.
        self._instructions = segment.instructions
        self._count = len(segment.checked.program.inputs)

    def _run(self, *operands: Any) -> Any:
        arrays, scalars = list(operands[: self._count]), operands[self._count :]
        try:
            made = self._library(arrays, scalars)
        except Exception as e:
            results, _ = self._plain.run(arrays, scalars)  # which raises too if a number of the call is bad
            self.failed = str(e) or type(e).__name__
        else:
            results = [made[k] for k in self._order]
        return results if len(results) > 1 else results[0]

    def where(self, error: BaseException) -> int:
        found, _ = self._plain.where(error)
        return self._instructions[found] if found >= 0 else -1
