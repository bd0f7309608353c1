"""Optimizers that see a parameter as a matrix: Adafactor, which keeps squares by row and column, and Muon, which makes
the step orthogonal. Their steps are recorded as plain ops, without an op of their own."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from gt.client.functions import elementwise as ew
from gt.client.functions.casts import finfo
from gt.client.functions.creation import zeros
from gt.client.tensor import Tensor
from gt.errors import ArgumentError
from gt.optim.optimizer import Group, Layout, Optimizer, State, Update, defaults
from gt.optim.recording import InStep, advance, counting, flag, gradient, settings, shared


def _root_mean_square(x: Any) -> Any:
    return x.norm() / math.sqrt(x.numel())


class Adafactor(Optimizer):
    """Steps divided by the root of a mean of squared gradients, of which matrices keep the means of rows and columns.
    The step size is relative to that of the parameter."""

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-2, beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3), d: float = 1.0, weight_decay: float = 0.0, *,
        foreach: bool | None = None, maximize: bool = False,
    ) -> None:  # fmt: skip
        if beta2_decay > 0 or d < 1 or eps[1] < 0 or (eps[0] or 0) < 0:
            raise ArgumentError(
                f"Adafactor: beta2_decay must be <= 0, d >= 1, and eps >= 0, got {beta2_decay}, {d} and {eps}"
            )
        super().__init__(params, defaults(self, locals(), "lr", "weight_decay"))

    def _layout(self, group: Group) -> Layout:
        return {"step": 0}, {}

    def _complete(self, p: Tensor, state: State, numbers: dict[str, float], tensors: dict[str, float]) -> None:
        super()._complete(p, state, numbers, tensors)
        shapes = {"variance": tuple(p.shape)}
        if p.ndim > 1:
            shapes = {"row_var": (*p.shape[:-1], 1), "col_var": (*p.shape[:-2], 1, p.shape[-1])}
        for name, shape in shapes.items():
            if name not in state:
                state[name] = zeros(*shape, dtype=p.dtype)

    def _updater(self, group: Group) -> Update:
        own, in_step, decays = gradient(group, coupled=False), InStep(self), flag(group, "weight_decay")
        kept, clip = shared(lambda: (1 - float(group["lr"]) * float(group["weight_decay"]), float(group["d"])))
        eps1, eps2 = group["eps"]

        def update(p: Tensor, g: Tensor, state: State) -> None:
            def numbers() -> tuple[float, float]:
                n = state["step"]
                return float(n) ** float(group["beta2_decay"]), min(float(group["lr"]), n**-0.5)

            with advance(counting(state)):
                weight, rate = in_step(state, numbers)
                g = own(p, g)
                least = finfo(p.dtype).eps if eps1 is None else eps1
                size = _root_mean_square(p).clamp(min=eps2) * rate
                if decays:
                    p.mul_(kept)
                if g.ndim > 1:
                    rows, columns = state["row_var"], state["col_var"]
                    rows.copy_(rows + ((g * g).mean(-1, keepdim=True) - rows) * weight)
                    columns.copy_(columns + ((g * g).mean(-2, keepdim=True) - columns) * weight)
                    squares = rows @ columns / rows.mean(-2, keepdim=True).clamp(min=least)
                else:
                    squares = state["variance"]
                    squares.copy_(squares + (g * g - squares) * weight)
                step = ew.rsqrt(squares.clamp(min=least * least)) * g
                step = step / (_root_mean_square(step) / clip).clamp(min=1.0)
                p.sub_(step * size)

        return update


class Muon(Optimizer):
    """Momentum whose matrix is made nearly orthogonal in each step, for the matrices of hidden layers."""

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, weight_decay: float = 0.1, momentum: float = 0.95,
        nesterov: bool = True, ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315),
        eps: float = 1e-7, ns_steps: int = 5, adjust_lr_fn: str | None = None,
    ) -> None:  # fmt: skip
        if adjust_lr_fn not in (None, "original", "match_rms_adamw"):
            raise ArgumentError(f"Muon: adjust_lr_fn must be 'original' or 'match_rms_adamw', got {adjust_lr_fn!r}")
        super().__init__(params, defaults(self, locals(), "lr", "weight_decay", "momentum"))

    _initial_state = {}, {"momentum_buffer": 0.0}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of matrices with its own settings."""
        super().add_param_group(param_group)
        for p in self.param_groups[-1]["params"]:
            if p.ndim != 2:
                raise ArgumentError(f"Muon: expected matrices, got a parameter of shape {tuple(p.shape)}")

    def _updater(self, group: Group) -> Update:
        lr, momentum = settings(group, "lr", "momentum")
        (kept,) = shared(lambda: (1 - float(group["lr"]) * float(group["weight_decay"]),))
        nesterov = flag(group, "nesterov")

        def update(p: Tensor, g: Tensor, state: State) -> None:
            buffer = state["momentum_buffer"]
            buffer.copy_(g + (buffer - g) * momentum)
            step = g + (buffer - g) * momentum if nesterov else buffer
            rows, columns = p.shape
            scale = math.sqrt(max(1, rows / columns))
            if group["adjust_lr_fn"] == "match_rms_adamw":
                scale = 0.2 * math.sqrt(max(rows, columns))
            made = _orthogonal(step, group["ns_coefficients"], int(group["ns_steps"]), float(group["eps"]))
            p.copy_(p * kept - made.to(p.dtype) * scale * lr)

        return update


def _orthogonal(x: Any, coefficients: Any, steps: int, eps: float) -> Any:
    """Nearly U V.T of the singular value decomposition U S V.T, by an iteration of Newton and Schulz in bfloat16."""
    a, b, c = coefficients
    tall = x.shape[0] > x.shape[1]
    x = x.bfloat16()
    x = x.t() if tall else x
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.t()
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.t() if tall else x
