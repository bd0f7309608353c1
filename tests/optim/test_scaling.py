"""gt.amp: gradients are scaled as by torch, and useless steps skipped."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.client.session.session import Session

STEPS = 24
SETTINGS = {"init_scale": 1024.0, "growth_interval": 3, "growth_factor": 4.0, "backoff_factor": 0.25}


def train(lib: Any, unscale: bool, session: Session | None = None) -> tuple[list[Any], list[int]]:
    w = lib.ones(3, dtype=lib.float32, requires_grad=True)
    opt = lib.optim.SGD([w], lr=0.01, momentum=0.9)
    scaler = lib.amp.GradScaler("cpu", **SETTINGS)
    found: list[Any] = []
    texts = []
    for step in range(STEPS):
        opt.zero_grad()
        scale = float("inf") if step in (4, 5, 15) else float("nan") if step == 10 else 1.0 + step
        scaler.scale((w * w * scale).sum()).backward()
        if unscale:
            scaler.unscale_(opt)
            w.grad.clamp_(-0.5, 0.5)
        scaler.step(opt)
        scaler.update()
        found.append([*w.tolist(), scaler.get_scale()])
        if session is not None:
            texts.append(session.defined)
    found.append(list(scaler.state_dict().values()))
    return found, texts


@pytest.mark.parametrize("unscale", [False, True], ids=["", "unscaled"])
def test_scaled_training_is_torchs(unscale: bool, session: Session) -> None:
    got, texts = train(gt, unscale, session)
    want, _ = train(torch, unscale)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-6)
    assert texts[-1] == texts[STEPS // 2]


def test_a_scaler_that_is_off_does_nothing(session: Session) -> None:
    w = gt.ones(3, requires_grad=True)
    opt = gt.optim.SGD([w], lr=0.5)
    scaler = gt.amp.GradScaler(enabled=False)
    loss = (w * w).sum()
    assert scaler.scale(loss) is loss
    loss.backward()
    scaler.unscale_(opt)
    scaler.step(opt)
    scaler.update()
    assert w.tolist() == [0.0] * 3
    assert not scaler.is_enabled()
    assert scaler.get_scale() == 1.0
    assert scaler.state_dict() == {}


def test_states_are_torchs(session: Session) -> None:
    theirs = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=7)
    scaler = gt.amp.GradScaler()
    scaler.load_state_dict(theirs.state_dict())
    assert scaler.state_dict() == theirs.state_dict()
    assert scaler.get_growth_interval() == 7
    names = [n for n in dir(theirs) if not n.startswith("_")]
    assert all(hasattr(scaler, n) for n in names)


def test_several_outputs_and_types(session: Session) -> None:
    scaler = gt.amp.GradScaler(init_scale=2.0**20)
    pair = scaler.scale([gt.ones(2), (gt.ones(()),)])
    assert isinstance(pair[1], tuple)
    assert pair[0].tolist() == [2.0**20] * 2
    assert scaler.scale(gt.ones((), dtype=gt.float16)).item() == 2.0**20
    assert [x.item() for x in scaler.scale(iter([gt.ones(())]))] == [2.0**20]


def test_calls_in_the_wrong_order(session: Session) -> None:
    w = gt.ones(3, requires_grad=True)
    opt = gt.optim.SGD([w], lr=0.5)
    scaler = gt.amp.GradScaler()
    for call in (lambda: scaler.step(opt), lambda: scaler.unscale_(opt), scaler.update):
        with pytest.raises(RuntimeError, match="no loss was scaled"):
            call()
    loss = scaler.scale((w * w).sum())
    with pytest.raises(RuntimeError, match="have no gradients"):
        scaler.unscale_(opt)
    with pytest.raises(RuntimeError, match="no step"):
        scaler.update()
    loss.backward()
    scaler.unscale_(opt)
    with pytest.raises(RuntimeError, match="already called on this optimizer since the last update"):
        scaler.unscale_(opt)
    scaler.step(opt)
    with pytest.raises(RuntimeError, match="already called since the last update"):
        scaler.step(opt)
    with pytest.raises(RuntimeError, match="after step"):
        scaler.unscale_(opt)
    scaler.update(16.0)
    assert scaler.get_scale() == 16.0
    with pytest.raises(ValueError, match="growth_factor must be > 1"):
        gt.amp.GradScaler(growth_factor=1.0)


def test_gradients_in_float16_are_refused(session: Session) -> None:
    w = gt.ones(3, dtype=gt.float16, requires_grad=True)
    opt = gt.optim.SGD([w], lr=0.5)
    scaler = gt.amp.GradScaler()
    scaler.scale(w.sum()).backward()
    with pytest.raises(ValueError, match="float16 gradients are not supported"):
        scaler.step(opt)


def test_with_autocast(session: Session) -> None:
    w = gt.ones(3, 2, requires_grad=True)
    opt = gt.optim.AdamW([w], lr=0.1)
    scaler = gt.amp.GradScaler(init_scale=2.0**10)
    for _ in range(3):
        opt.zero_grad()
        with gt.amp.autocast(dtype=gt.float16):
            y = gt.ones(4, 3) @ w
            assert y.dtype is gt.float16
            loss = y.float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
    assert 0.5 < w.detach().numpy().mean() < 0.8
