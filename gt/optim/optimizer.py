"""What optimizers have in common: groups of parameters, their state, and the end of a step.

A step records one instruction per parameter and marks the end of the program. Settings and step counts
are passed by value, so changing them makes no new program. State is made when the optimizer is, there
and then, so that the first step is already like the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from gt.client.autograd import set_grad
from gt.client.recorder import recorder
from gt.client.tensor import Tensor
from gt.errors import ArgumentError


class Optimizer:
    """The base: a subclass has `_init_state(p, group)` and `_update(p, g, state, group)`."""

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        self.defaults = defaults
        self.param_groups: list[dict[str, Any]] = []
        self.state: dict[Tensor, dict[str, Any]] = {}
        groups = list(params)
        if not groups:
            raise ArgumentError("an optimizer needs parameters, and got an empty list")
        if not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        for group in groups:
            self.add_param_group(group)

    def add_param_group(self, group: dict[str, Any]) -> None:
        """More parameters, with settings of their own."""
        params = [group["params"]] if isinstance(group["params"], Tensor) else list(group["params"])
        group = {**self.defaults, **group, "params": params}
        for p in params:
            if not isinstance(p, Tensor):
                raise ArgumentError(f"an optimizer takes tensors, not {type(p).__name__}")
            if not p.is_leaf:
                raise ArgumentError("an optimizer takes leaf tensors, not results of computations")
            if p in self.state:
                raise ArgumentError("a parameter appears in more than one group")
            with set_grad(False):
                self.state[p] = self._init_state(p, group)
        self.param_groups.append(group)
        recorder().mark()

    def _init_state(self, p: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        return {}

    def _update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        raise TypeError(f"{type(self).__name__} has no _update()")

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, or set them to zero."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    if set_to_none:
                        p.grad = None
                    else:
                        p.grad.zero_()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient. The program ends here."""
        loss = None
        if closure is not None:
            with set_grad(True):
                loss = closure()
        with set_grad(False):
            for group in self.param_groups:
                for p in group["params"]:
                    g = p.grad
                    if g is not None:
                        self._update(p, g, self.state[p], group)
                    del g
        recorder().mark()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Settings and state; parameters are numbered in order."""
        number = {p: i for i, p in enumerate(p for g in self.param_groups for p in g["params"])}
        groups = [{**g, "params": [number[p] for p in g["params"]]} for g in self.param_groups]
        state = {
            number[p]: {k: v.detach() if isinstance(v, Tensor) else v for k, v in s.items()}
            for p, s in self.state.items()
        }
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over settings and state, parameter by parameter in order."""
        params = [p for g in self.param_groups for p in g["params"]]
        sizes = [len(g["params"]) for g in self.param_groups]
        if sizes != [len(g["params"]) for g in state_dict["param_groups"]]:
            raise ArgumentError("load_state_dict: the groups have other numbers of parameters")
        for mine, theirs in zip(self.param_groups, state_dict["param_groups"], strict=True):
            mine.update({k: v for k, v in theirs.items() if k != "params"})
        with set_grad(False):
            for i, values in state_dict["state"].items():
                state = self.state[params[int(i)]]
                for k, v in values.items():
                    if isinstance(state.get(k), Tensor):
                        state[k].copy_(v)
                    else:
                        state[k] = v

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for i, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {i}")
            lines += [f"    {k}: {v}" for k, v in group.items() if k != "params"]
        return "\n".join([*lines, ")"])


def live(read: Callable[[], Any]) -> Any:
    """A number as an operand, which a replayed function reads again."""
    trace = recorder().trace
    return read() if trace is None else trace.live(read)


def setting(group: dict[str, Any], name: str) -> Any:
    """A setting of the group as an operand."""
    return live(lambda: float(group[name]))


def count_step(state: dict[str, Any]) -> Any:
    """The number of this step, from 1, as an operand; a replayed function counts on."""
    trace = recorder().trace
    _count(state, 1)
    if trace is None:
        return state["step"]
    trace.effect(partial(_count, state, 1), partial(_count, state, -1))
    return trace.live(lambda: state["step"])


def counted(state: dict[str, Any]) -> None:
    """The update was recorded: should its call fail, the step was none."""
    recorder().pending.undo.append(partial(_count, state, -1))


def _count(state: dict[str, Any], by: int) -> None:
    state["step"] += by
