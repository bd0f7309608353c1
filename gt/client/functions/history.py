"""A tensor's history and memory: requires_grad, grad, backward, hooks; detach, data and copies."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any

from gt.client.compat.arguments import shown
from gt.client.grad import backward as gradients
from gt.client.record.recorder import recorder
from gt.client.tensor import Leaf, NodeResult, Parameter, RemovableHandle, Tensor
from gt.client.views import aliases as views
from gt.errors import AutogradError, DTypeError, ShapeError

METHODS = [
    "__copy__", "__deepcopy__", "backward", "detach", "detach_", "register_hook", "register_post_accumulate_grad_hook",
    "requires_grad_", "retain_grad",
]  # fmt: skip


def requires_grad_(self: Tensor, requires_grad: bool = True) -> Tensor:
    """Have it require gradients, or not, from now on."""
    if requires_grad and self._fn is None:
        if not self.dtype.is_differentiable:
            raise DTypeError(
                f"only floating-point tensors can require grad, not {self.dtype.name}; create it with dtype=gt.float32"
            )
        self._fn = Leaf()
    elif not requires_grad:
        if not self.is_leaf:
            raise AutogradError("requires_grad can be set to False for leaf tensors only; use detach()")
        self._fn = None
    return self


# --- gradients ---------------------------------------------------------------------------------------


def _grad(self: Tensor) -> Tensor | None:
    if type(self._fn) is Leaf:
        _touch(self._fn)
        return self._fn.grad
    return self.__dict__.get("_grad")


def _set_grad(self: Tensor, g: Tensor | None) -> None:
    if g is not None and not isinstance(g, Tensor):
        raise DTypeError(f"grad: expected a tensor or None, got {shown(g)}")
    if g is not None and g.shape != self.shape:
        raise ShapeError(f"grad: expected a gradient of shape {self.shape}, got {g.shape}")
    if type(self._fn) is Leaf:
        _touch(self._fn)
        self._fn.grad = g
    else:
        self.__dict__["_grad"] = g


def _touch(leaf: Leaf) -> None:
    """A traced function must know whose gradients it used."""
    trace = recorder().trace
    if trace is not None:
        trace.touch(leaf)


def backward(
    self: Tensor,
    gradient: Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Add the gradients of this tensor to the `.grad` of the leaves it came from, or of the inputs named."""
    gradients.backward((self,), (gradient,), retain_graph, create_graph, inputs)


def register_hook(self: Tensor, hook: Callable[[Tensor], Tensor | None]) -> RemovableHandle:
    """Call `hook(grad)` when this tensor's gradient is computed; what it returns, if anything, is
    used instead. `remove()` of what is returned takes the hook away."""
    fn = self._fn
    if fn is None:
        raise AutogradError("register_hook: this tensor does not require grad")
    if isinstance(fn, Leaf):
        fn.hooks = hooks = fn.hooks or []
    else:
        whole, index = (fn.whole, fn.index) if isinstance(fn, NodeResult) else (fn, 0)
        whole.hooks = by_result = whole.hooks or {}
        hooks = by_result.setdefault(index, [])
    return RemovableHandle(hooks, hook)


def register_post_accumulate_grad_hook(self: Tensor, hook: Callable[[Tensor], None]) -> RemovableHandle:
    """Call `hook(tensor)` each time a gradient has been added to this leaf's `.grad`."""
    fn = self._fn
    if type(fn) is not Leaf:
        raise AutogradError("register_post_accumulate_grad_hook: the tensor must be a leaf that requires grad")
    fn.after = hooks = fn.after or []
    me = weakref.ref(self)  # the leaf is the tensor's own: a cycle would keep both alive

    def call() -> None:
        tensor = me()
        if tensor is not None:
            hook(tensor)

    return RemovableHandle(hooks, call)


def retain_grad(self: Tensor) -> None:
    """Keep the gradient of this tensor, which is not a leaf, in `.grad`."""
    if not self.requires_grad:
        raise AutogradError("retain_grad: the tensor does not require grad; use requires_grad=True")
    if not self.is_leaf and not self.retains_grad:
        keep = self.__dict__
        keep["_retains"] = True

        def hook(g: Tensor) -> None:
            have = keep.get("_grad")
            keep["_grad"] = Tensor(g._v or g._read(), g._fn) if have is None else have + g  # others may have g too

        hook.keeps = True  # type: ignore[attr-defined]
        register_hook(self, hook)


# --- memory ------------------------------------------------------------------------------------------


def detach(self: Tensor) -> Tensor:
    """A tensor on the same memory, without history."""
    return views.share(self)


def detach_(self: Tensor) -> Tensor:
    """Forget its history."""
    self._fn = None
    return self


def _set_data(self: Tensor, other: Tensor) -> None:
    if not isinstance(other, Tensor):
        raise DTypeError(f"data: expected a tensor, got {shown(other)}")
    views.adopt(self, other)


def __copy__(self: Tensor) -> Tensor:
    """Another tensor on the same memory, a leaf."""
    twin = views.share(self)
    twin = twin if type(self) is Tensor else type(self)(twin)
    return requires_grad_(twin, self._fn is not None)


def __deepcopy__(self: Tensor, memo: dict[int, Any]) -> Tensor:
    fn = self._fn
    if fn is not None and not isinstance(fn, Leaf):
        raise AutogradError("deepcopy: the tensor must be a leaf; copy tensor.detach() instead")
    twin: Tensor = object.__new__(type(self))
    leaf = None if fn is None else Leaf()
    twin._v, twin._x, twin._fn = views.copied(self), None, leaf
    memo[id(self)] = twin
    if not isinstance(self, Parameter):  # whose copies have no gradient in torch: to train one begins anew
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        if fn is not None and fn.grad is not None and leaf is not None:
            leaf.grad = __deepcopy__(fn.grad, memo)
    return twin


PROPERTIES = {
    "grad": property(
        _grad, _set_grad, doc="What backward() has added up for this leaf, or for a tensor after retain_grad()."
    ),
    "data": property(
        views.share, _set_data, doc="A tensor on the same memory, without history; set it to point to another's memory."
    ),
}
