"""A program as the lines that run one after the other, and how they run: tier 1, and the commit around a compiled
program.

Law 1: nothing is looked up while a program runs. Kernels are bound, one line is one step, and a value is deleted at its
       last use (inputs too: the caller drops them).
Law 2: inputs are untouched until the commit. In-place steps run last, after everything that can fail or
       allocate, and only into donated inputs that nothing else still reads.
Law 3: no two results share memory, and none shares memory with an input that outlives the call.
Law 4: where checks are deferred to the device, a result that replaces an input is selected by the flag:
       the input's own value if the flag is set. A donated input is selected in place, in the commit.
Law 5: where several workers run a program together, the code is a generator. A collective is started at its
       instruction and its result is taken right before it is first read, so that it overlaps with the steps in
       between. Before the commit all workers agree that they have come this far.
Law 6: a program may never be called again, and writing its code takes longer than running it once. So its first calls
       go through the lines. When it has been called often enough, the lines are written as Python (writing.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from types import CodeType
from typing import Any, NoReturn

import msgspec

from gt.errors import OutOfMemory
from gt.ops.check import Checked
from gt.program import Program, spec
from gt.worker.run.engine import Engine
from gt.worker.run.lowering import (
    CodeLine,
    Literal,
    Lowered,
    Operand,
    Whole,
    alike,
    choose_commit,
    lower,
    plain,
    wanted,
)
from gt.worker.run.origins import Need
from gt.worker.run.store import Entry

#: The forms of a line. ONE and SEVERAL: a kernel with so many results; FIRST: only the first one is wanted.
ONE, SEVERAL, FIRST = range(3)
MANY = 3  #: A kernel for rows of operands; see `Many`.
DENSE = 4  #: A kernel for each operand, whose result takes its place.
AROUND = 5  #: A function of all inputs and numbers. Only in code that is written at once.
START, TAKE, AGREE = range(6, 9)  #: Where others take part: a collective begins, its result is taken, all agree.


class ProgramLine(msgspec.Struct, gc=False, eq=False):
    """One line. Operands and results are places: values by number, ~k for scalar k, and then those of `Lines.name`."""

    form: int
    kernel: Any
    args: tuple[int, ...]
    results: tuple[int, ...]
    dead: tuple[int, ...]  #: What no later line reads.
    instruction: int  #: Of the program; -1: of none.
    what: str  #: The name of its op.


@dataclass(frozen=True, slots=True)
class Many:
    """A kernel for many uses of an op at once."""

    kernel: Callable[..., Any]
    rows: tuple[int, int]  #: How many rows the first operands make, and how long they are.


class Lines(msgspec.Struct, eq=False):
    """What runs, in order."""

    program: Program
    values: int  #: How many the program has.
    together: bool  #: Other workers take part: it is a generator.
    all: list[ProgramLine] = []
    commit: int = 1 << 60  #: The first line that changes an input.
    outputs: tuple[int, ...] = ()  #: What is returned,
    flag: int | None = None  #: and where the outcome of checks is.
    names: list[str] = []  #: Of the places behind the values: a name, or "" for a constant,
    constants: list[Any] = []  #: and what is there when it begins.

    def add(self, name: str, value: Any = None) -> int:
        """A place for something that is no value of the program, or for a constant."""
        self.names.append(name)
        self.constants.append(value)
        return self.values + len(self.names) - 1

    def constant(self, value: Any) -> int:
        return self.add("", value)


class Runnable:
    """The code of a program, for an engine. It is a Form: see engine.py."""

    __slots__ = (
        "_code", "_first", "_instructions", "bounds", "checks", "commit", "lends", "lines", "needs", "ran", "run",
        "source", "steps", "takes", "whole",
    )  # fmt: skip

    def __init__(self, lowered: Lowered, deciding: Deciding) -> None:
        self.ran, self.lends = 1, False
        #: Inputs whose memory becomes that of a result. An array that others hold must be copied first.
        self.takes: tuple[int, ...] = tuple(sorted(deciding.takes))
        #: (instruction, op) of the checks whose outcome is in the flag.
        self.checks: tuple[tuple[int, str], ...] = tuple((s.instruction, s.op.name) for s in lowered.checks)
        #: What must be known of a call, because it is not checked: see origins.meet.
        self.needs: tuple[Need, ...] = tuple(lowered.needs.items())
        self.bounds = lowered.bounds  #: The outputs that are known to be in a range if enough is known of the inputs.
        self.whole: dict[int, Whole] = {}  #: Steps that stand for many instructions, by their places.
        self.lines: Lines | None = deciding.lines  #: None once they are Python,
        self.steps = lowered.steps  #: for which an engine may look at the steps too.
        self.source = ""
        self.commit = deciding.lines.commit
        self._code: CodeType | None = None  #: Of that Python: the line that is the first one,
        self._first = 0
        self._instructions: list[int] = []  #: and the instructions of all lines.
        #: The list of inputs is emptied at once.
        self.run: Callable[..., Any] = partial(_run_together if deciding.together else _run, deciding.lines)

    def become(self, run: Callable[..., Any], code: CodeType, source: str, first: int) -> None:
        """From now on this is what runs. `first`: where the lines begin in it."""
        assert self.lines is not None
        self.run, self.source, self._code, self._first = run, source, code, first
        self._instructions = [line.instruction for line in self.lines.all]
        self.lines, self.steps = None, []

    def where(self, error: BaseException) -> tuple[int, bool]:
        """The instruction that raised this error (-1: none), and whether the commit had begun."""
        tb = error.__traceback__
        while tb is not None:
            frame, instruction, at = tb.tb_frame, -1, -1
            if frame.f_code is self._code:
                at = tb.tb_lineno - self._first
                instruction = self._instructions[at] if 0 <= at < len(self._instructions) else -1
            elif frame.f_code in _BY_LINE:
                at = frame.f_locals.get("at", -1)
                instruction = frame.f_locals["line"].instruction if at >= 0 else -1
            if at >= 0:
                if instruction in self.whole:
                    instruction = self.whole[instruction].where(error)
                return instruction, at >= self.commit
            tb = tb.tb_next
        return -1, False

    def lend(self, entries: Sequence[Entry]) -> None:
        pass


def _run(lines: Lines, a: list[Any], s: Sequence[Any]) -> tuple[tuple[Any, ...], Any]:
    """Run the lines one by one."""
    env = _places(lines, a, s)
    get = env.__getitem__
    at = -1  # `where` reads it
    for line in lines.all:
        at += 1
        if line.form == ONE:
            env[line.results[0]] = line.kernel(*map(get, line.args))
        else:
            _run_line(env, line)
        for v in line.dead:
            env[v] = None
    return tuple([env[o] for o in lines.outputs]), None if lines.flag is None else env[lines.flag]


def _run_together(lines: Lines, a: list[Any], s: Sequence[Any], c: Any) -> Generator[Any, Any, Any]:
    """The same, where others take part; `c` has the collectives."""
    env = _places(lines, a, s)
    at = -1
    for line in lines.all:
        at += 1
        args = line.args
        if line.form == TAKE:
            env[line.results[0]] = yield env[args[0]]
        elif line.form == START:
            env[line.results[0]] = c.start(line.kernel, env[args[0]], env[args[1]])
        elif line.form == AGREE:
            c.agreed((yield c.agree(env[args[0]])))
        else:
            _run_line(env, line)
        for v in line.dead:
            env[v] = None
    return tuple([env[o] for o in lines.outputs]), None


_BY_LINE = (_run.__code__, _run_together.__code__)  #: What goes through the lines.


def _run_line(env: list[Any], line: ProgramLine) -> None:
    form, kernel, results = line.form, line.kernel, line.results
    given = [env[v] for v in line.args]
    if form == DENSE:
        for v, x in zip(results, given, strict=True):
            env[v] = kernel(x)
        return
    if form == MANY:
        count, width = kernel.rows
        split_at = count * width
        rows = tuple([tuple(given[i : i + width]) for i in range(0, split_at, width)])
        made = kernel.kernel(rows, *given[split_at:])
    else:
        made = kernel(*given)
    if form == ONE:
        env[results[0]] = made
    elif form == FIRST:
        env[results[0]] = made[0]
    else:
        for v, x in zip(results, made, strict=True):
            env[v] = x


def _places(lines: Lines, arrays: list[Any], scalars: Sequence[Any]) -> list[Any]:
    """What is in all places when it begins. The list of inputs is emptied."""
    env = [*arrays, *[None] * (lines.values - len(arrays)), *lines.constants, *reversed(scalars)]
    arrays.clear()
    return env


def arrange_program(
    checked: Checked, engine: Engine, fake_memory: int = 0, trusted: bool = False, whole: Sequence[Whole] = ()
) -> Runnable:
    """The lines of a program.

    With `fake_memory`, a run fails at the first instruction where its results exceed that many bytes. With `trusted`,
    they are for inputs that are known to be what it `needs`. With `whole`, these instructions are one step each.
    """
    lowered = lower(checked, engine, trusted, whole)
    deciding = Deciding(lowered, engine, fake_memory)
    deciding.decide()
    made = Runnable(lowered, deciding)
    made.whole = {w.place: w for w in whole}
    return made


def arrange_around(checked: Checked, engine: Engine, pure: Callable[..., Any]) -> Runnable:
    """The lines of a program whose steps before the commit are one function, pure(inputs, scalars), which returns
    the values that `split` names, each in memory of its own."""
    lowered = lower(checked, engine)
    deciding = Deciding(lowered, engine, 0)
    deciding.decide_around(pure)
    return Runnable(lowered, deciding)


def fail_fake_memory(nbytes: int, limit: int) -> NoReturn:
    """What the generated code calls where the limit of GT_FAKE_MEMORY is exceeded."""
    raise OutOfMemory(f"{nbytes} bytes of results are alive; the limit is {limit} bytes (GT_FAKE_MEMORY)")


class Deciding:
    """Decides on the lines, one by one; `decide()` shows their structure."""

    def __init__(self, lowered: Lowered, engine: Engine, fake_memory: int) -> None:
        self.low = lowered
        self.engine = engine
        self.limit = fake_memory
        self.n_inputs = len(lowered.program.inputs)
        self.together = bool(lowered.program.workers)
        self.lines = Lines(lowered.program, len(lowered.specs), self.together)
        self.takes: set[int] = set()
        self.outputs = tuple(spec(s.shape, s.dtype) for s in map(lowered.spec, lowered.outputs))
        # An update counts only if the result has the shape and dtype of the input.
        self.updates = {o: i for o, i in lowered.program.updates if self.outputs[o] is plain(lowered.specs[i])}
        self.watched = engine.deferred and bool(lowered.checks)  #: The outcome of checks is gathered in a flag,
        self.flagged = self.watched and not self.together  #: which the host reads only after the call is done.
        self.flag = self.lines.add("f") if self.watched else self.lines.constant(None)
        self.started: dict[int, tuple[int, CodeLine]] = {}  #: Results of collectives that were not yet taken.
        self.own, self.dense, self.select = engine.own, engine.dense, engine.select
        self.into: set[int] = set()  #: Outputs that are put into the donated input they replace.
        self.counted: dict[int, int] = {}  #: Bytes of the results that are alive, for GT_FAKE_MEMORY.

    def decide(self) -> None:
        # Only a device with a flag knows whether the call succeeds: results are selected instead.
        commit = [] if self.flagged else self.take_commit()
        owned = self.choose_owned(commit)
        uses = self.count_uses(commit, owned)
        self.drop_unused(uses)
        for step in self.in_order():
            if self.limit and step.check is None and not self.allocate(step.instruction, *step.results):
                break
            self.step(step, uses)
        else:
            self.take_up(list(self.started), uses)
            made = self.decide_owned(owned, uses)
            if made is not None:
                self.decide_commit(commit, made, uses)

    def in_order(self) -> list[CodeLine]:
        """The steps. Views of a collective's result come right before the step that reads them, so that the result is
        not waited for earlier."""
        if not self.together:
            return self.low.steps
        order: list[CodeLine] = []
        late: set[int] = set()  # results of collectives, and views of them
        waiting: dict[int, CodeLine] = {}  # value -> the step that makes this view

        def place(step: CodeLine) -> None:
            for a in step.args:
                if isinstance(a, int) and a in waiting:
                    place(waiting[a])
            for r in step.results:
                waiting.pop(r, None)
            order.append(step)

        for step in self.low.steps:
            view = step.check is None and all(self.low.base[r] != r for r in step.results)
            if view and not late.isdisjoint(a for a in step.args if isinstance(a, int)):
                late.update(step.results)
                waiting.update(dict.fromkeys(step.results, step))
                continue
            place(step)
            if step.together:
                late.update(step.results)
        while waiting:
            place(next(iter(waiting.values())))
        return order

    def take_commit(self) -> list[CodeLine]:
        commit = choose_commit(self.low, self.engine)
        self.takes |= {a for s in commit for p in s.op.inplace if isinstance(a := s.args[p], int)}
        return commit

    def decide_around(self, pure: Callable[..., Any]) -> None:
        """The same, with one function in place of all steps before the commit."""
        commit = self.take_commit()
        wants = wanted(self.low, commit)
        self.low.steps = []
        uses = self.count_uses(commit, {})
        self.line(AROUND, pure, tuple(range(self.n_inputs)), tuple(wants))
        self.drop_unused(uses)
        self.decide_commit(commit, {}, uses)

    # --- decisions -----------------------------------------------------------------------

    def choose_owned(self, commit: list[CodeLine]) -> dict[int, int]:
        """Outputs that may share memory: position -> the value that it is copied (or selected) from."""
        low = self.low
        committed = {r for s in commit for r in s.results}
        groups: dict[int, list[int]] = {}
        for k, o in enumerate(low.outputs):
            if o not in committed:
                groups.setdefault(low.base[o], []).append(k)
        owned: dict[int, int] = {}
        if self.flagged or (self.engine.deferred and not self.together):
            owned = {k: low.outputs[k] for k in self.updates if low.outputs[k] not in committed}
            self.choose_into(owned, {low.base[a] for s in commit for a in s.args if isinstance(a, int) and a >= 0})
        if not self.flagged:
            owned = {k: o for k, o in owned.items() if k in self.into}
        for base, members in groups.items():
            keeper = next((k for k in members if low.outputs[k] == base >= self.n_inputs), -1)
            if keeper < 0 and len(members) == 1 and low.whole[low.outputs[members[0]]]:
                if base >= self.n_inputs:
                    keeper = members[0]
                elif base in low.program.donate and base not in self.takes:
                    keeper = members[0]
                    self.takes.add(base)
            owned.update({k: low.outputs[k] for k in members if k != keeper})
        return owned

    def choose_into(self, selected: dict[int, int], read_late: set[int]) -> None:
        """Choose the outputs that are put into the memory of the input they replace, unless the commit reads that. So
        what is updated keeps its address, and captured graphs of other programs remain valid."""
        low = self.low
        bases = Counter(low.base[o] for o in low.outputs)
        for k, i in self.updates.items():
            if (
                k in selected
                and i in low.program.donate
                and i not in self.takes
                and not bases[i]
                and i not in read_late
            ):
                self.into.add(k)
                self.takes.add(i)

    def count_uses(self, commit: list[CodeLine], owned: dict[int, int]) -> dict[int, int]:
        """How often lines read each value; an output that is returned as it is has one more."""
        uses: dict[int, int] = {}
        lines: list[Collection[Operand]] = [s.args for s in self.low.steps]
        lines += [s.args for s in commit]
        lines += [self.reads_of_owned(k, o) for k, o in owned.items()]
        lines += [(o,) for k, o in enumerate(self.low.outputs) if k not in owned]
        for line in lines:
            for a in line:
                if type(a) is int and a >= 0:
                    uses[a] = uses.get(a, 0) + 1
        return uses

    def reads_of_owned(self, position: int, operand: int) -> set[Operand]:
        selected = position in self.updates and (self.flagged or position in self.into)
        return {operand, self.updates[position]} if selected else {operand}

    # --- lines ---------------------------------------------------------------------------

    def line(
        self, form: int, kernel: Any, args: tuple[int, ...], results: tuple[int, ...], dead: Sequence[int] = (),
        instruction: int = -1, what: str = "",
    ) -> None:  # fmt: skip
        self.lines.all.append(ProgramLine(form, kernel, args, results, tuple(dead), instruction, what))
        if self.counted:
            for d in dead:
                self.counted.pop(d, 0)

    def drop_unused(self, uses: dict[int, int]) -> None:
        unused = [i for i in range(self.n_inputs) if not uses.get(i)]
        if unused:
            self.line(SEVERAL, _nothing, (), (), unused)

    def decide_commit(self, commit: list[CodeLine], owned: dict[int, int], uses: dict[int, int]) -> None:
        """The steps that write into inputs, and the return. `owned`: what is returned of outputs that were copied."""
        for step in commit:  # in-place kernels may not allocate: operands are made contiguous before
            operands = tuple(sorted({a for a in step.args if isinstance(a, int) and a >= 0}))
            self.line(DENSE, self.dense, operands, operands, (), step.instruction)
        if self.together:
            self.line(AGREE, None, (self.flag,), ())
        self.begin_commit()
        for group in alike(self.low, commit):
            many = self.engine.many(group[0].op, group[0].attrs) if len(group) > 1 else None
            if many is not None:
                self.steps_at_once(group, many, uses)
                continue
            for step in group:
                self.step(step, uses)
        self.lines.outputs = tuple([owned.get(k, o) for k, o in enumerate(self.low.outputs)])
        self.lines.flag = self.flag if self.flagged else None

    def begin_commit(self) -> None:
        """Nothing fails from here on."""
        self.lines.commit = min(self.lines.commit, len(self.lines.all))

    def operand(self, a: Operand) -> int:
        return self.lines.constant(a.value) if isinstance(a, Literal) else a

    def step(self, step: CodeLine, uses: dict[int, int]) -> None:
        args, results, kernel = step.args, step.results, step.kernel
        if self.started:
            self.take_up([a for a in args if isinstance(a, int)], uses)
        if step.together:
            self.start(step, uses)
            return
        dead = self.use(args, uses)
        for r in results:
            if not uses.get(r):
                dead.append(r)
        form = ONE if len(results) == 1 else SEVERAL
        named: Any = args
        for a in args:
            if type(a) is not int:
                named = tuple(map(self.operand, args))
                break
        if step.check is not None:
            op, n, extra, number = step.check
            constant = self.lines.constant
            named = (constant(op), *named, constant(n), constant(extra))
            if not number and self.watched:
                form, named, results = SEVERAL, (*named, self.flag), (*results, self.flag)
            elif not number:
                form, named = FIRST, (*named, self.flag)
        self.line(form, kernel, named, results, dead, step.instruction, step.op.name)

    def start(self, step: CodeLine, uses: dict[int, int]) -> None:
        """Start a collective. It may overwrite an operand that nothing else reads."""
        (a,), (r,) = step.args, step.results
        assert isinstance(a, int)
        dead = self.use((a,), uses)
        handle = self.lines.add(f"h{r}")
        args = (a, self.lines.constant(self.private(a, uses)))
        self.line(START, step.kernel, args, (handle,), dead, step.instruction, step.op.name)
        self.started[r] = handle, step

    def private(self, a: int, uses: dict[int, int]) -> bool:
        """Whether a value that has been read for the last time shares its memory with no other."""
        low, base = self.low, self.low.base[a]
        others = (v for v, b in enumerate(low.base) if b == base)
        return base >= self.n_inputs and low.whole[a] and not any(uses.get(v) for v in others)

    def take_up(self, operands: list[int], uses: dict[int, int]) -> None:
        """Take the results of those operands that are collectives under way."""
        for a in operands:
            if a in self.started:
                handle, step = self.started.pop(a)
                dead = [handle] if uses.get(a) else [handle, a]
                self.line(TAKE, None, (handle,), (a,), dead, step.instruction)

    def steps_at_once(self, steps: list[CodeLine], kernel: Any, uses: dict[int, int]) -> None:
        """One line for a group of steps with one kernel."""
        rows = [[a for a in s.args if isinstance(a, int) and a >= 0] for s in steps]
        numbers = [self.operand(a) for a in steps[0].args if isinstance(a, Literal) or a < 0]
        given = tuple([a for row in rows for a in row])
        dead = self.use(given, uses)
        results = tuple([r for s in steps for r in s.results])
        many = Many(kernel, (len(rows), len(rows[0])))
        self.line(MANY, many, (*given, *numbers), results, dead, steps[0].instruction, steps[0].op.name)

    def decide_owned(self, owned: dict[int, int], uses: dict[int, int]) -> dict[int, int] | None:
        """Copy outputs that may share memory: what is returned of each; None if the limit of GT_FAKE_MEMORY is
        reached."""
        maker = {r: s.instruction for s in self.low.steps for r in s.results} if owned else {}
        made: dict[int, int] = {}
        for k, o in sorted(owned.items(), key=lambda item: (item[0] in self.into, item[0])):
            instruction = maker.get(o, -1)
            if k in self.into:  # the commit begins
                self.begin_commit()
            elif self.limit and not self.allocate(instruction, ~k):  # no value has this number
                return None
            made[k] = self.lines.add(f"o{k}")
            dead = self.use(self.reads_of_owned(k, o), uses)
            kernel: Callable[..., Any] = self.own
            args: tuple[int, ...] = (o,)
            if self.flagged and k in self.updates:
                kernel, args = self.select, (self.flag, self.updates[k], o, self.lines.constant(k in self.into))
            elif k in self.into:
                kernel, args = self.engine.put, (self.updates[k], o)
            self.line(ONE, kernel, args, (made[k],), dead, instruction)
        return made

    def use(self, operands: Collection[Operand], uses: dict[int, int]) -> list[int]:
        """Count one line's reads; returns the values that no later line reads."""
        dead = []
        for a in operands:
            if type(a) is int and a >= 0:
                left = uses[a] = uses[a] - 1
                if not left:
                    dead.append(a)
        if len(dead) > 1:
            dead.sort()
        return dead

    def allocate(self, instruction: int, *results: int) -> bool:
        """Count what a line makes; False if the limit of GT_FAKE_MEMORY is reached there (then the code ends)."""
        if not self.limit:
            return True
        for r in results:
            self.counted[r] = (self.low.specs[r] if r >= 0 else self.outputs[~r]).nbytes
        total = sum(self.counted.values())
        if total <= self.limit:
            return True
        args = (self.lines.constant(total), self.lines.constant(self.limit))
        self.line(ONE, fail_fake_memory, args, (self.lines.add("o"),), (), instruction)
        return False


def _nothing() -> tuple[()]:
    return ()
