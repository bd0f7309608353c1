"""L-BFGS: quasi-Newton steps with a Hessian approximated from the last steps and gradients.

The next direction depends on values, so a step waits for the workers several times, and its programs change until the
history is full.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from gt import dtypes
from gt.client.compat.checks import one_of
from gt.client.functions import creation, shapes
from gt.client.grad.modes import set_grad
from gt.client.tensor import Tensor
from gt.errors import ArgumentError
from gt.optim.optimizer import Optimizer, State, defaults


@dataclass
class Point:
    """A point on the search line."""

    t: float
    loss: float
    grad: Tensor
    slope: float  #: The derivative of the loss along the line.


class LBFGS(Optimizer):
    """Limited-memory BFGS. `step(closure)` evaluates the closure several times."""

    def __init__(
        self, params: Iterable[Any], lr: float = 1, max_iter: int = 20, max_eval: int | None = None,
        tolerance_grad: float = 1e-7, tolerance_change: float = 1e-9, history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:  # fmt: skip
        given = defaults(self, locals(), "lr", max_eval=max_iter * 5 // 4 if max_eval is None else max_eval)
        one_of("LBFGS", "line_search_fn", line_search_fn, None, "strong_wolfe")
        super().__init__(params, given)
        if len(self.param_groups) != 1:
            raise ArgumentError(f"LBFGS: expected one group of parameters, got {len(self.param_groups)}")
        self._params: list[Tensor] = self.param_groups[0]["params"]

    # --- all parameters as one vector ---

    def _gradient(self) -> Tensor:
        grads = [creation.zeros_like(p) if p.grad is None else p.grad for p in self._params]
        return shapes.cat([g.reshape(-1) for g in grads])

    def _go(self, direction: Tensor, t: float) -> None:
        """Move all parameters along a direction."""
        parts = shapes.split(direction, [p.numel() for p in self._params])
        for p, part in zip(self._params, parts, strict=True):
            p.add_(part.reshape(p.shape), alpha=t)

    # --- the step ---

    def step(self, closure: Callable[[], Any]) -> Any:
        """Iterate until the gradient or the change is small, or `max_iter` is reached; return the first loss."""
        if closure is None:
            raise ArgumentError("LBFGS: step() requires a closure that computes the loss and calls backward()")

        def evaluate() -> Any:
            with set_grad(True):
                return closure()

        with set_grad(False):
            return self._iterate(evaluate)

    def _iterate(self, evaluate: Callable[[], Any]) -> Any:
        group, state = self.param_groups[0], self.state[self._params[0]]
        state.setdefault("func_evals", 0)
        state.setdefault("n_iter", 0)
        first = evaluate()
        grad = self._gradient()
        loss, steepest = _read(first, grad.abs().max())
        evals = 1
        curved: list[float] | None = None  # of the step that was made last: see `_direction`
        state["func_evals"] += 1
        if steepest <= group["tolerance_grad"]:
            return first
        for i in range(1, group["max_iter"] + 1):
            state["n_iter"] += 1
            d = self._direction(grad, state, curved)
            state["d"], state["prev_flat_grad"], state["prev_loss"] = d, grad, loss
            before, t = loss, float(group["lr"])
            slope, size, total = _read(grad.dot(d), d.abs().max(), grad.abs().sum())
            if state["n_iter"] == 1:
                t *= min(1.0, 1.0 / total)
            state["t"] = t
            if slope > -group["tolerance_change"]:
                break
            if group["line_search_fn"] is not None:
                here = Point(0.0, loss, grad, slope)
                found, used = self._search(evaluate, here, t, d, size, group["max_eval"] - evals)
                loss, grad, state["t"] = found.loss, found.grad, found.t
                self._go(d, found.t)
                steepest, *curved = _read(grad.abs().max(), *self._change(grad, state)[2:])
            else:
                self._go(d, t)
                used = 0
                if i < group["max_iter"]:  # after the last iteration nothing uses it
                    made = evaluate()
                    grad, used = self._gradient(), 1
                    loss, steepest, *curved = _read(made, grad.abs().max(), *self._change(grad, state)[2:])
            evals += used
            state["func_evals"] += used
            if (
                evals >= group["max_eval"]
                or steepest <= group["tolerance_grad"]
                or size * state["t"] <= group["tolerance_change"]
                or abs(loss - before) < group["tolerance_change"]
            ):
                break
        return first

    def _change(self, grad: Tensor, state: State) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """How the gradient has changed since the last step, that step, and their products: y, s, y s and y y."""
        y, s = grad - state["prev_flat_grad"], state["d"] * float(state["t"])
        return y, s, y.dot(s), y.dot(y)

    def _direction(self, grad: Tensor, state: State, curved: list[float] | None) -> Tensor:
        """The search direction: minus the gradient times the approximate inverse Hessian (two-loop recursion).

        `curved`: the products of `_change`, if they were read together with other numbers.
        """
        if state["n_iter"] == 1:
            state.update(old_dirs=[], old_stps=[], ro=[], H_diag=1.0)
            return -grad
        y, s, *products = self._change(grad, state)
        ys, yy = curved or _read(*products)
        history = (state["old_dirs"], state["old_stps"], state["ro"])
        if ys > 1e-10:
            for kept, new in zip(history, (y, s, 1.0 / ys), strict=True):
                if len(kept) == self.param_groups[0]["history_size"]:
                    kept.pop(0)
                kept.append(new)
            state["H_diag"] = ys / yy
        past = list(zip(*history, strict=True))
        q, weights = -grad, []
        for y, s, ro in reversed(past):
            weights.append(s.dot(q) * ro)
            q = q - y * weights[-1]
        q = q * state["H_diag"]
        for (y, s, ro), weight in zip(past, reversed(weights), strict=True):
            q = q + s * (weight - y.dot(q) * ro)
        return q

    def _search(
        self, evaluate: Callable[[], Any], start: Point, t: float, d: Tensor, size: float, most: int
    ) -> tuple[Point, int]:
        """Search along d; the parameters are restored after each evaluation."""
        origin = [p.clone() for p in self._params]

        def at(t: float) -> Point:
            self._go(d, t)
            made = evaluate()
            grad = self._gradient()
            for p, o in zip(self._params, origin, strict=True):
                p.copy_(o)
            loss, slope = _read(made, grad.dot(d))
            return Point(t, loss, grad, slope)

        return strong_wolfe(at, start, t, size, self.param_groups[0]["tolerance_change"], most)


def _read(*scalars: Any) -> list[float]:
    """Tensors of one element as numbers, fetched together."""
    tensors = [x.detach().reshape(()).to(dtypes.float64) for x in scalars if isinstance(x, Tensor)]
    read = iter(shapes.stack(tensors).tolist() if tensors else ())
    return [next(read) if isinstance(x, Tensor) else float(x) for x in scalars]


# --- the line search -----------------------------------------------------------------------------------------


def strong_wolfe(
    at: Callable[[float], Point], start: Point, t: float, size: float, tolerance: float, most: int
) -> tuple[Point, int]:
    """A point that satisfies the strong Wolfe conditions, and the number of evaluations. First find an interval that
    contains such a point, then shrink it. `size` is the largest absolute entry of the direction."""

    def too_high(p: Point) -> bool:
        return p.loss > start.loss + 1e-4 * p.t * start.slope

    def flat(p: Point) -> bool:
        return abs(p.slope) <= -0.9 * start.slope

    before, now, evals = start, at(t), 0
    while evals < most:
        if too_high(now) or (evals > 1 and now.loss >= before.loss) or (not flat(now) and now.slope >= 0):
            ends = [before, now]
            break
        if flat(now):
            return now, evals + 1
        nearest, farthest = now.t + 0.01 * (now.t - before.t), now.t * 10
        t = _lowest(before, now, nearest, farthest)
        before, now = now, at(t)
        evals += 1
    else:
        ends = [start, now]

    stuck = False  # whether the last point was close to an end of the interval
    low, high = _order(ends)
    while evals < most:
        left, right = sorted((ends[0].t, ends[1].t))
        if (right - left) * size < tolerance:
            break
        t = _lowest(ends[0], ends[1], left, right)
        margin = 0.1 * (right - left)
        close = min(right - t, t - left) < margin
        if close and (stuck or t >= right or t <= left):
            t = right - margin if abs(t - right) < abs(t - left) else left + margin
            close = False
        stuck = close
        now = at(t)
        evals += 1
        if too_high(now) or now.loss >= ends[low].loss:
            ends[high] = now
            low, high = _order(ends)
            continue
        done = flat(now)
        if not done and now.slope * (ends[high].t - ends[low].t) >= 0:
            ends[high] = ends[low]
        ends[low] = now
        if done:
            break
    return ends[low], evals + 1


def _order(ends: list[Point]) -> tuple[int, int]:
    return (0, 1) if ends[0].loss <= ends[1].loss else (1, 0)


def _lowest(a: Point, b: Point, least: float, most: float) -> float:
    """The minimum in [least, most] of the cubic through two points with their slopes; the middle if it has none."""
    if a.t > b.t:
        a, b = b, a
    middle = (least + most) / 2
    if a.t == b.t:
        return middle
    bend = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.t - b.t)
    square = bend**2 - a.slope * b.slope
    if not square >= 0:
        return middle
    root = math.sqrt(square)
    below = b.slope - a.slope + 2 * root
    if not below:
        return middle
    return min(max(b.t - (b.t - a.t) * ((b.slope + root - bend) / below), least), most)
