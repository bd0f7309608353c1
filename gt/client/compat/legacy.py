"""Types by dtype, as in old code: `gt.FloatTensor([1, 2])`, `gt.LongTensor(2, 3)`, `isinstance(x, gt.LongTensor)`; and
`gt.Tensor(2, 3)`, `x.new(2, 3)`.
"""

from __future__ import annotations

from typing import Any

from gt.client.compat.arguments import shown
from gt.client.compat.autocast import set_default_dtype
from gt.client.functions.casts import OLD_NAMES
from gt.client.functions.creation import empty, tensor
from gt.client.programs.pending import Value
from gt.client.tensor import Tensor, default_dtype
from gt.dtypes import DType, dtype
from gt.errors import DTypeError

__all__ = [*OLD_NAMES, "set_default_tensor_type"]
METHODS = ["new"]


def _make(data: Any, made: DType) -> Any:
    if all(isinstance(size, int) for size in data):
        return empty(tuple(data) or (0,), dtype=made)
    return tensor(*data, dtype=made)


def first_value(data: list[Any]) -> Value:
    """The value of `gt.Tensor(...)`: data or sizes, in the default dtype."""
    made = _make(data, default_dtype())
    return made._v or made._read()


def new(self: Tensor, *data: Any, device: Any = None) -> Tensor:
    """A tensor of this one's dtype with the given data, or of the given sizes."""
    return _make(data, self.dtype)


class _ByDtype(type):
    """The type of these types. A tensor is of class Tensor whatever its dtype is, so they answer for themselves."""

    dtype: DType

    def __call__(cls, *data: Any, device: Any = None) -> Any:
        return _make(data, cls.dtype)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Tensor) and instance.dtype is cls.dtype

    def __subclasscheck__(cls, other: Any) -> bool:
        return other is cls


def set_default_tensor_type(t: Any) -> None:
    """The old way to set the default dtype: by a type such as gt.DoubleTensor, or its name. A device has no effect."""
    made = t.dtype if isinstance(t, _ByDtype) else OLD_NAMES.get(str(t).rpartition(".")[2])
    if made is None:
        raise DTypeError(f"set_default_tensor_type: expected a type such as 'torch.FloatTensor', got {shown(t)}")
    set_default_dtype(made)


def _type(name: str, made: DType) -> type:
    doc = f"Tensors of dtype {made.name}: called with data or sizes it makes one, and isinstance() knows them."
    return _ByDtype(name, (), {"dtype": made, "__doc__": doc, "__module__": "gt"})


globals().update({name: _type(name, dtype(to)) for name, to in OLD_NAMES.items()})
