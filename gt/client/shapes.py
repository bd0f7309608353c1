"""Changing the shape and putting tensors together. What is a view in torch is a view here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gt.client.dims import one_dim, sizes, some_dims
from gt.client.recorder import apply, unary
from gt.client.tree import Kinds
from gt.client.views import take
from gt.errors import ArgumentError, DimError, ShapeError
from gt.ops import TABLE

if TYPE_CHECKING:
    from gt.client.tensor import Tensor

__all__ = [
    "broadcast_to", "cat", "chunk", "flatten", "flip", "movedim", "permute", "repeat", "reshape", "split", "squeeze",
    "stack", "swapaxes", "t", "transpose", "tril", "triu", "unbind", "unflatten", "unsqueeze",
]  # fmt: skip
METHODS = [*{*__all__} - {"cat", "stack"}, "view", "expand", "expand_as"]
INPLACE = ["tril", "triu"]

_RESHAPE = Kinds(TABLE["reshape"], "shape")
_PERMUTE = Kinds(TABLE["permute"], "dims")
_EXPAND = Kinds(TABLE["expand"], "shape")
_CAT = Kinds(TABLE["cat"], "dim")
_SPLIT = Kinds(TABLE["split"], "sizes", "dim")
_FLIP = Kinds(TABLE["flip"], "dims")
_TRIL = Kinds(TABLE["tril"], "diagonal")
_TRIU = Kinds(TABLE["triu"], "diagonal")


def reshape(input: Any, *shape: Any) -> Tensor:
    """The same elements in another shape; one size may be -1."""
    return _reshape("reshape", input, sizes("reshape", shape))


def view(input: Any, *shape: Any) -> Tensor:
    """The same elements in another shape; with a dtype, the elements cast to it."""
    return _reshape("view", input, sizes("view", shape))


def _reshape(op: str, x: Any, shape: tuple[int, ...]) -> Tensor:
    if -1 in shape:
        known = math.prod(n for n in shape if n != -1)
        size = math.prod(x.shape)
        if shape.count(-1) > 1 or known == 0 or size % known:
            raise ShapeError(f"{op}: {x.shape} with {size} elements cannot become {shape}")
        shape = tuple(size // known if n == -1 else n for n in shape)
    return take(_RESHAPE[shape], x)


def flatten(input: Any, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Join the dimensions from start_dim to end_dim into one."""
    a, b = one_dim("flatten", start_dim, input.ndim), one_dim("flatten", end_dim, input.ndim)
    if a > b:
        raise ArgumentError(f"flatten: start_dim {start_dim} comes after end_dim {end_dim}")
    s = input.shape
    return _reshape("flatten", input, (*s[:a], math.prod(s[a : b + 1]), *s[b + 1 :]))


