"""A training step on two workers: they compile what is between their collectives, and change over together."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gt
from tests.processes.running import until
from tests.tiers.conftest import COMPILED_S, Server, said_when_done
from tests.tiers.models import Mlp

pytestmark = [pytest.mark.processes, pytest.mark.timeout(COMPILED_S + 60)]

SPLIT = {"0.*": {0: "x"}, "2.weight": {1: "x"}}


def stepping() -> list[dict[str, Any]]:
    """What each worker says of the training step."""
    return [max(worker["programs"].values(), key=lambda p: p["instructions"]) for worker in said_when_done()]


def compiled_hits() -> list[int]:
    return [p["tiers"].get("3", {}).get("hits", 0) for p in stepping()]


def test_a_step_of_two_workers_is_compiled_in_parts(serve: Callable[..., Server], tmp_path: Path) -> None:
    server = serve(workers=2, cache=tmp_path)
    alone = Mlp(compile=False)
    want = alone.losses(20)
    gt.connect(server.address, mesh={"x": 2})
    model = Mlp()
    gt.shard_(model.model, SPLIT)
    assert model.losses(20) == pytest.approx(want, rel=1e-5)
    polls = itertools.count()
    # now and then: the compilers need the time more than we do
    until(lambda: next(polls) % 50 == 0 and model.losses(2) and all(compiled_hits()), "compiled parts", COMPILED_S)
    assert len(set(compiled_hits())) == 1, "both since the same call"
    assert [p["tier"] for p in stepping()] == [3, 3]

    server = serve(workers=2, cache=tmp_path)  # a new one, which knows nothing but the cache
    alone = Mlp(compile=False)
    want, state = alone.losses(20), alone.state()
    gt.connect(server.address, mesh={"x": 2})
    model = Mlp()
    gt.shard_(model.model, SPLIT)
    assert model.losses(20) == pytest.approx(want, rel=1e-5)
    first, second = compiled_hits()
    assert first == second >= 15
    assert server.compilers() == []
    for ours, theirs in zip(model.state(), state, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
