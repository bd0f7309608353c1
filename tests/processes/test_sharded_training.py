"""Training on four real workers, which meet over gloo: the numbers of one worker, whatever the mesh and the layouts.

`python -m tests.sharding --real` (part of `make conformance`) trains all models on all meshes, for longer.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gt
from gt.errors import LostError, OutOfMemory
from tests.processes.running import Start
from tests.sharding.cases import OPS
from tests.sharding.real import MESHES, Server, check_ops, joined, serving
from tests.sharding.real_training import MODELS, WAYS, Script, both_split, losses, placed, same, uploader, weights_split
from tests.solver import models
from tests.solver.choosing import random_plan
from tests.training.recipes import RECIPES

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("own_settings")]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Four workers, for all tests here that leave them as they are."""
    pytest.importorskip("torch")
    with serving(4) as made:
        gt.connect(made.address)
        joined(4)
        yield made


@pytest.fixture(scope="module")
def scripted(server: Server) -> list[float]:
    """The numbers of three steps of the script on one worker."""
    gt.connect(server.address)
    return Script(None).run(3)


# -- models --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_the_losses_of_one_worker(server: Server, name: str) -> None:
    """Each way on another mesh, for each model in another order."""
    expected = losses(server.address, name, None)
    ways = [*WAYS] * 2
    for k, axes in enumerate([*MESHES, {"x": 1}]):
        same(losses(server.address, name, axes, ways[(k + MODELS.index(name)) % 4]), expected)


