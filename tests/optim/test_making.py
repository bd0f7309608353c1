"""Optimizers as they are made: what they refuse, the state they begin with, and the closure of a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import gt
from gt.client.session.session import Session
from gt.errors import ArgumentError

REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "nothing": (lambda: gt.optim.SGD([]), "an optimizer expects parameters, got an empty list"),
    "no tensor": (lambda: gt.optim.SGD([1]), "an optimizer expects tensors, got int"),
    "a result": (lambda: gt.optim.SGD([gt.ones(2, requires_grad=True) * 2.0]), "expects leaf tensors"),
    "nesterov": (lambda: gt.optim.SGD([gt.ones(2)], nesterov=True), "nesterov=True requires momentum > 0"),
    "two groups": (lambda: gt.optim.SGD([{"params": [w := gt.ones(2)]}, {"params": [w]}]), "more than one group"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_refused(make: Callable[[], Any], message: str, session: Session) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()


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
