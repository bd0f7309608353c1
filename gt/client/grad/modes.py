"""Turning gradients on and off: context managers and decorators."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator
from typing import Any

from gt.client.compat.arguments import shown
from gt.client.record.recorder import recorder
from gt.errors import ArgumentError

__all__ = ["enable_grad", "inference_mode", "is_grad_enabled", "no_grad", "set_grad_enabled"]


class set_grad:
    """Gradients on or off, as a context manager or a decorator."""

    __slots__ = ("_before", "_mode")

    def __init__(self, mode: bool) -> None:
        self._mode = mode
        self._before: list[bool] = []

    def __enter__(self) -> None:
        rec = recorder()
        self._before.append(rec.grad)
        rec.grad = self._mode

    def __exit__(self, *exc: object) -> None:
        recorder().grad = self._before.pop()

    def __call__(self, f: Callable[..., Any]) -> Callable[..., Any]:
        if not callable(f):
            raise ArgumentError(f"gradient mode: expected a function to decorate, got {shown(f)}")
        if inspect.isgeneratorfunction(f):
            return functools.wraps(f)(lambda *args, **kwargs: self._each_turn(f(*args, **kwargs)))

        @functools.wraps(f)
        def inner(*args: Any, **kwargs: Any) -> Any:
            with set_grad(self._mode):
                return f(*args, **kwargs)

        return inner

    def _each_turn(self, generator: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Run the generator in this mode; between its turns the caller's mode is in effect."""
        turn = functools.partial(next, generator)
        while True:
            try:
                with set_grad(self._mode):
                    made = turn()
            except StopIteration as end:
                return end.value
            try:
                turn = functools.partial(generator.send, (yield made))
            except GeneratorExit:
                with set_grad(self._mode):
                    generator.close()
                raise
            except BaseException as error:
                turn = functools.partial(generator.throw, error)


def no_grad(f: Any = None) -> Any:
    """Record no history: a context manager and a decorator."""
    return set_grad(False) if f is None else set_grad(False)(f)


def enable_grad(f: Any = None) -> Any:
    """Record history again: a context manager and a decorator."""
    return set_grad(True) if f is None else set_grad(True)(f)


def inference_mode(mode: Any = True) -> Any:
    """Record no history; here the same as no_grad."""
    return set_grad(False)(mode) if callable(mode) else set_grad(not mode)


class set_grad_enabled(set_grad):
    """Turn gradients on or off; as a context manager, until its end."""

    __slots__ = ("_was",)

    def __init__(self, mode: bool) -> None:
        super().__init__(mode)
        self._was = recorder().grad
        recorder().grad = mode

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        recorder().grad = self._was

    def __call__(self, f: Callable[..., Any]) -> Callable[..., Any]:
        self.__exit__()  # as a decorator it is for the function only
        return super().__call__(f)


def is_grad_enabled() -> bool:
    """Whether ops record history in this thread."""
    return recorder().grad
