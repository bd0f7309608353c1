"""Every model of the benchmarks trains as in PyTorch, from the same weights, in the loop that most people write: other
batches in each step, clipped gradients, a schedule. And each step is one call of a known program."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import gt
from gt.client.session.session import Session
from tests.sessions import session_fixture

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # they import each other by their file names

import models
import training

STEPS = 4
#: A loop with two optimizers sends two programs, until it has come twice.
LEARNED = ("dcgan",)


session = session_fixture("torch")


def losses(trainer: training.Trainer, steps: int) -> list[float]:
    found = [trainer.step() for _ in range(steps)]
    return [loss.item() for loss in found]


@pytest.mark.parametrize("name", models.NAMES)
def test_a_model_trains_as_in_torch_one_call_a_step(session: Session, name: str) -> None:
    what = models.model(name, "cpu")
    want = losses(training.torch_trainer(what, "cpu", loop=training.REAL), STEPS)
    trainer = training.gt_trainer(what, loop=training.REAL)
    np.testing.assert_allclose(losses(trainer, STEPS), want, rtol=1e-4)
    for _ in range(4 if name in LEARNED else 1):
        trainer.step()
    before = gt.debug.get_client_stats()
    for _ in range(3):  # each sends the call of the step before
        trainer.step()
    after = gt.debug.get_client_stats()
    assert after["programs_sent"] == before["programs_sent"]
    assert after["calls"] - before["calls"] == 3


@pytest.mark.parametrize("source", training.SOURCES)
@pytest.mark.parametrize("replayed", [False, True])
def test_batches_may_come_from_anywhere(session: Session, source: str, replayed: bool) -> None:
    what, loop = models.model("mlp", "cpu"), training.Loop(source, clip=1.0, scheduled=True)
    want = losses(training.torch_trainer(what, "cpu", loop=loop), STEPS)
    trainer = training.gt_trainer(what, replayed, loop)
    np.testing.assert_allclose(losses(trainer, STEPS), want, rtol=1e-4)
    before = gt.debug.get_client_stats()["programs_sent"]
    losses(trainer, 3)
    assert gt.debug.get_client_stats()["programs_sent"] == before
