"""Adam and AdamW."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gt.client import creation
from gt.client.recorder import apply
from gt.client.tensor import Tensor
from gt.client.tree import Kind
from gt.errors import ArgumentError
from gt.ops import TABLE
from gt.optim.optimizer import Optimizer, count_step, counted, live, setting

_ADAMW = Kind(TABLE["adamw"], {})


class AdamW(Optimizer):
    """Adam with weight decay apart from the gradient; one instruction per parameter."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        maximize: bool = False,
    ) -> None:
        if lr < 0 or eps < 0 or weight_decay < 0 or not all(0 <= b < 1 for b in betas):
            raise ArgumentError(f"AdamW: lr={lr}, betas={betas}, eps={eps}, weight_decay={weight_decay}: out of range")
        super().__init__(
            params, {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay, "maximize": maximize}
        )

    def _init_state(self, p: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        return {"step": 0, "exp_avg": creation.zeros_like(p), "exp_avg_sq": creation.zeros_like(p)}

    def _update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        if group["maximize"]:
            g = -g
        m, v = state["exp_avg"], state["exp_avg_sq"]
        beta1, beta2 = live(lambda: group["betas"][0]), live(lambda: group["betas"][1])
        new_p, new_m, new_v = apply(
            _ADAMW,
            (
                p,
                g,
                m,
                v,
                setting(group, "lr"),
                beta1,
                beta2,
                setting(group, "eps"),
                self._decay(group),
                count_step(state),
            ),
        )
        counted(state)
        p._write(new_p)
        m._write(new_m)
        v._write(new_v)

    def _decay(self, group: dict[str, Any]) -> Any:
        return setting(group, "weight_decay")


class Adam(AdamW):
    """Adam; weight decay is added to the gradient."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, maximize=maximize)

    def _update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        if group["weight_decay"]:
            decay = p * setting(group, "weight_decay")
            g = g - decay if group["maximize"] else g + decay
        super()._update(p, g, state, group)

    def _decay(self, group: dict[str, Any]) -> Any:
        return 0.0
