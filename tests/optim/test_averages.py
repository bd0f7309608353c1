"""swa_utils: averages of models are torch's, and nobody waits for their count."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.client.session.session import Session
from tests.beside_torch import agree, as_in_torch, same

_rng = np.random.default_rng(3)
WEIGHTS = {"0.weight": _rng.normal(size=(4, 5)), "0.bias": _rng.normal(size=4)}
X = _rng.normal(size=(6, 5))
BATCHES = [_rng.normal(loc=i, size=(8, 5)) for i in range(4)]

AVERAGES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "mean": lambda u: {},
    "mean by function": lambda u: {"avg_fn": u.get_swa_avg_fn()},
    "mean of lists": lambda u: {"multi_avg_fn": u.get_swa_multi_avg_fn()},
    "ema": lambda u: {"multi_avg_fn": u.get_ema_multi_avg_fn(0.8)},
    "ema by function": lambda u: {"avg_fn": u.get_ema_avg_fn(0.8)},
    "own": lambda u: {"avg_fn": lambda a, p, n: a + (p - a) / (n + 2)},
    "buffers": lambda u: {"use_buffers": True},
}


def make(lib: Any) -> Any:
    class Model(lib.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = lib.nn.Sequential(lib.nn.Linear(5, 4, dtype=lib.float64))
            self.layers.load_state_dict({k: lib.from_numpy(v.copy()) for k, v in WEIGHTS.items()})
            self.register_buffer("seen", lib.zeros(3, dtype=lib.float64))

        def forward(self, x: Any) -> Any:
            return self.layers(x).tanh()

    return Model()


def train(lib: Any, which: str, reload_at: int = -1) -> list[np.ndarray]:
    utils = lib.optim.swa_utils
    model = make(lib)
    average = utils.AveragedModel(model, **AVERAGES[which](utils))
    opt = lib.optim.SGD(model.parameters(), lr=0.3)
    for step in range(10):
        opt.zero_grad()
        model(lib.from_numpy(X)).square().sum().backward()
        opt.step()
        with lib.no_grad():
            model.seen.add_(1.0 + step)
        if step == reload_at:
            state = copy.deepcopy(average.state_dict())
            average = utils.AveragedModel(make(lib), **AVERAGES[which](utils))
            average.load_state_dict(state)
        average.update_parameters(model)
    found = [*average.parameters(), average.module.seen, average.n_averaged, average(lib.from_numpy(X))]
    return [x.detach().numpy() for x in found]


@pytest.mark.parametrize("reload_at", [-1, 4], ids=["", "reloaded"])
@pytest.mark.parametrize("which", AVERAGES)
def test_averages_are_torchs(which: str, reload_at: int, session: Session) -> None:
    same(train(gt, which, reload_at), train(torch, which, reload_at), rtol=1e-9, atol=1e-12)


def test_states_have_torchs_names(session: Session) -> None:
    agree(lambda lib: list(lib.optim.swa_utils.AveragedModel(make(lib)).state_dict()))


def test_an_average_waits_for_nothing(session: Session) -> None:
    """After the first update its count is known: a step is one call, and its program known."""
    model = make(gt)
    average = gt.optim.swa_utils.AveragedModel(model, multi_avg_fn=gt.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    opt = gt.optim.SGD(model.parameters(), lr=0.3)
    x = gt.from_numpy(X)
    calls, texts = [], []
    for _ in range(12):
        opt.zero_grad()
        model(x).square().sum().backward()
        opt.step()
        average.update_parameters(model)
        calls.append(session.seq)
        texts.append(session.defined)
    assert set(np.diff(calls)[2:].tolist()) == {1}
    assert texts[-1] == texts[4]


def test_the_count_may_be_set_by_hand(session: Session) -> None:
    model = make(gt)
    average = gt.optim.swa_utils.AveragedModel(model)
    average.update_parameters(model)
    average.n_averaged.fill_(0)
    with gt.no_grad():
        for p in model.parameters():
            p.mul_(3.0)
    average.update_parameters(model)  # a count of 0: taken as they are
    for a, p in zip(average.parameters(), model.parameters(), strict=True):
        np.testing.assert_array_equal(a.detach().numpy(), p.detach().numpy())
    assert average.n_averaged.item() == 1


@as_in_torch(rtol=1e-9, atol=0)
def test_statistics_of_batch_norm_are_torchs(lib: Any, session: Session) -> Any:
    model = lib.nn.Sequential(lib.nn.BatchNorm1d(5, dtype=lib.float64, momentum=0.3))
    model.eval()
    lib.optim.swa_utils.update_bn([(lib.from_numpy(b), 0) for b in BATCHES], model)
    return model, model.training, model[0].momentum


def test_names_are_torchs() -> None:
    assert set(gt.optim.swa_utils.__all__) == set(torch.optim.swa_utils.__all__)


def test_what_is_refused(session: Session) -> None:
    utils = gt.optim.swa_utils
    with pytest.raises(ValueError, match="decay must be between 0 and 1"):
        utils.get_ema_avg_fn(1.5)
    with pytest.raises(ValueError, match="AveragedModel: expected avg_fn or multi_avg_fn, got both"):
        utils.AveragedModel(make(gt), avg_fn=utils.get_swa_avg_fn(), multi_avg_fn=utils.get_swa_multi_avg_fn())
