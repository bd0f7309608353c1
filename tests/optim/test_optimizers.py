"""Every optimizer, in many settings: torch's steps, one known call a step, torch's states in and out."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.client.session.session import Session
from gt.ops.families import descent, update
from gt.ops.record import Op

Make = Callable[[Any, Any], Any]

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
CASES = [pytest.param(name, kw, id=f"{name}-{i}") for name, kws in SETTINGS.items() for i, kw in enumerate(kws)]
FIRST = [pytest.param(name, kws[-1], id=name) for name, kws in SETTINGS.items()]

_rng = np.random.default_rng(4)
X = _rng.normal(size=(7, 5))
START = [_rng.normal(size=(5, 3)), _rng.normal(size=3), np.asarray(0.7)]
STEPS = 24


class Task:
    """A small regression in torch or GT. What an optimizer makes of it is compared."""

    def __init__(self, lib: Any, session: Session | None = None) -> None:
        self.lib, self.session = lib, session
        self.params = [lib.from_numpy(a.copy()).requires_grad_() for a in START]
        self.x = lib.from_numpy(X)
        self.texts: list[int] = []
        self.calls: list[int] = []

    def loss(self) -> Any:
        w, b, c = self.params
        return ((self.x @ w + b).tanh() * c + w.sum(0)).square().mean()

    def step(self, opt: Any, step: int = 0) -> None:
        opt.zero_grad()
        # In one step one parameter has no gradient, in another only that has one.
        (self.loss() if step not in (7, 9) else self.params[step - 7].square().sum()).backward()
        opt.step()
        if self.session is not None:
            self.texts.append(self.session.defined)
            self.calls.append(self.session.seq)

    def numbers(self, opt: Any) -> list[np.ndarray]:
        found = [p.detach().numpy() for p in self.params]
        for p in self.params:
            state = opt.state[p]
            for name in sorted(k for k in state if not k.startswith("_")):
                value = state[name]
                found.append(value.detach().numpy() if hasattr(value, "detach") else np.asarray(value))
        return found


def agree(got: list[Any], want: list[Any], rtol: float = 1e-9) -> None:
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=rtol, atol=1e-12)


# --- steps -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_steps_are_torchs(name: str, settings: dict[str, Any], session: Session) -> None:
    results = []
    for lib in (gt, torch):
        task = Task(lib)
        opt = getattr(lib.optim, name)(task.params, **settings)
        for step in range(STEPS):
            opt.param_groups[0]["lr"] *= 0.97
            task.step(opt, step)
        results.append(task.numbers(opt))
    agree(*results)


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_a_step_is_one_known_call(name: str, settings: dict[str, Any], session: Session) -> None:
    """Whatever the learning rate and the step count are."""
    task = Task(gt, session)
    opt = getattr(gt.optim, name)(task.params, **settings)
    for _ in range(12):
        opt.param_groups[0]["lr"] *= 0.9
        task.step(opt)
    assert set(np.diff(task.calls)[1:].tolist()) == {1}
    assert task.texts[-1] == task.texts[2]


@pytest.mark.parametrize(("name", "settings"), FIRST)
def test_one_instruction_per_parameter(name: str, settings: dict[str, Any], session: Session) -> None:
    task = Task(gt)
    opt = getattr(gt.optim, name)(task.params)
    for _ in range(3):
        task.step(opt)
    task.params[0].detach().numpy()
    ops = {op.name for family in (update, descent) for op in vars(family).values() if isinstance(op, Op)}
    programs = [v.program for v in session.variants.values() if any(i.op in ops for i in v.program.code)]
    assert programs
    assert all(sum(i.op in ops for i in p.code) == len(START) for p in programs)


@pytest.mark.parametrize(("name", "settings"), FIRST)
def test_a_function_replays_the_step(name: str, settings: dict[str, Any], session: Session) -> None:
    """Numbers that change are read again: the learning rate, the count, whatever follows from them."""
    results = []
    for lib in (gt, torch):
        task = Task(lib)
        opt = getattr(lib.optim, name)(task.params, **settings)

        def step(task: Task = task, opt: Any = opt) -> None:
            opt.zero_grad()
            task.loss().backward()
            opt.step()

        step_function = gt.function(step) if lib is gt else step
        for i in range(STEPS):
            opt.param_groups[0]["lr"] *= 0.97
            if i == 12 and "weight_decay" in opt.defaults:
                opt.param_groups[0]["weight_decay"] = 0.03
            step_function()
        if lib is gt:
            assert step_function.replays >= STEPS - 4
        results.append(task.numbers(opt))
    agree(*results)


def test_a_frozen_parameter_has_no_state_until_it_needs_one(session: Session) -> None:
    results = []
    for lib in (gt, torch):
        task = Task(lib)
        task.params[1].requires_grad_(False)
        opt = lib.optim.AdamW(task.params, lr=0.1)
        for step in range(6):
            if step == 3:
                task.params[1].requires_grad_()
            if lib is gt:
                assert (task.params[1] in opt.state) == (step > 3)
            opt.zero_grad()
            task.loss().backward()
            opt.step()
        results.append(task.numbers(opt))
    agree(*results)


def test_state_that_is_made_inside_a_function(session: Session) -> None:
    results = []
    for lib in (gt, torch):
        task = Task(lib)
        task.params[1].requires_grad_(False)
        opt = lib.optim.Adam(task.params, lr=0.1)
        task.params[1].requires_grad_()

        def step(task: Task = task, opt: Any = opt) -> None:
            task.loss().backward()
            opt.step()
            opt.zero_grad()

        step_function = gt.function(step) if lib is gt else step
        for _ in range(6):
            step_function()
        results.append(task.numbers(opt))
    agree(*results)


@pytest.mark.parametrize("name", ["SGD", "RMSprop"])
def test_momentum_switched_on_later(name: str, session: Session) -> None:
    results = []
    for lib in (gt, torch):
        task = Task(lib)
        opt = getattr(lib.optim, name)(task.params, lr=0.05)
        opt.param_groups[0]["momentum"] = 0.9
        for _ in range(5):
            task.step(opt)
        results.append(task.numbers(opt))
    agree(*results)


# --- states ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "settings"), FIRST)
@pytest.mark.parametrize("source", ["gt", "torch"])
def test_states_are_loaded(name: str, settings: dict[str, Any], source: str, session: Session) -> None:
    """A run goes on in a new optimizer that has other settings: from GT's state, or from torch's."""
    reference, task = Task(torch), Task(gt)
    theirs, mine = (getattr(t.lib.optim, name)(t.params, **settings) for t in (reference, task))
    for step in range(5):
        reference.step(theirs, step)
        task.step(mine, step)
    saved = copy.deepcopy((mine if source == "gt" else theirs).state_dict())
    again = getattr(gt.optim, name)(task.params, lr=1e-9)
    again.load_state_dict(saved)
    for step in range(5, 12):
        reference.step(theirs, step)
        task.step(again, step)
    agree(task.numbers(again), reference.numbers(theirs))


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_states_are_laid_out_as_torchs(name: str, settings: dict[str, Any], session: Session) -> None:
    saved: list[Any] = []
    shown: list[str] = []
    for lib in (torch, gt):
        task = Task(lib)
        opt = getattr(lib.optim, name)(
            [{"params": task.params[:1], "lr": 0.3}, {"params": task.params[1:]}], **settings
        )
        task.step(opt)
        saved.append(opt.state_dict())
        shown.append(repr(opt))
    assert shown[0] == shown[1]
    want, got = saved
    assert got.keys() == want.keys()
    assert got["param_groups"] == want["param_groups"]
    assert {i: list(s) for i, s in got["state"].items()} == {i: list(s) for i, s in want["state"].items()}
    for i, state in want["state"].items():
        for k, v in state.items():
            np.testing.assert_allclose(np.asarray(got["state"][i][k]), v.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", SETTINGS)
def test_signatures_are_torchs(name: str) -> None:
    ours, theirs = (inspect.signature(getattr(lib.optim, name)).parameters for lib in (gt, torch))
    assert [(p.name, p.kind, p.default) for p in ours.values()] == [
        (p.name, p.kind, p.default) for p in theirs.values()
    ]


def test_a_state_that_was_never_saved_is_as_at_the_beginning(session: Session) -> None:
    task = Task(gt)
    opt = gt.optim.Adam(task.params)
    empty = torch.optim.Adam(Task(torch).params).state_dict()
    task.step(opt)
    opt.load_state_dict(empty)
    assert opt.state[task.params[0]]["step"] == 0
    assert not opt.state[task.params[0]]["exp_avg"].any()


def test_states_that_do_not_fit_change_nothing(session: Session) -> None:
    task = Task(gt)
    opt = gt.optim.Adam(task.params)
    task.step(opt)
    before = task.numbers(opt)
    state = copy.deepcopy(opt.state_dict())
    state["state"][2]["exp_avg"] = gt.zeros(4)
    with pytest.raises(gt.GTError, match=r"exp_avg must have the shape \(\), got \(4,\)"):
        opt.load_state_dict(state)
    with pytest.raises(ValueError, match="load_state_dict: expected 1 groups, got 2"):
        opt.load_state_dict({"state": {}, "param_groups": [{}, {}]})
    with pytest.raises(ValueError, match="expected a group of 3 parameters, got one of 1"):
        opt.load_state_dict({"state": {}, "param_groups": [{"params": [0]}]})
    agree(task.numbers(opt), before)


def test_states_share_memory_until_they_are_copied(session: Session) -> None:
    task = Task(gt)
    opt = gt.optim.Adam(task.params)
    task.step(opt)
    shared = opt.state_dict()["state"][0]["exp_avg"]
    kept = copy.deepcopy(opt.state_dict())["state"][0]["exp_avg"].numpy()
    task.step(opt)
    np.testing.assert_array_equal(shared.numpy(), opt.state[task.params[0]]["exp_avg"].numpy())
    assert not np.allclose(kept, shared.numpy())


def test_a_copy_of_an_optimizer(session: Session) -> None:
    task = Task(gt)
    opt = gt.optim.Adam(task.params)
    task.step(opt)
    twin = copy.deepcopy(opt)
    (p,) = twin.param_groups[0]["params"][:1]
    assert p is not task.params[0]
    assert twin.state[p]["step"] == 1
    task.step(opt)
    assert twin.state[p]["step"] == 1
