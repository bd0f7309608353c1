"""Rprop: steps by the sign of the gradient alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gt.client.programs.tree import Kind
from gt.client.tensor import Tensor
from gt.errors import ArgumentError
from gt.ops import TABLE
from gt.optim.optimizer import Group, Optimizer, State, Update
from gt.optim.recording import InStep, check, counting, flag, shared, take_step

_RPROP = Kind(TABLE["rprop"], {})


class Rprop(Optimizer):
    """Each element has a step size of its own, which grows while its gradient keeps its sign."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50),
        *,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        check("Rprop", {"lr": lr})
        if not 0 < etas[0] < 1 < etas[1]:
            raise ArgumentError(f"Rprop: etas={etas} are out of range: the first is in (0, 1), the second above 1")
        super().__init__(
            params,
            {
                "lr": lr, "etas": etas, "step_sizes": step_sizes, "foreach": foreach, "maximize": maximize,
                "differentiable": differentiable, "capturable": capturable,
            },
        )  # fmt: skip

    def _layout(self, group: Group) -> tuple[dict[str, float], dict[str, float]]:
        # The first step adds the learning rate to its sizes: a schedule may set that until then.
        return {"step": 0}, {"prev": 0.0, "step_size": 0.0}

    def _updater(self, group: Group) -> Update:
        climb = flag(group, "maximize")
        limits = shared(lambda: (*map(float, group["etas"]), *map(float, group["step_sizes"])))
        in_step = InStep(self)

        def update(p: Tensor, g: Tensor, state: State) -> None:
            def first() -> tuple[float]:
                return (float(group["lr"]) if state["step"] == 1 else 0.0,)

            before, size = state["prev"], state["step_size"]
            take_step(
                _RPROP, (p, -g if climb else g, before, size), lambda: (*in_step(state, first), *limits),
                (p, before, size), counting(state),
            )  # fmt: skip

        return update
