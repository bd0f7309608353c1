"""The memory format of images in torch: channel after channel, or with the channels of a pixel side by side (channels
last).

On a CPU much is faster on the second: max_pool several times, batch_norm and convolutions of few channels. But norms of
small groups and convolutions with large weights are slower. What has no reason to choose leaves its results in the
order that it found, as torch does. So the first convolution of a network, which is thin, decides for what follows it.
On a GPU the matrix units convolve the second alone: given the first, cuDNN turns every operand around, and back.
A kernel that asks torch for a gradient must say which order that shall have.
"""

from __future__ import annotations

from typing import Any

from gt import dtypes
from gt.program import Spec

#: What oneDNN convolves. For other types torch has loops of its own, which gain nothing.
FAST = (dtypes.float32, dtypes.bfloat16)
#: What a GPU's matrix units take.
MATRIX = (dtypes.float32, dtypes.bfloat16, dtypes.float16)
#: Channel after channel, oneDNN fills up to so many with zeros.
BLOCK = 16


def choose(torch: Any, device: str, x: Spec, w: Spec, y: Spec) -> Any:
    """In which order to convolve x with w to y, as torch's memory format; None for the one that they are in."""
    if device != "cpu":
        whole = x.shape[1:2] == w.shape[1:2]  # in groups of channels it is slower so
        return torch.channels_last if whole and x.ndim == 4 and x.dtype in MATRIX else None
    if x.ndim != 4 or x.dtype not in FAST:
        return None
    if w.size > x.size + y.size:  # it is put in order at every call: that would cost more than is gained
        return torch.contiguous_format
    thin = min(w.shape[1], y.shape[1]) < BLOCK  # counted in a group: depthwise ones are thin too
    return torch.channels_last if thin and max(w.shape[2:]) > 1 else None


def put(x: Any, order: Any) -> Any:
    """x in that order: itself if it is, or if any will do."""
    return x if order is None else x.contiguous(memory_format=order)


def order_of(torch: Any, x: Any) -> Any:
    """The order that x is in."""
    last = x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    return torch.channels_last if last else torch.contiguous_format


def empty(torch: Any, like: Any, shape: tuple[int, ...], order: Any) -> Any:
    """Memory of the type of another tensor: for where torch wants to see one, and looks at its form alone."""
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=order)
