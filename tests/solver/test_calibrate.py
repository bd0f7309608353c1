"""Measured hardware: fits, files, and real workers that are measured."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import gt
from gt.client.session.connecting import current
from gt.dispatcher.planner.plan import plan_program
from gt.errors import ArgumentError, ServerError
from gt.layout import layout, mesh, split
from gt.solver import calibrate
from gt.solver.calibrate import (
    FORMAT,
    Measured,
    MeasuredWorker,
    corrected,
    fit_link,
    fit_links,
    hardware_for,
    is_sound,
    kept,
    main,
    name_of,
    note_step,
    shown,
)
from gt.solver.hardware import HARDWARE, Hardware, Link, is_off, read_off, rising
from gt.solver.pricing import price_plan
from gt.solver.process import SolveJob, answer
from gt.solver.samples import sample_program
from gt.solver.solve import Limits
from tests.sessions import own_settings, session_on

from . import models

WORKERS = (MeasuredWorker("here", "torch", "cpu", 10**9), MeasuredWorker("here", "torch", "cpu", 10**9))


def hardware(**changes: Any) -> Hardware:
    """As two workers on a CPU are measured."""
    one = Hardware(
        name=name_of(WORKERS), workers_per_node=2, flops={2: 2e11, 4: 1e11, 8: 4e10}, memory_bandwidth=2e10,
        launch_us=1.0, inside=Link(500.0, 1e9), between=Link(500.0, 1e9), memory_nbytes=10**9,
        memory=((128.0, 1.0), (1e6, 15.0), (3e7, 1500.0)), call_us=70.0, ops={"exp": ((2.0, 9.0), (16.0, 128.0))},
        new_memory=((3e7, 0.0), (4e7, 8000.0)),
    )  # fmt: skip
    both = dataclasses.replace(
        one, flops={size: rate / 1.5 for size, rate in one.flops.items()}, call_us=600.0, blocking=0.5, among={1: one},
        collectives={"all_reduce 2 1": ((256.0, 600.0), (1e6, 1200.0)), "all_gather 2 1": ((256.0, 400.0),)},
    )  # fmt: skip
    return dataclasses.replace(both, **changes)


@pytest.fixture
def _folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GT_CACHE_DIR", str(tmp_path))


def written(found: Hardware, measured_s: float = 0.0, **changes: Any) -> Path:
    """The file of this hardware."""
    calibrate._write(Measured(**{
        "format": FORMAT, "version": gt.__version__, "workers": WORKERS, "hardware": found, "measured_s": measured_s,
        "took_s": 1.0, **changes,
    }))  # fmt: skip
    return calibrate._folder() / f"{found.name}.json"


# -- prices ----------------------------------------------------------------------------------


def test_times_are_read_off_between_measured_ones() -> None:
    curve = ((100.0, 10.0), (200.0, 30.0))
    assert [read_off(curve, n) for n in (1, 100, 150, 200, 400)] == [10, 10, 20, 30, 60]
    assert read_off(((100.0, 10.0),), 300) == 30


def test_measured_hardware_prices_ops_collectives_and_new_memory() -> None:
    both = hardware()
    one = both.busy(1)
    assert one is both.among[1]
    assert both.busy(2) is both.busy(3) is both
    assert one.compute_us(1e6, 128, gt.float32) == pytest.approx(10 + 1)  # one after the other
    assert both.compute_us(1e6, 128, gt.float32) == pytest.approx(15 + 1)
    assert one.op_us("exp", 0, 1e6, None) == pytest.approx(128)  # what reads and writes so much takes 1 + 15
    assert one.op_us("exp", 0, 100, None) == pytest.approx(9)
    assert one.op_us("exp", 0, 3e7, None) == pytest.approx(1500 * 0.3006 * 8, rel=0.01)  # in a cache 451 us
    bound = dataclasses.replace(one, ops={"exp": ((2.0, 9.0), (16.0, 17.0))})
    assert bound.op_us("exp", 0, 3e7, None) == 1500  # by its memory
    assert bound.op_us("exp", 1e9, 3e7, None) > 10_000 + 1000  # a product does not load while it multiplies
    assert one.op_us("relu", 0, 1e6, None) == 15
    assert both.collective_us("all_reduce", 1e6, (0, 1)) == 1200
    assert both.collective_us("all_to_all", 1e6, (0, 1)) == pytest.approx(500 + 1000)  # was not measured: by the link
    assert both.collective_us("all_reduce", 1e6, (0, 2)) == pytest.approx(500 + 1000)


def test_a_call_is_priced_with_its_fixed_time_and_what_collectives_block() -> None:
    """Two products whose gradients are reduced: the second is computed while the first is reduced."""
    program = models.recorded_step(models.mlp, layers=4, width=1024, rows=512).largest
    m = mesh(x=2)
    inputs = [split(m, i.spec.shape, {0: "x"}) if i.role == "data" else layout(m) for i in program.inputs]
    planned = plan_program(program.checked, inputs, m, {})

    def time_us(**changes: Any) -> float:
        return price_plan(planned, program.checked, inputs, hardware(**changes)).time_us

    plain = time_us(call_us=0.0, blocking=0.0)
    assert time_us(call_us=300.0, blocking=0.0) == pytest.approx(plain + 300)
    assert plain < time_us(call_us=0.0, blocking=0.5) <= time_us(call_us=0.0, blocking=1.0)
    assert time_us(call_us=0.0, blocking=0.0, correction=2.0) == pytest.approx(2 * plain)
    whole = [layout(mesh(x=1)) for _ in inputs]
    alone = price_plan(plan_program(program.checked, whole, mesh(x=1), {}), program.checked, whole, hardware())
    assert alone.time_us == pytest.approx(alone.compute_us + 70)  # as one worker was measured


def test_hardware_reaches_the_process_that_solves() -> None:
    program = models.recorded_step(models.mlp, layers=2, width=8, rows=4).largest.program
    job = SolveJob(program, (("x", 2),), hardware(), {}, Limits(2.0))
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(job), type=type(job))
    assert dataclasses.asdict(again.hardware) == dataclasses.asdict(job.hardware)
    assert answer(again).time_us == answer(job).time_us > 600


# -- fits ------------------------------------------------------------------------------------


def test_links_are_fitted() -> None:
    points = [(float(n), 300 + n / 1e3) for n in (256, 1 << 16, 1 << 20, 1 << 24)]
    link = fit_link(points)
    assert link.latency_us == pytest.approx(300)
    assert link.bandwidth == pytest.approx(1e9)
    assert fit_link([(1e6, 50.0)]).latency_us == pytest.approx(50)  # one point: no bandwidth can be seen
    assert fit_link([(1e3, 1.0), (1e6, 2000.0)]).latency_us >= 0
    noisy = fit_link([(n, us * factor) for (n, us), factor in zip(points, (1.1, 0.9, 1.1, 0.9), strict=True)])
    assert noisy.latency_us == pytest.approx(300, rel=0.2)
    assert noisy.bandwidth == pytest.approx(1e9, rel=0.2)


def test_groups_that_were_not_measured_are_priced_by_a_link() -> None:
    """The link and its factors say of the measured groups what was measured."""
    sizes = (256.0, 65536.0, 1e6, 1.6e7)
    slopes = {"all_reduce": 1e-3, "all_gather": 2e-3, "all_to_all": 5e-4}
    curves = {f"{kind} 4 1": tuple((n, 200 + slope * n) for n in sizes) for kind, slope in slopes.items()}
    link, factors = fit_links(curves, 4)
    fitted = hardware(collectives={}, inside=link, factors=factors, workers_per_node=4)
    for kind, slope in slopes.items():
        assert fitted.collective_us(kind, 1e6, range(4)) == pytest.approx(200 + slope * 1e6, rel=0.01)
    assert fit_links({}, 4)[1] == {}


def test_curves_rise() -> None:
    assert rising([(1.0, 9.0), (3.0, 4.0), (2.0, 2.0)]) == ((1.0, 2.0), (2.0, 2.0), (3.0, 4.0))
    assert rising([(1.0, 0.0), (1.0, 0.0)]) == ((1.0, 0.01),)
    assert rising([]) == ()


# -- files -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("_folder")
def test_a_file_is_read_as_it_was_written() -> None:
    made = hardware()
    path = written(made)
    again = kept(made.name)
    assert again is not None
    assert dataclasses.asdict(again) == dataclasses.asdict(made)
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert kept("another") is kept("../hardware") is kept("h100") is None


@pytest.mark.usefixtures("_folder")
@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"format": 1}', "\x00\xff", "NaN", "1" * 5000, '{"hardware": {}}']
)
def test_a_file_that_is_none_is_not_read(text: str) -> None:
    path = written(hardware())
    path.write_text(text)
    assert kept(hardware().name) is None
    assert note_step(hardware(), 1.0, 100.0, 2) is False


@pytest.mark.usefixtures("_folder")
def test_a_file_of_another_version_or_without_sense_is_not_read() -> None:
    name = hardware().name
    for changes in ({"format": FORMAT + 1}, {"version": "0.0.1"}):
        written(hardware(), **changes)
        assert kept(name) is None, changes
    bad: list[dict[str, Any]] = [
        {"flops": {4: 0.0}}, {"flops": {4: -1.0}}, {"memory_bandwidth": 0.0}, {"correction": 0.0}, {"blocking": 2.0},
        {"memory": ((5.0, 1.0), (1.0, 2.0))}, {"memory": ((1.0, -1.0),)}, {"collectives": {"all_reduce 2 1": ()}},
        {"ops": {"exp": ((1.0, -2.0),)}}, {"ops": {"exp": ()}}, {"among": {1: hardware(call_us=-1.0)}},
        {"inside": Link(1.0, 0.0)}, {"call_us": math.nan}, {"memory_nbytes": 0},
    ]  # fmt: skip
    assert is_sound(hardware())
    for changes in bad:
        assert not is_sound(hardware(**changes)), changes
        written(hardware(**changes))
        assert kept(name) is None, changes


def test_a_set_of_workers_has_a_name_of_its_own() -> None:
    there, gpu = MeasuredWorker("there", "torch", "cpu", 10**9), MeasuredWorker("here", "torch", "cuda:0", 10**9)
    sets = (WORKERS, WORKERS[:1], (*WORKERS, *WORKERS), (WORKERS[0], there), (gpu, gpu))
    names = {name_of(some) for some in sets}
    assert len(names) == 5
    assert name_of(WORKERS) == name_of(WORKERS[::-1])
    assert all(name.replace("-", "").isalnum() for name in names)


@pytest.mark.usefixtures("_folder")
def test_predictions_are_compared_with_steps() -> None:
    assert [is_off(100, us) for us in (60, 70, 100, 190, 210)] == [True, False, False, False, True]
    made = hardware()
    written(made)  # in 1970: long ago
    assert note_step(made, 1000.0, 1200.0, 2) is False
    once = kept(made.name)
    assert once is not None
    assert once.correction == pytest.approx(1.2)
    assert once.among[1].correction == 1.0  # that several workers wait for each other says nothing of one
    assert note_step(once, 1000.0, 3000.0, 2) is True
    assert note_step(once, 1000.0, 1100.0, 1) is False
    alone = kept(made.name)
    assert alone is not None
    assert alone.among[1].correction == pytest.approx(1.1)
    for _ in range(30):  # steps that take twice as long as predicted at first
        now = kept(made.name)
        assert now is not None
        note_step(now, 1000.0 * now.correction, 2000.0, 2)
    assert now.correction == pytest.approx(2.0, rel=0.05)
    written(made, measured_s=4e9)  # just now
    assert note_step(made, 1000.0, 3000.0, 2) is False
    assert note_step(made, 0.0, 3000.0, 2) is False
    assert [corrected(made, 3.0, n).correction for n in (1, 2)] == [1.0, 3.0]
    assert [corrected(made, 3.0, n).among[1].correction for n in (1, 2)] == [3.0, 1.0]
    assert corrected(made.among[1], 3.0, 1).correction == 3.0


@pytest.mark.usefixtures("_folder")
def test_where_nothing_can_be_written_nothing_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GT_CACHE_DIR", str(tmp_path / "file"))
    written(hardware())
    assert kept(hardware().name) is None


# -- measuring -------------------------------------------------------------------------------


def test_the_sample_has_what_models_have() -> None:
    ops = {ins.op for ins in sample_program(1).program.code}
    assert ops >= {"linear", "matmul", "conv", "conv_dx", "conv_dw", "attention", "attention_d", "adamw", "gelu"}


def test_a_session_without_a_server_cannot_be_measured() -> None:
    with session_on() as session, pytest.raises(ArgumentError, match="no server"):
        hardware_for(session, 1)


def test_what_cannot_be_measured_is_said_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GT_CONNECT_TIMEOUT", "0.2")
    assert main(["--server", f"ipc://{tmp_path}/nobody"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("gt: ")
    assert said.err.count("\n") == 1
    with pytest.raises(ServerError, match="measured"):
        hardware_for(f"ipc://{tmp_path}/nobody", 2)


@pytest.fixture
def _two_workers(tmp_path: Path) -> Iterator[None]:
    """A private server with two workers, and a cache folder of its own."""
    with own_settings() as patch:
        patch.setenv("GT_WORKERS", "2")
        patch.setenv("GT_AUTO_COMPILE", "0")
        patch.setenv("GT_CACHE_DIR", str(tmp_path))
        yield


@pytest.mark.processes
@pytest.mark.usefixtures("_two_workers")
def test_the_workers_of_this_session_are_measured_once(tmp_path: Path) -> None:
    x = gt.ones(4)  # a session of its own, which goes on
    found = hardware_for(current(), 2, quick=True)
    assert is_sound(found)
    assert set(found.among) == {1}
    assert {key.split()[0] for key in found.collectives} == {"all_reduce", "all_gather", "all_to_all"}
    assert all(key.endswith(" 2 1") for key in found.collectives)
    assert found.flops[4] <= found.among[1].flops[4]
    assert found.memory_nbytes <= 1 << 44
    files = list((tmp_path / "hardware").iterdir())
    assert [f.name for f in files] == [f"{found.name}.json"]

    content = files[0].read_bytes()
    with gt.on_paper():
        training = models.mlp(layers=1, width=64, rows=8)
        plan = gt.plan(training.step, *training.batch, workers=2, hardware="measured")
    assert plan.hardware == found.name
    assert plan.mesh == {"x": 1}  # so little is done by one worker
    assert plan.time_us == pytest.approx(plan.what_if(mesh={"x": 1}).time_us)
    assert files[0].read_bytes() == content  # nothing was measured again
    with pytest.raises(ServerError, match="this server has 2"):
        hardware_for(current(), 3)
    assert (x + 1).sum().item() == 8


def test_what_was_measured_is_shown() -> None:
    text = shown(Measured(FORMAT, gt.__version__, WORKERS, hardware(correction=1.5), 0.0, 3.21))
    seen = "steps take 1.50 of what is predicted on several workers, 1.00 on one"
    assert text.startswith(f"{name_of(WORKERS)}: measured in 3.2 s; {seen}\n1 busy: ")
    assert "\n2 busy: " in text
    assert "all_reduce 2 1 0.000256 MB 600 us, 1 MB 1200 us" in text


def test_the_hardware_by_name_is_what_it_was() -> None:
    """What is measured does not touch what is known."""
    for each in HARDWARE.values():
        assert (each.memory, each.call_us, each.blocking, each.correction, dict(each.ops)) == ((), 0.0, 0.0, 1.0, {})
        assert each.busy(2) is each