def test_a_step_of_more_than_4000_instructions_is_one_program(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deep network in a plain loop, on one worker and on two."""
    monkeypatch.setattr("gt.client.session.timer.IDLE_S", 600.0)  # a slow machine must not cut it

    def train(axes: dict[str, int] | None) -> list[float]:
        session = gt.connect(server.address, mesh=axes)
        gt.manual_seed(0)
        layers = [nn for _ in range(330) for nn in (gt.nn.Linear(4, 4), gt.nn.Tanh())]
        model = gt.nn.Sequential(*layers, gt.nn.Linear(4, 1)).double()
        optimizer = gt.optim.AdamW(model.parameters(), lr=0.01)
        x = gt.from_numpy(np.random.default_rng(0).normal(size=(64, 4)), layout={0: "x"})
        calls, found = [], []
        for _ in range(3):
            loss = (model(x) - 1.0).square().mean()
            loss.backward()
            gt.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
            calls.append(session.seq)
        assert np.diff(calls).tolist() == [1, 1]
        assert any(len(v.program.code) > 4000 for v in session.variants.values())
        return found

    alone = train(None)
    assert alone[2] < alone[0]
    same(train({"x": 2}), alone)


@pytest.mark.parametrize(("axes", "seed"), [({"x": 2}, 0), ({"x": 2}, 1), ({"x": 2, "y": 2}, 2)])
def test_a_plan_that_is_followed_gives_the_same_numbers(server: Server, axes: dict[str, int], seed: int) -> None:
    """Planned on paper with random choices, used on real workers."""

    def losses_of(training: models.Training) -> list[float]:
        return [training.step(*training.batch).item() for _ in range(4)]

    plan = random_plan(models.recorded_step(models.llama, dtype=None).largest, axes, seed)
    assert len(plan.ways) > 100
    gt.connect(server.address)
    gt.manual_seed(0)
    alone = losses_of(models.llama(dtype=None))
    gt.connect(server.address)
    gt.manual_seed(0)
    training = models.llama(dtype=None)
    gt.use_plan(plan, training.step, *training.batch)
    weight = training.model.layers[0].up.weight
    assert repr(weight.layout) == plan.layouts["model.layers.0.up.weight"]
    np.testing.assert_allclose(losses_of(training), alone, rtol=2e-5)
    assert repr(weight.layout) == plan.layouts["model.layers.0.up.weight"]


def test_in_single_precision(server: Server) -> None:
    expected = losses(server.address, "gpt", None, dtype=np.float32)
    same(losses(server.address, "gpt", {"x": 3}, "both", dtype=np.float32), expected, 1e-4)


@pytest.mark.parametrize(("axes", "way"), [({"x": 3}, "both"), ({"x": 2, "y": 2}, "drawn"), ({"x": 4}, "data")])
def test_all_that_a_script_does(server: Server, scripted: list[float], axes: dict[str, int], way: str) -> None:
    """A sliced positional embedding, concatenation, transposes, norms, a deep backward, dropout and noise, checkpoints
    of activations, accumulation, clipping, momentum, `item()` and an evaluation between steps."""
    gt.connect(server.address, mesh=axes)
    same(Script(WAYS[way]("script")).run(3), scripted)


def test_a_traced_step(server: Server) -> None:
    """As @gt.function, replayed on shards."""

    def run(axes: dict[str, int] | None) -> list[float]:
        gt.connect(server.address, mesh=axes)
        gt.manual_seed(0)
        policy = WAYS["both"]("") if axes else None
        model = placed(RECIPES["gpt"].model(gt).double(), policy)
        optimizer = gt.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        to, batches = uploader(policy, np.float64), RECIPES["gpt"].batches()

        @gt.function
        def step(x: Any, y: Any) -> Any:
            loss = RECIPES["gpt"].loss(gt, model, x, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        found = [step(*map(to, next(batches))).item() for _ in range(6)]
        assert step.replays >= 2
        return found

    same(run({"x": 3}), run(None))


def test_a_checkpoint_goes_on_with_other_workers(server: Server, tmp_path: Path) -> None:
    """Saved by four, read by three, then by one; with the state of the random numbers."""
    gt.connect(server.address)
    expected = Script(None).run(4)
    found: list[float] = []
    for k, axes in enumerate([{"x": 4}, {"x": 3}, {"x": 2, "y": 2}, None]):
        gt.connect(server.address, mesh=axes)
        script = Script(weights_split("") if axes else None)
        script.skip(k)
        if k:
            state = gt.load(tmp_path / "state")
            script.model.load_state_dict(state["model"])
            script.optimizer.load_state_dict(state["optimizer"])
            gt.set_rng_state(state["random"])
        found += script.step()
        state = {"model": script.model.state_dict(), "optimizer": script.optimizer.state_dict()}
        gt.save({**state, "random": gt.get_rng_state()}, tmp_path / "state", sharded=True)
    same(found, expected)


def test_a_parameter_stays_as_it_was_laid_out(server: Server) -> None:
    """Also by a step that is recorded behind it at once, and without an optimizer."""
    gt.connect(server.address, mesh={"x": 4})
    batch = gt.from_numpy(np.ones((16, 8), np.float32), layout={0: "x"})
    model = gt.nn.Linear(8, 8)
    optimizer = gt.optim.SGD(model.parameters(), lr=0.1)
    gt.shard_(model, {"weight": {0: "x"}})
    model(batch).square().mean().backward()
    optimizer.step()
    w = gt.shard(gt.randn(8, 8), {0: "x"}).requires_grad_()
    (batch @ w).square().mean().backward()
    with gt.no_grad():
        w -= 0.1 * w.grad
    assert [repr(t.layout) for t in (model.weight, w)] == ["[8@x]"] * 2


# -- other workers -------------------------------------------------------------------------------------


def test_more_workers_others_and_one(scripted: list[float]) -> None:
    """A worker joins, the session moves to it, to others, and at last to one alone: all values stay, and the
    training goes on as if nothing had happened."""
    with serving(2) as server:
        gt.connect(server.address, mesh={"x": 2})
        script = Script(both_split(""))
        found = script.step()
        server.add()
        before = script.values()
        assert len(gt.mesh(x=3).workers) == 3
        np.testing.assert_equal(script.values(), before)
        found += script.step()  # parameters are where they were, the batch is split over three
        script.lay_out(both_split(""))
        assert len(script.model.head.weight.layout.mesh.workers) == 3
        gt.mesh("others", x=2, workers=[2, 0])
        before = script.values()
        script.lay_out(weights_split(""), "others")
        np.testing.assert_equal(script.values(), before)
        assert script.model.head.weight.layout.mesh is gt.mesh("others").grid
        found += script.step()
        same(found, scripted)
        gt.mesh(x=1)
        before = script.values()
        script.lay_out(lambda shape, data: None)
        np.testing.assert_equal(script.values(), before)
        assert len(script.model.head.weight.layout.mesh.workers) == 1
        more = script.step()
        gt.connect(server.address)
        same([*found, *more], Script(None).run(4))


def test_engines_of_other_kinds() -> None:
    """A worker that computes with numpy and one that computes with jax, together."""
    pytest.importorskip("jax")
    with serving(1, "numpy") as server:
        expected = losses(server.address, "mlp", None)
        server.add("jax")
        same(losses(server.address, "mlp", {"x": 2}, "both"), expected)


# -- ops -----------------------------------------------------------------------------------------------


def test_ops_on_shards(server: Server) -> None:
    """Some ops, by a seed, with two samples each in layouts drawn at random; --real tries all."""
    names = [op.name for op in OPS]
    rng = random.Random("real ops")
    for axes in MESHES:
        assert check_ops(server.address, [axes], rng.sample(names, 40), 2, "suite") == []


# -- failures ------------------------------------------------------------------------------------------

FEW, MANY = 20, 20_000  #: Rows of a batch that the worker with little memory can and cannot take.


class Regression:
    """A network with layouts of all kinds, and its steps on batches of any size."""

    def __init__(self) -> None:
        gt.manual_seed(3)
        self.model = gt.nn.Sequential(gt.nn.Linear(16, 30), gt.nn.ReLU(), gt.nn.Linear(30, 30), gt.nn.Linear(30, 1))
        gt.shard_(self.model.double(), {"0.weight": {0: "x"}, "2.weight": {1: "x"}})
        self.optimizer = gt.optim.AdamW(self.model.parameters(), lr=1e-2)

    def step(self, rows: int) -> Any:
        data = np.random.default_rng(rows).normal(size=(rows, 16))
        x = gt.from_numpy(data, layout={0: "x"})
        loss = (self.model(x) - x.sum(dim=1, keepdim=True)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def values(self) -> dict[str, np.ndarray]:
        found = {name: t.detach().numpy() for name, t in self.model.state_dict().items()}
        for name, p in self.model.named_parameters():
            found |= {f"{name} {k}": self.optimizer.state[p][k].numpy() for k in ("exp_avg", "exp_avg_sq")}
        return found


def test_out_of_memory_on_one_of_three() -> None:
    """In the middle of collectives: nobody is left waiting, nothing has changed, and the next step runs."""
    with serving(2) as server:
        server.add(GT_FAKE_MEMORY="2000000")
        gt.connect(server.address, mesh={"x": 3})
        script = Regression()
        good = [script.step(FEW).item() for _ in range(2)]
        for _ in range(3):
            before = script.values()
            began_s = time.monotonic()
            with pytest.raises(OutOfMemory):
                script.step(MANY).item()
            seconds = time.monotonic() - began_s
            assert seconds < 10, "nobody learned of it by a deadline"
            print(f"out of memory, heard after {seconds:.2f} s")
            np.testing.assert_equal(script.values(), before)
            good.append(script.step(FEW).item())
        gt.connect(server.address, mesh={"x": 2})
        twin = Regression()
        same(good, [twin.step(FEW).item() for _ in range(5)])


def test_a_bad_index_names_the_users_op_and_line(server: Server) -> None:
    """Whatever the workers run for it."""
    gt.connect(server.address, mesh={"x": 2, "y": 2})
    table = gt.from_numpy(np.ones((10, 4)), layout={0: "x"})
    table.sum().item()
    rows = gt.nn.functional.embedding(gt.tensor([1, 99]), table)
    with pytest.raises(IndexError, match=r"^embedding: index 99 .*\n  made by embedding at .*training\.py:"):
        rows.sum().item()
    assert table.sum().item() == 40


OTHER = """
import sys
import gt
from tests.processes.test_sharded_training import FEW, Regression

gt.connect(sys.argv[1], mesh={"x": 2})
script = Regression()
print(*gt.mesh().workers, flush=True)
print(*[script.step(FEW).item() for _ in range(100)], flush=True)
"""


def test_a_worker_is_killed_in_the_middle_of_training(start: Start) -> None:
    """The session hears of it, and goes on on those that are left. Another one, on two others, hears nothing of it."""
    with serving(3) as server:
        gt.connect(server.address)
        joined(3)
        other = start("-c", OTHER, server.address)
        theirs = [int(n) for n in other.line().split()]
        gt.connect(server.address, mesh={"x": 3})
        lone = next(n for n in gt.mesh().workers if n not in theirs)
        pid = gt.debug.get_worker_stats()["workers"][str(lone)]["pid"]
        script = Regression()
        whole = gt.replicate(gt.arange(10))
        for _ in range(3):
            script.step(FEW).item()
        for _ in range(10):
            script.step(FEW)
        os.kill(pid, signal.SIGKILL)

        def go_on() -> None:
            for _ in range(10):
                script.step(FEW)
            script.step(FEW).item()

        with pytest.raises(LostError, match=f"pid {pid}.* is gone"):  # at the end of a step, or when one is read
            go_on()
        with pytest.raises(LostError, match=r"gt\.mesh"):
            gt.ones(3).sum().item()
        np.testing.assert_array_equal(whole.numpy(), np.arange(10))
        assert set(gt.mesh(x=2).workers) == set(theirs)
        assert whole.sum().item() == 45
        script = Regression()
        found = [script.step(FEW).item() for _ in range(100)]
        same(found, [float(word) for word in other.line().split()])
        assert other.end()[0] == 0


CROWD = """
import sys
import numpy as np
import gt

gt.connect(sys.argv[1], mesh={"x": 4})
order = [int(n) for n in sys.argv[2:]]
gt.mesh("mine", x=3, workers=order)
rows = gt.from_numpy(np.arange(24.0).reshape(12, 2), layout={0: "x"})
mine = gt.shard(rows, {0: "x"}, mesh="mine")
total = gt.zeros(2, dtype=gt.float64)
print("ready", flush=True)
for k in range(150):
    total = total + rows.sum(0) * 0.5 + gt.replicate(mine.sum(0)) * 0.5
    if k % 7 == 0:
        rows = gt.shard(rows, {1: "x"} if k % 2 else {0: "x"})
    if k % 5 == 0:
        total.sum().item()
print(*total.tolist(), flush=True)
"""


def test_two_sessions_on_the_same_workers(server: Server, start: Start) -> None:
    """Many small calls of both at once, with groups of the same workers in opposite orders: nobody waits for ever."""
    both = [start("-c", CROWD, server.address, *order) for order in ("012", "321")]
    for each in both:
        assert each.line() == "ready"
    for each in both:
        assert [float(word) for word in each.output().split()] == [150 * 132.0, 150 * 144.0]
