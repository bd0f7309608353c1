"""Ops that only torch has a kernel for, on another engine: arrays are copied to torch and back.

Slow, and only for ops that have neither an array kernel nor a composition: torch's own functions
(ops/families/torch_names.py) and the few ops that `gt ops` lists as borrowed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gt.errors import WorkerError
from gt.ops.record import Op
from gt.program import Spec
from gt.transport.messages import Buffer


def borrow(op: Op, attrs: dict[str, Any], operands: Sequence[Spec]) -> Callable[..., Any] | None:
    """Torch's kernel for an op, as a function of numpy arrays; None if there is none."""
    if op.compose is not None or (op.kernels and "torch" not in op.kernels):
        return None
    try:
        from gt.worker.engines.torch import TorchEngine
    except ImportError:
        raise WorkerError(f"{op.name}: needs torch, which this worker does not have; pip install 'gt[torch]'") from None
    engine = TorchEngine("cpu")
    kernel = engine.kernel(op, attrs, operands)
    if kernel is None:
        return None
    made = op.infer(*operands, **attrs)
    specs = made if isinstance(made, tuple) else (made,)

    def run(*args: Any) -> Any:
        given = [a if s.weak else engine.from_bytes(_bytes(a, s), s) for a, s in zip(args, operands, strict=True)]
        out = kernel(*given)
        outs = out if isinstance(out, tuple) else (out,)
        arrays = tuple(
            np.frombuffer(engine.to_bytes(o), s.dtype.numpy).reshape(s.shape) for o, s in zip(outs, specs, strict=True)
        )
        return arrays if len(arrays) > 1 else arrays[0]

    return run


def _bytes(array: Any, s: Spec) -> Buffer:
    return np.ascontiguousarray(np.asarray(array)).reshape(-1).view(np.uint8).data
