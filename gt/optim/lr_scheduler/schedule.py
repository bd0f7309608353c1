"""What schedules have in common: they set the groups' learning rates, which go by value, so no program changes."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from gt.client.programs.pending import in_use
from gt.client.tensor import Tensor
from gt.errors import ArgumentError, FunctionError
from gt.optim.optimizer import Optimizer

EPOCH_WARNING = "step(epoch) goes to that epoch by a formula of its own; call step() once an epoch instead"


def per_group(name: str, optimizer: Optimizer, value: Any) -> list[Any]:
    """One value for each group, given as such a list or as one for all."""
    groups = len(optimizer.param_groups)
    if not isinstance(value, (list, tuple)):
        return [value] * groups
    if len(value) != groups:
        raise ArgumentError(f"{name}: {len(value)} values for {groups} groups of parameters")
    return list(value)


def check_optimizer(scheduler: Any, optimizer: Any) -> None:
    if not isinstance(optimizer, Optimizer):
        raise ArgumentError(f"{type(scheduler).__name__}: takes an optimizer, not {type(optimizer).__name__}")


def check_not_traced(scheduler: Any) -> None:
    """A replay would not run the schedule's Python, and the rates would stand still."""
    rec = in_use()
    if rec is not None and rec.trace is not None:
        raise FunctionError(
            f"{type(scheduler).__name__}: a schedule is stepped outside of a @gt.function; replays read the new rates"
        )


def saved_function(f: Any) -> dict[str, Any] | None:
    """A function of the user's as part of a state: what it remembers, if it is an object."""
    return None if isinstance(f, types.FunctionType) else dict(f.__dict__)


class LRScheduler:
    """The base: a subclass has `get_lr()`, the rates for `last_epoch`, one for each group."""

    #: Whether step() is asking, and whether it is the step that the constructor takes.
    _get_lr_called_within_step: bool = False
    _is_initial: bool = False

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        check_optimizer(self, optimizer)
        self.optimizer = optimizer
        for i, group in enumerate(optimizer.param_groups):
            if isinstance(group["lr"], Tensor):
                raise ArgumentError(f"{type(self).__name__}: lr of group {i} is a tensor; it is a Python number")
            if last_epoch == -1:
                group.setdefault("initial_lr", group["lr"])
            elif "initial_lr" not in group:
                raise ArgumentError(
                    f"{type(self).__name__}: last_epoch={last_epoch} goes on with an earlier run, and group {i} has no "
                    "initial_lr; load the optimizer's state first"
                )
        self.base_lrs: list[float] = [group["initial_lr"] for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self._initial_step()

    def _initial_step(self) -> None:
        """Set the rates for the first epoch."""
        self._step_count = 0
        self._is_initial = True
        try:
            self.step()
        finally:
            self._is_initial = False

    def state_dict(self) -> dict[str, Any]:
        """All but the optimizer."""
        return {k: v for k, v in self.__dict__.items() if k != "optimizer"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state, GT's or torch's."""
        self.__dict__.update(state_dict)

    def get_last_lr(self) -> list[float]:
        """The rates that were set last."""
        return self._last_lr

    def get_lr(self) -> list[float]:
        """The rates for `last_epoch`."""
        raise NotImplementedError(f"{type(self).__name__} has no get_lr()")

    def step(self, epoch: int | None = None) -> None:
        """Set the rates for the next epoch."""
        check_not_traced(self)
        if self._step_count == 1 and not self.optimizer._opt_called:
            warnings.warn(
                "lr_scheduler.step() before optimizer.step(): the first rate of the schedule is never used; call "
                "optimizer.step() first",
                stacklevel=2,
            )
        self._step_count += 1
        if epoch is not None:
            warnings.warn(EPOCH_WARNING, stacklevel=2)
        self._update_lr(epoch)

    def _update_lr(self, epoch: int | None = None) -> None:
        self._get_lr_called_within_step = True
        try:
            if epoch is None:
                self.last_epoch += 1
                lrs = self.get_lr()
            else:
                self.last_epoch = epoch
                lrs = getattr(self, "_get_closed_form_lr", self.get_lr)()
        finally:
            self._get_lr_called_within_step = False
        self._set(lrs)

    def _set(self, lrs: Iterable[float]) -> None:
        for group, lr in zip(self.optimizer.param_groups, lrs, strict=True):
            group["lr"] = lr
        self._last_lr = self._current()

    # --- what get_lr() is written with ---

    def _current(self) -> list[float]:
        """The rates as they are."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def _times(self, factor: float) -> list[float]:
        """The rates as they are, times a factor."""
        return [lr * factor for lr in self._current()]

    def _from_base(self, f: Callable[[float], float]) -> list[float]:
        """A function of each group's first rate."""
        return [f(lr) for lr in self.base_lrs]
