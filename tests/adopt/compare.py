"""A model by torch and the same model adopted: losses of some steps, gradients of the first, calls and programs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import gt


@dataclass
class Outcome:
    """What a comparison found."""

    losses: tuple[list[float], list[float]]  #: torch's and GT's
    worst: float  #: The largest difference of a gradient, relative to the largest gradient of the model.
    missing: set[str]  #: Parameters that have a gradient on one side only.
    steps: list[tuple[int, int]]  #: Calls, and programs sent, of each step after the first.

    @property
    def equal(self) -> bool:
        close = all(abs(a - b) <= 1e-5 + 1e-3 * abs(a) for a, b in zip(*self.losses, strict=True))
        return close and self.worst < 1e-3 and not self.missing


def first_loss(out: Any) -> Any:
    """A number to minimize: the model's own loss, or the mean square of its first result."""
    if getattr(out, "loss", None) is not None:
        return out.loss
    if isinstance(out, (tuple, list)):
        out = out[0]
    if not isinstance(out, torch.Tensor):
        out = next(v for v in out.values() if isinstance(v, torch.Tensor) and v.is_floating_point())
    return out.float().square().mean()


def without_dropout(model: Any) -> Any:
    """Random numbers differ between torch and GT, so nothing is dropped."""
    for module in model.modules():
        for name in ("p", "dropout", "dropout_p", "attention_dropout", "attn_dropout"):
            if isinstance(getattr(module, name, None), float) and ("ropout" in type(module).__name__ or name != "p"):
                setattr(module, name, 0.0)
    return model


def compare(
    make: Callable[[], Any], batch: Callable[[int], dict[str, Any]], steps: int = 3,
    optimizer: Callable[[Any], Any] = lambda p: torch.optim.SGD(p, 1e-3),
) -> Outcome:  # fmt: skip
    """Train the model with torch, and adopted, on the same batches."""
    torch.manual_seed(0)
    theirs = without_dropout(make().train())
    ours = copy.deepcopy(theirs)
    expected, grads, _ = _train(theirs, batch, steps, optimizer(theirs.parameters()), lambda g: g.clone())
    ours = gt.adopt(ours)
    found, mine, counts = _train(ours, batch, steps, optimizer(ours.parameters()), lambda g: g.torch())
    largest = max((float(g.abs().max()) for g in grads.values()), default=0.0) or 1.0
    both = grads.keys() & mine.keys()
    worst = max((float((grads[k] - mine[k]).abs().max()) / largest for k in both if grads[k].numel()), default=0.0)
    return Outcome((expected, found), worst, set(grads.keys() ^ mine.keys()), counts)


def _train(model: Any, batch: Any, steps: int, optimizer: Any, read: Any) -> Any:
    losses, counts, grads, before = [], [], {}, (0, 0)
    for i in range(steps):
        loss = first_loss(model(**batch(i)))
        optimizer.zero_grad()
        loss.backward()
        if i == 0:
            grads = {k: read(p.grad) for k, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
        losses.append(loss.detach())
        del loss
        stats = gt.debug.get_client_stats()
        now = stats["calls"], stats["programs_sent"]
        counts.append((now[0] - before[0], now[1] - before[1]))
        before = now
    return [x.item() for x in losses], grads, counts[1:]
