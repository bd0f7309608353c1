"""What optimizers have in common: groups of parameters, their state, and the end of a step.

A step records one instruction per parameter and marks the end of the program. Settings and step counts
are passed by value, so changing them makes no new program. State is made when the optimizer is, there
and then, so that the first step is already like the others.

A subclass says in `_layout` what its state is and in `_updater` how one parameter moves; or it has a `step` of its own
and keeps what it likes in `self.state[p]`, as in torch.
"""

from __future__ import annotations

import functools
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from gt.client.compat.interop import from_torch, is_torch
from gt.client.functions import creation
from gt.client.grad.modes import set_grad
from gt.client.mesh import sharding
from gt.client.record.recorder import recorder
from gt.client.tensor import Leaf, RemovableHandle, Tensor
from gt.dtypes import DType
from gt.errors import ArgumentError, ShapeError
from gt.optim.recording import decided

Group = dict[str, Any]
State = dict[str, Any]
#: Moves one parameter, given its gradient and state.
Update = Callable[[Tensor, Tensor, State], None]


def _hooked(step: Callable[..., Any]) -> Callable[..., Any]:
    """A step with the hooks around it, and the end of the program after it."""

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
                        raise ArgumentError("a hook before a step returns None or (args, kwargs)")
                    args, kwargs = made
            result = step(*args, **kwargs)
            self._opt_called = True  # schedules ask for it
            for hook in list(self._hooks["step_post"]):
                hook(self, args, kwargs)
        finally:
            self._stepping = False
        recorder().mark()
        return result

    return whole


