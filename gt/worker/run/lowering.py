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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from gt import dtypes
from gt.errors import IndexOutOfRange, ProgramError
from gt.ops.check import Checked
from gt.ops.record import TABLE, Op
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


@dataclass(slots=True)
class CodeLine:
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


class _Lowering:
    def __init__(self, checked: Checked, engine: Engine, trusted: bool, whole: Sequence[Whole]) -> None:
        self.program = checked.program
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
        #: Layers repeat: equal uses of an op share one kernel.
        self.kernels: dict[Any, Any] = {}
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

    def emit_at(self, i: int, ins: Instruction, first: int, env: list[Operand]) -> bool:
        """Add the steps of an instruction; False if it reads a value that has not been made (yet)."""
        args = [env[a] if a >= 0 else a for a in ins.args]
        if HIDDEN in args:
            return False
        self.instruction = i
        env[first : first + ins.results] = self.emit(TABLE[ins.op], args, ins.attrs)
        return True

    def emit(self, op: Op, args: list[Operand], attrs: dict[str, Any]) -> list[Operand]:
        """Add the steps of one use of an op; returns the operands that hold its results."""
        specs = [self.spec(a) for a in args]
        if op.indices is not None:
            for position, (n, extra) in op.indices(*specs, **attrs).items():
                args[position] = self.emit_check(op, args[position], n, extra)
        kernel = self.kernel(op, attrs, specs)
        if kernel is None:
            return self.expand(op, args, attrs)
        results = op.infer(*specs, **attrs)
        shared = args[0] if op.aliases and isinstance(args[0], int) and args[0] >= 0 else None
        made = tuple(self.new(s, shared) for s in (results if isinstance(results, tuple) else (results,)))
        self.steps.append(CodeLine(self.instruction, op, kernel, tuple(args), made, attrs))
        if any(self.specs[r].dtype.category == dtypes.INT for r in made):
            origins = of_results(op, args, specs, attrs, self.origins.get, [self.specs[r] for r in made])
            for r, origin in zip(made, origins, strict=True):
                self.note_origin(r, origin)
        return list(made)

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

    def kernel(self, op: Op, attrs: dict[str, Any], specs: list[Spec]) -> Callable[..., Any] | Collective | None:
        key = (op.name, repr(attrs), *specs)
        if key not in self.kernels:
            shared = op.collective and len(attrs["workers"]) > 1
            self.kernels[key] = self.shared(op, attrs, specs) if shared else self.engine.kernel(op, attrs, specs)
        return self.kernels[key]

    def shared(self, op: Op, attrs: dict[str, Any], specs: list[Spec]) -> Collective:
        made = op.infer(*specs, **attrs)
        if isinstance(made, tuple) or not set(attrs["workers"]) <= set(self.program.workers):
            raise ProgramError(f"{op.name}: not all of its workers {list(attrs['workers'])} run this call")
        return collective(op, attrs, specs[0], made)

    def expand(self, op: Op, args: list[Operand], attrs: dict[str, Any]) -> list[Operand]:
        """Add the steps of an op's composition."""
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
            env.update(zip(numbers, self.emit(part, inner, part_attrs), strict=True))
        return [env[s.number] for s in (out if isinstance(out, tuple) else (out,))]

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
        needed = set(outputs)
        kept = []
        for step in reversed(self.steps):
            if step.together or not needed.isdisjoint(step.results):
                needed.update(a for a in step.args if isinstance(a, int))
                kept.append(step)
        return kept[::-1]


def lower(checked: Checked, engine: Engine, trusted: bool = False, whole: Sequence[Whole] = ()) -> Lowered:
    """The steps of a program on an engine. With `trusted`, for inputs that are known to meet `needs`; with `whole`,
    some instructions are one step each."""
    return _Lowering(checked, engine, trusted, whole).run()
