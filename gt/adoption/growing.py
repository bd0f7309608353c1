"""Sequences that get longer by one: `ids = torch.cat([ids, token], dim=-1)`, as loops that generate tokens have them.

Each length would be another shape, and so another program. Instead the sequence is the front of a tensor with room for
more: a token is written behind its end, at a place that is no part of the program, and the last tokens are read there.

Law: a place of a room is written once. A sequence that is not its room's longest, or that became a tensor of its own,
begins a new room when it gets longer.
"""

from __future__ import annotations

from typing import Any

import torch

import gt
from gt.adoption.tensor import ADOPTED, Growing, native
from gt.client.tensor import Tensor

LEAST = 128  #: The least length of a room; it doubles when it is full.

_new: Any = torch._C.TensorBase.__new__


class GrowthRoom:
    """A tensor with room behind the end of a sequence."""

    def __init__(self, start: Tensor) -> None:
        room, self.used = LEAST, int(start.shape[-1])
        while room <= self.used:
            room *= 2
        self.buffer = gt.zeros((*start.shape[:-1], room), dtype=start.dtype)
        self.buffer[..., : self.used] = start

    def front(self, length: int) -> Tensor:
        """The sequence as a tensor of its own."""
        with gt.no_grad():
            return self.buffer[..., :length].clone()

    def end(self, index: Any, length: int) -> Tensor | None:
        """The last elements of a sequence, if these are meant by `x[:, -1:]`, `x[:, -1]` or `x[..., 5:]`."""
        *others, last = index if isinstance(index, tuple) else (index,)
        whole = all(isinstance(i, slice) and i == slice(None) for i in others)
        if not (whole and len(others) == self.buffer.ndim - 1) and others != [Ellipsis]:
            return None
        if type(last) is int and -length <= last < length:
            return self.buffer[..., last % length]
        if (
            type(last) is slice
            and last.step in (None, 1)
            and all(type(i) in (int, type(None)) for i in (last.start, last.stop))
        ):
            begin, end, _ = last.indices(length)
            return self.buffer[..., begin:end] if 0 < begin < end else None
        return None


def longer(tensors: Any, dim: Any) -> Growing | None:
    """A sequence and the next of its elements, if that is what is put together."""
    if len(tensors) != 2:
        return None
    x, y = tensors
    if not (isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) and x.dtype is y.dtype is torch.int64):
        return None
    n = x.ndim
    if (
        not 0 < n == y.ndim
        or dim not in (-1, n - 1)
        or y.shape[-1] != 1
        or x.shape[:-1] != y.shape[:-1]
        or 0 in x.shape
    ):
        return None
    if type(x) not in ADOPTED and type(y) not in ADOPTED:
        return None
    length = int(x.shape[-1])
    fits = type(x) is Growing and x.whole is None and x.room.used == length < x.room.buffer.shape[-1]
    made: Growing = _new(Growing)
    made.room, made.whole, made.length = x.room if fits else GrowthRoom(native(x)), None, length + 1
    made.room.buffer[..., length : length + 1] = native(y)
    made.room.used = length + 1
    return made
