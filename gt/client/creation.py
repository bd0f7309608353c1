"""Making tensors: from data, filled, counting, random."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gt import dtypes
from gt.client import recorder as recording
from gt.client.dims import sizes
from gt.client.recorder import apply
from gt.client.tensor import Tensor
from gt.client.tree import Kinds
from gt.dtypes import DType
from gt.errors import ArgumentError, DTypeError
from gt.ops import TABLE
from gt.program import spec

__all__ = [
    "arange", "as_tensor", "empty", "empty_like", "eye", "from_numpy", "full", "full_like", "linspace", "manual_seed",
    "ones", "ones_like", "rand", "rand_like", "randint", "randn", "randn_like", "tensor", "zeros", "zeros_like",
]  # fmt: skip

BY_VALUE_NBYTES = 1024  #: Host data up to this size travels with the call that uses it.

_DATA = Kinds(TABLE["data"], "shape", "dtype")
_FULL = Kinds(TABLE["full"], "shape", "dtype")
_ARANGE = Kinds(TABLE["arange"], "n", "dtype")
_RAND = Kinds(TABLE["rand"], "shape", "dtype")
_RANDN = Kinds(TABLE["randn"], "shape", "dtype")
_RANDINT = Kinds(TABLE["randint"], "shape", "dtype")


def tensor(data: Any, dtype: Any = None, requires_grad: bool = False, device: Any = None) -> Tensor:
    """A tensor with a copy of this data: numbers, nested lists, a numpy array.

    >>> import gt
    >>> gt.tensor([[1, 2], [3, 4]])
    tensor([[1, 2],
            [3, 4]])
    """
    if hasattr(data, "_v"):
        t = data.detach().clone()
        return _finish(t if dtype is None else t.to(dtype), requires_grad)
    if dtype is not None:
        array = np.asarray(data, dtype=dtypes.dtype(dtype).numpy)
    elif isinstance(data, (np.ndarray, np.generic)):
        array = np.asarray(data)
    else:
        try:
            array = np.asarray(data)
        except ValueError:
            raise ArgumentError("tensor: the rows of the data have different lengths") from None
        if array.dtype == np.float64:
            array = array.astype(np.float32)
    return _finish(from_numpy(array), requires_grad)


def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """The tensor itself, or one made of this data."""
    return data.to(dtype) if hasattr(data, "_v") else tensor(data, dtype)


def from_numpy(array: np.ndarray[Any, Any]) -> Tensor:
    """A tensor with a copy of the array. When this returns, the array may change."""
    try:
        kind = dtypes.dtype(array.dtype)
    except DTypeError:
        raise DTypeError(f"from_numpy: a tensor cannot hold elements of type {array.dtype}") from None
    shape = tuple(array.shape)
    if array.nbytes <= BY_VALUE_NBYTES:
        return apply(_DATA[shape, kind.name], (array.tobytes(),))
    return Tensor(recording.recorder().session.upload(array.tobytes(), spec(shape, kind)))


def _finish(t: Tensor, requires_grad: bool) -> Tensor:
    return t.requires_grad_() if requires_grad else t


def _dtype(dtype: Any, default: DType = dtypes.float32) -> DType:
    return default if dtype is None else dtypes.dtype(dtype)


def full(
    size: Sequence[int] | int, fill_value: Any, dtype: Any = None, requires_grad: bool = False, device: Any = None
) -> Tensor:
    """A tensor of this size, every element the same."""
    shape = sizes("full", (size,))
    _check_sizes("full", shape)
    if dtype is None:
        whole = getattr(fill_value, "_letter", "") == "i" or isinstance(fill_value, int)
        dtype = dtypes.bool_ if isinstance(fill_value, bool) else dtypes.int64 if whole else None
    return _finish(apply(_FULL[shape, _dtype(dtype).name], (fill_value,)), requires_grad)


def zeros(*size: Any, dtype: Any = None, requires_grad: bool = False, device: Any = None) -> Tensor:
    """A tensor of zeros.

    >>> import gt
    >>> gt.zeros(2, 3)
    tensor([[0., 0., 0.],
            [0., 0., 0.]])
    """
    return full(sizes("zeros", size), 0.0, _dtype(dtype), requires_grad)


def ones(*size: Any, dtype: Any = None, requires_grad: bool = False, device: Any = None) -> Tensor:
    """A tensor of ones."""
    return full(sizes("ones", size), 1.0, _dtype(dtype), requires_grad)


def empty(*size: Any, dtype: Any = None, requires_grad: bool = False, device: Any = None) -> Tensor:
    """A tensor with any content; here, zeros."""
    return full(sizes("empty", size), 0.0, _dtype(dtype), requires_grad)


def zeros_like(input: Tensor, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """Zeros in the shape and dtype of another tensor."""
    return full(input.shape, 0.0, _dtype(dtype, input.dtype), requires_grad)


def ones_like(input: Tensor, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """Ones in the shape and dtype of another tensor."""
    return full(input.shape, 1.0, _dtype(dtype, input.dtype), requires_grad)


def full_like(input: Tensor, fill_value: Any, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """One number in the shape and dtype of another tensor."""
    return full(input.shape, fill_value, _dtype(dtype, input.dtype), requires_grad)


empty_like = zeros_like


def arange(
    start: Any, end: Any = None, step: Any = 1, dtype: Any = None, requires_grad: bool = False, device: Any = None
) -> Tensor:
    """start, start + step, ... below end.

    >>> import gt
    >>> gt.arange(2, 10, 3)
    tensor([2, 5, 8])
    """
    if end is None:
        start, end = 0, start
    if step == 0:
        raise ArgumentError("arange: step must not be zero")
    n = math.ceil((end - start) / step)
    if n < 0:
        raise ArgumentError(f"arange: from {start} to {end} does not go with a step of {step}")
    if dtype is None:
        whole = all(isinstance(x, (int, np.integer)) for x in (start, end, step))
        dtype = dtypes.int64 if whole else dtypes.float32
    return _finish(apply(_ARANGE[n, _dtype(dtype).name], (start, step)), requires_grad)


def linspace(start: float, end: float, steps: int, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """So many numbers from start to end, evenly spaced."""
    step = (end - start) / (steps - 1) if steps > 1 else 0.0
    t = arange(0, steps, 1, dtype=_dtype(dtype)) * step + start
    return _finish(t, requires_grad)


def eye(n: int, m: int | None = None, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """Ones on the diagonal, zeros elsewhere."""
    rows, columns = arange(n).unsqueeze(1), arange(n if m is None else m)
    return _finish((rows == columns).to(_dtype(dtype)), requires_grad)


# --- random ------------------------------------------------------------------------------------------


def manual_seed(seed: int) -> None:
    """Start the random numbers anew: the same seed gives the same numbers, on every engine."""
    session = recording.recorder().session
    session.seed, session.draws = int(seed) & (2**63 - 1), 0


def next_seed() -> Any:
    """The seed of a random op; in a traced function, one that a replay draws anew."""
    rec = recording.recorder()
    return rec.session.next_seed() if rec.trace is None else rec.trace.seed()


def rand(*size: Any, dtype: Any = None, requires_grad: bool = False, device: Any = None) -> Tensor:
    """Random numbers, uniform in [0, 1)."""
    shape = sizes("rand", size)
    _check_sizes("rand", shape)
    return _finish(apply(_RAND[shape, _dtype(dtype).name], (next_seed(),)), requires_grad)


def randn(*size: Any, dtype: Any = None, requires_grad: bool = False, device: Any = None) -> Tensor:
    """Random numbers, normally distributed with mean 0 and variance 1."""
    shape = sizes("randn", size)
    _check_sizes("randn", shape)
    return _finish(apply(_RANDN[shape, _dtype(dtype).name], (next_seed(),)), requires_grad)


def randint(low: int, high: Any = None, size: Any = None, dtype: Any = dtypes.int64, device: Any = None) -> Tensor:
    """Random integers from low up to high, which is not included."""
    if size is None:
        low, high, size = 0, low, high
    if high <= low:
        raise ArgumentError(f"randint: from {low} to {high} there is no integer")
    shape = sizes("randint", (size,))
    return apply(_RANDINT[shape, _dtype(dtype).name], (next_seed(), int(low), int(high)))


def rand_like(input: Tensor, dtype: Any = None) -> Tensor:
    """Uniform random numbers in the shape and dtype of another tensor."""
    return rand(input.shape, dtype=_dtype(dtype, input.dtype))


def randn_like(input: Tensor, dtype: Any = None) -> Tensor:
    """Normal random numbers in the shape and dtype of another tensor."""
    return randn(input.shape, dtype=_dtype(dtype, input.dtype))


def _check_sizes(op: str, shape: tuple[int, ...]) -> None:
    if any(n < 0 for n in shape):
        raise ArgumentError(f"{op}: a size cannot be negative: {shape}")
