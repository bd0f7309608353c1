"""The names of torch.autograd.graph that have a meaning here: nodes, hooks of several gradients, saved tensors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gt.client.grad.backward import whole
from gt.client.record.recorder import recorder
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
    """Call `fn(gradients)` in each backward, when those of these tensors that it comes to have got their gradients
    (None for the others), or `fn(gradient)` for the first of them with mode="any"."""
    if mode not in ("all", "any"):
        raise ArgumentError(f"register_multi_grad_hook: mode must be 'all' or 'any', got {mode!r}")
    tensors, lock = list(tensors), threading.Lock()
    # Of the latest backward: what it has yet to come to, the gradients so far, and whose are missing.
    now: list[Any] = []
    found: list[Any] = []
    missing: set[int] = set()

    def hook(i: int) -> Callable[[Any], None]:
        def arrived(g: Any) -> None:
            nonlocal now, found, missing
            with lock:
                first = now is not recorder().ahead
                if first:
                    now = recorder().ahead
                    nodes = {whole(tensors[i]._fn), *now}
                    found, missing = [None] * len(tensors), {k for k, t in enumerate(tensors) if whole(t._fn) in nodes}
                found[i] = g
                missing.discard(i)
                grads, found = (found, []) if not missing else (None, found)
            if mode == "any" and first:
                fn(g)
            elif mode == "all" and grads is not None:
                fn(grads)

        return arrived

    return _Handles([t.register_hook(hook(i)) for i, t in enumerate(tensors)])
