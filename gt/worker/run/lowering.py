"""From a program to the steps that an engine runs.

Law 1: a step is one kernel, or one check of an index. Compositions without a kernel of their own are
       expanded. Steps whose results are not read are dropped (ops are pure).
Law 2: before a kernel reads an index its check has run. One index is checked once. Where inputs are trusted, an index
       whose elements come from inputs needs no check: `needs` says what must be known of those inputs instead; an index
       whose range follows from numbers needs no check either. See origins.py.
Law 3: `base` says whose memory a value may use: its own, or that of an earlier value.
Law 4: a gradient step may go on with what the step of its op has computed (`Op.resumes`). What passes between the two
       is a value that only they know: it has one reader and is no output.
Law 5: collectives are never dropped and never reordered: the other workers run them too.

Values are renumbered: the inputs first, as in the program, then the results of the steps. This is
decided once per program; executor.py turns it into code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import msgspec

from gt import dtypes
from gt.errors import IndexOutOfRange, ProgramError
from gt.ops.check import Checked, Inferred, infer
from gt.ops.record import Op
from gt.ops.trace import OpTrace, Symbol, scalar_kind
from gt.program import SCALARS, Instruction, Program, Spec, spec
from gt.worker.run.collectives import Collective, collective
from gt.worker.run.engine import Engine
from gt.worker.run.origins import KnownOrigin, Origin, Source, bounds_of, needed, of_input, of_results


class Literal(NamedTuple):
    """A number that is a constant of a composition; it is the same in every call."""

    value: Any


#: A value's number, ~k for scalar k, or a number.
Operand = int | Literal

HIDDEN = Literal(None)  #: A value inside a whole step, or a view of one: no other step can read it.


#: The spec of a value that is not an array; it is not used.
_KEPT = spec((0,), dtypes.uint8)


class Check(NamedTuple):
    """Every element of the step's operand must be in [0, n), or be `extra`."""

    op: str
    n: int
    extra: int | None
    number: bool  #: The index is a number of the call: it is checked by the host, not by the engine.


class CodeLine(msgspec.Struct, eq=False, gc=False):
    """One line of generated code."""

    instruction: int  #: Of the program; several steps may come from one.
    op: Op
    kernel: Any  #: A function of the operands; or a Collective.
    args: tuple[Operand, ...]
    results: tuple[int, ...]
    attrs: dict[str, Any]
    check: Check | None = None

    @property
    def together(self) -> bool:
        """Whether other workers take part in it."""
        return isinstance(self.kernel, Collective)


class Whole(Protocol):
    """Several instructions as one step: a compiled segment of a program. See segments.py."""

    op: Op
    kernel: Callable[..., Any]
    replaces: frozenset[int]  #: The instructions that it stands for.
    failed: str  #: Why they had to run one by one; "": they had not.
    place: int  #: The instruction in whose place the step is.
    args: tuple[int, ...]  #: Values of the program, and ~k for scalar k.
    results: tuple[int, ...]  #: The values that it makes,
    specs: tuple[Spec, ...]  #: and their specs.

    def where(self, error: BaseException) -> int:
        """The instruction that raised this error; -1: none."""


@dataclass(slots=True)
class Lowered:
    """A program as steps."""

    program: Program
    steps: list[CodeLine]
    specs: list[Spec]  #: Of every value.
    base: list[int]  #: Of every value: the value whose memory it may use; itself if none.
    whole: list[bool]  #: Of every value: it covers its base's memory exactly, each element once.
    outputs: list[int]
    checks: list[CodeLine] = field(default_factory=list)  #: The checks that the engine does.
    #: Source -> n: all elements of that input, or what follows from numbers, must be in [0, n).
    needs: dict[Source, int] = field(default_factory=dict)
    bounds: tuple[KnownOrigin, ...] = ()  #: The outputs of which something is known if enough is known of the inputs.

    def spec(self, operand: Operand) -> Spec:
        return operand_spec(operand, self.specs, self.program.scalars)


def operand_spec(operand: Operand, specs: Sequence[Spec], scalars: str) -> Spec:
    """The spec of an operand."""
    if isinstance(operand, Literal):
        return SCALARS[scalar_kind(operand.value)]
    return specs[operand] if operand >= 0 else SCALARS[scalars[~operand]]


def check_number(op: str, index: int, n: int, extra: int | None) -> int:
    """The check of an index that is a number of the call."""
    if not 0 <= index < n and (extra is None or index != extra):
        raise IndexOutOfRange(f"{op}: index {index} is out of range for a dimension of size {n}")
    return index


