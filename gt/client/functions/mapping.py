"""Functions over many examples: `vmap`, and products of groups of rows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from gt.client.compat.checks import one_of
from gt.client.compat.dims import one_dim
from gt.client.compat.fallback import torch_op
from gt.client.functions.shapes import stack
from gt.client.tensor import Tensor
from gt.errors import ArgumentError

__all__ = ["_grouped_mm", "vmap"]


def vmap(
    func: Callable[..., Any], in_dims: Any = 0, out_dims: Any = 0, randomness: str = "error",
    *, chunk_size: int | None = None,
) -> Callable[..., Any]:  # fmt: skip
    """A function that applies func to every example of a batch, and stacks what it returns.

    It is recorded once for every example, so the program grows with the batch; with a batch dimension, where the
    function can have one, it does not. Gradients and nested calls work as of any code. Random numbers differ between
    the examples; with randomness="same" the function may not use any.

    >>> import gt
    >>> gt.vmap(gt.dot)(gt.tensor([[1.0, 2.0], [3.0, 4.0]]), gt.tensor([[1.0, 1.0], [0.0, 1.0]]))
    tensor([3., 4.])
    """
    one_of("vmap", "randomness", randomness, "error", "different", "same")

    @functools.wraps(func)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        dims = _dims_of(in_dims, args, "in_dims")
        sizes = {n for a, d in zip(args, dims, strict=True) for n in _sizes(a, d)}
        if not sizes:
            raise ArgumentError(
                "vmap: no argument has a dimension to map over; at least one of in_dims must be a number"
            )
        if len(sizes) > 1:
            raise ArgumentError(f"vmap: the mapped dimensions must have one size, got {sorted(sizes)}")
        (count,) = sizes
        if count == 0:
            raise ArgumentError("vmap: the mapped dimension is empty")
        named = {k: _dims_of(0, (v,), k)[0] for k, v in kwargs.items()}
        found = []
        for i in range(count):
            one = [_example(a, d, i) for a, d in zip(args, dims, strict=True)]
            found.append(func(*one, **{k: _example(v, named[k], i) for k, v in kwargs.items()}))
        return _stacked(found, out_dims)

    return mapped


def _dims_of(dims: Any, args: tuple[Any, ...], what: str) -> list[Any]:
    """The mapped dimension of each argument; for nested ones, of each part."""
    if isinstance(dims, int) or dims is None:
        return [_everywhere(a, dims) for a in args]
    if not isinstance(dims, (tuple, list)) or len(dims) != len(args):
        raise ArgumentError(f"vmap: {what} must be a number or a tuple of {len(args)} entries, got {dims!r}")
    return [_everywhere(a, d) for a, d in zip(args, dims, strict=True)]


def _everywhere(x: Any, d: Any) -> Any:
    if isinstance(x, dict):
        return {k: _everywhere(v, d[k] if isinstance(d, dict) else d) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        given = d if isinstance(d, (list, tuple)) else [d] * len(x)
        return [_everywhere(v, e) for v, e in zip(x, given, strict=True)]
    if isinstance(x, Tensor) and d is not None:
        if x.ndim == 0:
            raise ArgumentError("vmap: an argument without dimensions cannot be mapped over; its in_dims must be None")
        return one_dim("vmap", d, x.ndim)
    return None


def _sizes(x: Any, d: Any) -> list[int]:
    if isinstance(x, dict):
        return [n for k, v in x.items() for n in _sizes(v, d[k])]
    if isinstance(x, (list, tuple)):
        return [n for v, e in zip(x, d, strict=True) for n in _sizes(v, e)]
    return [] if d is None else [x.shape[d]]


def _example(x: Any, d: Any, i: int) -> Any:
    """The argument for one example."""
    if isinstance(x, dict):
        return {k: _example(v, d[k], i) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        made = [_example(v, e, i) for v, e in zip(x, d, strict=True)]
        return type(x)(*made) if hasattr(x, "_fields") else type(x)(made)
    return x if d is None else x.select(d, i)


def _stacked(found: list[Any], d: Any) -> Any:
    """The results of all examples in one."""
    first = found[0]
    if isinstance(first, dict):
        return {k: _stacked([f[k] for f in found], d[k] if isinstance(d, dict) else d) for k in first}
    if isinstance(first, (list, tuple)):
        given = d if isinstance(d, (list, tuple)) else [d] * len(first)
        made = [_stacked([f[i] for f in found], e) for i, e in enumerate(given)]
        return type(first)(*made) if hasattr(first, "_fields") else type(first)(made)
    if not isinstance(first, Tensor):
        raise ArgumentError(f"vmap: the function must return tensors, got {type(first).__name__}")
    return first if d is None else stack(found, d)


def _grouped_mm(mat_a: Any, mat_b: Any, *, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    """Products of groups of rows with a matrix each; run by torch on the worker."""
    return torch_op("nn.functional.grouped_mm", mat_a, mat_b, offs=offs, bias=bias, out_dtype=out_dtype)
