"""The names of torch.autograd.graph that have a meaning here: nodes, hooks of several gradients, saved tensors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gt.client.tensor import GradNode as Node
from gt.errors import ArgumentError

__all__ = ["Node", "register_multi_grad_hook", "save_on_cpu"]


@contextmanager
def save_on_cpu(pin_memory: bool = False, device_type: str = "cuda") -> Iterator[None]:
    """Without effect: a worker moves tensors out of its device by itself when there is no room for them."""
    yield


class _Handles:
    """Removes several hooks."""

    def __init__(self, handles: Sequence[Any]) -> None:
        self._handles = handles

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def __enter__(self) -> _Handles:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


def register_multi_grad_hook(tensors: Sequence[Any], fn: Callable[..., Any], *, mode: str = "all") -> _Handles:
    """Call `fn(gradients)` when all of these tensors have got theirs, or `fn(gradient)` for the first of them with
    mode="any"."""
    if mode not in ("all", "any"):
        raise ArgumentError(f"register_multi_grad_hook: mode must be 'all' or 'any', got {mode!r}")
    tensors, found, lock = list(tensors), [None] * len(list(tensors)), threading.Lock()
    came: list[int] = []

    def hook(i: int) -> Callable[[Any], None]:
        def arrived(g: Any) -> None:
            with lock:
                found[i] = g
                came.append(i)
                first, last = len(came) == 1, len(came) == len(tensors)
                grads = list(found)
                if last:
                    found[:] = [None] * len(tensors)
                    came.clear()
            if mode == "any":
                if first:
                    fn(g)
            elif last:
                fn(grads)

        return arrived

    return _Handles([t.register_hook(hook(i)) for i, t in enumerate(tensors)])
