"""What all optimizers do: groups, hooks, closures, names, steps that fail, optimizers of one's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.client.record import recorder as recording
from gt.client.session.session import Session
from gt.errors import ArgumentError, IndexOutOfRange
from tests.beside_torch import same
from tests.optim.test_optimizers import FIRST, Task, as_in_torch
from tests.sessions import session_fixture

session = session_fixture("numpy")


# --- failures --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "settings"), FIRST)
@pytest.mark.parametrize("traced", [False, True], ids=["", "traced"])
def test_a_failed_step_was_none(name: str, settings: dict[str, Any], traced: bool, session: Session) -> None:
    """Two steps under way fail together; parameters, tensors and numbers of the state are as before."""
    task, rows = Task(gt, name, **settings), gt.tensor([0])

    def step(rows: Any) -> None:
        task.opt.zero_grad()
        (task.loss() + task.params[0][rows].sum()).backward()
        task.opt.step()

    run = gt.function(step) if traced else step
    for _ in range(4):
        run(rows)
    before = task.numbers()
    run(gt.tensor([9]))
    run(rows)
    with pytest.raises(IndexOutOfRange):
        task.params[0].sum().item()
    session.channel.cluster.run()
    same(task.numbers(), before, rtol=0)


def test_an_update_that_cannot_be_recorded_does_not_count(session: Session) -> None:
    w = gt.ones(3, requires_grad=True)
    opt = gt.optim.Adam([w])
    w.grad = gt.ones(3, dtype=gt.float64)
    with pytest.raises(TypeError, match="adam: expected one dtype, got float32 and float64"):
        opt.step()
    assert opt.state[w]["step"] == 0


# --- groups ----------------------------------------------------------------------------------------------------


@as_in_torch()
def test_groups_are_the_dicts_that_were_given(lib: Any, session: Session) -> Any:
    def grouped(params: list[Any]) -> Any:
        groups = [{"params": params[0], "lr": 0.5}, {"params": params[1:2], "momentum": 0.5}]
        opt = lib.optim.SGD(groups, lr=0.1)
        assert opt.param_groups[0] is groups[0]
        opt.add_param_group({"params": params[2:], "weight_decay": 0.1})
        assert [g["lr"] for g in opt.param_groups] == [0.5, 0.1, 0.1]
        return opt

    task = Task(lib, grouped)
    for step in range(4):
        task.step(step)
    return task.numbers()


def test_parameters_with_names(session: Session) -> None:
    ours, theirs = (lib.optim.Adam(lib.nn.Linear(2, 3).named_parameters()).state_dict() for lib in (gt, torch))
    assert ours["param_groups"] == theirs["param_groups"]
    assert ours["param_groups"][0]["param_names"] == ["weight", "bias"]


def test_a_group_that_came_later_is_seen_by_a_function(session: Session) -> None:
    a, b = gt.ones(2, requires_grad=True), gt.ones(2, requires_grad=True)
    opt = gt.optim.SGD([a], lr=0.25)

    @gt.function
    def step() -> None:
        opt.zero_grad()
        (a.sum() + b.sum()).backward()
        opt.step()
        b.grad = None

    for _ in range(3):
        step()
    opt.add_param_group({"params": [b]})
    for _ in range(3):
        step()
    assert a.tolist() == [-0.5] * 2
    assert b.tolist() == [0.25] * 2


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "nothing": (lambda w: gt.optim.SGD([]), "an optimizer expects parameters, got an empty list"),
    "no tensor": (lambda w: gt.optim.SGD([1]), "an optimizer expects tensors, got int"),
    "a result": (lambda w: gt.optim.SGD([w * 2.0]), "expects leaf tensors"),
    "nesterov": (lambda w: gt.optim.SGD([w], nesterov=True), "nesterov=True requires momentum > 0"),
    "two groups": (lambda w: gt.optim.SGD([{"params": [w]}, {"params": [w]}]), "more than one group"),
    "one tensor": (lambda w: gt.optim.SGD(w), "expects a list of tensors or of groups"),
    "a set": (lambda w: gt.optim.SGD([{"params": {w}}]), "a set has no order"),
    "some names": (lambda w: gt.optim.SGD([("a", w), gt.ones(2)]), "all parameters of a group have names, or none"),
    "no dict": (lambda w: gt.optim.SGD([w]).add_param_group([w]), "expected a dict with 'params', got list"),
    "tensor lr": (lambda w: gt.optim.SGD([w], lr=gt.tensor(0.1)), "lr must be a Python number, got a tensor"),
    "lr": (lambda w: gt.optim.Adagrad([w], lr=-1.0), "Adagrad: lr must be >= 0, got -1.0"),
    "nan": (lambda w: gt.optim.Adam([w], eps=float("nan")), "Adam: eps must be >= 0, got nan"),
    "beta": (lambda w: gt.optim.AdamW([w], betas=(0.9, 1.0)), r"AdamW: betas\[1\] must be in \[0, 1\), got 1.0"),
    "rho": (lambda w: gt.optim.Adadelta([w], rho=1.5), "Adadelta: rho must be <= 1, got 1.5"),
    "etas": (lambda w: gt.optim.Rprop([w], etas=(1.0, 1.2)), r"etas must be \(between 0 and 1, above 1\)"),
    "momentum": (lambda w: gt.optim.RMSprop([w], momentum=-0.1), "RMSprop: momentum must be >= 0, got -0.1"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(make: Callable[[Any], Any], message: str, session: Session) -> None:
    with pytest.raises(ArgumentError, match=message):
        make(gt.ones(2, requires_grad=True))


@as_in_torch()
def test_a_parameter_twice_in_a_group(lib: Any, session: Session) -> Any:
    with pytest.warns(UserWarning, match="parameter"):
        task = Task(lib, lambda params: lib.optim.SGD([*params, params[0]], lr=0.1))
    task.step()
    return task.params


# --- gradients -------------------------------------------------------------------------------------------------


def test_zeroed_gradients_have_no_history(session: Session) -> None:
    w = gt.ones(2, requires_grad=True)
    opt = gt.optim.SGD([w])
    (w**3).sum().backward(create_graph=True)
    assert w.grad is not None
    g = w.grad
    opt.zero_grad(set_to_none=False)
    assert w.grad is g
    assert not w.grad.requires_grad
    assert w.grad.tolist() == [0.0, 0.0]
    opt.zero_grad()
    assert w.grad is None


# --- hooks -----------------------------------------------------------------------------------------------------


@as_in_torch()
def test_hooks_around_a_step(lib: Any, session: Session) -> Any:
    opt = Task(lib, lr=0.1).opt
    calls: list[Any] = []
    first = opt.register_step_pre_hook(
        lambda o, args, kwargs: calls.append(("before", len(args), kwargs, o.param_groups[0]["lr"]))
    )
    opt.register_step_pre_hook(lambda o, args, kwargs: ((args[0], lambda: 7.0), {}))
    opt.register_step_post_hook(lambda o, args, kwargs: calls.append(("after", len(args), kwargs)))
    calls.append(opt.step())
    first.remove()
    calls.append(opt.step())
    return calls


@as_in_torch()
def test_hooks_around_states(lib: Any, session: Session) -> Any:
    opt, calls = Task(lib, lr=0.1).opt, []
    opt.register_state_dict_pre_hook(lambda o: calls.append("pre"))
    opt.register_state_dict_post_hook(lambda o, s: {**s, "more": 1})
    opt.register_load_state_dict_pre_hook(lambda o, s: calls.append(sorted(s)))
    opt.register_load_state_dict_pre_hook(lambda o, s: calls.append("first"), prepend=True)
    opt.register_load_state_dict_post_hook(lambda o: calls.append("post"))
    opt.load_state_dict(opt.state_dict())
    return calls


# --- optimizers of one's own -----------------------------------------------------------------------------------


def lion(lib: Any) -> Any:
    """An optimizer as one finds them: written for torch, and run on either."""

    class Lion(lib.optim.Optimizer):  # type: ignore[name-defined, misc]
        def __init__(self, params: Any, lr: float = 1e-4, betas: Any = (0.9, 0.99)) -> None:
            super().__init__(params, {"lr": lr, "betas": betas})

        @lib.no_grad()
        def step(self, closure: Any = None) -> Any:
            loss = None
            if closure is not None:
                with lib.enable_grad():
                    loss = closure()
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is None:
                        continue
                    state = self.state[p]
                    if len(state) == 0:
                        state["exp_avg"] = lib.zeros_like(p)
                    m = state["exp_avg"]
                    update = m * group["betas"][0] + p.grad * (1 - group["betas"][0])
                    p.add_(lib.sign(update), alpha=-group["lr"])
                    m.mul_(group["betas"][1]).add_(p.grad, alpha=1 - group["betas"][1])
            return loss

    return Lion


@as_in_torch()
def test_an_optimizer_of_ones_own(lib: Any, session: Session) -> Any:
    task = Task(lib, lion(lib), lr=0.01)
    steps, calls = [], []
    task.opt.register_step_post_hook(lambda *_: steps.append(1))
    schedule = lib.optim.lr_scheduler.ExponentialLR(task.opt, 0.9)
    for step in range(12):
        task.step(step)
        calls.append(session.seq)
        schedule.step()
        if step == 5:
            state, task.opt = task.opt.state_dict(), lion(lib)(task.params)
            task.opt.load_state_dict(state)
            schedule = lib.optim.lr_scheduler.ExponentialLR(task.opt, 0.9)
    assert len(steps) == 6
    assert lib is torch or set(np.diff(calls)[-2:].tolist()) == {1}
    return task.numbers()


def test_an_optimizer_without_a_step(session: Session) -> None:
    w = gt.ones(2, requires_grad=True)
    w.grad = gt.ones(2)
    with pytest.raises(NotImplementedError, match="has no step"):
        gt.optim.Optimizer([w], {}).step()


def test_a_subclass_that_calls_its_parent(session: Session) -> None:
    class Counting(gt.optim.SGD):
        steps = 0

        def step(self, closure: Any = None) -> Any:
            self.steps += 1
            return super().step(closure)

    w = gt.ones(2, requires_grad=True)
    opt = Counting([w], lr=0.5)
    calls: list[int] = []
    opt.register_step_pre_hook(lambda *_: calls.append(1))
    w.sum().backward()
    opt.step()
    assert (opt.steps, len(calls), w.tolist()) == (1, 1, [0.5, 0.5])
    assert recording.recorder().pending.end is None  # reading settled what the step had ended
