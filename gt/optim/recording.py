"""How the step of one parameter is recorded.

Numbers go by value: the settings of a group, and what follows from them and the step count. A call carries each
once, not once for every parameter (`shared`, `InStep`). In a @gt.function they are read again at each replay (`live`),
numbers on the host that a step changes are changed again (`take_step`), and what decides which ops are recorded must
be as it was (`decided`). Should the step's call fail, the step was none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from gt.client.programs.numbers import SharedNumber
from gt.client.programs.tree import Kind
from gt.client.record.recorder import apply, record, recorder
from gt.client.tensor import Tensor
from gt.client.views.aliases import replace
from gt.errors import ArgumentError

#: How a step changes numbers on the host, and how that is taken back.
Move = tuple[Callable[[], None], Callable[[], None]]


def live(read: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
    """Numbers as operands, which a replayed function reads again."""
    trace = recorder().trace
    if trace is None:
        return read()

    def entry(i: int) -> Callable[[], Any]:
        return lambda: read()[i]

    return tuple([trace.live(entry(i)) for i in range(len(read()))])


def shared(read: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
    """Numbers that all parameters of a group have in common, as operands."""
    return tuple([SharedNumber(x) for x in read()]) if recorder().trace is None else live(read)


def settings(group: dict[str, Any], *names: str) -> tuple[Any, ...]:
    """Settings of a group as operands of all its parameters."""
    return shared(lambda: tuple([float(group[name]) for name in names]))


class InStep:
    """Numbers that follow from a group's settings and a parameter's step count, as operands: the same for all
    parameters of the group as long as they have taken equally many steps.

    Once some have not, each has its own from then on: which of them happen to be equal changes from step to step, and
    would make new programs.
    """

    __slots__ = ("_count", "_first", "_numbers", "_optimizer")

    def __init__(self, optimizer: Any, count: str = "step") -> None:
        self._optimizer = optimizer
        self._count = count  #: where a parameter's state has it
        self._first: dict[str, Any] | None = None  #: the state of the first parameter, whose numbers are taken
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
    """Something that the recorded ops depend on: a replay is right only while it stays the same."""
    value, trace = read(), recorder().trace
    if trace is not None:
        trace.guards.append((lambda args: read(), value))
    return value


def flag(group: dict[str, Any], name: str) -> bool:
    """Whether a setting is on, or not zero."""
    return bool(decided(lambda: bool(group[name])))


def counting(state: dict[str, Any], name: str = "step") -> Move:
    """One more step."""
    return partial(_count, state, name, 1), partial(_count, state, name, -1)


def _count(state: dict[str, Any], name: str, by: int) -> None:
    state[name] += by


def take_step(
    kind: Kind,
    tensors: tuple[Tensor, ...],
    numbers: Callable[[], tuple[Any, ...]],
    written: tuple[Tensor, ...],
    move: Move | None = None,
) -> None:
    """Record the op, and write its results over `written`. First comes the move, then the numbers are read."""
    rec = recorder()
    # With no history, no casts and no trace the results need not be tensors first.
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


def gradient(group: dict[str, Any], coupled: bool = True) -> Callable[[Tensor, Tensor], Tensor]:
    """What makes the gradient that counts of a parameter and its own: turned round to climb, with weight decay added
    where the optimizer has no other way for it (`coupled`)."""
    climb = flag(group, "maximize")
    decay = live(lambda: (float(group["weight_decay"]),)) if coupled and flag(group, "weight_decay") else ()

    def of(p: Tensor, g: Tensor) -> Tensor:
        if climb:
            g = -g
        return g + p * decay[0] if decay else g

    return of


def check(name: str, least: dict[str, Any], below_one: dict[str, Any] | None = None) -> None:
    """Settings are numbers, and in range: at least 0, or in [0, 1)."""
    for setting, value in {**least, **(below_one or {})}.items():
        if isinstance(value, Tensor):
            raise ArgumentError(f"{name}: {setting} is a Python number, which may change at each step; not a tensor")
        if not value >= 0 or (below_one and setting in below_one and value >= 1):
            raise ArgumentError(f"{name}: {setting}={value} is out of range")


def check_betas(name: str, lr: Any, betas: tuple[Any, Any], eps: Any, weight_decay: Any) -> None:
    """What all relatives of Adam are given."""
    check(name, {"lr": lr, "eps": eps, "weight_decay": weight_decay}, {"betas[0]": betas[0], "betas[1]": betas[1]})
