"""Names of tensors, as a user would say them: "model.blocks.0.up.weight", "optimizer.exp_avg:model.head.weight".

A plan names the inputs of a step, and is used for other tensors than those that it was made for: made on paper, used on
a cluster. Both sides find the tensors in the same way: from the user's variables, by what modules and optimizers call
their own.

Law 1: nothing is recorded and nothing is read here. A view that is out of date stays so.
Law 2: a tensor has one name: that in a module, else that in an optimizer, else that of a variable. No two tensors have
       the same name.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from gt.client.programs.pending import Value
from gt.client.tensor import Leaf, Tensor
from gt.config import PACKAGE

DEPTH = 4  #: How deep objects and containers of the user are searched.
ITEMS = 10_000  #: Objects that are looked at, at most: a user's variables may hold anything.


class Named(NamedTuple):
    """A tensor that was found."""

    name: str
    role: str  #: "parameter", "state", "buffer" or "data"
    tensor: Tensor


def value_of(t: Tensor) -> Value:
    """The value that a tensor had when it was last written or read."""
    if t._v is not None:
        return t._v
    assert t._x is not None
    return t._x.cell.value


def named_tensors(objects: Mapping[str, Any]) -> list[Named]:
    """The tensors in these objects (modules, optimizers, tensors, and what contains them), with their names.

    >>> import gt
    >>> model = gt.nn.Linear(2, 3)
    >>> optimizer = gt.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    >>> [name for name, role, _ in named_tensors({"optimizer": optimizer, "model": model}) if "weight" in name]
    ['model.weight', 'optimizer.momentum_buffer:model.weight']
    """
    found = _Found()
    everything = list(_walk(objects))
    for name, each in everything:
        if is_module(each):
            found.add_module(name, each)
    for name, each in everything:
        if _is_optimizer(each):
            found.add_optimizer(name, each)
    for name, each in everything:
        if isinstance(each, Tensor):
            found.add(name, "parameter" if type(each._fn) is Leaf else "data", each)
    found.add_gradients()
    return list(found.named.values())


class _Found:
    """What was found so far: Law 2."""

    def __init__(self) -> None:
        self.named: dict[str, Named] = {}
        self._names: dict[int, str] = {}  #: By the id of a value. Tensors that share memory have one value.

    def add(self, name: str, role: str, t: Any) -> None:
        if not isinstance(t, Tensor) or id(value_of(t)) in self._names:
            return
        plain, count = name, 1
        while name in self.named:
            count += 1
            name = f"{plain} ({count})"
        self.named[name] = Named(name, role, t)
        self._names[id(value_of(t))] = name

    def add_module(self, name: str, module: Any) -> None:
        for path, p in module.named_parameters():
            self.add(_joined(name, path), "parameter", p)
        for path, b in module.named_buffers():
            self.add(_joined(name, path), "buffer", b)
        for path, part in module.named_modules():  # tables that were not registered
            for attribute, x in vars(part).items():
                for inner, t in _walk({attribute: x} if isinstance(x, (Tensor, list, tuple, dict)) else {}):
                    if isinstance(t, Tensor):
                        self.add(_joined(name, path, inner), "buffer", t)

    def add_optimizer(self, name: str, optimizer: Any) -> None:
        for g, group in enumerate(optimizer.param_groups):
            for k, p in enumerate(group["params"]):
                self.add(_joined(name, "params", str(g), str(k)), "parameter", p)
        for p, state in list(optimizer.state.items()):
            of = self._names.get(id(value_of(p))) if isinstance(p, Tensor) else None
            for path, t in _walk(state if isinstance(state, dict) else {}):
                self.add(f"{_joined(name, path)}:{of}" if of else _joined(name, path), "state", t)

    def add_gradients(self) -> None:
        for name, _, t in list(self.named.values()):
            if type(t._fn) is Leaf and t._fn.grad is not None:
                self.add(f"{name}.grad", "state", t._fn.grad)


def _joined(*parts: str) -> str:
    return ".".join([p for p in parts if p])


def is_module(x: Any) -> bool:
    """Whether an object has parameters and buffers with names."""
    return hasattr(x, "named_parameters") and hasattr(x, "named_buffers") and not isinstance(x, type)


def _is_optimizer(x: Any) -> bool:
    return isinstance(getattr(x, "param_groups", None), list) and isinstance(getattr(x, "state", None), dict)


def _walk(objects: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Modules, optimizers and tensors, with the path to each. Nothing twice, the nearest first."""
    seen: set[int] = set()
    level: list[tuple[str, Any]] = [(str(name), x) for name, x in objects.items()]
    for _ in range(DEPTH):
        below: list[tuple[str, Any]] = []
        for name, x in level:
            if id(x) in seen or len(seen) > ITEMS:
                continue
            if isinstance(x, Tensor) or is_module(x) or _is_optimizer(x):
                seen.add(id(x))
                yield name, x
            else:
                inside = _inside(x)
                if inside:
                    seen.add(id(x))
                    below += [(_joined(name, part), each) for part, each in inside]
        level = below


