"""Operands that are no tensors: numpy's and torch's numbers and arrays, as a user mixes them with tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gt import dtypes
from gt.client.compat.arguments import shown
from gt.client.compat.interop import from_torch, is_torch
from gt.errors import DTypeError
from gt.program import spec

if TYPE_CHECKING:
    from gt.client.tensor import Tensor


def comparable(other: Any) -> bool:
    """Whether `tensor == other` is asked element by element, and not of the two objects."""
    known = hasattr(other, "_v") or isinstance(other, (bool, int, float, complex, np.ndarray, np.generic))
    return known or is_torch(other)


def coerce(op: str, x: Any, others: tuple[Any, ...] = ()) -> Any:
    """An operand made of something that is none: a numpy number or array, a 0-d anything."""
    if hasattr(x, "_letter"):
        return x  # a number that a traced function was given
    if isinstance(x, np.ndarray):
        from gt.client.functions.creation import from_numpy

        return from_numpy(x)
    if isinstance(x, (np.generic, int, float, complex)):
        number = x.item() if isinstance(x, np.generic) else x
        if isinstance(number, complex):
            return _complex_number(number, others)
        for kind in (bool, int, float):
            if isinstance(number, kind):
                return kind(number)
    if is_torch(x):
        return from_torch(x)
    raise DTypeError(f"{op}: expected a tensor or a number, got {shown(x)}")


def _complex_number(x: complex, others: tuple[Any, ...]) -> Tensor:
    """Programs carry no complex numbers: it becomes a tensor, of the type a number takes beside the others."""
    from gt.client.compat.autocast import default_dtype
    from gt.client.functions.creation import from_numpy

    met = [o._spec for o in others if hasattr(o, "_v")]
    dtype = dtypes.promote([*met, spec((), default_dtype().to_complex(), weak=True)])
    return from_numpy(np.array(x, dtype.numpy))
