"""Lists and dicts of modules and parameters, which parameters() and state_dict() include."""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import Any, Self

from gt.client.tensor import Parameter, Tensor
from gt.errors import ArgumentError, DTypeError
from gt.nn.module import Module, indented, written

__all__ = ["DataParallel", "ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "Sequential"]


def _place(index: Any, size: int) -> int:
    """A non-negative index."""
    i = operator.index(index)
    if not -size <= i < size:
        raise IndexError(f"index {i} is out of range for {size} elements")
    return i % size


class _Listed(Module):
    """Modules in order, named 0, 1, 2, ...; a Sequential may have other names."""

    _modules: dict[str, Any]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._modules.values())

    def _key(self, index: Any) -> str:
        return list(self._modules)[_place(index, len(self))]

    def __setitem__(self, idx: int, module: Module) -> None:
        setattr(self, self._key(idx), module)

    def __delitem__(self, idx: int | slice) -> None:
        for key in list(self._modules)[idx] if isinstance(idx, slice) else [self._key(idx)]:
            del self._modules[key]
        self._number(self._modules.values())

    def _number(self, modules: Iterable[Any]) -> None:
        """Replace the modules, with names 0, 1, 2, ..."""
        modules = list(modules)
        self._modules.clear()
        self._modules.update({str(i): m for i, m in enumerate(modules)})

    def append(self, module: Module) -> Self:
        """Append a module."""
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Module]) -> Self:
        """Append modules."""
        if not isinstance(modules, Iterable):
            raise DTypeError(f"extend: expected an iterable of modules, got {type(modules).__name__}")
        for module in list(modules):
            self.append(module)
        return self

    def pop(self, key: Any) -> Any:
        """Remove a module or a slice of modules and return it."""
        found = self[key]  # type: ignore[index]  # every subclass defines it
        del self[key]
        return found

    def _insert(self, index: int, module: Module) -> None:
        if not isinstance(module, Module):
            raise DTypeError(f"insert: expected a Module, got {type(module).__name__}")
        if not -len(self) <= index <= len(self):
            raise IndexError(f"index {index} is out of range for {len(self)} modules")
        modules = list(self._modules.values())
        modules.insert(index if index >= 0 else index + len(self), module)
        self._number(modules)


class Sequential(_Listed):
    """Modules called one after the other."""

    def __init__(self, *args: Any) -> None:
        super().__init__()
        items = args[0].items() if len(args) == 1 and isinstance(args[0], dict) else enumerate(args)
        for name, module in items:
            self.add_module(str(name), module)

    def forward(self, input: Any) -> Any:
        for module in self._modules.values():
            input = module(input)
        return input

    def __getitem__(self, idx: Any) -> Any:
        if isinstance(idx, slice):
            return type(self)(OrderedDict(list(self._modules.items())[idx]))
        return self._modules[self._key(idx)]

    def insert(self, index: int, module: Module) -> Self:
        """Insert a module before index."""
        self._insert(index, module)
        return self

    def __add__(self, other: Any) -> Sequential:
        return Sequential().extend(self).extend(_sequential("+", other))

    def __iadd__(self, other: Any) -> Self:
        return self.extend(_sequential("+=", other))

    def __mul__(self, other: int) -> Sequential:
        return Sequential(*[m for _ in range(_times(other)) for m in self])

    def __imul__(self, other: int) -> Self:
        return self.extend([m for _ in range(_times(other) - 1) for m in list(self)])

    __rmul__ = __mul__


def _sequential(sign: str, other: Any) -> Sequential:
    if not isinstance(other, Sequential):
        raise ArgumentError(f"Sequential {sign}: expected a Sequential, got {type(other).__name__}")
    return other


def _times(n: Any) -> int:
    if not isinstance(n, int):
        raise DTypeError(f"Sequential *: expected an int, got {type(n).__name__}")
    if n <= 0:
        raise ArgumentError(f"Sequential *: expected an int > 0, got {n}")
    return n


class ModuleList(_Listed):
    """A list of modules."""

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        self.extend(modules or ())

    def __getitem__(self, idx: Any) -> Any:
        if isinstance(idx, slice):
            return type(self)(list(self._modules.values())[idx])
        return self._modules[self._key(idx)]

    def insert(self, index: int, module: Module) -> None:
        """Insert a module before index."""
        self._insert(index, module)

    def __add__(self, other: Iterable[Module]) -> ModuleList:
        return ModuleList([*self, *other])

    def __iadd__(self, other: Iterable[Module]) -> Self:
        return self.extend(other)

    def __repr__(self) -> str:
        runs: list[list[Any]] = []  # first, last, repr: consecutive modules with the same repr are shown once
        for i, text in enumerate(map(repr, self)):
            if runs and runs[-1][2] == text:
                runs[-1][1] = i
            else:
                runs.append([i, i, text])
        lines = [f"({a}): {text}" if a == b else f"({a}-{b}): {b - a + 1} x {text}" for a, b, text in runs]
        return written(self._get_name(), [], [indented(line) for line in lines])


def _pairs(kind: str, given: Any) -> list[tuple[str, Any]]:
    """Names and values of a mapping or of an iterable of pairs."""
    if isinstance(given, (Mapping, ModuleDict, ParameterDict)):
        return list(given.items())
    try:
        return [(k, v) for k, v in given]
    except (TypeError, ValueError):
        raise DTypeError(f"{kind}: expected a mapping or pairs of name and value, got {type(given).__name__}") from None


