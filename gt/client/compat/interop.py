"""Tensors from elsewhere and back: torch, DLPack, whatever can become a numpy array. Data is always copied.

Nothing here is imported unless it is asked for: `from_torch` reads what it is given, only `.torch()` needs torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from gt.client.compat.arguments import shown
from gt.errors import DTypeError

if TYPE_CHECKING:
    from gt.client.tensor import Tensor

__all__ = ["from_dlpack", "from_torch"]
METHODS = ["__dlpack__", "__dlpack_device__", "torch"]


def is_torch(x: Any) -> bool:
    """Whether this is one of torch's tensors (or a parameter), told without importing torch."""
    return any(c.__module__ == "torch" and c.__name__ == "Tensor" for c in type(x).__mro__)


def torch_array(x: Any) -> np.ndarray[Any, Any]:
    """A torch tensor, on any device, as a numpy array."""
    x = x.detach().cpu()
    if str(x.layout) != "torch.strided":
        raise DTypeError(f"from_torch: a {x.layout} tensor; make it dense first, as in x.to_dense()")
    x = x.resolve_conj().resolve_neg()
    if str(x.dtype) == "torch.bfloat16":
        bits = x.contiguous().view(x.new_empty(0).short().dtype)  # numpy has no bfloat16; torch has int16 at hand
        return np.asarray(bits.numpy()).view(ml_dtypes.bfloat16)
    return np.asarray(x.numpy())


def from_torch(tensor: Any) -> Tensor:
    """A tensor with a copy of a torch tensor's data, from whatever device it is on.

    >>> import gt, torch
    >>> gt.from_torch(torch.arange(3))
    tensor([0, 1, 2])
    """
    from gt.client.functions.creation import from_numpy

    if not is_torch(tensor):
        raise DTypeError(f"from_torch: a torch tensor, not {shown(tensor)}")
    return from_numpy(torch_array(tensor))


def from_dlpack(x: Any) -> Tensor:
    """A tensor with a copy of the data of anything that speaks DLPack and lies in host memory."""
    from gt.client.functions.creation import from_numpy

    if is_torch(x):
        return from_torch(x)
    if hasattr(x, "_v"):
        return x.clone()
    return from_numpy(np.from_dlpack(x))


def torch(self: Tensor) -> Any:
    """The data as a torch tensor of its own. Waits for it."""
    import torch

    data = self.numpy()
    if self.dtype.name == "bfloat16":
        return torch.from_numpy(data.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(data)


def __dlpack__(self: Tensor, **kwargs: Any) -> Any:
    """The data, for other libraries. Waits for it."""
    if self.dtype.name == "bfloat16":
        return torch(self).__dlpack__()
    kwargs.pop("stream", None)
    return self.numpy().__dlpack__(**kwargs)


def __dlpack_device__(self: Tensor) -> tuple[int, int]:
    """Host memory: that is where data arrives."""
    return (1, 0)
