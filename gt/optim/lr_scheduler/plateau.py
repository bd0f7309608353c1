"""A scheduler that reduces the learning rate when a metric stops improving."""

from __future__ import annotations

import math
import warnings
from typing import Any

from gt.client.compat.checks import one_of
from gt.errors import ArgumentError
from gt.optim.lr_scheduler.schedule import EPOCH_WARNING, LRScheduler, check_not_traced, check_optimizer, per_group
from gt.optim.optimizer import Optimizer


class ReduceLROnPlateau(LRScheduler):
    """Multiplies the rates by factor when a metric has not improved for more than `patience` epochs."""

    def __init__(
        self, optimizer: Optimizer, mode: str = "min", factor: float = 0.1, patience: int = 10,
        threshold: float = 1e-4, threshold_mode: str = "rel", cooldown: int = 0, min_lr: float | list[float] = 0,
        eps: float = 1e-8,
    ) -> None:  # fmt: skip
        check_optimizer(self, optimizer)
        if factor >= 1:
            raise ArgumentError(f"ReduceLROnPlateau: factor must be below 1, got {factor}")
        one_of("ReduceLROnPlateau", "mode", mode, "min", "max")
        one_of("ReduceLROnPlateau", "threshold_mode", threshold_mode, "rel", "abs")
        self.optimizer, self.factor, self.patience, self.cooldown, self.eps = optimizer, factor, patience, cooldown, eps
        self.default_min_lr = None if isinstance(min_lr, (list, tuple)) else min_lr
        self.min_lrs = per_group("min_lr", optimizer, min_lr)
        self.mode, self.threshold, self.threshold_mode = mode, threshold, threshold_mode
        self.last_epoch = 0
        self._last_lr = self._current()
        self._reset()

    def _reset(self) -> None:
        """Forget all metrics so far."""
        self.mode_worse = math.inf if self.mode == "min" else -math.inf
        self.best = self.mode_worse
        self.cooldown_counter = 0
        self.num_bad_epochs = 0

    def step(self, metrics: Any, epoch: int | None = None) -> None:  # type: ignore[override]  # as in torch
        """Take the metric of the epoch into account. Waits for it if it is a tensor."""
        check_not_traced(self)
        current = float(metrics)
        if epoch is None:
            epoch = self.last_epoch + 1
        else:
            warnings.warn(EPOCH_WARNING, stacklevel=2)
        self.last_epoch = epoch
        if self._is_better(current, self.best):
            self.best = current
            self.num_bad_epochs = 0
        else:
            self.num_bad_epochs += 1
        if self.in_cooldown:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce()
            self.cooldown_counter = self.cooldown
            self.num_bad_epochs = 0
        self._last_lr = self._current()

    def _reduce(self) -> None:
        groups = self.optimizer.param_groups
        if len(groups) != len(self.min_lrs):
            if self.default_min_lr is None:
                raise ArgumentError(
                    f"ReduceLROnPlateau: {len(self.min_lrs)} min_lrs for {len(groups)} parameter groups; set min_lrs "
                    "after adding a group"
                )
            self.min_lrs = [self.default_min_lr] * len(groups)
        for group, least in zip(groups, self.min_lrs, strict=True):
            lr = max(group["lr"] * self.factor, least)
            if group["lr"] - lr > self.eps:
                group["lr"] = lr

    @property
    def in_cooldown(self) -> bool:
        return self.cooldown_counter > 0

    def _is_better(self, a: float, best: float) -> bool:
        sign = 1 if self.mode == "max" else -1
        if self.threshold_mode == "abs":
            return sign * a > sign * best + self.threshold
        return sign * a > sign * (best * (1.0 + sign * self.threshold))
