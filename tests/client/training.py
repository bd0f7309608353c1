"""Training loops that torch and GT run alike, and what is counted while GT runs them.

An idiom is a function of a Kit: plain training code on `kit.lib`, which is torch or gt. Run on
torch it says what comes out; run on GT it must give the same, and settle into few programs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import gt
from gt.client.record.recorder import recorder
from gt.client.session.session import Session

STEPS = 36
BATCH = 16
FEATURES, HIDDEN, CLASSES = 6, 12, 3

_rng = np.random.default_rng(5)
INPUTS = _rng.normal(size=(6 * BATCH, FEATURES))
TARGETS = _rng.integers(0, CLASSES, 6 * BATCH)
WEIGHTS = {
    "0.weight": _rng.normal(size=(HIDDEN, FEATURES)) / 3,
    "0.bias": _rng.normal(size=HIDDEN) / 9,
    "2.weight": _rng.normal(size=(CLASSES, HIDDEN)) / 3,
    "2.bias": _rng.normal(size=CLASSES) / 9,
}


class Kit:
    """What an idiom works with. On GT it also notes the counters after every step."""

    def __init__(self, lib: Any, session: Session | None = None) -> None:
        self.lib = lib
        self.nn = lib.nn
        self.F = lib.nn.functional
        self.session = session
        self.texts: list[int] = []  #: Program texts sent, at the start and after each step.
        self.calls: list[int] = []
        self.X = lib.from_numpy(INPUTS)
        self.Y = lib.from_numpy(TARGETS)

    def model(self) -> Any:
        nn, double = self.nn, self.lib.float64
        model = nn.Sequential(
            nn.Linear(FEATURES, HIDDEN, dtype=double), nn.Tanh(), nn.Linear(HIDDEN, CLASSES, dtype=double)
        )
        model.load_state_dict({k: self.lib.from_numpy(v) for k, v in WEIGHTS.items()})
        return model

    def batch(self, step: int) -> tuple[Any, Any]:
        i = step * BATCH % len(INPUTS)
        return self.X[i : i + BATCH], self.Y[i : i + BATCH]

    def loss(self, model: Any, step: int) -> Any:
        x, y = self.batch(step)
        return self.F.cross_entropy(model(x), y)

    def steps(self, n: int = STEPS) -> Any:
        """The numbers of the steps. What was made before the first is no part of the loop."""
        if self.session is not None and recorder().pending.end is not None:
            recorder().settle()  # a program that has ended already: the model's and optimizer's making
        self._note()
        for step in range(n):
            yield step
            self._note()

    def _note(self) -> None:
        if self.session is not None:
            self.texts.append(self.session.defined)
            self.calls.append(self.session.seq)


def numbers(result: Any) -> list[np.ndarray[Any, Any]]:
    """All tensors and numbers of a result, as arrays in order."""
    if isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, (list, tuple)):
        return [a for r in result for a in numbers(r)]
    if hasattr(result, "parameters"):
        return [a for p in result.parameters() for a in numbers(p)]
    if isinstance(result, (torch.Tensor, gt.Tensor)):
        return [result.detach().numpy()]
    return [np.asarray(result)]


def compare(idiom: Callable[[Kit], Any], session: Session) -> Kit:
    """Run an idiom on both; the results are equal. Returns the kit that GT used."""
    want = numbers(idiom(Kit(torch)))
    kit = Kit(gt, session)
    got = numbers(idiom(kit))
    assert len(got) == len(want) > 0
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-9, atol=1e-11)
    return kit
