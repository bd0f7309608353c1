"""Operands that are not tensors: numbers, NumPy arrays, torch tensors, as users combine them with tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from gt import dtypes
from gt.client.compat.arguments import shown
from gt.client.compat.interop import is_torch, operand
from gt.client.functions.constants import upload
from gt.client.tensor import Tensor, default_dtype
from gt.errors import DTypeError
from gt.program import spec


def comparable(other: Any) -> bool:
    """Whether `tensor == other` compares element by element."""
    known = isinstance(other, (Tensor, bool, int, float, complex, np.ndarray, np.generic))
    return known or is_torch(other)


def coerce(op: str, x: Any, others: tuple[Any, ...] = ()) -> Any:
    """Convert an operand that is not a tensor: a NumPy number or array, or a torch tensor."""
    if hasattr(x, "_letter"):
        return x  # a number argument of a traced function
    if isinstance(x, np.ndarray):
        return upload(op, x)
    if isinstance(x, (np.generic, int, float, complex)):
        number = x.item() if isinstance(x, np.generic) else x
        if isinstance(number, complex):
            return _complex_number(number, others)
        for kind in (bool, int, float):
            if isinstance(number, kind):
                return kind(number)
    if is_torch(x):
        return operand(op, x)
    raise DTypeError(f"{op}: expected a tensor or a number, got {shown(x)}")


def _complex_number(x: complex, others: tuple[Any, ...]) -> Tensor:
    """Programs contain no complex numbers, so it becomes a tensor, of the dtype that the number has beside `others`."""
    met = [o._spec for o in others if isinstance(o, Tensor)]
    dtype = dtypes.promote([*met, spec((), default_dtype().to_complex(), weak=True)])
    return upload("complex", np.array(x, dtype.numpy))
