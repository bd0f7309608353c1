"""What may change how a thread records ops: a policy for operands, and the contexts that a recorder is in.

The files that define a context (a trace, anomaly mode, a signal, a checkpoint) are above it. The protocols say
what the recorder needs of each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, Protocol

from gt.client.programs.numbers import Finder, Guards, Number
from gt.client.programs.pending import Value, in_use, local
from gt.client.programs.tree import Kind
from gt.client.tensor import GradFn, Leaf, Tensor

# --- contexts ----------------------------------------------------------------------------------------


class Tracing(Protocol):
    """What a recorder needs of the trace of a @gt.function; see replay/trace.py."""

    name: str
    clear: bool
    guards: Guards
    owners: dict[int, Finder]

    def learn(self, t: Tensor) -> None: ...

    def touch(self, leaf: Leaf) -> None: ...

    def wrote(self, t: Tensor, old: Value) -> None: ...

    def seed(self) -> Number: ...

    def live(self, read: Callable[[], Any]) -> Number: ...

    def effect(self, do: Callable[[], None], undo: Callable[[], None]) -> None: ...

    def mode(self, module: Any) -> None: ...

    def refuse_sync(self) -> NoReturn: ...


class NanWatch(Protocol):
    """What a recorder needs of anomaly mode; see grad/anomaly.py."""

    def __call__(self, kind: Kind, args: tuple[Any, ...]) -> tuple[Any, ...]: ...

    def gradients(self, fn: GradFn, grads: list[Tensor]) -> None: ...


class Pinning(Protocol):
    """What a recorder needs of the context of a signal; see mesh/signals.py."""

    @property
    def placements(self) -> tuple[Any, ...]: ...

    def __call__(self, kind: Kind, args: tuple[Any, ...]) -> tuple[Any, ...]: ...

    def record(self, kind: Kind, args: tuple[Any, ...]) -> Any: ...


class SeedTape(Protocol):
    """What a recorder needs of a checkpointed function; see grad/checkpoint.py."""

    def next(self, draw: Callable[[], Any]) -> Any: ...


# --- policies ----------------------------------------------------------------------------------------

#: Changes the operands of an op before it is recorded: autocast, another default dtype, anomaly mode.
Policy = Callable[[Kind, tuple[Any, ...]], tuple[Any, ...]]

_policies: list[Policy | None] = [None]  #: One entry: the policy of threads that have not chosen one.


def policy() -> Policy | None:
    """The policy that this thread has chosen, or else the process."""
    mine: Policy | None = getattr(local, "policy", None)
    return mine or _policies[0]


def choose_policy(chosen: Policy | None) -> None:
    """Record with this policy in this thread. Anomaly mode comes first, and asks for `policy` itself."""
    local.policy = chosen
    rec = in_use()
    if rec is not None:
        rec.policy = rec.anomaly or policy() or rec.pin


def choose_default_policy(chosen: Policy | None) -> None:
    """Record with this policy in threads that begin to record later."""
    _policies[0] = chosen
