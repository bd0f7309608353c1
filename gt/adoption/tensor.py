"""The torch tensor that stands for a tensor of GT.

Law 1: it owns no data. `_gt` is the tensor; all that torch's Python sees of it (shape, dtype, gradient) is read
       from there. What torch's C++ sees is an empty tensor, and no kernel of torch is ever run on it.
Law 2: methods are defined on the class, so that a call of one costs no dispatch of torch's; functions arrive in
       `__torch_function__`. Both end in functions.py.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any

import torch

from gt import dtypes
from gt.client.compat.arguments import shown
from gt.client.compat.interop import from_torch, operand
from gt.client.tensor import Tensor
from gt.client.views.aliases import root_cell
from gt.errors import AutogradError, DTypeError

#: torch's dtypes by those of GT, and the other way round.
TORCHS: dict[Any, torch.dtype] = {d: getattr(torch, d.name) for d in dtypes.BY_NAME.values()}
OURS: dict[torch.dtype, Any] = {t: d for d, t in TORCHS.items()}

_new: Callable[[type], Any] = torch._C.TensorBase.__new__


is_batched: Callable[[Any], bool] = torch._C._functorch.is_batchedtensor
is_transformed: Callable[[Any], bool] = torch._C._functorch.is_functorch_wrapped_tensor
TRANSFORMS = (
    "torch.func: the function reads an adopted tensor, and its arguments are none; pass adopted tensors, as "
    "gt.adopt(x) returns them"
)


class BatchMet(Exception):
    """A function of GT met a tensor of a function that torch.vmap maps: torch must split it first."""


class Adopted(torch.Tensor):  # type: ignore[misc]  # torch is Any to the type checker
    """A torch tensor whose data is on the session's workers."""

    _gt: Tensor

    # --- what it is ---

    shape = property(lambda self: torch.Size(self._gt.shape))
    dtype = property(lambda self: TORCHS[self._gt.dtype])
    device = property(lambda self: CPU)
    ndim = property(lambda self: self._gt.ndim)
    layout = property(lambda self: torch.strided)

    def size(self, dim: int | None = None) -> Any:
        return torch.Size(self._gt.shape) if dim is None else self._gt.size(dim)

    def data_ptr(self) -> int:
        """A number that tensors on the same memory share. It is not an address."""
        return id(root_cell(self._gt)) if self._gt.numel() else 0

    # --- its gradient and memory ---

    requires_grad = property(lambda self: self._gt.requires_grad, lambda self, on: self._gt.requires_grad_(on))

    @property
    def grad(self) -> Any:
        g = self._gt.grad
        return None if g is None else wrap(g)

    @grad.setter
    def grad(self, g: Any) -> None:
        self._gt.grad = None if g is None else native(g)

    @grad.deleter
    def grad(self) -> None:
        self._gt.grad = None

    @property
    def data(self) -> Any:
        return wrap(self._gt.data)

    @data.setter
    def data(self, other: Any) -> None:
        self._gt.data = native(other)

    @property
    def grad_fn(self) -> Any:
        fn = self._gt.grad_fn
        view = getattr(getattr(fn, "function", None), "seen", None)
        return fn if view is None else view(fn)

    def register_hook(self, hook: Callable[[Any], Any]) -> Any:
        def call(g: Tensor) -> Any:
            made = hook(wrap(g))
            return None if made is None else native(made)

        return self._gt.register_hook(call)

    def register_post_accumulate_grad_hook(self, hook: Callable[[Any], None]) -> Any:
        me = weakref.ref(self)  # the leaf is the tensor's own: a cycle would keep both alive

        def call(_: Tensor) -> None:
            tensor = me()
            if tensor is not None:
                hook(tensor)

        return self._gt.register_post_accumulate_grad_hook(call)

    def __deepcopy__(self, memo: dict[int, Any]) -> Adopted:
        known = memo.get(id(self))
        if known is not None:
            return known
        made = wrap(copy.deepcopy(self._gt, memo))
        memo[id(self)] = made
        made.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return made

    def __copy__(self) -> Adopted:
        made = wrap(copy.copy(self._gt))
        made.__dict__.update(self.__dict__)
        return made

    # --- reading ---

    def torch(self) -> torch.Tensor:
        """An ordinary torch tensor with a copy of the data. Waits for it."""
        return self._gt.detach().torch()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Saved as an ordinary tensor or parameter, which needs neither GT nor a server to be read."""
        host = self.torch()
        if getattr(self, "_is_param", False):
            return torch.Tensor._make_subclass(torch.nn.Parameter, host, self.requires_grad).__reduce_ex__(protocol)
        return host.requires_grad_(self.requires_grad).__reduce_ex__(protocol)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        text = repr(self._gt)
        text = text.removeprefix("Parameter containing:\n").replace("dtype=gt.", "dtype=torch.")
        return f"Parameter containing:\n{text}" if getattr(self, "_is_param", False) else text

    def __format__(self, form: str) -> str:
        return format(self._gt, form) if form or not self._gt.shape else repr(self)

    def __hash__(self) -> int:
        return id(self)

    def __len__(self) -> int:
        return len(self._gt)

    def __iter__(self) -> Any:
        return iter([wrap(t) for t in self._gt])

    def storage(self) -> Any:
        raise DTypeError("storage: the data of an adopted tensor is on a worker; x.torch() returns a copy")

    untyped_storage = storage

    def share_memory_(self) -> Any:
        raise DTypeError(
            "share_memory_: the data of an adopted tensor is on a worker, and other processes have no session"
        )


class Computed(Adopted):
    """An adopted tensor that was never one of torch's own: it is made faster than one with a dict."""

    __slots__ = ("_gt",)


