"""Reading a tensor: as numpy, as Python numbers, as text. All of this waits for the data."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from gt.client.functions import printing
from gt.client.record.recorder import recorder
from gt.client.tensor import Tensor
from gt.errors import AutogradError, GTError, ShapeError

METHODS = [
    "__array__", "__bool__", "__complex__", "__float__", "__format__", "__index__", "__int__", "__reduce_ex__",
    "__repr__", "_fetch", "item", "numpy", "tolist",
]  # fmt: skip


def numpy(self: Tensor, *, force: bool = False) -> np.ndarray[Any, Any]:
    """The data as a numpy array of its own; force: also if it requires grad. Waits for it."""
    if self._fn is not None and not force:
        raise AutogradError("numpy() of a tensor that requires grad; use tensor.detach().numpy()")
    return self._fetch()


def _fetch(self: Tensor) -> np.ndarray[Any, Any]:
    rec = recorder()
    rec.refuse_sync()
    return rec.session.fetch(self._v or self._read())


def item(self: Tensor) -> Any:
    """The only element, as a Python number. Waits for it."""
    if self._spec.size != 1:
        raise ShapeError(f"item: a tensor of one element, not {self.shape}")
    return self._fetch().reshape(()).item()


def tolist(self: Tensor) -> Any:
    """The data as nested lists of Python numbers. Waits for it."""
    return self._fetch().tolist()


def __array__(self: Tensor, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
    if copy is False:
        raise ValueError("a tensor's data is on a worker: an array of it is always a copy")
    data = self.numpy()
    return data if dtype is None else data.astype(dtype)


def __float__(self: Tensor) -> float:
    return float(self.item())


def __complex__(self: Tensor) -> complex:
    return complex(self.item())


def __int__(self: Tensor) -> int:
    return int(self.item())


def __index__(self: Tensor) -> int:
    if self.dtype.is_differentiable or self._spec.size != 1:
        raise TypeError("only an integer tensor of one element can be an index")
    return int(self.item())


def __bool__(self: Tensor) -> bool:
    if self._spec.size != 1:
        count = "several elements" if self._spec.size else "no elements"
        raise ShapeError(f"the truth of a tensor with {count} is ambiguous; use any() or all()")
    return bool(self.item())


def __repr__(self: Tensor) -> str:
    try:
        data = self._fetch()
    except GTError as e:
        return f"<tensor {self._spec!r}: {e}>"
    suffixes = []
    if self.grad_fn is not None:
        suffixes.append(f"grad_fn=<{self.grad_fn.name()}>")
    elif self.requires_grad:
        suffixes.append("requires_grad=True")
    return printing.tensor_text(data, self.dtype.name, suffixes)


def __format__(self: Tensor, form: str) -> str:
    number = not self.shape or (form and self._spec.size == 1)
    return format(self.item(), form) if number else repr(self)


def __reduce_ex__(self: Tensor, protocol: Any) -> NoReturn:
    raise TypeError("a GT tensor cannot be pickled; use gt.save(), or pickle tensor.numpy()")
