"""Stochastic gradient descent, the same with an average of the parameters, and Rprop: steps by the sign alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gt.client.programs import kinds
from gt.client.tensor import Tensor
from gt.errors import ArgumentError
from gt.optim.optimizer import Group, Layout, Optimizer, State, Update, defaults
from gt.optim.recording import InStep, counting, flag, gradient, live, settings, shared, take_step


class SGD(Optimizer):
    """Stochastic gradient descent, optionally with momentum and weight decay."""

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, momentum: float = 0, dampening: float = 0,
        weight_decay: float = 0, nesterov: bool = False, *, maximize: bool = False, foreach: bool | None = None,
        differentiable: bool = False, fused: bool | None = None,
    ) -> None:  # fmt: skip
        given = defaults(self, locals(), "lr", "momentum", "weight_decay")
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ArgumentError("SGD: nesterov=True requires momentum > 0 and dampening = 0")
        super().__init__(params, given)

    def _layout(self, group: Group) -> Layout:
        return ({"_step": 0}, {"momentum_buffer": 0.0}) if group["momentum"] else ({}, {})

    def _updater(self, group: Group) -> Update:
        numbers, own = settings(group, "lr", "weight_decay"), gradient(group, coupled=False)
        if not flag(group, "momentum"):

            def plain(p: Tensor, g: Tensor, state: State) -> None:
                take_step(kinds.sgd, (p, own(p, g)), lambda: numbers, (p,))

            return plain
        kind, momentum = kinds.sgd_momentum[flag(group, "nesterov")], settings(group, "momentum")
        in_step = InStep(self, "_step")

        def update(p: Tensor, g: Tensor, state: State) -> None:
            def dampening() -> tuple[float]:
                # torch's first step takes the gradient itself as the buffer, without dampening.
                return (0.0 if state["_step"] == 1 else float(group["dampening"]),)

            buf = state["momentum_buffer"]
            take_step(
                kind, (p, own(p, g), buf), lambda: (*numbers, *momentum, *in_step(state, dampening)), (p, buf),
                counting(state, "_step"),
            )  # fmt: skip

        return update

    def _export(self, state: State) -> State:
        return {k: v if state["_step"] else None for k, v in state.items() if k != "_step"}

    def _import(self, saved: State) -> State:
        return {**saved, "_step": int(saved.get("momentum_buffer") is not None)}


class ASGD(Optimizer):
    """Averaged stochastic gradient descent: the mean of the parameters over all steps is `state[p]["ax"]`."""

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-2, lambd: float = 1e-4, alpha: float = 0.75, t0: float = 1e6,
        weight_decay: float = 0, foreach: bool | None = None, maximize: bool = False, differentiable: bool = False,
        capturable: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, defaults(self, locals(), "lr", "weight_decay"))

    def _layout(self, group: Group) -> Layout:
        # `eta` and `mu` are the rates of the next step; `_eta` and `_mu` those of the current one.
        rates = {"eta": float(group["lr"]), "mu": 1.0}
        return {"step": 0, **rates, **{f"_{k}": v for k, v in rates.items()}}, {"ax": 0.0}

    def _updater(self, group: Group) -> Update:
        own = gradient(group)

        def update(p: Tensor, g: Tensor, state: State) -> None:
            def set_rates() -> None:
                step, lr, lambd = state["step"], float(group["lr"]), float(group["lambd"])
                state["eta"] = lr / (1 + lambd * lr * step) ** float(group["alpha"])
                state["mu"] = 1.0 / max(1.0, step - float(group["t0"]))

            def do() -> None:
                if state["step"] == 0:
                    state["eta"] = float(group["lr"])  # a scheduler may have changed it since
                state["_eta"], state["_mu"] = state["eta"], state["mu"]
                state["step"] += 1
                set_rates()

            def undo() -> None:
                state["step"] -= 1
                set_rates()

            def numbers() -> tuple[float, ...]:
                return 1.0 - float(group["lambd"]) * state["_eta"], state["_eta"], 1.0 - state["_mu"]

            mean = state["ax"]
            take_step(kinds.asgd, (p, own(p, g), mean), lambda: live(numbers), (p, mean), (do, undo))

        return update


class Rprop(Optimizer):
    """Resilient backpropagation: every element has its own step size, which grows while its gradient keeps its sign."""

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-2, etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50), *, capturable: bool = False, foreach: bool | None = None,
        maximize: bool = False, differentiable: bool = False,
    ) -> None:  # fmt: skip
        given = defaults(self, locals(), "lr")
        if not 0 < etas[0] < 1 < etas[1]:
            raise ArgumentError(f"Rprop: etas must be (between 0 and 1, above 1), got {etas}")
        super().__init__(params, given)

    def _layout(self, group: Group) -> Layout:
        # The first step adds the learning rate to the step sizes: a scheduler may set that until then.
        return {"step": 0}, {"prev": 0.0, "step_size": 0.0}

    def _updater(self, group: Group) -> Update:
        maximize = flag(group, "maximize")
        limits = shared(lambda: (*map(float, group["etas"]), *map(float, group["step_sizes"])))
        in_step = InStep(self)

        def update(p: Tensor, g: Tensor, state: State) -> None:
            def first() -> tuple[float]:
                return (float(group["lr"]) if state["step"] == 1 else 0.0,)

            before, size = state["prev"], state["step_size"]
            take_step(
                kinds.rprop, (p, -g if maximize else g, before, size), lambda: (*in_step(state, first), *limits),
                (p, before, size), counting(state),
            )  # fmt: skip

        return update
