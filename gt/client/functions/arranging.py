"""Elements in another order, or several times: flips, rolls, repetitions. All of these are copies."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from gt.client.compat.dims import one_dim, sizes
from gt.client.functions import elementwise as ew
from gt.client.functions.scatter import index_select
from gt.client.functions.shapes import expand, flatten, flip, given, permute, reshape
from gt.client.programs.tree import Kinds
from gt.client.record.recorder import unary
from gt.errors import ArgumentError, DimError, DTypeError, ShapeError
from gt.ops import TABLE

if TYPE_CHECKING:
    from gt.client.tensor import Tensor

__all__ = ["fliplr", "flipud", "repeat_interleave", "roll", "rot90", "tile", "unravel_index"]
METHODS = [*{*__all__} - {"unravel_index"}, "repeat"]

_ROLL = Kinds(TABLE["roll"], "shifts", "dims")


def _several(op: str, dims: tuple[int, ...], ndim: int) -> tuple[int, ...]:
    found = tuple(one_dim(op, d, ndim) for d in dims)
    if len(set(found)) != len(found):
        raise DimError(f"{op}: {dims} names a dimension twice")
    return found


def fliplr(input: Any) -> Tensor:
    """The columns in reverse order."""
    if input.ndim < 2:
        raise ShapeError(f"fliplr: needs two dimensions, not {input.shape}")
    return flip(input, 1)


def flipud(input: Any) -> Tensor:
    """The rows in reverse order."""
    if input.ndim < 1:
        raise ShapeError("flipud: needs a dimension")
    return flip(input, 0)


def roll(input: Any, shifts: Any, dims: Any = None) -> Tensor:
    """The elements moved along dims; what leaves at one end comes in at the other."""
    moves = sizes("roll", (shifts,))
    if dims is None or (isinstance(dims, (tuple, list)) and not dims):
        if len(moves) != 1:
            raise ArgumentError(f"roll: shifts {shifts} need as many dims")
        return reshape(roll(flatten(input), moves, 0), input.shape)
    places = tuple(one_dim("roll", d, input.ndim) for d in sizes("roll", (dims,)))
    if len(places) != len(moves):
        raise ArgumentError(f"roll: {len(moves)} shifts for {len(places)} dims")
    if not input.ndim:
        return input.clone()
    total: dict[int, int] = {}  # torch allows a dimension twice
    for d, n in zip(places, moves, strict=True):
        total[d] = total.get(d, 0) + n
    return unary(_ROLL[tuple(n % max(input.shape[d], 1) for d, n in total.items()), tuple(total)], input)


def rot90(input: Any, k: int = 1, dims: Any = (0, 1)) -> Tensor:
    """Turned k times by a quarter, from the first of two dimensions towards the second."""
    places = _several("rot90", sizes("rot90", (dims,)), input.ndim)
    if len(places) != 2:
        raise DimError(f"rot90: dims are two dimensions, not {dims}")
    order = list(range(input.ndim))
    order[places[0]], order[places[1]] = places[1], places[0]
    turns = k % 4
    if turns == 1:
        return permute(flip(input, places[1]), order).clone()
    if turns == 2:
        return flip(input, places)
    return permute(flip(input, places[0]), order).clone() if turns == 3 else input.clone()


def repeat(input: Any, *repeats: Any, **named: Any) -> Tensor:
    """Copies of the tensor laid side by side, so many along each dimension."""
    times = given("repeat", repeats, named, "repeats")
    lead = len(times) - input.ndim
    if lead < 0:
        raise ShapeError(f"repeat: {len(times)} repeats for a tensor of {input.ndim} dimensions")
    if any(n < 0 for n in times):
        raise ArgumentError(f"repeat: repeats cannot be negative: {times}")
    shape = (1,) * lead + tuple(input.shape)
    apart = [n for size in shape for n in (1, size)]
    wide = [n for pair in zip(times, shape, strict=True) for n in pair]
    x = expand(reshape(input, tuple(apart)), tuple(wide))
    return reshape(x, tuple(a * b for a, b in zip(times, shape, strict=True))).clone()


def tile(input: Any, *dims: Any, **named: Any) -> Tensor:
    """Copies of the tensor laid side by side; a dimension that is not named is taken once."""
    times = given("tile", dims, named, "dims")
    return repeat(input, (1,) * (input.ndim - len(times)) + times)


def repeat_interleave(input: Any, repeats: Any = None, dim: Any = None, *, output_size: Any = None) -> Tensor:
    """Each element so many times in a row, along dim or along all. Repeats in a tensor are waited for."""
    if repeats is None:  # the repeats alone: how often each position comes
        return _repeated_positions(input, None)
    x = flatten(input) if dim is None else input
    d = one_dim("repeat_interleave", 0 if dim is None else dim, x.ndim)
    x = x if x.ndim else reshape(x, 1)
    n = x.shape[d]
    if hasattr(repeats, "_v") and math.prod(repeats.shape) == 1:
        repeats = repeats.item()
    if hasattr(repeats, "__index__") and not hasattr(repeats, "_v"):
        times = int(repeats)
        if times < 0:
            raise ArgumentError(f"repeat_interleave: repeats cannot be negative: {times}")
        shape = tuple(x.shape)
        wide = expand(reshape(x, (*shape[: d + 1], 1, *shape[d + 1 :])), (*shape[: d + 1], times, *shape[d + 1 :]))
        result = reshape(wide, (*shape[:d], n * times, *shape[d + 1 :])).clone()
    else:
        if not hasattr(repeats, "_v"):
            from gt.client.functions.creation import tensor

            repeats = tensor(repeats)
        if repeats.shape != (n,):
            raise ShapeError(f"repeat_interleave: {repeats.shape} repeats for {n} elements along dim {d}")
        result = index_select(x, d, _repeated_positions(repeats, output_size))
    if output_size is not None and result.shape[d] != output_size:
        raise ShapeError(f"repeat_interleave: output_size is {output_size}, the repeats make {result.shape[d]}")
    return result


def _repeated_positions(repeats: Any, output_size: Any) -> Tensor:
    from gt.client.functions.creation import from_numpy

    if repeats.ndim != 1 or repeats.dtype.name not in ("int64", "int32"):
        raise DTypeError("repeat_interleave: repeats are a tensor of one dimension, of int64 or int32")
    times = repeats.detach().numpy()
    if (times < 0).any():
        raise ArgumentError("repeat_interleave: repeats cannot be negative")
    return from_numpy(np.repeat(np.arange(len(times), dtype=times.dtype), times))


def unravel_index(indices: Any, shape: Any) -> tuple[Tensor, ...]:
    """Positions in a flattened tensor of this shape, as an index for each dimension."""
    if indices.dtype.is_differentiable or indices.dtype.name == "bool":
        raise DTypeError(f"unravel_index: indices are integers, not {indices.dtype.name}")
    dims = sizes("unravel_index", (shape,))
    if any(n < 0 for n in dims):
        raise ArgumentError(f"unravel_index: a size cannot be negative: {dims}")
    found: list[Tensor] = []
    rest = ew.cast(indices, "int64")
    for n in reversed(dims):
        found.append(ew.remainder(rest, max(n, 1)))
        rest = ew.floor_divide(rest, max(n, 1))
    return tuple(reversed(found))