class Growing(Adopted):
    """A sequence of integers that gets longer by one at a time: the front of a longer tensor (growing.py). It becomes a
    tensor of its own when something else is asked of it than its size or its last elements."""

    __slots__ = ("length", "room", "whole")

    length: int
    room: Any
    whole: Tensor | None

    @property
    def _gt(self) -> Tensor:  # type: ignore[override]  # as an attribute in the other classes
        if self.whole is None:
            self.whole = self.room.front(self.length)
        whole: Tensor = self.whole
        return whole

    shape = property(lambda self: torch.Size((*self.room.buffer.shape[:-1], self.length)))
    dtype = property(lambda self: TORCHS[self.room.buffer.dtype])
    ndim = property(lambda self: self.room.buffer.ndim)

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, index: Any) -> Any:
        end = self.room.end(index, self.length) if self.whole is None else None
        return wrap(self._gt[index] if end is None else end)


Adopted._wrap = staticmethod(lambda tensor: wrap(tensor))
ADOPTED = frozenset([Adopted, Computed, Growing])


def wrap(tensor: Tensor) -> Computed:
    """The torch tensor that stands for a tensor of GT."""
    made: Computed = _new(Computed)
    made._gt = tensor
    return made


def convert(x: torch.Tensor, value: Tensor) -> None:
    """Turn an ordinary torch tensor into an adopted one with this value. It stays the same object, so an optimizer or
    another module that holds it sees the change; its data is freed."""
    grad = x.grad
    x.requires_grad_(False)
    x.grad = None
    if not x.is_meta:
        x.data = x.new_empty(0)
    if isinstance(x, torch.nn.Parameter):
        x._is_param = True
    x.__class__ = Adopted
    x._gt = value
    if grad is not None:
        x.grad = grad


#: Where torch is told that the data is, so that what it is mixed with stays on the host.
CPU: torch.device = torch.device("cpu")


#: Makes a dense tensor of a sparse one; sparse.py, which is above this file, puts it here.
from_sparse: list[Callable[[Any], Tensor]] = []


def native(x: Any) -> Tensor:
    """The tensor of GT that a torch tensor stands for; the data of any other torch tensor is uploaded."""
    if type(x) in ADOPTED:
        return x._gt
    if isinstance(x, Tensor):
        return x
    if isinstance(x, torch.Tensor):
        if hasattr(x, "_gt"):  # one of a mapped function
            return x._gt
        if is_transformed(x):
            if is_batched(x):
                raise BatchMet
            raise AutogradError(TRANSFORMS)
        if x.requires_grad and torch.is_grad_enabled():
            return operand("torch", x)
        return from_torch(x) if x.layout is torch.strided else from_sparse[0](x)
    raise DTypeError(f"expected a tensor, got {shown(x)}")
