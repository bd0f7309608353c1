"""Methods that write into their tensor. Each records the new value and rebinds the tensor to it."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

import numpy as np

from gt.client.compat.arguments import RAW, called, explain
from gt.client.compat.operands import coerce
from gt.client.functions import elementwise as ew
from gt.client.functions import shapes
from gt.client.functions.constants import filled
from gt.client.programs import kinds
from gt.client.record.recorder import apply, recorder
from gt.client.tensor import Alias, Leaf, Tensor
from gt.client.views.aliases import cell_of, reshaped, write
from gt.errors import ArgumentError, AutogradError, DTypeError, ShapeError

__all__ = ["fill"]
METHODS = [
    "apply_", "copy_", "fill_", "fill_diagonal_", "map_", "squeeze_", "swapaxes_", "swapdims_", "t_",
    "transpose_", "unsqueeze_", "zero_",
]  # fmt: skip


def assign(x: Tensor, value: Any) -> Tensor:
    """Overwrite with a tensor or number, broadcast and cast."""
    base = None if x._x is None else x._x.base
    if base is not None and base.numel() != x.numel():
        # A part of its base: the rest comes from the base, and the old value of the part is not needed.
        new = _like(x, value)
        # A value belongs to one cell: a tensor that is written unchanged gets a value of its own.
        write(x, new if new is not value else apply(kinds.assign, (x, value)))
    else:
        write(x, apply(kinds.assign, (x, value)))
    return x


def _like(x: Tensor, value: Any) -> Tensor:
    """The value as a tensor of x's shape and dtype."""
    if not isinstance(value, Tensor):
        return filled(x.shape, value, x.dtype)
    value = ew.cast(value, x.dtype)
    if value.shape == x.shape:
        return value
    try:
        return shapes.expand(value, x.shape)
    except ShapeError:
        raise ShapeError(f"assignment: cannot broadcast a value of shape {value.shape} to {x.shape}") from None


def copy_(self: Tensor, src: Any, non_blocking: bool = False) -> Tensor:
    """Overwrite with src, broadcast and cast."""
    return assign(self, src if isinstance(src, Tensor) else coerce("copy_", np.asarray(src)))


def fill_(self: Tensor, value: Any) -> Tensor:
    """Overwrite with one number."""
    return assign(self, _number("fill_", value))


def fill(input: Tensor, value: Any) -> Tensor:
    """A tensor like the input with one number everywhere."""
    return apply(kinds.assign, (input, _number("fill", value)))


def _number(op: str, value: Any) -> Any:
    if isinstance(value, Tensor):
        if value.ndim:
            raise ShapeError(f"{op}: value must be a number or a tensor of 0 dimensions, got shape {value.shape}")
        return value
    return coerce(op, value)


def zero_(self: Tensor) -> Tensor:
    """Overwrite with zeros."""
    return assign(self, 0)


def fill_diagonal_(self: Tensor, fill_value: Any, wrap: bool = False) -> Tensor:
    """Overwrite the diagonal with one number; with wrap, a tall matrix has it again after each gap of a row."""
    if self.ndim < 2:
        raise ShapeError(f"fill_diagonal_: expected at least 2 dimensions, got shape {self.shape}")
    if self.ndim > 2 and len(set(self.shape)) > 1:
        raise ShapeError(f"fill_diagonal_: with more than 2 dimensions all sizes must be equal, got {self.shape}")
    rows, columns = self.shape[0], self.shape[1]
    step = 1 + sum(columns**k for k in range(1, self.ndim))
    flat = reshaped(self, (self.numel(),))
    if self.ndim == 2 and rows > columns and not wrap:
        flat = flat[: columns * columns]
    fill_(flat[::step], fill_value)
    return self


def apply_(self: Tensor, callable: Callable[[Any], Any]) -> Tensor:
    """Overwrite each element with a Python function of it. Waits for the data."""
    if not builtins.callable(callable):
        raise ArgumentError(f"apply_: expected a function of one number, got {type(callable).__name__}")
    return map_(self, self, lambda x, _: callable(x))


def map_(self: Tensor, tensor: Tensor, callable: Callable[[Any, Any], Any]) -> Tensor:
    """Overwrite each element with a Python function of it and of the element in `tensor`. Waits for the data."""
    mine, theirs = self._fetch(), np.broadcast_to(tensor._fetch(), self.shape)
    made = [callable(a.item(), b.item()) for a, b in zip(mine.flat, theirs.flat, strict=True)]
    return copy_(self, np.array(made, self.dtype.numpy).reshape(self.shape))


def replace(name: str, x: Tensor, new: Tensor) -> Tensor:
    """Rebind x to a result of the same shape."""
    if new.shape != x.shape:
        raise ShapeError(
            f"{name}: the result has shape {new.shape}, but the tensor written in place has shape {x.shape}"
        )
    if new.dtype is not x.dtype:
        if new.dtype.category > x.dtype.category:
            raise DTypeError(
                f"{name}: the result is {new.dtype.name} and cannot be written in place to a {x.dtype.name} tensor"
            )
        new = ew.cast(new, x.dtype)
    old, p = x._v or x._read(), recorder().pending
    if old.owner is not p and old not in p.inputs:
        # The new value was not computed from the old one. Make it depend on it, so that the old value is kept if the
        # call fails.
        return assign(x, new)
    write(x, new)
    return x


def method(function: Callable[..., Tensor], name: str) -> Callable[..., Tensor]:
    """The in-place form of a function: `add_` of `add`."""

    def method(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        try:
            made = function(self, *args, **kwargs)
        except RAW as e:
            said = explain(function, (self, *args), kwargs, e, method=True)
            if said is None:
                raise
            raise DTypeError(said) from None
        return replace(name, self, made)

    return called(method, name, f"{name[:-1]}, in place.")


def _turned(function: Callable[..., Tensor], name: str) -> Callable[..., Tensor]:
    """A method that makes the tensor a view of itself: its memory stays, its shape changes."""

    def method(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if recorder().grad and type(self._fn) is Leaf:
            raise AutogradError(f"{name}: a leaf tensor that requires grad cannot change its shape in place")
        before = Tensor(cell_of(self).value, self._fn)
        assert self._x is not None
        before._v, before._x = None, self._x
        view = function(before, *args, **kwargs)
        self._v, self._x, self._fn = None, view._x or Alias(cell_of(view)), view._fn
        return self

    return called(method, name, f"{name[:-1]}, in place.")


squeeze_ = _turned(shapes.squeeze, "squeeze_")
unsqueeze_ = _turned(shapes.unsqueeze, "unsqueeze_")
transpose_ = _turned(shapes.transpose, "transpose_")
swapaxes_ = _turned(shapes.transpose, "swapaxes_")
swapdims_ = _turned(shapes.transpose, "swapdims_")
t_ = _turned(shapes.t, "t_")
