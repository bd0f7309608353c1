"""Ways to shard a small network and its data over a mesh with axes x and y, and how it is trained."""

from __future__ import annotations

from typing import Any

import numpy as np

import gt
from benchmarks import zoo

WAYS: dict[str, tuple[dict[int, Any], dict[str, Any]]] = {
    "data": ({0: "x"}, {}),
    "fully": ({0: ("x", "y")}, {"*": {0: ("x", "y")}}),
    "tensor": ({}, {"up.*": {0: "x"}, "down.weight": {1: "x"}}),
    "both": ({0: "x"}, {"up.*": {0: "y"}, "down.weight": {1: "y"}, "head.weight": {1: "y"}}),
}


def train(steps: int, batch: dict[int, Any] | None, layouts: dict[str, Any], checkpoint: bool = False) -> Any:
    """Losses and the model, after steps of accumulated and clipped gradients."""
    gt.manual_seed(1)
    model = zoo.residual(gt).double()
    if layouts:
        gt.shard_(model, layouts)
    optimizer = gt.optim.AdamW(model.parameters(), lr=1e-2)
    rng = np.random.default_rng(2)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(2):
            x, y = rng.normal(size=(37, 10)), rng.integers(0, 3, size=37)
            given = gt.from_numpy(x) if batch is None else gt.from_numpy(x, layout=batch)
            target = gt.from_numpy(y) if batch is None else gt.tensor(y, layout=batch)
            out = gt.checkpoint(model, given) if checkpoint else model(given)
            loss = gt.nn.functional.cross_entropy(out, target)
            (loss / 2).backward()
            losses.append(loss)
        norm = gt.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        losses.append(norm)
        optimizer.step()
    return [loss.item() for loss in losses], model, optimizer
