"""Adopting a module: its parameters and buffers are uploaded one by one and replaced by adopted tensors.

The module stays the object that it is, so its class, methods, names and hooks are as they were. The forward of every
module that is not one of torch's own is entered through `modes.entered`, so that what it creates is adopted too. The
outermost call turns tensors of GT into adopted ones, and returns tensors of GT then.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from types import MethodType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils import _pytree as pytree

from gt.adoption import autograd, batching, factories, operators, optimizers, transforms
from gt.adoption.functions import down
from gt.adoption.modes import entered, inside
from gt.adoption.tensor import ADOPTED, convert, is_batched, native, wrap
from gt.client.compat.arguments import shown
from gt.client.functions.save import load
from gt.client.programs.tree import hide_frames_of
from gt.client.record.recorder import recorder
from gt.client.replay import traced
from gt.client.tensor import Parameter, Tensor
from gt.errors import AutogradError, DTypeError, StateError


def adopt(model: Any, weights: Any = None) -> Any:
    """See `gt.adopt`."""
    prepare()
    if isinstance(model, (torch.Tensor, Tensor)):
        return _tensor(model)
    if not isinstance(model, torch.nn.Module):
        raise DTypeError(f"adopt: expected a torch.nn.Module or a torch tensor, got {shown(model)}")
    upload(model, weights)
    for module in model.modules():
        if module is model or not type(module).__module__.startswith("torch.nn.modules"):
            _enter(module)
    return model


def upload(model: Any, weights: Any = None) -> None:
    """Replace the tensors of a module."""
    values = _Weights(weights)
    for prefix, module in model.named_modules():
        for store in (module._parameters, module._buffers, vars(module)):
            for name, x in store.items():
                if isinstance(x, torch.Tensor):
                    _upload(f"{prefix}.{name}" if prefix else name, x, values)
    values.check_used()
    recorder().mark()


@functools.cache
def prepare() -> None:
    """Once per process, when torch is first met."""
    autograd.install()
    optimizers.install()
    batching.install(operators.call_operator)
    factories.install()
    transforms.install()
    register_optimizer_step_post_hook(_stepped)
    hide_frames_of(os.path.dirname(torch.__file__))
    traced.UPLOAD.append(lambda x: wrap(native(x)))


def _stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
    """A step of an optimizer of torch's ends a program, as one of GT's does."""
    if any(type(p) in ADOPTED for group in optimizer.param_groups for p in group["params"]):
        recorder().mark()


def _tensor(x: Any) -> Any:
    """`gt.adopt` of one tensor."""
    if isinstance(x, Tensor):
        return wrap(x)
    if type(x) not in ADOPTED:
        _upload("the tensor", x, _Weights(None))
    return x


# --- parameters --------------------------------------------------------------------------------------


class _Weights:
    """Where the values of parameters on the meta device come from."""

    def __init__(self, given: Any) -> None:
        self._values: dict[str, Any] = {}
        self._used: set[str] = set()
        if isinstance(given, Mapping):
            self._values.update(given)
        elif given is not None:
            for path in [given] if isinstance(given, (str, os.PathLike)) else given:
                self._values.update(load(path))
        self._given = given is not None

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def find(self, name: str, x: torch.Tensor) -> Tensor:
        """The value of a parameter."""
        if name not in self._values:
            raise StateError(
                f"adopt: {name} is on the meta device and has no value; pass weights=, a safetensors file or a dict "
                "that contains it"
            )
        self._used.add(name)
        value = self._values[name]
        value = value if isinstance(value, Tensor) else native(value.detach())
        if tuple(value.shape) != tuple(x.shape):
            raise StateError(f"adopt: {name} must have the shape {tuple(x.shape)}, got {tuple(value.shape)}")
        return value.to(x.dtype)

    def check_used(self) -> None:
        left = sorted(self._values.keys() - self._used)
        if self._given and left:
            raise StateError(f"adopt: weights contain {left[0]!r}, which is not a parameter on the meta device")


def _upload(name: str, x: torch.Tensor, values: _Weights) -> None:
    """Upload a tensor of a module, which becomes an adopted one."""
    if type(x) in ADOPTED:
        return
    if isinstance(x, torch.nn.parameter.UninitializedTensorMixin):
        raise StateError(
            f"adopt: {name} is not initialized; call the lazy module once, on torch tensors, before it is adopted"
        )
    if not x.is_leaf:
        raise AutogradError(f"adopt: {name} is the result of a computation; only leaf tensors can be adopted")
    data = values.find(name, x) if x.is_meta or name in values else native(x.detach())
    is_parameter = isinstance(x, torch.nn.Parameter)
    convert(x, Parameter(data, x.requires_grad) if is_parameter else data.requires_grad_(x.requires_grad))


# --- calls -------------------------------------------------------------------------------------------


def _enter(module: Any) -> None:
    """Have the forward of a module begin in the mode of adopted models."""
    if "forward" not in vars(module):
        module.forward = MethodType(_outermost(type(module).forward), module)


@functools.cache
def _outermost(forward: Any) -> Any:
    run = entered(forward)

    @functools.wraps(forward)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if inside.active:
            return forward(self, *args, **kwargs)
        trace = recorder().trace
        if trace is not None:
            for module in self.modules():
                trace.mode(module)
        given = _Given()
        args, kwargs = pytree.tree_map(given, (args, kwargs))
        made = run(self, *args, **kwargs)
        return down(made) if given.ours and not given.theirs else made

    return call


class _Given:
    """Adopts the tensors among the arguments of a call, and sees whose they are."""

    def __init__(self) -> None:
        self.ours = self.theirs = False

    def __call__(self, x: Any) -> Any:
        if isinstance(x, Tensor):
            self.ours = True
            return wrap(x)
        if isinstance(x, torch.Tensor):
            self.theirs = True
            return x if type(x) in ADOPTED or is_batched(x) else wrap(native(x))
        return x
