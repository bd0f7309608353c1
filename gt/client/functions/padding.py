"""Padding, with a constant (one op) or with elements of the tensor (joined slices)."""

from __future__ import annotations

from typing import Any

from gt import dtypes
from gt.client.compat.autocast import autocasts
from gt.client.compat.checks import one_of
from gt.client.compat.dims import sizes
from gt.client.functions import elementwise as ew
from gt.client.functions.creation import full, ones_like
from gt.client.functions.indexing import narrow
from gt.client.functions.shapes import cat, expand, flip
from gt.client.programs import kinds
from gt.client.record.recorder import apply
from gt.client.tensor import Tensor
from gt.errors import ArgumentError, ShapeError
from gt.ops.record import FLOAT32_ON_CPU

__all__ = ["constant_pad_nd"]
METHODS: list[str] = []


def _sides(op: str, input: Any, pad: Any) -> list[tuple[int, int]]:
    """The padding before and after each dimension; torch's argument begins with the last dimension."""
    given = sizes(op, (pad,))
    if len(given) % 2 or len(given) > 2 * input.ndim:
        raise ArgumentError(f"{op}: pad must have two sizes for each of at most {input.ndim} dimensions, got {given}")
    pairs = [(given[k], given[k + 1]) for k in range(0, len(given), 2)][::-1]
    return [(0, 0)] * (input.ndim - len(pairs)) + pairs


def constant_pad_nd(input: Any, pad: Any, value: Any = 0) -> Tensor:
    """Pad with a constant; a negative padding removes elements."""
    kind = kinds.pad[tuple(n for side in _sides("constant_pad_nd", input, pad) for n in side)]
    if isinstance(value, complex):  # programs contain no complex numbers
        inside = apply(kind, (ones_like(input, dtype=dtypes.bool_), False))
        return ew.where(inside, apply(kind, (input, 0)), full((), value, dtype=input.dtype))
    return apply(kind, (input, value))


def pad(input: Any, pad: Any, mode: str = "constant", value: Any = None) -> Tensor:
    """Pad with a constant, by reflection ('reflect'), with the edge ('replicate') or by wrapping ('circular')."""
    if mode == "constant":
        return constant_pad_nd(input, pad, 0 if value is None else value)
    one_of("pad", "mode", mode, "constant", "reflect", "replicate", "circular")
    if value:
        raise ArgumentError(f"pad: value must be None for mode={mode!r}, got {value}")
    in_float32 = mode == "replicate" or (mode == "reflect" and len(pad) <= 4)
    return (_own_elements_float32 if in_float32 else _own_elements)(input, pad, mode)


def _own_elements(input: Any, pad: Any, mode: str) -> Tensor:
    """A tensor padded with its own elements."""
    x = input
    for d, (before, after) in enumerate(_sides("pad", input, pad)):
        x = _padded(x, d, before, after, mode)
    return x if x is not input else input.clone()


_own_elements_float32 = autocasts(FLOAT32_ON_CPU)(_own_elements)


def _padded(x: Any, d: int, before: int, after: int, mode: str) -> Any:
    """Pad one dimension with its own elements."""
    if mode == "replicate" and min(before, after) < 0:  # torch pads first, then removes
        x = _padded(x, d, max(before, 0), max(after, 0), mode)
        return narrow(x, d, max(-before, 0), max(x.shape[d] + min(before, 0) + min(after, 0), 0))
    if before < 0 or after < 0:
        n = x.shape[d] + min(before, 0) + min(after, 0)
        if n < 0:
            raise ShapeError(f"pad: {before} and {after} remove more than dimension {d} of size {x.shape[d]} has")
        x = narrow(x, d, max(-before, 0), n)
        before, after = max(before, 0), max(after, 0)
    if not before and not after:
        return x
    n = x.shape[d]
    room = {"reflect": n - 1, "circular": n, "replicate": before + after if n else 0}[mode]
    if max(before, after) > room:
        raise ShapeError(f"pad: {mode} cannot pad dimension {d} of size {n} by {max(before, after)} elements")
    pieces = [x]
    if mode == "circular":
        left, right = narrow(x, d, n - before, before), narrow(x, d, 0, after)
    elif mode == "reflect":
        left, right = flip(narrow(x, d, 1, before), d), flip(narrow(x, d, n - 1 - after, after), d)
    else:
        shape = tuple(x.shape)
        left = expand(narrow(x, d, 0, 1), (*shape[:d], before, *shape[d + 1 :]))
        right = expand(narrow(x, d, n - 1, 1), (*shape[:d], after, *shape[d + 1 :]))
    if before:
        pieces.insert(0, left)
    if after:
        pieces.append(right)
    return cat(pieces, d)
