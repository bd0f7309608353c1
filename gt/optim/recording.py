"""How the step of one parameter is recorded.

Numbers are passed by value: the settings of a group, and what is computed from them and the step count. A call has
each number once, not once per parameter (`shared`, `InStep`). A replay of a @gt.function reads them again (`live`),
repeats a step's changes of numbers on the host (`take_step`), and requires that what decides which ops are recorded has
not changed (`decided`). If the call of a step fails, its changes on the host are undone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from gt.client.functions.complexes import view_as_real
from gt.client.programs.numbers import SharedNumber
from gt.client.programs.tree import Kind
from gt.client.record.recorder import apply, record, recorder
from gt.client.tensor import Tensor
from gt.client.views.aliases import replace

#: How a step changes numbers on the host, and how that is undone.
Move = tuple[Callable[[], None], Callable[[], None]]


def live(read: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
    """Numbers as operands that a replay of a traced function reads again."""
    trace = recorder().trace
    if trace is None:
        return read()

    def entry(i: int) -> Callable[[], Any]:
        return lambda: read()[i]

    return tuple([trace.live(entry(i)) for i in range(len(read()))])


def shared(read: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
    """Numbers shared by all parameters of a group, as operands."""
    return tuple([SharedNumber(x) for x in read()]) if recorder().trace is None else live(read)


def settings(group: dict[str, Any], *names: str) -> tuple[Any, ...]:
    """Settings of a group, as operands shared by all its parameters."""
    return shared(lambda: tuple([float(group[name]) for name in names]))


class InStep:
    """Numbers computed from a group's settings and a parameter's step count, as operands: shared by all parameters of
    the group as long as they have the same step count.

    Once they differ, every parameter has its own operands: which of them happen to be equal changes from step to step,
    and would make new programs.
    """

    __slots__ = ("_count", "_first", "_numbers", "_optimizer")

    def __init__(self, optimizer: Any, count: str = "step") -> None:
        self._optimizer = optimizer
        self._count = count  #: The name of the step count in a parameter's state.
        self._first: dict[str, Any] | None = None  #: The state of the first parameter, whose numbers are shared.
        self._numbers: tuple[Any, ...] = ()

    def __call__(self, state: dict[str, Any], read: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
        """The numbers of the parameter with this state."""
        first, count = self._first, self._count
        if self._optimizer._uneven:
            return live(read)
        if first is None:
            self._first, self._numbers = state, shared(read)
        elif state[count] != first[count]:
            self._optimizer._uneven = True
            return live(read)
        elif (trace := recorder().trace) is not None:
            trace.guards.append((lambda args: state[count] == first[count], True))
        return self._numbers


def decided(read: Callable[[], Any]) -> Any:
    """A value that decides which ops are recorded: a replay is valid only while it is the same."""
    value, trace = read(), recorder().trace
    if trace is not None:
        trace.guards.append((lambda args: read(), value))
    return value


def flag(group: dict[str, Any], name: str) -> bool:
    """Whether a setting is true, or not zero."""
    return bool(decided(lambda: bool(group[name])))


def counting(state: dict[str, Any], name: str = "step") -> Move:
    """Count one more step."""
    return partial(_count, state, name, 1), partial(_count, state, name, -1)


def _count(state: dict[str, Any], name: str, by: int) -> None:
    state[name] += by


def take_step(
    kind: Kind, tensors: tuple[Tensor, ...], numbers: Callable[[], tuple[Any, ...]], written: tuple[Tensor, ...],
    move: Move | None = None,
) -> None:  # fmt: skip
    """Record the op, and write its results to `written`. The move happens before the numbers are read."""
    if tensors[0].dtype.is_complex:  # as in torch: real and imaginary parts are numbers of their own
        tensors, written = tuple(map(view_as_real, tensors)), tuple(map(view_as_real, written))
    rec = recorder()
    # Without history, casts and trace the results need not become tensors first.
    bare = not rec.grad and rec.policy is None and rec.trace is None
    do, undo = move or (None, None)
    if do is not None:
        do()
    try:
        args = (*tensors, *numbers())
        made: Any = record(rec, kind, args)[2] if bare else apply(kind, args)
    except BaseException:
        if undo is not None:
            undo()
        raise
    rec = recorder()
    if do is not None and undo is not None:
        rec.pending.undo.append(undo)
        if rec.trace is not None:
            rec.trace.effect(do, undo)
    if bare:
        for t, value in zip(written, made, strict=True):
            replace(rec, t, value)
        return
    for t, new in zip(written, made if type(made) is tuple else (made,), strict=True):
        t._write(new)


@contextmanager
def advance(move: Move) -> Iterator[None]:
    """A step that is recorded as several ops: the move happens before, and is undone if the step fails."""
    do, undo = move
    do()
    try:
        yield
    except BaseException:
        undo()
        raise
    rec = recorder()
    rec.pending.undo.append(undo)
    if rec.trace is not None:
        rec.trace.effect(do, undo)


def gradient(group: dict[str, Any], coupled: bool = True) -> Callable[[Tensor, Tensor], Tensor]:
    """A function of a parameter and its gradient that applies `maximize` and, if `coupled`, adds the weight decay."""
    maximize = flag(group, "maximize")
    decay = live(lambda: (float(group["weight_decay"]),)) if coupled and flag(group, "weight_decay") else ()

    def of(p: Tensor, g: Tensor) -> Tensor:
        if maximize:
            g = -g
        return g + p * decay[0] if decay else g

    return of
