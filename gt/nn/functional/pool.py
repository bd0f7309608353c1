"""Pooling: the maximum, the mean or the p-norm of windows; and max unpooling."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from gt.client.compat.arguments import called
from gt.client.compat.autocast import autocasts
from gt.client.functions import creation, randoms
from gt.client.functions import elementwise as ew
from gt.client.programs import kinds
from gt.client.record.recorder import apply, unary
from gt.client.tensor import Tensor
from gt.errors import ArgumentError, ShapeError
from gt.nn.functional.spatial import Sizes, batched, per_dim
from gt.ops.record import FLOAT32_ON_CPU

__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
    "adaptive_max_pool1d_with_indices", "adaptive_max_pool2d", "adaptive_max_pool2d_with_indices",
    "adaptive_max_pool3d", "adaptive_max_pool3d_with_indices", "avg_pool1d", "avg_pool2d", "avg_pool3d",
    "fractional_max_pool2d", "fractional_max_pool2d_with_indices", "fractional_max_pool3d",
    "fractional_max_pool3d_with_indices", "lp_pool1d", "lp_pool2d", "lp_pool3d", "max_pool1d",
    "max_pool1d_with_indices", "max_pool2d", "max_pool2d_with_indices", "max_pool3d", "max_pool3d_with_indices",
    "max_unpool1d", "max_unpool2d", "max_unpool3d",
]  # fmt: skip

Pool = Callable[..., Any]


def _stride(op: str, stride: Any, kernel: Sizes) -> Sizes:
    """The stride; the kernel size by default."""
    if stride is None or (isinstance(stride, (list, tuple)) and not stride):
        return kernel
    return per_dim(op, "stride", stride, len(kernel))


# --- the largest element -----------------------------------------------------------------------------


def _pair(function: Callable[..., tuple[Tensor, Tensor]], name: str, doc: str) -> tuple[Pool, Pool]:
    """torch's two functions: one that returns values, and indices if return_indices; one that returns both always."""
    where = function.__code__.co_varnames.index("return_indices")

    @functools.wraps(function)
    def one(*args: Any, **names: Any) -> Any:
        both = function(*args, **names)
        chosen = names.get("return_indices", args[where] if len(args) > where else False)
        return both if chosen else both[0]

    plain = called(one, name, f"{doc}; with return_indices=True also its index.")
    return plain, called(function, name + "_with_indices", f"{doc}, and its index.")


