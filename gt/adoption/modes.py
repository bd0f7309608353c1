"""torch's modes in GT: gradients on or off, autocast, and what a model creates.

Gradients are recorded while they are on in torch and in GT. torch's autocast is looked up at each op; GT's own applies
to adopted models as to any code.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import compiler
from torch.overrides import TorchFunctionMode

from gt.client.compat.autocast import autocast
from gt.client.record.recorder import recorder

grad_enabled: Callable[[], bool] = torch.is_grad_enabled
any_autocast: Callable[[], bool] = torch._C._is_any_autocast_enabled


@contextmanager
def mirrored() -> Iterator[None]:
    """torch's gradient mode and autocast, for the ops recorded inside."""
    rec = recorder()
    before, rec.grad = rec.grad, rec.grad and grad_enabled()
    try:
        if any_autocast():
            device = "cuda" if torch.is_autocast_enabled("cuda") else "cpu"
            with autocast(device, torch.get_autocast_dtype(device)):
                yield
        else:
            yield
    finally:
        recorder().grad = before


# --- what a model creates ----------------------------------------------------------------------------


class _Inside(threading.local):
    active = False  #: Whether a function of an adopted model is running in this thread.


inside = _Inside()

#: Functions that make a tensor out of sizes, numbers or lists.
FACTORIES = frozenset(
    "arange as_tensor asarray bartlett_window blackman_window empty empty_permuted empty_strided eye from_numpy full "
    "hamming_window hann_window kaiser_window linspace logspace normal ones rand randint randn randperm range "
    "scalar_tensor tensor tril_indices triu_indices zeros".split()
)


class Inside(TorchFunctionMode):  # type: ignore[misc]  # torch is Any to the type checker
    """While an adopted model runs, the tensors that it creates are adopted, too."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return route[0](func, args, kwargs or {})


#: Calls what stands for a function of torch; functions.py, which is above this file, puts it here.
route: list[Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]] = []


def entered(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, in this mode."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if inside.active:
            return function(*args, **kwargs)
        inside.active = True
        # Models ask this before they look at values to choose a faster path, as transformers does for masks. What is
        # recorded should not wait, and is compiled later.
        before, compiler._is_compiling_flag = compiler._is_compiling_flag, True
        try:
            with Inside():
                return function(*args, **kwargs)
        finally:
            compiler._is_compiling_flag = before
            inside.active = False

    return run