def _inside(x: Any) -> list[tuple[str, Any]]:
    """What a container or an object of the user's own contains."""
    if isinstance(x, Mapping):
        return [(str(k), v) for k, v in list(x.items())]
    if isinstance(x, tuple) and isinstance(fields := getattr(x, "_fields", None), tuple):
        return [(str(k), v) for k, v in zip(fields, x, strict=False)]
    if isinstance(x, (list, tuple, set)):
        return [(str(k), v) for k, v in enumerate(x)]
    if isinstance(x, (type, ModuleType, FunctionType, MethodType)):
        return []
    own = getattr(x, "__dict__", None)
    return [(k, v) for k, v in own.items() if isinstance(k, str)] if isinstance(own, dict) else []


# --- the variables of a function ------------------------------------------------------------------------


def variables_of(
    step: Callable[..., Any], args: Iterable[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What a function can reach, by name: its arguments, then the variables around it, then global variables that it or
    a function of the user's that it calls names.

    >>> w = [1.0]
    >>> def step(x):
    ...     return w
    >>> sorted(variables_of(step, [2.0]))
    ['w', 'x']
    """
    found: dict[str, Any] = {}
    for name, x in (*_arguments(step, tuple(args), dict(kwargs or {})).items(), *_around(step, set())):
        if name in found and found[name] is not x:
            count = 2
            while f"{name} ({count})" in found:
                count += 1
            name = f"{name} ({count})"
        found[name] = x
    return found


def _arguments(step: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments by the names of the parameters; those of `*args` by name and number."""
    try:
        bound = inspect.signature(step).bind(*args, **kwargs)
    except (TypeError, ValueError):  # the call itself will say what is wrong with it
        return {**{f"argument {k}": x for k, x in enumerate(args)}, **kwargs}
    found: dict[str, Any] = {}
    for name, x in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            found.update({f"{name}.{k}": each for k, each in enumerate(x)})
        elif kind is inspect.Parameter.VAR_KEYWORD:
            found.update(x)
        else:
            found[name] = x
    return found


def _around(f: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """The variables that a function names and that are not its own."""
    if id(f) in seen:
        return
    seen.add(id(f))
    if isinstance(f, functools.partial):
        yield from _arguments(f.func, f.args, f.keywords).items()
        yield from _around(f.func, seen)
        return
    wrapped = getattr(f, "__wrapped__", None)
    if wrapped is not None:  # a @gt.function, or another decorator that says what it wraps
        yield from _around(wrapped, seen)
        return
    if isinstance(f, MethodType):
        own = getattr(f.__self__, "__dict__", {})
        yield from ([("self", f.__self__)] if is_module(f.__self__) or _is_optimizer(f.__self__) else own.items())
        yield from _around(f.__func__, seen)
        return
    if not isinstance(f, FunctionType):
        if not isinstance(f, type):  # an object that can be called
            yield from getattr(f, "__dict__", {}).items()
        return
    if f.__code__.co_filename.startswith(str(PACKAGE)):
        return
    named = list(_named_by(f))
    yield from [(name, x) for name, x in named if not isinstance(x, (FunctionType, ModuleType, type))]
    for _, x in named:
        if isinstance(x, (FunctionType, MethodType, functools.partial)) or hasattr(x, "__wrapped__"):
            yield from _around(x, seen)


def _named_by(f: FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(f.__code__.co_freevars, f.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    for name in dict.fromkeys(_global_names(f.__code__)):
        if name in f.__globals__:
            yield name, f.__globals__[name]


def _global_names(code: CodeType) -> Iterator[str]:
    """The names that a function and the functions inside of it look up."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)