def _max_pool(n: int) -> tuple[Pool, Pool]:
    op = f"max_pool{n}d"

    def function(
        input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        x, had_batch = batched(op, input, n)
        kernel = per_dim(op, "kernel_size", kernel_size, n)
        padding, dilation = per_dim(op, "padding", padding, n), per_dim(op, "dilation", dilation, n)
        y, where = apply(kinds.max_pool[kernel, _stride(op, stride, kernel), padding, dilation, bool(ceil_mode)], (x,))
        return (y, where) if had_batch else (y.squeeze(0), where.squeeze(0))

    return _pair(function, op, "The maximum of each window")


max_pool1d, max_pool1d_with_indices = _max_pool(1)
max_pool2d, max_pool2d_with_indices = _max_pool(2)
max_pool3d, max_pool3d_with_indices = _max_pool(3)


def _unpool(n: int) -> Pool:
    op = f"max_unpool{n}d"

    def function(
        input: Any, indices: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, output_size: Any = None
    ) -> Tensor:
        x, had_batch = batched(op, input, n)
        if tuple(indices.shape) != tuple(input.shape):
            raise ShapeError(
                f"{op}: input and indices must have the same shape, got {tuple(input.shape)} and {tuple(indices.shape)}"
            )
        kernel = per_dim(op, "kernel_size", kernel_size, n)
        steps, padding = _stride(op, stride, kernel), per_dim(op, "padding", padding, n)
        rows = zip(x.shape[2:], kernel, steps, padding, strict=True)
        sizes = tuple((m - 1) * s + k - 2 * p for m, k, s, p in rows)
        if output_size is not None:
            wanted = tuple(int(m) for m in output_size)[-n:]
            if len(wanted) != n or any(abs(a - b) >= s for a, b, s in zip(wanted, sizes, steps, strict=True)):
                raise ShapeError(f"{op}: output_size must be within one stride of {sizes}, got {tuple(output_size)}")
            sizes = wanted
        flat = (*x.shape[:2], math.prod(x.shape[2:]))
        empty = creation.zeros((*x.shape[:2], math.prod(sizes)), dtype=x.dtype)
        y = apply(kinds.scatter[2], (empty, indices.reshape(flat), x.reshape(flat))).reshape((*x.shape[:2], *sizes))
        return y if had_batch else y.squeeze(0)

    return autocasts(FLOAT32_ON_CPU)(
        called(function, op, f"The partial inverse of max_pool{n}d: each maximum at its index, zeros elsewhere.")
    )


max_unpool1d, max_unpool2d, max_unpool3d = _unpool(1), _unpool(2), _unpool(3)


def _fractional(n: int) -> tuple[Pool, Pool]:
    op = f"fractional_max_pool{n}d"

    def function(
        input: Any, kernel_size: Any, output_size: Any = None, output_ratio: Any = None, return_indices: bool = False,
        _random_samples: Any = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        x, had_batch = batched(op, input, n)
        kernel = per_dim(op, "kernel_size", kernel_size, n)
        outs = _fractions(op, x.shape[2:], kernel, output_size, output_ratio)
        samples = _random_samples if _random_samples is not None else randoms.rand(*x.shape[:2], n, dtype=x.dtype)
        samples = samples.reshape((*x.shape[:2], n))
        position: Any = 0  # the index of every element of every window: (batch, channels, windows ..., kernel ...)
        for d in range(n):
            sample = samples.select(2, d if n == 3 else n - 1 - d)
            begin = _begins(sample, x.shape[2 + d], outs[d], kernel[d]).reshape(
                (*x.shape[:2], *(outs[d] if i == d else 1 for i in range(2 * n)))
            )
            within = creation.arange(kernel[d]).reshape([kernel[d] if i == n + d else 1 for i in range(2 * n)])
            position = position * x.shape[2 + d] + (begin + within)
        flat = (*x.shape[:2], math.prod(outs) * math.prod(kernel))
        each = (*x.shape[:2], *outs, math.prod(kernel))
        rows = x.reshape((*x.shape[:2], math.prod(x.shape[2:])))
        values = apply(kinds.gather[2], (rows, position.reshape(flat))).reshape(each)
        best = values.argmax(-1, keepdim=True)
        y = apply(kinds.gather[n + 2], (values, best)).squeeze(-1)
        where = apply(kinds.gather[n + 2], (position.reshape(each), best)).squeeze(-1)
        return (y, where) if had_batch else (y.squeeze(0), where.squeeze(0))

    plain, both = _pair(function, op, "The maximum of windows that start at random positions, which differ per channel")
    return autocasts(FLOAT32_ON_CPU)(plain), autocasts(FLOAT32_ON_CPU)(both)


def _fractions(op: str, sizes: Sizes, kernel: Sizes, output_size: Any, ratio: Any) -> Sizes:
    """The number of windows per dimension, as given or from the ratio."""
    n = len(kernel)
    if (output_size is None) == (ratio is None):
        raise ArgumentError(f"{op}: expected either output_size or output_ratio")
    if output_size is None:
        ratios = (ratio,) * n if isinstance(ratio, float) else tuple(ratio)
        if len(ratios) != n or any(not 0 < r < 1 for r in ratios):
            raise ArgumentError(f"{op}: output_ratio must be {n} numbers between 0 and 1, got {ratio}")
        output_size = tuple(int(m * r) for m, r in zip(sizes, ratios, strict=True))
    outs = per_dim(op, "output_size", output_size, n)
    if any(out + k - 1 > m for out, k, m in zip(outs, kernel, sizes, strict=True)):
        raise ShapeError(f"{op}: {outs} windows of size {kernel} do not fit in an input of size {tuple(sizes)}")
    return outs


def _begins(sample: Any, size: int, out: int, k: int) -> Any:
    """The start of each window in one dimension, from one random number per channel; the last window is at the end."""
    if out == 1:
        return creation.full((*sample.shape, 1), size - k, dtype="int64")
    alpha = (size - k) / (out - 1)
    i = creation.arange(out)
    u = sample.unsqueeze(-1)
    begin = ((u + i) * alpha).long() - (u * alpha).long()
    return ew.where(i == out - 1, size - k, begin)


fractional_max_pool2d, fractional_max_pool2d_with_indices = _fractional(2)
fractional_max_pool3d, fractional_max_pool3d_with_indices = _fractional(3)


# --- means and norms ---------------------------------------------------------------------------------


def _avg_pool(
    n: int, input: Any, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool, include_pad: bool, divisor: Any
) -> Tensor:
    op = f"avg_pool{n}d"
    x, had_batch = batched(op, input, n)
    kernel = per_dim(op, "kernel_size", kernel_size, n)
    steps, padding = _stride(op, stride, kernel), per_dim(op, "padding", padding, n)
    y = unary(kinds.avg_pool[kernel, steps, padding, bool(ceil_mode), bool(include_pad), divisor], x)
    return y if had_batch else y.squeeze(0)


def avg_pool1d(
    input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:  # fmt: skip
    """The mean of each window."""
    return _avg_pool(1, input, kernel_size, stride, padding, ceil_mode, count_include_pad, None)


def _avg_pool_of(n: int) -> Pool:
    def function(
        input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> Tensor:  # fmt: skip
        return _avg_pool(n, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)

    return called(function, f"avg_pool{n}d", "The mean of each window, or its sum over divisor_override.")


avg_pool2d, avg_pool3d = _avg_pool_of(2), _avg_pool_of(3)


def _lp_pool(n: int) -> Pool:
    op = f"lp_pool{n}d"

    def function(input: Any, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False) -> Tensor:
        kernel = per_dim(op, "kernel_size", kernel_size, n)
        mean = _avg_pool(n, input**norm_type, kernel, stride, 0, ceil_mode, True, None)
        return (mean.sign() * mean.abs().relu() * math.prod(kernel)) ** (1.0 / norm_type)

    return called(function, op, "The p-norm of each window.")


lp_pool1d, lp_pool2d, lp_pool3d = _lp_pool(1), _lp_pool(2), _lp_pool(3)


# --- to a given output size --------------------------------------------------------------------------


def _output_size(op: str, output_size: Any, x: Any, n: int) -> Sizes:
    """The output size per dimension; None keeps the size of the input."""
    given = output_size if isinstance(output_size, (list, tuple)) else (output_size,) * n
    filled = [m if s is None else s for s, m in zip(given, x.shape[-n:], strict=False)]
    if len(given) != n:
        raise ArgumentError(f"{op}: output_size must be an int or {n} ints, got {output_size!r}")
    return per_dim(op, "output_size", filled, n)


def _adaptive_avg(n: int) -> Pool:
    op = f"adaptive_avg_pool{n}d"

    def function(input: Any, output_size: Any) -> Tensor:
        x, had_batch = batched(op, input, n)
        sizes = _output_size(op, output_size, x, n)
        if all(s == 1 for s in sizes) and 0 not in x.shape[2:] and x.dtype.is_floating_point:
            return input.mean(tuple(range(-n, 0)), keepdim=True)
        y = unary(kinds.interpolate[sizes, "area", False, None], x)
        return y if had_batch else y.squeeze(0)

    named = called(function, op, "Average pooling to output_size elements.")
    return autocasts(FLOAT32_ON_CPU)(named) if n == 3 else named


adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = _adaptive_avg(1), _adaptive_avg(2), _adaptive_avg(3)


def _adaptive_max(n: int) -> tuple[Pool, Pool]:
    op = f"adaptive_max_pool{n}d"

    def function(input: Any, output_size: Any, return_indices: bool = False) -> tuple[Tensor, Tensor]:
        x, had_batch = batched(op, input, n)
        y, where = apply(kinds.adaptive_max_pool[_output_size(op, output_size, x, n)], (x,))
        return (y, where) if had_batch else (y.squeeze(0), where.squeeze(0))

    return _pair(function, op, "Max pooling to output_size elements: the maximum of each window")


adaptive_max_pool1d, adaptive_max_pool1d_with_indices = _adaptive_max(1)
adaptive_max_pool2d, adaptive_max_pool2d_with_indices = _adaptive_max(2)
adaptive_max_pool3d, adaptive_max_pool3d_with_indices = _adaptive_max(3)
