"""Module: a thing with parameters and a forward()."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from gt.client.autograd import set_grad
from gt.client.recorder import recorder
from gt.client.tensor import Parameter, Tensor
from gt.errors import ArgumentError, ShapeError


class Module:
    """The base of all layers and models; use it like torch.nn.Module."""

    training: bool = True
    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _modules: dict[str, Module | None]

    def __init__(self) -> None:
        self.__dict__.update(_parameters={}, _buffers={}, _modules={}, training=True)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{type(self).__name__} has no forward()")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        trace = recorder().trace
        if trace is not None:
            trace.mode(self)
        return self.forward(*args, **kwargs)

    # --- attributes ---

    def __setattr__(self, name: str, value: Any) -> None:
        if "_parameters" not in self.__dict__ and isinstance(value, (Parameter, Module)):
            raise AttributeError(f"{type(self).__name__}: call super().__init__() before setting {name}")
        for store in ("_parameters", "_buffers", "_modules"):
            if store in self.__dict__:
                self.__dict__[store].pop(name, None) if not _belongs(store, value) else None
        if isinstance(value, Parameter):
            self.__dict__.pop(name, None)
            self._parameters[name] = value
        elif isinstance(value, Module):
            self.__dict__.pop(name, None)
            self._modules[name] = value
        elif isinstance(value, Tensor) and name in self.__dict__.get("_buffers", {}):
            self._buffers[name] = value
        else:
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        for store in ("_parameters", "_buffers", "_modules"):
            found = self.__dict__.get(store, {})
            if name in found:
                return found[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __delattr__(self, name: str) -> None:
        for store in ("_parameters", "_buffers", "_modules"):
            if name in self.__dict__.get(store, {}):
                del self.__dict__[store][name]
                return
        object.__delattr__(self, name)

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        self._parameters[name] = param

    def register_buffer(self, name: str, tensor: Tensor | None) -> None:
        """A tensor that belongs to the module's state but is not trained."""
        self._buffers[name] = tensor

    def add_module(self, name: str, module: Module | None) -> None:
        self._modules[name] = module

    # --- walking ---

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        seen: set[int] = set()
        stack: list[tuple[str, Module]] = [(prefix, self)]
        while stack:
            name, module = stack.pop()
            if id(module) in seen:
                continue
            seen.add(id(module))
            yield name, module
            below = [(f"{name}.{k}" if name else k, m) for k, m in module._modules.items() if m is not None]
            stack.extend(reversed(below))

    def modules(self) -> Iterator[Module]:
        return (m for _, m in self.named_modules())

    def children(self) -> Iterator[Module]:
        return (m for m in self._modules.values() if m is not None)

    def named_children(self) -> Iterator[tuple[str, Module]]:
        return ((k, m) for k, m in self._modules.items() if m is not None)

    def _named(self, store: str, prefix: str = "") -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        for name, module in self.named_modules(prefix):
            for k, t in getattr(module, store).items():
                if t is not None and id(t) not in seen:
                    seen.add(id(t))
                    yield (f"{name}.{k}" if name else k), t

    def named_parameters(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        return self._named("_parameters", prefix)

    def parameters(self) -> Iterator[Parameter]:
        return (p for _, p in self.named_parameters())

    def named_buffers(self, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
        return self._named("_buffers", prefix)

    def buffers(self) -> Iterator[Tensor]:
        return (b for _, b in self.named_buffers())

    # --- modes and state ---

    def train(self, mode: bool = True) -> Module:
        for m in self.modules():
            m.__dict__["training"] = mode
        return self

    def eval(self) -> Module:
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Module:
        for p in self.parameters():
            p.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        for p in self.parameters():
            if p.grad is not None:
                if set_to_none:
                    p.grad = None
                else:
                    p.grad.zero_()

    def apply(self, fn: Callable[[Module], None]) -> Module:
        for m in self.children():
            m.apply(fn)
        fn(self)
        return self

    def to(self, *args: Any, **kwargs: Any) -> Module:
        """Cast parameters and buffers; devices are the server's affair."""
        for _, t in [*self._named("_parameters"), *self._named("_buffers")]:
            if t.is_floating_point():
                new = t.detach().to(*args, **kwargs)
                if new.dtype is not t.dtype:
                    t.data = new
        return self

    def double(self) -> Module:
        return self.to(dtype="float64")

    def float(self) -> Module:
        return self.to(dtype="float32")

    def state_dict(self) -> OrderedDict[str, Tensor]:
        """Parameters and buffers by name; the tensors share memory with the module's."""
        state: OrderedDict[str, Tensor] = OrderedDict()
        for name, module in self.named_modules():
            for k, t in [*module._parameters.items(), *module._buffers.items()]:
                if t is not None:
                    state[f"{name}.{k}" if name else k] = t.detach()
        return state

    def load_state_dict(self, state_dict: Any, strict: bool = True) -> None:
        """Copy values in by name: tensors, numpy arrays, torch tensors on the CPU."""
        mine = self.state_dict()
        missing, extra = sorted(mine.keys() - state_dict.keys()), sorted(state_dict.keys() - mine.keys())
        if strict and (missing or extra):
            raise ArgumentError(f"load_state_dict: missing {missing}, not known {extra}")
        for k, t in mine.items():
            if k in state_dict:
                new = state_dict[k]
                if tuple(new.shape) != t.shape:
                    raise ShapeError(f"load_state_dict: {k} has shape {t.shape}, the one given {tuple(new.shape)}")
                with set_grad(False):
                    t.copy_(new.detach() if isinstance(new, Tensor) else _array(new))

    # --- text ---

    def extra_repr(self) -> str:
        return ""

    def __repr__(self) -> str:
        inner = [f"({k}): " + repr(m).replace("\n", "\n  ") for k, m in self.named_children()]
        if not inner:
            return f"{type(self).__name__}({self.extra_repr()})"
        return f"{type(self).__name__}(\n  " + "\n  ".join(inner) + "\n)"


def _belongs(store: str, value: Any) -> bool:
    kind = {"_parameters": Parameter, "_buffers": Tensor, "_modules": Module}[store]
    return isinstance(value, kind) or (value is None and store == "_buffers")


def _array(x: Any) -> Any:
    return x.detach().cpu().numpy() if hasattr(x, "detach") else x


class Sequential(Module):
    """Modules one after another."""

    def __init__(self, *modules: Any) -> None:
        super().__init__()
        items = modules[0].items() if len(modules) == 1 and isinstance(modules[0], dict) else enumerate(modules)
        for name, m in items:
            self.add_module(str(name), m)

    def forward(self, x: Any) -> Any:
        for m in self.children():
            x = m(x)
        return x

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return self.children()

    def __getitem__(self, i: Any) -> Any:
        items = list(self.children())
        return Sequential(*items[i]) if isinstance(i, slice) else items[i]


class ModuleList(Module):
    """A list whose modules are found by parameters() and state_dict()."""

    def __init__(self, modules: Any = ()) -> None:
        super().__init__()
        for m in modules:
            self.append(m)

    def append(self, module: Module) -> ModuleList:
        self.add_module(str(len(self._modules)), module)
        return self

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return self.children()

    def __getitem__(self, i: Any) -> Any:
        items = list(self.children())
        return ModuleList(items[i]) if isinstance(i, slice) else items[i]
