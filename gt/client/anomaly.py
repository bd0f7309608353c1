"""Anomaly mode: the line that made a nan is named, at the first op that made one.

Every op's operands and every gradient are looked at, which waits for each of them: slow, for finding a fault only.
"""

from __future__ import annotations

from typing import Any

from gt.client import autograd
from gt.client.autograd import set_grad
from gt.client.recorder import recorder
from gt.client.tree import Kind
from gt.errors import AutogradError

__all__ = ["detect_anomaly", "set_detect_anomaly"]


def _has_nan(t: Any) -> bool:
    rec = recorder()
    policy, rec.policy = rec.policy, None
    try:
        with set_grad(False):
            return t.dtype.is_floating_point and bool(t.detach().isnan().any().item())
    finally:
        rec.policy = policy


def _line(fn: Any) -> str:
    whole = fn.whole if type(fn) is autograd.Part else fn
    file, line = getattr(whole, "where", ("?", 0))
    return f"{file}:{line}: {getattr(whole, 'name', 'an op')}"


class Watch:
    """Stands before the recorder's policy and looks at operands; looks at gradients in backward."""

    __slots__ = ("below", "clean")

    def __init__(self, below: Any) -> None:
        self.below = below
        self.clean: set[int] = set()  #: id() of values known to have no nan; alive as long as the graph is

    def __call__(self, kind: Kind, args: tuple[Any, ...]) -> tuple[Any, ...]:
        for a in args:
            if hasattr(a, "_v") and a._fn is not None and type(a._fn) is not autograd.Leaf:
                if id(a._fn) not in self.clean and _has_nan(a):
                    raise AutogradError(f"{_line(a._fn)[: -len('Backward0')]} made a nan (found by anomaly detection)")
                self.clean.add(id(a._fn))
        return args if self.below is None else tuple(self.below(kind, args))

    def gradients(self, fn: Any, grads: list[Any]) -> None:
        """The gradients that one node of the graph made."""
        if any(_has_nan(g) for g in grads):
            raise AutogradError(f"{_line(fn)} made a nan in backward (found by anomaly detection)")


class detect_anomaly:
    """Name the line that made a nan, in what is recorded and differentiated inside.

    >>> import gt
    >>> x = gt.tensor([-1.0], requires_grad=True)
    >>> with gt.autograd.detect_anomaly():
    ...     y = x.sqrt()
    ...     z = y * 2
    Traceback (most recent call last):
    gt.errors.AutogradError: ...: Sqrt made a nan (found by anomaly detection)
    """

    def __init__(self, check_nan: bool = True) -> None:
        self._check = check_nan
        self._before: list[Any] = []

    def __enter__(self) -> None:
        rec = recorder()
        self._before.append(rec.policy)
        if self._check:
            watch = Watch(rec.policy)
            rec.policy = watch
            autograd.anomaly.append(watch.gradients)

    def __exit__(self, *exc: object) -> None:
        recorder().policy = self._before.pop()
        if self._check:
            autograd.anomaly.pop()


_switched: list[detect_anomaly] = []


def _switch(on: bool, check_nan: bool) -> None:
    if on and not _switched:
        _switched.append(detect_anomaly(check_nan))
        _switched[-1].__enter__()
    elif not on and _switched:
        _switched.pop().__exit__()


class set_detect_anomaly:
    """Switch anomaly mode on or off in this thread; in a with statement, until its end."""

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self._before = bool(_switched)
        _switch(mode, check_nan)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        _switch(self._before, True)
