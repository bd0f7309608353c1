"""Using a plan: the numbers are those without it, tensors are where it wants them, and no call fails because of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

import gt
from gt import config, nn
from gt.chosen import Chosen
from gt.dispatcher import meshes
from gt.dispatcher.events import MakePlan, PlanReady
from gt.errors import ArgumentError, DTypeError
from gt.solver import running
from gt.transport import messages
from gt.transport.messages import UsePlan
from tests.sessions import default_dtype, session_on
from tests.sim.cluster import Cluster

from . import models
from .choosing import SomePlan, random_plan


def fresh(name: str) -> models.Training:
    """The same in float64: the optimizer's state too."""
    with default_dtype(gt.float64):
        gt.manual_seed(0)
        return models.MODELS[name]() if name != "llama" else models.llama(dtype=None)


def losses(training: models.Training, steps: int = 3) -> list[float]:
    with default_dtype(gt.float64):
        return [training.step(*training.batch).item() for _ in range(steps)]


def planned(name: str, axes: dict[str, int], seed: int) -> SomePlan:
    with default_dtype(gt.float64):
        return random_plan(models.recorded_step(fresh, name=name).largest, axes, seed)


class Watch:
    """Which plans a cluster made, and with how many choices."""

    def __init__(self, cluster: Cluster) -> None:
        self.followed: list[int] = []
        self.notes: list[str] = []
        cluster.watch = self

    def __call__(self, event: Any, actions: Any) -> None:
        for action in actions:
            if isinstance(action, MakePlan) and action.followed:
                mine = action.followed.get(action.checked.program.body())
                self.followed.append(0 if mine is None else len(mine.ways))
        if isinstance(event, PlanReady) and event.planned is not None:
            self.notes += event.planned.notes

    @property
    def refused(self) -> list[str]:
        return [n for n in self.notes if "not followed" in n]


CASES = [("mlp", {"x": 2}), ("transformer block", {"x": 2}), ("language model", {"x": 3}), ("llama", {"x": 2, "y": 2}),
         ("experts", {"x": 2}), ("conv net", {"x": 2})]  # fmt: skip


@pytest.mark.parametrize(("name", "axes"), CASES)
def test_followed_and_unfollowed_give_the_same_numbers(name: str, axes: dict[str, int]) -> None:
    """In the simulator, in any order of messages; the choices are random."""
    with session_on():
        expected = losses(fresh(name))
    for seed in range(2):
        plan = planned(name, axes, seed)
        cluster = Cluster(workers=int(np.prod([*axes.values()])), seed=seed)
        watch = Watch(cluster)
        with session_on(cluster):
            training = fresh(name)
            gt.use_plan(plan, training.step, *training.batch)
            np.testing.assert_allclose(losses(training), expected, rtol=1e-9)
            assert max(watch.followed) == len(plan.ways) > 10
            assert watch.refused == []
            cluster.machine.invariants()


def test_tensors_are_where_the_plan_wants_them() -> None:
    plan = planned("mlp", {"x": 2}, 5)
    with session_on(workers=2) as session:
        training = fresh("mlp")
        model, optimizer = training.model, training.optimizer
        gt.use_plan(plan, model=model, optimizer=optimizer)
        for _ in range(2):
            for name, p in model.named_parameters():
                assert repr(p.layout) == plan.layouts[f"model.{name}"]
                for key in ("exp_avg", "exp_avg_sq"):
                    at = repr(optimizer.state[p][key].layout)
                    assert at == plan.layouts[f"optimizer.{key}:model.{name}"]
            losses(training, 1)  # and they stay there
        assert gt.mesh().axes == {"x": 2}
        made = session.meshes.by_name[""]
        gt.use_plan(plan, model=model, optimizer=optimizer)
        assert session.meshes.by_name[""] is made  # the mesh was there already


def test_found_in_the_variables_where_it_is_called() -> None:
    plan = SomePlan({"x": 2}, {"w": "[4@x]", "model.weight": "[. 4@x]", "input 3": "[4@x]"}, {}, "0" * 32)
    with session_on(workers=2):
        w, model = gt.zeros(4), nn.Linear(4, 4)
        gt.use_plan(plan)
        assert (repr(w.layout), repr(model.weight.layout)) == ("[4@x]", "[. 4@x]")


