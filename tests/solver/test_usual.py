"""Layouts that people give by hand are found in any program, and no plan is slower than what comes of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

import gt
from gt.layout import Layout, mesh, parse
from gt.solver.hardware import HARDWARE
from gt.solver.recorded import RecordedProgram
from gt.solver.solve import Limits, problem_on, solve_on
from gt.solver.usual import usual_inputs

from . import models
from .cases import recorded
from .pins import priced

H100 = HARDWARE["h100"]
GRID = mesh(None, x=2, y=2)
MIXED = "batch over x and columns and rows over y"


class Gated(gt.nn.Module):
    """Two weights side by side, one of them stored the other way round, then a third; a frozen weight in front."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = gt.nn.Linear(256, 128, bias=False)
        self.frozen.weight.requires_grad_(False)
        self.up = gt.nn.Linear(128, 512)
        self.turned = gt.nn.Parameter(gt.randn(128, 512))
        self.down = gt.nn.Linear(512, 128)

    def forward(self, x: gt.Tensor) -> gt.Tensor:
        x = self.frozen(x)
        return self.down(self.up(x).relu() * (x @ self.turned))


def training(build: Callable[[], gt.nn.Module], *shape: int) -> RecordedProgram:
    def trained() -> models.Training:
        model = build()
        return models.trained(model, lambda x: model(x).square().mean(), gt.zeros(*shape))

    return models.recorded_step(trained).largest


@cache
def gated() -> RecordedProgram:
    return training(Gated, 64, 256)


def usual(program: RecordedProgram, pins: dict[int, Layout] | None = None) -> dict[str, dict[str, str]]:
    """By strategy and by the input's name."""
    problem = problem_on(program.checked, GRID, H100, pins or {})
    return {
        name: {i.name: repr(one) for i, one in zip(program.inputs, inputs, strict=True)}
        for name, inputs in usual_inputs(problem)
    }


def test_weights_side_by_side_are_split_alike_and_the_next_one_over_what_it_sums_up() -> None:
    found = usual(gated())[MIXED]
    assert found["batch.0"] == "[64@x]"
    assert found["model.up.weight"] == "[512@y]"
    assert found["model.turned"] == "[. 512@y]"
    assert found["model.down.weight"] == "[. 512@y]"
    assert found["optimizer.exp_avg:model.down.weight"] == "[. 512@y]"
    assert found["model.frozen.weight"] == "[]"


def test_state_is_sharded_where_it_is_not_split_yet() -> None:
    found = usual(gated())[f"{MIXED}, state sharded over x"]
    assert found["model.down.weight"] == "[. 512@y]"
    assert found["optimizer.exp_avg:model.down.weight"] == "[128@x 512@y]"
    both = usual(gated())[f"{MIXED}, parameters sharded over x"]
    assert both["model.down.weight"] == "[128@x 512@y]"


def test_pins_are_kept() -> None:
    program = gated()
    at = next(j for j, i in enumerate(program.inputs) if i.name == "model.down.weight")
    for found in usual(program, {at: parse("[128@y]", GRID)}).values():
        assert found["model.down.weight"] == "[128@y]"


@pytest.mark.parametrize("name", ["gated", "diamond", "sync batch norm", "dropout"])
def test_no_strategy_by_hand_is_cheaper_on_two_axes(name: str) -> None:
    """Not even without a search."""
    program = gated() if name == "gated" else recorded(name)
    mine = solve_on(program.checked, GRID, H100, {}, Limits(use_search=False))
    by_hand = priced(program, GRID, H100, H100.memory_nbytes)
    assert mine.price.time_us <= by_hand[0].price.time_us + 1e-6, by_hand[0].name


def test_the_paths_of_the_planner_are_emitted_too() -> None:
    """By hand, gradients of biases are reduced early, and hidden; by the sum of times it is cheapest to join them."""
    program = models.recorded_step(models.diamond, width=4096, rows=16_384).largest
    eight = mesh(x=8)
    mine = solve_on(program.checked, eight, H100, {}, Limits(use_search=False))
    by_hand = priced(program, eight, H100, H100.memory_nbytes)
    assert mine.price.time_us <= by_hand[0].price.time_us + 1e-6, by_hand[0].name
