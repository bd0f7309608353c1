"""Joining and splitting tensors, built on cat, stack and split of shapes.py."""

from __future__ import annotations

import warnings
from itertools import pairwise
from typing import Any

from gt.client.compat.arguments import shown
from gt.client.compat.checks import one_of, positive, same_dtype
from gt.client.compat.dims import dim_of, sizes
from gt.client.functions.indexing import narrow
from gt.client.functions.shapes import cat, chunk, expand, reshape, sequence, split
from gt.client.tensor import Tensor
from gt.errors import ArgumentError, ShapeError

__all__ = [
    "atleast_1d", "atleast_2d", "atleast_3d", "column_stack", "dsplit", "dstack", "hsplit", "hstack", "meshgrid",
    "row_stack", "split_with_sizes", "tensor_split", "unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes",
    "vsplit", "vstack",
]  # fmt: skip
METHODS = [
    "dsplit", "hsplit", "split_with_sizes", "tensor_split", "unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes",
    "vsplit",
]  # fmt: skip


def _each(f: Any, tensors: tuple[Any, ...]) -> Any:
    """Apply f to one tensor, to several, or to a list of them."""
    if len(tensors) == 1:
        only = tensors[0]
        return f(only) if isinstance(only, Tensor) else tuple(f(x) for x in only)
    return tuple(f(x) for x in tensors)


def atleast_1d(*tensors: Any) -> Any:
    """Reshape each tensor to at least one dimension."""
    return _each(lambda x: x if x.ndim else reshape(x, 1), tensors)


def atleast_2d(*tensors: Any) -> Any:
    """Reshape each tensor to at least two dimensions; new dimensions come first."""
    return _each(lambda x: x if x.ndim > 1 else reshape(x, (1, *(x.shape or (1,)))), tensors)


def atleast_3d(*tensors: Any) -> Any:
    """Reshape each tensor to at least three dimensions; a matrix gets a new last one, a vector a first and a last."""

    def widened(x: Any) -> Any:
        s = x.shape
        return x if x.ndim > 2 else reshape(x, (*s, 1) if x.ndim == 2 else (1, *(s or (1,)), 1))

    return _each(widened, tensors)


# --- joining -----------------------------------------------------------------------------------------


def hstack(tensors: Any) -> Tensor:
    """Concatenate tensors horizontally: along the second dimension; vectors along their only one."""
    many = [atleast_1d(x) for x in sequence("hstack", tensors)]
    return cat(many, 0 if many[0].ndim == 1 else 1)


def vstack(tensors: Any) -> Tensor:
    """Concatenate tensors vertically, along the first dimension; a vector is a row."""
    return cat([atleast_2d(x) for x in sequence("vstack", tensors)], 0)


row_stack = vstack


def dstack(tensors: Any) -> Tensor:
    """Concatenate tensors along the third dimension."""
    return cat([atleast_3d(x) for x in sequence("dstack", tensors)], 2)


def column_stack(tensors: Any) -> Tensor:
    """Concatenate tensors along the second dimension; a vector is a column."""
    many = sequence("column_stack", tensors)
    return cat([x if x.ndim > 1 else reshape(x, (x.numel(), 1)) for x in many], 1)


def meshgrid(*tensors: Any, indexing: str | None = None) -> tuple[Tensor, ...]:
    """The coordinates of a grid: each vector expanded along the dimensions of the others."""
    many = sequence("meshgrid", tensors[0] if len(tensors) == 1 and not isinstance(tensors[0], Tensor) else tensors)
    if indexing is None:
        warnings.warn("meshgrid: pass indexing='ij' or 'xy'; the default is 'ij'", stacklevel=2)
        indexing = "ij"
    one_of("meshgrid", "indexing", indexing, "ij", "xy")
    for x in many:
        if x.ndim > 1:
            raise ShapeError(f"meshgrid: expected vectors or 0-dimensional tensors, got shape {tuple(x.shape)}")
        same_dtype("meshgrid", many[0], x)
    order = list(range(len(many)))
    if indexing == "xy" and len(many) > 1:
        order[:2] = [1, 0]
    shape = tuple(many[k].numel() for k in order)
    places = [order.index(k) for k in range(len(many))]
    return tuple(
        expand(reshape(x, tuple(n if i == d else 1 for i, n in enumerate(shape))), shape)
        for x, d in zip(many, places, strict=True)
    )


