"""Changing the shape, and the two ways to join and two to cut that all others are made of (joining.py).

What is a view in torch is a view here, and what is a copy there is one here: see strides.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from gt import dtypes
from gt.client.compat.arguments import shown
from gt.client.compat.dims import one_dim, sizes
from gt.client.compat.interop import from_torch, is_torch
from gt.client.compat.operands import coerce
from gt.client.functions import elementwise as ew
from gt.client.programs.tree import Kind, Kinds
from gt.client.record.recorder import apply, recorder, unary
from gt.client.tensor import Tensor
from gt.client.views import aliases as views
from gt.client.views import strides
from gt.client.views.aliases import take
from gt.dtypes import DType
from gt.errors import ArgumentError, DimError, DTypeError, ShapeError
from gt.ops import TABLE, rules
from gt.program import spec

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

_RESHAPE = Kinds(TABLE["reshape"], "shape")
_PERMUTE = Kinds(TABLE["permute"], "dims")
_EXPAND = Kinds(TABLE["expand"], "shape")
_CAT = Kinds(TABLE["cat"], "dim")
_STACK = Kinds(TABLE["stack"], "dim")
_SPLIT = Kinds(TABLE["split"], "sizes", "dim")
_UNBIND = Kinds(TABLE["unbind"], "dim")
_UNFOLD = Kinds(TABLE["unfold"], "dim", "size", "step")
_BITCAST = Kinds(TABLE["bitcast"], "dtype")
_SUM_TO = Kinds(TABLE["sum_to"], "shape")
_FLIP = Kinds(TABLE["flip"], "dims")
_CLONE = Kind(TABLE["clone"], {})
_TRIL = Kinds(TABLE["tril"], "diagonal")
_TRIU = Kinds(TABLE["triu"], "diagonal")


def given(op: str, args: tuple[Any, ...], named: dict[str, Any], name: str) -> tuple[int, ...]:
    """Sizes as f(2, 3), f((2, 3)) or f(name=(2, 3))."""
    if not named:
        return sizes(op, args)
    if args or set(named) != {name}:
        raise ArgumentError(f"{op}: takes {name} and nothing else, got {', '.join(sorted(named))}")
    return sizes(op, (named[name],))


# --- reshape and its kin -----------------------------------------------------------------------------


def reshape(input: Any, *shape: Any, **named: Any) -> Tensor:
    """The same elements in another shape; one size may be -1. A view where torch's is one."""
    return _reshape("reshape", input, given("reshape", shape, named, "shape"))


def view(input: Any, *shape: Any, **named: Any) -> Tensor:
    """A view in another shape; with a dtype, the same bytes read as that type (a copy)."""
    to = named.get("dtype", shape[0] if len(shape) == 1 else None)
    if type(to) is not int and to is not None and (isinstance(to, (DType, type)) or str(to).startswith("torch.")):
        kind = dtypes.dtype(to)
        return take(_RESHAPE[input.shape], input) if kind is input.dtype else unary(_BITCAST[kind.name], input)
    return take(_RESHAPE[_filled("view", input.shape, given("view", shape, named, "size"))], input)


def _reshape(op: str, x: Any, shape: tuple[int, ...]) -> Tensor:
    shape = _filled(op, x.shape, shape)
    if not hasattr(x, "_v"):
        x = coerce(op, x)
    kind = _RESHAPE[shape]
    return take(kind, x) if x._x is None or strides.reshapes_in_place(x, shape) else unary(kind, x)


