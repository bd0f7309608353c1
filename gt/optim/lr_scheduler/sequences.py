"""Schedulers composed of schedulers: one after the other, or all at once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from gt.errors import ArgumentError
from gt.optim.lr_scheduler.plateau import ReduceLROnPlateau
from gt.optim.lr_scheduler.schedule import LRScheduler
from gt.optim.optimizer import Optimizer


def _check(name: str, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None) -> Optimizer:
    """The one optimizer of all schedulers."""
    if not schedulers:
        raise ArgumentError(f"{name}: expected at least one scheduler, got none")
    for i, s in enumerate(schedulers):
        if isinstance(s, ReduceLROnPlateau):
            raise ArgumentError(f"{name}: scheduler {i} is a ReduceLROnPlateau, whose step() requires a metric")
        if not hasattr(s, "optimizer"):
            raise ArgumentError(f"{name}: expected a scheduler with an optimizer at {i}, got {type(s).__name__}")
        if s.optimizer is not (optimizer := optimizer or s.optimizer):
            raise ArgumentError(f"{name}: scheduler {i} has another optimizer; all must have the same")
    assert optimizer is not None
    return optimizer


class _Compound(LRScheduler):
    """A scheduler whose state contains the states of its schedulers."""

    _schedulers: Sequence[LRScheduler]

    def state_dict(self) -> dict[str, Any]:
        """All attributes except the optimizer, with the states of the schedulers."""
        return {**super().state_dict(), "_schedulers": [s.state_dict() for s in self._schedulers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, of GT or torch."""
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "_schedulers"})
        for s, state in zip(self._schedulers, state_dict["_schedulers"], strict=True):
            s.load_state_dict(state)


class SequentialLR(_Compound):
    """Runs schedulers one after the other; each starts at its milestone."""

    def __init__(
        self, optimizer: Optimizer, schedulers: list[LRScheduler], milestones: list[int], last_epoch: int = -1
    ) -> None:
        self.optimizer = _check("SequentialLR", schedulers, optimizer)
        if len(milestones) != len(schedulers) - 1:
            n = len(schedulers)
            raise ArgumentError(f"SequentialLR: expected {n - 1} milestones for {n} schedulers, got {len(milestones)}")
        self._schedulers, self._milestones = schedulers, milestones
        self.last_epoch = last_epoch + 1
        # Every scheduler has set its initial rate when it was created: undo that, for all but the first.
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"]
        self.recursive_undo()
        first = schedulers[bisect_right(milestones, 0)]
        first._initial_step()
        self._last_lr = first.get_last_lr()

    def recursive_undo(self, sched: Any = None) -> None:
        """Undo the step that each scheduler took when it was created."""
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
    """Runs all schedulers at each step; each changes the rate that the one before has set."""

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None) -> None:
        self.optimizer = _check("ChainedScheduler", schedulers, optimizer)
        self._schedulers = schedulers
        self._last_lr = self._current()

    def step(self) -> None:  # type: ignore[override]  # as in torch
        """Set the rates for the next epoch."""
        for s in self._schedulers:
            s.step()
        self._last_lr = self._current()
