"""torch.optim on adopted parameters: torch's values and state, by one op of GT for each parameter."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.nn import functional as F

import gt

pytestmark = pytest.mark.processes

CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (optim.SGD, {"lr": 0.1}),
    "momentum": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1, "maximize": True}),
    "nesterov": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "adam": (optim.Adam, {"lr": 0.01, "weight_decay": 0.1}),
    "adamw": (optim.AdamW, {"lr": 0.01, "amsgrad": True}),
    "nadam": (optim.NAdam, {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    "radam": (optim.RAdam, {"lr": 0.01}),
    "adamax": (optim.Adamax, {}),
    "asgd": (optim.ASGD, {"t0": 1}),
    "rmsprop": (optim.RMSprop, {"centered": True, "momentum": 0.5}),
    "rprop": (optim.Rprop, {}),
    "adadelta": (optim.Adadelta, {}),
    "adagrad": (optim.Adagrad, {"lr_decay": 0.1, "initial_accumulator_value": 0.2}),
}


def small() -> Any:
    """A model of torch's, always with the same weights."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def train(model: Any, optimizer: Any, scheduler: Any, seeds: range) -> None:
    for i in seeds:
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(i))
        optimizer.zero_grad()
        F.mse_loss(model(x), x[:, :2]).backward()
        optimizer.step()
        scheduler.step()


def saved(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file)


def assert_same(ours: Any, theirs: Any) -> None:
    ours, theirs = saved(ours), saved(theirs)
    assert ours["param_groups"] == theirs["param_groups"]
    assert ours["state"].keys() == theirs["state"].keys()
    for i, values in theirs["state"].items():
        assert ours["state"][i].keys() == values.keys()
        for name, value in values.items():
            torch.testing.assert_close(ours["state"][i][name], value, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("kind", "settings"), CASES.values(), ids=CASES)
def test_values_and_state_are_torchs(kind: Any, settings: Any) -> None:
    plain, model = small(), small()
    theirs = kind(plain.parameters(), **settings)
    ours = kind(model.parameters(), **settings)
    schedules = [optim.lr_scheduler.StepLR(o, 2, 0.5) for o in (theirs, ours)]
    gt.adopt(model)  # after the optimizer and its scheduler were created
    train(plain, theirs, schedules[0], range(3))
    train(model, ours, schedules[1], range(3))
    assert_same(ours.state_dict(), theirs.state_dict())
    ours.load_state_dict(saved(theirs.state_dict()))
    train(plain, theirs, schedules[0], range(3, 5))
    train(model, ours, schedules[1], range(3, 5))
    assert_same(ours.state_dict(), theirs.state_dict())
    for p, q in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(q.torch(), p.detach(), atol=1e-5, rtol=1e-5)


def test_a_step_is_one_op_for_each_parameter() -> None:
    model = gt.adopt(small())
    optimizer = optim.AdamW(model.parameters())
    model(torch.ones(3, 4)).sum().backward()
    before = gt.debug.get_client_stats()["tree_nodes"]
    optimizer.step()
    state = optimizer.state[model[0].weight]
    assert gt.debug.get_client_stats()["tree_nodes"] - before == 4 + 2 * 4  # and two moments are created
    assert (type(state["step"]), state["step"].item()) == (torch.Tensor, 1)


def test_a_count_that_the_user_sets_counts() -> None:
    plain, model = small(), gt.adopt(small())
    both = [(m, optim.Adam(m.parameters(), lr=0.1)) for m in (plain, model)]
    for i in range(3):
        for m, optimizer in both:
            if i == 2:
                for state in optimizer.state.values():
                    state["step"].fill_(0)
                    state["exp_avg"] = torch.zeros_like(state["exp_avg"])
            m(torch.ones(3, 4)).sum().backward()
            optimizer.step()
    for p, q in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(q.torch(), p.detach(), atol=1e-5, rtol=1e-5)


def test_parameters_of_the_host_and_subclasses_are_torchs_own() -> None:
    gt.adopt(small())
    plain = small()
    before = plain[0].weight.detach().clone()

    class Mine(optim.SGD):  # type: ignore[misc]  # torch is Any to the type checker
        def _init_group(self, group: Any, params: Any, grads: Any, buffers: Any) -> Any:
            found = super()._init_group(group, params, grads, buffers)
            grads[:] = [g * 0 for g in grads]
            return found

    for model, kind in ((plain, optim.SGD), (gt.adopt(small()), Mine)):
        model(torch.ones(3, 4)).sum().backward()
        kind(model.parameters(), lr=0.1).step()
    assert not torch.equal(plain[0].weight, before)
    assert torch.equal(model[0].weight.torch(), before)


@pytest.mark.parametrize("of", [torch, gt], ids=["torch", "gt"])
def test_a_function_replays_the_step(of: Any) -> None:
    """With an optimizer of torch's or of GT's, a schedule, and clipping by the same library."""
    plain, model = small(), gt.adopt(small())
    theirs, ours = optim.AdamW(plain.parameters(), lr=0.1), of.optim.AdamW(model.parameters(), lr=0.1)
    schedules = [lib.optim.lr_scheduler.ExponentialLR(o, 0.5) for lib, o in ((torch, theirs), (of, ours))]

    def plain_step(x: Any, model: Any = plain, optimizer: Any = theirs, lib: Any = torch) -> Any:
        loss = F.mse_loss(model(x), x[:, :2])
        optimizer.zero_grad()
        loss.backward()
        lib.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    step = gt.function(lambda x: plain_step(x, model, ours, of))
    for i in range(5):
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(i))
        found, want = step(x), plain_step(x)
        assert isinstance(found, torch.Tensor)
        assert abs(found.item() - want.item()) < 1e-5
        for schedule in schedules:
            schedule.step()
    assert step.replays >= 3
    assert {int(state["step"]) for state in ours.state_dict()["state"].values()} == {5}


def test_a_scaler_skips_a_step_with_infinite_gradients() -> None:
    theirs, ours = small(), gt.adopt(small())
    scales: list[list[float]] = []
    for model in (theirs, ours):
        optimizer = optim.SGD(model.parameters(), 0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        scales.append([])
        for factor in (1.0, float("inf"), 1.0, 1.0, 1.0):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(3, 4)).square().mean() * factor).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            scales[-1].append(scaler.get_scale())
    assert scales[1] == scales[0] == [8.0, 4.0, 4.0, 8.0, 8.0]
    for mine, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.detach().torch(), expected.detach())


def test_a_scaler_whose_state_is_adopted() -> None:
    """As under `gt run`, where the scaler's own tensors are adopted, too."""
    for infinite, expected in ((0.0, (16.0, 0)), (1.0, (4.0, 0))):
        scale, count, found = (gt.adopt(torch.tensor(x)) for x in (8.0, 1, infinite))
        torch._amp_update_scale_(scale, count, found, 2.0, 0.5, 2)
        assert (scale.item(), count.item()) == expected
    grad, found = gt.adopt(torch.tensor([2.0, float("nan")])), gt.adopt(torch.tensor(0.0))
    torch._amp_foreach_non_finite_check_and_unscale_([grad], found, gt.adopt(torch.tensor(0.5)))
    assert (grad[0].item(), found.item()) == (1.0, 1.0)
