"""Windows that slide over the last dimensions of a tensor: their positions, and how array kernels read them.

A window has `kernel` elements along each dimension, `dilation` apart; the next window begins `stride` further.
What kernels do with windows they do offset by offset: `taken` is the element at one offset of all windows,
`spread` its transpose. So nothing is written in place, and the same code serves numpy and jax.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from gt.errors import ArgumentError, ShapeError
from gt.ops import rules

Sizes = tuple[int, ...]


def positive(op: str, name: str, value: Any, count: int) -> Sizes:
    """An attribute of one number per dimension, all at least 1."""
    sizes = rules.ints(op, name, value, count)
    if any(not 1 <= n <= rules.MAX_SIZE for n in sizes):
        raise ArgumentError(f"{op}: {name} must be positive, got {sizes}")
    return sizes


def padding(op: str, value: Any, count: int) -> Sizes:
    sizes = rules.ints(op, "padding", value, count)
    if any(not 0 <= n <= rules.MAX_SIZE for n in sizes):
        raise ArgumentError(f"{op}: padding must be >= 0, got {sizes}")
    return sizes


def parts(kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, border: str) -> dict[str, Any]:
    """For `window` of a record: the part of an input that some windows see, along the factors h0, h1, ..."""

    def along(i: int) -> Any:
        reach = dilation[i] * (kernel[i] - 1) + 1
        return lambda k, lo, hi: (lo * stride[i] - padding[i], (hi - 1) * stride[i] - padding[i] + reach, border)

    return {f"h{i}": along(i) for i in range(len(kernel))}


def count(n: int, k: int, stride: int, pad: int, dilation: int, ceil: bool = False) -> int:
    """How many windows fit into n elements with `pad` more at each end; with `ceil`, also one that begins inside
    and ends outside.

    >>> count(5, 2, 2, 0, 1), count(5, 2, 2, 0, 1, ceil=True)
    (2, 3)
    """
    rest = n + 2 * pad - dilation * (k - 1) - 1
    if rest < 0 and not ceil:
        return 0
    windows = (rest + (stride - 1 if ceil else 0)) // stride + 1
    return windows - 1 if ceil and (windows - 1) * stride >= n + pad else windows


def counts(
    op: str, sizes: Sizes, kernel: Sizes, stride: Sizes, pad: Sizes, dilation: Sizes, ceil: bool = False
) -> Sizes:
    """`count` of every dimension; raises if there is none."""
    rows = zip(sizes, kernel, stride, pad, dilation, strict=True)
    found = tuple(count(n, k, s, p, d, ceil) for n, k, s, p, d in rows)
    if any(n < 1 for n in found):
        reach = tuple(d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True))
        raise ShapeError(
            f"{op}: a window of {reach} does not fit into an input of {sizes} with padding {pad}; use a smaller kernel"
        )
    return found


# -- array kernels ---------------------------------------------------------------------------


def offsets(sizes: Sizes, outs: Sizes, kernel: Sizes, stride: Sizes, pad: Sizes, dilation: Sizes) -> Iterator[Sizes]:
    """The places in a kernel that meet the input in some window; the others see nothing but padding."""
    live = []
    for n, out, k, s, p, d in zip(sizes, outs, kernel, stride, pad, dilation, strict=True):
        first = max(0, -((-(p - (out - 1) * s)) // d))
        live.append(range(first, min(k, -(-(p + n) // d))))
    return itertools.product(*live)


def framed(xp: Any, x: Any, outs: Sizes, kernel: Sizes, stride: Sizes, pad: Sizes, dilation: Sizes, value: Any) -> Any:
    """x with `pad` elements of a value before it, and behind it as many as the last window reaches."""
    lead = x.ndim - len(outs)
    widths = [(0, 0)] * lead
    for n, out, k, s, p, d in zip(x.shape[lead:], outs, kernel, stride, pad, dilation, strict=True):
        widths.append((p, max(0, (out - 1) * s + d * (k - 1) + 1 - n - p)))
    return xp.pad(x, widths, constant_values=value)


def taken(x: Any, at: Sizes, outs: Sizes, stride: Sizes, dilation: Sizes) -> Any:
    """Of a framed x: the element at offset `at` of every window."""
    rows = zip(at, outs, stride, dilation, strict=True)
    return x[(..., *(slice(a * d, a * d + (n - 1) * s + 1, s) for a, n, s, d in rows))]


def spread(xp: Any, g: Any, at: Sizes, sizes: Sizes, stride: Sizes, pad: Sizes, dilation: Sizes) -> Any:
    """The transpose of framing and taking: zeros of `sizes` with g where the windows have offset `at`."""
    lead = g.ndim - len(sizes)
    for i, (a, n, s, p, d) in enumerate(zip(at, sizes, stride, pad, dilation, strict=True)):
        axis = lead + i
        if s > 1:  # zeros between the elements
            shape = (*g.shape[:axis], g.shape[axis] * s, *g.shape[axis + 1 :])
            none = [(0, 0)] * (axis + 1)
            g = xp.pad(xp.expand_dims(g, axis + 1), [*none, (0, s - 1), *[(0, 0)] * (g.ndim - axis - 1)]).reshape(shape)
        first = a * d - p  # the position of the first window's element; those outside were padding
        low, high = max(0, -first), min(g.shape[axis], n - first)
        cut = g[(slice(None),) * axis + (slice(low, max(low, high)),)]
        before = max(0, first)
        widths = [(0, 0)] * g.ndim
        widths[axis] = (before, n - before - cut.shape[axis])
        g = xp.pad(cut, widths)
    return g
