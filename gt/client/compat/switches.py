"""torch's constants and switches. Most switches GT takes and has no use for, so that code with them runs."""

from __future__ import annotations

import math
import os
from typing import Any

from gt.client.programs.tree import current_precision
from gt.client.session.connecting import choose_precision
from gt.errors import ArgumentError
from gt.errors import OutOfMemory as OutOfMemoryError
from gt.program import PRODUCTS

__all__ = [
    "OutOfMemoryError", "Size", "are_deterministic_algorithms_enabled", "channels_last", "channels_last_3d",
    "contiguous_format", "e", "get_float32_matmul_precision", "get_num_interop_threads", "get_num_threads", "inf",
    "is_deterministic_algorithms_warn_only_enabled", "nan", "newaxis", "pi", "preserve_format",
    "set_float32_matmul_precision", "set_num_interop_threads", "set_num_threads", "strided", "typename",
    "use_deterministic_algorithms",
]  # fmt: skip

pi, e, inf, nan = math.pi, math.e, math.inf, math.nan
newaxis = None
Size: type = tuple  #: what `x.shape` is
contiguous_format, preserve_format = "gt.contiguous_format", "gt.preserve_format"
channels_last, channels_last_3d = "gt.channels_last", "gt.channels_last_3d"
strided = "gt.strided"

#: Names of torch that GT has nothing for, and what to use.
ABSENT = {
    "as_strided": "tensors have no strides; use unfold, views and indexing",
    "distributed": "which workers compute is the server's affair, and one process may use them all; see `gt serve`",
    "distributions": "write log_prob by hand, of gt.randn, gt.multinomial, gt.log_softmax and their kin",
    "export": "save the parameters with gt.save(model.state_dict(), file)",
    "hub": "load the weights as numpy arrays or torch tensors: load_state_dict takes both",
    "jit": "GT compiles by itself what runs often; @gt.function replays a step without its Python",
    "multiprocessing": "threads may share tensors; other processes connect by themselves, with gt.connect",
    "onnx": "save the parameters with gt.save(model.state_dict(), file)",
    "profiler": "gt.debug.get_worker_stats() says what took time",
    "sparse_coo_tensor": "tensors are dense; index_add and scatter_add sum by index",
    "vmap": "write the batch dimension out; gt.func.jacrev and gt.func.hessian give derivatives",
}

_said: dict[str, Any] = {"deterministic": False, "warn": False, "threads": 0}


def absent(name: str) -> AttributeError:
    """What to raise for a name that GT has not."""
    cure = f"; {ABSENT[name]}" if name in ABSENT else ""
    return AttributeError(f"module 'gt' has no attribute {name!r}{cure}")


def set_float32_matmul_precision(precision: str) -> None:
    """How exactly products of float32 are computed from here on: "highest", "high" (TF32 where the worker's GPU has
    it) or "medium" (TF32, or bfloat16 on CPUs that have it)."""
    if precision not in PRODUCTS:
        raise ArgumentError(f"set_float32_matmul_precision: 'highest', 'high' or 'medium', not {precision!r}")
    choose_precision(product=precision)


def get_float32_matmul_precision() -> str:
    """What was set last; "highest" if nothing was."""
    return current_precision().product


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Kept for are_deterministic_algorithms_enabled; it changes nothing."""
    _said.update(deterministic=bool(mode), warn=bool(warn_only))


def are_deterministic_algorithms_enabled() -> bool:
    """What was set last."""
    return bool(_said["deterministic"])


def is_deterministic_algorithms_warn_only_enabled() -> bool:
    """What was set last."""
    return bool(_said["warn"])


def set_num_threads(n: int) -> None:
    """Kept for get_num_threads; a worker's threads are its own setting (GT_THREADS)."""
    _said["threads"] = n


def get_num_threads() -> int:
    """What was set last, else the number of cores here."""
    return int(_said["threads"] or os.cpu_count() or 1)


def set_num_interop_threads(n: int) -> None:
    """Does nothing: a worker's threads are its own setting (GT_THREADS)."""


get_num_interop_threads = get_num_threads


def typename(obj: Any) -> str:
    """The name of an object's type; of a tensor, with its dtype."""
    if hasattr(obj, "_v"):
        return str(obj.type())
    kind = obj if isinstance(obj, type) else type(obj)
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
