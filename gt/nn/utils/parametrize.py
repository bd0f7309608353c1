"""Parametrizations: parameters that are computed from other tensors each time they are read.

A module with such a parameter gets its own class, in which the parameter's name is a property. The tensors that it is
computed from are in `parametrizations`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

from gt.client.grad.modes import set_grad
from gt.client.tensor import Parameter, Tensor
from gt.errors import ArgumentError, ShapeError
from gt.nn.containers import ModuleDict, ModuleList
from gt.nn.module import Module

__all__ = ["ParametrizationList", "cached", "is_parametrized", "register_parametrization", "remove_parametrizations"]

#: The values computed inside `cached()`, by module and name.
_cache: ContextVar[dict[tuple[int, str], Any] | None] = ContextVar("parametrized", default=None)


@contextmanager
def cached() -> Iterator[None]:
    """A context in which every parametrized tensor is computed once."""
    before = _cache.get()
    token = _cache.set({} if before is None else before)
    try:
        yield
    finally:
        _cache.reset(token)


class ParametrizationList(ModuleList):
    """The parametrizations of one tensor, and their inputs: `original`, or `original0`, `original1`, ..."""

    original: Any

    def __init__(self, modules: Sequence[Module], original: Tensor, unsafe: bool = False) -> None:
        super().__init__(modules)
        self.unsafe = unsafe
        with set_grad(False):
            new: Any = original
            for module in reversed(list(self)):
                if hasattr(module, "right_inverse"):
                    with suppress(NotImplementedError):  # as in torch: it begins at whatever the original gives
                        new = module.right_inverse(new)
        self.is_tensor = isinstance(new, Tensor)
        self.ntensors = 1 if self.is_tensor else len(new)
        shape, dtype = original.shape, original.dtype
        if self.is_tensor:
            if new is not original:
                original.data = new
            _register(self, "original", original)
        else:
            for i, t in enumerate(new):
                made = Parameter(t.detach(), original.requires_grad) if isinstance(original, Parameter) else t.detach()
                _register(self, f"original{i}", made)
        if not unsafe:
            with set_grad(False):
                _check_same(self(), shape, dtype)

    def forward(self) -> Any:
        steps = list(self)
        x = steps[0](*([self.original] if self.is_tensor else self._originals()))
        for step in steps[1:]:
            x = step(x)
        return x

    def _originals(self) -> list[Any]:
        return [getattr(self, f"original{i}") for i in range(self.ntensors)]

    def right_inverse(self, value: Any) -> None:
        """Set the original tensors so that the parametrized tensor has this value."""
        with set_grad(False):
            for module in reversed(list(self)):
                if not hasattr(module, "right_inverse"):
                    raise ArgumentError(f"the parametrization {type(module).__name__} has no right_inverse()")
                value = module.right_inverse(value)
            for t, new in zip([self.original] if self.is_tensor else self._originals(),
                              [value] if self.is_tensor else value, strict=True):  # fmt: skip
                t.data = new


def _check_same(made: Any, shape: tuple[int, ...], dtype: Any) -> None:
    if not isinstance(made, Tensor) or made.shape != shape or made.dtype is not dtype:
        what = f"{made.dtype!r} of shape {made.shape}" if isinstance(made, Tensor) else f"a {type(made).__name__}"
        raise ShapeError(f"a parametrization must keep {dtype!r} and shape {shape}, got {what}; unsafe=True allows it")


def _register(module: Module, name: str, t: Tensor) -> None:
    if isinstance(t, Parameter):
        module.register_parameter(name, t)
    else:
        module.register_buffer(name, t)


def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """Whether a tensor of this module, or any of them, is parametrized."""
    found = module._modules.get("parametrizations")
    if not isinstance(found, ModuleDict):
        return False
    return len(found) > 0 if tensor_name is None else tensor_name in found


def register_parametrization(
    module: Module, tensor_name: str, parametrization: Module, *, unsafe: bool = False
) -> Module:
    """Replace a parameter or buffer by parametrization(original), computed each time it is read."""
    parametrization.train(module.training)
    if is_parametrized(module, tensor_name):
        now = getattr(module, tensor_name)
        if not unsafe:
            with set_grad(False):
                _check_same(parametrization(now), now.shape, now.dtype)
        module.parametrizations[tensor_name].append(parametrization)
        return module
    if tensor_name not in module._parameters and tensor_name not in module._buffers:
        raise ArgumentError(f"{type(module).__name__} has no parameter or buffer {tensor_name!r}")
    made = ParametrizationList([parametrization], getattr(module, tensor_name), unsafe)
    delattr(module, tensor_name)
    if not is_parametrized(module):
        kind = type(module)
        module.__class__ = type(f"Parametrized{kind.__name__}", (kind,), {"__module__": kind.__module__})
        module.parametrizations = ModuleDict()
    setattr(type(module), tensor_name, _property(tensor_name))
    module.parametrizations[tensor_name] = made
    return module


def _property(name: str) -> property:
    def read(self: Module) -> Any:
        known = _cache.get()
        if known is None:
            return self.parametrizations[name]()
        key = (id(self), name)
        if key not in known:
            known[key] = self.parametrizations[name]()
        return known[key]

    def write(self: Module, value: Any) -> None:
        self.parametrizations[name].right_inverse(value)

    return property(read, write)


def remove_parametrizations(module: Module, tensor_name: str, leave_parametrized: bool = True) -> Module:
    """Make the tensor an ordinary one again, with its parametrized value or with its original one."""
    if not is_parametrized(module, tensor_name):
        raise ArgumentError(f"{type(module).__name__} has no parametrization of {tensor_name!r}")
    steps = module.parametrizations[tensor_name]
    if not steps.is_tensor and not leave_parametrized:
        raise ArgumentError(f"{tensor_name!r} has several original tensors; pass leave_parametrized=True")
    with set_grad(False):
        now = getattr(module, tensor_name).detach()
    if steps.is_tensor:
        plain = steps.original
        if leave_parametrized:
            plain.data = now
    else:
        graded = any(t.requires_grad for t in steps._originals())
        plain = Parameter(now) if graded else now
    kind = type(module)
    delattr(kind, tensor_name)
    del module.parametrizations[tensor_name]
    _register(module, tensor_name, plain)
    if not is_parametrized(module):
        del module.parametrizations
        module.__class__ = kind.__bases__[0]
    return module
