"""Mixed precision, named as in torch.amp: `autocast`, and a GradScaler for gradients that underflow in float16.

bfloat16, the default of autocast, has the range of float32 and needs no scaler.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gt import dtypes
from gt.client.compat.arguments import rebuilt
from gt.client.compat.autocast import autocast, is_autocast_enabled
from gt.client.functions import elementwise, shapes
from gt.client.grad.modes import set_grad
from gt.client.tensor import Tensor
from gt.errors import ArgumentError, AutogradError
from gt.optim.optimizer import Optimizer

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd", "is_autocast_available"]


def is_autocast_available(device_type: str) -> bool:
    """Whether autocast is available: always, on any device."""
    return True


def custom_fwd(fwd: Any = None, *, device_type: str = "cuda", cast_inputs: Any = None) -> Any:
    """A decorator for the forward of a `Function`: with cast_inputs, floating-point arguments are cast to this dtype
    and autocast is off inside, if it is on outside."""
    if fwd is None:
        return functools.partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)

    def cast(x: Any) -> Any:
        return x.to(cast_inputs) if isinstance(x, Tensor) and x.dtype.is_floating_point else x

    @functools.wraps(fwd)
    def run(*args: Any, **kwargs: Any) -> Any:
        if cast_inputs is None or not is_autocast_enabled(device_type):
            return fwd(*args, **kwargs)
        with autocast(device_type, enabled=False):
            return fwd(*map(cast, args), **{k: cast(v) for k, v in kwargs.items()})

    return run


def custom_bwd(bwd: Any = None, *, device_type: str = "cuda") -> Any:
    """A decorator for the backward of a `Function`: the function itself."""
    return functools.partial(custom_bwd, device_type=device_type) if bwd is None else bwd


@dataclass(slots=True, eq=False)
class _Progress:
    """The state of an optimizer since the last update()."""

    found: Tensor | None = None  #: Set by unscale_(): whether some gradient is not finite.
    infinite: bool | None = None  #: The same as a bool, once fetched.
    stepped: bool = False

    def skip(self) -> bool:
        """Whether some gradient is not finite. Waits for the answer once."""
        if self.infinite is None:
            self.infinite = self.found is not None and bool(self.found)
        return self.infinite


class GradScaler:
    """Scales the loss up before backward() and the gradients down before the step. A step whose gradients are not
    finite is skipped, and the scale is reduced. Each step() waits once, to learn whether they are finite."""

    def __init__(
        self, device: str = "cuda", init_scale: float = 2.0**16, growth_factor: float = 2.0,
        backoff_factor: float = 0.5, growth_interval: int = 2000, enabled: bool = True,
    ) -> None:  # fmt: skip
        if enabled and growth_factor <= 1:
            raise ArgumentError(f"GradScaler: growth_factor must be > 1, got {growth_factor}")
        if enabled and backoff_factor >= 1:
            raise ArgumentError(f"GradScaler: backoff_factor must be < 1, got {backoff_factor}")
        self._enabled = enabled
        self._scale = float(init_scale)
        self._growth_factor = growth_factor
        self._backoff_factor = backoff_factor
        self._growth_interval = growth_interval
        self._growth_tracker = 0  #: The number of updates with finite gradients since the scale changed.
        self._scaled = False  #: Whether scale() was called, which the other methods require as in torch.
        self._progress: dict[Optimizer, _Progress] = {}

    def scale(self, outputs: Any) -> Any:
        """Multiply a tensor, or all tensors of an iterable, by the scale."""
        if not self._enabled:
            return outputs
        self._scaled = True
        if isinstance(outputs, Tensor):
            # A scalar loss is scaled in float32, because the scale exceeds the range of float16.
            narrow = outputs.ndim == 0 and outputs.dtype in (dtypes.float16, dtypes.bfloat16)
            return (outputs.float() if narrow else outputs) * self._scale
        if isinstance(outputs, (list, tuple)):
            return rebuilt(outputs, [self.scale(x) for x in outputs])
        if isinstance(outputs, Iterable):
            return map(self.scale, outputs)
        raise ArgumentError(f"GradScaler.scale: expected a tensor or tensors, got {type(outputs).__name__}")

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients by the scale, for code that reads them before the step, such as clipping."""
        if not self._enabled:
            return
        self._check_scaled("unscale_")
        progress = self._of(optimizer)
        if progress.stepped:
            raise AutogradError("unscale_() was called after step(); call it before step(), once per update()")
        if progress.found is not None:
            raise AutogradError("unscale_() was already called on this optimizer since the last update()")
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if not grads:
            raise AutogradError("GradScaler: the optimizer's parameters have no gradients; call backward() first")
        inverse = 1.0 / self._scale
        with set_grad(False):
            for g in grads:
                if g.dtype is dtypes.float16:
                    raise ArgumentError("GradScaler: float16 gradients are not supported; keep parameters in float32")
            progress.found = ~shapes.stack([elementwise.isfinite(g).all() for g in grads]).all()
            for g in grads:
                g.mul_(inverse)

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Call optimizer.step(), unless some gradient is not finite."""
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs or args:
            raise AutogradError("GradScaler.step: closures are not supported; call backward() before it")
        self._check_scaled("step")
        progress = self._of(optimizer)
        if progress.stepped:
            raise AutogradError("step() was already called since the last update()")
        if progress.found is None:
            self.unscale_(optimizer)
        result = None if progress.skip() else optimizer.step(**kwargs)
        progress.stepped = True
        return result

    def update(self, new_scale: Any = None) -> None:
        """Reduce the scale if gradients were not finite; increase it after growth_interval updates with finite ones."""
        if not self._enabled:
            return
        self._check_scaled("update")
        if new_scale is not None:
            self._scale = float(new_scale)
        else:
            unscaled = [p for p in self._progress.values() if p.found is not None]
            if not unscaled:
                raise AutogradError("GradScaler.update: no step() or unscale_() was called since the last update()")
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
        """The current scale; 1 if the scaler is disabled."""
        return self._scale if self._enabled else 1.0

    def get_growth_factor(self) -> float:
        """The factor by which the scale grows."""
        return self._growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Set the factor by which the scale grows."""
        self._growth_factor = new_factor

    def get_backoff_factor(self) -> float:
        """The factor by which the scale is reduced."""
        return self._backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Set the factor by which the scale is reduced."""
        self._backoff_factor = new_factor

    def get_growth_interval(self) -> int:
        """The number of updates with finite gradients after which the scale grows."""
        return self._growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Set the number of updates with finite gradients after which the scale grows."""
        self._growth_interval = new_interval

    def is_enabled(self) -> bool:
        """Whether the scaler is enabled."""
        return self._enabled

    def state_dict(self) -> dict[str, Any]:
        """Scale and settings, in torch's format."""
        if not self._enabled:
            return {}
        return {"scale": self._scale, **{name: getattr(self, f"_{name.lstrip('_')}") for name in _SAVED}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, of GT or torch."""
        if not self._enabled:
            return
        if not state_dict:
            raise AutogradError("GradScaler.load_state_dict: the state is empty; it was saved by a disabled scaler")
        self._scale = float(state_dict["scale"])
        for name in _SAVED:
            setattr(self, f"_{name.lstrip('_')}", state_dict[name])


_SAVED = ("growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")  #: Beside the scale, as in torch.
_LARGEST = 3.4028234663852886e38  #: The largest float32, and so the largest scale.
