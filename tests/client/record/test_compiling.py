"""Which programs a worker is told to compile: the choice of a function, of a module, and none."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import gt
from gt.client.record.recorder import recorder
from gt.client.session.session import Session
from gt.errors import ArgumentError
from tests.sim.cluster import Cluster


def choices(session: Session) -> dict[str, int]:
    """The choice that was sent with each program, by the name of its last op."""
    recorder().settle()
    return {v.program.code[-1].op: v.compile for v in session.variants.values()}


def at_worker(cluster: Cluster, session: Session) -> dict[str, int]:
    cluster.run()
    known = {k.hash: k.compile for k in cluster.workers[0].core.programs}
    return {v.program.code[-1].op: known[v.hash] for v in session.variants.values()}


@pytest.mark.parametrize(("choice", "told"), [(True, 1), (False, -1), (None, 0)])
def test_a_function_chooses_for_its_own_programs(
    choice: bool | None, told: int, session: Session, cluster: Cluster
) -> None:
    x = gt.ones(3)
    y = x + 1

    @gt.function(compile=choice)
    def f(x: Any) -> Any:
        return x.exp()

    for _ in range(3):
        z = f(y)
    w = z.sin()
    want = {"add": 0, "exp": told, "sin": 0}
    assert choices(session) == want
    assert at_worker(cluster, session) == want
    assert f.replays == 2
    del w


def test_replays_are_compiled_too(session: Session) -> None:
    """The first run keeps what a replay does not: theirs is another program."""

    @gt.function(compile=True)
    def f(x: Any) -> Any:
        return x.exp()

    x = gt.ones(3)
    kept = x.exp()  # the same op, outside
    recorder().settle()
    assert choices(session)["exp"] == 0
    for _ in range(2):
        y = f(x)
    assert choices(session)["exp"] == 1
    del kept, y


def test_a_function_that_is_not_replayed_is_compiled_too(session: Session) -> None:
    @gt.function(compile=True)
    def f(w: Any) -> Any:
        return w * 2  # has a history: run as plain Python

    w = gt.ones(2, requires_grad=True)
    for _ in range(2):
        y = f(w)
        recorder().settle()
    assert f.replays == 0
    assert choices(session)["mul"] == 1
    del y


def test_the_most_willing_counts(session: Session, cluster: Cluster) -> None:
    """One program for two functions: told again when more is wanted, not when less is."""
    x = gt.ones(3)
    recorder().settle()
    for choice, told in ((False, -1), (None, 0), (False, 0), (True, 1), (None, 1), (False, 1)):
        f = gt.function(lambda x: x.exp(), compile=choice)
        y = f(x)
        assert choices(session)["exp"] == told
        assert at_worker(cluster, session)["exp"] == told
    del y


def train(model: Any, optimizer: Any, x: Any) -> Any:
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def test_a_compiled_module_marks_its_steps_and_nothing_else(session: Session) -> None:
    model = gt.nn.Sequential(gt.nn.Linear(3, 4), gt.nn.ReLU(), gt.nn.Linear(4, 1))
    assert gt.compile(model, mode="max-autotune") is model
    optimizer = gt.optim.SGD(model.parameters(), lr=0.1)
    x = gt.ones(2, 3)
    recorder().settle()
    assert set(choices(session).values()) == {0}
    before = set(session.variants)
    for _ in range(3):
        loss = train(model, optimizer, x)
    recorder().settle()
    new = [v.compile for h, v in session.variants.items() if h not in before]
    assert new == [1] * (len(session.variants) - len(before))
    assert new
    y = (x + 1).cos()
    assert choices(session)["cos"] == 0
    z = copy.deepcopy(model)(x)
    recorder().settle()
    assert next(reversed(session.variants.values())).compile == 1
    del y, z, loss


def test_a_function_that_reads_inside_marks_where_it_begins_and_ends(session: Session) -> None:
    @gt.compile
    def f(x: Any) -> Any:
        if x.exp().sum().item() > 0:
            x = x.sin()
        return x

    x = gt.ones(2)
    recorder().settle()
    y = f(x)
    z = y.cos()
    recorder().settle()
    told = {v.program.code[0].op: v.compile for v in session.variants.values()}
    assert told["exp"] == told["sin"] == 1
    w = x.tan()
    assert choices(session)["tan"] == 0
    del z, w


def test_a_function_that_ends_its_program_marks_no_other(session: Session) -> None:
    @gt.compile()
    def f(x: Any) -> Any:
        return x.exp().sum().item()

    x = gt.ones(2)
    f(x)
    y = x.tan()
    assert choices(session)["tan"] == 0
    del y


def test_arguments_of_compile(session: Session) -> None:
    f = gt.function(lambda x: x + 1)
    assert gt.compile(f) is f
    assert f.compile is True
    model = gt.nn.Linear(2, 2)
    gt.compile(model, disable=True)
    assert model._hooks is None
    with pytest.raises(ArgumentError, match="expected a module or a function, got int"):
        gt.compile(3)
