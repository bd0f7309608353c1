"""Windows of images as the columns of a matrix, and back: torch's unfold and fold."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gt import dtypes
from gt.errors import DTypeError, ShapeError
from gt.ops import rules
from gt.ops.families import windows
from gt.ops.record import Rng, Sample, Site, ops
from gt.ops.sharding import linear_op
from gt.program import Spec, spec

Sizes = tuple[int, ...]


def _attributes(name: str, kernel: Any, dilation: Any, padding: Any, stride: Any) -> tuple[Sizes, Sizes, Sizes, Sizes]:
    return (
        windows.positive(name, "kernel_size", kernel, 2),
        windows.positive(name, "dilation", dilation, 2),
        windows.padding(name, padding, 2),
        windows.positive(name, "stride", stride, 2),
    )


def _dtype(name: str, x: Spec, *others: dtypes.DType) -> None:
    if not x.dtype.is_differentiable and x.dtype not in others:
        raise DTypeError(f"{name}: is not defined for {x.dtype.name}; cast first, as in x.float()")


def _infer_im2col(x: Spec, *, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Spec:
    rules.tensor("unfold", x)
    _dtype("unfold", x, dtypes.bool_)
    kernel, dilation, padding, stride = _attributes("unfold", kernel, dilation, padding, stride)
    if x.ndim != 4:
        raise ShapeError(f"unfold: expected images (batch, channels, height, width), got shape {x.shape}")
    outs = windows.counts("unfold", x.shape[2:], kernel, stride, padding, dilation)
    return spec((x.shape[0], x.shape[1] * math.prod(kernel), math.prod(outs)), x.dtype)


def _infer_col2im(x: Spec, *, sizes: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Spec:
    rules.tensor("fold", x)
    _dtype("fold", x)
    kernel, dilation, padding, stride = _attributes("fold", kernel, dilation, padding, stride)
    sizes = windows.positive("fold", "output_size", sizes, 2)
    if x.ndim != 3:
        raise ShapeError(f"fold: expected columns (batch, channels * kernel, windows), got shape {x.shape}")
    if x.shape[1] % math.prod(kernel):
        raise ShapeError(f"fold: the size of columns must be a multiple of the kernel {kernel}, got {x.shape[1]}")
    outs = windows.counts("fold", sizes, kernel, stride, padding, dilation)
    if x.shape[2] != math.prod(outs):
        raise ShapeError(
            f"fold: images of {sizes} have {math.prod(outs)} windows, the input {x.shape} has {x.shape[2]}"
        )
    return spec((x.shape[0], x.shape[1] // math.prod(kernel), *sizes), x.dtype)


def _im2col_array(xp: Any, x: Any, *, kernel: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes) -> Any:
    outs = windows.counts("unfold", x.shape[2:], kernel, stride, padding, dilation)
    frame = windows.framed(xp, x, outs, kernel, stride, padding, dilation, 0)
    rows = [windows.taken(frame, at, outs, stride, dilation) for at in np.ndindex(*kernel)]
    return xp.stack(rows, 2).reshape(x.shape[0], x.shape[1] * len(rows), math.prod(outs))


def _col2im_array(
    xp: Any, x: Any, *, sizes: Sizes, kernel: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes
) -> Any:
    outs = windows.counts("fold", sizes, kernel, stride, padding, dilation)
    channels = x.shape[1] // math.prod(kernel)
    parts = x.reshape(x.shape[0], channels, *kernel, *outs)
    total = xp.zeros((x.shape[0], channels, *sizes), x.dtype)
    for at in windows.offsets(sizes, outs, kernel, stride, padding, dilation):
        part = parts[(slice(None), slice(None), *at)]
        total = total + windows.spread(xp, part, at, sizes, stride, padding, dilation)
    return total


def _im2col_torch(torch: Any, site: Site, **attrs: Any) -> Any:
    f = torch.ops.aten.im2col.default
    a = [attrs[k] for k in ("kernel", "dilation", "padding", "stride")]
    return lambda x: f(x, *a)


def _col2im_torch(torch: Any, site: Site, **attrs: Any) -> Any:
    f = torch.ops.aten.col2im.default
    a = [attrs[k] for k in ("sizes", "kernel", "dilation", "padding", "stride")]
    return lambda x: f(x, *a)


def _cases(rng: Rng) -> list[tuple[Any, dict[str, Any]]]:
    return [
        (rng.normal(size=(2, 3, 4, 5)), {"kernel": (2, 3), "dilation": (1, 1), "padding": (0, 0), "stride": (1, 1)}),
        (rng.normal(size=(1, 2, 5, 4)), {"kernel": (2, 2), "dilation": (2, 1), "padding": (1, 2), "stride": (2, 3)}),
        (rng.normal(size=(0, 2, 3, 3)), {"kernel": (2, 2), "dilation": (1, 1), "padding": (0, 0), "stride": (1, 1)}),
    ]


def _col2im_samples(rng: Rng) -> list[Sample]:
    samples: list[Sample] = []
    for x, a in _cases(rng):
        outs = windows.counts("fold", x.shape[2:], a["kernel"], a["stride"], a["padding"], a["dilation"])
        columns = (x.shape[0], x.shape[1] * math.prod(a["kernel"]), math.prod(outs))
        samples.append(((rng.normal(size=columns),), {"sizes": x.shape[2:], **a}))
    return samples


im2col = linear_op(
    "im2col",
    "The windows of images (batch, channels, height, width) as columns (batch, channels * kernel, windows).",
    infer=_infer_im2col,
    factors="n ... -> n ...",
    vjp=(lambda g, y, x, **attrs: ops.col2im(g, sizes=x.shape[2:], **attrs),),
    kernels={"array": _im2col_array, "torch": _im2col_torch},
    samples=lambda rng: [((x,), a) for x, a in _cases(rng)],
    flops=0,
)

col2im = linear_op(
    "col2im",
    "Images of the given sizes from columns; where windows overlap, their elements are added.",
    infer=_infer_col2im,
    factors="n ... -> n ...",
    vjp=(lambda u, z, g, *, sizes, **attrs: ops.im2col(u, **attrs),),
    kernels={"array": _col2im_array, "torch": _col2im_torch},
    samples=_col2im_samples,
)