class Kernel(NamedTuple):
    """What an engine has for an op with some attributes on operands of some specs. It is kept with what inference has
    said of it, so that programs share it."""

    engine: Engine
    function: Any  #: Or a Collective; None: the op's composition must be expanded.
    checks: tuple[tuple[int, int, int | None], ...]  #: (operand, n, extra): see `Op.indices`.
    indices: bool  #: A result may be an index.


class _Lowering:
    def __init__(self, checked: Checked, engine: Engine, trusted: bool, whole: Sequence[Whole]) -> None:
        self.program, self.uses = checked.program, checked.uses
        self.places = {w.place: w for w in whole}
        self.replaced = {i for w in whole for i in w.replaces}
        self.trusted = trusted
        self.needs: dict[Source, int] = {}
        self.engine = engine
        self.specs: list[Spec] = list(checked.specs[: len(self.program.inputs)])
        self.base: list[int] = list(range(len(self.specs)))
        self.whole: list[bool] = [True] * len(self.specs)
        self.steps: list[CodeLine] = []
        self.instruction = -1
        self.check = engine.check
        self.as_inferred = True  #: All values so far have the specs that the check has inferred.
        self.checked: dict[tuple[Operand, int, int | None], Operand] = {}
        #: Where the elements of values come from, as far as that is known.
        self.origins: dict[Operand, Origin] = {}
        for i, s in enumerate(self.specs):
            if engine.deferred and s.dtype.category == dtypes.INT:  # elsewhere every index is checked at once
                self.note_origin(i, of_input(i, s))

    def spec(self, operand: Operand) -> Spec:
        return operand_spec(operand, self.specs, self.program.scalars)

    def new(self, spec: Spec, base: int | None = None) -> int:
        """A new value; with `base`, one that may share the memory of that one."""
        number = len(self.specs)
        self.specs.append(spec)
        if base is None:
            self.base.append(number)
            self.whole.append(True)
        else:
            self.base.append(self.base[base])
            # A view of the same size as its base has every element once.
            self.whole.append(self.whole[base] and self.specs[base].nbytes == spec.nbytes)
        return number

    def run(self) -> Lowered:
        env: list[Operand] = list(range(len(self.specs)))
        uses = self.uses
        if not self.places:
            for i, ins in enumerate(self.program.code):
                self.instruction = i
                env += self.emit([env[a] if a >= 0 else a for a in ins.args], ins.attrs, uses[i])
        else:
            self.run_around(env)
        outputs = [o for o in (env[k] for k in self.program.outputs) if isinstance(o, int) and o >= 0]
        if len(outputs) != len(self.program.outputs):
            raise ProgramError("an output must be a tensor, got a number of the call")
        steps = self.live(outputs)
        self.pair(steps)
        lowered = Lowered(self.program, steps, self.specs, self.base, self.whole, outputs)
        lowered.checks = [s for s in steps if s.check is not None and not s.check.number]
        lowered.needs = self.needs
        lowered.bounds = bounds_of(outputs, self.origins) if self.origins else ()
        return lowered

    def run_around(self, env: list[Operand]) -> None:
        """The steps of a program of which some instructions are one step."""
        self.as_inferred = False
        waiting: list[tuple[int, Instruction, int]] = []  # what reads a whole step, with its first result
        for i, ins in enumerate(self.program.code):
            first = len(env)
            env.extend([HIDDEN] * ins.results)
            if i not in self.replaced and not self.emit_at(i, ins, first, env):
                waiting.append((i, ins, first))
            if i in self.places:
                self.instruction = i
                self.emit_whole(self.places[i], env)
                waiting = [each for each in waiting if not self.emit_at(*each, env)]

    def emit_at(self, i: int, ins: Instruction, first: int, env: list[Operand]) -> bool:
        """Add the steps of an instruction; False if it reads a value that has not been made (yet)."""
        args = [env[a] if a >= 0 else a for a in ins.args]
        if HIDDEN in args:
            return False
        self.instruction = i
        env[first : first + ins.results] = self.emit(args, ins.attrs, self.uses[i])
        return True

    def emit(self, args: list[Operand], attrs: dict[str, Any], use: Inferred) -> Sequence[Operand]:
        """Add the steps of one use of an op; returns the operands that hold its results."""
        if not self.as_inferred:
            use = infer(use.op, attrs, [self.spec(a) for a in args])
        op, results = use.op, use.results
        kernel: Kernel | None = use.lowered
        if kernel is None or kernel.engine is not self.engine or op.collective:
            kernel = self.kernel(use, attrs)
        for position, n, extra in kernel.checks:
            args[position] = self.emit_check(op, args[position], n, extra)
        if kernel.function is None:
            return self.expand(use, args, attrs)
        first = len(self.specs)
        if not op.aliases:
            made: tuple[int, ...] = (first,) if len(results) == 1 else (*range(first, first + len(results)),)
            self.specs += results
            self.base += made
            self.whole += [True] * len(results)
        else:
            shared = args[0] if isinstance(args[0], int) and args[0] >= 0 else None
            made = tuple([self.new(s, shared) for s in results])
        self.steps.append(CodeLine(self.instruction, op, kernel.function, tuple(args), made, attrs))
        if kernel.indices:
            origins = of_results(op, args, use.operands, attrs, self.origins.get, results)
            for r, origin in zip(made, origins, strict=True):
                self.note_origin(r, origin)
        return made

    def note_origin(self, value: int, origin: Origin | None) -> None:
        if origin is not None:
            self.origins[value] = origin

    def emit_whole(self, whole: Whole, env: list[Operand]) -> None:
        """Add a step that stands for many instructions."""
        args = tuple([env[a] if a >= 0 else a for a in whole.args])
        made = tuple([self.new(s) for s in whole.specs])
        self.steps.append(CodeLine(self.instruction, whole.op, whole.kernel, args, made, {}))
        for v, number in zip(whole.results, made, strict=True):
            env[v] = number

    def emit_check(self, op: Op, index: Operand, n: int, extra: int | None) -> Operand:
        known = self.checked.get((index, n, extra))
        if known is not None:
            return known
        origin = self.origins.get(index)
        if not self.spec(index).size or (origin is not None and self.known(origin, n)):
            return index
        by_value = isinstance(index, Literal) or index < 0
        kernel = check_number if by_value else self.check
        base = index if isinstance(index, int) and index >= 0 else None
        result = self.new(self.spec(index), base)
        check = Check(op.name, n, extra, by_value)
        self.steps.append(CodeLine(self.instruction, op, kernel, (index,), (result,), {}, check))
        # An index that was checked need not be checked again, under its old number or its new one.
        self.checked[index, n, extra] = self.checked[result, n, extra] = result
        return result

    def known(self, origin: Origin, n: int) -> bool:
        """Whether a value of that origin is known to be in [0, n), if a call meets what is then noted in `needs`."""
        needs = needed(origin, n)
        if needs is None or (needs and not self.trusted):
            return False
        for source, least in needs:
            self.needs[source] = min(least, self.needs.get(source, least))
        return True

    def kernel(self, use: Inferred, attrs: dict[str, Any]) -> Kernel:
        op, specs = use.op, use.operands
        checks = () if op.indices is None else op.indices(*specs, **attrs).items()
        shared = op.collective and len(attrs["workers"]) > 1
        made = use.lowered = Kernel(
            self.engine,
            self.shared(use, attrs) if shared else self.engine.kernel(op, attrs, specs),
            tuple([(position, n, extra) for position, (n, extra) in checks]),
            any(s.dtype.category == dtypes.INT for s in use.results),
        )
        return made

    def shared(self, use: Inferred, attrs: dict[str, Any]) -> Collective:
        op = use.op
        if len(use.results) > 1 or not set(attrs["workers"]) <= set(self.program.workers):
            raise ProgramError(f"{op.name}: not all of its workers {list(attrs['workers'])} run this call")
        return collective(op, attrs, use.operands[0], use.results[0])

    def expand(self, use: Inferred, args: list[Operand], attrs: dict[str, Any]) -> list[Operand]:
        """Add the steps of an op's composition."""
        op = use.op
        if op.compose is None:
            raise ProgramError(f"{op.name}: the {self.engine.name} engine has no kernel for it")
        trace = OpTrace()
        env: dict[int, Operand] = {}
        operands: list[Any] = []
        for a in args:
            if isinstance(a, Literal):
                operands.append(a.value)
            else:
                symbol = trace.symbol(self.spec(a))
                env[symbol.number] = a
                operands.append(symbol)
        out = op.compose(*operands, **attrs)
        for part, part_args, part_attrs, numbers in trace.code:
            inner = [env[a.number] if isinstance(a, Symbol) else Literal(a) for a in part_args]
            part_use = infer(part, part_attrs, [self.spec(a) for a in inner])
            env.update(zip(numbers, self.emit(inner, part_attrs, part_use), strict=True))
        made = [env[s.number] for s in (out if isinstance(out, tuple) else (out,))]
        if any(self.spec(a) is not s for a, s in zip(made, use.results, strict=True)):
            self.as_inferred = False
        return made

    def pair(self, steps: list[CodeLine]) -> None:
        """Let gradient steps go on with the work of the steps before them that computed their op."""
        resumed = {s.op.resumes for s in steps if s.op.resumes}
        ready: list[CodeLine] = []
        for step in steps:
            if step.op.name in resumed and step.check is None:
                ready.append(step)
            if not step.op.resumes:
                continue
            fits = [s for s in ready if s.op.name == step.op.resumes and s.attrs == step.attrs
                    and s.args == step.args[len(step.args) - len(s.args) :]]  # fmt: skip
            if not fits:
                continue
            first = fits[-1]  # the latest: an earlier one would keep memory for longer
            kernels = self.engine.pair(first.op, step.op, first.attrs, [self.spec(a) for a in first.args])
            if kernels is None:
                continue
            ready.remove(first)  # by identity: each step has results of its own
            kept = self.new(_KEPT)
            first.kernel, step.kernel = kernels
            step.args = (*step.args, *first.results, kept)
            first.results = (*first.results, kept)

    def live(self, outputs: list[int]) -> list[CodeLine]:
        """The steps that some output needs, or some other worker."""
        needed: set[Operand] = set(outputs)
        kept = []
        for step in reversed(self.steps):
            if not needed.isdisjoint(step.results) or step.together:
                needed.update(step.args)
                kept.append(step)
        return kept[::-1]


