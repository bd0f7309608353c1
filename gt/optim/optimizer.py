"""The base of all optimizers: parameter groups, the state of each parameter, and the end of a step.

A step records one instruction per parameter and marks the end of the program. Settings and step counts are passed by
value, so changing them makes no new program. The state is created with the optimizer, so that the first step records
the same program as the later ones.

A subclass defines its state in `_initial_state` or `_layout`, and the update of one parameter in `_updater`; or it
defines `step` and keeps any state in `self.state[p]`, as in torch.
"""

from __future__ import annotations

import functools
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from gt.client.compat.arguments import rebuilt
from gt.client.compat.interop import from_torch, is_torch
from gt.client.functions import creation
from gt.client.functions.complexes import view_as_complex, view_as_real
from gt.client.grad.modes import set_grad
from gt.client.mesh import sharding
from gt.client.record.recorder import recorder
from gt.client.tensor import Leaf, RemovableHandle, Tensor, own
from gt.dtypes import DType
from gt.errors import ArgumentError, ShapeError
from gt.optim.recording import decided

Group = dict[str, Any]
State = dict[str, Any]
Layout = tuple[dict[str, float], dict[str, float]]
#: Updates one parameter, given its gradient and state.
Update = Callable[[Tensor, Tensor, State], None]


def _hooked(step: Callable[..., Any]) -> Callable[..., Any]:
    """Run the hooks before and after a step, and end the program after it."""

    @functools.wraps(step)
    def whole(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        if self._stepping:
            return step(self, *args, **kwargs)  # a subclass calls super().step()
        self._stepping = True
        try:
            args = (self, *args)
            for hook in list(self._hooks["step_pre"]):
                made = hook(self, args, kwargs)
                if made is not None:
                    if not isinstance(made, tuple) or len(made) != 2:
                        raise ArgumentError("a step pre-hook must return None or (args, kwargs)")
                    args, kwargs = made
            result = step(*args, **kwargs)
            self._opt_called = True  # schedulers check it
            for hook in list(self._hooks["step_post"]):
                hook(self, args, kwargs)
        finally:
            self._stepping = False
        recorder().mark()
        return result

    return whole


def defaults(optimizer: Optimizer, arguments: dict[str, Any], *nonnegative: str, **changed: Any) -> dict[str, Any]:
    """The defaults of an optimizer's groups: the arguments of its constructor, as `locals()` has them. The named ones
    must be >= 0; betas are checked wherever there are any."""
    given = {k: v for k, v in arguments.items() if k not in ("self", "params", "__class__")} | changed
    if "betas" in given:
        given["betas"] = tuple(given["betas"])
    least = {k: given[k] for k in nonnegative}
    below_one = {f"betas[{i}]": beta for i, beta in enumerate(given.get("betas", ()))}
    name = type(optimizer).__name__
    for setting, value in (least | below_one).items():
        if isinstance(value, Tensor):
            raise ArgumentError(f"{name}: {setting} must be a Python number, got a tensor; it may change at each step")
        if not value >= 0 or (setting in below_one and value >= 1):
            wanted = "in [0, 1)" if setting in below_one else ">= 0"
            raise ArgumentError(f"{name}: {setting} must be {wanted}, got {value}")
    return given


class Optimizer:
    """The base of all optimizers: groups of parameters with their settings, and a state for each parameter."""

    _uneven = False  #: Whether some parameters have taken more steps than others; see recording.InStep.

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "step" in cls.__dict__:
            cls.step = _hooked(cls.step)  # type: ignore[method-assign]  # hooks also run around a user's step()

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        self.defaults = defaults
        self.param_groups: list[Group] = []
        self.state: defaultdict[Tensor, State] = defaultdict(dict)
        self._hooks: defaultdict[str, list[Callable[..., Any]]] = defaultdict(list)
        self._stepping = False
        self._opt_called = False
        if isinstance(own(params), Tensor):
            raise ArgumentError("an optimizer expects a list of tensors or of groups, got one tensor")
        groups = list(params)
        if not groups:
            raise ArgumentError("an optimizer expects parameters, got an empty list")
        if not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        for group in groups:
            self.add_param_group(group)

    # --- what a subclass defines ---

    #: The state of a parameter: initial numbers, and initial values of its tensors, by name.
    #: Names that start with an underscore are not part of a state_dict.
    _initial_state: ClassVar[Layout] = ({}, {})

    def _layout(self, group: Group) -> Layout:
        """The state of a parameter of this group, if that depends on the group's settings."""
        return self._initial_state

    def _updater(self, group: Group) -> Update:
        """Read the group's settings, and return the function that updates one of its parameters."""
        raise NotImplementedError(f"{type(self).__name__} has no step()")

    def _export(self, state: State) -> State:
        """The part of a parameter's state that is saved."""
        return {k: v for k, v in state.items() if not k.startswith("_")}

    def _import(self, saved: State) -> State:
        """A saved state, completed with what `_export` left out."""
        return saved

    # --- parameters ---

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters with its own settings."""
        if not isinstance(param_group, dict):
            raise ArgumentError(f"add_param_group: expected a dict with 'params', got {type(param_group).__name__}")
        group = param_group
        given = group["params"]
        if isinstance(given, set):
            raise ArgumentError("an optimizer expects parameters in a list; a set has no order")
        params = [given] if isinstance(own(given), Tensor) else list(given)
        names = [p[0] for p in params if isinstance(p, tuple)]
        if names:
            if len(names) != len(params):
                raise ArgumentError("either all parameters of a group have names, or none")
            params = [p[1] for p in params]
            group["param_names"] = names
        params = [own(p) for p in params]  # those of an adopted model, too
        for p in params:
            if not isinstance(p, Tensor):
                raise ArgumentError(f"an optimizer expects tensors, got {type(p).__name__}")
            if not p.is_leaf:
                raise ArgumentError("an optimizer expects leaf tensors, got the result of a computation")
        others = {p for g in self.param_groups for p in g["params"]}
        if not others.isdisjoint(params):
            raise ArgumentError("a parameter appears in more than one group")
        if any(("param_names" in g) != bool(names) for g in self.param_groups):
            raise ArgumentError("either all groups have parameter names, or none")
        if len(set(params)) != len(params):
            warnings.warn("a parameter appears twice in one group; each step will update it twice", stacklevel=2)
        group["params"] = params
        for name, default in self.defaults.items():
            group.setdefault(name, default)
        numbers, tensors = self._layout(group)
        with set_grad(False):
            for p in params:
                if p.requires_grad and (numbers or tensors):
                    self._complete(p, self.state[p], numbers, tensors)
        self.param_groups.append(group)
        recorder().mark()

    def _complete(self, p: Tensor, state: State, numbers: dict[str, float], tensors: dict[str, float]) -> None:
        """Create the missing state of a parameter that was frozen before, or whose group's settings changed."""
        trace = recorder().trace
        if trace is not None:
            trace.clear = False  # state is created once: only the next run is like the later ones
        for name, value in numbers.items():
            state.setdefault(name, value)
        make = sharding.filled_like if recorder().session.meshes.several else creation.full_like
        for name, value in tensors.items():
            if name not in state:
                parted = bool(value) and p.dtype.is_complex  # then real and imaginary parts begin with it
                state[name] = view_as_complex(make(view_as_real(p), value)).clone() if parted else make(p, value)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, or set them to zero."""
        untraced = recorder().trace is None
        for group in self.param_groups:
            for p in group["params"]:
                if set_to_none and untraced and type(p._fn) is Leaf:
                    p._fn.grad = None  # the effect of `p.grad = None`, faster
                    continue
                g = p.grad
                if g is None:
                    continue
                if set_to_none:
                    p.grad = None
                else:
                    with set_grad(False):
                        g.detach_().zero_()

    # --- the step ---

    @_hooked
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient. The program ends here."""
        loss = None
        if closure is not None:
            with set_grad(True):
                loss = closure()
        decided(lambda: [len(g["params"]) for g in self.param_groups])
        untraced = recorder().trace is None  # a trace must record whose gradients are read
        with set_grad(False):
            for group in self.param_groups:
                update = self._updater(group)
                numbers, tensors = self._layout(group)
                size = len(numbers) + len(tensors)
                for p in group["params"]:
                    g = p._fn.grad if untraced and type(p._fn) is Leaf else p.grad
                    if g is not None:
                        state = self.state[p] if size else {}
                        if len(state) < size:
                            self._complete(p, state, numbers, tensors)
                        update(p, g, state)
                    del g
        return loss

    # --- hooks ---

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(optimizer, args, kwargs)` before each step; it may return new arguments."""
        return RemovableHandle(self._hooks["step_pre"], hook)

    def register_step_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(optimizer, args, kwargs)` after each step."""
        return RemovableHandle(self._hooks["step_post"], hook)

    def register_state_dict_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call `hook(optimizer)` before each state_dict()."""
        return RemovableHandle(self._hooks["save_pre"], hook, prepend)

    def register_state_dict_post_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call `hook(optimizer, state_dict)` after each state_dict(); it may return another."""
        return RemovableHandle(self._hooks["save_post"], hook, prepend)

    def register_load_state_dict_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call `hook(optimizer, state_dict)` before a state_dict is loaded; it may return another."""
        return RemovableHandle(self._hooks["load_pre"], hook, prepend)

    def register_load_state_dict_post_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call `hook(optimizer)` after a state_dict was loaded."""
        return RemovableHandle(self._hooks["load_post"], hook, prepend)

    # --- saving ---

    def state_dict(self) -> dict[str, Any]:
        """Settings and state, with parameters numbered in order."""
        for hook in list(self._hooks["save_pre"]):
            hook(self)
        number = {p: i for i, p in enumerate(p for g in self.param_groups for p in g["params"])}
        groups = [
            {**{k: v for k, v in g.items() if k != "params"}, "params": [number[p] for p in g["params"]]}
            for g in self.param_groups
        ]
        saved = {number.get(p, p): self._export(s) for p, s in self.state.items()}
        state: dict[str, Any] = {
            "state": {i: {k: _shared(v) for k, v in s.items()} for i, s in saved.items() if s},
            "param_groups": groups,
        }
        for hook in list(self._hooks["save_post"]):
            made = hook(self, state)
            state = state if made is None else made
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load settings and state, of GT or torch, parameter by parameter in order."""
        given = dict(state_dict)
        for hook in list(self._hooks["load_pre"]):
            made = hook(self, given)
            given = given if made is None else made
        groups = given["param_groups"]
        if len(groups) != len(self.param_groups):
            raise ArgumentError(f"load_state_dict: expected {len(self.param_groups)} groups, got {len(groups)}")
        for mine, theirs in zip(self.param_groups, groups, strict=True):
            if len(mine["params"]) != len(theirs["params"]):
                sizes = f"expected a group of {len(mine['params'])} parameters, got one of {len(theirs['params'])}"
                raise ArgumentError(f"load_state_dict: {sizes}")
        saved = {
            p: given["state"].get(i, {})
            for mine, theirs in zip(self.param_groups, groups, strict=True)
            for p, i in zip(mine["params"], theirs["params"], strict=True)
        }
        for p, values in saved.items():
            _check_shapes(p, values, self._layout(self.defaults)[1])
        for mine, theirs in zip(self.param_groups, groups, strict=True):
            mine.update({k: _number(v) for k, v in theirs.items() if k != "params"})
        with set_grad(False):
            for group in self.param_groups:
                for p in group["params"]:
                    self._load(p, group, saved[p])
        recorder().mark()
        for hook in list(self._hooks["load_post"]):
            hook(self)

    def _load(self, p: Tensor, group: Group, saved: State) -> None:
        """Set the state of one parameter to what was saved, or to its initial values, in the same tensors."""
        numbers, tensors = self._layout(group)
        saved = self._import(saved) if saved else {}
        state = self.state[p]
        if not saved and not state:
            del self.state[p]
            return
        self._complete(p, state, numbers, tensors)
        for name, value in numbers.items():
            state[name] = type(value)(_number(saved.get(name, value)))
        for name, value in tensors.items():
            new = saved.get(name)
            if new is None:
                state[name].fill_(value)
            else:
                state[name].copy_(_tensor(new))
        for name, new in saved.items():
            if name not in numbers and name not in tensors:
                state[name] = _taken(new, p.dtype if name != "step" and p.dtype.is_floating_point else None)

    def __repr__(self) -> str:
        groups = [
            "\n".join([f"\nParameter Group {i}", *[f"    {k}: {group[k]}" for k in sorted(group) if k != "params"]])
            for i, group in enumerate(self.param_groups)
        ]
        return f"{type(self).__name__} (" + "\n".join(groups) + "\n)"


def _shared(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _tensor(value: Any) -> Any:
    return from_torch(value) if is_torch(value) else value


def _taken(value: Any, dtype: DType | None) -> Any:
    """A copy of what a user's optimizer has saved, with its tensors in the dtype of the parameter."""
    if isinstance(value, dict):
        return {k: _taken(v, dtype) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return rebuilt(value, [_taken(v, dtype) for v in value])
    value = _tensor(value)
    if not isinstance(value, Tensor):
        return value
    value = value.detach().clone()
    return value if dtype is None else value.to(dtype)


def _number(value: Any) -> Any:
    """A setting or count as a number; it may have been saved as a tensor."""
    return value.item() if isinstance(value, Tensor) or is_torch(value) else value


def _check_shapes(p: Tensor, saved: State, tensors: dict[str, float]) -> None:
    for name in tensors:
        new = saved.get(name)
        if new is not None and tuple(new.shape) != p.shape:
            raise ShapeError(f"load_state_dict: {name} must have the shape {p.shape}, got {tuple(new.shape)}")
