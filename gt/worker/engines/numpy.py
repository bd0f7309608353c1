"""The engine on numpy: for machines without torch, and for tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gt import dtypes
from gt.errors import IndexOutOfRange
from gt.ops.record import Op
from gt.program import Spec, as_tuple
from gt.transport.messages import Buffer
from gt.worker.engines.borrowing import borrow
from gt.worker.run.engine import Engine, KernelUse, bad_indices

_NARROW = (dtypes.float16, dtypes.bfloat16)  #: computed in float32, as torch does on a CPU


class NumpyEngine(Engine):
    """See `gt.worker.run.engine.Engine`."""

    name = "numpy"
    device = "cpu"
    beside = True

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

    def whole(self, run: Callable[..., Any], steps: Sequence[KernelUse]) -> Callable[..., Any]:
        return run

    def from_bytes(self, data: Buffer, spec: Spec, given: bool = False) -> Any:
        array = np.frombuffer(data, spec.dtype.numpy).reshape(spec.shape)
        return array if given and array.flags.writeable else array.copy()

    def to_bytes(self, array: Any, borrow: bool = False) -> memoryview:
        made = np.ascontiguousarray(array) if borrow else np.array(array, order="C", copy=True)
        return made.reshape(-1).view(np.uint8).data

    def own(self, array: Any) -> Any:
        return np.array(array, order="C", copy=True)

    def dense(self, array: Any) -> Any:
        return np.ascontiguousarray(array) if array.ndim else array

    def check(self, op: str, index: Any, n: int, extra: int | None, flag: Any) -> tuple[Any, Any]:
        bad = bad_indices(index, n, extra)
        if bad.any():
            raise IndexOutOfRange(f"{op}: index {index[bad].flat[0]} is out of range for size {n}")
        return index, None

    def mark(self) -> Any:
        return None

    def passed(self, mark: Any, wait: bool = False) -> bool:
        return True

    def use(self, session: int) -> None:
        return

    def out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, MemoryError)


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
