"""Training loops in which something is read. See test_training_loops.py."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

import gt
from tests.client.record.training_loops import BATCH, FEATURES, Kit, loop


@loop("AdamW", lr=0.01)
def item_after_step(kit: Kit, model: Any, opt: Any, step: int) -> Any:
    return kit.train(model, opt, step).item()


@loop("AdamW", lr=0.01)
def item_before_backward(kit: Kit, model: Any, opt: Any, step: int) -> Any:
    loss = kit.loss(model, step)
    read = loss.item()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return read


@loop("AdamW", lr=0.01)
def item_after_backward(kit: Kit, model: Any, opt: Any, step: int) -> Any:
    opt.zero_grad()
    loss = kit.loss(model, step)
    loss.backward()
    read = loss.item()
    opt.step()
    return read


@loop("AdamW", lr=0.01)
def logging_every_few_steps(kit: Kit, model: Any, opt: Any, step: int) -> Any:
    loss = kit.train(model, opt, step)
    return loss.item() if step % 5 == 0 else None


@loop("SGD", lr=0.1)
def progress_bar(kit: Kit, model: Any, opt: Any, step: int) -> Any:
    loss = kit.train(model, opt, step)
    return f"{loss.item():.4f}" if kit.lib is not gt else f"{loss:.4f}"


@loop("AdamW", lr=0.01)
def evaluation_between_steps(kit: Kit, model: Any, opt: Any, step: int) -> Any:
    model.train()
    kit.train(model, opt, step)
    if step % 3 == 2:
        model.eval()
        with kit.lib.no_grad():
            return (model(kit.X).argmax(1) == kit.Y).float().mean().item()


@loop("AdamW", lr=0.01)
def predictions_in_a_list(kit: Kit, model: Any, opt: Any, step: int) -> Any:
    kit.train(model, opt, step)
    with kit.lib.no_grad():
        found = [model(kit.X[i : i + BATCH]) for i in range(0, 4 * BATCH, BATCH)]
    return [f.numpy() for f in found]


@loop("AdamW", lr=0.01)
def accumulation_over_steps(kit: Kit, model: Any, opt: Any, step: int) -> None:
    (kit.loss(model, step) / 4).backward()
    if (step + 1) % 4 == 0:
        opt.step()
        opt.zero_grad()


def early_stopping(kit: Kit) -> Any:
    model, opt = kit.start("SGD", lr=0.5)
    best, state = float("inf"), None
    for step in kit.steps():
        kit.train(model, opt, step)
        with kit.lib.no_grad():
            now = kit.F.cross_entropy(model(kit.X), kit.Y).item()
        if now < best:
            best, state = now, copy.deepcopy(model.state_dict())
    model.load_state_dict(state)
    return model, best


def descent_by_hand(kit: Kit) -> Any:
    """No optimizer: the loop's programs end where a value is read."""
    model = kit.model()
    losses = []
    for step in kit.steps():
        loss = kit.loss(model, step)
        loss.backward()
        with kit.lib.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
                p.grad = None
        losses.append(loss.item())
    return model, losses


@loop("SGD", lr=0.1)
def skipped_batches(kit: Kit, model: Any, opt: Any, step: int) -> Any:
    loss = kit.loss(model, step)
    if not loss > 1.2:
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss


@loop("SGD", lr=0.1)
def an_exception_in_every_seventh_step(kit: Kit, model: Any, opt: Any, step: int) -> Any:
    opt.zero_grad()
    try:
        loss = kit.loss(model, step)
        if step % 7 == 3:
            model(kit.X[:, 1:])
        loss.backward()
        opt.step()
    except RuntimeError:
        return "caught"


@loop("SGD", lr=0.3)
def gradient_norm_read(kit: Kit, model: Any, opt: Any, step: int) -> Any:
    opt.zero_grad()
    kit.loss(model, step).backward()
    norm = sum((p.grad**2).sum() for p in model.parameters()).sqrt().item()
    if norm > 0.2:
        for p in model.parameters():
            p.grad.mul_(0.2 / norm)
    opt.step()
    return norm


@loop("AdamW", lr=0.01)
def batches_from_numpy(kit: Kit, model: Any, opt: Any, step: int) -> None:
    rng = np.random.default_rng(step)
    x, y = rng.normal(size=(BATCH, FEATURES)), rng.integers(0, 3, BATCH)
    kit.train_on(model, opt, kit.lib.from_numpy(x), kit.lib.from_numpy(y))
