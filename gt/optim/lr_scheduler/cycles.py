"""Cyclic schedulers; some cycle the momentum inversely to the rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gt.client.compat.checks import one_of
from gt.errors import ArgumentError
from gt.optim.lr_scheduler.schedule import LRScheduler, check_not_traced, check_optimizer, per_group, saved_function
from gt.optim.optimizer import Group, Optimizer


class CosineAnnealingWarmRestarts(LRScheduler):
    """Cosine annealing from the initial rate to eta_min with restarts; each cycle is T_mult times longer."""

    def __init__(
        self, optimizer: Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        if not isinstance(T_0, int) or T_0 <= 0:
            raise ArgumentError(f"CosineAnnealingWarmRestarts: T_0 must be a positive integer, got {T_0}")
        if not isinstance(T_mult, int) or T_mult < 1:
            raise ArgumentError(f"CosineAnnealingWarmRestarts: T_mult must be an integer >= 1, got {T_mult}")
        if not isinstance(eta_min, (int, float)):
            raise ArgumentError(f"CosineAnnealingWarmRestarts: eta_min must be a number, got {type(eta_min).__name__}")
        self.T_0, self.T_i, self.T_mult, self.eta_min = T_0, T_0, T_mult, eta_min
        self.T_cur: float = last_epoch
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        height = 1 + math.cos(math.pi * self.T_cur / self.T_i)
        return self._from_base(lambda lr: self.eta_min + (lr - self.eta_min) * height / 2)

    def step(self, epoch: float | None = None) -> None:
        """Set the rates for the next epoch, or for a given one, which may be fractional."""
        check_not_traced(self)
        if epoch is None and self.last_epoch >= 0:
            epoch = self.last_epoch + 1
            self.T_cur += 1
            if self.T_cur >= self.T_i:
                self.T_cur %= self.T_i
                self.T_i *= self.T_mult
        else:
            epoch = epoch or 0
            if epoch < 0:
                raise ArgumentError(f"CosineAnnealingWarmRestarts: epoch must be >= 0, got {epoch}")
            self._go_to(epoch)
        self.last_epoch = math.floor(epoch)
        self._set(self.get_lr())

    def _go_to(self, epoch: float) -> None:
        """Set the cycle that an epoch is in, and the position in it."""
        self.T_i, self.T_cur = self.T_0, epoch
        if epoch < self.T_0:
            return
        if self.T_mult == 1:
            self.T_cur = epoch % self.T_0
        else:
            cycles = int(math.log(epoch / self.T_0 * (self.T_mult - 1) + 1, self.T_mult))
            self.T_cur = epoch - self.T_0 * (self.T_mult**cycles - 1) / (self.T_mult - 1)
            self.T_i = self.T_0 * self.T_mult**cycles


class _Cycling(LRScheduler):
    """A scheduler that also sets the momentum, or the first of the betas."""

    cycle_momentum: bool
    use_beta1: bool

    def _begin_momentum(self, base: Any, top: Any, last_epoch: int) -> tuple[list[float], list[float]]:
        """Set the groups' momentum to its value at the start of the cycle; return its bounds per group."""
        optimizer, name = self.optimizer, type(self).__name__
        if "momentum" not in optimizer.defaults and "betas" not in optimizer.defaults:
            raise ArgumentError(f"{name}: the optimizer has no momentum and no betas; pass cycle_momentum=False")
        self.use_beta1 = "betas" in optimizer.defaults
        bases, tops = per_group("base_momentum", optimizer, base), per_group("max_momentum", optimizer, top)
        if last_epoch == -1:
            for group, low, high in zip(optimizer.param_groups, bases, tops, strict=True):
                self._set_momentum(group, high)
                group["max_momentum"], group["base_momentum"] = high, low
        return bases, tops

    def _set_momentum(self, group: Group, momentum: float) -> None:
        if self.use_beta1:
            group["betas"] = (momentum, *group["betas"][1:])
        else:
            group["momentum"] = momentum