def lower(checked: Checked, engine: Engine, trusted: bool = False, whole: Sequence[Whole] = ()) -> Lowered:
    """The steps of a program on an engine. With `trusted`, for inputs that are known to meet `needs`; with `whole`,
    some instructions are one step each."""
    return _Lowering(checked, engine, trusted, whole).run()


# --- the commit ------------------------------------------------------------------------------------------------------


def split(checked: Checked, engine: Engine) -> list[int]:
    """The values that a pure function must return so that the commit can do the rest: see `compile_around`."""
    lowered = lower(checked, engine)
    flagged = engine.deferred and lowered.checks and not lowered.program.workers
    return wanted(lowered, [] if flagged else choose_commit(lowered, engine))


def choose_commit(low: Lowered, engine: Any) -> list[CodeLine]:
    """Take out of the steps those that may overwrite donated inputs in the end, with in-place kernels. Of the engine
    only these are asked for."""
    donated = set(low.program.donate)
    read = {a for s in low.steps for a in s.args}
    times = Counter(low.outputs)
    written: set[int] = set()
    read_late: set[int] = set()  # memory that the commit reads
    chosen: list[CodeLine] = []
    for s in low.steps:
        if not s.op.inplace or s.check is not None:
            continue
        targets = [a for p in s.op.inplace if isinstance(a := s.args[p], int)]
        pairs = list(zip(targets, s.results, strict=False))
        others = {low.base[a] for i, a in enumerate(s.args) if i not in s.op.inplace and isinstance(a, int) and a >= 0}
        if not (
            targets
            and len(pairs) == len(s.op.inplace) == len(s.results) == len(set(targets))
            and donated.issuperset(targets)
            and all(low.specs[t] is plain(low.specs[r]) for t, r in pairs)
            and read.isdisjoint(s.results)  # a reader would have to run after the commit
            and all(times[r] < 2 for r in s.results)  # or two results would be one array
            and written.isdisjoint(targets)
            and read_late.isdisjoint(targets)
            and others.isdisjoint(targets)
            and others.isdisjoint(written)
        ):
            continue
        kernel = engine.kernel(s.op, s.attrs, [low.spec(a) for a in s.args], inplace=True)
        if kernel is None:
            continue
        written.update(targets)
        read_late |= others
        chosen.append(CodeLine(s.instruction, s.op, kernel, s.args, s.results, s.attrs))
    if chosen:
        replaced = {s.results for s in chosen}
        low.steps = [s for s in low.steps if s.results not in replaced]
    return chosen


def alike(lowered: Lowered, commit: list[CodeLine]) -> list[list[CodeLine]]:
    """Groups of steps that one kernel could do: the same op and numbers, on different arrays of one dtype."""
    groups: dict[Any, list[CodeLine]] = {}
    for s in commit:
        numbers = tuple(a for a in s.args if isinstance(a, Literal) or a < 0)
        first = lowered.specs[s.results[0]]
        key = (s.op.name, repr(s.attrs), repr(numbers), first.dtype, first.size > 0)
        groups.setdefault(key, []).append(s)
    return list(groups.values())


def wanted(lowered: Lowered, commit: list[CodeLine]) -> list[int]:
    """The values that the commit reads and the results that it does not make, in order."""
    committed = {r for s in commit for r in s.results}
    read = {a for s in commit for a in s.args if isinstance(a, int) and a >= len(lowered.program.inputs)}
    return sorted(read | set(lowered.outputs) - committed)


def plain(s: Spec) -> Spec:
    """The spec of a value in a store: an array, never a Python number."""
    return spec(s.shape, s.dtype)
