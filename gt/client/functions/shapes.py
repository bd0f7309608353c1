"""Shapes, views, joining and splitting. More forms of joining and splitting are in joining.py.

What is a view in torch is a view here, and what is a copy in torch is a copy here: see strides.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from gt import dtypes
from gt.client.compat.arguments import shown
from gt.client.compat.checks import batches, positive
from gt.client.compat.dims import different_dims, dim_of, one_dim, sizes
from gt.client.compat.interop import from_torch, is_torch
from gt.client.compat.operands import coerce
from gt.client.functions import elementwise as ew
from gt.client.functions.constants import upload
from gt.client.functions.reading import known_data
from gt.client.programs import kinds
from gt.client.record import recorder as recording
from gt.client.record.recorder import apply, unary
from gt.client.tensor import Tensor
from gt.client.views import aliases as views
from gt.client.views import strides
from gt.client.views.aliases import take
from gt.dtypes import DType
from gt.errors import ArgumentError, DimError, DTypeError, ShapeError
from gt.ops import rules
from gt.program import spec

MANY = 4  #: So many tensors that the host knows, or more, are joined by the host.

__all__ = [
    "broadcast_shapes", "broadcast_tensors", "broadcast_to", "cat", "chunk", "clone", "concat", "concatenate",
    "flatten", "flip", "is_same_size", "moveaxis", "movedim", "numel", "permute", "ravel", "reshape", "split",
    "squeeze", "stack", "swapaxes", "swapdims", "t", "transpose", "tril", "triu", "unbind", "unflatten", "unsqueeze",
]  # fmt: skip
METHODS = [
    *{*__all__} - {"broadcast_shapes", "broadcast_tensors", "cat", "concat", "concatenate", "stack"},
    "contiguous", "expand", "expand_as", "is_contiguous", "ndimension", "nelement", "reshape_as", "stride",
    "sum_to_size", "unfold", "view", "view_as",
]  # fmt: skip
INPLACE = ["tril", "triu"]


def given(op: str, args: tuple[Any, ...], named: dict[str, Any], name: str) -> tuple[int, ...]:
    """Sizes as f(2, 3), f((2, 3)) or f(name=(2, 3))."""
    if not named:
        return sizes(op, args)
    if args or set(named) != {name}:
        raise ArgumentError(f"{op}: expected only {name}, got {', '.join(sorted(named))}")
    return sizes(op, (named[name],))


# --- reshape -----------------------------------------------------------------------------------------


def reshape(input: Any, *shape: Any, **named: Any) -> Tensor:
    """The same elements in another shape, as a view where torch returns one; one size may be -1."""
    return _reshape("reshape", input, given("reshape", shape, named, "shape"))


def view(input: Any, *shape: Any, **named: Any) -> Tensor:
    """A view in another shape; with a dtype, a copy whose bytes are read as that dtype."""
    to = named.get("dtype", shape[0] if len(shape) == 1 else None)
    if isinstance(to, (DType, type)) or (type(to).__module__ == "torch" and not isinstance(to, tuple)):
        dtype = dtypes.dtype(to)
        return unary(kinds.bitcast[dtype.name], input) if dtype is not input.dtype else view(input, input.shape)
    return take(kinds.reshape[_filled("view", input.shape, given("view", shape, named, "size"))], input)


def _reshape(op: str, x: Any, shape: tuple[int, ...]) -> Tensor:
    shape = _filled(op, x.shape, shape)
    if not isinstance(x, Tensor):
        x = coerce(op, x)
    kind = kinds.reshape[shape]
    return take(kind, x) if x._x is None or strides.reshapes_in_place(x, shape) else unary(kind, x)


def _filled(op: str, have: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape with -1 replaced by the remaining size."""
    if -1 in shape:
        known = math.prod(n for n in shape if n != -1)
        size = math.prod(have)
        if shape.count(-1) > 1 or known <= 0 or size % known:
            raise ShapeError(f"{op}: a tensor of shape {have} ({size} elements) cannot have shape {shape}")
        shape = tuple(size // known if n == -1 else n for n in shape)
    if math.prod(shape) != math.prod(have) or min(shape, default=0) < 0:
        raise ShapeError(f"{op}: a tensor of shape {have} ({math.prod(have)} elements) cannot have shape {shape}")
    return shape


def reshape_as(input: Any, other: Any) -> Tensor:
    """The same elements in the shape of other."""
    return _reshape("reshape_as", input, other.shape)


def view_as(input: Any, other: Any) -> Tensor:
    """A view in the shape of other."""
    return view(input, other.shape)


def ravel(input: Any) -> Tensor:
    """Flatten to one dimension; a view if the tensor is contiguous."""
    return take(kinds.reshape[(math.prod(input.shape),)], contiguous(input))


def flatten(input: Any, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Flatten the dimensions from start_dim to end_dim into one."""
    a, b = one_dim("flatten", start_dim, input.ndim), one_dim("flatten", end_dim, input.ndim)
    if a > b:
        raise ArgumentError(f"flatten: start_dim must not come after end_dim, got {start_dim} and {end_dim}")
    s = input.shape
    return _reshape("flatten", input, (*s[:a], math.prod(s[a : b + 1]), *s[b + 1 :]))


def unflatten(input: Any, dim: int, sizes: Sequence[int]) -> Tensor:
    """Split one dimension into several, as a view; one of the sizes may be -1."""
    d, s = dim_of("unflatten", dim, input.shape), input.shape
    parts = _filled("unflatten", (s[d],), tuple(sizes))
    return take(kinds.reshape[*s[:d], *parts, *s[d + 1 :]], input)


def squeeze(input: Any, dim: Any = None) -> Tensor:
    """A view without the dimensions of size 1: all of them, or those in dim."""
    n = input.ndim
    if isinstance(dim, (tuple, list)):
        dims = different_dims("squeeze", dim, n)
    else:
        dims = tuple(range(n)) if dim is None else (one_dim("squeeze", dim, n),)
    return take(kinds.reshape[tuple(k for i, k in enumerate(input.shape) if k != 1 or i not in dims)], input)


def unsqueeze(input: Any, dim: int) -> Tensor:
    """A view with a new dimension of size 1 at dim."""
    d, s = one_dim("unsqueeze", dim, input.ndim + 1), input.shape
    return take(kinds.reshape[*s[:d], 1, *s[d:]], input)


# --- the order of dimensions -------------------------------------------------------------------------


def permute(input: Any, *dims: Any, **named: Any) -> Tensor:
    """A view with the dimensions in another order."""
    order = tuple(one_dim("permute", d, input.ndim) for d in given("permute", dims, named, "dims"))
    if sorted(order) != list(range(input.ndim)):
        raise DimError(f"permute: dims must be a permutation of {input.ndim} dimensions, got {dims}")
    return take(kinds.permute[order], input)


def transpose(input: Any, dim0: int, dim1: int) -> Tensor:
    """A view with two dimensions exchanged."""
    a, b = one_dim("transpose", dim0, input.ndim), one_dim("transpose", dim1, input.ndim)
    order = list(range(input.ndim))
    if order:
        order[a], order[b] = order[b], order[a]
    return take(kinds.permute[tuple(order)], input)


swapdims = transpose


def swapaxes(input: Any, axis0: int, axis1: int) -> Tensor:
    """A view with two dimensions exchanged."""
    return transpose(input, axis0, axis1)


def movedim(input: Any, source: Any, destination: Any) -> Tensor:
    """A view with dimensions moved to other positions; the others keep their order."""
    pairs = [x if isinstance(x, (tuple, list)) else (x,) for x in (source, destination)]
    old, new = ([one_dim("movedim", d, input.ndim) for d in dims] for dims in pairs)
    if len(old) != len(new) or len(set(old)) != len(old) or len(set(new)) != len(new):
        raise DimError(f"movedim: expected as many different dimensions in each, got {source} and {destination}")
    if not input.ndim:
        return take(kinds.permute[()], input)
    rest = iter(d for d in range(input.ndim) if d not in old)
    places = dict(zip(new, old, strict=True))
    return take(kinds.permute[tuple(places[d] if d in places else next(rest) for d in range(input.ndim))], input)


moveaxis = movedim


def t(input: Any) -> Tensor:
    """A transposed view of a matrix; vectors are returned as a view."""
    if input.ndim > 2:
        raise ShapeError(f"t: expected at most 2 dimensions, got shape {input.shape}; use .mT or transpose()")
    return _reversed(input)


def _reversed(x: Any) -> Tensor:
    """A view with the dimensions in reverse order."""
    return take(kinds.permute[tuple(range(x.ndim))[::-1]], x)


def _mT(x: Any) -> Tensor:
    """A view with the last two dimensions exchanged."""
    batches("mT", x)
    return transpose(x, -2, -1)


PROPERTIES = {"T": property(_reversed), "mT": property(_mT)}

# --- broadcasting ------------------------------------------------------------------------------------


def expand(input: Any, *sizes: Any, implicit: bool = False, **named: Any) -> Tensor:
    """A view with dimensions of size 1 expanded to larger sizes; -1 keeps a size."""
    wanted = given("expand", sizes, named, "size")
    lead = len(wanted) - input.ndim
    if lead < 0:
        raise ShapeError(f"expand: a tensor of shape {input.shape} has more dimensions than {wanted}")
    full = tuple(input.shape[i - lead] if n == -1 and i >= lead else n for i, n in enumerate(wanted))
    return take(kinds.expand[full], input)


def expand_as(input: Any, other: Any) -> Tensor:
    """A view expanded to the shape of other."""
    return expand(input, other.shape)


def broadcast_to(input: Any, *size: Any, **named: Any) -> Tensor:
    """A view expanded to a shape."""
    return expand(input, given("broadcast_to", size, named, "size"))


def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    """The shape that the given shapes broadcast to.

    >>> broadcast_shapes((2, 1), (3,))
    (2, 3)
    """
    if not shapes:
        return ()
    return rules.broadcast("broadcast_shapes", *(sizes("broadcast_shapes", (s,)) for s in shapes))


def broadcast_tensors(*tensors: Any) -> tuple[Tensor, ...]:
    """Views of the tensors, expanded to the shape that they broadcast to."""
    many = tuple(tensors[0]) if len(tensors) == 1 and not isinstance(tensors[0], Tensor) else tensors
    if not many:
        return ()
    shape = rules.broadcast("broadcast_tensors", *(x.shape for x in many))
    return tuple(expand(x, shape) for x in many)


def sum_to_size(input: Any, *size: Any, **named: Any) -> Tensor:
    """Sum the tensor to a shape that is expandable to its own."""
    shape = given("sum_to_size", size, named, "size")
    if shape == input.shape and shape:
        return input
    x = input if input.dtype.is_differentiable else ew.cast(input, dtypes.int64)  # as sum() does
    return unary(kinds.sum_to[shape], x)


# --- windows -----------------------------------------------------------------------------------------


def unfold(input: Any, dimension: int, size: int, step: int) -> Tensor:
    """A view of all windows of `size` elements along a dimension, `step` apart, in a new last dimension."""
    d = one_dim("unfold", dimension, input.ndim)
    if not input.ndim:  # as in torch: treated as a vector of one element
        return squeeze(unfold(reshape(input, 1), 0, size, step), 0)
    return take(kinds.unfold[d, size, step], input)


# --- copies ------------------------------------------------------------------------------------------


def flip(input: Any, *dims: Any, **named: Any) -> Tensor:
    """Reverse the order of the elements along dims."""
    found = different_dims("flip", given("flip", dims, named, "dims"), input.ndim)
    return unary(kinds.flip[found if input.ndim else ()], input)


def clone(input: Any, *, memory_format: Any = None) -> Tensor:
    """A copy of the tensor; gradients flow through it."""
    rec = recording.recorder()
    if rec.trace is not None or (input._fn is not None and rec.grad):
        return unary(kinds.clone, input)  # in a trace, each value has one owner
    return Tensor(views.copied(input))


def contiguous(input: Any, memory_format: Any = None) -> Tensor:
    """The tensor itself if it would be contiguous in torch, else a copy."""
    return input if strides.is_contiguous(input) else clone(input)


def is_contiguous(input: Any, memory_format: Any = None) -> bool:
    """Whether the tensor would be contiguous in torch."""
    return strides.is_contiguous(input)


def stride(input: Any, dim: int | None = None) -> Any:
    """The strides that the tensor would have in torch, or that of one dimension."""
    every = strides.strides(input)
    return every if dim is None else every[one_dim("stride", dim, input.ndim)]


def numel(input: Any) -> int:
    """The number of elements."""
    return math.prod(input.shape)


nelement = numel


def ndimension(input: Any) -> int:
    """The number of dimensions."""
    return len(input.shape)


def is_same_size(input: Any, other: Any) -> bool:
    """Whether two tensors have the same shape."""
    return tuple(input.shape) == tuple(other.shape)


# --- joining and splitting ---------------------------------------------------------------------------


def sequence(op: str, tensors: Any) -> tuple[Any, ...]:
    """The tensors to join, as a tuple."""
    if isinstance(tensors, Tensor):
        raise ArgumentError(f"{op}: expected a list or tuple of tensors, got one tensor; use unbind() to split it")
    if not isinstance(tensors, Iterable):
        raise DTypeError(f"{op}: expected a list or tuple of tensors, got {shown(tensors)}")
    many = tuple(tensors)
    if not many:
        raise ArgumentError(f"{op}: expected at least one tensor, got none")
    if all(isinstance(x, Tensor) for x in many):
        return many
    return tuple([_tensor(op, x) for x in many])


def _tensor(op: str, x: Any) -> Any:
    if is_torch(x):
        return from_torch(x)
    if not isinstance(x, Tensor):
        raise ArgumentError(f"{op}: expected tensors, got {shown(x)}")
    return x


def _axis(op: str, dim: Any, names: dict[str, Any]) -> Any:
    if not names:
        return dim
    if set(names) != {"axis"}:
        raise ArgumentError(f"{op}: unexpected argument {', '.join(sorted(set(names) - {'axis'}))}")
    return names["axis"]


def cat(tensors: Sequence[Any], dim: int = 0, **names: Any) -> Tensor:
    """Concatenate tensors along a dimension."""
    many = sequence("cat", tensors)
    # As in torch, empty vectors are skipped; only their dtype matters.
    kept = [x for x in many if x.shape != (0,)] or [many[0]]
    d = one_dim("cat", _axis("cat", dim, names), kept[0].ndim)
    if not kept[0].ndim:
        raise ShapeError("cat: 0-dimensional tensors cannot be concatenated; use stack()")
    if len(kept) < len(many):
        common = dtypes.promote([spec((1,), x.dtype) for x in many])
        kept = [ew.cast(x, common) for x in kept]
    made = _known("cat", kept, lambda arrays: np.concatenate(arrays, d))
    return apply(kinds.cat[d], tuple(kept)) if made is None else made


concat = concatenate = cat


def stack(tensors: Sequence[Any], dim: int = 0, **names: Any) -> Tensor:
    """Join tensors of the same shape along a new dimension."""
    many = sequence("stack", tensors)
    d = one_dim("stack", _axis("stack", dim, names), many[0].ndim + 1)
    made = _known("stack", many, lambda arrays: np.stack(arrays, d))
    return apply(kinds.stack[d], many) if made is None else made


def _known(op: str, many: Sequence[Tensor], join: Callable[[Any], Any]) -> Tensor | None:
    """What the host knows, joined here, where that is less to send: many samples of a data set, say. Which of them a
    program has had before would else make another program for each batch."""
    arrays = known_data(many) if len(many) >= MANY else []
    try:
        return upload(op, join(arrays)) if len({a.dtype for a in arrays}) == 1 else None
    except ValueError:
        return None  # recording the op raises the user's error


def split(tensor: Any, split_size_or_sections: Any = None, dim: int = 0, **names: Any) -> tuple[Tensor, ...]:
    """Split into views along a dimension, of one size or of the given sizes."""
    wanted = names.pop("split_size", split_size_or_sections) if names else split_size_or_sections
    if names or wanted is None:
        raise ArgumentError("split: expected the size of a chunk or a list of sizes, and optionally dim")
    d = dim_of("split", dim, tensor.shape, ShapeError)
    n = tensor.shape[d]
    if hasattr(wanted, "__index__") and not isinstance(wanted, Tensor):
        size = int(wanted)
        if size < 0 or (size == 0 and n):
            raise ArgumentError(f"split: the size of a chunk must be > 0, got {size}")
        parts = tuple(min(size, n - i) for i in range(0, n, size)) if n else (0,)
    else:
        parts = sizes("split", (tuple(wanted),))
        if sum(parts) != n or any(k < 0 for k in parts):
            raise ShapeError(f"split: sizes {parts} must sum to {n}, the size of dim {d}")
        if not parts:
            return ()
    out = take(kinds.split[parts, d], tensor, several=len(parts) > 1)
    return out if type(out) is tuple else (out,)


def chunk(input: Any, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """Split into at most `chunks` views of equal size along a dimension; the last may be smaller."""
    positive("chunk", "chunks", chunks)
    d = dim_of("chunk", dim, input.shape, ShapeError)
    n = input.shape[d]
    return split(input, -(-n // chunks), d) if n else split(input, (0,) * chunks, d)


def unbind(input: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Split into the slices along a dimension, as views without that dimension."""
    d = dim_of("unbind", dim, input.shape)
    n = input.shape[d]
    if n == 0:
        return ()
    out = take(kinds.unbind[d], input, several=n > 1)
    return out if type(out) is tuple else (out,)


def tril(input: Any, diagonal: int = 0) -> Tensor:
    """The lower triangle of the last two dimensions; the other elements are 0."""
    return unary(kinds.tril[diagonal], input)


def triu(input: Any, diagonal: int = 0) -> Tensor:
    """The upper triangle of the last two dimensions; the other elements are 0."""
    return unary(kinds.triu[diagonal], input)
