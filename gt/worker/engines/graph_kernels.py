"""Ops as functions in which the numbers are tensors, for graphs that are captured or compiled.

Law 1: no number of a call is a constant of a graph. It is passed as a 0-d tensor on the device: float64,
       int64 or bool; host data as uint8.
Law 2: a graph kernel is a pure function of its operands: it reads no value on the host, waits for no device, copies
       nothing from the host, uses no random generator and writes to no operand.
Law 3: its results have the dtypes that `infer` says, and equal those of the plain kernel, up to rounding.

Most ops need no graph kernel of their own: those without numbers run their plain kernel, and numbers of elementwise
ops (`promote`) are cast to the promoted dtype. An op whose kernel is a loop is one node that no compiler looks into
(opaque.py). The others have a "torch_graph" in their records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gt import dtypes
from gt.ops.record import Op, PreparedKernel, Site
from gt.program import Spec, as_tuple, spec
from gt.worker.engines.opaque import opaque
from gt.worker.run.engine import Engine

_NARROW = (dtypes.float16, dtypes.bfloat16)
#: Ops whose results are discontinuous, and the operands that torch rounds to a narrow dtype if they are numbers.
_JUMPING = {"remainder": (0, 1), "fmod": (0, 1), "floor_divide": (0,), "nextafter": (0, 1)}


class Unfit(Exception):
    """This use of an op cannot be part of a graph: its kernel reads values on the host, or waits for the device."""


def graph_kernel(
    engine: Engine, op: Op, attrs: dict[str, Any], operands: Sequence[Spec], constant: bool = False
) -> PreparedKernel | Callable[..., Any] | None:
    """The op as a graph kernel, or None where its composition must be expanded, as in `Engine.kernel`.

    With `constant`, all its numbers are the same in every call (a composition has them as constants): the kernel then
    takes them as Python numbers.
    """
    plain = engine.kernel(op, attrs, operands)
    if plain is None:
        return None
    results = as_tuple(op.infer(*operands, **attrs))
    if op.opaque:
        return opaque(op, attrs, operands, plain)
    numbers = any(s.weak for s in operands)
    make = op.kernels.get("torch_graph")
    if make is not None:
        made: PreparedKernel | Callable[..., Any] | None = make(
            torch, Site(engine.device, tuple(operands), results), **attrs
        )
        if made is None:
            raise Unfit(f"{op.name}: cannot be part of a graph")
        return plain if numbers and constant else made
    if not numbers or constant:
        return plain
    if not op.promote:
        raise Unfit(f"{op.name}: has no kernel that takes its numbers as tensors")
    return _meeting(engine, op, attrs, operands, results[0])


def _meeting(
    engine: Engine, op: Op, attrs: dict[str, Any], operands: Sequence[Spec], result: Spec
) -> Callable[..., Any]:
    """The general rule: cast all operands to the promoted dtype, and the result to the dtype that it should have."""
    common = dtypes.promote(operands)
    if result.dtype.is_floating_point and not common.is_differentiable:
        common = result.dtype
    # torch computes narrow floats in float32 and rounds only the result, so a number must not be rounded before.
    # Except in comparisons, where a narrow operand could not equal it otherwise, and in a few similar ops.
    rounded = not result.dtype.is_differentiable or any(operands[k].weak for k in _JUMPING.get(op.name, ()))
    wide = dtypes.float32 if common in _NARROW and not rounded else common
    plain = engine.kernel(op, attrs, [spec(s.shape, wide) for s in operands])
    assert plain is not None
    target, made = getattr(torch, wide.name), getattr(torch, result.dtype.name)

    def kernel(*args: Any) -> Any:
        return plain(*[a.to(target) for a in args]).to(made)

    return kernel
