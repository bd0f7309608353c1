"""Training loops in which nothing is read: each step is one call. See test_training_loops.py."""

from __future__ import annotations

from typing import Any

from tests.client.record.training_loops import FEATURES, Kit, loop


@loop("AdamW", lr=0.01)
def plain(kit: Kit, model: Any, opt: Any, step: int) -> None:
    opt.zero_grad()
    kit.loss(model, step).backward()
    opt.step()


@loop("SGD", lr=0.1)
def zero_grad_after_forward(kit: Kit, model: Any, opt: Any, step: int) -> Any:
    loss = kit.loss(model, step)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss


@loop("SGD", lr=0.1)
def zero_grad_after_step(kit: Kit, model: Any, opt: Any, step: int) -> None:
    kit.loss(model, step).backward()
    opt.step()
    model.zero_grad()


@loop("SGD", lr=0.1)
def gradients_set_to_zero(kit: Kit, model: Any, opt: Any, step: int) -> None:
    opt.zero_grad(set_to_none=False)
    kit.loss(model, step).backward()
    opt.step()


@loop("SGD", lr=0.05, momentum=0.9, weight_decay=1e-3, nesterov=True)
def momentum_and_decay(kit: Kit, model: Any, opt: Any, step: int) -> None:
    kit.train(model, opt, step)


@loop("AdamW", lr=0.01)
def kept_losses(kit: Kit, model: Any, opt: Any, step: int) -> Any:
    return kit.train(model, opt, step).detach()


@loop("AdamW", lr=0.01)
def kept_losses_with_history(kit: Kit, model: Any, opt: Any, step: int) -> Any:
    return kit.train(model, opt, step)


def running_sum_of_losses(kit: Kit) -> Any:
    model, opt = kit.start("AdamW", lr=0.01)
    total = 0.0
    for step in kit.steps():
        loss = kit.train(model, opt, step)
        total = total + loss.detach()
    return model, total


