"""Module: parameters, buffers, submodules and a forward().

Hooks are in hooks.py, loading and saving in state.py. A call of a module without hooks costs a call of forward().
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

from gt import dtypes
from gt.client.functions.casts import to as cast_to
from gt.client.grad.modes import set_grad
from gt.client.record.recorder import recorder
from gt.client.tensor import Parameter, Tensor
from gt.client.views import aliases as views
from gt.errors import ArgumentError, DTypeError
from gt.nn import hooks as hooking
from gt.nn import state as states
from gt.nn.hooks import Hookable

_STORES = ("_parameters", "_buffers", "_modules")


class Buffer(Tensor):
    """A tensor that becomes a buffer of the module that it is assigned to."""

    __slots__ = ()

    def __init__(self, data: Tensor, *, persistent: bool = True) -> None:
        super().__init__(data._v or data._read())
        views.adopt(self, data)
        self.persistent = persistent


class Parameters(Iterator[Parameter]):
    """What `module.parameters()` returns: an iterator, as in torch, that can be added to others."""

    __slots__ = ("_left",)

    def __init__(self, left: Iterator[Parameter]) -> None:
        self._left = left

    def __next__(self) -> Parameter:
        return next(self._left)

    def __add__(self, others: Iterable[Parameter]) -> list[Parameter]:
        return [*self, *others]

    def __radd__(self, others: Iterable[Parameter]) -> list[Parameter]:
        return [*others, *self]


class Module(Hookable):
    """The base class of all layers and models, as torch.nn.Module."""

    training: bool = True
    _version: int = 1  #: Of the state of such a module; it is stored beside it, and given to _load_from_state_dict.
    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _non_persistent_buffers_set: set[str]
    _modules: dict[str, Module | None]

    def __init__(self) -> None:
        self.__dict__.update(_parameters={}, _buffers={}, _modules={}, _non_persistent_buffers_set=set(), training=True)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no forward()")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        trace = recorder().trace
        if trace is not None:
            trace.mode(self)
        hooks = self._hooks
        if hooks is None:
            return self.forward(*args, **kwargs)
        return hooking.call(self, hooks, args, kwargs)

    # --- attributes ---

    def __setattr__(self, name: str, value: Any) -> None:
        mine = self.__dict__
        if name == "_parameters":
            self._set_parameters(value)
        elif "_parameters" not in mine:
            if isinstance(value, (Parameter, Module)):
                raise AttributeError(f"{type(self).__name__}: call super().__init__() before setting {name}")
            object.__setattr__(self, name, value)
        elif isinstance(value, Parameter):
            self._forget(name, "_buffers", "_modules")
            self.register_parameter(name, value)
        elif isinstance(value, Module):
            self._forget(name, "_parameters", "_buffers")
            mine["_modules"][name] = value
        elif isinstance(value, Buffer):
            self._forget(name, "_parameters", "_modules")
            self.register_buffer(name, value, value.persistent)
        elif name in mine["_parameters"]:
            self._check(name, value, None, "parameter", "a Parameter")
            mine["_parameters"][name] = None
        elif name in mine["_modules"]:
            self._check(name, value, None, "module", "a Module")
            mine["_modules"][name] = None
        elif name in mine["_buffers"]:
            self._check(name, value, Tensor, "buffer", "a tensor")
            mine["_buffers"][name] = value
        else:
            object.__setattr__(self, name, value)

    def _set_parameters(self, value: Any) -> None:
        """`self._parameters = self.fc1.parameters() + self.fc2.parameters()`: those of submodules are known already,
        and others are registered by their position."""
        if isinstance(value, dict) or "_parameters" not in self.__dict__:
            object.__setattr__(self, "_parameters", value)
            return
        known = {id(p) for p in self.parameters()}
        for k, parameter in enumerate(value):
            if id(parameter) not in known:
                self.register_parameter(f"parameter_{k}", parameter)

    def _forget(self, name: str, *stores: str) -> None:
        """Remove an attribute that is about to be replaced."""
        mine = self.__dict__
        mine.pop(name, None)
        for store in stores:
            mine[store].pop(name, None)
        mine["_non_persistent_buffers_set"].discard(name)

    def _check(self, name: str, value: Any, kind: Any, what: str, wanted: str) -> None:
        if value is not None and (kind is None or not isinstance(value, kind)):
            raise DTypeError(
                f"{type(self).__name__}: the {what} {name!r} must be set to {wanted} or None, got "
                f"{type(value).__name__}"
            )

    def __getattr__(self, name: str) -> Any:
        mine = self.__dict__
        if "_parameters" in mine:  # not a loop: every layer runs this at every call
            if name in mine["_parameters"]:
                return mine["_parameters"][name]
            if name in mine["_modules"]:
                return mine["_modules"][name]
            if name in mine["_buffers"]:
                return mine["_buffers"][name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __delattr__(self, name: str) -> None:
        for store in _STORES:
            if name in self.__dict__.get(store, {}):
                del self.__dict__[store][name]
                self._non_persistent_buffers_set.discard(name)
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        names = [*dir(type(self)), *self.__dict__, *(k for store in _STORES for k in self.__dict__.get(store, {}))]
        return sorted(n for n in names if not n[:1].isdigit())

    def _check_name(self, what: str, name: Any, store: str) -> None:
        if "_parameters" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__}: call super().__init__() before adding the {what} {name}")
        if not isinstance(name, str) or not name or "." in name:
            raise ArgumentError(f"the name of a {what} must be a non-empty string without dots, got {name!r}")
        if hasattr(self, name) and name not in self.__dict__[store]:
            raise KeyError(f"{type(self).__name__} already has an attribute {name!r}")

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Add a parameter, or None for an absent one."""
        self._check_name("parameter", name, "_parameters")
        if param is not None:
            if not isinstance(param, Parameter):
                raise DTypeError(f"register_parameter: {name} must be a Parameter, got {type(param).__name__}")
            if not param.is_leaf:
                raise ArgumentError(f"register_parameter: {name} must be a leaf; create it from tensor.detach()")
        self._parameters[name] = param

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Add a tensor that is not a parameter; it is part of state_dict() if persistent."""
        self._check_name("buffer", name, "_buffers")
        if tensor is not None and not isinstance(tensor, Tensor):
            raise DTypeError(f"register_buffer: {name} must be a tensor, got {type(tensor).__name__}")
        self._buffers[name] = tensor
        (self._non_persistent_buffers_set.discard if persistent else self._non_persistent_buffers_set.add)(name)

    def add_module(self, name: str, module: Module | None) -> None:
        """Add a submodule."""
        if module is not None and not isinstance(module, Module):
            raise DTypeError(f"add_module: {name} must be a Module, got {type(module).__name__}")
        self._check_name("module", name, "_modules")
        self._modules[name] = module

    def register_module(self, name: str, module: Module | None) -> None:
        """The same as add_module."""
        self.add_module(name, module)

    def get_submodule(self, target: str) -> Module:
        """The submodule with this name, such as `layers.0.attention`."""
        module: Any = self
        for name in target.split(".") if target else ():
            inner = getattr(module, name, None)
            if not isinstance(inner, Module):
                raise AttributeError(f"get_submodule({target!r}): {type(module).__name__} has no module {name!r}")
            module = inner
        return module

    def set_submodule(self, target: str, module: Module, strict: bool = False) -> None:
        """Replace the submodule with this name."""
        parent, _, name = target.rpartition(".")
        if not name:
            raise ArgumentError("set_submodule: expected the name of a submodule, got ''")
        above = self.get_submodule(parent)
        if strict and name not in above._modules:
            raise AttributeError(f"set_submodule: {type(above).__name__} has no module {name!r}")
        setattr(above, name, module)

    def get_parameter(self, target: str) -> Parameter:
        """The parameter with this name, such as `layers.0.weight`."""
        return self._get(target, "_parameters", "parameter")

    def get_buffer(self, target: str) -> Tensor:
        """The buffer with this name."""
        return self._get(target, "_buffers", "buffer")

    def _get(self, target: str, store: str, what: str) -> Any:
        parent, _, name = target.rpartition(".")
        found = self.get_submodule(parent).__dict__[store]
        if found.get(name) is None:
            raise AttributeError(f"{type(self).__name__} has no {what} {target!r}")
        return found[name]

    # --- iteration ---

    def named_modules(
        self, memo: set[Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """This module and all its submodules by name, each before its own submodules."""
        memo = set() if memo is None else memo
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self
        for name, module in self._modules.items():
            if module is not None:
                yield from module.named_modules(memo, f"{prefix}.{name}" if prefix else name, remove_duplicate)

    def modules(self, remove_duplicate: bool = True) -> Iterator[Module]:
        """This module and all its submodules."""
        return (m for _, m in self.named_modules(remove_duplicate=remove_duplicate))

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The direct submodules, by name."""
        seen: set[Module] = set()
        for name, module in self._modules.items():
            if module is not None and module not in seen:
                seen.add(module)
                yield name, module

    def children(self) -> Iterator[Module]:
        """The direct submodules."""
        return (m for _, m in self.named_children())

    def _named(self, store: str, prefix: str, recurse: bool, remove_duplicate: bool) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        within = self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate)
        for name, module in within if recurse else [(prefix, self)]:
            for k, t in module.__dict__[store].items():
                if t is None or id(t) in seen:
                    continue
                if remove_duplicate:
                    seen.add(id(t))
                yield (f"{name}.{k}" if name else k), t

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """All parameters, by name."""
        return self._named("_parameters", prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Parameters:
        """All parameters, including those of submodules."""
        return Parameters(p for _, p in self.named_parameters(recurse=recurse))

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """All buffers, by name."""
        return self._named("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """All buffers, including those of submodules."""
        return (b for _, b in self.named_buffers(recurse=recurse))

    def apply(self, fn: Callable[[Module], None]) -> Self:
        """Apply fn to every submodule, then to this module."""
        for m in self.children():
            m.apply(fn)
        fn(self)
        return self

    # --- modes ---

    def train(self, mode: bool = True) -> Self:
        """Set this module and all its submodules to training mode, or to evaluation mode."""
        if not isinstance(mode, bool):
            raise ArgumentError(f"train: mode must be a bool, got {mode!r}")
        self.training = mode
        for m in self.children():
            m.train(mode)
        return self

    def eval(self) -> Self:
        """Set evaluation mode: train(False)."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Set whether the parameters require gradients."""
        for p in self.parameters():
            p.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set the gradients to None, or to zero."""
        for p in self.parameters():
            if p.grad is not None:
                if set_to_none:
                    p.grad = None
                else:
                    p.grad.detach().zero_()

    # --- dtypes; the server chooses devices ---

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Replace the data of every parameter, every gradient and every buffer by fn of it."""
        with set_grad(False):
            for m in self.modules() if recurse else [self]:
                for p in m._parameters.values():
                    if p is None:
                        continue
                    g = p.grad
                    for t in (p,) if g is None else (p, g):
                        old = t.detach()
                        new = fn(old)
                        if new is not old:
                            t.data = new
                for name, b in m._buffers.items():
                    if b is not None:
                        m._buffers[name] = fn(b)
        return self

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Cast floating-point parameters and buffers; a device has no effect."""

        def moved(t: Tensor) -> Tensor:
            new = cast_to(t, *args, **kwargs) if t.dtype.is_differentiable else t
            if new.dtype.is_differentiable != t.dtype.is_differentiable:
                raise DTypeError(f"to: parameters must be floating point or complex, got {new.dtype.name}")
            return new

        return self._apply(moved)

    def double(self) -> Self:
        """Cast floating-point parameters and buffers to float64."""
        return self._floats(dtypes.float64)

    def half(self) -> Self:
        """Cast floating-point parameters and buffers to float16."""
        return self._floats(dtypes.float16)

    def bfloat16(self) -> Self:
        """Cast floating-point parameters and buffers to bfloat16."""
        return self._floats(dtypes.bfloat16)

    def float(self) -> Self:
        """Cast floating-point parameters and buffers to float32."""
        return self._floats(dtypes.float32)

    def _floats(self, dtype: dtypes.DType) -> Self:
        return self._apply(lambda t: cast_to(t, dtype) if t.dtype.is_floating_point else t)

    def cuda(self, device: Any = None) -> Self:
        """Return the module itself: the server chooses devices."""
        return self

    def cpu(self) -> Self:
        """Return the module itself: the server chooses devices."""
        return self

    def to_empty(self, *, device: Any = None, recurse: bool = True) -> Self:
        """Return the module itself: the server chooses devices."""
        return self

    def share_memory(self) -> Self:
        """Return the module itself: its tensors are on workers."""
        return self

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Does nothing: workers compile what runs often."""

    # --- state ---

    def state_dict(
        self, *, destination: dict[str, Any] | None = None, prefix: str = "", keep_vars: bool = False
    ) -> dict[str, Any]:
        """Parameters and persistent buffers by name, detached; they share memory with the module's."""
        if destination is None:
            destination = OrderedDict()
            destination._metadata = OrderedDict()  # type: ignore[attr-defined]  # as in torch
        return states.save(self, destination, prefix, keep_vars)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        for name, t in states.own(self).items():
            destination[prefix + name] = t if keep_vars else t.detach()
        if type(self).get_extra_state is not Module.get_extra_state:
            destination[prefix + states.EXTRA] = self.get_extra_state()

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> states.IncompatibleKeys:
        """Copy tensors of GT, numpy or torch into parameters and buffers by name; with `assign`, replace these instead.
        Returns missing and unexpected names, which are errors if `strict`."""
        return states.load(self, state_dict, strict, assign)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], strict: bool,
        missing_keys: list[str], unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:  # fmt: skip
        states.load_own(self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)

    def _has_extra_state(self) -> bool:
        return type(self).set_extra_state is not Module.set_extra_state

    def get_extra_state(self) -> Any:
        """More state to store in state_dict(), for subclasses to define."""
        raise NotImplementedError(f"{type(self).__name__} has no extra state")

    def set_extra_state(self, state: Any) -> None:
        """Load what get_extra_state() returned."""
        raise NotImplementedError(f"{type(self).__name__} has no extra state")

    # --- repr ---

    def _get_name(self) -> str:
        return self.__class__.__name__

    def extra_repr(self) -> str:
        """The settings to show in the repr."""
        return ""

    def __repr__(self) -> str:
        extra = self.extra_repr().split("\n") if self.extra_repr() else []
        inner = [f"({k}): {indented(repr(m))}" for k, m in self._modules.items()]
        return written(self._get_name(), extra, inner)

    def type(self, dst_type: Any) -> Self:
        """Cast all parameters and buffers to dst_type."""
        return self._apply(lambda t: t.type(dst_type))


def indented(text: str) -> str:
    """The repr of a submodule, indented but for its first line."""
    first, *rest = text.split("\n")
    return "\n".join([first, *("  " + line if line.strip() else "" for line in rest)])


def written(name: str, extra: list[str], inner: list[str]) -> str:
    """A module's repr: its name, its settings and its submodules."""
    if not inner and len(extra) <= 1:
        return f"{name}({''.join(extra)})"
    return f"{name}(\n  " + "\n  ".join([*extra, *inner]) + "\n)"
