"""Rprop: steps by the sign of the gradient alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gt.client.programs import kinds
from gt.client.tensor import Tensor
from gt.errors import ArgumentError
from gt.optim.optimizer import Group, Layout, Optimizer, State, Update, defaults
from gt.optim.recording import InStep, counting, flag, shared, take_step


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