def test_later_uploads_of_a_batch_have_its_layout() -> None:
    plan = SomePlan({"x": 2}, {"batch": "[100@x]", "table": "[. 10@x]", "other": "[100@x]"}, {}, "0" * 32)
    rows = np.arange(1000.0).reshape(100, 10)
    with session_on(workers=2):
        gt.use_plan(plan, batch=gt.from_numpy(rows), table=gt.from_numpy(rows.astype(np.float32)),
                    other=gt.from_numpy(rows.astype(np.float32)))  # fmt: skip
        assert repr(gt.from_numpy(rows + 1).layout) == "[100@x]"
        np.testing.assert_array_equal(gt.from_numpy(rows + 1).numpy(), rows + 1)
        assert repr(gt.from_numpy(rows.astype(np.float32)).layout) == "[]"  # two batches of this shape differ
        assert repr(gt.from_numpy(rows, layout={1: "x"}).layout) == "[. 10@x]"
        gt.mesh(y=2)
        assert repr(gt.from_numpy(rows).layout) == "[]"  # the axis is gone


def test_shard_with_a_plan() -> None:
    plan = SomePlan({"x": 2}, {"net.0.weight": "[4@x]", "net.0.bias": "[]", "o.m:net.0.weight": "[]"}, {}, "0" * 32)
    with session_on(workers=2):
        model = nn.Sequential(nn.Linear(4, 4))
        assert gt.shard_(model, plan) is model
        assert repr(model[0].weight.layout) == "[4@x]"
        with pytest.raises(ArgumentError, match="no layout for 'weight' of this module"):
            gt.shard_(nn.Linear(2, 2), replace(plan, layouts={"net.1.gain": "[]"}))
        with pytest.raises(ArgumentError, match="may mean 'a' or 'b'"):
            gt.shard_(nn.Linear(4, 4), replace(plan, layouts={"a.weight": "[]", "b.weight": "[]"}))


MISTAKES: dict[str, tuple[type[Exception], str, Callable[[SomePlan], Any]]] = {
    "no plan": (DTypeError, "expected a plan with mesh", lambda plan: gt.use_plan({"mesh": {}})),
    "another model": (
        ArgumentError, r"layout for 'model\.weight', but 'model' does not contain it",
        lambda plan: gt.use_plan(plan, model=nn.ReLU()),
    ),
    "another shape": (
        ArgumentError, r"use_plan: model\.weight: ", lambda plan: gt.use_plan(plan, model=nn.Linear(2, 2)),
    ),
    "no such axis": (
        ArgumentError, r"use_plan: model\.weight: ",
        lambda plan: gt.use_plan(replace(plan, layouts={"model.weight": "[4@q]"}), model=nn.Linear(4, 4)),
    ),
    "ways": (DTypeError, "ways must map ints", lambda plan: gt.use_plan(replace(plan, ways={"a": 1}))),  # type: ignore[dict-item]
    "too few workers": (
        ArgumentError, "mesh of 64 workers; this server has 2", lambda plan: gt.use_plan(replace(plan, mesh={"x": 64})),
    ),
    "a step": (DTypeError, "expected the step", lambda plan: gt.use_plan(plan, 3)),  # type: ignore[arg-type]
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str) -> None:
    error, text, mistake = MISTAKES[name]
    settings = config.replace(config.load(), worker_timeout_s=1.0)
    with session_on(workers=2, settings=settings):
        with pytest.raises(error, match=text):
            mistake(SomePlan({"x": 2}, {"model.weight": "[4@x]"}, {}, "0" * 32))
        assert (gt.ones(2) + 1).tolist() == [2.0, 2.0]


# --- what a client may send --------------------------------------------------------------------------


