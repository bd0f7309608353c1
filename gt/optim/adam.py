"""Adam and its variants: moving averages of the gradient, divided by the root of one of its squares."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gt.client.programs import kinds
from gt.client.tensor import Tensor
from gt.optim.optimizer import Group, Layout, Optimizer, State, Update, defaults
from gt.optim.recording import InStep, counting, flag, gradient, live, shared, take_step

_ADAM = {
    (False, False): kinds.adam,
    (False, True): kinds.adam_amsgrad,
    (True, False): kinds.adamw,
    (True, True): kinds.adamw_amsgrad,
}


class Adam(Optimizer):
    """Adam, with weight decay added to the gradient."""

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0, amsgrad: bool = False, *, foreach: bool | None = None, maximize: bool = False,
        capturable: bool = False, differentiable: bool = False, fused: bool | None = None,
        decoupled_weight_decay: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, defaults(self, locals(), "lr", "eps", "weight_decay"))

    def _layout(self, group: Group) -> Layout:
        tensors = {"exp_avg": 0.0, "exp_avg_sq": 0.0}
        return {"step": 0}, {**tensors, "max_exp_avg_sq": 0.0} if group["amsgrad"] else tensors

    def _updater(self, group: Group) -> Update:
        own, amsgrad = gradient(group, coupled=False), flag(group, "amsgrad")
        kind = _ADAM[flag(group, "decoupled_weight_decay"), amsgrad]

        def read() -> tuple[float, ...]:
            beta1, beta2 = group["betas"]
            return float(group["lr"]), float(beta1), float(beta2), float(group["eps"]), float(group["weight_decay"])

        numbers, in_step = shared(read), InStep(self)

        def update(p: Tensor, g: Tensor, state: State) -> None:
            moments: tuple[Tensor, ...] = state["exp_avg"], state["exp_avg_sq"]
            if amsgrad:
                moments = *moments, state["max_exp_avg_sq"]
            take_step(
                kind, (p, own(p, g), *moments), lambda: (*numbers, *in_step(state, lambda: (state["step"],))),
                (p, *moments), counting(state),
            )  # fmt: skip

        return update


class AdamW(Adam):
    """Adam with decoupled weight decay, applied to the parameter itself."""

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 1e-2, amsgrad: bool = False, *, maximize: bool = False, foreach: bool | None = None,
        capturable: bool = False, differentiable: bool = False, fused: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__(**defaults(self, locals(), params=params, decoupled_weight_decay=True))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load settings and state, of GT or torch, parameter by parameter in order."""
        super().load_state_dict(state_dict)
        for group in self.param_groups:
            group["decoupled_weight_decay"] = True  # even if the state was saved by Adam


def _decayed(group: Group) -> Any:
    """A function that returns the parameter and gradient with the group's weight decay applied."""
    apart, decay = flag(group, "decoupled_weight_decay"), flag(group, "weight_decay")
    own = gradient(group, coupled=not apart)
    shrink = live(lambda: (1 - float(group["lr"]) * float(group["weight_decay"]),)) if apart and decay else ()

    def begin(p: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        g = own(p, g)
        return (p * shrink[0] if shrink else p), g

    return begin


class NAdam(Optimizer):
    """Adam with Nesterov momentum."""

    def __init__(
        self, params: Iterable[Any], lr: float = 2e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0, momentum_decay: float = 4e-3, decoupled_weight_decay: bool = False, *,
        foreach: bool | None = None, maximize: bool = False, capturable: bool = False, differentiable: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, defaults(self, locals(), "lr", "eps", "weight_decay", "momentum_decay"))

    _initial_state = {"step": 0, "mu_product": 1.0}, {"exp_avg": 0.0, "exp_avg_sq": 0.0}

    def _updater(self, group: Group) -> Update:
        begin = _decayed(group)

        def mu(step: int) -> float:
            return float(group["betas"][0]) * (1 - 0.5 * 0.96 ** (step * float(group["momentum_decay"])))

        def update(p: Tensor, g: Tensor, state: State) -> None:
            def do() -> None:
                state["step"] += 1
                state["mu_product"] *= mu(state["step"])

            def undo() -> None:
                state["mu_product"] /= mu(state["step"]) or 1.0  # a product of 0 stays 0
                state["step"] -= 1

            def numbers() -> tuple[float, ...]:
                (beta1, beta2), lr, step = group["betas"], float(group["lr"]), state["step"]
                now, ahead, product = mu(step), mu(step + 1), state["mu_product"]
                return (
                    1 - beta1, float(beta2), 1 - beta2, (1 - beta2**step) ** -0.5, float(group["eps"]),
                    lr * (1 - now) / (1 - product), lr * ahead / (1 - product * ahead),
                )  # fmt: skip

            start, g = begin(p, g)
            m, v = state["exp_avg"], state["exp_avg_sq"]
            take_step(kinds.nadam, (start, g, m, v), lambda: live(numbers), (p, m, v), (do, undo))

        return update


class RAdam(Optimizer):
    """Rectified Adam: the first steps, while the average of squares has a high variance, do not divide by it."""

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0, decoupled_weight_decay: bool = False, *, foreach: bool | None = None,
        maximize: bool = False, capturable: bool = False, differentiable: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, defaults(self, locals(), "lr", "eps", "weight_decay"))

    _initial_state = {"step": 0}, {"exp_avg": 0.0, "exp_avg_sq": 0.0}

    def _updater(self, group: Group) -> Update:
        begin, in_step = _decayed(group), InStep(self)

        def update(p: Tensor, g: Tensor, state: State) -> None:
            def numbers() -> tuple[float, ...]:
                (beta1, beta2), step = group["betas"], state["step"]
                size, left = float(group["lr"]) / (1 - beta1**step), beta2**step
                most = 2 / (1 - beta2) - 1
                length = most - 2 * step * left / (1 - left)  # of the moving average, in steps
                slope, offset = 0.0, 1.0  # the root is used once the average is long enough
                if length > 5:
                    slope, offset = 1.0, float(group["eps"])
                    size *= ((length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length)) ** 0.5
                    size *= (1 - left) ** 0.5
                return 1 - beta1, float(beta2), 1 - beta2, slope, offset, size

            start, g = begin(p, g)
            m, v = state["exp_avg"], state["exp_avg_sq"]
            take_step(kinds.radam, (start, g, m, v), lambda: in_step(state, numbers), (p, m, v), counting(state))

        return update


class Adamax(Optimizer):
    """Adam with the infinity norm: divides by a decaying maximum of the gradients."""

    def __init__(
        self, params: Iterable[Any], lr: float = 2e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0, foreach: bool | None = None, *, maximize: bool = False, differentiable: bool = False,
        capturable: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, defaults(self, locals(), "lr", "eps", "weight_decay"))

    _initial_state = {"step": 0}, {"exp_avg": 0.0, "exp_inf": 0.0}

    def _updater(self, group: Group) -> Update:
        own, in_step = gradient(group), InStep(self)

        def update(p: Tensor, g: Tensor, state: State) -> None:
            def numbers() -> tuple[float, ...]:
                (beta1, beta2), step = group["betas"], state["step"]
                return 1 - beta1, float(beta2), float(group["eps"]), float(group["lr"]) / (1 - beta1**step)

            m, u = state["exp_avg"], state["exp_inf"]
            take_step(kinds.adamax, (p, own(p, g), m, u), lambda: in_step(state, numbers), (p, m, u), counting(state))

        return update