class Optimizer:
    """The base of all optimizers: groups of parameters with their settings, and a state for each parameter."""

    _uneven = False  #: Some parameters have taken more steps than others; see recording.InStep.

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "step" in cls.__dict__:
            cls.step = _hooked(cls.step)  # type: ignore[method-assign]  # a user's own step() gets the hooks too

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        self.defaults = defaults
        self.param_groups: list[Group] = []
        self.state: defaultdict[Tensor, State] = defaultdict(dict)
        self._hooks: defaultdict[str, list[Callable[..., Any]]] = defaultdict(list)
        self._stepping = False
        self._opt_called = False
        if isinstance(params, Tensor):
            raise ArgumentError("an optimizer takes a list of tensors or groups, not one tensor")
        groups = list(params)
        if not groups:
            raise ArgumentError("an optimizer needs parameters, and got an empty list")
        if not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        for group in groups:
            self.add_param_group(group)

    # --- what a subclass says ---

    def _layout(self, group: Group) -> tuple[dict[str, float], dict[str, float]]:
        """The state of a parameter: its numbers, and what its tensors are filled with, by name.
        Names with an underscore in front are no part of a state_dict."""
        return {}, {}

    def _updater(self, group: Group) -> Update:
        """Read the group's settings, and return what moves one of its parameters."""
        raise NotImplementedError(f"{type(self).__name__} has no step()")

    def _export(self, state: State) -> State:
        """What of a parameter's state is saved."""
        return {k: v for k, v in state.items() if not k.startswith("_")}

    def _import(self, saved: State) -> State:
        """A saved state with whatever saving left out."""
        return saved

    # --- parameters ---

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """More parameters, with settings of their own."""
        if not isinstance(param_group, dict):
            raise ArgumentError(f"add_param_group: a dict with 'params', not {type(param_group).__name__}")
        group = param_group
        given = group["params"]
        if isinstance(given, set):
            raise ArgumentError("an optimizer takes parameters in an order; a set has none, pass a list")
        params = [given] if isinstance(given, Tensor) else list(given)
        names = [p[0] for p in params if isinstance(p, tuple)]
        if names:
            if len(names) != len(params):
                raise ArgumentError("some parameters of a group have names and others have none")
            params = [p[1] for p in params]
            group["param_names"] = names
        for p in params:
            if not isinstance(p, Tensor):
                raise ArgumentError(f"an optimizer takes tensors, not {type(p).__name__}")
            if not p.is_leaf:
                raise ArgumentError("an optimizer takes leaf tensors, not results of computations")
        others = {p for g in self.param_groups for p in g["params"]}
        if not others.isdisjoint(params):
            raise ArgumentError("a parameter appears in more than one group")
        if any(("param_names" in g) != bool(names) for g in self.param_groups):
            raise ArgumentError("some groups have names for their parameters and others have none")
        if len(set(params)) != len(params):
            warnings.warn("a parameter appears twice in one group, and will be moved twice", stacklevel=2)
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
        """Make what a parameter's state lacks: the parameter was frozen before, or its group's settings changed."""
        trace = recorder().trace
        if trace is not None:
            trace.clear = False  # state is made once: only a later run is like all those to come
        for name, value in numbers.items():
            state.setdefault(name, value)
        make = sharding.filled_like if recorder().session.meshes.several else creation.full_like
        for name, value in tensors.items():
            if name not in state:
                state[name] = make(p, value)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, or set them to zero."""
        untraced = recorder().trace is None
        for group in self.param_groups:
            for p in group["params"]:
                if set_to_none and untraced and type(p._fn) is Leaf:
                    p._fn.grad = None  # which is what `p.grad = None` comes to
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
        untraced = recorder().trace is None  # a trace must know whose gradients are read
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
        """Call `hook(optimizer, args, kwargs)` before each step; it may return other arguments."""
        return RemovableHandle(self._hooks["step_pre"], hook)

    def register_step_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(optimizer, args, kwargs)` after each step."""
        return RemovableHandle(self._hooks["step_post"], hook)

    def register_state_dict_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call `hook(optimizer)` before a state_dict is made."""
        return self._register("save_pre", hook, prepend)

    def register_state_dict_post_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call `hook(optimizer, state_dict)` on a new state_dict; it may return another."""
        return self._register("save_post", hook, prepend)

    def register_load_state_dict_pre_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call `hook(optimizer, state_dict)` before that is loaded; it may return another."""
        return self._register("load_pre", hook, prepend)

    def register_load_state_dict_post_hook(self, hook: Callable[..., Any], prepend: bool = False) -> RemovableHandle:
        """Call `hook(optimizer)` after a state_dict was loaded."""
        return self._register("load_post", hook, prepend)

    def _register(self, when: str, hook: Callable[..., Any], prepend: bool) -> RemovableHandle:
        hooks = self._hooks[when]
        handle = RemovableHandle(hooks, hook)
        if prepend:
            hooks.insert(0, hooks.pop())
        return handle

    # --- saving ---

    def state_dict(self) -> dict[str, Any]:
        """Settings and state; parameters are numbered in order."""
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
        """Take over settings and state, GT's or torch's, parameter by parameter in order."""
        given = dict(state_dict)
        for hook in list(self._hooks["load_pre"]):
            made = hook(self, given)
            given = given if made is None else made
        groups = given["param_groups"]
        if len(groups) != len(self.param_groups):
            raise ArgumentError(f"load_state_dict: {len(groups)} groups for {len(self.param_groups)}")
        for mine, theirs in zip(self.param_groups, groups, strict=True):
            if len(mine["params"]) != len(theirs["params"]):
                raise ArgumentError("load_state_dict: the groups have other numbers of parameters")
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
        """The state of one parameter: as saved, or as at the beginning. Its tensors stay the same ones."""
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
    """What an optimizer of one's own has saved, copied; its tensors in the dtype of their parameter."""
    if isinstance(value, dict):
        return {k: _taken(v, dtype) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([_taken(v, dtype) for v in value])
    value = _tensor(value)
    if not isinstance(value, Tensor):
        return value
    value = value.detach().clone()
    return value if dtype is None else value.to(dtype)


def _number(value: Any) -> Any:
    """A setting or count that may have been saved as a tensor."""
    return value.item() if isinstance(value, Tensor) or is_torch(value) else value


def _check_shapes(p: Tensor, saved: State, tensors: dict[str, float]) -> None:
    for name in tensors:
        new = saved.get(name)
        if new is not None and tuple(new.shape) != p.shape:
            raise ShapeError(f"load_state_dict: {name} of shape {tuple(new.shape)} for a parameter of shape {p.shape}")
