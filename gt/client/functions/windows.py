"""Window functions: torch.signal.windows, and the older forms at the top level (`hann_window`).

Windows are small, so they are computed in this process, in float64, and uploaded.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gt.client.compat.arguments import shown
from gt.client.compat.checks import at_least, positive
from gt.client.functions.creation import finish, float_dtype, from_numpy, ignored
from gt.client.tensor import Tensor
from gt.errors import ArgumentError

__all__ = [
    "bartlett", "blackman", "cosine", "exponential", "gaussian", "general_cosine", "general_hamming", "hamming", "hann",
    "kaiser", "nuttall",
]  # fmt: skip


def _made(op: str, M: int, sym: bool, shape: Any, options: dict[str, Any]) -> Tensor:
    """A window of M points; `shape(n, last)` is its value at n, and `last` is where a symmetric window ends."""
    dtype, requires_grad = float_dtype(options.pop("dtype", None)), options.pop("requires_grad", False)
    ignored(op, options)
    if not isinstance(M, int) or M < 0:
        raise ArgumentError(f"{op}: the number of points must be an int >= 0, got {shown(M)}")
    if not dtype.is_floating_point:
        raise ArgumentError(f"{op}: dtype must be a floating-point type, got {dtype.name}")
    n = np.arange(M, dtype=np.float64)
    values = np.ones(M) if M <= 1 else shape(n, M - 1 if sym else M)
    return finish(from_numpy(np.asarray(values).astype(dtype.numpy)), requires_grad)


def general_cosine(M: int, *, a: Any, sym: bool = True, **options: Any) -> Tensor:
    """A window that is a sum of cosines with weights a, of alternating sign."""
    if not len(a):
        raise ArgumentError("general_cosine: expected at least one weight in a")

    def shape(n: Any, last: int) -> Any:
        return sum((-1) ** i * w * np.cos(2 * math.pi * i * n / last) for i, w in enumerate(a))

    return _made("general_cosine", M, sym, shape, options)


def general_hamming(M: int, *, alpha: float = 0.54, sym: bool = True, **options: Any) -> Tensor:
    """The general Hamming window: alpha minus (1 - alpha) times a cosine."""
    return general_cosine(M, a=[alpha, 1 - alpha], sym=sym, **options)


def hamming(M: int, *, sym: bool = True, **options: Any) -> Tensor:
    """The Hamming window."""
    return general_hamming(M, sym=sym, **options)


def hann(M: int, *, sym: bool = True, **options: Any) -> Tensor:
    """The Hann window.

    >>> import gt
    >>> gt.signal.windows.hann(5)
    tensor([0.0000, 0.5000, 1.0000, 0.5000, 0.0000])
    """
    return general_hamming(M, alpha=0.5, sym=sym, **options)


def blackman(M: int, *, sym: bool = True, **options: Any) -> Tensor:
    """The Blackman window."""
    return general_cosine(M, a=[0.42, 0.5, 0.08], sym=sym, **options)


def nuttall(M: int, *, sym: bool = True, **options: Any) -> Tensor:
    """The minimum four-term Blackman-Harris window of Nuttall."""
    return general_cosine(M, a=[0.3635819, 0.4891775, 0.1365995, 0.0106411], sym=sym, **options)


def bartlett(M: int, *, sym: bool = True, **options: Any) -> Tensor:
    """The Bartlett window, a triangle."""
    return _made("bartlett", M, sym, lambda n, last: 1 - np.abs(2 * n / last - 1), options)


def cosine(M: int, *, sym: bool = True, **options: Any) -> Tensor:
    """The cosine window, half a period of a sine."""
    return _made("cosine", M, sym, lambda n, last: np.sin(math.pi * (n + 0.5) / (last + 1)), options)


def exponential(M: int, *, center: float | None = None, tau: float = 1.0, sym: bool = True, **options: Any) -> Tensor:
    """The exponential window, which decays from its center by a factor of e every tau points."""
    positive("exponential", "tau", tau)
    if sym and center is not None:
        raise ArgumentError("exponential: center must be None if sym=True")

    def shape(n: Any, last: int) -> Any:
        return np.exp(-np.abs(n - (last / 2 if center is None else center)) / tau)

    return _made("exponential", M, sym, shape, options)


def gaussian(M: int, *, std: float = 1.0, sym: bool = True, **options: Any) -> Tensor:
    """The Gaussian window."""
    positive("gaussian", "std", std)
    return _made("gaussian", M, sym, lambda n, last: np.exp(-(((n - last / 2) / std) ** 2) / 2), options)


def kaiser(M: int, *, beta: float = 12.0, sym: bool = True, **options: Any) -> Tensor:
    """The Kaiser window."""
    at_least("kaiser", "beta", beta, 0)

    def shape(n: Any, last: int) -> Any:
        return np.i0(beta * np.sqrt(np.maximum(1 - (2 * n / last - 1) ** 2, 0))) / np.i0(beta)

    return _made("kaiser", M, sym, shape, options)


# --- the older forms at the top level, periodic by default -------------------------------------------


def hann_window(window_length: int, periodic: bool = True, **options: Any) -> Tensor:
    """The Hann window."""
    return hann(window_length, sym=not periodic, **options)


def hamming_window(
    window_length: int, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46, **options: Any
) -> Tensor:
    """The Hamming window: alpha minus beta times a cosine."""
    return general_cosine(window_length, a=[alpha, beta], sym=not periodic, **options)


def blackman_window(window_length: int, periodic: bool = True, **options: Any) -> Tensor:
    """The Blackman window."""
    return blackman(window_length, sym=not periodic, **options)


def bartlett_window(window_length: int, periodic: bool = True, **options: Any) -> Tensor:
    """The Bartlett window, a triangle."""
    return bartlett(window_length, sym=not periodic, **options)


def kaiser_window(window_length: int, periodic: bool = True, beta: float = 12.0, **options: Any) -> Tensor:
    """The Kaiser window."""
    return kaiser(window_length, beta=beta, sym=not periodic, **options)
