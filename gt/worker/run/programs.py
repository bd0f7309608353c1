"""The programs a worker knows: their facts, and their code once they were called.

Law 1: their size is bounded. What was not used for longest is forgotten, what a timer had cut first of
       all; the one that was defined last always stays, so that the call waiting for it can run. One that workers
       run together is forgotten only when the dispatcher says so: the others would wait while its text is asked for.
Law 2: code is made at the first call, not when a program arrives.
"""

from __future__ import annotations

from collections.abc import Iterator

from gt.errors import GTError, ProgramError
from gt.ops.check import Checked, check
from gt.ops.record import TABLE
from gt.program import SCALAR_TYPES, Program, Spec, spec
from gt.transport.messages import Failure
from gt.worker.engines import Engine
from gt.worker.run.executor import Runnable, compile_program
from gt.worker.run.tiers import Standing


class Known:
    """One program."""

    __slots__ = (
        "checked", "compile", "donate", "early", "failure", "groups", "hash", "hits", "inputs", "instructions",
        "nbytes", "outputs", "precision", "run_us", "runnable", "scalars", "standing", "timed", "updates", "workers",
    )  # fmt: skip

    def __init__(self, program: Program, timed: bool, compile: int = 0) -> None:
        self.hash = program.hash()
        self.timed = timed
        self.compile = compile  #: 1: at its first call; 0: when it proves hot; -1: never.
        self.precision = program.precision
        self.workers = program.workers  #: Those that run it together; (): this one alone.
        #: The groups that its collectives and the agreement at its end use, in one order for all workers.
        self.groups: tuple[tuple[int, ...], ...] = (program.workers,) if len(program.workers) > 1 else ()
        self.instructions = len(program.code)
        self.hits = 0
        self.run_us = 0
        self.runnable: Runnable | None = None
        self.standing: Standing | None = None  #: How it runs best; see tiers.py.
        self.failure: Failure | None = None  #: Why it cannot run, if it cannot.
        self.checked: Checked | None = None
        self.nbytes = 0
        self.inputs: tuple[Spec, ...] = ()
        self.outputs: tuple[Spec, ...] = ()
        self.scalars: tuple[type, ...] = ()
        self.donate = program.donate
        #: Position of an output -> the input whose value it takes if the call fails.
        self.updates: dict[int, int] = {}
        #: Donated inputs that no failure brings back: they are let go of before the program runs.
        self.early: tuple[int, ...] = ()
        try:
            checked = check(program)
        except ProgramError as e:
            self.failure = Failure("ProgramError", str(e), self.hash)
            return
        self.checked = checked
        self.groups = _groups(program)
        self.nbytes = checked.text_nbytes
        self.scalars = tuple(SCALAR_TYPES[k] for k in program.scalars)
        self.inputs = checked.specs[: len(program.inputs)]
        self.outputs = tuple(spec(s.shape, s.dtype) for s in (checked.specs[o] for o in program.outputs))
        self.updates = {o: i for o, i in program.updates if self.inputs[i] is self.outputs[o]}
        sources = set(self.updates.values())
        self.early = tuple(i for i in program.donate if i not in sources)

    def make_ready(self, engine: Engine, fake_memory: int) -> Runnable | None:
        """Its code; None if there is none (see `failure`)."""
        if self.runnable is None and self.checked is not None and self.failure is None:
            try:
                self.runnable = compile_program(self.checked, engine, fake_memory)
            except GTError as e:
                self.failure = Failure("ProgramError", str(e), self.hash)
            except Exception as e:  # a kernel factory may stumble over attributes that inference let pass
                self.failure = Failure("WorkerError", f"{type(e).__name__}: {e}", self.hash)
        return self.runnable


def _groups(program: Program) -> tuple[tuple[int, ...], ...]:
    found = {tuple(program.workers)}
    for ins in program.code if program.workers else ():
        if ins.op in TABLE and TABLE[ins.op].collective:
            found.add(tuple(ins.attrs["workers"]))
    return tuple(sorted(g for g in found if len(g) > 1))


class Programs:
    """All known programs, by hash."""

    def __init__(self, limit_nbytes: int) -> None:
        self.limit_nbytes = limit_nbytes
        self.nbytes = 0
        self._shared: dict[bytes, Known] = {}  #: run by several workers together; these stay
        self._lasting: dict[bytes, Known] = {}  #: least recently used first
        self._timed: dict[bytes, Known] = {}  #: likewise; all of these go before any of the lasting

    def __len__(self) -> int:
        return len(self._shared) + len(self._lasting) + len(self._timed)

    def __iter__(self) -> Iterator[Known]:
        yield from self._shared.values()
        yield from self._lasting.values()
        yield from self._timed.values()

    def get(self, hash: bytes) -> Known | None:
        """The program, which counts as used now."""
        for side in (self._lasting, self._timed):
            known = side.pop(hash, None)
            if known is not None:
                side[hash] = known
                return known
        return self._shared.get(hash)

    def peek(self, hash: bytes) -> Known | None:
        """The program, which does not count as used."""
        return self._lasting.get(hash) or self._timed.get(hash) or self._shared.get(hash)

    def add(self, known: Known) -> None:
        """Enter a program; others may have to go."""
        self.forget(known.hash)
        side = self._shared if known.workers else self._timed if known.timed else self._lasting
        side[known.hash] = known
        self.nbytes += known.nbytes
        while self.nbytes > self.limit_nbytes:
            others = [h for h in (*self._head(self._timed), *self._head(self._lasting)) if h != known.hash]
            if not others:
                break
            self.forget(others[0])

    def forget(self, hash: bytes) -> None:
        for side in (self._shared, self._lasting, self._timed):
            known = side.pop(hash, None)
            if known is not None:
                self.nbytes -= known.nbytes

    @staticmethod
    def _head(side: dict[bytes, Known]) -> list[bytes]:
        """The two oldest: the very oldest may be the one that has to stay."""
        keys = iter(side)
        return [k for k in (next(keys, None), next(keys, None)) if k is not None]
