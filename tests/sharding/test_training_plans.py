"""Whole training steps, as a client sends them, planned for a mesh: the same numbers on any layout, no more
communication than the way to train needs, and the same plan every step.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from gt.layout import Layout, Mesh, mesh, split
from gt.ops import TABLE
from tests.sharding.layouts import drawn
from tests.sharding.planned import collectives, received_nbytes
from tests.sharding.recorded import Policy, is_update, record, replay

MODELS = ["mlp", "cnn", "unet", "gpt", "lstm"]
MESHES = [mesh(x=2), mesh(x=3), mesh(x=4), mesh(x=2, y=2)]


def data_split(m: Mesh) -> Policy:
    """As DDP: the batch over the first axis, everything else whole."""
    return lambda a, data: split(m, a.shape, {0: m.axes[0][0]}) if data and a.ndim else None


def weights_split(m: Mesh) -> Policy:
    """As FSDP: the largest dimension of each parameter over the last axis."""

    def policy(a: np.ndarray, data: bool) -> Layout | None:
        return None if data or not a.ndim else split(m, a.shape, {int(np.argmax(a.shape)): m.axes[-1][0]})

    return policy


def both_split(m: Mesh) -> Policy:
    data, weights = data_split(m), weights_split(m)
    return lambda a, is_data: (data if is_data else weights)(a, is_data)


def drawn_split(m: Mesh, seed: Any) -> Policy:
    """Layouts drawn at random, parameters as partial sums too."""
    rng = random.Random(seed)
    return lambda a, data: drawn(rng, m, a.shape, ("sum",) if a.dtype.kind == "f" and not data else ())


POLICIES = {"data": data_split, "weights": weights_split, "both": both_split}


@pytest.mark.parametrize("m", MESHES, ids=repr)
@pytest.mark.parametrize("how", POLICIES)
@pytest.mark.parametrize("name", MODELS)
def test_training(name: str, how: str, m: Mesh) -> None:
    done = replay(record(name), m, POLICIES[how](m))
    assert len(done.plans) == 2
    assert len(set(done.keys)) == 1, "the second step has the plan of the first"


@pytest.mark.parametrize("m", MESHES, ids=repr)
@pytest.mark.parametrize("name", MODELS)
def test_training_in_any_layout(name: str, m: Mesh) -> None:
    done = replay(record(name), m, drawn_split(m, f"{name} {m!r}"))
    assert len(set(done.keys)) <= 2


@pytest.mark.parametrize("name", ["cnn", "gpt"])
def test_what_is_replicated_communicates_nothing(name: str) -> None:
    done = replay(record(name), mesh(x=2), lambda a, data: None)
    assert [collectives(plan) for plan in done.plans] == [[], []]


@pytest.mark.parametrize("name", ["mlp", "gpt", "lstm"])
@pytest.mark.parametrize("n", [2, 4])
def test_data_parallel_moves_each_gradient_once(name: str, n: int) -> None:
    """The bytes of the parameters, as an all-reduce moves them, and a few numbers: the loss, counts and norms."""
    m = mesh(x=n)
    call = next(c for c in record(name).calls if is_update(c))
    plan = replay(record(name), m, data_split(m)).plans[0]
    number, nbytes = len(call.checked.program.inputs), 0
    for ins in call.checked.program.code:
        if TABLE[ins.op].inplace:
            nbytes += call.checked.specs[number].nbytes
        number += ins.results
    assert nbytes
    moved = [received_nbytes(plan, worker) for worker in m.workers]
    assert all(0 <= each - 2 * nbytes * (n - 1) / n <= 128 for each in moved)
