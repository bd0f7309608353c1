"""Numbers that several instructions take: a call carries each once, and programs stay the same when they change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.client.programs.numbers import SharedNumber
from gt.client.programs.tree import Kind, find_period
from gt.client.record.recorder import apply, recorder
from gt.client.session.session import Session
from gt.errors import ShapeError
from gt.ops import TABLE
from gt.program import Program

ADD, MUL, LERP = (Kind(TABLE[n], {}) for n in ("add", "mul", "lerp"))


def add(x: Any, n: Any) -> Any:
    return apply(ADD, (x, n))


def mul(x: Any, n: Any) -> Any:
    return apply(MUL, (x, n))


def programs(session: Session) -> list[Program]:
    recorder().settle()
    return [v.program for v in session.variants.values()]


@pytest.fixture
def x(session: Session) -> Any:
    x = gt.ones(2)
    recorder().settle()
    return x


def test_a_call_carries_it_once_and_a_known_step_sends_no_text(x: Any, session: Session) -> None:
    for i in range(4):
        a, b = SharedNumber(float(i)), SharedNumber(i + 1)
        y = add(mul(add(mul(x, a), b), a), b)
        assert y.tolist() == [(i + i + 1) * i + i + 1] * 2
    last = programs(session)[-1]
    assert last.scalars == "fi"
    assert [ins.args[1] for ins in last.code] == [~0, ~1, ~0, ~1]
    assert session.defined == 2


def test_equal_numbers_that_are_not_one_stay_apart(x: Any, session: Session) -> None:
    y = add(mul(x, SharedNumber(2.0)), SharedNumber(2.0))
    assert programs(session)[-1].scalars == "ff"
    assert y.tolist() == [4.0, 4.0]


def test_one_that_is_gone_is_not_taken_for_another(x: Any, session: Session) -> None:
    """The next object often has the address of the one before."""
    for i in range(20):
        x = add(x, SharedNumber(float(i)))
    assert x.tolist() == [191.0, 191.0]


def test_another_program_passes_it_again(x: Any, session: Session) -> None:
    a = SharedNumber(3.0)
    y = mul(x, a)
    recorder().settle()
    z = mul(y, a)
    assert z.tolist() == [9.0, 9.0]


@pytest.mark.parametrize("another", [False, True])
def test_an_op_that_is_left_out_passes_no_number(another: bool, x: Any, session: Session) -> None:
    """The op that brought `a` is left out: of those that stay, the first takes `b`."""
    for v in (2.0, 5.0):
        a, b = SharedNumber(v), SharedNumber(10.0)
        dead = mul(x, a)
        y = add(x, b)
        z = mul(y, a)
        if another:
            dead = mul(x, SharedNumber(1000.0))
        del dead
        assert z.tolist() == [11 * v] * 2
    (program,) = programs(session)[1:]
    assert [ins.op for ins in program.code] == ["add", "mul"]
    assert program.scalars == "ff"


def test_the_same_one_twice_in_an_op(x: Any, session: Session) -> None:
    sgd = Kind(TABLE["sgd"], {})  # of a parameter, its gradient, a rate and a decay
    for v in (0.5, 0.25):
        a = SharedNumber(v)
        y = apply(sgd, (x, gt.zeros(2), a, a))
        assert y.tolist() == [1 - v * v] * 2
    assert programs(session)[-1].scalars.count("f") == 2  # that of zeros(), and this one


def test_an_op_that_fails_passes_nothing(x: Any, session: Session) -> None:
    longer = gt.ones(3)
    recorder().settle()
    a = SharedNumber(4.0)
    y = add(x, 1.0)
    with pytest.raises(ShapeError):
        apply(LERP, (x, longer, a))
    z = add(mul(y, 3.0), a)
    w = mul(z, a)
    assert w.tolist() == [40.0, 40.0]


def test_a_period_is_seen_through_them(x: Any, session: Session) -> None:
    for i in range(10):
        a = SharedNumber(float(i))
        x = add(mul(x, a), a)
    assert find_period(recorder().pending.node.path()) == 2


def test_a_number_of_a_traced_function_too(session: Session) -> None:
    @gt.function
    def f(x: Any, k: Any) -> Any:
        return ((x * k + k) * k - 2 * k) * k

    for k in (1.0, 2.0, 0.5):
        assert f(gt.ones(2), k).tolist() == [((k + k) * k - 2 * k) * k] * 2
    assert f.replays == 2
    assert programs(session)[-1].scalars == "ff"  # k and 2 * k


# --- optimizers ------------------------------------------------------------------------------------------------

SETTINGS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "dampening": 0.2},
    "Adam": {}, "AdamW": {}, "RAdam": {}, "Adamax": {}, "Adagrad": {"lr_decay": 0.1}, "RMSprop": {},
    "Adadelta": {}, "Rprop": {}, "NAdam": {}, "ASGD": {},
}  # fmt: skip


def squared(params: list[Any]) -> Any:
    """The sum of the squares of all their elements."""
    return sum([(p**2).sum() for p in params])


class Model:
    """Four parameters in two groups, in GT and in torch; which of them have a gradient is the test's choice."""

    def __init__(self, name: str) -> None:
        start = [np.linspace(0.5, 1.5, 3).astype(np.float32) + i for i in range(4)]
        self.ours = [gt.nn.Parameter(gt.tensor(a)) for a in start]
        self.theirs = [torch.nn.Parameter(torch.tensor(a)) for a in start]
        lr = {"lr": 0.01}
        self.opts = [
            getattr(lib.optim, name)([{"params": p[:3]}, {"params": p[3:], **lr}], **SETTINGS[name])
            for lib, p in ((gt, self.ours), (torch, self.theirs))
        ]

    def step(self, which: tuple[int, ...]) -> None:
        for opt, params in zip(self.opts, (self.ours, self.theirs), strict=True):
            opt.zero_grad()
            squared([params[i] for i in which]).backward()
            opt.step()

    def agree(self) -> None:
        for a, b in zip(self.ours, self.theirs, strict=True):
            np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", list(SETTINGS))
