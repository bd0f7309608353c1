"""The engine that needs nothing but numpy: for machines without torch, and for tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gt import dtypes
from gt.errors import IndexOutOfRange, WorkerError
from gt.ops.record import Op, as_tuple
from gt.program import Precision, Spec
from gt.transport.codec import Buffer
from gt.worker.engines.borrowing import borrow

_NARROW = (dtypes.float16, dtypes.bfloat16)  #: computed in float32, as torch does on a CPU


class NumpyEngine:
    """See `gt.worker.engines.Engine`."""

    name = "numpy"
    device = "cpu"
    deferred = False
    compiles_with: tuple[str, str] | None = None

    def __init__(self) -> None:
        self.memory: int = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def kernel(
        self, op: Op, attrs: dict[str, Any], operands: Sequence[Spec], inplace: bool = False
    ) -> Callable[..., Any] | None:
        f = op.kernels.get("numpy") or op.kernels.get("array")
        if inplace:
            return None
        if f is None:
            return borrow(op, attrs, operands)
        results = [s.dtype.numpy for s in as_tuple(op.infer(*operands, **attrs))]
        cast = casts(op, operands, results)
        single = len(results) == 1
        attrs = {k: tuple(v) if isinstance(v, list) else v for k, v in attrs.items()}

        def run(*args: Any) -> Any:
            with np.errstate(all="ignore"):
                if cast is not None:
                    args = tuple(a if c is None else np.asarray(a).astype(c) for a, c in zip(args, cast, strict=True))
                made = f(np, *args, **attrs)
                if single:
                    return np.asarray(made, results[0])
                return tuple(np.asarray(m, d) for m, d in zip(made, results, strict=True))

        return run

    def many(self, op: Op, attrs: dict[str, Any]) -> Callable[..., Any] | None:
        return None

    def whole(self, run: Callable[..., Any], steps: Sequence[Any]) -> Callable[..., Any]:
        return run

    def graph(self, checked: Any, trusted: bool) -> Any:
        raise WorkerError("this engine has no graphs")

    def load_library(self, folder: str, graph: Any) -> Any:
        raise WorkerError("this engine has no libraries")

    def new_capture(self, graph: Any, f: Any, plain: Any, tier: int) -> Any:
        raise WorkerError("this engine has no graphs")

    def use(self, session: int) -> None:
        pass

    def leave(self, session: int) -> None:
        pass

    def usage(self) -> dict[str, int]:
        return {}

    def send_flag(self, flag: Any) -> Any:
        return flag

    def set_precision(self, precision: Precision) -> None:
        pass  # always the most exact

    def host_buffer(self, nbytes: int) -> np.ndarray[Any, Any]:
        return np.empty(nbytes, np.uint8)

    def from_bytes(self, data: Buffer, spec: Spec, given: bool = False) -> Any:
        array = np.frombuffer(data, spec.dtype.numpy).reshape(spec.shape)
        return array if given and array.flags.writeable else array.copy()

    def to_bytes(self, array: Any, borrow: bool = False) -> memoryview:
        made = np.ascontiguousarray(array) if borrow else np.array(array, order="C", copy=True)
        return made.reshape(-1).view(np.uint8).data

    def start_fetch(self, array: Any) -> tuple[Any, Any]:
        return array, None

    def end_fetch(self, coming: tuple[Any, Any]) -> memoryview:
        return self.to_bytes(coming[0])

    def own(self, array: Any) -> Any:
        return np.array(array, order="C", copy=True)

    def dense(self, array: Any) -> Any:
        return np.ascontiguousarray(array) if array.ndim else array

    def check(self, op: str, index: Any, n: int, extra: int | None, flag: Any) -> tuple[Any, Any]:
        bad = (index < 0) | (index >= n)
        if extra is not None:
            bad &= index != extra
        if bad.any():
            raise IndexOutOfRange(f"{op}: index {index[bad].flat[0]} is out of range for size {n}")
        return index, None

    def select(self, flag: Any, old: Any, new: Any, into: bool = False) -> Any:
        raise WorkerError("numpy checks indices at once and has no flags")

    def mark(self) -> Any:
        return None

    def passed(self, mark: Any, wait: bool = False) -> bool:
        return True

    def raised(self, flag: Any) -> bool:
        return False

    def out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, MemoryError)

    def release(self) -> None:
        pass


def casts(op: Op, operands: Sequence[Spec], results: list[Any]) -> list[Any] | None:
    """What each operand is cast to before the kernel sees it (None: nothing)."""
    if op.promote:
        common = dtypes.promote(operands)
        if common in _NARROW:
            common = dtypes.float32
        target = common.numpy
        if results[0].kind == "f" and not common.is_differentiable:
            target = results[0]
        return [None if s.dtype.numpy == target and not s.weak else target for s in operands]
    if op.aliases or not any(s.dtype in _NARROW for s in operands):
        return None
    return [np.dtype(np.float32) if s.dtype in _NARROW else None for s in operands]