def unflatten(input: Any, dim: int, sizes: Sequence[int]) -> Tensor:
    """Split one dimension into several; one of the sizes may be -1."""
    d, s = one_dim("unflatten", dim, input.ndim), input.shape
    parts = tuple(sizes)
    if -1 in parts:
        known = math.prod(n for n in parts if n != -1)
        if parts.count(-1) > 1 or known == 0 or s[d] % known:
            raise ShapeError(f"unflatten: a dimension of {s[d]} cannot become {parts}")
        parts = tuple(s[d] // known if n == -1 else n for n in parts)
    if math.prod(parts) != s[d]:
        raise ShapeError(f"unflatten: a dimension of {s[d]} cannot become {parts}")
    return _reshape("unflatten", input, (*s[:d], *parts, *s[d + 1 :]))


def squeeze(input: Any, dim: Any = None) -> Tensor:
    """Drop dimensions of size one: all, or those named."""
    dims = set(some_dims("squeeze", dim, input.ndim))
    return _reshape("squeeze", input, tuple(n for i, n in enumerate(input.shape) if n != 1 or i not in dims))


def unsqueeze(input: Any, dim: int) -> Tensor:
    """Put in a dimension of size one."""
    d = one_dim("unsqueeze", dim, input.ndim + 1)
    return _reshape("unsqueeze", input, (*input.shape[:d], 1, *input.shape[d:]))


def permute(input: Any, *dims: Any) -> Tensor:
    """The dimensions in another order."""
    order = tuple(one_dim("permute", d, input.ndim) for d in sizes("permute", dims))
    if sorted(order) != list(range(input.ndim)):
        raise DimError(f"permute: {dims} is not an order of {input.ndim} dimensions")
    return take(_PERMUTE[order], input)


def transpose(input: Any, dim0: int, dim1: int) -> Tensor:
    """Two dimensions exchanged."""
    a, b = one_dim("transpose", dim0, input.ndim), one_dim("transpose", dim1, input.ndim)
    order = list(range(input.ndim))
    if order:
        order[a], order[b] = order[b], order[a]
    return take(_PERMUTE[tuple(order)], input)


swapaxes = transpose


def movedim(input: Any, source: int, destination: int) -> Tensor:
    """One dimension moved to another place."""
    a, b = one_dim("movedim", source, input.ndim), one_dim("movedim", destination, input.ndim)
    order = [d for d in range(input.ndim) if d != a]
    order.insert(b, a)
    return take(_PERMUTE[tuple(order)], input)


def t(input: Any) -> Tensor:
    """The transpose of a matrix."""
    if input.ndim > 2:
        raise ShapeError(f"t: a tensor of at most 2 dimensions, not {input.shape}; use .mT or transpose()")
    return input if input.ndim < 2 else transpose(input, 0, 1)


def expand(input: Any, *shape: Any) -> Tensor:
    """Dimensions of size one repeated without copying; -1 leaves a size as it is."""
    wanted = sizes("expand", shape)
    lead = len(wanted) - input.ndim
    if lead < 0:
        raise ShapeError(f"expand: {input.shape} has more dimensions than {wanted}")
    full = tuple(input.shape[i - lead] if n == -1 and i >= lead else n for i, n in enumerate(wanted))
    return take(_EXPAND[full], input)


def expand_as(input: Any, other: Any) -> Tensor:
    """Expanded to the shape of other."""
    return expand(input, other.shape)


def broadcast_to(input: Any, shape: Sequence[int]) -> Tensor:
    """Expanded to a shape."""
    return expand(input, tuple(shape))


def repeat(input: Any, *repeats: Any) -> Tensor:
    """Copies of the tensor laid side by side, so many along each dimension."""
    times = sizes("repeat", repeats)
    lead = len(times) - input.ndim
    if lead < 0:
        raise ShapeError(f"repeat: {len(times)} repeats for a tensor of {input.ndim} dimensions")
    shape = (1,) * lead + tuple(input.shape)
    apart = [n for pair in zip([1] * len(shape), shape, strict=True) for n in pair]
    wide = [n for pair in zip(times, shape, strict=True) for n in pair]
    x = expand(_reshape("repeat", input, tuple(apart)), tuple(wide))
    return _reshape("repeat", x, tuple(a * b for a, b in zip(times, shape, strict=True))).clone()


def cat(tensors: Sequence[Any], dim: int = 0, **names: Any) -> Tensor:
    """Tensors one after another along a dimension."""
    tensors = tuple(tensors)
    if not tensors:
        raise ArgumentError("cat: expected at least one tensor")
    # torch allows an empty one-dimensional tensor among others, and skips it.
    kept = [x for x in tensors if x.shape != (0,)] or [tensors[0]]
    d = one_dim("cat", names.get("axis", dim), kept[0].ndim)
    return apply(_CAT[d], tuple(kept))


def stack(tensors: Sequence[Any], dim: int = 0, **names: Any) -> Tensor:
    """Tensors of one shape along a new dimension."""
    tensors = tuple(tensors)
    if not tensors:
        raise ArgumentError("stack: expected at least one tensor")
    for x in tensors:
        if x.shape != tensors[0].shape:
            raise ShapeError(f"stack: every tensor must have one shape, got {tensors[0].shape} and {x.shape}")
    d = one_dim("stack", names.get("axis", dim), tensors[0].ndim + 1)
    return cat([unsqueeze(x, d) for x in tensors], d)


def split(tensor: Any, split_size: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Views of the tensor: pieces of a size, or of the sizes given, along a dimension."""
    d = one_dim("split", dim, tensor.ndim)
    n = tensor.shape[d] if tensor.ndim else 1
    if isinstance(split_size, int):
        if split_size <= 0:
            raise ArgumentError(f"split: the size of a piece must be positive, not {split_size}")
        parts = tuple(min(split_size, n - i) for i in range(0, n, split_size)) or (0,)
    else:
        parts = tuple(int(k) for k in split_size)
        if sum(parts) != n:
            raise ShapeError(f"split: sizes {parts} do not add up to {n}, the size of dim {d}")
    out = take(_SPLIT[parts, d], tensor, several=len(parts) > 1)
    return out if type(out) is tuple else (out,)


def chunk(input: Any, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """At most so many equal pieces along a dimension (the last may be smaller), as views."""
    if chunks <= 0:
        raise ArgumentError(f"chunk: the number of chunks must be positive, not {chunks}")
    n = input.shape[one_dim("chunk", dim, input.ndim)]
    return split(input, max(1, -(-n // chunks)), dim)


def unbind(input: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """The slices along a dimension, without it."""
    d = one_dim("unbind", dim, input.ndim)
    if input.shape[d] == 0:
        return ()
    return tuple(squeeze(x, d) for x in split(input, 1, d))


def flip(input: Any, *dims: Any) -> Tensor:
    """The elements in reverse order along dims."""
    return unary(_FLIP[some_dims("flip", list(sizes("flip", dims)), input.ndim)], input)


def tril(input: Any, diagonal: int = 0) -> Tensor:
    """Zero above the diagonal of the last two dimensions."""
    return unary(_TRIL[diagonal], input)


def triu(input: Any, diagonal: int = 0) -> Tensor:
    """Zero below the diagonal of the last two dimensions."""
    return unary(_TRIU[diagonal], input)
