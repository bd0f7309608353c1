"""Interoperation with torch and DLPack. Data is always copied.

torch is imported only by `.torch()`: `from_torch` uses the methods of the tensor that it gets.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gt import dtypes
from gt.client.compat.arguments import shown
from gt.client.functions.constants import upload
from gt.client.record.recorder import recorder
from gt.client.tensor import Tensor, own
from gt.errors import AutogradError, DTypeError

__all__ = ["from_dlpack", "from_torch"]
METHODS = ["__dlpack__", "__dlpack_device__", "torch"]


def is_torch(x: Any) -> bool:
    """Whether x is a torch tensor or parameter; does not import torch."""
    return any(c.__module__ == "torch" and c.__name__ == "Tensor" for c in type(x).__mro__)


def torch_array(x: Any) -> np.ndarray[Any, Any]:
    """The data of a torch tensor on any device as a NumPy array."""
    x = x.detach().cpu()
    if str(x.layout) != "torch.strided":
        raise DTypeError(f"from_torch: expected a dense tensor, got layout {x.layout}; use x.to_dense() first")
    x = x.resolve_conj().resolve_neg()
    kind = str(x.dtype).removeprefix("torch.")
    if kind == "bfloat16" or kind.startswith("float8"):  # types that NumPy has from ml_dtypes
        empty = x.new_empty(0)
        bits = x.contiguous().view(empty.short().dtype if kind == "bfloat16" else empty.byte().dtype)
        return np.asarray(bits.numpy()).view(dtypes.dtype(kind).numpy)
    return np.asarray(x.numpy())


def operand(op: str, x: Any) -> Tensor:
    """A torch tensor that meets a tensor of GT in an op: an adopted one is itself, the data of another is copied."""
    mine = own(x)
    if isinstance(mine, Tensor):
        return mine
    if x.requires_grad and recorder().grad:
        kind = "Parameter" if type(x).__name__ == "Parameter" else "tensor"
        raise AutogradError(
            f"{op}: a torch {kind} of shape {tuple(x.shape)} requires grad and was not adopted, so it would be a "
            "constant here and never train; adopt it, or the module that holds it, with gt.adopt(...), or pass "
            "x.detach()"
        )
    return from_torch(x)


def from_torch(tensor: Any) -> Tensor:
    """A tensor with a copy of a torch tensor's data, from any device. Of an adopted tensor (see `gt.adopt`) it is the
    tensor that it stands for.

    >>> import gt, torch
    >>> gt.from_torch(torch.arange(3))
    tensor([0, 1, 2])
    """
    if not is_torch(tensor):
        raise DTypeError(f"from_torch: expected a torch tensor, got {shown(tensor)}")
    mine = own(tensor)
    return mine if isinstance(mine, Tensor) else upload("from_torch", torch_array(tensor))


def from_dlpack(x: Any) -> Tensor:
    """A tensor with a copy of the data of an object in host memory that supports DLPack."""
    if is_torch(x):
        return from_torch(x)
    if isinstance(x, Tensor):
        return x.clone()
    return upload("from_dlpack", np.from_dlpack(x))


def torch(self: Tensor) -> Any:
    """A torch tensor with a copy of the data. Waits for the value."""
    import torch

    data = self.numpy()
    if self.dtype.name == "bfloat16" or self.dtype.name.startswith("float8"):
        bits = data.view(np.int16 if self.dtype.itemsize == 2 else np.uint8)
        return torch.from_numpy(bits).view(getattr(torch, self.dtype.name))
    return torch.from_numpy(data)


def torch_function(cls: Any, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
    """What torch calls when one of its functions or methods meets a GT tensor, or a GT device: the function of the same
    name, on GT tensors. `batch.to(device)`, `target.view_as(prediction)` and `batch * weight` work with torch batches.
    """
    name = func.__name__
    moved = [operand(name, a) if is_torch(a) else a for a in args]
    options = {k: operand(name, v) if is_torch(v) else v for k, v in (kwargs or {}).items()}
    method = getattr(Tensor, name, None)
    if method is None or not moved or not isinstance(moved[0], Tensor):
        raise DTypeError(f"torch.{name} cannot be used with GT tensors; use gt.{name}, or x.torch()")
    return method(*moved, **options)


def __dlpack__(self: Tensor, **kwargs: Any) -> Any:
    """A DLPack capsule with the data, in host memory. Waits for the value."""
    if self.dtype.name == "bfloat16":
        return torch(self).__dlpack__()
    kwargs.pop("stream", None)
    return self.numpy().__dlpack__(**kwargs)


def __dlpack_device__(self: Tensor) -> tuple[int, int]:
    """The device of the DLPack capsule: host memory."""
    return (1, 0)