def _filled(op: str, have: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape with its -1 worked out."""
    if -1 in shape:
        known = math.prod(n for n in shape if n != -1)
        size = math.prod(have)
        if shape.count(-1) > 1 or known <= 0 or size % known:
            raise ShapeError(f"{op}: {have} with {size} elements cannot become {shape}")
        shape = tuple(size // known if n == -1 else n for n in shape)
    if math.prod(shape) != math.prod(have) or min(shape, default=0) < 0:
        raise ShapeError(f"{op}: {have} has {math.prod(have)} elements, which do not make {shape}")
    return shape


def reshape_as(input: Any, other: Any) -> Tensor:
    """The same elements in the shape of other."""
    return _reshape("reshape_as", input, other.shape)


def view_as(input: Any, other: Any) -> Tensor:
    """A view in the shape of other."""
    return view(input, other.shape)


def ravel(input: Any) -> Tensor:
    """All elements in one dimension; a view if they lie in order."""
    return take(_RESHAPE[(math.prod(input.shape),)], contiguous(input))


def flatten(input: Any, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Join the dimensions from start_dim to end_dim into one."""
    a, b = one_dim("flatten", start_dim, input.ndim), one_dim("flatten", end_dim, input.ndim)
    if a > b:
        raise ArgumentError(f"flatten: start_dim {start_dim} comes after end_dim {end_dim}")
    s = input.shape
    return _reshape("flatten", input, (*s[:a], math.prod(s[a : b + 1]), *s[b + 1 :]))


def unflatten(input: Any, dim: int, sizes: Sequence[int]) -> Tensor:
    """Split one dimension into several, as a view; one of the sizes may be -1."""
    d, s = one_dim("unflatten", dim, input.ndim), input.shape
    if not s:
        raise DimError("unflatten: a tensor without dimensions has none to split")
    parts = _filled("unflatten", (s[d],), tuple(sizes))
    return take(_RESHAPE[*s[:d], *parts, *s[d + 1 :]], input)


def squeeze(input: Any, dim: Any = None) -> Tensor:
    """A view without dimensions of size one: without all, or without those named."""
    n = input.ndim
    named = range(n) if dim is None else dim if isinstance(dim, (tuple, list)) else (dim,)
    dims = [one_dim("squeeze", d, n) for d in named]
    if len(set(dims)) != len(dims):
        raise DimError(f"squeeze: dim {dim} names a dimension twice")
    return take(_RESHAPE[tuple(k for i, k in enumerate(input.shape) if k != 1 or i not in dims)], input)


def unsqueeze(input: Any, dim: int) -> Tensor:
    """A view with one more dimension, of size one."""
    d, s = one_dim("unsqueeze", dim, input.ndim + 1), input.shape
    return take(_RESHAPE[*s[:d], 1, *s[d:]], input)


# --- the order of dimensions -------------------------------------------------------------------------


def permute(input: Any, *dims: Any, **named: Any) -> Tensor:
    """The dimensions in another order, as a view."""
    order = tuple(one_dim("permute", d, input.ndim) for d in given("permute", dims, named, "dims"))
    if sorted(order) != list(range(input.ndim)):
        raise DimError(f"permute: {dims} is not an order of {input.ndim} dimensions")
    return take(_PERMUTE[order], input)


def transpose(input: Any, dim0: int, dim1: int) -> Tensor:
    """Two dimensions exchanged, as a view."""
    a, b = one_dim("transpose", dim0, input.ndim), one_dim("transpose", dim1, input.ndim)
    order = list(range(input.ndim))
    if order:
        order[a], order[b] = order[b], order[a]
    return take(_PERMUTE[tuple(order)], input)


def swapaxes(input: Any, axis0: int, axis1: int) -> Tensor:
    """Two dimensions exchanged, as a view."""
    return transpose(input, axis0, axis1)


def swapdims(input: Any, dim0: int, dim1: int) -> Tensor:
    """Two dimensions exchanged, as a view."""
    return transpose(input, dim0, dim1)


def movedim(input: Any, source: Any, destination: Any) -> Tensor:
    """Dimensions moved to other places, the others in their order, as a view."""
    pairs = [x if isinstance(x, (tuple, list)) else (x,) for x in (source, destination)]
    old, new = ([one_dim("movedim", d, input.ndim) for d in dims] for dims in pairs)
    if len(old) != len(new) or len(set(old)) != len(old) or len(set(new)) != len(new):
        raise DimError(f"movedim: {source} to {destination} does not say once for each dimension where it goes")
    if not input.ndim:
        return take(_PERMUTE[()], input)
    rest = iter(d for d in range(input.ndim) if d not in old)
    places = dict(zip(new, old, strict=True))
    return take(_PERMUTE[tuple(places[d] if d in places else next(rest) for d in range(input.ndim))], input)


moveaxis = movedim


def t(input: Any) -> Tensor:
    """The transpose of a matrix, as a view."""
    if input.ndim > 2:
        raise ShapeError(f"t: a tensor of at most 2 dimensions, not {input.shape}; use .mT or transpose()")
    return take(_PERMUTE[tuple(range(input.ndim))[::-1]], input)


def _T(x: Any) -> Tensor:
    """The dimensions in reverse order, as a view."""
    return take(_PERMUTE[tuple(range(x.ndim))[::-1]], x)


def _mT(x: Any) -> Tensor:
    """The last two dimensions exchanged, as a view."""
    if x.ndim < 2:
        raise ShapeError(f"mT: needs a matrix, not {x.shape}")
    return transpose(x, -2, -1)


PROPERTIES = {"T": property(_T), "mT": property(_mT)}

# --- repeating without copying -----------------------------------------------------------------------


def expand(input: Any, *sizes: Any, implicit: bool = False, **named: Any) -> Tensor:
    """Dimensions of size one repeated without copying; -1 leaves a size as it is."""
    wanted = given("expand", sizes, named, "size")
    lead = len(wanted) - input.ndim
    if lead < 0:
        raise ShapeError(f"expand: {input.shape} has more dimensions than {wanted}")
    full = tuple(input.shape[i - lead] if n == -1 and i >= lead else n for i, n in enumerate(wanted))
    return take(_EXPAND[full], input)


def expand_as(input: Any, other: Any) -> Tensor:
    """Expanded to the shape of other."""
    return expand(input, other.shape)


def broadcast_to(input: Any, *size: Any, **named: Any) -> Tensor:
    """Expanded to a shape."""
    return expand(input, given("broadcast_to", size, named, "size"))


def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    """The shape that all of these expand to.

    >>> broadcast_shapes((2, 1), (3,))
    (2, 3)
    """
    if not shapes:
        return ()
    return rules.broadcast("broadcast_shapes", *(sizes("broadcast_shapes", (s,)) for s in shapes))


def broadcast_tensors(*tensors: Any) -> tuple[Tensor, ...]:
    """Each tensor expanded to the shape that all of them expand to."""
    many = tuple(tensors[0]) if len(tensors) == 1 and not hasattr(tensors[0], "_v") else tensors
    if not many:
        return ()
    shape = rules.broadcast("broadcast_tensors", *(x.shape for x in many))
    return tuple(expand(x, shape) for x in many)


def sum_to_size(input: Any, *size: Any, **named: Any) -> Tensor:
    """The opposite of expand: summed to a shape that expands to the tensor's own."""
    shape = given("sum_to_size", size, named, "size")
    if shape == input.shape and shape:
        return input
    x = input if input.dtype.is_differentiable else ew.cast(input, dtypes.int64)  # as sum() does
    return unary(_SUM_TO[shape], x)


# --- windows -----------------------------------------------------------------------------------------


def unfold(input: Any, dimension: int, size: int, step: int) -> Tensor:
    """Windows of one dimension, `step` apart, as a view; the place in a window is a new last dimension."""
    d = one_dim("unfold", dimension, input.ndim)
    if not input.ndim:  # torch counts a number as a dimension of size one, and drops that again
        return squeeze(unfold(reshape(input, 1), 0, size, step), 0)
    return take(_UNFOLD[d, size, step], input)


# --- copies ------------------------------------------------------------------------------------------


def flip(input: Any, *dims: Any, **named: Any) -> Tensor:
    """The elements in reverse order along dims."""
    wanted = given("flip", dims, named, "dims")
    places = tuple(one_dim("flip", d, input.ndim) for d in wanted)
    if len(set(places)) != len(places):
        raise DimError(f"flip: {wanted} names a dimension twice")
    return unary(_FLIP[places if input.ndim else ()], input)


def clone(input: Any, *, memory_format: Any = None) -> Tensor:
    """A copy in memory of its own, with history."""
    rec = recorder()
    if rec.trace is not None or (input._fn is not None and rec.grad):
        return unary(_CLONE, input)  # in a trace, a value has one owner
    return Tensor(views.copied(input))


def contiguous(input: Any, memory_format: Any = None) -> Tensor:
    """The tensor itself if its elements would lie in order in torch's memory, else a copy."""
    return input if strides.is_contiguous(input) else clone(input)


def is_contiguous(input: Any, memory_format: Any = None) -> bool:
    """Whether the elements would lie in order in torch's memory."""
    return strides.is_contiguous(input)


def stride(input: Any, dim: int | None = None) -> Any:
    """By how many elements torch's memory would move on with each dimension, or with one."""
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
    """Whether two tensors have one shape."""
    return tuple(input.shape) == tuple(other.shape)


# --- joining and cutting -----------------------------------------------------------------------------


def sequence(op: str, tensors: Any) -> tuple[Any, ...]:
    """The tensors that are to be joined."""
    if hasattr(tensors, "_v"):
        raise ArgumentError(f"{op}: takes a list or tuple of tensors, not one tensor; use unbind() to cut it")
    if not isinstance(tensors, Iterable):
        raise DTypeError(f"{op}: takes a list or tuple of tensors, not {shown(tensors)}")
    many = tuple(tensors)
    if not many:
        raise ArgumentError(f"{op}: expected at least one tensor")
    if all(hasattr(x, "_v") for x in many):
        return many
    return tuple([_tensor(op, x) for x in many])


def _tensor(op: str, x: Any) -> Any:
    if is_torch(x):
        return from_torch(x)
    if not hasattr(x, "_v"):
        raise ArgumentError(f"{op}: takes tensors, not {shown(x)}")
    return x


def _axis(op: str, dim: Any, names: dict[str, Any]) -> Any:
    if not names:
        return dim
    if set(names) != {"axis"}:
        raise ArgumentError(f"{op}: takes dim, and not {', '.join(sorted(set(names) - {'axis'}))}")
    return names["axis"]


def cat(tensors: Sequence[Any], dim: int = 0, **names: Any) -> Tensor:
    """Tensors one after another along a dimension."""
    many = sequence("cat", tensors)
    # torch allows an empty one-dimensional tensor among others, and skips it; its dtype counts.
    kept = [x for x in many if x.shape != (0,)] or [many[0]]
    d = one_dim("cat", _axis("cat", dim, names), kept[0].ndim)
    if not kept[0].ndim:
        raise ShapeError("cat: tensors without dimensions cannot be joined; use stack()")
    if len(kept) < len(many):
        common = dtypes.promote([spec((1,), x.dtype) for x in many])
        kept = [ew.cast(x, common) for x in kept]
    return apply(_CAT[d], tuple(kept))


concat = concatenate = cat


def stack(tensors: Sequence[Any], dim: int = 0, **names: Any) -> Tensor:
    """Tensors of one shape along a new dimension."""
    many = sequence("stack", tensors)
    return apply(_STACK[one_dim("stack", _axis("stack", dim, names), many[0].ndim + 1)], many)


def split(tensor: Any, split_size_or_sections: Any = None, dim: int = 0, **names: Any) -> tuple[Tensor, ...]:
    """Views of the tensor: pieces of a size, or of the sizes given, along a dimension."""
    wanted = names.pop("split_size", split_size_or_sections) if names else split_size_or_sections
    if names or wanted is None:
        raise ArgumentError("split: takes the size of a piece, or a list of sizes, and dim")
    d = one_dim("split", dim, tensor.ndim)
    if not tensor.ndim:
        raise ShapeError("split: a tensor without dimensions cannot be cut")
    n = tensor.shape[d]
    if hasattr(wanted, "__index__") and not hasattr(wanted, "_v"):
        size = int(wanted)
        if size < 0 or (size == 0 and n):
            raise ArgumentError(f"split: the size of a piece must be positive, not {size}")
        parts = tuple(min(size, n - i) for i in range(0, n, size)) if n else (0,)
    else:
        parts = sizes("split", (tuple(wanted),))
        if sum(parts) != n or any(k < 0 for k in parts):
            raise ShapeError(f"split: sizes {parts} do not add up to {n}, the size of dim {d}")
        if not parts:
            return ()
    out = take(_SPLIT[parts, d], tensor, several=len(parts) > 1)
    return out if type(out) is tuple else (out,)


def chunk(input: Any, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """At most so many equal pieces along a dimension (the last may be smaller), as views."""
    if chunks <= 0:
        raise ArgumentError(f"chunk: the number of chunks must be positive, not {chunks}")
    d = one_dim("chunk", dim, input.ndim)
    if not input.ndim:
        raise ShapeError("chunk: a tensor without dimensions cannot be cut")
    n = input.shape[d]
    return split(input, -(-n // chunks), d) if n else split(input, (0,) * chunks, d)


def unbind(input: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """The slices along a dimension, without it, as views."""
    d = one_dim("unbind", dim, input.ndim)
    if not input.ndim:
        raise DimError("unbind: a tensor without dimensions has no slices")
    n = input.shape[d]
    if n == 0:
        return ()
    out = take(_UNBIND[d], input, several=n > 1)
    return out if type(out) is tuple else (out,)


def tril(input: Any, diagonal: int = 0) -> Tensor:
    """Zero above the diagonal of the last two dimensions."""
    return unary(_TRIL[diagonal], input)


def triu(input: Any, diagonal: int = 0) -> Tensor:
    """Zero below the diagonal of the last two dimensions."""
    return unary(_TRIU[diagonal], input)
