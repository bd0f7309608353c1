"""The strides that a tensor would have in torch, and whether a new shape of it is a view or a copy.

Here values have no strides; what a user can see of them is which tensors share memory. So they are
worked out from how a view was taken: a tensor that is not a view is contiguous.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from gt.client.programs.tree import Kind
from gt.client.tensor import Tensor

Shape = tuple[int, ...]


def in_order(shape: Shape) -> Shape:
    """The strides of a contiguous tensor.

    >>> in_order((2, 3, 4))
    (12, 4, 1)
    """
    strides, n = [], 1
    for size in reversed(shape):
        strides.append(n)
        n *= max(size, 1)
    return tuple(reversed(strides))


def strides(t: Tensor) -> Shape:
    """By how many elements the memory moves on with each dimension."""
    alias = t._x
    if alias is None or alias.base is None or alias.kind is None:
        return in_order(t.shape)
    base = alias.base
    return _through(alias.kind, base.shape, strides(base), t.shape)


def is_contiguous(t: Tensor) -> bool:
    """Whether the elements are in order in memory, without gaps."""
    alias = t._x
    if alias is None or alias.base is None:
        return True
    shape = t.shape
    if 0 in shape:
        return True
    return all(n == 1 or a == b for n, a, b in zip(shape, strides(t), in_order(shape), strict=True))


def reshapes_in_place(t: Tensor, shape: Shape) -> bool:
    """Whether `t.reshape(shape)` shares memory with t, as torch decides it."""
    alias = t._x
    if alias is None or alias.base is None:
        return True
    return _viewed(t.shape, strides(t), shape) is not None


@functools.lru_cache(maxsize=4096)
def _through(kind: Kind, shape: Shape, old: Shape, result: Shape) -> Shape:
    """The strides of a view taken by `kind` of a tensor with this shape and these strides."""
    attrs: Any = kind.attrs
    match kind.op.name:
        case "permute":
            return tuple(old[d] for d in attrs["dims"])
        case "expand":
            lead = len(result) - len(shape)
            return (0,) * lead + tuple(0 if n == 1 != result[lead + i] else old[i] for i, n in enumerate(shape))
        case "split":
            return old
        case "unbind" | "select_at":
            return tuple(s for d, s in enumerate(old) if d != attrs["dim"])
        case "slice":
            steps = dict(zip(attrs["dims"], attrs["steps"], strict=True))
            return tuple(s * steps.get(d, 1) for d, s in enumerate(old) if d not in attrs["drop"])
        case "unfold":
            dim = attrs["dim"]
            return (*old[:dim], old[dim] * attrs["step"], *old[dim + 1 :], old[dim])
        case "diagonal":
            one, two = attrs["dim1"], attrs["dim2"]
            return (*(s for d, s in enumerate(old) if d not in (one, two)), old[one] + old[two])
        case "reshape":
            return _viewed(shape, old, result) or in_order(result)
    return in_order(result)


def _viewed(shape: Shape, old: Shape, new: Shape) -> Shape | None:
    """The strides of a new shape on the same memory; None if there are none.

    Dimensions that are one dimension in memory (a chunk) can be divided anew; a new dimension cannot
    cross from one chunk to another.
    """
    if 0 in shape:
        return in_order(new)
    chunks: list[list[int]] = []  # [elements, stride], the last dimension's first
    for n, s in zip(reversed(shape), reversed(old), strict=True):
        if n == 1:
            continue
        if chunks and s == chunks[-1][0] * chunks[-1][1]:
            chunks[-1][0] *= n
        else:
            chunks.append([n, s])
    result: list[int] = []
    k, taken = 0, 1  # in which chunk, and how much of it is used up
    for n in reversed(new):
        if n != 1 and k < len(chunks) and taken == chunks[k][0]:
            k, taken = k + 1, 1
        if k == len(chunks):
            result.append(1 if not result else result[-1])
            continue
        size, stride = chunks[k]
        result.append(taken * stride)
        taken *= n
        if size % taken:
            return None
    return tuple(reversed(result)) if math.prod(new) == math.prod(shape) else None
