"""Anomaly mode: an error at the first op whose result has a nan, with the line of that op.

The operands of every op and every gradient are checked, which waits for each of them: slow, for debugging only.
"""

from __future__ import annotations

from typing import Any

from gt.client.grad.modes import set_grad
from gt.client.programs.tree import Kind
from gt.client.record.contexts import NanWatch, choose_policy, policy
from gt.client.record.recorder import recorder
from gt.client.tensor import GradFn, Leaf, NodeResult, Tensor
from gt.errors import AutogradError

__all__ = ["detect_anomaly", "set_detect_anomaly"]


def _has_nan(t: Tensor) -> bool:
    rec = recorder()
    before, rec.policy = rec.policy, None
    try:
        with set_grad(False):
            return t.dtype.is_floating_point and bool(t.detach().isnan().any().item())
    finally:
        rec.policy = before


def _line(fn: Any) -> str:
    whole = fn.whole if type(fn) is NodeResult else fn
    file, line = getattr(whole, "where", ("?", 0))
    return f"{file}:{line}: {whole.name()}"


class Watch:
    """Checks operands before the thread's policy, and gradients in backward."""

    __slots__ = ()

    def __call__(self, kind: Kind, args: tuple[Any, ...]) -> tuple[Any, ...]:
        for a in args:
            if isinstance(a, Tensor) and a._fn is not None and type(a._fn) is not Leaf and _has_nan(a):
                raise AutogradError(
                    f"{_line(a._fn).removesuffix('0').removesuffix('Backward')} made a nan (found by anomaly detection)"
                )
        below = policy()
        return args if below is None else below(kind, args)

    def gradients(self, fn: GradFn, grads: list[Tensor]) -> None:
        """Check the gradients that a node of the graph computed."""
        if any(_has_nan(g) for g in grads):
            raise AutogradError(f"{_line(fn)} made a nan in backward (found by anomaly detection)")


def _switch(watch: NanWatch | None) -> NanWatch | None:
    """Set the watch of this thread; returns the previous one."""
    rec = recorder()
    before, rec.anomaly = rec.anomaly, watch
    choose_policy(policy())
    return before


class detect_anomaly:
    """Raise an error at the first nan in what is recorded and differentiated inside, with the line of its op.

    >>> import gt
    >>> x = gt.tensor([-1.0], requires_grad=True)
    >>> with gt.autograd.detect_anomaly():
    ...     y = x.sqrt()
    ...     z = y * 2
    Traceback (most recent call last):
    gt.errors.AutogradError: ...: Sqrt made a nan (found by anomaly detection)
    """

    def __init__(self, check_nan: bool = True) -> None:
        self._watch = Watch() if check_nan else None
        self._before: list[NanWatch | None] = []

    def __enter__(self) -> None:
        self._before.append(_switch(self._watch))

    def __exit__(self, *exc: object) -> None:
        _switch(self._before.pop())


class set_detect_anomaly:
    """Turn anomaly mode on or off in this thread; in a with statement, until its end."""

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self._before = _switch(Watch() if mode and check_nan else None)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        _switch(self._before)
