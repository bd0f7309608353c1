"""A program as one pure torch function, its numbers in a buffer: what is captured as a CUDA graph, or compiled.

Law 1: the function depends on the program and the device alone: the process that compiles it and the worker that
       runs it build the same one.
Law 2: numbers come in one buffer of 8-byte slots, which the host fills at every call (`pack`). None is a constant of
       the function. What the host must check (an index given by value) it checks in `pack`.
Law 3: no bad index reaches a kernel: it is replaced by 0, and the flag, the last result, is set. On a device it is
       also set if the slot `before` is not 0: the call before failed, and this one continues it.
Law 4: writes into inputs come last. If the flag is set they write the input's own value, and a result that replaces an
       input without overwriting it has that value.

On a CPU the function is the part of a program before the commit; the commit is generated code around it
(executor.py). On CUDA it writes in place: each donated input that is updated. Optimizer steps come after all else, as
kernels of their own (updates.py): what is compiled is `pure`, the function without them, and `around` adds them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import torch

from gt.errors import ProgramError
from gt.ops.check import Checked
from gt.ops.record import Op, PreparedKernel
from gt.program import Spec
from gt.worker.engines import updates
from gt.worker.engines.graph_kernels import Unfit, graph_kernel
from gt.worker.engines.opaque import opaque_pair
from gt.worker.run.engine import Engine, Graph, bad_indices
from gt.worker.run.lowering import CodeLine, Literal, Lowered, Operand, alike, check_number, choose_commit, lower, split
from gt.worker.run.segments import SEGMENT, CapturedSegment

ALIGNED = 2  #: A segment's numbers begin at a multiple of so many slots: its kernels rely on it.
_FORMATS = {"f": "d", "i": "q", "b": "q"}


class _Kernels:
    """The engine as lowering sees it: every step has its plain kernel and its graph kernel."""

    def __init__(self, engine: Engine) -> None:
        self.name, self.deferred = engine.name, engine.deferred
        self._engine = engine

    def kernel(self, op: Op, attrs: dict[str, Any], operands: Sequence[Spec]) -> Any:
        plain = self._engine.kernel(op, attrs, operands)
        if plain is None:
            return None  # it is expanded, as for plain code: so values have the same numbers
        return lambda constant: graph_kernel(self._engine, op, attrs, operands, constant)

    def pair(self, op: Op, gradient: Op, attrs: dict[str, Any], operands: Sequence[Spec]) -> Any:
        made = self._engine.pair(op, gradient, attrs, operands)
        if made is None:
            return None
        first, then = opaque_pair(op, gradient, attrs, operands, *made)
        return lambda constant: first, lambda constant: then

    def check(self, *operands: Any) -> Any:
        raise AssertionError("a graph checks indices itself")


class _Formulas:
    """The engine as the choice of a commit sees it: an in-place kernel is there if it can be made of a formula."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}

    def kernel(self, op: Op, attrs: dict[str, Any], operands: Sequence[Spec], inplace: bool = False) -> Any:
        shape = operands[0].shape
        key = (op.name, repr(attrs), *[(s.dtype, s.weak or s.shape == shape) for s in operands])  # of any one shape
        if key not in self._known:
            try:
                self._known[key] = updates.source(op, attrs, operands)
            except updates.NoFormula:
                self._known[key] = None
        return self._known[key]


class _Commit(NamedTuple):
    """Optimizer steps that one kernel does."""

    text: str  #: Its source.
    rows: list[list[int]]  #: The values that it works on.
    at: int  #: The slot of the first of its numbers.


