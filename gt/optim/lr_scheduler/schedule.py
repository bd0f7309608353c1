"""The base of all schedulers: they set the groups' learning rates, which are passed by value, so no program changes."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from gt.client.programs.pending import in_use
from gt.client.tensor import Tensor
from gt.errors import ArgumentError, FunctionError
from gt.optim.optimizer import Optimizer

EPOCH_WARNING = "step(epoch) is deprecated: it uses a closed form for the rate; call step() once per epoch instead"


def per_group(name: str, optimizer: Optimizer, value: Any) -> list[Any]:
    """One value per group, given as a list or as one value for all."""
    groups = len(optimizer.param_groups)
    if not isinstance(value, (list, tuple)):
        return [value] * groups
    if len(value) != groups:
        raise ArgumentError(f"{name}: expected one value or {groups}, one per parameter group, got {len(value)}")
    return list(value)


def check_optimizer(scheduler: Any, optimizer: Any) -> None:
    if not isinstance(optimizer, Optimizer):
        raise ArgumentError(f"{type(scheduler).__name__}: expected an optimizer, got {type(optimizer).__name__}")


def check_not_traced(scheduler: Any) -> None:
    """A replay would not run the scheduler's Python code, and the rates would never change."""
    rec = in_use()
    if rec is not None and rec.trace is not None:
        raise FunctionError(
            f"{type(scheduler).__name__}: call step() outside of the @gt.function; its replays read the new rates"
        )


def saved_function(f: Any) -> dict[str, Any] | None:
    """A user's function as part of a state: its attributes if it is a callable object, else None."""
    return None if isinstance(f, types.FunctionType) else dict(f.__dict__)


class LRScheduler:
    """The base of all schedulers. A subclass defines `get_lr()`: the rates for `last_epoch`, one per group."""

    _get_lr_called_within_step: bool = False  #: Whether step() is calling get_lr().
    _is_initial: bool = False  #: Whether the constructor is calling step().

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        check_optimizer(self, optimizer)
        self.optimizer = optimizer
        for i, group in enumerate(optimizer.param_groups):
            if isinstance(group["lr"], Tensor):
                raise ArgumentError(f"{type(self).__name__}: lr of group {i} must be a Python number, got a tensor")
            if last_epoch == -1:
                group.setdefault("initial_lr", group["lr"])
            elif "initial_lr" not in group:
                raise ArgumentError(
                    f"{type(self).__name__}: last_epoch={last_epoch} resumes an earlier run, but group {i} has no "
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
        """All attributes except the optimizer."""
        return {k: v for k, v in self.__dict__.items() if k != "optimizer"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, of GT or torch."""
        self.__dict__.update(state_dict)

    def get_last_lr(self) -> list[float]:
        """The last rates set."""
        return self._last_lr

    def get_lr(self) -> list[float]:
        """The rates for `last_epoch`."""
        raise NotImplementedError(f"{type(self).__name__} has no get_lr()")

    def step(self, epoch: int | None = None) -> None:
        """Set the rates for the next epoch."""
        check_not_traced(self)
        if self._step_count == 1 and not self.optimizer._opt_called:
            warnings.warn(
                "lr_scheduler.step() was called before optimizer.step(), which skips the first rate of the schedule; "
                "call optimizer.step() first",
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

    # --- for get_lr() ---

    def _current(self) -> list[float]:
        """The current rates."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def _times(self, factor: float) -> list[float]:
        """The current rates times a factor."""
        return [lr * factor for lr in self._current()]

    def _from_base(self, f: Callable[[float], float]) -> list[float]:
        """A function of each group's initial rate."""
        return [f(lr) for lr in self.base_lrs]