@loop("AdamW", lr=0.01)
def kept_predictions(kit: Kit, model: Any, opt: Any, step: int) -> Any:
    x, y = kit.batch(step)
    out = model(x)
    loss = kit.F.cross_entropy(out, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    return out.argmax(1)


@loop("AdamW", lr=0.01)
def deleted_loss(kit: Kit, model: Any, opt: Any, step: int) -> None:
    loss = kit.loss(model, step)
    loss.backward()
    del loss
    opt.step()
    opt.zero_grad()


def moving_average_of_weights(kit: Kit) -> Any:
    model = kit.model()
    average = [p.detach().clone() for p in model.parameters()]
    opt = kit.lib.optim.AdamW(model.parameters(), lr=0.01)
    for step in kit.steps():
        opt.zero_grad()
        kit.loss(model, step).backward()
        with kit.lib.no_grad():
            for a, p in zip(average, model.parameters(), strict=True):
                a.mul_(0.9).add_(p, alpha=0.1)
        opt.step()
    return model, average


@loop("SGD", lr=0.3)
def clipped_by_norm(kit: Kit, model: Any, opt: Any, step: int) -> Any:
    opt.zero_grad()
    kit.loss(model, step).backward()
    with kit.lib.no_grad():
        norms = kit.lib.stack([p.grad.norm() for p in model.parameters()])
        scale = (0.1 / (norms.norm() + 1e-6)).clamp(max=1.0)
        for p in model.parameters():
            p.grad.mul_(scale)
    opt.step()
    return norms, scale


@loop("SGD", lr=0.3)
def clipped_by_value(kit: Kit, model: Any, opt: Any, step: int) -> None:
    opt.zero_grad()
    kit.loss(model, step).backward()
    for p in model.parameters():
        p.grad = p.grad.clamp(-0.02, 0.02)
    opt.step()


@loop("SGD", lr=0.3)
def clipped_weights(kit: Kit, model: Any, opt: Any, step: int) -> None:
    with kit.lib.no_grad():
        for p in model.parameters():
            p.clamp_(-0.3, 0.3)
    kit.train(model, opt, step)


def frozen_parameters(kit: Kit) -> Any:
    model = kit.model()
    for p in model[0].parameters():
        p.requires_grad_(False)
    opt = kit.lib.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    for step in kit.steps():
        kit.train(model, opt, step)
    return model


def tied_weights(kit: Kit) -> Any:
    nn = kit.nn
    a = nn.Linear(FEATURES, FEATURES, dtype=kit.lib.float64)
    b = nn.Linear(FEATURES, FEATURES, dtype=kit.lib.float64)
    with kit.lib.no_grad():
        a.weight.copy_(kit.X[:FEATURES])
        for bias in (a.bias, b.bias):
            bias.zero_()
    b.weight = a.weight
    model = nn.Sequential(a, nn.Tanh(), b)
    opt = kit.lib.optim.AdamW(model.parameters(), lr=0.01)
    for step in kit.steps():
        kit.train(model, opt, step)
    return model


def hooks(kit: Kit) -> Any:
    model, opt = kit.start("SGD", lr=0.1)
    seen = []
    model[0].weight.register_hook(lambda g: g * 0.5)
    model[2].weight.register_hook(lambda g: seen.append(1))
    for step in kit.steps():
        kit.train(model, opt, step)
    return model, len(seen)


@loop("AdamW", lr=0.01)
def changing_learning_rate(kit: Kit, model: Any, opt: Any, step: int) -> None:
    for group in opt.param_groups:
        group["lr"] = 0.01 / (1 + step)
    kit.train(model, opt, step)


@loop("SGD", lr=1.0)
def warm_up(kit: Kit, model: Any, opt: Any, step: int) -> None:
    opt.param_groups[0]["lr"] = 0.1 * min(1, (step + 1) / 20)
    opt.zero_grad()
    (kit.loss(model, step) * (1 / (step + 1))).backward()
    opt.step()


def groups_with_decay(kit: Kit) -> Any:
    model = kit.model()
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    opt = kit.lib.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0, "lr": 0.02}], lr=0.01
    )
    for step in kit.steps():
        kit.train(model, opt, step)
    return model


@loop("SGD", lr=0.1)
def closure_step(kit: Kit, model: Any, opt: Any, step: int) -> Any:
    def closure() -> Any:
        opt.zero_grad()
        loss = kit.loss(model, step)
        loss.backward()
        return loss

    return opt.step(closure)


def two_optimizers(kit: Kit) -> Any:
    """At first one call for each; when that has come again, one for both."""
    model = kit.model()
    first = kit.lib.optim.SGD(model[0].parameters(), lr=0.1)
    second = kit.lib.optim.AdamW(model[2].parameters(), lr=0.01)
    for step in kit.steps():
        first.zero_grad()
        second.zero_grad()
        kit.loss(model, step).backward()
        first.step()
        second.step()
    return model


@loop("AdamW", lr=0.01)
def accumulation(kit: Kit, model: Any, opt: Any, step: int) -> None:
    """Four backward passes to a step, written out: one call."""
    opt.zero_grad()
    for k in range(4):
        (kit.loss(model, 4 * step + k) / 4).backward()
    opt.step()


@loop("SGD", lr=0.1)
def penalty_on_weights(kit: Kit, model: Any, opt: Any, step: int) -> Any:
    opt.zero_grad()
    loss = kit.loss(model, step) + 1e-3 * sum((p**2).sum() for p in model.parameters())
    loss.backward()
    opt.step()
    return loss


@loop("SGD", lr=0.1)
def gradient_penalty(kit: Kit, model: Any, opt: Any, step: int) -> Any:
    x, y = kit.batch(step)
    x = x.clone().requires_grad_()
    opt.zero_grad()
    loss = kit.F.cross_entropy(model(x), y)
    (g,) = kit.lib.autograd.grad(loss, [x], create_graph=True)
    (loss + 0.1 * (g * g).sum()).backward()
    opt.step()
    return loss
