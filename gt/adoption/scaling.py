"""torch.amp.GradScaler with adopted parameters: its two kernels.

The scaler's scale and counts are on the host in a script that adopts a model, and adopted tensors under `gt run`.
"""

from __future__ import annotations

from typing import Any

import torch

import gt
from gt.adoption.tensor import ADOPTED, native


def unscale_(grads: Any, found_inf: Any, inv_scale: Any) -> None:
    """Multiply gradients by a number; found_inf becomes 1 if one of them is not finite. If found_inf is on the host,
    this waits."""
    given, factor = [native(g) for g in grads], native(inv_scale)
    with gt.no_grad():
        infinite = (~gt.stack([gt.isfinite(g).all() for g in given]).all()).float()
        for g in given:
            g.mul_(factor)
        _write(found_inf, gt.maximum(native(found_inf), infinite))


def update_scale_(
    scale: Any, growth_tracker: Any, found_inf: Any, growth_factor: float, backoff_factor: float, growth_interval: int
) -> Any:
    """Reduce the scale if a gradient was not finite; increase it after growth_interval updates with finite ones."""
    s, successes, infinite = native(scale), native(growth_tracker), native(found_inf) > 0
    with gt.no_grad():
        due = successes + 1 == growth_interval
        larger = s * growth_factor
        grown = gt.where(due & gt.isfinite(larger), larger, s)
        _write(growth_tracker, gt.where(infinite | due, 0, successes + 1))
        _write(scale, gt.where(infinite, s * backoff_factor, grown))
    return scale


def _write(x: Any, value: Any) -> None:
    if type(x) in ADOPTED:
        x._gt.copy_(value)
    else:
        with torch._C.DisableTorchFunction():
            x.copy_(value.to(gt.float32).torch())
