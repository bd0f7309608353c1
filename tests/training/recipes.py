"""How five networks of benchmarks/zoo.py are trained in the tests: their sizes, data, optimizers and schedules."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from benchmarks import zoo

STEPS = 50
BATCH = 8
LETTERS, CONTEXT = 17, 12


@dataclass(frozen=True)
class Recipe:
    """What it takes to train one of them."""

    model: Callable[[Any], Any]
    data: zoo.Data
    loss: zoo.Loss
    optimizer: Callable[[Any, Any], Any]
    schedule: Callable[[Any, Any], Any] | None = None
    clip: float = 0.0
    batch: int = BATCH

    def batches(self, seed: int = 1) -> Iterator[zoo.Arrays]:
        rng = np.random.default_rng(seed)
        while True:
            yield self.data(rng, self.batch)


def decay_groups(lib: Any, model: Any) -> Any:
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return lib.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95))


RECIPES: dict[str, Recipe] = {
    "mlp": Recipe(
        partial(zoo.mlp, sizes=(20, 32, 32, 4), activations=("ReLU", "Tanh")),
        zoo.labelled(20, classes=4, shift=0.4), zoo.classify,
        lambda lib, m: lib.optim.AdamW(m.parameters(), lr=3e-3), batch=16,
    ),
    "cnn": Recipe(
        zoo.mixed_cnn, zoo.labelled(3, 16, 16, classes=4, shift=0.4), zoo.classify,
        lambda lib, m: lib.optim.SGD(m.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-3),
    ),
    "unet": Recipe(
        partial(zoo.unet, channels=1, width=8, mixed=True), zoo.noisy(1, 8), zoo.predict_noise,
        lambda lib, m: lib.optim.Adam(m.parameters(), lr=2e-3),
    ),
    "gpt": Recipe(
        # With more positions than are used: they are sliced.
        partial(zoo.gpt, layers=2, width=16, heads=2, length=CONTEXT + 4, vocabulary=LETTERS),
        zoo.counting(LETTERS, CONTEXT), zoo.next_letter, decay_groups,
        lambda lib, o: lib.optim.lr_scheduler.CosineAnnealingLR(o, STEPS, eta_min=3e-4), clip=0.5,
    ),
    "lstm": Recipe(
        zoo.lstm, zoo.sums, zoo.squared_error, lambda lib, m: lib.optim.Adam(m.parameters(), lr=1e-2),
        lambda lib, o: lib.optim.lr_scheduler.LambdaLR(o, lambda k: 0.5 * (1 + math.cos(k / 30))), clip=1.0,
    ),
}  # fmt: skip


class Training:
    """A model being trained by its recipe. `lib` is gt or torch."""

    def __init__(self, lib: Any, name: str, model: Any) -> None:
        self.lib, self.recipe, self.model = lib, RECIPES[name], model
        self.optimizer = self.recipe.optimizer(lib, model)
        self.schedule = self.recipe.schedule(lib, self.optimizer) if self.recipe.schedule else None

    def step(self, *batch: Any) -> Any:
        """One step without the schedule; its loss."""
        loss = self.recipe.loss(self.lib, self.model, *batch)
        self.optimizer.zero_grad()
        loss.backward()
        if self.recipe.clip:
            self.lib.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        self.optimizer.step()
        return loss.detach()

    def losses(
        self, steps: int, to: Callable[[Any], Any] | None = None, step: Callable[..., Any] | None = None
    ) -> list[float]:
        """The losses of so many steps; `to` makes tensors of a batch, `step` is `self.step` unless given."""
        made, batches = [], self.recipe.batches()
        for _ in range(steps):
            made.append((step or self.step)(*map(to or self.lib.from_numpy, next(batches))))
            if self.schedule is not None:
                self.schedule.step()
        return [float(x) for x in made]


def train(lib: Any, name: str, model: Any, to: Callable[[Any], Any] | None = None, steps: int = STEPS) -> list[float]:
    """The losses of so many steps."""
    return Training(lib, name, model).losses(steps, to)
