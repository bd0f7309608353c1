"""Schedules made of schedules: one after the other, or all at once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from gt.errors import ArgumentError
from gt.optim.lr_scheduler.plateau import ReduceLROnPlateau
from gt.optim.lr_scheduler.schedule import LRScheduler
from gt.optim.optimizer import Optimizer


def _check(name: str, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None) -> Optimizer:
    """They are schedules of one optimizer, which is returned."""
    if not schedulers:
        raise ArgumentError(f"{name}: needs at least one schedule")
    for i, s in enumerate(schedulers):
        if isinstance(s, ReduceLROnPlateau):
            raise ArgumentError(f"{name}: schedule {i} is a ReduceLROnPlateau, whose step() needs a metric")
        if not hasattr(s, "optimizer"):
            raise ArgumentError(f"{name}: schedule {i} has no optimizer; it is a {type(s).__name__}")
        if s.optimizer is not (optimizer := optimizer or s.optimizer):
            raise ArgumentError(f"{name}: schedule {i} belongs to another optimizer")
    assert optimizer is not None
    return optimizer


class _Compound(LRScheduler):
    """What both have in common: their state is that of their parts."""

    _schedulers: Sequence[LRScheduler]

    def state_dict(self) -> dict[str, Any]:
        """All but the optimizer, with the states of the parts."""
        return {**super().state_dict(), "_schedulers": [s.state_dict() for s in self._schedulers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state, GT's or torch's."""
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "_schedulers"})
        for s, state in zip(self._schedulers, state_dict["_schedulers"], strict=True):
            s.load_state_dict(state)


class SequentialLR(_Compound):
    """One schedule after the other; each begins anew at its milestone."""

    def __init__(
        self, optimizer: Optimizer, schedulers: list[LRScheduler], milestones: list[int], last_epoch: int = -1
    ) -> None:
        self.optimizer = _check("SequentialLR", schedulers, optimizer)
        if len(milestones) != len(schedulers) - 1:
            raise ArgumentError(f"SequentialLR: {len(milestones)} milestones between {len(schedulers)} schedules")
        self._schedulers = schedulers
        self._milestones = milestones
        self.last_epoch = last_epoch + 1
        # Each part has set its own first rate when it was made: back to the beginning, for the first part alone.
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"]
        self.recursive_undo()
        first = schedulers[bisect_right(milestones, 0)]
        first._initial_step()
        self._last_lr = first.get_last_lr()

    def recursive_undo(self, sched: Any = None) -> None:
        """Take back the step that each part took when it was made."""
        sched = self if sched is None else sched
        if hasattr(sched, "_schedulers"):
            for s in sched._schedulers:
                self.recursive_undo(s)
        elif hasattr(sched, "last_epoch"):
            sched.last_epoch -= 1

    def step(self) -> None:  # type: ignore[override]  # as in torch
        """Set the rates for the next epoch."""
        self.last_epoch += 1
        i = bisect_right(self._milestones, self.last_epoch)
        now = self._schedulers[i]
        if i > 0 and self._milestones[i - 1] == self.last_epoch:
            now._update_lr(0)
        else:
            now.step()
        self._last_lr = now.get_last_lr()


class ChainedScheduler(_Compound):
    """All schedules at once, one changing what the other has set."""

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None) -> None:
        self.optimizer = _check("ChainedScheduler", schedulers, optimizer)
        self._schedulers = schedulers
        self._last_lr = self._current()

    def step(self) -> None:  # type: ignore[override]  # as in torch
        """Set the rates for the next epoch."""
        for s in self._schedulers:
            s.step()
        self._last_lr = self._current()
