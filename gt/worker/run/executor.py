"""A program as straight-line Python: tier 1, and the commit around a compiled program.

Law 1: nothing is looked up while a program runs. Kernels are bound as defaults of the function, one line
       is one step, and a value is deleted at its last use (inputs too: the caller drops them).
Law 2: inputs are untouched until the commit. In-place steps run last, after everything that can fail or
       allocate, and only into donated inputs that nothing else still reads.
Law 3: no two results share memory, and none shares memory with an input that outlives the call.
Law 4: where checks are deferred to the device, a result that replaces an input is selected by the flag:
       the input's own value if the flag is set. A donated input is selected in place, in the commit.
Law 5: where several workers run a program together, the code is a generator. A collective is started at its
       instruction and its result is taken right before it is first read, so that it overlaps with the steps in
       between. Before the commit all workers agree that they have come this far.

The line number in a traceback names the instruction that failed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, NoReturn

from gt.errors import OutOfMemory
from gt.ops.check import Checked
from gt.program import Spec, spec
from gt.worker.run.engine import Engine
from gt.worker.run.lowering import CodeLine, Literal, Lowered, Operand, Whole, lower
from gt.worker.run.origins import Need
from gt.worker.run.store import Entry


class Runnable:
    """The generated code of a program, for an engine. It is a Form: see engine.py."""

    __slots__ = (
        "_code", "_commit_line", "_instructions", "bounds", "checks", "lends", "needs", "ran", "run", "source", "takes",
        "whole",
    )  # fmt: skip

    def __init__(self, lowered: Lowered, writer: _Writer, run: FunctionType, engine: Engine) -> None:
        #: The list of inputs is emptied at once.
        self.run: Callable[..., Any] = run if lowered.program.workers else engine.whole(run, lowered.steps)
        self.ran, self.lends = 1, False
        self._code = run.__code__
        self.source: str = writer.source
        #: Inputs whose memory becomes that of a result. An array that others hold must be copied first.
        self.takes: tuple[int, ...] = tuple(sorted(writer.takes))
        #: (instruction, op) of the checks whose outcome is in the flag.
        self.checks: tuple[tuple[int, str], ...] = tuple((s.instruction, s.op.name) for s in lowered.checks)
        #: What must be known of a call, because it is not checked: see origins.meet.
        self.needs: tuple[Need, ...] = tuple(lowered.needs.items())
        self.bounds = lowered.bounds  #: The outputs that are known to be in a range if enough is known of the inputs.
        self.whole: dict[int, Whole] = {}  #: Steps that stand for many instructions, by their places.
        self._instructions: list[int] = writer.instructions
        self._commit_line: int = writer.commit_line

    def where(self, error: BaseException) -> tuple[int, bool]:
        """The instruction that raised this error (-1: none), and whether the commit had begun."""
        tb = error.__traceback__
        while tb is not None:
            if tb.tb_frame.f_code is self._code:
                line = tb.tb_lineno
                instruction = self._instructions[line - 1]
                if instruction in self.whole:
                    instruction = self.whole[instruction].where(error)
                return instruction, line >= self._commit_line
            tb = tb.tb_next
        return -1, False

    def lend(self, entries: Sequence[Entry]) -> None:
        pass


def compile_program(
    checked: Checked, engine: Engine, fake_memory: int = 0, trusted: bool = False, whole: Sequence[Whole] = (),
    mark: Callable[[int], None] | None = None,
) -> Runnable:  # fmt: skip
    """Generate the code of a program.

    With `fake_memory`, a run fails at the first instruction where its results exceed that many bytes. With `trusted`,
    the code is for inputs that are known to be what it `needs`. With `whole`, these instructions are one step each.
    With `mark`, the code calls it with each instruction that begins.
    """
    lowered = lower(checked, engine, trusted, whole)
    writer = _Writer(lowered, engine, fake_memory)
    writer.mark = "" if mark is None else writer.bind(mark)
    writer.write()
    made = _finish(lowered, writer, engine)
    made.whole = {w.place: w for w in whole}
    return made


def split(checked: Checked, engine: Engine) -> list[int]:
    """The values that a pure function must return so that the commit can do the rest: see `compile_around`."""
    writer = _Writer(lower(checked, engine), engine, 0)
    return writer.wants(writer.choose_commit())


def take_commit(lowered: Lowered, engine: Any) -> list[list[CodeLine]]:
    """Take out of the steps those that overwrite donated inputs in the end; in groups that one kernel can do. Of the
    engine only its in-place kernels are asked for."""
    writer = _Writer(lowered, engine, 0)
    return writer.alike(writer.choose_commit())


def compile_around(checked: Checked, engine: Engine, pure: Callable[..., Any]) -> Runnable:
    """The code of a program whose steps before the commit are one function, pure(inputs, scalars), which returns
    the values that `split` names, each in memory of its own."""
    lowered = lower(checked, engine)
    writer = _Writer(lowered, engine, 0)
    writer.write_around(pure)
    return _finish(lowered, writer, engine)


def _finish(lowered: Lowered, writer: _Writer, engine: Engine) -> Runnable:
    code = compile(writer.source, f"<program {lowered.program.hash().hex()[:8]}>", "exec")
    namespace: dict[str, Any] = dict(writer.bound)
    exec(code, namespace)
    return Runnable(lowered, writer, namespace["run"], engine)


def fail_fake_memory(nbytes: int, limit: int) -> NoReturn:
    """What the generated code calls where the limit of GT_FAKE_MEMORY is exceeded."""
    raise OutOfMemory(f"{nbytes} bytes of results are alive; the limit is {limit} bytes (GT_FAKE_MEMORY)")


class _Writer:
    """Writes the function `run`, line by line; `write()` shows its structure."""

    def __init__(self, lowered: Lowered, engine: Engine, fake_memory: int) -> None:
        self.low = lowered
        self.engine = engine
        self.limit = fake_memory
        self.mark = ""  #: The name of what is called with each instruction that begins; "": nothing is.
        self.n_inputs = len(lowered.program.inputs)
        self.bound: dict[str, Any] = {}  #: Name -> kernel or number.
        self.names: dict[int, str] = {}  #: The id() of a bound object -> its name.
        self.lines: list[str] = []
        self.instructions: list[int] = []  #: Of each line.
        self.commit_line = 1 << 60
        self.takes: set[int] = set()
        self.outputs = tuple(spec(s.shape, s.dtype) for s in map(lowered.spec, lowered.outputs))
        # An update counts only if the result has the shape and dtype of the input.
        self.updates = {o: i for o, i in lowered.program.updates if self.outputs[o] is _plain(lowered.specs[i])}
        self.together = bool(lowered.program.workers)
        self.watched = engine.deferred and bool(lowered.checks)  #: The outcome of checks is gathered in a flag,
        self.flagged = self.watched and not self.together  #: which the host reads only after the call is done.
        self.started: dict[int, CodeLine] = {}  #: Results of collectives that were not yet taken.
        self.own, self.dense, self.select = engine.own, engine.dense, engine.select
        self.into: set[int] = set()  #: Outputs that are put into the donated input they replace.
        self.counted: dict[int, int] = {}  #: Bytes of the results that are alive, for GT_FAKE_MEMORY.

    @property
    def source(self) -> str:
        return "\n".join(self.lines) + "\n"

    def write(self) -> None:
        commit = self.choose_commit()
        owned = self.choose_owned(commit)
        uses = self.count_uses(commit, owned)

        self.begin()
        if self.watched:
            self.line("f = None")
        self.drop_unused(uses)
        for step in self.in_order():
            if step.check is None and not self.allocate(step.instruction, *step.results):
                break
            self.step(step, self.bind(step.kernel), uses)
        else:
            self.take_up(list(self.started), uses)
            if self.write_owned(owned, uses):
                self.write_commit(commit, owned, uses)
        self.name_bound()

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

    def write_around(self, pure: Callable[..., Any]) -> None:
        """The same, with one function in place of all steps before the commit."""
        commit = self.choose_commit()
        wants = self.wants(commit)
        self.low.steps = []
        uses = self.count_uses(commit, {})
        self.begin()
        inputs = "".join(f"v{i}, " for i in range(self.n_inputs))
        made = "".join(f"v{v}, " for v in wants)
        self.line(f"{made + '= ' if made else ''}{self.bind(pure)}([{inputs}], s)")
        self.drop_unused(uses)
        self.write_commit(commit, {}, uses)
        self.name_bound()

    def alike(self, commit: list[CodeLine]) -> list[list[CodeLine]]:
        """Groups of steps that one kernel could do: the same op and numbers, on different arrays of one dtype."""
        groups: dict[Any, list[CodeLine]] = {}
        for s in commit:
            numbers = tuple(a for a in s.args if isinstance(a, Literal) or a < 0)
            first = self.low.specs[s.results[0]]
            key = (s.op.name, repr(s.attrs), repr(numbers), first.dtype, first.size > 0)
            groups.setdefault(key, []).append(s)
        return list(groups.values())

    def wants(self, commit: list[CodeLine]) -> list[int]:
        """The values that the commit reads and the results that it does not make, in order."""
        committed = {r for s in commit for r in s.results}
        read = {a for s in commit for a in s.args if isinstance(a, int) and a >= self.n_inputs}
        return sorted(read | set(self.low.outputs) - committed)

    # --- decisions -----------------------------------------------------------------------

    def choose_commit(self) -> list[CodeLine]:
        """The steps that may overwrite donated inputs, with in-place kernels."""
        if self.flagged:
            return []  # only the device knows whether the call succeeds: results are selected instead
        low, donated = self.low, set(self.low.program.donate)
        read = {a for s in low.steps for a in s.args if isinstance(a, int)}
        times = Counter(low.outputs)
        written: set[int] = set()
        read_late: set[int] = set()  # memory that the commit reads
        chosen: list[CodeLine] = []
        for s in low.steps:
            targets = [a for p in s.op.inplace if isinstance(a := s.args[p], int)] if s.check is None else []
            pairs = list(zip(targets, s.results, strict=False))
            others = {
                low.base[a] for i, a in enumerate(s.args) if i not in s.op.inplace and isinstance(a, int) and a >= 0
            }
            if not (
                targets
                and len(pairs) == len(s.op.inplace) == len(s.results) == len(set(targets))
                and donated.issuperset(targets)
                and all(low.specs[t] is _plain(low.specs[r]) for t, r in pairs)
                and read.isdisjoint(s.results)  # a reader would have to run after the commit
                and all(times[r] < 2 for r in s.results)  # or two results would be one array
                and written.isdisjoint(targets)
                and read_late.isdisjoint(targets)
                and others.isdisjoint(targets)
                and others.isdisjoint(written)
            ):
                continue
            kernel = self.engine.kernel(s.op, s.attrs, [low.spec(a) for a in s.args], inplace=True)
            if kernel is None:
                continue
            written.update(targets)
            read_late |= others
            chosen.append(CodeLine(s.instruction, s.op, kernel, s.args, s.results, s.attrs))
        replaced = {s.results for s in chosen}
        low.steps = [s for s in low.steps if s.results not in replaced]
        self.takes |= written
        return chosen

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
        """How many lines read each value; an output that is returned as it is has one more."""
        uses: dict[int, int] = {}
        lines: list[set[Operand]] = [set(s.args) for s in (*self.low.steps, *commit)]
        lines += [self.reads_of_owned(k, o) for k, o in owned.items()]
        lines += [{o} for k, o in enumerate(self.low.outputs) if k not in owned]
        for line in lines:
            for a in line:
                if isinstance(a, int) and a >= 0:
                    uses[a] = uses.get(a, 0) + 1
        return uses

    def reads_of_owned(self, position: int, operand: int) -> set[Operand]:
        selected = position in self.updates and (self.flagged or position in self.into)
        return {operand, self.updates[position]} if selected else {operand}

    # --- lines ---------------------------------------------------------------------------

    def begin(self) -> None:
        """The def (filled in at the end, when all bound names are known), and the operands by name."""
        self.line("")
        self.line("".join(f"v{i}, " for i in range(self.n_inputs)) + "= a; a.clear()" if self.n_inputs else "pass")
        if self.low.program.scalars:
            self.line("".join(f"s{k}, " for k in range(len(self.low.program.scalars))) + "= s")

    def name_bound(self) -> None:
        given = "a, s, c" if self.together else "a, s"
        self.lines[0] = f"def run({given}{''.join(f', {n}={n}' for n in self.bound)}):"

    def drop_unused(self, uses: dict[int, int]) -> None:
        unused = [f"v{i}" for i in range(self.n_inputs) if not uses.get(i)]
        if unused:
            self.line("del " + ", ".join(unused))

    def write_commit(self, commit: list[CodeLine], owned: dict[int, int], uses: dict[int, int]) -> None:
        """The steps that write into inputs, and the return."""
        for step in commit:
            self.make_dense(step)
        if self.together:
            self.line(f"c.agreed((yield c.agree({'f' if self.watched else None})))")
        self.commit_line = min(self.commit_line, len(self.lines) + 1)
        for group in self.alike(commit):
            many = self.engine.many(group[0].op, group[0].attrs) if len(group) > 1 else None
            if many is not None:
                self.steps_at_once(group, self.bind(many), uses)
                continue
            for step in group:
                self.step(step, self.bind(step.kernel), uses)
        results = [f"o{k}" if k in owned else f"v{o}" for k, o in enumerate(self.low.outputs)]
        self.line(f"return ({''.join(r + ', ' for r in results)}), {'f' if self.flagged else None}")

    def line(self, text: str, instruction: int = -1) -> None:
        if self.mark and instruction >= 0:
            text = f"{self.mark}({instruction}); {text}"
        self.lines.append(" " + text if self.lines else text)
        self.instructions.append(instruction)

    def bind(self, thing: Any) -> str:
        name = self.names.get(id(thing))
        if name is None:
            name = self.names[id(thing)] = f"k{len(self.bound)}"
            self.bound[name] = thing  # also keeps it alive, so that its id stays unique
        return name

    def operand(self, a: Operand) -> str:
        if not isinstance(a, Literal):
            return f"v{a}" if a >= 0 else f"s{~a}"
        plain = isinstance(a.value, int) or (isinstance(a.value, float) and math.isfinite(a.value))
        return repr(a.value) if plain else self.bind(a.value)

    def step(self, step: CodeLine, kernel: str, uses: dict[int, int]) -> None:
        self.take_up([a for a in step.args if isinstance(a, int)], uses)
        if step.together:
            self.start(step, kernel, uses)
            return
        args = ", ".join(map(self.operand, step.args))
        left = "".join(f"v{r}, " for r in step.results) if len(step.results) > 1 else f"v{step.results[0]}"
        if step.check is None:
            text = f"{left} = {kernel}({args})"
        else:
            op, n, extra, number = step.check
            if number:
                text = f"{left} = {kernel}({op!r}, {args}, {n}, {extra})"
            elif self.watched:
                text = f"{left}, f = {kernel}({op!r}, {args}, {n}, {extra}, f)"
            else:
                text = f"{left} = {kernel}({op!r}, {args}, {n}, {extra}, None)[0]"
        dead = self.use(set(step.args), uses) + [r for r in step.results if not uses.get(r)]
        self.line(text + self.delete(dead) + f"  # {step.instruction} {step.op.name}", step.instruction)

    def start(self, step: CodeLine, kernel: str, uses: dict[int, int]) -> None:
        """Start a collective. It may overwrite an operand that nothing else reads."""
        (a,), (r,) = step.args, step.results
        assert isinstance(a, int)
        dead = self.use({a}, uses)
        text = f"h{r} = c.start({kernel}, v{a}, {self.private(a, uses)})"
        self.line(text + self.delete(dead) + f"  # {step.instruction} {step.op.name}", step.instruction)
        self.started[r] = step

    def private(self, a: int, uses: dict[int, int]) -> bool:
        """Whether a value that has been read for the last time shares its memory with no other."""
        low, base = self.low, self.low.base[a]
        others = (v for v, b in enumerate(low.base) if b == base)
        return base >= self.n_inputs and low.whole[a] and not any(uses.get(v) for v in others)

    def take_up(self, operands: list[int], uses: dict[int, int]) -> None:
        """Take the results of those operands that are collectives under way."""
        for a in operands:
            step = self.started.pop(a, None)
            if step is not None:
                dead = self.delete([] if uses.get(a) else [a])
                self.line(f"v{a} = yield h{a}; del h{a}{dead}", step.instruction)

    def steps_at_once(self, steps: list[CodeLine], kernel: str, uses: dict[int, int]) -> None:
        """One line for a group of steps with one kernel."""
        rows = [[a for a in s.args if isinstance(a, int) and a >= 0] for s in steps]
        numbers = [self.operand(a) for a in steps[0].args if isinstance(a, Literal) or a < 0]
        left = "".join(f"v{r}, " for s in steps for r in s.results)
        right = "".join(f"({''.join(f'v{a}, ' for a in row)}), " for row in rows)
        dead = self.use({a for row in rows for a in row}, uses)
        text = f"{left}= {kernel}(({right}), {', '.join(numbers)})"
        what = f"  # {steps[0].instruction}.. {len(steps)} {steps[0].op.name}"
        self.line(text + self.delete(dead) + what, steps[0].instruction)

    def write_owned(self, owned: dict[int, int], uses: dict[int, int]) -> bool:
        """Copy outputs that may share memory; False if the limit of GT_FAKE_MEMORY is reached."""
        maker = {r: s.instruction for s in self.low.steps for r in s.results}
        for k, o in sorted(owned.items(), key=lambda item: (item[0] in self.into, item[0])):
            instruction = maker.get(o, -1)
            copy = ~k  # no value has this number
            if k in self.into:  # the commit begins: nothing fails from here on
                self.commit_line = min(self.commit_line, len(self.lines) + 1)
            elif not self.allocate(instruction, copy):
                return False
            if self.flagged and k in self.updates:
                text = f"o{k} = {self.bind(self.select)}(f, v{self.updates[k]}, v{o}, {k in self.into})"
            elif k in self.into:
                text = f"o{k} = {self.bind(self.engine.put)}(v{self.updates[k]}, v{o})"
            else:
                text = f"o{k} = {self.bind(self.own)}(v{o})"
            self.line(text + self.delete(self.use(self.reads_of_owned(k, o), uses)), instruction)
        return True

    def make_dense(self, step: CodeLine) -> None:
        """In-place kernels may not allocate: operands are made contiguous before."""
        operands = sorted({a for a in step.args if isinstance(a, int) and a >= 0})
        dense = self.bind(self.dense)
        left = ", ".join(f"v{a}" for a in operands)
        self.line(f"{left} = {', '.join(f'{dense}(v{a})' for a in operands)}", step.instruction)

    def use(self, operands: set[Operand], uses: dict[int, int]) -> list[int]:
        """Count one line's reads; returns the values that no later line reads."""
        dead = []
        for a in operands:
            if isinstance(a, int) and a >= 0:
                uses[a] -= 1
                if not uses[a]:
                    dead.append(a)
        return sorted(dead)

    def delete(self, dead: list[int]) -> str:
        for d in dead:
            self.counted.pop(d, 0)
        return "; del " + ", ".join(f"v{d}" for d in dead) if dead else ""

    def allocate(self, instruction: int, *results: int) -> bool:
        """Count what a line makes; False if the limit of GT_FAKE_MEMORY is reached there (then the code ends)."""
        if not self.limit:
            return True
        for r in results:
            self.counted[r] = (self.low.specs[r] if r >= 0 else self.outputs[~r]).nbytes
        total = sum(self.counted.values())
        if total <= self.limit:
            return True
        self.line(f"{self.bind(fail_fake_memory)}({total}, {self.limit})", instruction)
        return False


def _plain(s: Spec) -> Spec:
    """The spec of a value in a store: an array, never a Python number."""
    return spec(s.shape, s.dtype)
