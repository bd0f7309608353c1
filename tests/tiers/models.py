"""Two models as training steps that are compiled, and the same steps in eager PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import gt
from tests.beside_torch import twins
from tests.training.recipes import RECIPES, Training

BATCH, WIDTH, ROWS, DROP = 8, 16, 64, 0.25


def rate(i: int) -> float:
    """The learning rate of a step: another one every time."""
    return 3e-3 / (1 + i / 20)


def at(i: int) -> int:
    """Where the batch of a step begins."""
    return i * 3 % (ROWS - BATCH)


class Mlp:
    """With all that must not be written down in compiled code: seeds, a slice's start, a learning rate, step counts."""

    def __init__(self, compile: bool | None = True) -> None:
        rng = np.random.default_rng(0)
        self.x = rng.normal(size=(ROWS, 6)).astype(np.float32)
        self.y = rng.integers(0, 4, ROWS)
        self.theirs, self.model = twins(self._layers)
        self.optimizer = gt.optim.AdamW(self.model.parameters(), lr=1.0)
        self.rows, self.labels = gt.from_numpy(self.x), gt.from_numpy(self.y)
        self.run = gt.function(self._step, compile=compile)
        gt.manual_seed(5)

    @staticmethod
    def _layers(lib: Any) -> Any:
        nn = lib.nn
        return nn.ModuleList([nn.Linear(6, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4)])

    def _step(self, rows: Any, labels: Any, at: int) -> tuple[Any, Any]:
        first, norm, last = self.model
        h = gt.nn.functional.dropout(norm(first(rows[at : at + BATCH]).relu()), DROP)
        logits = last(h)
        loss = gt.nn.functional.cross_entropy(logits, labels[at : at + BATCH])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach(), logits.detach()

    def step(self, i: int) -> tuple[Any, Any]:
        """Loss and logits of one step. Gradients stay at the parameters."""
        self.optimizer.param_groups[0]["lr"] = rate(i)
        made: tuple[Any, Any] = self.run(self.rows, self.labels, at(i))
        return made

    def state(self) -> list[np.ndarray[Any, Any]]:
        """Copies of the parameters and of the optimizer's state."""
        moments = [m for s in self.optimizer.state_dict()["state"].values() for m in s.values()]
        return [np.array(t) for t in [*self.model.state_dict().values(), *moments]]

    def losses(self, steps: int) -> list[float]:
        gt.manual_seed(5)
        return [self.step(i)[0].item() for i in range(steps)]

    def eager_losses(self, steps: int) -> list[float]:
        """PyTorch's, with the same elements dropped."""
        gt.manual_seed(5)
        kept = [gt.nn.functional.dropout(gt.ones(BATCH, WIDTH), DROP).numpy() for _ in range(steps)]
        x, y = torch.from_numpy(self.x), torch.from_numpy(self.y)
        optimizer = torch.optim.AdamW(self.theirs.parameters(), lr=1.0)
        first, norm, last = self.theirs
        losses = []
        for i in range(steps):
            optimizer.param_groups[0]["lr"] = rate(i)
            h = norm(first(x[at(i) : at(i) + BATCH]).relu()) * torch.from_numpy(kept[i])
            loss = torch.nn.functional.cross_entropy(last(h), y[at(i) : at(i) + BATCH])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses


class Gpt:
    """The GPT of tests/training with one layer: clipped gradients, two groups of parameters and a schedule."""

    def __init__(self) -> None:
        self.theirs, model = twins(self._one_block)
        self.training = Training(gt, "gpt", model)
        self.run = gt.function(self.training.step, compile=True)

    @staticmethod
    def _one_block(lib: Any) -> Any:
        model = RECIPES["gpt"].model(lib)
        model.blocks = model.blocks[:1]  # half the time to compile it
        return model

    def losses(self, steps: int) -> list[float]:
        return self.training.losses(steps, step=self.run)

    def eager_losses(self, steps: int) -> list[float]:
        return Training(torch, "gpt", self.theirs).losses(steps)