def test_parameters_that_miss_steps_have_their_own_counts(name: str, session: Session) -> None:
    m = Model(name)
    for which in ((0, 1, 2, 3), (0, 1, 2, 3), (1, 3), (0, 1, 2, 3), (2,), (0,), (0, 1, 2, 3)):
        m.step(which)
    m.agree()
    recorder().settle()
    before = session.defined
    for which in ((1, 3), (0, 1, 2, 3), (2,), (0, 1, 2, 3), (0,), (0, 1, 2, 3), (0,), (0, 1, 2, 3)):
        m.step(which)
    recorder().settle()
    assert session.defined == before  # however many steps each has missed
    m.agree()


@pytest.mark.parametrize(("name", "numbers"), [("AdamW", 6), ("SGD", 4), ("RAdam", 6), ("RMSprop", 5)])
def test_a_group_has_one_set_of_numbers(name: str, numbers: int, session: Session) -> None:
    m = Model(name)
    for _ in range(3):
        m.step((0, 1, 2, 3))
    step = programs(session)[-1]
    used = {a for ins in step.code if len(ins.args) > 3 for a in ins.args if a < 0}
    assert len(used) == 2 * numbers


def test_settings_are_read_at_every_step(session: Session) -> None:
    m = Model("AdamW")
    for i in range(4):
        for opt in m.opts:
            opt.param_groups[0]["lr"] = 0.1 / (i + 1)
            opt.param_groups[1]["betas"] = (0.8, 0.9 + 0.01 * i)
        m.step((0, 1, 2, 3))
    m.agree()


@pytest.mark.parametrize("name", ["AdamW", "SGD", "RAdam", "Rprop"])
def test_a_replay_asks_whether_counts_are_still_equal(name: str, session: Session) -> None:
    m = Model(name)
    ours, theirs = m.opts

    @gt.function
    def step() -> None:
        ours.zero_grad()
        squared(m.ours).backward()
        ours.step()

    def torchs(params: list[Any]) -> None:
        theirs.zero_grad()
        squared(params).backward()
        theirs.step()

    for _ in range(4):
        step()
        torchs(m.theirs)
    assert step.replays >= 2
    m.step((1, 3))
    for _ in range(4):
        step()
        torchs(m.theirs)
    m.agree()
