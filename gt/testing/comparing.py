"""Comparing tensors in tests: `assert_close`, with torch's rules and tolerances."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gt import dtypes
from gt.client.compat.interop import is_torch
from gt.client.functions.creation import as_tensor
from gt.client.functions.randoms import rand, randint
from gt.client.tensor import Tensor
from gt.dtypes import DType
from gt.errors import ArgumentError

#: (rtol, atol) by dtype; all others are compared exactly.
TOLERANCES = {
    "float16": (1e-3, 1e-5), "bfloat16": (1.6e-2, 1e-5), "float32": (1.3e-6, 1e-5), "float64": (1e-7, 1e-7),
    "complex64": (1.3e-6, 1e-5), "complex128": (1e-7, 1e-7),
}  # fmt: skip


def assert_close(
    actual: Any, expected: Any, *, allow_subclasses: bool = True, rtol: float | None = None, atol: float | None = None,
    equal_nan: bool = False, check_device: bool = True, check_dtype: bool = True, check_layout: bool = True,
    check_stride: bool = False, msg: str | Callable[[str], str] | None = None,
) -> None:  # fmt: skip
    """Raise AssertionError unless the two are close: tensors, arrays, numbers, or sequences and mappings of these.

    >>> import gt
    >>> gt.testing.assert_close(gt.ones(2), gt.ones(2) + 1e-7)
    >>> gt.testing.assert_close(gt.ones(2), gt.zeros(2))
    Traceback (most recent call last):
    AssertionError: 2 of 2 elements (100.0%) are not close: at index (0,) 1.0 is not 0.0; the largest absolute ...
    """
    if (rtol is None) != (atol is None):
        raise ArgumentError(f"assert_close: give both rtol and atol, or none; got rtol={rtol}, atol={atol}")
    tolerance = None if rtol is None or atol is None else (rtol, atol)
    problem = _difference(actual, expected, tolerance, equal_nan, check_dtype, "")
    if problem:
        raise AssertionError(problem if msg is None else msg(problem) if callable(msg) else msg)


def _difference(a: Any, b: Any, tolerance: tuple[float, float] | None, nan: bool, dtype: bool, at: str) -> str:
    """What is different, as one line; empty if nothing is."""
    where = f"{at}: " if at else ""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        if a.keys() != b.keys():
            return f"{where}the keys differ: {sorted(map(str, a.keys() ^ b.keys()))} are in one of the two only"
        inner = [(f"{at}[{k!r}]", a[k], b[k]) for k in a]
    elif isinstance(a, Sequence) and isinstance(b, Sequence) and not isinstance(a, str):
        if len(a) != len(b):
            return f"{where}the lengths differ: {len(a)} and {len(b)}"
        inner = [(f"{at}[{k}]", x, y) for k, (x, y) in enumerate(zip(a, b, strict=True))]
    else:
        if a is None or b is None or isinstance(a, str):
            return "" if a == b else f"{where}{a!r} is not {b!r}"
        found = _apart(a, b, tolerance, nan, dtype)
        return where + found if found else ""
    return next(filter(None, (_difference(x, y, tolerance, nan, dtype, place) for place, x, y in inner)), "")


def _apart(a: Any, b: Any, tolerance: tuple[float, float] | None, nan: bool, check_dtype: bool) -> str:
    x, y = _tensor(a), _tensor(b)
    if x.shape != y.shape:
        return f"the shapes differ: {tuple(x.shape)} and {tuple(y.shape)}"
    numbers = not hasattr(a, "shape") or not hasattr(b, "shape")
    if check_dtype and not numbers and x.dtype is not y.dtype:
        return f"the dtypes differ: {x.dtype.name} and {y.dtype.name}"
    rtol, atol = tolerance or _tolerance(x.dtype, y.dtype)
    p, q = _wide(x), _wide(y)
    with np.errstate(all="ignore"):
        close = np.isclose(p, q, rtol=rtol, atol=atol, equal_nan=nan) if (rtol or atol) else p == q
        if nan:
            close = close | ((p != p) & (q != q))
        if close.all():
            return ""
        gap = np.abs(np.where(close, 0, p - q)) if p.dtype.kind != "b" else (p != q).astype(float)
        relative = gap / np.abs(q)
    index = tuple(int(i) for i in np.argwhere(~close)[0])
    count = int((~close).sum())
    return (
        f"{count} of {close.size} elements ({100 * count / close.size:.1f}%) are not close: at index {index} "
        f"{p[index].item()!r} is not {q[index].item()!r}; the largest absolute difference is {_largest(gap):.3g} "
        f"(atol {atol:g}), the largest relative one {_largest(relative[~close]):.3g} (rtol {rtol:g})"
    )


def _largest(x: np.ndarray[Any, Any]) -> float:
    return float(np.max(x[~np.isnan(x)], initial=0))


def _tensor(x: Any) -> Tensor:
    if isinstance(x, Tensor):
        return x.detach()
    if not (is_torch(x) or isinstance(x, (bool, int, float, complex, np.ndarray, np.generic))):
        raise AssertionError(f"assert_close: expected tensors, arrays or numbers, got {type(x).__name__}")
    return as_tensor(x, dtype=dtypes.float64 if type(x) is float else dtypes.complex128 if type(x) is complex else None)


def _tolerance(*kinds: DType) -> tuple[float, float]:
    known = [TOLERANCES.get(kind.name, (0.0, 0.0)) for kind in kinds]
    return max(r for r, _ in known), max(a for _, a in known)


def _wide(x: Tensor) -> np.ndarray[Any, Any]:
    """The elements in a type that their difference fits into."""
    data = x.numpy()
    if data.dtype.kind in "biu":
        return data if data.dtype.kind == "b" else data.astype(np.int64)
    return data.astype(np.complex128 if data.dtype.kind == "c" else np.float64)


def make_tensor(
    *shape: Any, dtype: Any, device: Any = None, low: float | None = None, high: float | None = None,
    requires_grad: bool = False, noncontiguous: bool = False, exclude_zero: bool = False, memory_format: Any = None,
) -> Tensor:  # fmt: skip
    """A tensor of random numbers between low and high: by default -9 to 9, or 0 and 1 for bool."""
    to = dtypes.dtype(dtype)
    size = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    if to is dtypes.bool_:
        return randint(0, 2, size).to(to)
    if not to.is_differentiable:
        least = (0 if to.name.startswith("u") else -9) if low is None else int(low)
        made = randint(least, 10 if high is None else int(high), size).to(to)
    else:
        first, last = (-9.0 if low is None else low), (9.0 if high is None else high)
        made = (rand(*size, dtype=dtypes.float64) * (last - first) + first).to(to)
    if exclude_zero:
        made = made + (made == 0).to(to)
    return made.requires_grad_() if requires_grad else made
