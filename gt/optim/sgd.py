"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gt.client import creation
from gt.client.recorder import apply
from gt.client.tensor import Tensor
from gt.client.tree import Kind, Kinds
from gt.errors import ArgumentError
from gt.ops import TABLE
from gt.optim.optimizer import Optimizer, count_step, counted, live, setting

_SGD = Kind(TABLE["sgd"], {})
_MOMENTUM = Kinds(TABLE["sgd_momentum"], "nesterov")


class SGD(Optimizer):
    """Gradient descent, with momentum and weight decay if asked for."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        if lr < 0 or momentum < 0 or weight_decay < 0:
            raise ArgumentError(f"SGD: lr={lr}, momentum={momentum}, weight_decay={weight_decay}: out of range")
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ArgumentError("SGD: nesterov needs a momentum and no dampening")
        super().__init__(
            params,
            {
                "lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay,
                "nesterov": nesterov, "maximize": maximize,
            },
        )  # fmt: skip

    def _init_state(self, p: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        return {"step": 0, "momentum_buffer": creation.zeros_like(p)} if group["momentum"] else {}

    def _update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        if group["maximize"]:
            g = -g
        lr, decay = setting(group, "lr"), setting(group, "weight_decay")
        if not group["momentum"]:
            p._write(apply(_SGD, (p, g, lr, decay)))
            return
        buf = state["momentum_buffer"]
        count_step(state)
        # torch's first step takes the gradient itself as the buffer: no dampening then.
        dampening = live(lambda: 0.0 if state["step"] == 1 else float(group["dampening"]))
        new_p, new_buf = apply(
            _MOMENTUM[bool(group["nesterov"])], (p, g, buf, lr, decay, setting(group, "momentum"), dampening)
        )
        counted(state)
        p._write(new_p)
        buf._write(new_buf)
