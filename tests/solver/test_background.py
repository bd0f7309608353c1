"""The search for a plan of a running program: what it is priced with, and what it tells."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import gt
from gt import config, nn
from gt.dispatcher.events import Solve
from gt.errors import ServerError
from gt.program import Program
from gt.solver import background
from gt.solver.hardware import HARDWARE, Hardware
from gt.solver.solve import MOST_TOLD, TOLD

from . import models

CPU = HARDWARE["cpu-gloo"]
SETTINGS = config.replace(config.Config(), server="ipc:///nowhere", hardware="measured")


def job(program: Program | None = None, **changes: Any) -> Solve:
    """A step, by default of a small network, that runs on two workers, all of it replicated."""
    program = program or models.recorded_step(models.mlp, layers=2, width=8, rows=4).largest.program
    two = (("x", 2),)
    fields = {"pins": {}, "memory": 0, "device": "cpu", "measured_us": 0, **changes}
    return Solve(1, program.hash(), program, two, False, two, ("[]",) * len(program.inputs), **fields)


@pytest.mark.parametrize(("measured_us", "off"), [(0, False), (500, False), (500, True)])
def test_what_steps_take_is_compared_with_what_is_predicted(
    monkeypatch: pytest.MonkeyPatch, measured_us: int, off: bool
) -> None:
    """A model that is off is measured again before the search."""
    better = dataclasses.replace(CPU, name="better")
    asked: list[bool] = []
    noted: list[tuple[float, float, int]] = []

    def hardware_for(where: str, workers: int, again: bool = False, token: str | None = None) -> Hardware:
        assert (where, workers) == ("ipc:///nowhere", 2)
        asked.append(again)
        return better if again else CPU

    def note_step(hardware: Hardware, predicted_us: float, measured_us: float, workers: int) -> bool:
        noted.append((predicted_us, measured_us, workers))
        return off

    monkeypatch.setattr(background, "hardware_for", hardware_for)
    monkeypatch.setattr(background, "note_step", note_step)
    asks = job(measured_us=measured_us)
    found = background._hardware(asks, SETTINGS)
    assert found is (better if off else CPU)
    assert asked == ([False, True] if off else [False])
    predicted_us = background.price_now(asks.text, asks.axes, asks.layouts, CPU) if measured_us else 0.0
    assert noted == [(predicted_us, measured_us, 2)] * (2 if off else 1)


def test_workers_that_cannot_be_measured_are_priced_by_their_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    def hardware_for(*_: Any, **__: Any) -> Hardware:
        raise ServerError("nobody there")

    monkeypatch.setattr(background, "hardware_for", hardware_for)
    assert background._hardware(job(), SETTINGS) is CPU
    assert background._hardware(job(device="cuda:0"), SETTINGS) is HARDWARE["h100"]


def test_a_program_that_follows_others_is_told_what_one_worker_would_take() -> None:
    asks = job(pins={0: "[]"})
    found = background.solve(asks, CPU)
    one = background.price_now(asks.text, (("x", 1),), asks.layouts, CPU)
    assert found.alone_us == one > 0
    assert background.solve(job(), CPU).alone_us == 0


def test_plans_that_may_turn_out_to_be_faster_are_told_too() -> None:
    text = models.recorded_step(models.mlp, layers=3, width=512, rows=256).largest.program
    found = background.solve(job(text), CPU)
    first, *others = [each for each in found.plans if each.axes == (("x", 2),)]
    assert 0 < len(others) <= MOST_TOLD
    assert all(first.time_us <= each.time_us <= TOLD * first.time_us for each in others)
    assert len({(each.layouts, tuple(each.ways)) for each in (first, *others)}) == 1 + len(others)
    assert found.plans.index(others[0]) > max(k for k, each in enumerate(found.plans) if each not in others)


def test_uploads_that_cannot_be_told_apart_have_one_layout() -> None:
    """Two inputs of one spec: by itself each is best in another layout."""

    def step(rows: int = 256) -> models.Training:
        model = nn.Linear(rows, rows)
        x, y = gt.ones(rows, rows), gt.ones(rows, rows)
        return models.trained(model, lambda x, y: (model(x).relu() @ y).square().mean(), x, y)

    program = models.recorded_step(step).largest.program
    replaced = {i for _, i in program.updates}
    x, y = (k for k in range(len(program.inputs)) if k not in replaced)
    free = background.solve(job(program), CPU).plans
    assert any(each.layouts[x] != each.layouts[y] for each in free)
    found = background.solve(job(program, alike=((x, y),)), CPU).plans
    assert {each.axes for each in found} == {each.axes for each in free}
    assert all(each.layouts[x] == each.layouts[y] for each in found)