class GraphProgram:
    """See the file's header. Raises Unfit where a program cannot be a graph."""

    def __init__(
        self, checked: Checked, engine: Engine, trusted: bool = False, whole: Sequence[CapturedSegment] = ()
    ) -> None:
        low = lower(checked, _Kernels(engine), trusted, whole)  # type: ignore[arg-type]  # it has all that lowering uses of an engine
        self._segments = {w.kernel: w for w in whole}
        self.device = engine.device
        self.inputs: list[Spec] = low.specs[: len(low.program.inputs)]
        self.outputs, self.donate = low.outputs, low.program.donate
        self.slots = 0  #: of 8 bytes, in the buffer
        self.flagged = bool(low.checks)
        self.before = -1  #: A slot that says whether the call before has failed; -1: there is none.
        self._low = low
        self._lines: list[Callable[[list[Any], Any, list[Any]], None]] = []
        #: (format, what to pack). For several numbers the format has several letters.
        self._packed: list[tuple[str, Callable[[tuple[Any, ...]], Any]]] = []
        #: The first slot of what a PreparedKernel has computed from numbers, by kernel and numbers.
        self._prepared: dict[Any, int] = {}
        #: Values that are numbers checked by the host: the operand of each.
        self._checked: dict[int, Operand] = {}
        self._places: dict[int, Callable[[Any], Any]] = {}  #: How to read each scalar from the buffer.
        self._looks: list[Callable[[tuple[Any, ...]], Any]] = []  #: Checks of numbers, by the host.
        self._commits: list[_Commit] = []
        self._copied: list[tuple[int, int]] = []  #: (input, value): which input is overwritten by a copy,
        self.writes: list[tuple[int, int]] = []  #: and which one in any way, with what.
        #: By value, the input that it replaces, of those that are not overwritten: somebody else has them too.
        self._replaces: dict[int, int] = {}
        if engine.deferred:
            if self.flagged:
                self.before = self.slots
                self._packed.append((_FORMATS["i"], lambda scalars: 0))
                self.slots += 1
            self._choose_writes(low)
            written = {value for _, value in self.writes}
            #: The values that the function returns, in memory of their own. A flag follows them if there are checks.
            self.wants = [o for o in low.outputs if o not in written]
            for k, i in low.program.updates if self.flagged else ():
                v = low.outputs[k]
                if v not in written and _alike(low, v, i) and self._replaces.setdefault(v, i) != i:
                    raise Unfit("one value replaces several inputs")
        else:
            self.wants = split(checked, engine)
        read = {a for commit in self._commits for row in commit.rows for a in row}
        overwritten = {i for i, _ in self._copied}
        #: What `pure` returns: also what the commits read, unless that is an input which is as it was.
        read = {a for a in read if a >= len(self.inputs) or a in overwritten}
        self._returns = [*self.wants, *sorted(read - set(self.wants))]
        made: list[CodeLine] = []  #: of each line
        for step in low.steps:
            self._add(step)
            made += [step] * (len(self._lines) - len(made))
        self._dead = _dead(made, {*self._returns, *(v for _, v in self._copied)})
        self._takes = [(len(form) == 1 or form[-1] == "s", take) for form, take in self._packed]
        self._format = struct.Struct("=" + "".join(f for f, _ in self._packed))
        self._shared = _shared(low, self._returns)
        assert self._format.size == 8 * self.slots

    def _choose_writes(self, low: Lowered) -> None:
        """Decide which inputs are overwritten, and how."""
        sources = {low.outputs[k]: i for k, i in low.program.updates}
        groups: list[list[CodeLine]] = []
        if updates.available():
            steps = low.steps
            groups = alike(low, choose_commit(low, _Formulas()))
            pairs = [
                (s.args[p], r) for group in groups for s in group for p, r in zip(s.op.inplace, s.results, strict=True)
            ]
            if any(sources.get(r, target) != target for target, r in pairs):
                low.steps, groups = steps, []  # a failed call could not leave such a result as it was
        for group in groups:
            first, (text, prepared) = group[0], group[0].kernel
            rows = [[a for a in s.args if isinstance(a, int) and a >= 0] for s in group]
            self._commits.append(_Commit(text, rows, self._place(list(first.args), prepared)))
            for s in group:
                for p, r in zip(s.op.inplace, s.results, strict=True):
                    target = s.args[p]
                    assert isinstance(target, int)
                    self.writes.append((target, r))
        done = {r for _, r in self.writes}
        self._copied = [(i, value) for i, value in _writes(low) if value not in done]
        self.writes += self._copied

    def pack(self, scalars: tuple[Any, ...], buffer: Any) -> None:
        """Check a call's numbers and put them into the buffer. Raises what the plain kernels would."""
        for look in self._looks:
            look(scalars)
        numbers: list[Any] = []
        for single, take in self._takes:
            if single:
                numbers.append(take(scalars))
            else:
                numbers += take(scalars)
        self._format.pack_into(buffer, 0, *numbers)

    def build(self, inputs: Sequence[Any], buffer: Any) -> list[Any]:
        """The function: of inputs and a buffer of int64; returns the values `wants`, then the flag."""
        return self._commit(inputs, buffer, self.pure(inputs, buffer))

    def around(self, pure: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        """The function, where the compiled `pure` is given."""
        if not self._commits:
            return pure
        return lambda inputs, buffer: self._commit(inputs, buffer, pure(inputs, buffer))

    def _commit(self, inputs: Sequence[Any], buffer: Any, made: list[Any]) -> list[Any]:
        """Do what is left to do after `pure`, with what it has made."""
        if not self._commits:
            return made
        flag = made[-1] if self.flagged else None
        there = dict(enumerate(inputs)) | dict(zip(self._returns, made, strict=False))
        for commit in self._commits:
            update = updates.update(commit.text, len(commit.rows[0]))
            update([[there[a] for a in row] for row in commit.rows], buffer.data_ptr() + 8 * commit.at, flag)
        made = made[: len(self.wants)]
        return made if flag is None else [*made, flag]

    def pure(self, inputs: Sequence[Any], buffer: Any) -> list[Any]:
        """The function without optimizer steps; it also returns what they read."""
        env: list[Any] = [None] * len(self._low.specs)
        env[: len(inputs)] = inputs
        flags: list[Any] = [] if self.before < 0 else [buffer[self.before] != 0]
        for line, dead in zip(self._lines, self._dead, strict=True):
            line(env, buffer, flags)
            for v in dead:  # or a rehearsal would hold everything that the program makes
                env[v] = None
        flag = torch.stack(flags).any() if flags else None
        for v, i in self._replaces.items():
            env[v] = torch.where(flag, inputs[i], env[v])
        made = [env[v].clone(memory_format=torch.contiguous_format) if v in self._shared else env[v].contiguous()
                for v in self._returns]  # fmt: skip
        # The new value of an input may share memory with another input that is about to be written.
        new = [env[v].clone() if self._low.base[v] < len(inputs) else env[v] for _, v in self._copied]
        for (i, _), value in zip(self._copied, new, strict=True):
            inputs[i].copy_(value if flag is None else torch.where(flag, inputs[i], value))
        return made if flag is None else [*made, flag]

    def spec(self, value: int) -> Spec:
        """The spec of a value that it makes."""
        return self._low.spec(value)

    def example(self) -> list[Any]:
        """Inputs and a buffer to trace with."""
        made = [torch.empty(s.shape, dtype=getattr(torch, s.dtype.name), device=self.device) for s in self.inputs]
        return [*made, torch.zeros(max(self.slots, 1), dtype=torch.int64, device=self.device)]

    # --- building ------------------------------------------------------------------------------------------------

    def _add(self, step: CodeLine) -> None:
        if step.check is not None:
            self._add_check(step)
            return
        if step.op is SEGMENT:
            self._add_segment(step)
            return
        operands = [self._checked.get(a, a) if isinstance(a, int) else a for a in step.args]
        scalars = any(isinstance(a, int) and a < 0 for a in operands)
        kernel, results = step.kernel(not scalars), step.results
        if isinstance(kernel, PreparedKernel):
            f, tensors = kernel.kernel, [a for a in operands if isinstance(a, int) and a >= 0]
            numbers = self._prepare(operands, kernel)

            def run(env: list[Any], buffer: Any) -> Any:
                return f(*[env[a] for a in tensors], *[read(buffer) for read in numbers])
        else:
            args = [self._reader(a, scalars, step) for a in operands]

            def run(env: list[Any], buffer: Any) -> Any:
                return kernel(*[a(env, buffer) for a in args])

        def line(env: list[Any], buffer: Any, flags: list[Any]) -> None:
            made = run(env, buffer)
            for r, value in zip(results, made if len(results) > 1 else (made,), strict=True):
                env[r] = value

        self._lines.append(line)

    def _add_segment(self, step: CodeLine) -> None:
        """A compiled segment has its own buffer of numbers, which is a part of the whole one."""
        graph, run, results = self._segments[step.kernel].graph, step.kernel, step.results
        tensors = [a for a in step.args if isinstance(a, int) and a >= 0]
        numbers = [~a for a in step.args if isinstance(a, int) and a < 0]
        if len(tensors) + len(numbers) != len(step.args):
            raise Unfit("a number that is the same in every call is an operand of a segment")
        slots = max(graph.slots, 1)
        if self.slots % ALIGNED:
            self._packed.append(("8s", lambda scalars: b""))
            self.slots += 1
        at = self.slots
        self._packed.append((f"{8 * slots}s", lambda scalars: _packed(graph, tuple([scalars[k] for k in numbers]))))
        self.slots += slots

        def line(env: list[Any], buffer: Any, flags: list[Any]) -> None:
            made = run([env[a].contiguous() for a in tensors], buffer[at : at + slots])
            for r, value in zip(results, made if len(results) > 1 else (made,), strict=True):
                env[r] = value

        self._lines.append(line)

    def _reader(self, a: Operand, among_scalars: bool, step: CodeLine) -> Callable[[list[Any], Any], Any]:
        """How a step gets an operand: a value, a number of the call, or a constant."""
        if isinstance(a, Literal):
            value, device = a.value, self.device
            if not among_scalars or isinstance(value, bytes):
                return lambda env, buffer: value
            dtype = torch.bool if isinstance(value, bool) else torch.int64 if isinstance(value, int) else torch.float64
            return lambda env, buffer: torch.full((), value, dtype=dtype, device=device)
        if a >= 0:
            return lambda env, buffer: env[a]
        read = self._scalar(~a, step)
        return lambda env, buffer: read(buffer)

    def _scalar(self, k: int, step: CodeLine) -> Callable[[Any], Any]:
        """A scalar of the call, in the buffer."""
        if k not in self._places:
            kind, at = self._low.program.scalars[k], self.slots
            if kind == "d":
                nbytes = sum(self._low.specs[r].nbytes for r in step.results)
                slots = -(-nbytes // 8)
                self._packed.append((f"{8 * slots}s", lambda scalars: _whole(scalars[k], nbytes)))
                self._places[k] = lambda buffer: buffer[at : at + slots].view(torch.uint8)[:nbytes]
                self.slots += slots
            else:
                self._packed.append((_FORMATS[kind], lambda scalars: scalars[k]))
                self._places[k] = _read(kind, at)
                self.slots += 1
        return self._places[k]

    def _prepare(self, operands: list[Operand], kernel: PreparedKernel) -> list[Callable[[Any], Any]]:
        """The numbers of a step that the host computes with first: how to read the results from the buffer."""
        at = self._place(operands, kernel)
        return [_read(kind, at + i) for i, kind in enumerate(kernel.kinds)]

    def _place(self, operands: list[Operand], kernel: PreparedKernel) -> int:
        """The same numbers: the slot of the first of them."""
        numbers = [a for a in operands if isinstance(a, Literal) or a < 0]
        key = (kernel.numbers, kernel.kinds, *numbers)
        if key in self._prepared:  # all parameters of an optimizer share them
            return self._prepared[key]

        def take(scalars: tuple[Any, ...]) -> tuple[Any, ...]:
            return kernel.numbers(*[a.value if isinstance(a, Literal) else scalars[~a] for a in numbers])

        if not any(isinstance(a, Literal) for a in numbers) and len(numbers) > 1:  # the usual case, at every call
            f, all_of_them = kernel.numbers, itemgetter(*[~a for a in numbers if not isinstance(a, Literal)])
            take = lambda scalars: f(*all_of_them(scalars))  # noqa: E731

        form = "".join(_FORMATS[kind] for kind in kernel.kinds)
        if len(form) == 1:
            self._packed.append((form, lambda scalars: take(scalars)[0]))
        elif form:
            self._packed.append((form, take))
        else:
            self._looks.append(take)
        at = self._prepared[key] = self.slots
        self.slots += len(form)
        return at

    def _add_check(self, step: CodeLine) -> None:
        check, (a,), (result,) = step.check, step.args, step.results
        assert check is not None
        op, n, extra, number = check
        a = self._checked.get(a, a) if isinstance(a, int) else a
        if number:
            index: Callable[[tuple[Any, ...]], Any] = (
                (lambda scalars: a.value) if isinstance(a, Literal) else (lambda scalars: scalars[~a])
            )
            self._looks.append(lambda scalars: check_number(op, index(scalars), n, extra))
            self._checked[result] = a
            return
        if n <= 0:
            raise Unfit(f"{op}: has an index into a dimension of size 0")
        assert isinstance(a, int)

        def line(env: list[Any], buffer: Any, flags: list[Any]) -> None:
            index = env[a]
            bad = bad_indices(index, n, extra)
            flags.append(bad.any())
            env[result] = torch.where(bad, 0, index)

        self._lines.append(line)


def _packed(graph: Graph, scalars: tuple[Any, ...]) -> bytes:
    """The buffer of a segment's numbers."""
    buffer = bytearray(8 * max(graph.slots, 1))
    graph.pack(scalars, buffer)
    return bytes(buffer)


def _whole(data: bytes, nbytes: int) -> bytes:
    if len(data) != nbytes:
        raise ProgramError(f"got {len(data)} bytes of host data, expected {nbytes}")
    return data


def _read(kind: str, at: int) -> Callable[[Any], Any]:
    if kind == "f":
        return lambda buffer: buffer.view(torch.float64)[at]
    if kind == "b":
        return lambda buffer: buffer[at] != 0
    return lambda buffer: buffer[at]


def _dead(lines: Sequence[CodeLine], kept: set[int]) -> list[list[int]]:
    """For each line the values that no later line reads."""
    last: dict[int, int] = {}
    for k, step in enumerate(lines):
        last.update({v: k for v in (*step.args, *step.results) if isinstance(v, int) and v >= 0})
    dead: list[list[int]] = [[] for _ in lines]
    for v, k in last.items():
        if v not in kept:
            dead[k].append(v)
    return dead


def _writes(low: Lowered) -> list[tuple[int, int]]:
    """Which inputs are overwritten: donated ones that a result of the same shape and dtype replaces."""
    donated, chosen = set(low.program.donate), {}
    for k, i in low.program.updates:
        value = low.outputs[k]
        if i in donated and i not in chosen and _alike(low, value, i) and low.outputs.count(value) == 1:
            chosen[i] = value
    return list(chosen.items())


def _alike(low: Lowered, one: int, other: int) -> bool:
    """Whether two values have the same shape and dtype."""
    return low.specs[one].shape == low.specs[other].shape and low.specs[one].dtype is low.specs[other].dtype


def _shared(low: Lowered, wants: Sequence[int]) -> set[int]:
    """The wanted values that may share memory with an input, or with each other."""
    bases = [low.base[v] for v in wants]
    return {v for v, base in zip(wants, bases, strict=True) if base < len(low.program.inputs) or bases.count(base) > 1}
