"""Stochastic weight averaging: running averages of a model's parameters, and the learning-rate schedule for them."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any

from gt import dtypes
from gt.client.compat.checks import one_of
from gt.client.functions import creation
from gt.client.grad.modes import set_grad
from gt.client.programs.pending import Value
from gt.client.tensor import Tensor
from gt.errors import ArgumentError
from gt.nn.module import Module
from gt.nn.norm import _BatchNorm
from gt.optim.lr_scheduler.schedule import LRScheduler, per_group
from gt.optim.optimizer import Optimizer

__all__ = [
    "SWALR", "AveragedModel", "get_ema_avg_fn", "get_ema_multi_avg_fn", "get_swa_avg_fn", "get_swa_multi_avg_fn",
    "update_bn",
]  # fmt: skip

#: (average, model's tensor, number of models averaged so far) -> the new average
AvgFn = Callable[[Tensor, Tensor, Any], Tensor]
#: The same for lists of tensors of one dtype, in place.
MultiAvgFn = Callable[[list[Tensor], list[Tensor], Any], None]


def _check_decay(decay: float) -> None:
    if not 0 <= decay <= 1:
        raise ArgumentError(f"EMA: decay must be between 0 and 1, got {decay}")


def get_ema_avg_fn(decay: float = 0.999) -> AvgFn:
    """An exponential moving average, tensor by tensor."""
    _check_decay(decay)

    def ema_update(ema_param: Tensor, current_param: Tensor, num_averaged: Any) -> Tensor:
        with set_grad(False):
            return decay * ema_param + (1 - decay) * current_param

    return ema_update


def get_swa_avg_fn() -> AvgFn:
    """An equal-weight average, tensor by tensor."""

    def swa_update(averaged_param: Tensor, current_param: Tensor, num_averaged: Any) -> Tensor:
        with set_grad(False):
            return averaged_param + (current_param - averaged_param) / (num_averaged + 1)

    return swa_update


def _of_lists(average: AvgFn) -> MultiAvgFn:
    def update(averaged: list[Tensor], current: list[Tensor], num_averaged: Any) -> None:
        with set_grad(False):
            for a, c in zip(averaged, current, strict=True):
                a.copy_(average(a, c, num_averaged))

    return update


def get_ema_multi_avg_fn(decay: float = 0.999) -> MultiAvgFn:
    """An exponential moving average of lists of tensors, in place."""
    return _of_lists(get_ema_avg_fn(decay))


def get_swa_multi_avg_fn() -> MultiAvgFn:
    """An equal-weight average of lists of tensors, in place."""
    return _of_lists(get_swa_avg_fn())


class KnownCount:
    """A count on the worker, and its known value. A copy of the model does not share it, and fetches it again."""

    def __init__(self, value: Value | None = None, count: int = 0) -> None:
        self.value, self.count = value, count

    def __deepcopy__(self, memo: object) -> KnownCount:
        return KnownCount()


class AveragedModel(Module):
    """A copy of a model whose parameters are averages of the model's parameters at each update_parameters()."""

    def __init__(
        self, model: Module, device: Any = None, avg_fn: AvgFn | None = None,
        multi_avg_fn: MultiAvgFn | None = None, use_buffers: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        if avg_fn is not None and multi_avg_fn is not None:
            raise ArgumentError("AveragedModel: expected avg_fn or multi_avg_fn, got both")
        self.module = copy.deepcopy(model)
        self.register_buffer("n_averaged", creation.tensor(0, dtype=dtypes.int64))
        self.avg_fn, self.multi_avg_fn, self.use_buffers = avg_fn, multi_avg_fn, use_buffers
        #: The last known value of n_averaged: while it is current, nothing waits for the worker.
        self._known = KnownCount()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model with the averaged parameters."""
        return self.module(*args, **kwargs)

    def update_parameters(self, model: Module) -> None:
        """Add the model's current parameters to the averages."""
        mine, theirs = ([p.detach() for p in self._averaged(m)] for m in (self.module, model))
        if len(mine) != len(theirs):
            raise ArgumentError(f"update_parameters: expected a model with {len(mine)} tensors, got {len(theirs)}")
        count = self._count()
        with set_grad(False):
            if count == 0:
                for a, c in zip(mine, theirs, strict=True):
                    a.copy_(c)
            elif self.avg_fn is not None:
                for a, c in zip(mine, theirs, strict=True):
                    a.copy_(self.avg_fn(a, c, self.n_averaged))
            else:
                average = self.multi_avg_fn or get_swa_multi_avg_fn()
                for dtype in dict.fromkeys(a.dtype for a in mine):
                    pairs = [(a, c) for a, c in zip(mine, theirs, strict=True) if a.dtype is dtype]
                    average([a for a, _ in pairs], [c for _, c in pairs], self.n_averaged)
            if not self.use_buffers:
                for a, c in zip(self.module.buffers(), model.buffers(), strict=True):
                    a.detach().copy_(c.detach())
            self.n_averaged += 1
        self._known = KnownCount(self._value(), count + 1)

    def _averaged(self, model: Module) -> Iterable[Tensor]:
        return itertools.chain(model.parameters(), model.buffers()) if self.use_buffers else model.parameters()

    def _value(self) -> Value:
        n: Tensor = self.n_averaged
        return n._v or n._read()

    def _count(self) -> int:
        """n_averaged as a number. Waits only if other code has set it."""
        if self._known.value is self._value():
            return self._known.count
        return int(self.n_averaged.item())


def update_bn(loader: Iterable[Any], model: Module, device: Any = None) -> None:
    """Recompute the running statistics of the model's batch norms from all batches of a loader."""
    momenta = {m: m.momentum for m in model.modules() if isinstance(m, _BatchNorm)}
    if not momenta:
        return
    training = model.training
    model.train()
    for m in momenta:
        m.reset_running_stats()
        m.momentum = None
    try:
        with set_grad(False):
            for batch in loader:
                model(batch[0] if isinstance(batch, (list, tuple)) else batch)
    finally:
        for m, momentum in momenta.items():
            m.momentum = momentum
        model.train(training)


class SWALR(LRScheduler):
    """Anneals the learning rate to swa_lr in anneal_epochs epochs, then keeps it."""

    def __init__(
        self, optimizer: Optimizer, swa_lr: float | list[float], anneal_epochs: int = 10,
        anneal_strategy: str = "cos", last_epoch: int = -1,
    ) -> None:  # fmt: skip
        one_of("SWALR", "anneal_strategy", anneal_strategy, "cos", "linear")
        if not isinstance(anneal_epochs, int) or anneal_epochs < 0:
            raise ArgumentError(f"SWALR: anneal_epochs must be an integer >= 0, got {anneal_epochs}")
        for group, lr in zip(optimizer.param_groups, per_group("swa_lr", optimizer, swa_lr), strict=True):
            group["swa_lr"] = lr
        self._anneal_strategy, self.anneal_epochs = anneal_strategy, anneal_epochs
        super().__init__(optimizer, last_epoch)

    def _part(self, step: int) -> float:
        """The fraction of the annealing after that many steps."""
        t = max(0.0, min(1.0, step / max(1, self.anneal_epochs)))
        return t if self._anneal_strategy == "linear" else (1 - math.cos(math.pi * t)) / 2

    def get_lr(self) -> list[float]:
        step = self._step_count - 1
        if self.anneal_epochs == 0:
            step = max(1, step)
        before, now = self._part(step - 1), self._part(step)
        lrs = []
        for group in self.optimizer.param_groups:
            end = group["swa_lr"]
            # The current rate is between start and end: solve for start.
            start = end if before == 1 else (group["lr"] - before * end) / (1 - before)
            lrs.append(end * now + start * (1 - now))
        return lrs
