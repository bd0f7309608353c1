"""A recorded step: the programs that a training step becomes in a loop, with names for their inputs.

Law 1: what is returned is what a loop sends, if its steps repeat: the step is run until its programs are those of the
       run before. What the step returns is alive when it ends, as in `loss = step(batch)`.
Law 2: nothing of the user's is held while the step runs: an object more or less would change which values are outputs.

On paper (`gt.on_paper`) the runs compute nothing. If a tensor that the step reaches is of a live session, the step is
really run there, up to four times, with all its effects.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gt.client.mesh.naming import Named, named_tensors, value_of, variables_of
from gt.client.programs.pending import in_use
from gt.client.programs.tree import Variant
from gt.client.record.paper import PaperSession, on_paper
from gt.client.record.recorder import recorder
from gt.errors import ArgumentError
from gt.ops.check import Checked, check
from gt.program import Program, Spec

RUNS = 4  #: How often a step is run, at most, until it repeats.


@dataclass(frozen=True, slots=True)
class Input:
    """An input of a recorded program."""

    name: str  #: as gt/client/mesh/naming.py says it; "input 7" if no variable leads to it
    role: str  #: "parameter", "state", "buffer" or "data"
    spec: Spec
    updates: int | None = None  #: the position among the outputs of the one that replaces it; None: none does


@dataclass(frozen=True)
class RecordedProgram:
    """One program of a step."""

    program: Program
    inputs: tuple[Input, ...]
    lines: tuple[tuple[str, int], ...]  #: of each instruction: the user's file and line

    @cached_property
    def checked(self) -> Checked:
        """What is known of the program."""
        return check(self.program)

    @cached_property
    def body(self) -> str:
        """The name under which a plan of this program is followed: see `Program.body`."""
        return self.program.body()


@dataclass(frozen=True)
class RecordedStep:
    """The programs of one step, in order. Most steps have one; a step that reads a value or has two optimizers has
    several."""

    programs: tuple[RecordedProgram, ...]
    steady: bool  #: Whether the last two runs sent the same programs.

    @property
    def largest(self) -> RecordedProgram:
        """The program with the most instructions; the first of those."""
        return max(self.programs, key=lambda p: len(p.program.code))


def record_step(step: Callable[..., Any], *args: Any, **kwargs: Any) -> RecordedStep:
    """The programs of `step(*args, **kwargs)` in a loop.

    Runs it on paper, unless tensors that it reaches are of a live session: then it is really run.

    >>> import gt
    >>> with gt.on_paper():
    ...     model = gt.nn.Linear(1000, 1000, bias=False)
    ...     optimizer = gt.optim.SGD(model.parameters(), lr=0.1)
    ...     def step(batch):
    ...         model(batch).sum().backward()
    ...         optimizer.step()
    ...         optimizer.zero_grad()
    ...     recorded = record_step(step, gt.zeros(64, 1000))
    >>> [(i.name, i.role, i.spec, i.updates) for i in recorded.largest.inputs]
    [('batch', 'data', f32[64,1000], None), ('model.weight', 'parameter', f32[1000,1000], 0)]
    """
    if not callable(step):
        raise ArgumentError(f"record_step: expected a function that does one step, got {type(step).__name__}")
    rec = in_use()
    here = rec is not None and rec.session.on_paper and not rec.session.closed
    with nullcontext() if here or _is_live(step, args, kwargs) else on_paper():
        return _record(step, args, kwargs)


def _is_live(step: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a tensor that the step reaches belongs to a session with data."""
    for _, _, t in named_tensors(variables_of(step, args, kwargs)):
        v = value_of(t)
        home = v.owner.rec.session if v.owner is not None else v.handle
        if home is not None and home.dead.elsewhere != PaperSession.ELSEWHERE:
            return True
    return False


#: A call as the session sends it: its program, the ids of its inputs, the first id of its results.
Seen = tuple[Variant, list[int], int]


def _record(step: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> RecordedStep:
    rec = recorder()
    rec.refuse_sync()
    rec.settle()
    before: list[bytes] | None = None
    for _ in range(RUNS):
        names = _names(named_tensors(variables_of(step, args, kwargs)))  # of numbers: Law 2
        seen = _seen(step, args, kwargs)
        hashes = [variant.hash for variant, _, _ in seen]
        steady = hashes == before
        if steady:
            break
        before = hashes
    if not seen:
        raise ArgumentError("record_step: the step recorded nothing; expected one that computes with GT's tensors")
    return RecordedStep(tuple(_programs(seen, names)), steady)


def _seen(step: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Seen]:
    """The calls of one run."""
    session = recorder().session
    calls: list[Seen] = []
    session.watch = lambda variant, ids, first: calls.append((variant, list(ids), first))
    try:
        result = step(*args, **kwargs)
        recorder().settle()
        del result
    finally:
        session.watch = None
    return calls


def _names(found: list[Named]) -> dict[int, tuple[str, str]]:
    """Name and role by the id of the value."""
    handles = [(value_of(t).handle, name, role) for name, role, t in found]
    return {handle.id: (name, role) for handle, name, role in handles if handle is not None}


def _programs(seen: list[Seen], names: dict[int, tuple[str, str]]) -> list[RecordedProgram]:
    found = []
    for variant, ids, first in seen:
        program = variant.program
        replaced = {i: o for o, i in program.updates}
        inputs = []
        specs = check(program).specs
        for k, id in enumerate(ids):
            name, role = names.get(id, (f"input {k}", "data"))
            inputs.append(Input(name, role, specs[k], replaced.get(k)))
        for o, i in program.updates:  # a later program of the step takes the new value under the same name
            if ids[i] in names:
                names[first + o] = names[ids[i]]
        found.append(RecordedProgram(program, tuple(inputs), tuple(variant.where)))
    return found
