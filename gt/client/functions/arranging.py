"""Flipping, rolling and repeating elements. All of these functions copy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gt.client.compat.dims import different_dims, one_dim, sizes
from gt.client.functions import elementwise as ew
from gt.client.functions.creation import arange, from_numpy, tensor
from gt.client.functions.scatter import index_select
from gt.client.functions.shapes import expand, flatten, flip, given, permute, reshape
from gt.client.programs import kinds
from gt.client.record.recorder import unary
from gt.client.tensor import Tensor
from gt.client.views import strides
from gt.errors import ArgumentError, DimError, DTypeError, ShapeError

__all__ = ["as_strided", "fliplr", "flipud", "repeat_interleave", "roll", "rot90", "tile", "unravel_index"]
METHODS = [*{*__all__} - {"unravel_index"}, "repeat"]


def as_strided(input: Any, size: Any, stride: Any, storage_offset: int | None = None) -> Tensor:
    """The elements at given steps in the memory that the tensor would have in torch, as a copy. The tensor must fill
    its memory: a slice has gaps, of which GT knows nothing.

    >>> import gt
    >>> gt.as_strided(gt.arange(6), (2, 3), (1, 2))
    tensor([[0, 2, 4],
            [1, 3, 5]])
    """
    shape, steps = tuple(size), tuple(stride)
    if len(shape) != len(steps):
        raise ShapeError(f"as_strided: size has {len(shape)} dimensions, stride has {len(steps)}")
    first = 0 if storage_offset is None else int(storage_offset)
    if min([*shape, *steps, first], default=0) < 0:
        raise ArgumentError(f"as_strided: sizes, strides and offset must be >= 0, got {shape}, {steps}, {first}")
    own = strides.strides(input)
    order = sorted(range(input.ndim), key=lambda d: (-own[d], d))
    memory = input if order == list(range(input.ndim)) else permute(input, order)
    wide = [d for d in range(input.ndim) if memory.shape[d] > 1]
    if any(own[order[d]] != strides.in_order(memory.shape)[d] for d in wide):
        raise ArgumentError("as_strided: the tensor does not fill its memory; call contiguous() first")
    last = first + sum((n - 1) * s for n, s in zip(shape, steps, strict=True))
    if 0 not in shape and last >= math.prod(input.shape):
        raise ArgumentError(
            f"as_strided: size {shape} and stride {steps} reach element {last} of a tensor with "
            f"{math.prod(input.shape)} elements"
        )
    at: Any = tensor(first)
    for d, (n, s) in enumerate(zip(shape, steps, strict=True)):
        at = at + reshape(arange(n) * s, [n] + [1] * (len(shape) - 1 - d))
    return reshape(index_select(reshape(memory, [-1]), 0, reshape(at, [-1])), list(shape))


def fliplr(input: Any) -> Tensor:
    """Reverse the order of the columns (dimension 1)."""
    if input.ndim < 2:
        raise ShapeError(f"fliplr: expected at least two dimensions, got shape {input.shape}")
    return flip(input, 1)


def flipud(input: Any) -> Tensor:
    """Reverse the order of the rows (dimension 0)."""
    if input.ndim < 1:
        raise ShapeError("flipud: expected at least one dimension, got shape ()")
    return flip(input, 0)


def roll(input: Any, shifts: Any, dims: Any = None) -> Tensor:
    """Shift the elements along dims; elements that leave at one end enter at the other."""
    moves = sizes("roll", (shifts,))
    if dims is None or (isinstance(dims, (tuple, list)) and not dims):
        if len(moves) != 1:
            raise ArgumentError(f"roll: shifts {shifts} without dims; expected one shift, or a dimension for each")
        return reshape(roll(flatten(input), moves, 0), input.shape)
    places = tuple(one_dim("roll", d, input.ndim) for d in sizes("roll", (dims,)))
    if len(places) != len(moves):
        raise ArgumentError(f"roll: expected a shift for each of {len(places)} dims, got {len(moves)} shifts")
    if not input.ndim:
        return input.clone()
    total: dict[int, int] = {}  # torch allows a dimension twice
    for d, n in zip(places, moves, strict=True):
        total[d] = total.get(d, 0) + n
    return unary(kinds.roll[tuple(n % max(input.shape[d], 1) for d, n in total.items()), tuple(total)], input)


def rot90(input: Any, k: int = 1, dims: Any = (0, 1)) -> Tensor:
    """Rotate k times by 90 degrees in the plane of dims, from the first dimension towards the second."""
    places = different_dims("rot90", sizes("rot90", (dims,)), input.ndim)
    if len(places) != 2:
        raise DimError(f"rot90: dims must be two dimensions, got {dims}")
    order = list(range(input.ndim))
    order[places[0]], order[places[1]] = places[1], places[0]
    turns = k % 4
    if turns == 1:
        return permute(flip(input, places[1]), order).clone()
    if turns == 2:
        return flip(input, places)
    return permute(flip(input, places[0]), order).clone() if turns == 3 else input.clone()


def repeat(input: Any, *repeats: Any, **named: Any) -> Tensor:
    """Repeat the tensor along each dimension."""
    times = given("repeat", repeats, named, "repeats")
    lead = len(times) - input.ndim
    if lead < 0:
        raise ShapeError(f"repeat: expected at least {input.ndim} repeats, one per dimension, got {len(times)}")
    if any(n < 0 for n in times):
        raise ArgumentError(f"repeat: repeats must be >= 0, got {times}")
    shape = (1,) * lead + tuple(input.shape)
    apart = [n for size in shape for n in (1, size)]
    wide = [n for pair in zip(times, shape, strict=True) for n in pair]
    x = expand(reshape(input, tuple(apart)), tuple(wide))
    return reshape(x, tuple(a * b for a, b in zip(times, shape, strict=True))).clone()


def tile(input: Any, *dims: Any, **named: Any) -> Tensor:
    """Repeat the tensor along its last dimensions, as often as dims say."""
    times = given("tile", dims, named, "dims")
    return repeat(input, (1,) * (input.ndim - len(times)) + times)


def repeat_interleave(input: Any, repeats: Any = None, dim: Any = None, *, output_size: Any = None) -> Tensor:
    """Repeat each element, along dim or of the flattened tensor. Waits for the value of a tensor of repeats."""
    if repeats is None:  # input holds the repeats: return each position that often
        return _repeated_positions(input, None)
    x = flatten(input) if dim is None else input
    d = one_dim("repeat_interleave", 0 if dim is None else dim, x.ndim)
    x = x if x.ndim else reshape(x, 1)
    n = x.shape[d]
    if isinstance(repeats, Tensor) and math.prod(repeats.shape) == 1:
        repeats = repeats.item()
    if hasattr(repeats, "__index__") and not isinstance(repeats, Tensor):
        times = int(repeats)
        if times < 0:
            raise ArgumentError(f"repeat_interleave: repeats must be >= 0, got {times}")
        shape = tuple(x.shape)
        wide = expand(reshape(x, (*shape[: d + 1], 1, *shape[d + 1 :])), (*shape[: d + 1], times, *shape[d + 1 :]))
        result = reshape(wide, (*shape[:d], n * times, *shape[d + 1 :])).clone()
    else:
        if not isinstance(repeats, Tensor):
            repeats = tensor(repeats)
        if repeats.shape != (n,):
            raise ShapeError(f"repeat_interleave: repeats must have shape ({n},) for dim {d}, got {repeats.shape}")
        result = index_select(x, d, _repeated_positions(repeats, output_size))
    if output_size is not None and result.shape[d] != output_size:
        raise ShapeError(f"repeat_interleave: output_size is {output_size}, but the repeats sum to {result.shape[d]}")
    return result


def _repeated_positions(repeats: Any, output_size: Any) -> Tensor:
    if repeats.ndim != 1 or repeats.dtype.name not in ("int64", "int32"):
        got = f"{repeats.dtype.name} of shape {tuple(repeats.shape)}"
        raise DTypeError(f"repeat_interleave: repeats must be a vector of int64 or int32, got {got}")
    times = repeats.detach().numpy()
    if (times < 0).any():
        raise ArgumentError(f"repeat_interleave: repeats must be >= 0, got {times.min()}")
    return from_numpy(np.repeat(np.arange(len(times), dtype=times.dtype), times))


def unravel_index(indices: Any, shape: Any) -> tuple[Tensor, ...]:
    """Convert flat indices into a tensor of the given shape to one index tensor per dimension."""
    if indices.dtype.is_differentiable or indices.dtype.name == "bool":
        raise DTypeError(f"unravel_index: indices must be integers, got {indices.dtype.name}")
    dims = sizes("unravel_index", (shape,))
    if any(n < 0 for n in dims):
        raise ArgumentError(f"unravel_index: sizes must be >= 0, got {dims}")
    found: list[Tensor] = []
    rest = ew.cast(indices, "int64")
    for n in reversed(dims):
        found.append(ew.remainder(rest, max(n, 1)))
        rest = ew.floor_divide(rest, max(n, 1))
    return tuple(reversed(found))
