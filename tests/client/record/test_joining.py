"""Loops with several optimizers: what one step computes and the next one reads becomes one program."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gt
from gt.client.session.session import Session
from tests.beside_torch import as_in_torch

STEPS = 12


def counted(session: Session, steps: int, step: Any) -> list[int]:
    """The calls of each step, and of the op after the last one."""
    seen = []
    for k in range(steps):
        before = session.seq
        step(k)
        seen.append(session.seq - before)
    return seen


def parts(lib: Any, count: int, **settings: Any) -> tuple[list[Any], list[Any]]:
    models = [lib.nn.Linear(4, 4, dtype=lib.float64) for _ in range(count)]
    rng = np.random.default_rng(0)
    with lib.no_grad():
        for m in models:
            for p in m.parameters():
                p.copy_(lib.from_numpy(rng.normal(size=tuple(p.shape))))
    return models, [lib.optim.SGD(m.parameters(), lr=0.01, **settings) for m in models]


def gan(lib: Any, read_every: int = 0) -> Any:
    """The discriminator's step, then the generator's, which goes through what the first half has computed."""
    (generator, discriminator), (g_optimizer, d_optimizer) = parts(lib, 2, momentum=0.9)
    x = lib.from_numpy(np.random.default_rng(1).normal(size=(5, 4)))

    def step(k: int) -> Any:
        fake = generator(x).tanh()
        d_optimizer.zero_grad()
        d_loss = (discriminator(fake.detach()).square().mean() - discriminator(x).mean()).exp()
        d_loss.backward()
        d_optimizer.step()
        if read_every and k % read_every == 0:
            d_loss.item()
        g_optimizer.zero_grad()
        discriminator(fake).mean().backward()
        g_optimizer.step()

    return step, (generator, discriminator)


def test_the_two_halves_of_a_gan_become_one_call(session: Session) -> None:
    step, _ = gan(gt)
    step(0)
    step(1)
    assert counted(session, 6, step)[1:] == [1] * 5
    texts = session.defined
    assert counted(session, 6, step) == [1] * 6
    assert session.defined == texts


def test_a_read_between_the_halves_uses_the_programs_that_there_were(session: Session) -> None:
    step, _ = gan(gt, read_every=4)
    for k in range(9):
        step(k)
    texts = session.defined
    for k in range(9, 25):
        step(k)
    assert session.defined == texts


@as_in_torch(rtol=1e-12)
def test_what_is_learned_does_not_change(lib: Any, session: Session) -> Any:
    step, models = gan(lib, read_every=5)
    for k in range(STEPS):
        step(k)
    return [m.state_dict() for m in models]


@pytest.mark.parametrize("count", [2, 3, 4])
def test_optimizers_of_one_loss_become_one_call(session: Session, count: int) -> None:
    models, optimizers = parts(gt, count)
    x = gt.ones(3, 4, dtype=gt.float64)

    def step(k: int) -> None:
        y = x
        for m in models:
            y = m(y).tanh()
        y.sum().backward()
        for o in optimizers:
            o.step()
        for o in optimizers:
            o.zero_grad()

    counted(session, 8, step)  # steps of equal layers are one program, called several times: they join one by one
    assert counted(session, 5, step) == [1] * 5


def test_steps_that_share_nothing_stay_apart(session: Session) -> None:
    """Nothing is gained by joining them, and each is one program wherever it is called from."""
    models, optimizers = parts(gt, 2)
    x = gt.ones(3, 4, dtype=gt.float64)

    def step(k: int) -> None:
        for m, o in zip(models, optimizers, strict=True):
            o.zero_grad()
            (m(x) * (2.0 if m is models[0] else x)).sum().backward()
            o.step()

    step(0), step(1)
    assert counted(session, 5, step) == [2] * 5


def test_a_usual_loop_is_never_joined_to_its_next_step(session: Session) -> None:
    """A running sum passes from step to step, and batches of two sizes take turns."""
    (model,), (optimizer,) = parts(gt, 1)
    total = gt.zeros((), dtype=gt.float64)

    def step(k: int) -> None:
        nonlocal total
        loss = model(gt.ones(2 + k % 2, 4, dtype=gt.float64)).square().sum()
        total = total + loss.detach()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    step(0), step(1), step(2), step(3)
    texts = session.defined
    assert counted(session, 8, step) == [1] * 8
    assert session.defined == texts
