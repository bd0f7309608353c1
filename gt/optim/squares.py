"""Optimizers that divide the gradient by the root of a sum or mean of its squares: Adagrad, RMSprop, Adadelta."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gt.client.programs import kinds
from gt.client.tensor import Tensor
from gt.errors import ArgumentError
from gt.optim.optimizer import Group, Layout, Optimizer, State, Update, defaults
from gt.optim.recording import InStep, counting, decided, flag, gradient, settings, shared, take_step


class Adagrad(Optimizer):
    """Steps divided by the root of the sum of all squared gradients."""

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-2, lr_decay: float = 0, weight_decay: float = 0,
        initial_accumulator_value: float = 0, eps: float = 1e-10, foreach: bool | None = None, *,
        maximize: bool = False, differentiable: bool = False, fused: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            params, defaults(self, locals(), "lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps")
        )

    def _layout(self, group: Group) -> Layout:
        return {"step": 0}, {"sum": float(self.defaults["initial_accumulator_value"])}

    def _updater(self, group: Group) -> Update:
        own, numbers, in_step = gradient(group, coupled=False), settings(group, "weight_decay", "eps"), InStep(self)

        def update(p: Tensor, g: Tensor, state: State) -> None:
            def rate() -> tuple[float]:
                return (float(group["lr"]) / (1 + (state["step"] - 1) * float(group["lr_decay"])),)

            total = state["sum"]
            take_step(
                kinds.adagrad, (p, own(p, g), total), lambda: (*in_step(state, rate), *numbers), (p, total),
                counting(state),
            )  # fmt: skip

        return update


class RMSprop(Optimizer):
    """Steps divided by the root of a moving average of the squared gradients."""

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-2, alpha: float = 0.99, eps: float = 1e-8, weight_decay: float = 0,
        momentum: float = 0, centered: bool = False, capturable: bool = False, foreach: bool | None = None,
        maximize: bool = False, differentiable: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, defaults(self, locals(), "lr", "eps", "momentum", "weight_decay", "alpha"))

    def _layout(self, group: Group) -> Layout:
        tensors = {"square_avg": 0.0}
        if group["momentum"] > 0:
            tensors["momentum_buffer"] = 0.0
        if group["centered"]:
            tensors["grad_avg"] = 0.0
        return {"step": 0}, tensors

    def _updater(self, group: Group) -> Update:
        own, centered = gradient(group), flag(group, "centered")
        momentum = bool(decided(lambda: group["momentum"] > 0))
        names = ["square_avg", *(["grad_avg"] if centered else []), *(["momentum_buffer"] if momentum else [])]
        kind = kinds.rmsprop[centered, momentum]

        def read() -> tuple[float, ...]:
            alpha = float(group["alpha"])
            return float(group["lr"]), alpha, 1 - alpha, float(group["eps"]), float(group["momentum"])

        numbers = shared(read)

        def update(p: Tensor, g: Tensor, state: State) -> None:
            means = tuple([state[name] for name in names])
            take_step(kind, (p, own(p, g), *means), lambda: numbers, (p, *means), counting(state))

        return update


class Adadelta(Optimizer):
    """Steps scaled by a moving average of the squared updates over one of the squared gradients."""

    def __init__(
        self, params: Iterable[Any], lr: float = 1.0, rho: float = 0.9, eps: float = 1e-6, weight_decay: float = 0,
        foreach: bool | None = None, *, capturable: bool = False, maximize: bool = False,
        differentiable: bool = False,
    ) -> None:  # fmt: skip
        given = defaults(self, locals(), "lr", "rho", "eps", "weight_decay")
        if rho > 1:
            raise ArgumentError(f"Adadelta: rho must be <= 1, got {rho}")
        super().__init__(params, given)

    _initial_state = {"step": 0}, {"square_avg": 0.0, "acc_delta": 0.0}

    def _updater(self, group: Group) -> Update:
        own = gradient(group)
        numbers = shared(
            lambda: (float(group["lr"]), float(group["rho"]), 1 - float(group["rho"]), float(group["eps"]))
        )

        def update(p: Tensor, g: Tensor, state: State) -> None:
            square, delta = state["square_avg"], state["acc_delta"]
            take_step(
                kinds.adadelta, (p, own(p, g), square, delta), lambda: numbers, (p, square, delta), counting(state)
            )

        return update
