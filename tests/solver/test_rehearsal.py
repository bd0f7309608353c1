"""What is learned from steps on real workers."""

from __future__ import annotations

import dataclasses

import pytest

from gt.layout import mesh
from gt.solver.hardware import HARDWARE
from gt.solver.rehearsal import SCALE, TimedStep, _arranged, learned
from gt.solver.samples import sample_program

ONE = dataclasses.replace(HARDWARE["cpu-gloo"], correction=1.25)
TWO = dataclasses.replace(
    ONE, correction=1.0, call_us=50.0, collectives={"all_reduce 2 1": ((256.0, 300.0), (1e6, 900.0))}
)


def test_one_worker_shows_how_many_times_as_long_as_predicted_steps_take() -> None:
    assert learned(TWO, [TimedStep(1000.0, 0, 1400.0)], None).correction == pytest.approx(1.4)
    assert learned(TWO, [TimedStep(1000.0, 0, 9000.0)], None).correction == 1.0  # something else ran


def test_several_workers_show_what_a_collective_and_a_call_add() -> None:
    steps = [TimedStep(us, n, 1.25 * (us + 200.0 * n + 700.0)) for us, n in ((4000.0, 0), (5000.0, 8), (9000.0, 40))]
    found = learned(TWO, steps, ONE)
    assert found.correction == 1.25
    assert found.call_us == pytest.approx(750.0)
    assert [us for _, us in found.collectives["all_reduce 2 1"]] == pytest.approx([500.0, 1100.0])
    assert found.inside.latency_us == pytest.approx(TWO.inside.latency_us + 200.0)


@pytest.mark.parametrize(("waits", "call"), [(-20.0, 900.0), (200.0, -400.0), (-20.0, -400.0)])
def test_neither_makes_a_step_faster(waits: float, call: float) -> None:
    steps = [TimedStep(us, n, 1.25 * (us + waits * n + call)) for us, n in ((4000.0, 0), (5000.0, 8), (9000.0, 40))]
    found = learned(TWO, steps, ONE)
    assert found.call_us >= TWO.call_us
    assert all(a >= b for (_, a), (_, b) in zip(found.collectives["all_reduce 2 1"], TWO.collectives["all_reduce 2 1"],
                                                strict=True))  # fmt: skip


def test_nothing_the_batch_and_all_are_split() -> None:
    program = sample_program(SCALE)
    whole, batch, split = _arranged(program, mesh(x=2))
    assert {repr(at) for at in whole} == {"[]"}
    assert sum(repr(at) != "[]" for at in batch) == sum(one.role == "data" for one in program.inputs)
    assert sum(repr(at) != "[]" for at in split) > len(program.inputs) // 2
    assert len(list(_arranged(program, mesh(x=1)))) == 1
