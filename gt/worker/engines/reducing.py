"""Conversion to dtypes that gloo and NCCL can reduce exactly enough, and back."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from gt import dtypes
from gt.errors import WorkerError
from gt.worker.run.collectives import Collective

_WIDER = {"float16": torch.float32, "bfloat16": torch.float32, "int16": torch.int32, "bool": torch.uint8}
_KINDS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


def reduce_op(what: Collective) -> Any:
    if what.given.dtype is dtypes.bool_ and what.kind == "sum":
        return dist.ReduceOp.MAX
    return _KINDS[what.kind]


def widened(data: Any, what: Collective) -> Any:
    """The numbers as they are reduced, in the same memory where that is possible. 16-bit numbers are widened, so that
    they are rounded once, at the end; a complex number is two reals. For max and min of floats the positions of NaNs
    are appended: gloo loses some."""
    dtype = what.given.dtype
    if dtype.is_complex and what.kind != "sum":
        raise WorkerError(f"all_reduce: {what.kind} is not defined for {dtype!r}")
    x = data.view(getattr(torch, dtype.to_real().name))
    if dtype.name in _WIDER:
        x = x.to(_WIDER[dtype.name])
    if what.kind == "sum" or not dtype.is_floating_point:
        return x
    nan = x.isnan()
    flag = nan.to(x.dtype) if what.kind == "max" else -nan.to(x.dtype)
    return torch.cat([x.masked_fill(nan, 0), flag])


def narrowed(x: Any, out: Any, what: Collective) -> None:
    """Write the result into `out`, which may be the same memory."""
    dtype = what.given.dtype
    out = out.view(getattr(torch, dtype.to_real().name))
    if what.kind != "sum" and dtype.is_floating_point:
        x, flag = x.chunk(2)
        x = x.masked_fill(flag != 0, torch.nan)
    if x.data_ptr() != out.data_ptr():
        out.copy_(x)
