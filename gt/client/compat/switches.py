"""Constants and global settings of torch. GT accepts most settings without effect, so that existing code runs."""

from __future__ import annotations

import math
import os
from typing import Any

from gt.client.compat.checks import one_of
from gt.client.programs.tree import current_precision
from gt.client.session.connecting import choose_precision
from gt.client.tensor import Tensor
from gt.errors import OutOfMemory as OutOfMemoryError
from gt.program import PRODUCTS, Size

__all__ = [
    "OutOfMemoryError", "Size", "are_deterministic_algorithms_enabled", "channels_last", "channels_last_3d",
    "contiguous_format", "e", "get_float32_matmul_precision", "get_num_interop_threads", "get_num_threads", "inf",
    "is_deterministic_algorithms_warn_only_enabled", "legacy_contiguous_format", "nan", "newaxis", "pi",
    "preserve_format", "set_float32_matmul_precision", "set_num_interop_threads", "set_num_threads", "strided",
    "typename", "use_deterministic_algorithms",
]  # fmt: skip

pi, e, inf, nan = math.pi, math.e, math.inf, math.nan
newaxis = None
contiguous_format, preserve_format = "gt.contiguous_format", "gt.preserve_format"
legacy_contiguous_format = contiguous_format
channels_last, channels_last_3d = "gt.channels_last", "gt.channels_last_3d"
strided = "gt.strided"

#: Modules of gt that are imported when they are first used: `import gt` stays fast.
NAMESPACES = frozenset({
    "_dynamo", "accelerator", "compiler", "cpu", "distributed", "distributions", "fx", "hub", "jit", "masked", "mps",
    "onnx", "profiler", "serialization", "testing", "types", "version", "xpu",
})  # fmt: skip

#: Public names of modules that `import gt` does not load, and the modules.
LATER = {
    "Hardware": "gt.solver.hardware", "Plan": "gt.solver.plan", "autoshard": "gt.solver.running",
    "explain": "gt.solver.running", "plan": "gt.solver.plan",
    "_grouped_mm": "gt.client.functions.mapping", "vmap": "gt.client.functions.mapping",
}  # fmt: skip

#: Names of torch that GT does not have, and what to use instead.
ABSENT = {
    "export": "save the parameters with gt.save(model.state_dict(), file)",
    "multiprocessing": "threads can share tensors; other processes open their own session with gt.connect",
    **dict.fromkeys(
        ("sparse", "sparse_bsc_tensor", "sparse_bsr_tensor", "sparse_compressed_tensor", "sparse_coo_tensor",
         "sparse_csc_tensor", "sparse_csr_tensor"),
        "GT has no sparse tensors; index_add and scatter_add sum by index",
    ),
    "nested": "GT has no nested tensors; use padding and a mask, or gt.nn.utils.rnn.pad_sequence",
}  # fmt: skip


def _assert(condition: Any, message: str) -> None:
    """Raise AssertionError with the message unless the condition holds."""
    assert condition, message


_set: dict[str, Any] = {"deterministic": False, "warn": False, "threads": 0}


def absent(name: str) -> AttributeError:
    """The error for a name that GT does not have."""
    cure = f"; {ABSENT[name]}" if name in ABSENT else ""
    return AttributeError(f"module 'gt' has no attribute {name!r}{cure}")


def set_float32_matmul_precision(precision: str) -> None:
    """Set the precision of float32 matrix products: "highest", "high" (TF32 on GPUs that support it) or "medium"
    (TF32, or bfloat16 on CPUs that support it)."""
    one_of("set_float32_matmul_precision", "precision", precision, *PRODUCTS)
    choose_precision(product=precision)


def get_float32_matmul_precision() -> str:
    """The precision of float32 matrix products; "highest" by default."""
    return current_precision().product


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Accepted without effect; are_deterministic_algorithms_enabled() returns the value."""
    _set.update(deterministic=bool(mode), warn=bool(warn_only))


def are_deterministic_algorithms_enabled() -> bool:
    """The mode that use_deterministic_algorithms() was last given."""
    return bool(_set["deterministic"])


def is_deterministic_algorithms_warn_only_enabled() -> bool:
    """The warn_only that use_deterministic_algorithms() was last given."""
    return bool(_set["warn"])


def set_num_threads(n: int) -> None:
    """Accepted without effect; the setting GT_THREADS is the number of a worker's threads."""
    _set["threads"] = n


def get_num_threads() -> int:
    """The number that set_num_threads() was last given; by default, the number of cores of this machine."""
    return int(_set["threads"] or os.cpu_count() or 1)


def set_num_interop_threads(n: int) -> None:
    """Accepted without effect; the setting GT_THREADS is the number of a worker's threads."""


get_num_interop_threads = get_num_threads


def typename(obj: Any) -> str:
    """The name of an object's type; for a tensor, with its dtype."""
    if isinstance(obj, Tensor):
        return str(obj.type())
    kind = obj if isinstance(obj, type) else type(obj)
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
