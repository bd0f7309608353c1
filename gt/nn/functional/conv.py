"""Convolutions, transposed convolutions, and sliding windows as the columns of a matrix (unfold, fold)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.client.compat.arguments import called
from gt.client.programs import kinds
from gt.client.record.recorder import apply, unary
from gt.client.tensor import Tensor
from gt.errors import ArgumentError, ShapeError
from gt.nn.functional.spatial import Sizes, batched, per_dim

__all__ = [
    "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "fold",
    "unfold",
]  # fmt: skip


def _conv(n: int, doc: str) -> Callable[..., Tensor]:
    op = f"conv{n}d"

    def function(
        input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
    ) -> Tensor:
        x, had_batch = batched(op, input, n)
        stride, dilation = per_dim(op, "stride", stride, n), per_dim(op, "dilation", dilation, n)
        if isinstance(padding, str):
            x, padding = _named(op, x, padding, weight, stride, dilation)
        else:
            padding = per_dim(op, "padding", padding, n)
        y = apply(kinds.conv[stride, padding, dilation, groups], (x, weight) if bias is None else (x, weight, bias))
        return y if had_batch else y.squeeze(0)

    return called(function, op, doc)


def _named(op: str, x: Any, padding: str, weight: Any, stride: Sizes, dilation: Sizes) -> tuple[Any, Sizes]:
    """The padding 'valid' or 'same' as numbers; x is padded by one at the end where 'same' is not symmetric."""
    if padding == "valid":
        return x, (0,) * len(stride)
    if padding != "same":
        raise ArgumentError(f"{op}: padding must be ints, 'same' or 'valid', got {padding!r}")
    if any(s != 1 for s in stride):
        raise ArgumentError(f"{op}: padding='same' requires stride 1, got {stride}")
    if weight.ndim != x.ndim:
        raise ShapeError(f"{op}: weight must have {x.ndim} dimensions, got shape {tuple(weight.shape)}")
    totals = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
    if any(t % 2 for t in totals):
        x = apply(kinds.pad[(0, 0, 0, 0, *(n for t in totals for n in (0, t % 2)))], (x, 0))
    return x, tuple(t // 2 for t in totals)


conv1d = _conv(1, "The cross-correlation of (N, C, L) with a weight (outputs, C / groups, K).")
conv2d = _conv(2, "The cross-correlation of images (N, C, H, W) with a weight (outputs, C / groups, KH, KW).")
conv3d = _conv(3, "The cross-correlation of volumes (N, C, D, H, W) with a weight (outputs, C / groups, KD, KH, KW).")


def conv_tbc(input: Any, weight: Any, bias: Any, pad: int = 0) -> Tensor:
    """conv1d of (time, batch, channels) with a weight (kernel, channels, outputs)."""
    y = conv1d(input.permute(1, 2, 0), weight.permute(2, 1, 0), bias, padding=pad)
    return y.permute(2, 0, 1)


def _conv_transpose(n: int, doc: str) -> Callable[..., Tensor]:
    op = f"conv_transpose{n}d"

    def function(
        input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
        groups: int = 1, dilation: Any = 1,
    ) -> Tensor:  # fmt: skip
        x, had_batch = batched(op, input, n)
        stride, padding = per_dim(op, "stride", stride, n), per_dim(op, "padding", padding, n)
        extra, dilation = per_dim(op, "output_padding", output_padding, n), per_dim(op, "dilation", dilation, n)
        if weight.ndim != n + 2:
            raise ShapeError(f"{op}: weight must have {n + 2} dimensions, got shape {tuple(weight.shape)}")
        if any(not 0 <= e < max(s, d) for e, s, d in zip(extra, stride, dilation, strict=True)):
            raise ArgumentError(
                f"{op}: output_padding must be smaller than stride {stride} or dilation {dilation}, got {extra}"
            )
        if any(e >= s for e, s in zip(extra, stride, strict=True)):
            # The output_padding is at least a stride: the same as a zero appended to the input.
            zeros = [k for e, s in zip(extra, stride, strict=True) for k in (0, e // s)]
            x = apply(kinds.pad[0, 0, 0, 0, *zeros], (x, 0))
            extra = tuple(e % s for e, s in zip(extra, stride, strict=True))
        rows = zip(x.shape[2:], weight.shape[2:], stride, padding, extra, dilation, strict=True)
        sizes = tuple((m - 1) * s - 2 * p + d * (k - 1) + e + 1 for m, k, s, p, e, d in rows)
        if any(size < 1 for size in sizes):
            raise ShapeError(
                f"{op}: an input of size {tuple(x.shape[2:])} with padding {padding} gives an empty output {sizes}"
            )
        kind = kinds.conv_dx[sizes, stride, padding, dilation, groups]
        y = apply(kind, (x, weight) if bias is None else (x, weight, bias))
        return y if had_batch else y.squeeze(0)

    return called(function, op, doc)


conv_transpose1d = _conv_transpose(1, "The transpose of conv1d, with a weight (C, outputs / groups, K).")
conv_transpose2d = _conv_transpose(2, "The transpose of conv2d, with a weight (C, outputs / groups, KH, KW).")
conv_transpose3d = _conv_transpose(3, "The transpose of conv3d, with a weight (C, outputs / groups, KD, KH, KW).")


def unfold(input: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Tensor:
    """The sliding windows of images (N, C, H, W) as the columns of a matrix (N, C * kernel, windows)."""
    x, had_batch = batched("unfold", input, 2)
    names = {"kernel_size": kernel_size, "dilation": dilation, "padding": padding, "stride": stride}
    y = unary(kinds.im2col[tuple(per_dim("unfold", name, v, 2) for name, v in names.items())], x)
    return y if had_batch else y.squeeze(0)


def fold(
    input: Any, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Tensor:
    """Columns back to images, summed where windows overlap: the transpose of unfold."""
    x, had_batch = batched("fold", input, 1)
    names = {
        "output_size": output_size, "kernel_size": kernel_size, "dilation": dilation, "padding": padding,
        "stride": stride,
    }  # fmt: skip
    y = unary(kinds.col2im[tuple(per_dim("fold", name, v, 2) for name, v in names.items())], x)
    return y if had_batch else y.squeeze(0)