class ModuleDict(Module):
    """A dict of modules."""

    _modules: dict[str, Any]

    def __init__(self, modules: Any = None) -> None:
        super().__init__()
        self.update(modules or {})

    def __getitem__(self, key: str) -> Any:
        return self._modules[key]

    def __setitem__(self, key: str, module: Module) -> None:
        self.add_module(key, module)

    def __delitem__(self, key: str) -> None:
        del self._modules[key]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __contains__(self, key: str) -> bool:
        return key in self._modules

    def clear(self) -> None:
        """Remove all modules."""
        self._modules.clear()

    def pop(self, key: str) -> Any:
        """Remove a module and return it."""
        return self._modules.pop(key)

    def keys(self) -> KeysView[str]:
        """The names."""
        return self._modules.keys()

    def items(self) -> ItemsView[str, Any]:
        """Names and modules."""
        return self._modules.items()

    def values(self) -> ValuesView[Any]:
        """The modules."""
        return self._modules.values()

    def update(self, modules: Any) -> None:
        """Add or replace modules."""
        for name, module in _pairs("ModuleDict", modules):
            self[name] = module


def _parameter(value: Any) -> Any:
    """A tensor as a parameter; any other value unchanged."""
    return Parameter(value) if isinstance(value, Tensor) and not isinstance(value, Parameter) else value


def _line(key: Any, value: Any) -> str:
    if not isinstance(value, Tensor):
        return f"  ({key}): Object of type: {type(value).__name__}"
    return f"  ({key}): Parameter containing: [{value.dtype!r} of size {'x'.join(map(str, value.shape))}]"


class ParameterList(Module):
    """A list of parameters."""

    def __init__(self, values: Iterable[Any] | None = None) -> None:
        super().__init__()
        self._size = 0
        self.extend(values or ())

    def __getitem__(self, idx: Any) -> Any:
        if isinstance(idx, slice):
            return type(self)([self[i] for i in range(len(self))[idx]])
        return getattr(self, str(_place(idx, len(self))))

    def __setitem__(self, idx: int, param: Any) -> None:
        setattr(self, str(_place(idx, len(self))), _parameter(param))

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __iadd__(self, parameters: Iterable[Any]) -> Self:
        return self.extend(parameters)

    def append(self, value: Any) -> Self:
        """Append a value."""
        self._size += 1
        self[self._size - 1] = value
        return self

    def extend(self, values: Iterable[Any]) -> Self:
        """Append values."""
        if not isinstance(values, Iterable) or isinstance(values, Tensor):
            raise DTypeError(f"ParameterList: expected an iterable of parameters, got {type(values).__name__}")
        for value in list(values):
            self.append(value)
        return self

    def extra_repr(self) -> str:
        return "\n".join(_line(k, p) for k, p in enumerate(self))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("ParameterList cannot be called")


class ParameterDict(Module):
    """A dict of parameters."""

    def __init__(self, parameters: Any = None) -> None:
        super().__init__()
        self._keys: dict[str, None] = {}
        self.update(parameters or {})

    def __getitem__(self, key: str) -> Any:
        return getattr(self, self._name(key))

    def __setitem__(self, key: str, value: Any) -> None:
        name = self._name(key)
        self._keys[key] = None
        setattr(self, name, _parameter(value))

    def _name(self, key: Any) -> str:
        if not isinstance(key, str):
            raise DTypeError(f"ParameterDict: names must be strings, got {type(key).__name__}")
        return key

    def __delitem__(self, key: str) -> None:
        del self._keys[key]
        delattr(self, key)

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __reversed__(self) -> Iterator[str]:
        return reversed(self._keys)

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def copy(self) -> ParameterDict:
        """A copy with the same parameters."""
        return ParameterDict(OrderedDict(self.items()))

    def setdefault(self, key: str, default: Any = None) -> Any:
        """The value of key, which is set to default if it is missing."""
        if key not in self:
            self[key] = default
        return self[key]

    def clear(self) -> None:
        """Remove all parameters."""
        for key in list(self._keys):
            del self[key]

    def pop(self, key: str) -> Any:
        """Remove a parameter and return it."""
        value = self[key]
        del self[key]
        return value

    def popitem(self) -> tuple[str, Any]:
        """Remove the last parameter and return its name and value."""
        key = list(self._keys)[-1]
        return key, self.pop(key)

    def get(self, key: str, default: Any = None) -> Any:
        """The value of key, or default if it is missing."""
        return self[key] if key in self else default

    def fromkeys(self, keys: Iterable[str], default: Any = None) -> ParameterDict:
        """A ParameterDict with one value for all keys."""
        return ParameterDict((k, default) for k in keys)

    def keys(self) -> KeysView[str]:
        """The names."""
        return self._keys.keys()

    def items(self) -> Iterator[tuple[str, Any]]:
        """Names and parameters."""
        return ((k, self[k]) for k in self._keys)

    def values(self) -> Iterator[Any]:
        """The parameters."""
        return (self[k] for k in self._keys)

    def update(self, parameters: Any) -> None:
        """Add or replace parameters."""
        pairs = _pairs("ParameterDict", parameters)
        plain = isinstance(parameters, Mapping) and not isinstance(parameters, OrderedDict)
        for key, value in sorted(pairs, key=lambda p: p[0]) if plain else pairs:  # as torch does
            self[key] = value

    def __or__(self, other: ParameterDict) -> ParameterDict:
        both = self.copy()
        both.update(other)
        return both

    def __ior__(self, other: ParameterDict) -> Self:
        self.update(other)
        return self

    def extra_repr(self) -> str:
        return "\n".join(_line(k, p) for k, p in self.items())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("ParameterDict cannot be called")


class DataParallel(Module):
    """A wrapper with the model as `module`; the server distributes the work, so it only calls the model."""

    def __init__(self, module: Module, device_ids: Any = None, output_device: Any = None, dim: int = 0) -> None:
        super().__init__()
        self.module, self.dim, self.device_ids = module, dim, device_ids

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        return self.module(*inputs, **kwargs)
