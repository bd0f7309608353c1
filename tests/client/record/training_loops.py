"""Training loops that torch and GT run alike, and what is counted while GT runs them.

A loop is a function of a Kit: plain training code on `kit.lib`, which is torch or gt. Run on torch it says what comes
out; run on GT it must give the same, and settle into few programs. `loop` makes one of the code of a step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import gt
from gt.client.record.recorder import recorder
from gt.client.session.session import Session
from tests.beside_torch import Story, same

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
    """What a loop works with. On GT it also notes the counters after every step."""

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
        first, last = nn.Linear(FEATURES, HIDDEN, dtype=double), nn.Linear(HIDDEN, CLASSES, dtype=double)
        model = nn.Sequential(first, nn.Tanh(), last)
        model.load_state_dict({k: self.lib.from_numpy(v) for k, v in WEIGHTS.items()})
        return model

    def batch(self, step: int) -> tuple[Any, Any]:
        i = step * BATCH % len(INPUTS)
        return self.X[i : i + BATCH], self.Y[i : i + BATCH]

    def loss(self, model: Any, step: int) -> Any:
        x, y = self.batch(step)
        return self.F.cross_entropy(model(x), y)

    def start(self, optimizer: str, **settings: Any) -> tuple[Any, Any]:
        """The model, and an optimizer for it."""
        model = self.model()
        return model, getattr(self.lib.optim, optimizer)(model.parameters(), **settings)

    def train(self, model: Any, optimizer: Any, step: int) -> Any:
        """One step as most people write it; its loss."""
        return self.train_on(model, optimizer, *self.batch(step))

    def train_on(self, model: Any, optimizer: Any, x: Any, y: Any) -> Any:
        """Such a step on a batch of one's own."""
        optimizer.zero_grad()
        loss = self.F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

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


def loop(optimizer: str, **settings: Any) -> Callable[[Story], Story]:
    """The loop whose steps are step(kit, model, optimizer, its number). What they return is kept to the end."""

    def made_of(step: Story) -> Story:
        @functools.wraps(step)
        def story(kit: Kit) -> Any:
            model, opt = kit.start(optimizer, **settings)
            found = [step(kit, model, opt, k) for k in kit.steps()]
            return model, found

        return story

    return made_of


def compare(story: Story, session: Session) -> Kit:
    """Run a loop on both; the results are equal. Returns the kit that GT used."""
    kit = Kit(gt, session)
    same(story(kit), story(Kit(torch)), rtol=1e-9, atol=1e-11)
    return kit
