"""Modules, losses and optimizers: torch's names, shapes, values and steps."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.client.session.session import Session
from gt.errors import ArgumentError, ShapeError
from tests.client.training import numbers

_rng = np.random.default_rng(2)
X = _rng.normal(size=(7, 5))


def both(build: Callable[[Any], Any]) -> tuple[Any, Any]:
    """The same module in torch and in GT, in doubles, with torch's weights."""
    torch.manual_seed(0)
    theirs = build(torch).double()
    ours = build(gt).double()
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


# --- modules ----------------------------------------------------------------------------------------------


class Block:
    """A module with children, a buffer, a list and a parameter of its own; made for either library."""

    def __new__(cls, lib: Any) -> Any:
        nn = lib.nn

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first = nn.Linear(5, 4)
                self.layers = nn.ModuleList([nn.Linear(4, 4, bias=False), nn.LayerNorm(4)])
                self.scale = nn.Parameter(lib.ones(4))
                self.register_buffer("shift", lib.zeros(4))
                self.nothing = None

            def forward(self, x: Any) -> Any:
                x = self.first(x).relu()
                for layer in self.layers:
                    x = layer(x)
                return x * self.scale + self.shift

        return Net()


MODULES: dict[str, Callable[[Any], Any]] = {
    "linear": lambda lib: lib.nn.Linear(5, 3),
    "linear without bias": lambda lib: lib.nn.Linear(5, 3, bias=False),
    "layer norm": lambda lib: lib.nn.LayerNorm(5),
    "layer norm of two": lambda lib: lib.nn.LayerNorm((7, 5)),
    "layer norm without weights": lambda lib: lib.nn.LayerNorm(5, elementwise_affine=False),
    "mlp": lambda lib: lib.nn.Sequential(
        lib.nn.Linear(5, 8), lib.nn.ReLU(), lib.nn.Linear(8, 8), lib.nn.GELU(), lib.nn.Linear(8, 2), lib.nn.Softmax(1)
    ),
    "activations": lambda lib: lib.nn.Sequential(
        lib.nn.Tanh(), lib.nn.Sigmoid(), lib.nn.SiLU(), lib.nn.GELU("tanh"), lib.nn.Identity(), lib.nn.LogSoftmax(-1)
    ),
    "flatten": lambda lib: lib.nn.Sequential(lib.nn.Flatten(0), lib.nn.Linear(35, 2)),
    "own": Block,
}


@pytest.mark.parametrize("build", MODULES.values(), ids=MODULES.keys())
def test_modules_compute_what_torchs_do(build: Callable[[Any], Any], session: Session) -> None:
    theirs, ours = both(build)
    results = []
    for lib, module in ((torch, theirs), (gt, ours)):
        x = lib.from_numpy(X.copy()).requires_grad_()
        y = module(x)
        (y**2).sum().backward()
        results.append(numbers([y, x.grad, *[p.grad for p in module.parameters()]]))
    for got, want in zip(results[1], results[0], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)


def test_embedding(session: Session) -> None:
    theirs, ours = both(lambda lib: lib.nn.Embedding(6, 3))
    index = np.array([[0, 5], [2, 2]])
    np.testing.assert_array_equal(
        ours(gt.from_numpy(index)).detach().numpy(), theirs(torch.from_numpy(index)).detach().numpy()
    )