NONSENSE: dict[str, Chosen] = {
    "factor": Chosen({"zz": ((4, ("x",)),)}),
    "axis": Chosen({"m": ((16, ("q",)),)}),
    "size": Chosen({"m": ((3, ("x",)),)}),
    "negative": Chosen({"m": ((-16, ("x",)),)}),
    "twice": Chosen({"m": ((16, ("x", "x")),)}),
    "empty": Chosen({"m": ()}),
    "kind": Chosen(keep={"x": ((0,), "median")}),
    "operand": Chosen(keep={"x": ((7,), "sum")}),
    "expansion": Chosen(expand=("[16@x]", "[16@x]")),
    "layouts": Chosen(expand=("[4@", "]]")),
    "count": Chosen(expand=()),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_choices_that_do_not_fit_are_noted_and_not_followed(name: str) -> None:
    cluster = Cluster(workers=2, seed=0)
    watch = Watch(cluster)
    with session_on(cluster) as session:
        gt.mesh(x=2)
        a, b = np.arange(256.0).reshape(16, 16), np.ones((16, 16))
        x, y = gt.from_numpy(a, layout={0: "x"}), gt.from_numpy(b, layout={1: "x"})
        (x @ y).numpy()
        (body,) = {v.program.body() for v in session.variants.values() if len(v.program.code) == 1}
        gt.use_plan(SomePlan({"x": 2}, {}, {0: NONSENSE[name], 99: Chosen()}, body))
        np.testing.assert_array_equal((x @ y).numpy(), a @ b)
        assert watch.followed[-1] == 2
        assert len(watch.refused) == 1


def test_a_plan_for_another_mesh_or_body_is_not_followed() -> None:
    cluster = Cluster(workers=2)
    watch = Watch(cluster)
    with session_on(cluster) as session:
        gt.mesh(x=2)
        a = np.linspace(0.0, 1.0, 256).reshape(16, 16)
        x = gt.from_numpy(a, layout={0: "x"})
        x.exp().numpy()
        (body,) = {v.program.body() for v in session.variants.values()}
        gt.use_plan(SomePlan({"y": 2}, {}, {0: Chosen()}, body))  # which changes the mesh
        gt.mesh(x=2)
        x = gt.from_numpy(a, layout={0: "x"})
        np.testing.assert_allclose(x.exp().numpy(), np.exp(a))
        assert watch.refused == ["choices for the mesh {'y': 2} are not followed on {'x': 2}"]
        x.sin().numpy()
        assert watch.followed[-1] == 0


def test_limits_of_the_dispatcher() -> None:
    cluster = Cluster(workers=2)
    with session_on(cluster) as session:
        gt.mesh(x=2)
        (state,) = cluster.machine.state.sessions.values()
        for k in range(meshes.FOLLOWED + 3):
            session.send(UsePlan(f"{k}", (("x", 2),), (Chosen(),), {0: 0}))
        gt.ones(3).numpy()
        assert [*state.followed] == [str(k) for k in range(3, meshes.FOLLOWED + 3)]
        assert len(state.place) == 2 + meshes.FOLLOWED
        session.send(UsePlan("5", (("x", 2),), (), {}))  # taken back
        gt.ones(4).numpy()
        assert "5" not in state.followed
        assert len(state.place) == 1 + meshes.FOLLOWED
        cluster.machine.invariants()
        for bad in (
            UsePlan("5", (("x", 2),), (), {0: 0}),
            UsePlan("5", (("x", 2),), (Chosen(),), {0: -1}),
            UsePlan("5" * 100, (("x", 2),), (Chosen(),), {0: 0}),
            UsePlan("5", (("x", 2),), (Chosen(expand=("x" * messages.CHOICES_NBYTES,)),), {0: 0}),
        ):
            before = dict(state.followed)
            meshes.use_plan(cluster.machine.state, state, bad, None)
            assert dict(state.followed) == before


def test_the_message_survives_the_wire() -> None:
    every = Chosen(
        {"m": ((4, ("x",)), (2, ()))}, {"y": ((0, 1), "sum")}, True, ("[4@x]", ""), ((0, ("[4@x]", "[]")),), drops=True
    )
    sent = UsePlan("ab", (("x", 2), ("y", 3)), (Chosen(), every), {0: 1, 7: 0})
    assert messages.decode(messages.encode(sent)) == (sent, None)
    with pytest.raises(messages.BadMessage):
        messages.decode([msgspec.msgpack.encode(["UsePlan", "ab", [], [{"split": 3}], {}])])


@pytest.mark.parametrize(
    ("auto_shard", "calls", "says"),
    [
        (False, 3, "Set GT_AUTO_SHARD=1 to have better ones found."),
        (True, 0, "No call has finished yet."),
        (True, 3, "They do not change by themselves."),  # as with gt.autoshard, or a mesh of one's own
    ],
)
def test_why_there_is_no_plan_to_explain(
    monkeypatch: pytest.MonkeyPatch, auto_shard: bool, calls: int, says: str
) -> None:
    about = {"session": {"workers": [1, 2], "calls": calls, "plans": []}}
    session = SimpleNamespace(stats=lambda: about, config=SimpleNamespace(auto_shard=auto_shard))
    monkeypatch.setattr(running, "current", lambda: session)
    assert running.explain().endswith(says)