class CyclicLR(_Cycling):
    """Cycles the rate from base_lr to max_lr in step_size_up steps and back in step_size_down."""

    def __init__(
        self, optimizer: Optimizer, base_lr: float | list[float], max_lr: float | list[float],
        step_size_up: int = 2000, step_size_down: int | None = None, mode: str = "triangular", gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None, scale_mode: str = "cycle", cycle_momentum: bool = True,
        base_momentum: float = 0.8, max_momentum: float = 0.9, last_epoch: int = -1,
    ) -> None:  # fmt: skip
        check_optimizer(self, optimizer)
        if mode not in ("triangular", "triangular2", "exp_range") and scale_fn is None:
            raise ArgumentError(f"CyclicLR: mode must be one of triangular, triangular2, exp_range, got {mode!r}")
        self.optimizer = optimizer
        base_lrs = per_group("base_lr", optimizer, base_lr)
        if last_epoch == -1:
            for group, lr in zip(optimizer.param_groups, base_lrs, strict=True):
                group["lr"] = lr
        self.max_lrs = per_group("max_lr", optimizer, max_lr)
        up = float(step_size_up)
        self.total_size = up + (up if step_size_down is None else float(step_size_down))
        self.step_ratio = up / self.total_size
        self.mode, self.gamma, self._scale_fn_custom = mode, gamma, scale_fn
        self.scale_mode = scale_mode if scale_fn else "iterations" if mode == "exp_range" else "cycle"
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            self.base_momentums, self.max_momentums = self._begin_momentum(base_momentum, max_momentum, last_epoch)
        super().__init__(optimizer, last_epoch)
        self.base_lrs = base_lrs

    def scale_fn(self, x: float) -> float:
        """The scale of the cycle, or of the iteration, x."""
        if self._scale_fn_custom is not None:
            return self._scale_fn_custom(x)
        if self.mode == "triangular":
            return 1.0
        return float(1 / 2.0 ** (x - 1) if self.mode == "triangular2" else self.gamma**x)

    def get_lr(self) -> list[float]:
        cycle = math.floor(1 + self.last_epoch / self.total_size)
        x = 1.0 + self.last_epoch / self.total_size - cycle
        height = x / self.step_ratio if x <= self.step_ratio else (x - 1) / (self.step_ratio - 1)
        scale = self.scale_fn(cycle if self.scale_mode == "cycle" else self.last_epoch)
        if self.cycle_momentum:
            groups = zip(self.optimizer.param_groups, self.base_momentums, self.max_momentums, strict=True)
            for group, low, high in groups:
                self._set_momentum(group, high - (high - low) * height * scale)
        return [low + (high - low) * height * scale for low, high in zip(self.base_lrs, self.max_lrs, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        """All attributes except the optimizer and scale_fn; of a callable object its attributes."""
        f = self._scale_fn_custom
        return {**super().state_dict(), "_scale_fn_custom": None if f is None else saved_function(f)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; scale_fn stays."""
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "_scale_fn_custom"})
        if state_dict["_scale_fn_custom"] is not None and self._scale_fn_custom is not None:
            self._scale_fn_custom.__dict__.update(state_dict["_scale_fn_custom"])


#: The phases of a cycle as keys of a parameter group: the rates at its start and end, the momenta at its start and end.
_UP = ("initial_lr", "max_lr", "max_momentum", "base_momentum")
_DOWN = ("max_lr", "initial_lr", "base_momentum", "max_momentum")
_OUT = ("initial_lr", "min_lr", "max_momentum", "max_momentum")
_DOWN_AND_OUT = ("max_lr", "min_lr", "base_momentum", "max_momentum")


class OneCycleLR(_Cycling):
    """The 1cycle policy: up from max_lr / div_factor to max_lr, then down to a lower rate, in total_steps steps."""

    def __init__(
        self, optimizer: Optimizer, max_lr: float | list[float], total_steps: int | None = None,
        epochs: int | None = None, steps_per_epoch: int | None = None, pct_start: float = 0.3,
        anneal_strategy: str = "cos", cycle_momentum: bool = True, base_momentum: float | list[float] = 0.85,
        max_momentum: float | list[float] = 0.95, div_factor: float = 25.0, final_div_factor: float = 1e4,
        three_phase: bool = False, last_epoch: int = -1,
    ) -> None:  # fmt: skip
        check_optimizer(self, optimizer)
        self.optimizer = optimizer
        self.total_steps = _total(total_steps, epochs, steps_per_epoch)
        if not isinstance(pct_start, float) or not 0 <= pct_start <= 1:
            raise ArgumentError(f"OneCycleLR: pct_start must be a float between 0 and 1, got {pct_start}")
        one_of("OneCycleLR", "anneal_strategy", anneal_strategy, "cos", "linear")
        self._anneal_func_type = anneal_strategy
        top, last = float(pct_start * self.total_steps) - 1, self.total_steps - 1
        down = float(2 * pct_start * self.total_steps) - 2
        phases: list[tuple[float, tuple[str, ...]]] = [(top, _UP)]
        phases += [(down, _DOWN), (last, _OUT)] if three_phase else [(last, _DOWN_AND_OUT)]
        keys = ("start_lr", "end_lr", "start_momentum", "end_momentum")
        self._schedule_phases: list[dict[str, Any]] = [
            {"end_step": end, **dict(zip(keys, names, strict=True))} for end, names in phases
        ]
        if last_epoch == -1:
            for group, lr in zip(optimizer.param_groups, per_group("max_lr", optimizer, max_lr), strict=True):
                group["initial_lr"], group["max_lr"] = lr / div_factor, lr
                group["min_lr"] = group["initial_lr"] / final_div_factor
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            self._begin_momentum(base_momentum, max_momentum, last_epoch)
        super().__init__(optimizer, last_epoch)

    def _between(self, start: float, end: float, part: float) -> float:
        if self._anneal_func_type == "cos":
            return end + (start - end) / 2.0 * (1 + math.cos(math.pi * part))
        return (end - start) * part + start

    def get_lr(self) -> list[float]:
        if self.last_epoch > self.total_steps:
            raise ArgumentError(f"OneCycleLR: step {self.last_epoch} is beyond total_steps={self.total_steps}")
        start = 0.0
        for phase in self._schedule_phases:
            if self.last_epoch <= phase["end_step"] or phase is self._schedule_phases[-1]:
                break
            start = phase["end_step"]
        part = (self.last_epoch - start) / (phase["end_step"] - start)
        groups = self.optimizer.param_groups
        if self.cycle_momentum:
            for group in groups:
                ends = group[phase["start_momentum"]], group[phase["end_momentum"]]
                self._set_momentum(group, self._between(*ends, part))
        return [self._between(group[phase["start_lr"]], group[phase["end_lr"]], part) for group in groups]


def _total(total_steps: Any, epochs: Any, steps_per_epoch: Any) -> int:
    given = {"total_steps": total_steps}
    if total_steps is None:
        if epochs is None or steps_per_epoch is None:
            raise ArgumentError("OneCycleLR: expected total_steps, or epochs and steps_per_epoch")
        given = {"epochs": epochs, "steps_per_epoch": steps_per_epoch}
    for name, value in given.items():
        if not isinstance(value, int) or value <= 0:
            raise ArgumentError(f"OneCycleLR: {name} must be a positive integer, got {value}")
    return math.prod(given.values())
