"""Whether history is recorded: on or off, as context managers and decorators."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class set_grad:
    """Gradients on or off, as a context manager or a decorator."""

    __slots__ = ("_before", "_mode")

    def __init__(self, mode: bool) -> None:
        self._mode = mode
        self._before: list[bool] = []

    def __enter__(self) -> None:
        from gt.client.recorder import recorder  # which is built on this

        rec = recorder()
        self._before.append(rec.grad)
        rec.grad = self._mode

    def __exit__(self, *exc: object) -> None:
        from gt.client.recorder import recorder

        recorder().grad = self._before.pop()

    def __call__(self, f: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(f)
        def inner(*args: Any, **kwargs: Any) -> Any:
            with set_grad(self._mode):
                return f(*args, **kwargs)

        return inner


def no_grad() -> set_grad:
    """Record no history: a context manager and a decorator."""
    return set_grad(False)


def enable_grad() -> set_grad:
    """Record history again: a context manager and a decorator."""
    return set_grad(True)


def inference_mode(mode: bool = True) -> set_grad:
    """Record no history; here the same as no_grad."""
    return set_grad(not mode)


class set_grad_enabled(set_grad):
    """History on or off from now on; as a context manager, until its end."""

    __slots__ = ("_was",)

    def __init__(self, mode: bool) -> None:
        from gt.client.recorder import recorder

        super().__init__(mode)
        self._was = recorder().grad
        recorder().grad = mode

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        from gt.client.recorder import recorder

        recorder().grad = self._was


def is_grad_enabled() -> bool:
    """Whether ops record history in this thread."""
    from gt.client.recorder import recorder

    return recorder().grad
