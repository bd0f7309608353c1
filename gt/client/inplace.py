"""Methods that write into their tensor. Each records the new value and rebinds the tensor to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from gt.client import elementwise as ew
from gt.client import recorder as recording
from gt.client.recorder import apply
from gt.client.tree import Kind
from gt.client.views import write
from gt.errors import DTypeError, ShapeError
from gt.ops import TABLE

if TYPE_CHECKING:
    from gt.client.tensor import Tensor

METHODS = ["copy_", "fill_", "normal_", "uniform_", "zero_"]

_ASSIGN = Kind(TABLE["assign"], {})


def assign(x: Tensor, value: Any) -> Tensor:
    """Overwrite with a tensor, broadcast and cast."""
    write(x, apply(_ASSIGN, (x, value)))
    return x


def copy_(self: Tensor, other: Any) -> Tensor:
    """Overwrite with other, broadcast and cast."""
    return assign(self, other if hasattr(other, "_v") else recording.coerce("copy_", np.asarray(other)))


def fill_(self: Tensor, value: Any) -> Tensor:
    """Overwrite with one number."""
    if not hasattr(value, "_v"):
        from gt.client.creation import full

        value = full((), value, dtype=self.dtype)
    return assign(self, value)


def zero_(self: Tensor) -> Tensor:
    """Overwrite with zeros."""
    return fill_(self, 0)


def normal_(self: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Overwrite with normally distributed random numbers."""
    from gt.client.creation import randn

    return replace("normal_", self, randn(self.shape, dtype=self.dtype) * std + mean)


def uniform_(self: Tensor, a: float = 0.0, b: float = 1.0) -> Tensor:
    """Overwrite with random numbers, uniform in [a, b)."""
    from gt.client.creation import rand

    return replace("uniform_", self, rand(self.shape, dtype=self.dtype) * (b - a) + a)


def replace(name: str, x: Tensor, new: Tensor) -> Tensor:
    """Rebind x to a result, which must fit into it."""
    if new.shape != x.shape:
        raise ShapeError(f"{name}: a result of shape {new.shape} does not fit in place into {x.shape}")
    if new.dtype is not x.dtype:
        if new.dtype.category > x.dtype.category:
            raise DTypeError(f"{name}: a {new.dtype.name} result does not fit in place into {x.dtype.name}")
        new = ew.cast(new, x.dtype)
    old, p = x._v or x._read(), recording.recorder().pending
    if old.owner is not p and id(old) not in p.index:
        # The new value does not come from the old one; make it depend on it, so that a failed
        # call knows what to keep.
        return assign(x, new)
    write(x, new)
    return x


def method(function: Callable[..., Tensor], name: str) -> Callable[..., Tensor]:
    """The in-place form of a function: `add_` of `add`."""

    def method(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return replace(name, self, function(self, *args, **kwargs))

    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"{name[:-1]}, in place."
    return method
