"""Mixed precision, named as in torch.amp: `autocast`, and a GradScaler for gradients that float16 would lose.

bfloat16, autocast's default, has float32's range and needs no scaler.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from gt import dtypes
from gt.client.compat.autocast import autocast
from gt.client.functions import elementwise, shapes
from gt.client.grad.modes import set_grad
from gt.client.tensor import Tensor
from gt.errors import ArgumentError, AutogradError
from gt.optim.optimizer import Optimizer

__all__ = ["GradScaler", "autocast", "is_autocast_available"]


def is_autocast_available(device_type: str) -> bool:
    """Whether autocast can be used: always, whatever device a worker has."""
    return True


class _Progress:
    """What was done with an optimizer since the last update()."""

    __slots__ = ("found", "infinite", "stepped")

    def __init__(self) -> None:
        self.found: Tensor | None = None  #: Set by unscale_(): whether some gradient is not finite.
        self.infinite: bool | None = None  #: The same, once it was waited for.
        self.stepped = False

    def skip(self) -> bool:
        """Whether the gradients are useless. Waits for them, once."""
        if self.infinite is None:
            self.infinite = self.found is not None and bool(self.found)
        return self.infinite


class GradScaler:
    """Scales a loss up before backward() and its gradients down before the step; a step whose gradients are not
    finite is skipped, and the scale lowered. Each step() waits once, for whether they are."""

    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        if enabled and growth_factor <= 1:
            raise ArgumentError(f"GradScaler: growth_factor={growth_factor} is not above 1")
        if enabled and backoff_factor >= 1:
            raise ArgumentError(f"GradScaler: backoff_factor={backoff_factor} is not below 1")
        self._enabled = enabled
        self._scale = float(init_scale)
        self._growth_factor = growth_factor
        self._backoff_factor = backoff_factor
        self._growth_interval = growth_interval
        self._growth_tracker = 0  #: Updates without an infinite gradient since the scale last changed.
        self._scaled = False  #: scale() was called: torch makes the scale then, and refuses to go on without.
        self._progress: dict[Optimizer, _Progress] = {}

    def scale(self, outputs: Any) -> Any:
        """The tensor, or all tensors of a list, times the scale."""
        if not self._enabled:
            return outputs
        self._scaled = True
        if isinstance(outputs, Tensor):
            # A loss of one element is scaled in float32, since the scale is more than float16 can hold.
            narrow = outputs.ndim == 0 and outputs.dtype in (dtypes.float16, dtypes.bfloat16)
            return (outputs.float() if narrow else outputs) * self._scale
        if isinstance(outputs, (list, tuple)):
            return type(outputs)([self.scale(x) for x in outputs])
        if isinstance(outputs, Iterable):
            return map(self.scale, outputs)
        raise ArgumentError(f"GradScaler.scale: a tensor or a list of them, not {type(outputs).__name__}")

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients by the scale: for whoever looks at them before the step, as clipping does."""
        if not self._enabled:
            return
        self._check_scaled("unscale_")
        progress = self._of(optimizer)
        if progress.stepped:
            raise AutogradError("unscale_() after step(); it comes before it, once between two calls of update()")
        if progress.found is not None:
            raise AutogradError("unscale_() was called on this optimizer already since the last update()")
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if not grads:
            raise AutogradError("GradScaler: the optimizer's parameters have no gradients; call backward() first")
        inverse = 1.0 / self._scale
        with set_grad(False):
            for g in grads:
                if g.dtype is dtypes.float16:
                    raise ArgumentError("GradScaler: gradients in float16; keep parameters in float32, under autocast")
            progress.found = ~shapes.stack([elementwise.isfinite(g).all() for g in grads]).all()
            for g in grads:
                g.mul_(inverse)

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """The optimizer's step, unless some gradient is not finite."""
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs or args:
            raise AutogradError("GradScaler.step: takes no closure; call backward() before it")
        self._check_scaled("step")
        progress = self._of(optimizer)
        if progress.stepped:
            raise AutogradError("step() was called already since the last update()")
        if progress.found is None:
            self.unscale_(optimizer)
        result = None if progress.skip() else optimizer.step(**kwargs)
        progress.stepped = True
        return result

    def update(self, new_scale: Any = None) -> None:
        """Lower the scale if gradients were not finite; raise it after many updates at which all were."""
        if not self._enabled:
            return
        self._check_scaled("update")
        if new_scale is not None:
            self._scale = float(new_scale)
        else:
            unscaled = [p for p in self._progress.values() if p.found is not None]
            if not unscaled:
                raise AutogradError("GradScaler.update: no step() or unscale_() since the last update()")
            self._adapt(any(p.skip() for p in unscaled))
        self._progress.clear()

    def _adapt(self, infinite: bool) -> None:
        if infinite:
            self._scale *= self._backoff_factor
            self._growth_tracker = 0
            return
        self._growth_tracker += 1
        if self._growth_tracker == self._growth_interval:
            self._growth_tracker = 0
            grown = self._scale * self._growth_factor
            if math.isfinite(grown) and grown <= _LARGEST:
                self._scale = grown

    def _of(self, optimizer: Optimizer) -> _Progress:
        return self._progress.setdefault(optimizer, _Progress())

    def _check_scaled(self, what: str) -> None:
        if not self._scaled:
            raise AutogradError(f"GradScaler.{what}: no loss was scaled; call scaler.scale(loss).backward() first")

    # --- settings ---

    def get_scale(self) -> float:
        """The scale; 1 if the scaler is not enabled."""
        return self._scale if self._enabled else 1.0

    def get_growth_factor(self) -> float:
        """What the scale grows by."""
        return self._growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Set what the scale grows by."""
        self._growth_factor = new_factor

    def get_backoff_factor(self) -> float:
        """What the scale shrinks by."""
        return self._backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Set what the scale shrinks by."""
        self._backoff_factor = new_factor

    def get_growth_interval(self) -> int:
        """After how many good updates the scale grows."""
        return self._growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Set after how many good updates the scale grows."""
        self._growth_interval = new_interval

    def is_enabled(self) -> bool:
        """Whether it does anything."""
        return self._enabled

    def state_dict(self) -> dict[str, Any]:
        """Scale and settings, as torch lays them out."""
        if not self._enabled:
            return {}
        return {
            "scale": self._scale,
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._growth_tracker,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state, GT's or torch's."""
        if not self._enabled:
            return
        if not state_dict:
            raise AutogradError("GradScaler.load_state_dict: the state is empty; it was saved by one not enabled")
        self._scale = float(state_dict["scale"])
        self._growth_factor = state_dict["growth_factor"]
        self._backoff_factor = state_dict["backoff_factor"]
        self._growth_interval = state_dict["growth_interval"]
        self._growth_tracker = state_dict["_growth_tracker"]


_LARGEST = 3.4028234663852886e38  #: Gradients in float32 could not be scaled by more.