@pytest.mark.parametrize("build", MODULES.values(), ids=MODULES.keys())
def test_state_dicts_go_both_ways(build: Callable[[Any], Any], session: Session) -> None:
    theirs, ours = both(build)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    back = build(torch).double()
    back.load_state_dict({k: torch.from_numpy(v.numpy()) for k, v in ours.state_dict().items()})
    for a, b in zip(back.state_dict().values(), theirs.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    twin = build(gt).double()
    twin.load_state_dict(ours.state_dict())
    twin.load_state_dict({k: v.numpy() for k, v in ours.state_dict().items()})
    for a, b in zip(numbers(dict(twin.state_dict())), numbers(dict(ours.state_dict())), strict=True):
        np.testing.assert_array_equal(a, b)


def test_names_are_found_in_torchs_order(session: Session) -> None:
    theirs, ours = both(Block)
    assert [n for n, _ in ours.named_parameters()] == [n for n, _ in theirs.named_parameters()]
    assert [n for n, _ in ours.named_buffers()] == [n for n, _ in theirs.named_buffers()]
    assert [n for n, _ in ours.named_modules()] == [n for n, _ in theirs.named_modules()]
    assert [n for n, _ in ours.named_children()] == [n for n, _ in theirs.named_children()]
    assert repr(ours.layers[0]) == repr(theirs.layers[0])
    assert len(ours.layers) == 2
    assert repr(MODULES["linear"](gt)) == repr(MODULES["linear"](torch))


def test_loading_refuses_what_does_not_fit(session: Session) -> None:
    model = gt.nn.Linear(3, 2)
    state = model.state_dict()
    with pytest.raises(ArgumentError, match=r"missing \['bias'\], unexpected \['b'\]"):
        model.load_state_dict({"weight": state["weight"], "b": state["bias"]})
    with pytest.raises(ShapeError, match=r"weight must have shape \(2, 3\), got \(3, 3\)"):
        model.load_state_dict({"weight": gt.ones(3, 3), "bias": state["bias"]})
    model.load_state_dict({"weight": gt.ones(2, 3)}, strict=False)
    assert model.weight.tolist() == [[1.0] * 3] * 2


def test_attributes(session: Session) -> None:
    class Net(gt.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = gt.nn.Parameter(gt.ones(2))
            self.inner = gt.nn.Linear(2, 2)

    net = Net()
    assert len(list(net.parameters())) == 3
    net.w = gt.nn.Parameter(gt.zeros(2))
    assert net.w.tolist() == [0.0, 0.0]
    net.inner = None
    assert [n for n, _ in net.named_parameters()] == ["w"]
    del net.w
    assert list(net.parameters()) == []
    with pytest.raises(AttributeError, match="Net has no attribute 'w'"):
        net.w  # noqa: B018

    class Early(gt.nn.Module):
        def __init__(self) -> None:
            self.w = gt.nn.Parameter(gt.ones(2))

    with pytest.raises(AttributeError, match=r"call super\(\).__init__\(\) before setting w"):
        Early()
    with pytest.raises(NotImplementedError, match=r"Module has no forward\(\)"):
        gt.nn.Module()(1)


def test_tied_weights_are_one_parameter(session: Session) -> None:
    model = gt.nn.Sequential(gt.nn.Linear(3, 3), gt.nn.Linear(3, 3))
    model[1].weight = model[0].weight
    assert len(list(model.parameters())) == 3
    assert sorted(model.state_dict()) == ["0.bias", "0.weight", "1.bias", "1.weight"]


def test_modes_freezing_and_apply(session: Session) -> None:
    model = Block(gt)
    model.eval()
    assert not any(m.training for m in model.modules())
    model.train()
    assert all(m.training for m in model.modules())
    model.requires_grad_(False)
    assert not model(gt.ones(1, 5)).requires_grad
    model.requires_grad_()
    seen: list[str] = []
    model.apply(lambda m: seen.append(type(m).__name__))
    assert seen == ["Linear", "Linear", "LayerNorm", "ModuleList", "Net"]
    model(gt.ones(1, 5)).sum().backward()
    model.zero_grad(set_to_none=False)
    assert float(model.first.weight.grad.abs().sum()) == 0.0
    model.zero_grad()
    assert model.first.weight.grad is None


def test_a_copied_model_is_its_own(session: Session) -> None:
    model = gt.nn.Linear(3, 2)
    twin = copy.deepcopy(model)
    before = model.weight.numpy() if not model.weight.requires_grad else model.weight.detach().numpy()
    with gt.no_grad():
        twin.weight.zero_()
    np.testing.assert_array_equal(model.weight.detach().numpy(), before)
    assert twin.weight.tolist() == [[0.0] * 3] * 2
    assert twin.weight.requires_grad
    assert twin.weight is not model.weight


def test_first_weights_lie_in_torchs_range(session: Session) -> None:
    gt.manual_seed(0)
    layer = gt.nn.Linear(64, 200)
    bound = 1 / math.sqrt(64)
    w, b = (p.detach().numpy() for p in layer.parameters())
    assert w.shape == (200, 64)
    assert b.shape == (200,)
    for a in (w, b):
        assert np.abs(a).max() <= bound
        assert np.abs(a).max() > 0.9 * bound
    assert abs(w.mean()) < 0.02 * bound
    assert w.std() == pytest.approx(bound / math.sqrt(3), rel=0.02)
    table = gt.nn.Embedding(100, 50).weight.detach().numpy()
    assert table.std() == pytest.approx(1.0, rel=0.05)


def test_dropout(session: Session) -> None:
    gt.manual_seed(0)
    drop = gt.nn.Dropout(0.25)
    x = gt.ones(10_000)
    y = drop(x).numpy()
    assert set(np.unique(y)) == {np.float32(0.0), np.float32(1 / 0.75)}
    assert (y == 0).mean() == pytest.approx(0.25, abs=0.02)
    assert drop.eval()(x) is x
    with pytest.raises(ArgumentError, match=r"p must be a probability between 0 and 1, got 1.5"):
        gt.nn.functional.dropout(x, 1.5)


# --- losses -------------------------------------------------------------------------------------------------

TARGET = np.array([0, 3, 2, 4, 1, 1, -100])
Y = _rng.uniform(0.05, 0.95, size=(7, 5))
REDUCTIONS = ["mean", "sum", "none"]

LOSSES: dict[str, Callable[[Any, Any, str], Any]] = {
    "mse": lambda lib, x, r: lib.nn.functional.mse_loss(x, lib.from_numpy(Y), reduction=r),
    "l1": lambda lib, x, r: lib.nn.functional.l1_loss(x, lib.from_numpy(Y), reduction=r),
    "bce": lambda lib, x, r: lib.nn.functional.binary_cross_entropy(x.sigmoid(), lib.from_numpy(Y), reduction=r),
    "bce of certainties": lambda lib, x, r: lib.nn.functional.binary_cross_entropy(
        (x > 0).to(lib.float64) * 1.0 + x * 0.0, lib.from_numpy(Y), reduction=r
    ),
    "bce with logits": lambda lib, x, r: lib.nn.functional.binary_cross_entropy_with_logits(
        x * 40.0, lib.from_numpy(Y), reduction=r
    ),
    "bce with weights": lambda lib, x, r: lib.nn.functional.binary_cross_entropy_with_logits(
        x, lib.from_numpy(Y), pos_weight=lib.from_numpy(Y[0] * 3), weight=lib.from_numpy(Y[1]), reduction=r
    ),
    "cross entropy": lambda lib, x, r: lib.nn.functional.cross_entropy(x * 30.0, lib.from_numpy(TARGET), reduction=r),
    "cross entropy, smoothed": lambda lib, x, r: lib.nn.functional.cross_entropy(
        x, lib.from_numpy(TARGET), reduction=r, label_smoothing=0.1
    ),
    "cross entropy of probabilities": lambda lib, x, r: lib.nn.functional.cross_entropy(
        x, lib.from_numpy(Y), reduction=r, label_smoothing=0.2
    ),
    "cross entropy, other ignored class": lambda lib, x, r: lib.nn.functional.cross_entropy(
        x, lib.from_numpy(np.abs(TARGET) % 5), reduction=r, ignore_index=1
    ),
    "nll": lambda lib, x, r: lib.nn.functional.nll_loss(x.log_softmax(1), lib.from_numpy(TARGET), reduction=r),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_losses_are_torchs(loss: Callable[..., Any], reduction: str, session: Session) -> None:
    results = []
    for lib in (torch, gt):
        x = lib.from_numpy(X.copy()).requires_grad_()
        y = loss(lib, x, reduction)
        y.sum().backward()
        results.append(numbers([y, x.grad]))
    for got, want in zip(results[1], results[0], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-10)


def test_cross_entropy_of_images(session: Session) -> None:
    """More dimensions behind the classes, and one sample without a batch."""
    x, t = _rng.normal(size=(2, 3, 4)), _rng.integers(0, 3, (2, 4))
    for a, b in ((x, t), (x[0, :, 0], t[0, 0])):
        want = torch.nn.functional.cross_entropy(torch.tensor(a), torch.tensor(b))
        got = gt.nn.functional.cross_entropy(gt.tensor(a), gt.tensor(b))
        assert got.item() == pytest.approx(want.item())


def test_loss_modules(session: Session) -> None:
    x, y = gt.from_numpy(X), gt.from_numpy(Y)
    for ours, theirs in (
        (gt.nn.MSELoss(), torch.nn.MSELoss()),
        (gt.nn.L1Loss(reduction="sum"), torch.nn.L1Loss(reduction="sum")),
        (gt.nn.BCEWithLogitsLoss(), torch.nn.BCEWithLogitsLoss()),
        (gt.nn.CrossEntropyLoss(label_smoothing=0.1), torch.nn.CrossEntropyLoss(label_smoothing=0.1)),
    ):
        assert ours(x, y).item() == pytest.approx(theirs(torch.from_numpy(X), torch.from_numpy(Y)).item())
    assert gt.nn.BCELoss()(x.sigmoid(), y).item() > 0.0
    t = gt.from_numpy(TARGET)
    assert gt.nn.NLLLoss()(x.log_softmax(1), t).item() == pytest.approx(gt.nn.CrossEntropyLoss()(x, t).item())
    with pytest.raises(ArgumentError, match="reduction must be 'mean', 'sum' or 'none', got 'avg'"):
        gt.nn.MSELoss(reduction="avg")(x, y)
    with pytest.raises(ShapeError, match=r"input and target must have the same shape, got \(7,"):
        gt.nn.BCEWithLogitsLoss()(x, y[0])


# --- optimizers ------------------------------------------------------------------------------------------------

OPTIMIZERS: dict[str, Callable[[Any, Any], Any]] = {
    "sgd": lambda o, ps: o.SGD(ps, lr=0.1),
    "sgd decay": lambda o, ps: o.SGD(ps, lr=0.1, weight_decay=0.05),
    "sgd momentum": lambda o, ps: o.SGD(ps, lr=0.1, momentum=0.9),
    "sgd dampening": lambda o, ps: o.SGD(ps, lr=0.1, momentum=0.9, dampening=0.3),
    "sgd nesterov": lambda o, ps: o.SGD(ps, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "sgd all": lambda o, ps: o.SGD(ps, lr=0.1, momentum=0.8, dampening=0.1, weight_decay=0.02, maximize=True),
    "sgd maximize": lambda o, ps: o.SGD(ps, lr=0.01, maximize=True, weight_decay=0.02),
    "adam": lambda o, ps: o.Adam(ps, lr=0.05),
    "adam decay": lambda o, ps: o.Adam(ps, lr=0.05, weight_decay=0.1, betas=(0.8, 0.95), eps=1e-6),
    "adam maximize": lambda o, ps: o.Adam(ps, lr=0.05, weight_decay=0.1, maximize=True),
    "adamw": lambda o, ps: o.AdamW(ps, lr=0.05),
    "adamw options": lambda o, ps: o.AdamW(ps, lr=0.05, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.2),
    "adamw maximize": lambda o, ps: o.AdamW(ps, lr=0.05, maximize=True),
    "groups": lambda o, ps: o.AdamW(
        [{"params": ps[:1], "lr": 0.2}, {"params": ps[1:], "weight_decay": 0.5, "betas": (0.5, 0.9)}], lr=0.05
    ),
    "sgd groups": lambda o, ps: o.SGD([{"params": ps[0], "momentum": 0.9}, {"params": ps[1:], "lr": 0.2}], lr=0.05),
}
START = [_rng.normal(size=(5, 3)), _rng.normal(size=3)]


def train(lib: Any, make: Callable[[Any, Any], Any], steps: int, reload_at: int = -1) -> list[Any]:
    params = [lib.from_numpy(a.copy()).requires_grad_() for a in START]
    opt = make(lib.optim, params)
    x = lib.from_numpy(X)
    for step in range(steps):
        if step == reload_at:
            state = copy.deepcopy(opt.state_dict())
            opt = make(lib.optim, params)
            opt.load_state_dict(state)
        opt.zero_grad()
        loss = ((x @ params[0] + params[1]) ** 2).mean()
        if step != 3:  # a step in which one parameter has no gradient
            loss.backward()
        else:
            (params[0] ** 2).sum().backward()
        opt.step()
    return numbers(params)


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
@pytest.mark.parametrize("reload_at", [-1, 7], ids=["", "reloaded"])
def test_twenty_steps_are_torchs(make: Callable[[Any, Any], Any], reload_at: int, session: Session) -> None:
    for got, want in zip(train(gt, make, 20, reload_at), train(torch, make, 20, reload_at), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-9)


def test_a_step_is_one_instruction_per_parameter(session: Session) -> None:
    train(gt, OPTIMIZERS["adamw"], 6)
    steps = [v.program for v in session.variants.values() if any(i.op == "adamw" for i in v.program.code)]
    assert steps
    assert all(sum(i.op == "adamw" for i in p.code) in (1, 2) for p in steps)


def test_state_is_made_with_the_optimizer(session: Session) -> None:
    w = gt.ones(3, requires_grad=True)
    opt = gt.optim.AdamW([w])
    state = opt.state[w]
    assert state["step"] == 0
    assert state["exp_avg"].tolist() == [0.0] * 3
    assert opt.state_dict()["param_groups"][0]["params"] == [0]


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "nothing": (lambda: gt.optim.SGD([]), "an optimizer expects parameters, got an empty list"),
    "no tensor": (lambda: gt.optim.SGD([1]), "an optimizer expects tensors, got int"),
    "a result": (lambda: gt.optim.SGD([gt.ones(2, requires_grad=True) * 2.0]), "expects leaf tensors"),
    "negative lr": (lambda: gt.optim.SGD([gt.ones(2)], lr=-1.0), r"SGD: lr must be >= 0, got -1\.0"),
    "nesterov": (lambda: gt.optim.SGD([gt.ones(2)], nesterov=True), "nesterov=True requires momentum > 0"),
    "betas": (lambda: gt.optim.AdamW([gt.ones(2)], betas=(1.0, 0.9)), r"betas\[0\] must be in \[0, 1\), got 1.0"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_optimizers_refuse(make: Callable[[], Any], message: str, session: Session) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()


def test_a_parameter_in_two_groups_is_refused(session: Session) -> None:
    w = gt.ones(2, requires_grad=True)
    with pytest.raises(ArgumentError, match="more than one group"):
        gt.optim.SGD([{"params": [w]}, {"params": [w]}])


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


def test_imports_from_both_places(session: Session) -> None:
    from gt import nn, optim
    from gt.client import nn as client_nn
    from gt.client import optim as client_optim

    assert client_nn is nn
    assert client_optim is optim
    assert all(hasattr(nn, name) for name in nn.__all__)
