"""LBFGS goes where torch's goes."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.client.session.session import Session
from tests.beside_torch import same

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"lr": 0.1, "max_iter": 6},
    "short history": {"lr": 0.05, "max_iter": 8, "history_size": 3},
    "searching": {"line_search_fn": "strong_wolfe"},
    "searching far": {"lr": 30.0, "max_iter": 7, "line_search_fn": "strong_wolfe"},
    "searching near": {"lr": 1e-4, "max_iter": 7, "line_search_fn": "strong_wolfe", "history_size": 4},
    "few looks": {"lr": 5.0, "max_iter": 9, "max_eval": 5, "line_search_fn": "strong_wolfe"},
    "rough": {"lr": 0.5, "tolerance_grad": 0.3, "tolerance_change": 1e-3},
}
START = np.asarray([-1.2, 1.0, 0.7])


class Valley:
    """Rosenbrock's, in torch or GT."""

    def __init__(self, lib: Any, settings: dict[str, Any]) -> None:
        self.lib = lib
        self.params = [lib.from_numpy(START.copy()).requires_grad_(), lib.ones(2, 1, dtype=lib.float64)]
        self.params[1].requires_grad_()
        self.opt = lib.optim.LBFGS(self.params, **settings)
        self.losses: list[float] = []

    def closure(self) -> Any:
        self.opt.zero_grad()
        x, c = self.params
        loss = (10 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum() + ((c.reshape(-1) - x[:2]) ** 2).sum()
        loss.backward()
        self.losses.append(loss.item())
        return loss

    def steps(self, n: int) -> list[np.ndarray]:
        found = [np.asarray(self.opt.step(self.closure).item()) for _ in range(n)]
        return [*found, *(p.detach().numpy() for p in self.params), np.asarray(self.losses)]

    def counts(self) -> tuple[int, int]:
        state = self.opt.state[self.params[0]]
        return state["func_evals"], state["n_iter"]


@pytest.mark.parametrize("name", SETTINGS)
def test_steps_are_torchs(name: str, session: Session) -> None:
    mine, theirs = Valley(gt, SETTINGS[name]), Valley(torch, SETTINGS[name])
    same(mine.steps(4), theirs.steps(4), rtol=1e-7, atol=1e-9)
    assert mine.counts() == theirs.counts()


@pytest.mark.parametrize("source", [gt, torch], ids=["gt", "torch"])
@pytest.mark.parametrize("name", ["short history", "searching near"])
def test_states_are_loaded(name: str, source: Any, session: Session) -> None:
    first, reference = Valley(source, SETTINGS[name]), Valley(torch, SETTINGS[name])
    first.steps(2)
    reference.steps(2)
    again = Valley(gt, SETTINGS[name])
    with gt.no_grad():
        for p, q in zip(again.params, first.params, strict=True):
            p.copy_(q if source is gt else gt.from_torch(q))
    again.opt.load_state_dict(copy.deepcopy(first.opt.state_dict()))
    same(again.steps(2)[:-1], reference.steps(2)[:-1], rtol=1e-7, atol=1e-9)


def test_it_gets_to_the_bottom(session: Session) -> None:
    valley = Valley(gt, {"line_search_fn": "strong_wolfe", "max_iter": 100})
    valley.steps(1)
    np.testing.assert_allclose(valley.params[0].detach().numpy(), np.ones(3), rtol=1e-5)


def test_what_is_refused(session: Session) -> None:
    a, b = gt.ones(2, requires_grad=True), gt.ones(2, requires_grad=True)
    with pytest.raises(ValueError, match="one group"):
        gt.optim.LBFGS([{"params": [a]}, {"params": [b]}])
    with pytest.raises(ValueError, match="line_search_fn must be None or 'strong_wolfe', got 'armijo'"):
        gt.optim.LBFGS([a], line_search_fn="armijo")
    with pytest.raises(ValueError, match=r"step\(\) requires a closure that computes the loss and calls backward\(\)"):
        gt.optim.LBFGS([a]).step(None)
