"""Recorded steps: what a loop sends, with the names that a user would say."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import numpy as np
import pytest

import gt
from gt import nn
from gt.client.mesh.naming import named_tensors, variables_of
from gt.client.session.session import Session
from gt.errors import ArgumentError, PaperError
from gt.solver.recorded import record_step
from tests.sessions import session_fixture

from . import models
from .models import recorded_step as recorded

session = session_fixture("numpy")


@pytest.mark.parametrize("name", models.MODELS)
def test_a_step_is_one_program_and_every_input_has_a_name(name: str) -> None:
    step = recorded(models.MODELS[name])
    assert step.steady
    assert len(step.programs) == 1
    assert len(step.largest.lines) == len(step.largest.checked.program.code)
    names = [i.name for i in step.largest.inputs]
    assert len(set(names)) == len(names)
    assert not [n for n in names if n.startswith("input ")]
    roles = Counter(i.role for i in step.largest.inputs)
    assert roles["state"] == 2 * roles["parameter"] > 0  # AdamW
    assert 1 <= roles["data"] <= 2
    for i in step.largest.inputs:
        assert i.role == "buffer" or (i.updates is not None) == (i.role in ("parameter", "state"))
        if i.updates is not None:
            assert step.largest.checked.specs[step.largest.checked.program.outputs[i.updates]] is i.spec


def test_names_are_those_of_modules_and_optimizers() -> None:
    names = {i.name: i.role for i in recorded(models.llama).largest.inputs}
    assert names["model.layers.1.up.weight"] == "parameter"
    assert names["optimizer.exp_avg_sq:model.layers.1.up.weight"] == "state"
    assert names["model.cos"] == "buffer"
    assert names["batch.0"] == names["batch.1"] == "data"
    tied = {i.name for i in recorded(models.language_model, tied=True).largest.inputs}
    assert "model.tokens.weight" in tied
    assert "model.head.weight" not in tied
    conv = {i.name: i for i in recorded(models.conv_net).largest.inputs}
    assert conv["model.1.running_mean"].role == "buffer"
    assert conv["model.1.running_mean"].updates is not None


def test_a_loop_on_a_cluster_sends_the_recorded_program(session: Session) -> None:
    """What is recorded on paper and what a plain loop sends have the same body; with the same lines, even."""
    on_paper = recorded(models.llama)
    training = models.llama()
    for _ in range(3):
        loss = training.step(*training.batch)
        assert np.isfinite(loss.item())
    sent = max(session.variants.values(), key=lambda v: len(v.program.code))
    assert sent.program.body() == on_paper.largest.body
    assert tuple(sent.where) == on_paper.largest.lines
    live = record_step(training.step, *training.batch)
    assert live.largest.body == on_paper.largest.body
    assert [(i.name, i.role, i.updates is None) for i in live.largest.inputs] == [
        (i.name, i.role, i.updates is None) for i in on_paper.largest.inputs
    ]


def test_a_live_step_is_really_run(session: Session) -> None:
    w = gt.zeros(3)

    def step(x: Any) -> None:
        w.add_(x.sum())

    step_recorded = record_step(step, gt.ones(2))
    assert step_recorded.steady
    assert w.tolist() == [4.0] * 3  # the second run was like the first
    assert [(i.name, i.role) for i in step_recorded.largest.inputs] == [("x", "data"), ("w", "data")]


def test_a_live_step_that_reads_its_loss_has_two_programs(session: Session) -> None:
    training = models.mlp()
    losses = []

    def step(x: Any) -> None:
        loss = training.model(x).square().mean()
        losses.append(loss.item())
        loss.backward()
        training.optimizer.step()
        training.optimizer.zero_grad()

    found = record_step(step, *training.batch)
    assert found.steady
    assert len(found.programs) == 2
    assert len(losses) == 2
    updated = {i.name for i in found.largest.inputs if i.updates is not None}
    assert {"training.model.0.weight", "training.optimizer.exp_avg:training.model.0.weight"} <= updated


def test_a_step_of_two_optimizers_has_two_programs() -> None:
    with gt.on_paper():
        maker, judge = nn.Linear(4, 8), nn.Linear(8, 1)
        one, two = gt.optim.SGD(maker.parameters(), lr=0.1), gt.optim.Adam(judge.parameters())

        def step(z: Any) -> Any:
            for optimizer, sign in ((one, 1.0), (two, -1.0)):
                loss = (judge(maker(z)) * sign).mean()
                loss.backward()
                optimizer.step()
                one.zero_grad()
                two.zero_grad()
            return loss.detach()

        found = record_step(step, gt.zeros(16, 4))
    assert found.steady
    assert len(found.programs) == 2
    first, second = found.programs
    assert {i.name for i in first.inputs if i.updates is not None} == {"maker.weight", "maker.bias"}
    moments = {f"two.{m}:judge.{p}" for m in ("exp_avg", "exp_avg_sq") for p in ("weight", "bias")}
    assert {i.name for i in second.inputs if i.updates is not None} == {"judge.weight", "judge.bias", *moments}
    assert "maker.weight" in {i.name for i in second.inputs}  # the new value has the old name
    assert found.largest is first


def test_accumulated_gradients_have_names() -> None:
    with gt.on_paper():
        model = nn.Linear(4, 4, bias=False)

        def step(x: Any) -> None:
            model(x).sum().backward()

        found = record_step(step, gt.zeros(2, 4))
    assert [(i.name, i.role) for i in found.largest.inputs if i.updates is not None] == [("model.weight.grad", "state")]


def test_a_step_that_changes_each_time_is_not_steady() -> None:
    with gt.on_paper():
        sizes = iter(range(1, 100))
        found = record_step(lambda x: x[: next(sizes)].sum(), gt.zeros(50))
    assert not found.steady
    assert len(found.programs) == 1


def test_reading_in_a_step_says_the_line() -> None:
    def step(x: Any) -> float:
        return float(x.sum().item())

    with gt.on_paper(), pytest.raises(PaperError, match=rf"{__file__}:\d+: "):
        record_step(step, gt.ones(3))


def test_what_is_no_step() -> None:
    with pytest.raises(ArgumentError, match="expected a function"):
        record_step(3)  # type: ignore[arg-type]
    with gt.on_paper(), pytest.raises(ArgumentError, match="recorded nothing"):
        record_step(lambda: None)


def test_without_a_block_and_without_tensors_it_is_on_paper() -> None:
    def step(n: int) -> Any:
        return gt.zeros(n, n) @ gt.ones(n, n)

    assert record_step(step, 1_000_000).largest.checked.specs[-1].shape == (1_000_000, 1_000_000)


# --- names ---------------------------------------------------------------------------------------------

scale = None  #: A global variable that a step names; set by the tests.


def scaled(x: Any) -> Any:
    return x * scale


class Trainer:
    """As many write it: a model, an optimizer and their step in one object."""

    def __init__(self) -> None:
        self.net = nn.Linear(3, 3)
        self.optimizer = gt.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        self.config = {"table": gt.zeros(3, 3)}

    def step(self, x: Any) -> None:
        (self.net(x) @ self.config["table"]).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def test_names_through_functions_methods_and_wrappers() -> None:
    global scale
    with gt.on_paper():
        scale = gt.ones(3)
        inner = gt.zeros(3)

        def step(pair: Any, *, weight: Any) -> Any:
            a, b = pair
            return scaled(a) + b + inner + weight

        pair = (gt.ones(3), gt.ones(3))
        found = record_step(functools.partial(step, weight=gt.ones(3)), pair)
        assert [i.name for i in found.largest.inputs] == ["pair.0", "scale", "pair.1", "inner", "weight"]
        traced = record_step(gt.function(step), pair, weight=inner)
        assert [i.name for i in traced.largest.inputs] == ["pair.0", "scale", "pair.1", "weight"]
        trainer = Trainer()
        names = {i.name: i.role for i in record_step(trainer.step, gt.zeros(2, 3)).largest.inputs}
        assert names == {
            "net.weight": "parameter", "net.bias": "parameter", "x": "data", "config.table": "data",
            "optimizer.momentum_buffer:net.weight": "state", "optimizer.momentum_buffer:net.bias": "state",
        }  # fmt: skip
        scale = None


def test_tensors_that_are_registered_nowhere() -> None:
    with gt.on_paper():
        model = nn.Linear(2, 2)
        model.tables = [gt.zeros(2), gt.ones(2)]
        w = gt.zeros(2, requires_grad=True)
        found = {n: role for n, role, _ in named_tensors({"model": model, "w": w, "again": w, "none": None})}
        assert found == {
            "model.weight": "parameter", "model.bias": "parameter", "model.tables.0": "buffer",
            "model.tables.1": "buffer", "w": "parameter",
        }  # fmt: skip


def test_two_variables_of_one_name() -> None:
    class Other:
        pass

    one, two = Other(), Other()
    found = variables_of(lambda one: (two, one), [one])
    assert found == {"one": one, "two": two}

    def inner() -> Any:
        return one

    def step(one: Any) -> Any:
        return inner(), one

    assert variables_of(step, [two]) == {"one": two, "one (2)": one}


def test_llama_8b_is_recorded_on_any_machine() -> None:
    step = recorded(models.llama, **models.LLAMA_8B)
    assert step.steady
    assert len(step.programs) == 1
    assert len(step.largest.checked.program.code) > 5_000
    roles = Counter(i.role for i in step.largest.inputs)
    assert roles == {"parameter": 291, "state": 582, "buffer": 2, "data": 2}
    assert sum(i.spec.size for i in step.largest.inputs if i.role == "parameter") == 8_030_261_248