# --- splitting ---------------------------------------------------------------------------------------


def split_with_sizes(input: Any, split_sizes: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Split into views of the given sizes along a dimension."""
    return split(input, tuple(split_sizes), dim)


def _copies(pieces: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Copies: torch's unsafe forms must not be written in place, so copies behave the same."""
    return tuple(p.clone() for p in pieces)


def unsafe_split(tensor: Any, split_size: int, dim: int = 0) -> tuple[Tensor, ...]:
    """Same as split(), but returns copies."""
    return _copies(split(tensor, split_size, dim))


def unsafe_split_with_sizes(input: Any, split_sizes: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """Same as split_with_sizes(), but returns copies."""
    return _copies(split(input, tuple(split_sizes), dim))


def unsafe_chunk(input: Any, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """Same as chunk(), but returns copies."""
    return _copies(chunk(input, chunks, dim))


def tensor_split(
    input: Any, indices_or_sections: Any = None, dim: int = 0, *, indices: Any = None, sections: Any = None
) -> tuple[Tensor, ...]:
    """Split into views: into a number of sections whose sizes differ by at most one, or before each of the indices."""
    wanted: Any = next((x for x in (indices_or_sections, indices, sections) if x is not None), None)
    if isinstance(wanted, Tensor):
        wanted = wanted.tolist()
    d = dim_of("tensor_split", dim, input.shape, ShapeError)
    n = input.shape[d]
    if hasattr(wanted, "__index__"):
        count = int(wanted)
        positive("tensor_split", "sections", count)
        return split(input, tuple(n // count + (k < n % count) for k in range(count)), d)
    if not isinstance(wanted, (list, tuple)):
        raise ArgumentError(f"tensor_split: expected a number of sections or a list of indices, got {shown(wanted)}")
    cuts = [0, *(min(max(i + n if i < 0 else i, 0), n) for i in sizes("tensor_split", (tuple(wanted),))), n]
    if all(a <= b for a, b in pairwise(cuts)):
        return split(input, tuple(b - a for a, b in pairwise(cuts)), d)
    return tuple(narrow(input, d, a, max(b - a, 0)) for a, b in pairwise(cuts))


def _cut(op: str, input: Any, wanted: Any, dim: int, least: int) -> tuple[Tensor, ...]:
    if input.ndim < least:
        raise ShapeError(f"{op}: expected at least {least} dimensions, got shape {input.shape}")
    if hasattr(wanted, "__index__") and not isinstance(wanted, Tensor) and (wanted <= 0 or input.shape[dim] % wanted):
        raise ArgumentError(f"{op}: the size of dimension {dim}, {input.shape[dim]}, must be a multiple of {wanted}")
    return tensor_split(input, wanted, dim)


def hsplit(input: Any, indices_or_sections: Any = None, **names: Any) -> tuple[Tensor, ...]:
    """Split horizontally into views: along the second dimension; a vector along its only one."""
    return _cut("hsplit", input, _only(names, indices_or_sections), 0 if input.ndim == 1 else 1, 1)


def vsplit(input: Any, indices_or_sections: Any = None, **names: Any) -> tuple[Tensor, ...]:
    """Split vertically into views, along the first dimension."""
    return _cut("vsplit", input, _only(names, indices_or_sections), 0, 2)


def dsplit(input: Any, indices_or_sections: Any = None, **names: Any) -> tuple[Tensor, ...]:
    """Split into views along the third dimension."""
    return _cut("dsplit", input, _only(names, indices_or_sections), 2, 3)


def _only(names: dict[str, Any], value: Any) -> Any:
    """The argument under either of torch's names for it."""
    for name in names.keys() - {"indices", "sections"}:
        raise TypeError(f"expected indices or sections, got {name}")
    return names.get("indices", names.get("sections", value))
