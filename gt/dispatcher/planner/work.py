"""Work: the instructions that workers run for one action of a plan.

Law 1: the workers of a group run the same collectives of the group in the same order, with sizes that agree. `prove`
       checks this when a work is made, because a mismatch would kill a process in a way that no handler can catch.
       It is enough to check each work: all workers write the actions of a plan in the same order.
Law 2: a work names no values of a plan. It is made once, remembered, and used by every action that does the same.

A `Template` is what one worker runs: a short program over its operands. A `Work` holds the templates of all workers
that take part, and an `Action` is a work applied to some placed values. A `Script` is a work in the form in which it
is copied into local programs (emit.py): one script serves all workers that number their values alike.

A placed value is a value of the program in one of its layouts, or windows of it. Placed values, the program's scalars
and the constants of a plan are named by numbers, their slots.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import zip_longest
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from gt.dispatcher.planner.memo import memo
from gt.dispatcher.planner.redistribute import Step
from gt.errors import ProgramError
from gt.layout import Axes, Layout, Mesh
from gt.ops.record import Op, ops
from gt.ops.trace import OpTrace, Symbol
from gt.program import Instruction, Spec

#: Some elements of a tuple, as a tuple.
Pick = Callable[[tuple[int, ...]], tuple[int, ...]]


def picking(places: Sequence[int]) -> Pick:
    """The elements of a tuple at these places.

    >>> picking([2])((5, 6, 7)), picking([2, 0])((5, 6, 7))
    ((7,), (7, 5))
    """
    if len(places) > 1:
        return itemgetter(*places)
    return itemgetter(slice(places[0], places[0] + 1) if places else slice(0, 0))


@lru_cache(None)
def op_named(name: str) -> Op:
    """The record of an op. Never forgotten: there are few."""
    made = getattr(ops, name)
    assert isinstance(made, Op)
    return made


class Placed(NamedTuple):
    """A tensor in a layout."""

    layout: Layout
    spec: Spec  #: of the whole tensor


@memo(1 << 12)
def placed(layout: Layout, spec: Spec) -> Placed:
    """The one placed tensor of these."""
    return Placed(layout, spec)


# -- templates -------------------------------------------------------------------------------


class Template(msgspec.Struct, frozen=True, gc=False):
    """What one worker runs. Values are numbered from 0: operands, then what the code makes, then constants.

    A constant is a number that the planner writes down: the start of a shard, a fill value. It may differ between
    workers, so it becomes a scalar of the local program and not a part of its text.

    >>> from gt.program import dtypes, spec
    >>> sketch = Sketch()
    >>> x = sketch.symbol(spec((4,), dtypes.float32))
    >>> made = sketch.finish(ops.relu(ops.mul(x, 2.0)))
    >>> [(ins.op, ins.args) for ins in made.code], made.constants, made.results
    ([('mul', (0, 3)), ('relu', (1,))], (2.0,), (2,))
    """

    operands: int  #: how many it takes
    constants: tuple[Any, ...]
    code: tuple[Instruction, ...]
    results: tuple[int, ...]
    made_nbytes: int  #: memory of all that the code makes; a view takes none
    result_nbytes: tuple[int, ...]  #: memory of each result
    #: Peak memory beside the results: until the last operand was read, and after that.
    extra_nbytes: tuple[int, int]

    def is_numbered_like(self, other: Template) -> bool:
        """Whether both take as many operands, make as many values, and have the same results."""
        return (
            (self.operands, self.results) == (other.operands, other.results)
            and [ins.results for ins in self.code] == [ins.results for ins in other.code]
        )  # fmt: skip


#: The templates of one work, by worker.
Templates = dict[int, Template]


class Sketch(OpTrace):
    """A trace that becomes a template. It keeps the specs of its symbols, and another trace can be copied into it."""

    def __init__(self) -> None:
        super().__init__()
        self.specs: dict[int, Spec] = {}  #: by symbol number

    def symbol(self, spec: Spec) -> Symbol:
        s = super().symbol(spec)
        self.specs[s.number] = spec
        return s

    def include(self, trace: OpTrace, operands: Sequence[Any], results: Sequence[Symbol]) -> list[Any]:
        """Copy the instructions of a trace whose first symbols are its operands; its results here."""
        env: dict[int, Any] = dict(enumerate(operands))
        for op, args, attrs, numbers in trace.code:
            made = self.add(op, tuple(env[a.number] if isinstance(a, Symbol) else a for a in args), attrs)
            env.update(zip(numbers, made if isinstance(made, tuple) else (made,), strict=True))
        return [env[r.number] for r in results]

    def finish(self, *results: Symbol) -> Template:
        operands = self.count - sum(len(numbers) for _, _, _, numbers in self.code)
        return _template(operands, self, self.specs, results)


def single(operands: int, trace: OpTrace, results: Sequence[Symbol]) -> Template:
    """The template of a trace of one instruction that makes these results."""
    return _template(operands, trace, {r.number: r.spec for r in results}, results)


def _template(operands: int, trace: OpTrace, specs: Mapping[int, Spec], results: Sequence[Symbol]) -> Template:
    first_constant = operands + sum([len(numbers) for _, _, _, numbers in trace.code])
    constants: list[Any] = []
    code: list[Instruction] = []
    nbytes: dict[int, int] = {}
    for op, args, attrs, numbers in trace.code:
        places = []
        for a in args:
            if isinstance(a, Symbol):
                places.append(a.number)
            else:
                places.append(first_constant + len(constants))
                constants.append(a)
        code.append(Instruction(op.name, tuple(places), attrs, len(numbers)))
        nbytes.update({n: 0 if op.aliases else specs[n].nbytes for n in numbers})
    ends = tuple([r.number for r in results])
    result_nbytes = tuple([nbytes.get(n, 0) for n in ends])  # an operand that is returned takes no memory of its own
    extra = _extra_nbytes(operands, code, nbytes, ends)
    return Template(operands, tuple(constants), tuple(code), ends, sum(nbytes.values()), result_nbytes, extra)


def _extra_nbytes(
    operands: int, code: Sequence[Instruction], nbytes: Mapping[int, int], results: Collection[int]
) -> tuple[int, int]:
    """See `Template.extra_nbytes`."""
    if len(code) < 2:
        return sum([n for number, n in nbytes.items() if number not in results]), 0
    last_read = {a: i for i, ins in enumerate(code) for a in ins.args}
    operands_read = max([last_read[a] for a in range(operands) if a in last_read], default=-1)
    kept = sum([nbytes.get(n, 0) for n in set(results)])
    freed = [0] * len(code)
    peaks = [0, kept]  # in the end, the results are there
    alive, number = 0, operands
    for i, ins in enumerate(code):
        for n in range(number, number + ins.results):
            alive += nbytes[n]
            if n not in results:
                freed[max(last_read.get(n, i), i)] += nbytes[n]
        number += ins.results
        later = i > operands_read
        peaks[later] = max(peaks[later], alive)
        alive -= freed[i]
    return peaks[0] - kept, peaks[1] - kept


# -- works and actions -----------------------------------------------------------------------


class BucketKey(NamedTuple):
    """All-reduces that may be joined: the same workers, kind, and dtype on the wire."""

    mesh: Mesh
    axes: Axes
    kind: str  #: sum, max or min
    dtype: str


class Work:
    """What some workers do at one place of a program, whatever values it is done to."""

    __slots__ = (
        "bucket",
        "early",
        "made_nbytes",
        "operand",
        "results",
        "scripts",
        "step",
        "templates",
        "wire_nbytes",
        "workers",
    )

    def __init__(
        self, templates: Templates, step: Step | None = None, operand: Placed | None = None,
        bucket: BucketKey | None = None, wire_nbytes: int = 0,
    ) -> None:  # fmt: skip
        prove({worker: template.code for worker, template in templates.items()})
        self.templates = templates
        self.workers = tuple(templates)
        self.step = step  #: if the work is a step between layouts, a halo exchange, or an op in two phases
        self.operand = operand  #: of a step: the operand before it
        self.bucket = bucket  #: of an all-reduce
        self.wire_nbytes = wire_nbytes  #: of an all-reduce: what a worker sends
        #: Whether it starts as soon as its operand is there.
        self.early = step is not None and step.kind in ("all_reduce", "reduce_scatter")
        self.made_nbytes = max([each.made_nbytes for each in templates.values()], default=0)  #: on one worker
        self.results = max([len(each.results) for each in templates.values()], default=0)
        self.scripts: dict[tuple[int, ...], tuple[Script, ...]] = {}  #: by workers, see `split_scripts`

    def split_scripts(self, workers: tuple[int, ...]) -> tuple[Script, ...]:
        """The scripts for workers that have numbered their values alike so far: more than one if this work ends that.
        Afterwards they are found in `scripts`."""
        templates = [self.templates.get(worker) for worker in workers]
        alike: list[list[int]] = []
        for member, mine in enumerate(templates):
            for members in alike:
                other = templates[members[0]]
                if mine is other or (mine is not None and other is not None and mine.is_numbered_like(other)):
                    members.append(member)
                    break
            else:
                alike.append([member])
        made = self.scripts[workers] = tuple([_script(members, templates, self.results) for members in alike])
        return made


class Action(msgspec.Struct, frozen=True, gc=False):
    """A work, applied. Workers that do not hold a source leave it out, and so do their templates."""

    work: Work
    sources: tuple[int, ...]  #: slots that it reads
    results: tuple[int, ...]  #: slots that it makes
    instruction: int  #: of the client's program, that it is done for; -1 for several


# -- scripts ---------------------------------------------------------------------------------

#: What identifies a constant, or a row of constants that differ between workers.
ConstantKey = tuple[Any, ...]


def constant_key(value: Any) -> ConstantKey:
    """Equal for numbers that are the same: 1, 1.0 and True are not, nan is itself, and 0.0 is not -0.0."""
    return type(value), repr(value) if isinstance(value, float) else value


class ScriptConstant(NamedTuple):
    """One constant of a script."""

    key: ConstantKey
    values: tuple[Any, ...]  #: one per member


class InstructionVariant(NamedTuple):
    """One instruction as some members of a script run it."""

    op: str
    attrs: dict[str, Any]
    results: int
    members: tuple[int, ...]


class ScriptLine(NamedTuple):
    """One instruction of a script; there are several for one instruction if its operands differ between members."""

    args: Pick  #: out of (operands, made values, constants)
    variants: tuple[InstructionVariant, ...]


class Script(msgspec.Struct, frozen=True, gc=False):
    """A work for the local programs of workers that number their values alike: its members. They are known by their
    places in the tuple of workers that `Work.scripts` is asked for."""

    members: tuple[int, ...]
    takes_part: bool
    constants: tuple[ScriptConstant, ...]
    made: int  #: how many values each member makes
    length: int  #: how many instructions each member writes
    lines: tuple[ScriptLine, ...]
    operands: int  #: how many values it takes
    results: Pick  #: out of (operands, made values, constants)
    #: If it is one instruction on all operands in order, and makes the results of the work: its variants.
    plain: tuple[InstructionVariant, ...]
    result_nbytes: tuple[tuple[int, ...], ...]  #: of each member: see `Template`
    extra_nbytes: tuple[tuple[int, int], ...]  #: of each member: see `Template`; () if all are zero
    #: Of each result: the operand whose memory it can take over, or -1. () if none can.
    reuses: tuple[int, ...]


def _script(members: Sequence[int], templates: Sequence[Template | None], results: int) -> Script:
    """`results`: how many a worker has that gets all of them."""
    mine = [template for template in (templates[member] for member in members) if template is not None]
    if not mine:
        nothing = ((0,) * results,) * len(members), (), ()
        return Script(tuple(members), False, (), 0, 0, (), 0, picking([]), (), *nothing)
    first = mine[0]
    lines: list[ScriptLine] = []
    having: dict[int, tuple[Template, list[int]]] = {}  # many members share a template
    for member, template in zip(members, mine, strict=True):
        having.setdefault(id(template), (template, []))[1].append(member)
    for row in zip(*[template.code for template, _ in having.values()], strict=True):
        different: list[tuple[Instruction, list[int]]] = []
        for (_, there), ins in zip(having.values(), row, strict=True):
            for other, others in different:
                if ins == other:
                    others += there
                    break
            else:
                different.append((ins, list(there)))
        by_args: dict[tuple[int, ...], list[InstructionVariant]] = {}
        for ins, there in different:
            by_args.setdefault(ins.args, []).append(InstructionVariant(ins.op, ins.attrs, ins.results, tuple(there)))
        lines += [ScriptLine(picking(args), tuple(variants)) for args, variants in by_args.items()]
    made = sum([ins.results for ins in first.code])
    in_order = len(first.code) == len(lines) == 1 and first.code[0].args == tuple(range(first.operands))
    is_plain = in_order and first.results == tuple(range(first.operands, first.operands + made))
    missing = (0,) * (results - len(first.results))
    has_extra = any(template.extra_nbytes != (0, 0) for template in mine)
    return Script(
        members=tuple(members),
        takes_part=True,
        constants=_script_constants([template.constants for template in mine]),
        made=made,
        length=len(first.code),
        lines=tuple(lines),
        operands=first.operands,
        results=picking(first.results),
        plain=lines[0].variants if is_plain else (),
        result_nbytes=tuple([template.result_nbytes + missing for template in mine]),
        extra_nbytes=tuple([template.extra_nbytes for template in mine]) if has_extra else (),
        reuses=_reuses(first),
    )


def _script_constants(rows: Sequence[tuple[Any, ...]]) -> tuple[ScriptConstant, ...]:
    """The constants of all members, place by place."""
    found = []
    for values in zip_longest(*rows, fillvalue=0):  # a member with fewer constants reads none of the others
        keys = tuple([constant_key(value) for value in values])
        found.append(ScriptConstant(keys if len(set(keys)) > 1 else keys[0], values))
    return tuple(found)


def _reuses(template: Template) -> tuple[int, ...]:
    """See `Script.reuses`."""
    found = {}
    number = template.operands
    for ins in template.code:
        for k, a in enumerate(op_named(ins.op).inplace):
            if ins.args[a] < template.operands:
                found[number + k] = ins.args[a]
        number += ins.results
    return tuple([found.get(r, -1) for r in template.results]) if found else ()


# -- proof -----------------------------------------------------------------------------------


def prove(codes: Mapping[int, Iterable[Instruction]]) -> None:
    """Raise ProgramError unless the collectives of these workers match: Law 1."""
    by_group: dict[tuple[int, ...], dict[int, list[Instruction]]] = {}
    for worker, code in codes.items():
        for ins in code:
            if op_named(ins.op).collective:
                group = tuple(ins.attrs["workers"])
                if group[ins.attrs["rank"]] != worker:
                    raise ProgramError(f"workers {group}: {worker} has the rank of {group[ins.attrs['rank']]}")
                by_group.setdefault(group, {}).setdefault(worker, []).append(ins)
    for group, by_worker in by_group.items():
        counts = {worker: len(by_worker.get(worker, ())) for worker in group}
        if len(set(counts.values())) != 1:
            raise ProgramError(f"workers {group} run different numbers of collectives: {counts}")
        for i, row in enumerate(zip(*(by_worker[worker] for worker in group), strict=True)):
            if not _agree(row):
                raise ProgramError(f"workers {group} do not agree on collective {i}: {row}")


def _agree(row: Sequence[Instruction]) -> bool:
    """Whether these instructions, one of each member of a group, are one collective."""
    if len({ins.op for ins in row}) != 1:
        return False
    if "sends" in row[0].attrs:
        return all(a.attrs["sends"][j] == b.attrs["takes"][k] for k, a in enumerate(row) for j, b in enumerate(row))
    same = [{k: v for k, v in ins.attrs.items() if k != "rank"} for ins in row]
    return all(attrs == same[0] for attrs in same)
