"""`out=`: the result of any function is written into a tensor that the user gives, as in torch.

It saves no memory here, since values are immutable: the tensor gets the result's value. So one rule serves every
function, and none of them knows of it.
"""

from __future__ import annotations

from typing import Any

from gt.client.functions.elementwise import cast
from gt.client.grad.modes import set_grad
from gt.client.tensor import Tensor
from gt.client.views.aliases import adopt, write
from gt.errors import AutogradError, DTypeError


def write_out(op: str, made: Any, out: Any) -> Any:
    """Write a result, or several, into `out`, and return that."""
    if isinstance(out, (tuple, list)):
        made = made if isinstance(made, (tuple, list)) else (made,)
        if len(out) != len(made):
            raise DTypeError(f"{op}: out must have {len(made)} tensors, got {len(out)}")
        for result, each in zip(made, out, strict=True):
            write_out(op, result, each)
        return out
    if not isinstance(out, Tensor) or not isinstance(made, Tensor):
        raise DTypeError(f"{op}: out must be a tensor, got {type(out).__name__}")
    if made.requires_grad or out.requires_grad:
        raise AutogradError(f"{op}: out= has no gradient, but a tensor requires one; use the returned tensor instead")
    if made.dtype.category > out.dtype.category:
        raise DTypeError(f"{op}: the result has dtype {made.dtype.name}, which cannot be written to {out.dtype.name}")
    with set_grad(False):
        new = cast(made, out.dtype)
        if new.shape == out.shape:
            write(out, new)
        else:
            adopt(out, new)  # torch resizes it
    return out
