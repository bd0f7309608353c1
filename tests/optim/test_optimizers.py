"""Every optimizer, in many settings: torch's steps, one known call a step, torch's states in and out."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.client.session.session import Session
from gt.ops.families import descent, update
from gt.ops.record import Op
from tests import beside_torch
from tests.beside_torch import array, arrays, same

SETTINGS: dict[str, list[dict[str, Any]]] = {
    "SGD": [
        {"lr": 0.1},
        {"lr": 0.1, "weight_decay": 0.05, "maximize": True},
        {"lr": 0.1, "momentum": 0.9},
        {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.02},
        {"lr": 0.1, "momentum": 0.8, "nesterov": True, "weight_decay": 0.01},
        {"lr": 0.01, "momentum": 0.8, "dampening": 0.1, "maximize": True, "weight_decay": 0.1},
    ],
    "Adam": [
        {"lr": 0.05},
        {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1},
        {"lr": 0.05, "amsgrad": True, "weight_decay": 0.1},
        {"lr": 0.05, "amsgrad": True, "maximize": True, "decoupled_weight_decay": True, "weight_decay": 0.1},
    ],
    "AdamW": [
        {},
        {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-4, "weight_decay": 0.2},
        {"lr": 0.05, "amsgrad": True},
        {"lr": 0.05, "maximize": True, "betas": (0.0, 0.0)},
    ],
    "NAdam": [
        {},
        {"lr": 0.05, "betas": (0.8, 0.95), "weight_decay": 0.1, "momentum_decay": 0.1},
        {"lr": 0.05, "decoupled_weight_decay": True, "weight_decay": 0.1, "maximize": True},
        {"lr": 0.05, "betas": (0.0, 0.9)},
    ],
    "RAdam": [
        {},
        {"lr": 0.05, "betas": (0.8, 0.95), "weight_decay": 0.1},
        {"lr": 0.05, "decoupled_weight_decay": True, "weight_decay": 0.1, "maximize": True},
        {"lr": 0.05, "betas": (0.9, 0.5)},
    ],
    "Adamax": [{}, {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-4, "weight_decay": 0.1}, {"maximize": True}],
    "Adagrad": [
        {},
        {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1, "eps": 1e-6},
        {"lr": 0.1, "initial_accumulator_value": 0.5, "maximize": True},
    ],
    "RMSprop": [
        {},
        {"lr": 0.02, "alpha": 0.9, "eps": 1e-5, "weight_decay": 0.1},
        {"lr": 0.02, "momentum": 0.8},
        {"lr": 0.02, "centered": True, "eps": 1e-3},
        {"lr": 0.02, "centered": True, "momentum": 0.7, "maximize": True, "eps": 1e-3, "weight_decay": 0.01},
    ],
    "Adadelta": [{}, {"lr": 0.5, "rho": 0.8, "eps": 1e-4, "weight_decay": 0.1}, {"maximize": True}],
    "ASGD": [
        {},
        {"lr": 0.1, "lambd": 0.01, "alpha": 0.5, "t0": 3, "weight_decay": 0.1},
        {"lr": 0.1, "t0": 0, "maximize": True},
    ],
    "Rprop": [{}, {"lr": 0.1, "etas": (0.3, 1.5), "step_sizes": (1e-3, 0.2)}, {"maximize": True, "lr": 0.001}],
}
#: Those whose step is no op of its own.
COMPOSED: dict[str, list[dict[str, Any]]] = {
    "Adafactor": [
        {},
        {"lr": 0.05, "beta2_decay": -0.5, "eps": (1e-6, 1e-2), "d": 1.5, "weight_decay": 0.1},
        {"lr": 0.02, "maximize": True},
    ]
}
EVERY = SETTINGS | COMPOSED
CASES = [pytest.param(name, kw, id=f"{name}-{i}") for name, kws in EVERY.items() for i, kw in enumerate(kws)]
FIRST = [pytest.param(name, kws[-1], id=name) for name, kws in SETTINGS.items()]
REPLAYED = [pytest.param(name, kws[-1], id=name) for name, kws in EVERY.items()]

_rng = np.random.default_rng(4)
X = _rng.normal(size=(7, 5))
START = [_rng.normal(size=(5, 3)), _rng.normal(size=3), np.asarray(0.7)]
STEPS = 24


class Task:
    """A small regression in torch or GT, and an optimizer of its parameters. What that makes of them is compared."""

    def __init__(self, lib: Any, optimizer: str | Callable[[list[Any]], Any] = "SGD", **settings: Any) -> None:
        self.params = [lib.from_numpy(a.copy()).requires_grad_() for a in START]
        self.x = lib.from_numpy(X)
        make = getattr(lib.optim, optimizer) if isinstance(optimizer, str) else optimizer
        self.opt = make(self.params, **settings)

    def loss(self) -> Any:
        w, b, c = self.params
        return ((self.x @ w + b).tanh() * c + w.sum(0)).square().mean()

    def step(self, step: int = 0) -> None:
        self.opt.zero_grad()
        # In one step one parameter has no gradient, in another only that has one.
        (self.loss() if step not in (7, 9) else self.params[step - 7].square().sum()).backward()
        self.opt.step()

    def numbers(self) -> list[np.ndarray]:
        """Parameters and their states."""
        states = [self.opt.state[p] for p in self.params]
        shown = [[state[name] for name in sorted(state) if not name.startswith("_")] for state in states]
        return [a.astype(float) for a in arrays([self.params, shown])]


as_in_torch = partial(beside_torch.as_in_torch, rtol=1e-9, atol=1e-12)


# --- steps -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "settings"), CASES)
@as_in_torch()
def test_steps_are_torchs(lib: Any, name: str, settings: dict[str, Any], session: Session) -> Any:
    task = Task(lib, name, **settings)
    for step in range(STEPS):
        task.opt.param_groups[0]["lr"] *= 0.97
        task.step(step)
    return task.numbers()


@pytest.mark.parametrize(("name", "settings"), [each for each in CASES if each.values[0] != "Adafactor"])
@as_in_torch()
def test_steps_of_complex_parameters_are_torchs(lib: Any, name: str, settings: dict[str, Any], session: Session) -> Any:
    """Real and imaginary parts are numbers of their own."""
    w = lib.from_numpy(START[0] + 1j * START[0][::-1]).requires_grad_()
    b = lib.from_numpy(START[1].copy()).requires_grad_()
    opt = getattr(lib.optim, name)([w, b], **settings)
    x, seen = lib.from_numpy(X), []
    for _ in range(5):
        opt.zero_grad()
        ((x.to(w.dtype) @ w).abs() + b).square().mean().backward()
        opt.step()
        seen += [w.detach().clone(), b.detach().clone()]
    state = opt.state[w]
    return [*seen, *[state[k] for k in sorted(state) if getattr(state[k], "ndim", 0) and not k.startswith("_")]]


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_a_step_is_one_known_call(name: str, settings: dict[str, Any], session: Session) -> None:
    """Whatever the learning rate and the step count are."""
    task = Task(gt, name, **settings)
    texts, calls = [], []
    for _ in range(12):
        task.opt.param_groups[0]["lr"] *= 0.9
        task.step()
        texts.append(session.defined)
        calls.append(session.seq)
    assert set(np.diff(calls)[1:].tolist()) == {1}
    assert texts[-1] == texts[2]


@pytest.mark.parametrize(("name", "settings"), FIRST)
def test_one_instruction_per_parameter(name: str, settings: dict[str, Any], session: Session) -> None:
    task = Task(gt, name)
    for _ in range(3):
        task.step()
    task.params[0].detach().numpy()
    ops = {op.name for family in (update, descent) for op in vars(family).values() if isinstance(op, Op)}
    programs = [v.program for v in session.variants.values() if any(i.op in ops for i in v.program.code)]
    assert programs
    assert all(sum(i.op in ops for i in p.code) == len(START) for p in programs)


@pytest.mark.parametrize(("name", "settings"), REPLAYED)
@as_in_torch()
def test_a_function_replays_the_step(lib: Any, name: str, settings: dict[str, Any], session: Session) -> Any:
    """Numbers that change are read again: the learning rate, the count, whatever follows from them."""
    task = Task(lib, name, **settings)
    step = gt.function(task.step) if lib is gt else task.step
    for i in range(STEPS):
        task.opt.param_groups[0]["lr"] *= 0.97
        if i == 12 and "weight_decay" in task.opt.defaults:
            task.opt.param_groups[0]["weight_decay"] = 0.03
        step()
    assert lib is torch or step.replays >= STEPS - 4
    return task.numbers()


@pytest.mark.parametrize(
    "settings", [{}, {"lr": 0.05, "nesterov": False, "weight_decay": 0.0}, {"adjust_lr_fn": "match_rms_adamw"}]
)
@beside_torch.as_in_torch(rtol=0.02, atol=8e-3)
def test_muon(lib: Any, settings: dict[str, Any], session: Session) -> Any:
    """In bfloat16, which each library rounds at other places."""
    tall, wide = (lib.from_numpy(a.astype(np.float32)).requires_grad_() for a in (START[0], X))
    opt = lib.optim.Muon([tall, wide], **settings)
    for _ in range(4):
        opt.zero_grad()
        (wide.tanh() @ tall).square().mean().backward()
        opt.step()
    with pytest.raises(ValueError, match="Muon"):
        lib.optim.Muon([lib.zeros(3)])
    return [tall, wide, opt.state[tall]["momentum_buffer"]]


@as_in_torch()
def test_a_frozen_parameter_has_no_state_until_it_needs_one(lib: Any, session: Session) -> Any:
    task = Task(lib, lambda params: lib.optim.AdamW([params[0], params[1].requires_grad_(False), params[2]], lr=0.1))
    for step in range(6):
        if step == 3:
            task.params[1].requires_grad_()
        assert lib is torch or (task.params[1] in task.opt.state) == (step > 3)
        task.step()
    return task.numbers()


@as_in_torch()
def test_state_that_is_made_inside_a_function(lib: Any, session: Session) -> Any:
    task = Task(lib, lambda params: lib.optim.Adam([params[0], params[1].requires_grad_(False), params[2]], lr=0.1))
    task.params[1].requires_grad_()

    def step() -> None:
        task.loss().backward()
        task.opt.step()
        task.opt.zero_grad()

    run = gt.function(step) if lib is gt else step
    for _ in range(6):
        run()
    return task.numbers()


@pytest.mark.parametrize("name", ["SGD", "RMSprop"])
@as_in_torch()
def test_momentum_switched_on_later(lib: Any, name: str, session: Session) -> Any:
    task = Task(lib, name, lr=0.05)
    task.opt.param_groups[0]["momentum"] = 0.9
    for _ in range(5):
        task.step()
    return task.numbers()


# --- states ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "settings"), FIRST)
@pytest.mark.parametrize("source", ["gt", "torch"])
def test_states_are_loaded(name: str, settings: dict[str, Any], source: str, session: Session) -> None:
    """A run goes on in a new optimizer that has other settings: from GT's state, or from torch's."""
    theirs, ours = (Task(lib, name, **settings) for lib in (torch, gt))
    for step in range(12):
        if step == 5:
            saved = copy.deepcopy((ours if source == "gt" else theirs).opt.state_dict())
            ours.opt = getattr(gt.optim, name)(ours.params, lr=1e-9)
            ours.opt.load_state_dict(saved)
        theirs.step(step)
        ours.step(step)
    same(ours.numbers(), theirs.numbers(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("name", "settings"), CASES)
@as_in_torch()
def test_states_are_laid_out_as_torchs(lib: Any, name: str, settings: dict[str, Any], session: Session) -> Any:
    groups = lambda params: [{"params": params[:1], "lr": 0.3}, {"params": params[1:]}]  # noqa: E731
    task = Task(lib, lambda params, **settings: getattr(lib.optim, name)(groups(params), **settings), **settings)
    task.step()
    saved = task.opt.state_dict()
    states = {i: {k: array(v).astype(float) for k, v in state.items()} for i, state in saved["state"].items()}
    return repr(task.opt), list(saved), [sorted(map(str, g.items())) for g in saved["param_groups"]], states


def test_a_state_that_was_never_saved_is_as_at_the_beginning(session: Session) -> None:
    task = Task(gt, "Adam")
    task.step()
    task.opt.load_state_dict(Task(torch, "Adam").opt.state_dict())
    assert task.opt.state[task.params[0]]["step"] == 0
    assert not task.opt.state[task.params[0]]["exp_avg"].any()


def test_states_that_do_not_fit_change_nothing(session: Session) -> None:
    task = Task(gt, "Adam")
    task.step()
    opt, before = task.opt, task.numbers()
    state = copy.deepcopy(opt.state_dict())
    state["state"][2]["exp_avg"] = gt.zeros(4)
    with pytest.raises(gt.GTError, match=r"exp_avg must have the shape \(\), got \(4,\)"):
        opt.load_state_dict(state)
    with pytest.raises(ValueError, match="load_state_dict: expected 1 groups, got 2"):
        opt.load_state_dict({"state": {}, "param_groups": [{}, {}]})
    with pytest.raises(ValueError, match="expected a group of 3 parameters, got one of 1"):
        opt.load_state_dict({"state": {}, "param_groups": [{"params": [0]}]})
    same(task.numbers(), before, rtol=0)


def test_states_share_memory_until_they_are_copied(session: Session) -> None:
    task = Task(gt, "Adam")
    task.step()
    shared = task.opt.state_dict()["state"][0]["exp_avg"]
    kept = copy.deepcopy(task.opt.state_dict())["state"][0]["exp_avg"].numpy()
    task.step()
    np.testing.assert_array_equal(shared.numpy(), task.opt.state[task.params[0]]["exp_avg"].numpy())
    assert not np.allclose(kept, shared.numpy())


def test_a_copy_of_an_optimizer(session: Session) -> None:
    task = Task(gt, "Adam")
    task.step()
    twin = copy.deepcopy(task.opt)
    (p,) = twin.param_groups[0]["params"][:1]
    assert p is not task.params[0]
    assert twin.state[p]["step"] == 1
    task.step()
    assert twin.state[p]["step"] == 1


def test_the_closure_runs_with_gradients(session: Session) -> None:
    w = gt.ones(2, requires_grad=True)
    opt = gt.optim.SGD([w], lr=0.5)

    def closure() -> Any:
        opt.zero_grad()
        loss = (w * w).sum()
        loss.backward()
        return loss

    with gt.no_grad():
        loss = opt.step(closure)
    assert loss.item() == 2.0
    assert w.tolist() == [0.0, 0.0]


def test_state_is_made_with_the_optimizer(session: Session) -> None:
    w = gt.ones(3, requires_grad=True)
    opt = gt.optim.AdamW([w])
    state = opt.state[w]
    assert state["step"] == 0
    assert state["exp_avg"].tolist() == [0.0] * 3
    assert opt.state_dict()["param_groups"][0]["params"] == [0]
