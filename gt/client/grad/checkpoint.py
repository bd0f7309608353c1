"""`checkpoint`: values that a function saved for its gradient are dropped, and computed again in backward.

The graph stays as it was recorded; only the values that its nodes saved are dropped. When backward first needs one of
them, the function runs once more on the same inputs, with the same random numbers, autocast and signals, and every node
takes the values that the corresponding node of the second run saved. The second run costs time, and no memory between
forward and backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import get_ident
from typing import Any

from gt.client.grad.modes import set_grad
from gt.client.record.contexts import SeedTape
from gt.client.record.recorder import recorder, watchers
from gt.client.tensor import GradNode, Later, Tensor
from gt.errors import AutogradError

__all__ = ["checkpoint", "checkpoint_sequential"]


class Tape:
    """The seeds that a function drew, to be drawn again."""

    def __init__(self, seeds: list[Any] | None, outer: SeedTape | None) -> None:
        self.seeds: list[Any] = []
        self._again = None if seeds is None else iter(seeds)
        self._outer = outer

    def next(self, draw: Callable[[], Any]) -> Any:
        """A seed: a new one the first time, the same one the second."""
        if self._again is None:
            seed = draw() if self._outer is None else self._outer.next(draw)
        else:
            seed = next(self._again, None)
            if seed is None:
                raise AutogradError("checkpoint: the function drew more random numbers in its second run")
        self.seeds.append(seed)
        return seed


class SavedArgument:
    """The value and history of an argument now: the tensor itself may be written to before backward."""

    __slots__ = ("fn", "value")

    def __init__(self, t: Tensor) -> None:
        self.value = t._v or t._read()
        self.fn = t._fn


def _keep(x: Any) -> Any:
    return SavedArgument(x) if isinstance(x, Tensor) else x


def _give(x: Any) -> Any:
    return Tensor(x.value, x.fn) if type(x) is SavedArgument else x


class Region:
    """One run of a checkpointed function."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.function = function
        self.args = [_keep(a) for a in args]
        self.kwargs = {k: _keep(a) for k, a in kwargs.items()}
        self.policy, self.pin = recorder().policy, recorder().pin
        self.seeds: list[Any] | None = None  #: Those of the first run, once it is over.
        self.kinds: list[Any] = []
        self.saved: list[Any] | None = None

    @contextmanager
    def watched(self) -> Iterator[tuple[list[GradNode], list[Any]]]:
        """While the function runs: the graph nodes that it makes, and the seeds that it draws."""
        rec, me = recorder(), get_ident()
        before, tape, policy, pin = watchers.get(me), rec.tape, rec.policy, rec.pin
        nodes: list[GradNode] = []
        watchers[me] = nodes
        rec.tape = drawn = Tape(self.seeds, tape)
        rec.policy, rec.pin = self.policy, self.pin
        try:
            with set_grad(True):
                yield nodes, drawn.seeds
        finally:
            rec.tape, rec.policy, rec.pin = tape, policy, pin
            if before is None:
                del watchers[me]
            else:
                watchers[me] = before
                before.extend(nodes)

    def run(self) -> Any:
        """The function's result, on the arguments of the first run."""
        return self.function(*map(_give, self.args), **{k: _give(a) for k, a in self.kwargs.items()})

    def drop(self, nodes: list[GradNode], seeds: list[Any]) -> None:
        """After the first run: forget what the nodes saved. Backward computes it again."""
        self.seeds = seeds
        self.kinds = [n.node.kind for n in nodes]
        for i, node in enumerate(nodes):
            node.saved = Later(partial(self.values, i))

    def values(self, index: int) -> tuple[Any, ...]:
        """What node `index` saved, computed again if it was dropped."""
        if self.saved is None:
            with self.watched() as (nodes, _):
                self.run()
            if [n.node.kind for n in nodes] != self.kinds:
                raise AutogradError("checkpoint: the function recorded other ops in its second run than in its first")
            self.saved = [n.saved for n in nodes]
        value = self.saved[index]
        if isinstance(value, Later):
            value = value.values()
        return value


def checkpoint(
    function: Callable[..., Any], *args: Any, use_reentrant: bool | None = None, preserve_rng_state: bool = True,
    **kwargs: Any,
) -> Any:  # fmt: skip
    """Run the function now, and again in backward instead of keeping what its gradient needs.

    >>> import gt
    >>> x = gt.ones(2, requires_grad=True)
    >>> gt.checkpoint(lambda t: t.exp().log() * 3, x).sum().backward()
    >>> x.grad
    tensor([3., 3.])
    """
    if not recorder().grad:
        return function(*args, **kwargs)
    region = Region(function, args, kwargs)
    with region.watched() as (nodes, seeds):
        out = region.run()
    region.drop(nodes, seeds)
    return out


def checkpoint_sequential(functions: Any, segments: int, input: Any, **kwargs: Any) -> Any:
    """Run a Sequential (or a list of functions) in this many segments, all but the last checkpointed."""
    steps = list(functions)
    size = max(1, len(steps) // segments)

    def segment(part: list[Any]) -> Callable[[Any], Any]:
        def run(x: Any) -> Any:
            for f in part:
                x = f(x)
            return x

        return run

    start = 0
    for _ in range(segments - 1):
        input = checkpoint(segment(steps[start : start + size]), input, **kwargs)
        start += size
    return segment(steps[start:])(input)
