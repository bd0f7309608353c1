"""Training loops in which something is read. See test_training_loops.py."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

import gt
from tests.client.record.training_loops import BATCH, FEATURES, Kit


def item_after_step(kit: Kit) -> Any:
    model, opt = kit.start("AdamW", lr=0.01)
    losses = []
    for step in kit.steps():
        loss = kit.train(model, opt, step)
        losses.append(loss.item())
    return model, losses


def item_before_backward(kit: Kit) -> Any:
    model, opt = kit.start("AdamW", lr=0.01)
    losses = []
    for step in kit.steps():
        loss = kit.loss(model, step)
        losses.append(loss.item())
        opt.zero_grad()
        loss.backward()
        opt.step()
    return model, losses


def item_after_backward(kit: Kit) -> Any:
    model, opt = kit.start("AdamW", lr=0.01)
    losses = []
    for step in kit.steps():
        opt.zero_grad()
        loss = kit.loss(model, step)
        loss.backward()
        losses.append(loss.item())
        opt.step()
    return model, losses


def logging_every_few_steps(kit: Kit) -> Any:
    model, opt = kit.start("AdamW", lr=0.01)
    log = []
    for step in kit.steps():
        loss = kit.train(model, opt, step)
        if step % 5 == 0:
            log.append(loss.item())
    return model, log


def progress_bar(kit: Kit) -> Any:
    model, opt = kit.start("SGD", lr=0.1)
    lines = []
    for step in kit.steps():
        loss = kit.train(model, opt, step)
        lines.append(float(f"{loss.item():.4f}") if kit.lib is not gt else float(f"{loss:.4f}"))
    return lines


def evaluation_between_steps(kit: Kit) -> Any:
    model, opt = kit.start("AdamW", lr=0.01)
    accuracy = []
    for step in kit.steps():
        model.train()
        kit.train(model, opt, step)
        if step % 3 == 2:
            model.eval()
            with kit.lib.no_grad():
                accuracy.append((model(kit.X).argmax(1) == kit.Y).float().mean().item())
    return model, accuracy


def predictions_in_a_list(kit: Kit) -> Any:
    model, opt = kit.start("AdamW", lr=0.01)
    found: list[Any] = []
    for step in kit.steps():
        kit.train(model, opt, step)
        with kit.lib.no_grad():
            found = [model(kit.X[i : i + BATCH]) for i in range(0, 4 * BATCH, BATCH)]
        found = [f.numpy() for f in found]
    return model, found


def accumulation_over_steps(kit: Kit) -> Any:
    model, opt = kit.start("AdamW", lr=0.01)
    for step in kit.steps():
        (kit.loss(model, step) / 4).backward()
        if (step + 1) % 4 == 0:
            opt.step()
            opt.zero_grad()
    return model


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


def skipped_batches(kit: Kit) -> Any:
    model, opt = kit.start("SGD", lr=0.1)
    for step in kit.steps():
        loss = kit.loss(model, step)
        if loss > 1.2:
            continue
        opt.zero_grad()
        loss.backward()
        opt.step()
    return model


def an_exception_in_every_seventh_step(kit: Kit) -> Any:
    model, opt = kit.start("SGD", lr=0.1)
    caught = 0
    for step in kit.steps():
        opt.zero_grad()
        try:
            loss = kit.loss(model, step)
            if step % 7 == 3:
                model(kit.X[:, 1:])
            loss.backward()
            opt.step()
        except RuntimeError:
            caught += 1
    return model, caught


def gradient_norm_read(kit: Kit) -> Any:
    model, opt = kit.start("SGD", lr=0.3)
    norms = []
    for step in kit.steps():
        opt.zero_grad()
        kit.loss(model, step).backward()
        norm = sum((p.grad**2).sum() for p in model.parameters()).sqrt().item()
        if norm > 0.2:
            for p in model.parameters():
                p.grad.mul_(0.2 / norm)
        norms.append(norm)
        opt.step()
    return model, norms


def batches_from_numpy(kit: Kit) -> Any:
    model, opt = kit.start("AdamW", lr=0.01)
    rng = np.random.default_rng(0)
    for _ in kit.steps():
        x, y = rng.normal(size=(BATCH, FEATURES)), rng.integers(0, 3, BATCH)
        opt.zero_grad()
        kit.F.cross_entropy(model(kit.lib.from_numpy(x)), kit.lib.from_numpy(y)).backward()
        opt.step()
    return model
