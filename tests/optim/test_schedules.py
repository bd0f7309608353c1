"""Schedules give torch's learning rates and momenta, step by step, also after a state was loaded."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import gt
from gt.client.session.session import Session
from gt.errors import FunctionError
from tests.beside_torch import as_in_torch, same
from tests.sessions import session_fixture

STEPS = 60


session = session_fixture("numpy")


class Decay:
    """A function that remembers something."""

    def __init__(self) -> None:
        self.by = 0.9

    def __call__(self, epoch: int) -> float:
        return self.by**epoch


def sequence(s: Any, o: Any, milestones: tuple[int, ...] = (10, 30)) -> Any:
    warmup = s.LinearLR(o, start_factor=0.1, total_iters=10)
    parts = [warmup, s.CosineAnnealingLR(o, T_max=20), s.ExponentialLR(o, gamma=0.95)]
    return s.SequentialLR(o, parts[: len(milestones) + 1], milestones=list(milestones))


#: By name: what makes the schedule `s.X(o, ...)` of an optimizer.
SCHEDULES: dict[str, Callable[[Any, Any], Any]] = {
    "lambda": lambda s, o: s.LambdaLR(o, lambda e: 0.95**e),
    "lambdas": lambda s, o: s.LambdaLR(o, [lambda e: 1 / (1 + e), Decay()]),
    "multiplicative": lambda s, o: s.MultiplicativeLR(o, lambda e: 0.9 + 0.1 * (e % 2)),
    "step": lambda s, o: s.StepLR(o, 7, gamma=0.5),
    "multi step": lambda s, o: s.MultiStepLR(o, [5, 5, 20, 41], gamma=0.3),
    "constant": lambda s, o: s.ConstantLR(o, factor=0.25, total_iters=12),
    "linear": lambda s, o: s.LinearLR(o, start_factor=0.2, end_factor=0.8, total_iters=25),
    "linear of one": lambda s, o: s.LinearLR(o),
    "exponential": lambda s, o: s.ExponentialLR(o, 0.97),
    "polynomial": lambda s, o: s.PolynomialLR(o, total_iters=40, power=1.7),
    "cosine": lambda s, o: s.CosineAnnealingLR(o, T_max=17, eta_min=0.003),
    "cosine of one": lambda s, o: s.CosineAnnealingLR(o, T_max=1),
    "restarts": lambda s, o: s.CosineAnnealingWarmRestarts(o, T_0=6, T_mult=2, eta_min=0.001),
    "equal restarts": lambda s, o: s.CosineAnnealingWarmRestarts(o, T_0=9),
    "cyclic": lambda s, o: s.CyclicLR(o, 0.01, 0.2, step_size_up=5, step_size_down=8),
    "cyclic 2": lambda s, o: s.CyclicLR(o, [0.01, 0.02], [0.2, 0.4], step_size_up=5, mode="triangular2"),
    "cyclic range": lambda s, o: s.CyclicLR(o, 0.01, 0.2, step_size_up=6, mode="exp_range", gamma=0.97),
    "cyclic by hand": lambda s, o: s.CyclicLR(
        o, 0.01, 0.2, step_size_up=4, scale_fn=lambda x: 0.9**x, scale_mode="iterations", cycle_momentum=False
    ),
    "one cycle": lambda s, o: s.OneCycleLR(o, max_lr=0.5, total_steps=STEPS + 1),
    "one cycle of three": lambda s, o: s.OneCycleLR(
        o, max_lr=[0.5, 0.1], epochs=10, steps_per_epoch=7, three_phase=True, anneal_strategy="linear", div_factor=10.0
    ),
    "one cycle without momentum": lambda s, o: s.OneCycleLR(o, max_lr=0.5, total_steps=61, cycle_momentum=False),
    "sequence": sequence,
    "sequence of two": lambda s, o: sequence(s, o, (1,)),
    "sequence with restarts": lambda s, o: s.SequentialLR(
        o, [s.ConstantLR(o, 0.1, 50), s.CosineAnnealingWarmRestarts(o, 7, 2)], [5]
    ),
    "chain": lambda s, o: s.ChainedScheduler([s.ConstantLR(o, 0.5, 4), s.ExponentialLR(o, 0.9)]),
    "sequence of chains": lambda s, o: s.SequentialLR(
        o, [s.ChainedScheduler([s.ConstantLR(o, 0.5, 4), s.ExponentialLR(o, 0.9)]), s.StepLR(o, 3)], [12]
    ),
    "swa": lambda s, o: s.SWALR(o, swa_lr=0.05, anneal_epochs=15),
    "swa linear": lambda s, o: s.SWALR(o, swa_lr=[0.05, 0.01], anneal_epochs=9, anneal_strategy="linear"),
    "swa at once": lambda s, o: s.SWALR(o, swa_lr=0.05, anneal_epochs=0),
}
OPTIMIZERS: dict[str, Callable[[Any, Any], Any]] = {
    "sgd": lambda o, groups: o.SGD(groups, lr=0.1, momentum=0.9),
    "adam": lambda o, groups: o.AdamW(groups, lr=0.02),
}


#: A chain in a sequence takes its first step twice before the optimizer takes one.
in_any_order = pytest.mark.filterwarnings("ignore:.*before .*optimizer.step")


class Names:
    """The schedules of torch or GT, those for weight averaging among them."""

    def __init__(self, lib: Any) -> None:
        self.lib = lib

    def __getattr__(self, name: str) -> Any:
        module = self.lib.optim.swa_utils if name == "SWALR" else self.lib.optim.lr_scheduler
        return getattr(module, name)


def optimizer(lib: Any, which: str = "sgd") -> Any:
    a, b = (lib.ones(2, requires_grad=True) for _ in range(2))
    return OPTIMIZERS[which](lib.optim, [{"params": [a]}, {"params": [b], "lr": 0.03}])


def rates(opt: Any) -> list[float]:
    return [x for g in opt.param_groups for x in (g["lr"], g.get("momentum", 0.0), *g.get("betas", ()))]


def follow(opt: Any, schedule: Any, steps: int) -> list[list[float]]:
    found = [rates(opt)]
    for _ in range(steps):
        opt.step()
        schedule.step()
        found.append([*rates(opt), *schedule.get_last_lr()])
    return found


EXACTLY = {"rtol": 1e-12, "atol": 1e-15}


@in_any_order
@pytest.mark.parametrize("which", OPTIMIZERS)
@pytest.mark.parametrize("name", SCHEDULES)
@as_in_torch(**EXACTLY)
def test_rates_are_torchs(lib: Any, name: str, which: str, session: Session) -> Any:
    opt = optimizer(lib, which)
    return follow(opt, SCHEDULES[name](Names(lib), opt), STEPS)


@in_any_order
@pytest.mark.parametrize("source", [gt, torch], ids=["gt", "torch"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_states_are_loaded(name: str, source: Any, session: Session) -> None:
    opt = optimizer(source)
    schedule = SCHEDULES[name](Names(source), opt)
    follow(opt, schedule, 13)
    state, settings = schedule.state_dict(), opt.state_dict()
    again = optimizer(gt)
    other = SCHEDULES[name](Names(gt), again)
    other.load_state_dict(state)
    again.load_state_dict(settings)
    again.step()
    same(follow(again, other, 20), follow(opt, schedule, 20), **EXACTLY)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [n for n in SCHEDULES if not n.startswith(("sequence", "chain"))])
@as_in_torch(**EXACTLY)
def test_epochs_by_number_are_torchs(lib: Any, name: str, session: Session) -> Any:
    opt = optimizer(lib)
    schedule = SCHEDULES[name](Names(lib), opt)
    opt.step()
    return [(schedule.step(epoch), rates(opt)) for epoch in (3, 4, 11, 2, 40)]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"mode": "max", "patience": 1, "factor": 0.5},
        {"patience": 2, "threshold": 0.1, "threshold_mode": "abs", "cooldown": 2},
        {"mode": "max", "threshold_mode": "abs", "threshold": 0.05, "patience": 0, "min_lr": [0.01, 0.02]},
        {"patience": 1, "min_lr": 0.005, "eps": 1e-3},
    ],
    ids=str,
)
@as_in_torch(**EXACTLY)
def test_plateaus_are_torchs(lib: Any, settings: dict[str, Any], session: Session) -> Any:
    metrics = [math.cos(i / 5) * 0.9**i + (0.3 if i > 30 else 0.0) for i in range(STEPS)]
    opt = optimizer(lib)
    schedule = lib.optim.lr_scheduler.ReduceLROnPlateau(opt, **settings)
    lrs = []
    for i, m in enumerate(metrics):
        if i == 25:
            state, schedule = schedule.state_dict(), lib.optim.lr_scheduler.ReduceLROnPlateau(opt)
            schedule.load_state_dict(state)
        schedule.step(lib.tensor(m) if i % 2 else m)
        lrs.append([*rates(opt), *schedule.get_last_lr(), schedule.num_bad_epochs])
    return lrs


@as_in_torch(**EXACTLY)
def test_a_run_goes_on_at_its_last_epoch(lib: Any, session: Session) -> Any:
    opt = optimizer(lib)
    for group in opt.param_groups:
        group["initial_lr"] = 0.4
    return follow(opt, lib.optim.lr_scheduler.CosineAnnealingLR(opt, 20, last_epoch=7), 20)


def test_a_schedule_of_ones_own(session: Session) -> None:
    class Halving(gt.optim.lr_scheduler.LRScheduler):
        def get_lr(self) -> list[float]:
            assert self._get_lr_called_within_step
            return [lr / 2**self.last_epoch for lr in self.base_lrs]

    opt = optimizer(gt)
    schedule = Halving(opt)
    follow(opt, schedule, 2)
    assert schedule.get_last_lr() == [0.025, 0.0075]


def test_all_of_torchs_schedules_are_there() -> None:
    assert set(gt.optim.lr_scheduler.__all__) == set(torch.optim.lr_scheduler.__all__)


def test_a_changing_rate_makes_no_program(session: Session) -> None:
    w = gt.ones(3, requires_grad=True)
    opt = gt.optim.AdamW([w], lr=0.1)
    schedule = gt.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.1, total_steps=20)
    texts = []
    for _ in range(15):
        (w * w).sum().backward()
        opt.step()
        opt.zero_grad()
        schedule.step()
        texts.append(session.defined)
    assert texts[-1] == texts[2]


REFUSED: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "no optimizer": (lambda s, o: s.StepLR(3, 1), "StepLR: expected an optimizer, got int"),
    "lambdas": (lambda s, o: s.LambdaLR(o, [lambda e: 1.0]), "expected one value or 2, one per parameter group, got 1"),
    "constant": (lambda s, o: s.ConstantLR(o, factor=1.5), "ConstantLR: factor must be between 0 and 1, got 1.5"),
    "linear": (lambda s, o: s.LinearLR(o, start_factor=0.0), r"LinearLR: start_factor must be in \(0, 1\], got 0.0"),
    "restarts": (lambda s, o: s.CosineAnnealingWarmRestarts(o, T_0=0), "T_0 must be a positive integer, got 0"),
    "one cycle": (lambda s, o: s.OneCycleLR(o, 0.1), "expected total_steps, or epochs and steps_per_epoch"),
    "cycle": (lambda s, o: s.CyclicLR(o, 0.1, 0.2, mode="x"), "mode must be one of triangular"),
    "milestones": (
        lambda s, o: s.SequentialLR(o, [s.StepLR(o, 1)], [3]),
        "expected 0 milestones for 1 schedulers, got 1",
    ),
    "nothing": (lambda s, o: s.ChainedScheduler([]), "ChainedScheduler: expected at least one scheduler, got none"),
    "plateau": (lambda s, o: s.ChainedScheduler([s.ReduceLROnPlateau(o)]), r"step\(\) requires a metric"),
    "other": (lambda s, o: s.SequentialLR(optimizer(gt), [s.StepLR(o, 1)], []), "0 has another optimizer"),
    "last epoch": (lambda s, o: s.StepLR(o, 1, last_epoch=3), "group 0 has no initial_lr"),
    "mode": (lambda s, o: s.ReduceLROnPlateau(o, mode="low"), "mode must be 'min' or 'max', got 'low'"),
    "factor": (lambda s, o: s.ReduceLROnPlateau(o, factor=1.0), "factor must be below 1, got 1.0"),
    "swa": (lambda s, o: gt.optim.swa_utils.SWALR(o, 0.1, anneal_strategy="x"), "must be 'cos' or 'linear', got 'x'"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_schedules_refuse(make: Callable[[Any, Any], Any], message: str, session: Session) -> None:
    with pytest.raises(ValueError, match=message):
        make(gt.optim.lr_scheduler, optimizer(gt))


def test_steps_in_the_wrong_order_are_warned_of(session: Session) -> None:
    opt = optimizer(gt)
    schedule = gt.optim.lr_scheduler.StepLR(opt, 3)
    with pytest.warns(UserWarning, match="before optimizer.step"):
        schedule.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schedule.step()


def test_a_schedule_is_stepped_outside_of_a_function(session: Session) -> None:
    opt = optimizer(gt)
    schedule = gt.optim.lr_scheduler.StepLR(opt, 3)
    with pytest.raises(FunctionError, match=r"call step\(\) outside of the @gt.function"):
        gt.function(lambda: schedule.step())()
