"""Module: a thing with parameters, buffers, modules inside it and a forward().

Its hooks are hooks.py's, loading and saving are state.py's. A call without hooks costs a call of forward().
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Self

from gt import dtypes
from gt.client.functions.casts import to as cast_to
from gt.client.grad.modes import set_grad
from gt.client.record.recorder import recorder
from gt.client.tensor import Parameter, RemovableHandle, Tensor
from gt.client.views import aliases as views
from gt.errors import ArgumentError, DTypeError
from gt.nn import hooks as hooking
from gt.nn import state as states
from gt.nn.hooks import Hooks

_STORES = ("_parameters", "_buffers", "_modules")


class Buffer(Tensor):
    """A tensor that becomes a buffer of the module it is assigned to."""

    __slots__ = ()

    def __init__(self, data: Tensor, *, persistent: bool = True) -> None:
        super().__init__(data._v or data._read())
        views.adopt(self, data)
        self.persistent = persistent


class Module:
    """The base of all layers and models; use it like torch.nn.Module."""

    training: bool = True
    _hooks: Hooks | None = None
    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _non_persistent_buffers_set: set[str]
    _modules: dict[str, Module | None]

    def __init__(self) -> None:
        self.__dict__.update(
            _parameters={}, _buffers={}, _modules={}, _non_persistent_buffers_set=set(), training=True
        )  # fmt: skip

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
        if "_parameters" not in mine:
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

    def _forget(self, name: str, *stores: str) -> None:
        """What was under this name before is replaced."""
        mine = self.__dict__
        mine.pop(name, None)
        for store in stores:
            mine[store].pop(name, None)
        mine["_non_persistent_buffers_set"].discard(name)

    def _check(self, name: str, value: Any, kind: Any, what: str, wanted: str) -> None:
        if value is not None and (kind is None or not isinstance(value, kind)):
            raise DTypeError(
                f"{type(self).__name__}: the {what} {name!r} can be set to {wanted} or None, not to a "
                f"{type(value).__name__}"
            )

    def __getattr__(self, name: str) -> Any:
        mine = self.__dict__
        if "_parameters" in mine:  # in a row, not in a loop: every layer comes here at every call
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

    def _named_rightly(self, what: str, name: Any, store: str) -> None:
        if "_parameters" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__}: call super().__init__() before adding the {what} {name}")
        if not isinstance(name, str) or not name or "." in name:
            raise ArgumentError(f"the name of a {what} is a string without dots, not {name!r}")
        if hasattr(self, name) and name not in self.__dict__[store]:
            raise KeyError(f"{type(self).__name__} already has an attribute {name!r}")

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """A parameter (or None, for one that there could be) by name."""
        self._named_rightly("parameter", name, "_parameters")
        if param is not None:
            if not isinstance(param, Parameter):
                raise DTypeError(f"register_parameter: {name} is a {type(param).__name__}, not a Parameter")
            if not param.is_leaf:
                raise ArgumentError(f"register_parameter: {name} has a history; make it of tensor.detach()")
        self._parameters[name] = param

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """A tensor that belongs to the module's state but is not trained; in state_dict() if it is persistent."""
        self._named_rightly("buffer", name, "_buffers")
        if tensor is not None and not isinstance(tensor, Tensor):
            raise DTypeError(f"register_buffer: {name} is a {type(tensor).__name__}, not a tensor")
        self._buffers[name] = tensor
        (self._non_persistent_buffers_set.discard if persistent else self._non_persistent_buffers_set.add)(name)

    def add_module(self, name: str, module: Module | None) -> None:
        """A module inside this one, by name."""
        if module is not None and not isinstance(module, Module):
            raise DTypeError(f"add_module: {name} is a {type(module).__name__}, not a Module")
        self._named_rightly("module", name, "_modules")
        self._modules[name] = module

    def register_module(self, name: str, module: Module | None) -> None:
        """add_module, under another name."""
        self.add_module(name, module)

    def get_submodule(self, target: str) -> Module:
        """The module with this name, as in `layers.0.attention`."""
        module: Any = self
        for name in target.split(".") if target else ():
            inner = getattr(module, name, None)
            if not isinstance(inner, Module):
                raise AttributeError(f"{type(module).__name__} has no module {name!r}, asked for as {target!r}")
            module = inner
        found: Module = module
        return found

    def set_submodule(self, target: str, module: Module, strict: bool = False) -> None:
        """Put a module in the place of another, by name."""
        parent, _, name = target.rpartition(".")
        if not name:
            raise ArgumentError("set_submodule: needs the name of a module inside this one")
        above = self.get_submodule(parent)
        if strict and name not in above._modules:
            raise AttributeError(f"set_submodule: {type(above).__name__} has no module {name!r}")
        setattr(above, name, module)

    def get_parameter(self, target: str) -> Parameter:
        """The parameter with this name, as in `layers.0.weight`."""
        found: Parameter = self._get(target, "_parameters", "parameter")
        return found

    def get_buffer(self, target: str) -> Tensor:
        """The buffer with this name."""
        found: Tensor = self._get(target, "_buffers", "buffer")
        return found

    def _get(self, target: str, store: str, what: str) -> Any:
        parent, _, name = target.rpartition(".")
        found = self.get_submodule(parent).__dict__[store]
        if found.get(name) is None:
            raise AttributeError(f"{type(self).__name__} has no {what} {target!r}")
        return found[name]

    # --- walking ---

    def named_modules(
        self, memo: set[Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """This module and all inside it, each after what it is in."""
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
        """This module and all inside it."""
        return (m for _, m in self.named_modules(remove_duplicate=remove_duplicate))

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The modules directly inside this one, by name."""
        seen: set[Module] = set()
        for name, module in self._modules.items():
            if module is not None and module not in seen:
                seen.add(module)
                yield name, module

    def children(self) -> Iterator[Module]:
        """The modules directly inside this one."""
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

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """All parameters, of the modules inside too."""
        return (p for _, p in self.named_parameters(recurse=recurse))

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """All buffers, by name."""
        return self._named("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """All buffers, of the modules inside too."""
        return (b for _, b in self.named_buffers(recurse=recurse))

    def apply(self, fn: Callable[[Module], None]) -> Self:
        """Call fn of every module inside, then of this one."""
        for m in self.children():
            m.apply(fn)
        fn(self)
        return self

    # --- modes ---

    def train(self, mode: bool = True) -> Self:
        """Say to this module and all inside whether they train."""
        if not isinstance(mode, bool):
            raise ArgumentError(f"train: the mode is True or False, not {mode!r}")
        self.training = mode
        for m in self.children():
            m.train(mode)
        return self

    def eval(self) -> Self:
        """train(False)."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Train the parameters, or freeze them."""
        for p in self.parameters():
            p.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, or set them to zero."""
        for p in self.parameters():
            if p.grad is not None:
                if set_to_none:
                    p.grad = None
                else:
                    p.grad.detach().zero_()

    # --- types; devices are the server's affair ---

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Put fn of it in the place of every parameter's data, every gradient and every buffer."""
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
        """Cast floating parameters and buffers; naming a device changes nothing."""

        def moved(t: Tensor) -> Tensor:
            new = cast_to(t, *args, **kwargs) if t.dtype.is_differentiable else t
            if new.dtype.is_differentiable != t.dtype.is_differentiable:
                raise DTypeError(f"to: parameters are floating or complex, not {new.dtype.name}")
            return new

        return self._apply(moved)

    def double(self) -> Self:
        """Floating parameters and buffers as float64."""
        return self._floats(dtypes.float64)

    def half(self) -> Self:
        """Floating parameters and buffers as float16."""
        return self._floats(dtypes.float16)

    def bfloat16(self) -> Self:
        """Floating parameters and buffers as bfloat16."""
        return self._floats(dtypes.bfloat16)

    def float(self) -> Self:
        """Floating parameters and buffers as float32."""
        return self._floats(dtypes.float32)

    def _floats(self, dtype: dtypes.DType) -> Self:
        return self._apply(lambda t: cast_to(t, dtype) if t.dtype.is_floating_point else t)

    def cuda(self, device: Any = None) -> Self:
        """The module itself."""
        return self

    def cpu(self) -> Self:
        """The module itself."""
        return self

    def to_empty(self, *, device: Any = None, recurse: bool = True) -> Self:
        """The module itself."""
        return self

    def share_memory(self) -> Self:
        """The module itself: its tensors are on workers."""
        return self

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: workers compile what runs often."""

    # --- state ---

    def state_dict(
        self, *, destination: dict[str, Any] | None = None, prefix: str = "", keep_vars: bool = False
    ) -> dict[str, Any]:
        """Parameters and buffers by name; the tensors share memory with the module's, without history."""
        return states.save(self, OrderedDict() if destination is None else destination, prefix, keep_vars)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        for name, t in states.own(self).items():
            destination[prefix + name] = t if keep_vars else t.detach()
        if type(self).get_extra_state is not Module.get_extra_state:
            destination[prefix + states.EXTRA] = self.get_extra_state()

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> states.IncompatibleKeys:
        """Copy values in by name (`assign`: take the tensors given); of GT, numpy or torch. Returns the names that
        do not match, if `strict` is off."""
        return states.load(self, state_dict, strict, assign)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], strict: bool,
        missing_keys: list[str], unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:  # fmt: skip
        states.load_own(
            self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )  # fmt: skip

    def get_extra_state(self) -> Any:
        """What else state_dict() holds, in modules that have this method."""
        raise NotImplementedError(f"{type(self).__name__} has no extra state")

    def set_extra_state(self, state: Any) -> None:
        """Take over what get_extra_state() gave."""
        raise NotImplementedError(f"{type(self).__name__} has no extra state")

    # --- hooks ---

    def _hooked(self) -> Hooks:
        if self._hooks is None:
            self._hooks = Hooks()
        return self._hooks

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call `hook(module, args)` before forward; what it returns, if anything, are the new arguments."""
        return hooking.add(self._hooked().forward_pre, hook, with_kwargs, prepend)

    def register_forward_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False, with_kwargs: bool = False, always_call: bool = False
    ) -> RemovableHandle:
        """Call `hook(module, args, output)` after forward; what it returns, if anything, is the new output."""
        return hooking.add(self._hooked().forward, hook, with_kwargs, prepend)

    def register_full_backward_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call `hook(module, grad_output)` when the gradients of the results are there; it may return others."""
        return hooking.add(self._hooked().backward_pre, hook, False, prepend)

    def register_full_backward_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call `hook(module, grad_input, grad_output)` when the gradients of the inputs are there; it may return
        others."""
        return hooking.add(self._hooked().backward, hook, False, prepend)

    def register_backward_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """register_full_backward_hook, by its old name."""
        return self.register_full_backward_hook(hook)

    def register_state_dict_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(module, prefix, keep_vars)` before the state is taken."""
        return hooking.add(self._hooked().state_pre, hook)

    def register_state_dict_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(module, state_dict, prefix, local_metadata)` when the state was taken; it may change it."""
        return hooking.add(self._hooked().state, hook)

    _register_state_dict_hook = register_state_dict_post_hook

    def register_load_state_dict_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(module, state_dict, prefix, ...)` before this module's part of a state is loaded."""
        return hooking.add(self._hooked().load_pre, hook)

    def register_load_state_dict_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(module, incompatible_keys)` when a state was read; it may change these lists."""
        return hooking.add(self._hooked().load_post, hook)

    # --- text ---

    def _get_name(self) -> str:
        return self.__class__.__name__

    def extra_repr(self) -> str:
        """What stands in the parentheses."""
        return ""

    def __repr__(self) -> str:
        extra = self.extra_repr().split("\n") if self.extra_repr() else []
        inner = [f"({k}): {indented(repr(m))}" for k, m in self._modules.items()]
        return written(self._get_name(), extra, inner)

    def type(self, dst_type: Any) -> Self:
        """All parameters and buffers as another type."""
        return self._apply(lambda t: t.type(dst_type))


def indented(text: str) -> str:
    """The text of a module inside another."""
    first, *rest = text.split("\n")
    return "\n".join([first, *("  " + line if line.strip() else "" for line in rest)])


def written(name: str, extra: list[str], inner: list[str]) -> str:
    """A module's text: what it is, and what is inside."""
    if not inner and len(extra) <= 1:
        return f"{name}({''.join(extra)})"
    return f"{name}(\n  " + "\n  ".join([*extra, *inner]) + "\n)"
