"""Small programs for the tests, and engines that misbehave on purpose."""

from __future__ import annotations

from typing import Any

import numpy as np

from gt import dtypes
from gt.ops.check import Checked, check
from gt.ops.record import TABLE
from gt.program import SCALARS, Instruction, Program, Spec, as_tuple, spec
from gt.worker.run.engine import Coming, bad_indices


class Builder:
    """Writes a program instruction by instruction; values are their numbers.

    >>> b = Builder((2, 3), scalars="f")
    >>> y = b.add("mul", 0, ~0)
    >>> b.program(outputs=[y]).code[0].op
    'mul'
    """

    def __init__(self, *shapes: tuple[int, ...], scalars: str = "", kinds: dict[int, str] | None = None) -> None:
        named = kinds or {}
        self.inputs = tuple((s, named.get(i, "float32")) for i, s in enumerate(shapes))
        self.scalars = scalars
        self.code: list[Instruction] = []
        self.specs: list[Spec] = [spec(s, dtypes.BY_NAME[d]) for s, d in self.inputs]

    def add(self, op: str, *args: int, **attrs: Any) -> Any:
        operands = [self.specs[a] if a >= 0 else SCALARS[self.scalars[~a]] for a in args]
        results = as_tuple(TABLE[op].infer(*operands, **attrs))
        first = len(self.specs)
        self.specs.extend(results)
        self.code.append(Instruction(op, args, attrs, len(results)))
        return first if len(results) == 1 else tuple(range(first, first + len(results)))

    def program(
        self, outputs: list[int], donate: tuple[int, ...] = (), updates: tuple[tuple[int, int], ...] = ()
    ) -> Program:
        return Program(self.inputs, self.scalars, tuple(self.code), tuple(outputs), donate, updates)

    def checked(self, outputs: list[int], **ends: Any) -> Checked:
        return check(self.program(outputs, **ends))


def unary(op: str, shape: tuple[int, ...] = (4,)) -> Program:
    """A program of one instruction, on one input."""
    b = Builder(shape)
    return b.program([b.add(op, 0)])


class Wrapped:
    """An engine that passes everything on; the others change one thing about it."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


class Kernels(Wrapped):
    """An engine whose kernels are run by `run`."""

    def kernel(self, op: Any, attrs: Any, operands: Any, inplace: bool = False) -> Any:
        kernel = self.engine.kernel(op, attrs, operands, inplace)
        return kernel and (lambda *args: self.run(kernel, op, inplace, *args))

    def run(self, kernel: Any, op: Any, inplace: bool, *args: Any) -> Any:
        raise NotImplementedError


class Broken(Exception):
    """What a faulty kernel raises."""


class Faulty(Kernels):
    """Its n-th piece of work (a kernel that allocates, or a copy) fails; in-place kernels never do."""

    def __init__(self, engine: Any, fail_at: int = -1) -> None:
        super().__init__(engine)
        self.fail_at = fail_at
        self.count = 0

    def work(self) -> None:
        self.count += 1
        if self.count - 1 == self.fail_at:
            raise Broken(f"piece of work {self.fail_at}")

    def run(self, kernel: Any, op: Any, inplace: bool, *args: Any) -> Any:
        if not inplace:
            self.work()
        return kernel(*args)

    def own(self, array: Any) -> Any:
        self.work()
        return self.engine.own(array)


class Device(Wrapped):
    """A numpy engine that pretends to be a device: work is done later, checks go into a flag."""

    deferred = True

    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        self.marks = 0
        self.done = 0  #: marks that have passed
        self.waits = 0

    def check(self, op: str, index: Any, n: int, extra: int | None, flag: Any) -> Any:
        bad = bad_indices(index, n, extra)
        up = np.array(bool(bad.any()))
        return np.where(bad, 0, index), up if flag is None else up | flag

    def select(self, flag: Any, old: Any, new: Any, into: bool = False) -> Any:
        if not into:
            return np.where(flag, old, new)
        old[...] = np.where(flag, old, new)
        return old

    def start_fetch(self, array: Any) -> Coming:
        return Coming(array.copy(), 0)

    def end_fetch(self, coming: Coming) -> memoryview:
        made: memoryview = self.engine.to_bytes(coming.host)
        return made

    def send_flag(self, flag: Any) -> Any:
        return flag

    def mark(self) -> int:
        self.marks += 1
        return self.marks

    def passed(self, mark: int, wait: bool = False) -> bool:
        if wait and mark > self.done:
            self.waits += 1
            self.done = mark
        return mark <= self.done

    def raised(self, flag: Any) -> bool:
        return bool(flag)


class FakeCompiler:
    """A compiler of programs that has made what is in `there`: at once if it is `quick`, else when a test says so."""

    def __init__(self, quick: bool = False, folder: str = "") -> None:
        self.asked: list[str] = []
        self.there: set[str] = set()
        self.failed: dict[str, str] = {}
        self.quick = quick
        self.full = False
        self.everything = False  #: Whatever it is asked for was made on an earlier day.
        self.only_folder = folder  #: Of all programs; else each has its own.

    def folder(self, program: Program, trusted: bool = False) -> str:
        return self.only_folder or program.hash().hex()

    def get_ready(self) -> None:
        pass

    def ready(self, folder: str) -> bool:
        return self.everything or folder in self.there

    def waits(self, folder: str) -> bool:
        return folder in self.asked and not self.ready(folder) and folder not in self.failed

    def request(self, folder: str, program: Program, trusted: bool) -> None:
        self.asked.append(folder)
        if self.quick:
            self.there.add(folder)
