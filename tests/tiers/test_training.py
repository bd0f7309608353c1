"""Losses at every tier are PyTorch's, no number makes a new compilation, and a failed step changes nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gt
from gt.errors import IndexOutOfRange
from tests.tiers.conftest import COMPILED_S, Server, folders, hits, programs, until_compiled
from tests.tiers.models import BATCH, DROP, Gpt, Mlp

pytestmark = [pytest.mark.processes, pytest.mark.timeout(COMPILED_S + 60)]
STEPS = 100


@pytest.fixture(scope="module")
def compiled(long_lived: Server, cache: Path) -> Iterator[None]:
    """Both models run on tier 3. On the way there, they have trained on tier 1."""
    gt.connect(long_lived.address)
    mlp, gpt = Mlp(), Gpt()
    losses = [m.losses(STEPS) for m in (mlp, gpt)]
    assert sum(p["compiling"] for p in programs().values()) == 2
    assert hits(3) == 0
    assert not folders(cache)
    for have, model in zip(losses, (mlp, gpt), strict=True):
        np.testing.assert_allclose(have, model.eager_losses(STEPS), rtol=1e-4)
        assert have[-1] < have[0]
    until_compiled(lambda: mlp.losses(1), lambda: gpt.losses(1))
    yield
    assert len(folders(cache)) == 2, "numbers of a call have made a new compilation"
    assert not any(p["given_up"] for p in programs().values())
    gt.disconnect()


@pytest.mark.parametrize("kind", [Mlp, Gpt])
def test_losses_are_pytorchs(kind: Any, compiled: None) -> None:
    before, model = hits(3), kind()
    np.testing.assert_allclose(model.losses(STEPS), model.eager_losses(STEPS), rtol=1e-4)
    assert hits(3) - before == STEPS


def test_what_is_kept_stays_as_it_was(compiled: None) -> None:
    """Random keeping and dropping of losses, logits and gradients: read late, they are what a twin read at once."""

    def values(model: Mlp, i: int) -> list[Any]:
        return [*model.step(i), *[p.grad for p in model.model.parameters()]]

    rng, steps, before, twin = random.Random(0), 300, hits(3), Mlp()
    was = [[v.numpy() for v in values(twin, i)] for i in range(steps)]
    model = Mlp()
    kept: list[tuple[Any, Any]] = []
    for i in range(steps):
        made = values(model, i)
        kept += rng.sample(list(zip(made, was[i], strict=True)), rng.choice([0, 0, 1, 2, len(made)]))
        del made
        if rng.random() < 0.1:
            rng.shuffle(kept)
            for value, want in kept[20:]:
                assert np.array_equal(value.numpy(), want)
            del kept[20:]
    for value, want in kept:
        assert np.array_equal(value.numpy(), want)
    assert hits(3) - before == 2 * steps


def test_a_bad_index_changes_nothing(compiled: None) -> None:
    model = Mlp()
    model.losses(3)
    before, ran = model.state(), hits(3)
    good = model.labels
    model.labels = gt.from_numpy(np.where(np.arange(len(model.y)) % BATCH == 5, 4, model.y))
    for _ in range(2):
        with pytest.raises(IndexOutOfRange, match=r"cross_entropy: index 4 .*\n.*models\.py:\d+$"):
            model.step(3)[0].item()
    for now, was in zip(model.state(), before, strict=True):
        assert np.array_equal(now, was)
    assert hits(3) == ran
    model.labels = good
    losses = [model.step(i)[0].item() for i in range(3, 6)]
    assert hits(3) == ran + 3
    twin = Mlp()
    twin.losses(3)
    for _ in range(2):
        gt.nn.functional.dropout(gt.ones(1), DROP)  # the failed steps have used a seed each
    assert losses == [twin.step(i)[0].item() for i in range(3, 6)]


def test_statistics_by_program_and_tier(compiled: None) -> None:
    Mlp().losses(5)
    step = max(programs().values(), key=lambda p: p["hits"])
    assert step["tier"] == 3
    assert set(step["tiers"]) == {"1", "3"}
    assert sum(t["hits"] for t in step["tiers"].values()) == step["hits"]
    assert sum(t["run_us"] for t in step["tiers"].values()) == step["run_us"]
    assert all(p["tier"] == 1 and set(p["tiers"]) <= {"1"} for p in programs().values() if p["instructions"] < 4)
