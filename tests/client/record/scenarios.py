"""Code that makes a function with the decorator it is given: `gt.function`, or nothing. See test_traced.py."""

from __future__ import annotations

import copy
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np

import gt

Decorator = Callable[[Callable[..., Any]], Any]
Scenario = Callable[[Decorator], Any]
SCENARIOS: list[tuple[Scenario, int]] = []


def scenario(replays: int) -> Callable[[Scenario], Scenario]:
    """Code that makes a function with the decorator it is given; so many of its calls must be replays."""

    def add(f: Scenario) -> Scenario:
        SCENARIOS.append((f, replays))
        return f

    return add


# --- numbers ----------------------------------------------------------------------------------------------


@scenario(replays=5)
def slice_starts(function: Decorator) -> Any:
    data = gt.arange(40).reshape(10, 4)

    f = function(lambda i: (data[i : i + 4], data[i], data[i, i // 3]))
    return [f(i) for i in range(6)]


@scenario(replays=4)
def a_number_in_the_gradient(function: Decorator) -> Any:
    """The gradient of x * k, of x ** k and of a slice reads the number again. (Traced without and with a
    gradient there before.)"""
    x = gt.tensor([1.0, 2.0, 3.0, 4.0], dtype=gt.float64, requires_grad=True)

    @function
    def f(k: Any, i: Any) -> None:
        x.grad = None
        ((x * k).sum() + (x**k).sum() + (x[i : i + 2] * 10.0).sum()).backward()

    grads = []
    for step in range(6):
        f(0.5 + step, step % 3)
        grads.append(x.grad.numpy())
    return grads


@scenario(replays=2)
def a_number_as_a_count(function: Decorator) -> Any:
    @function
    def f(x: Any, n: Any) -> Any:
        for _ in range(n):
            x = x * 2.0
        return x

    return [f(gt.ones(2), n) for n in (1, 2, 3, 2, 1)]


@scenario(replays=4)
def numbers_assigned(function: Decorator) -> Any:
    table = gt.zeros(5, dtype=gt.float64)

    @function
    def f(i: Any, v: Any) -> None:
        table[i] = v
        table[0] += 1

    for i in range(5):
        f(i, 0.5 + i)
    return table


@scenario(replays=3)
def a_number_of_an_op_that_was_refused(function: Decorator) -> Any:
    """The number of an op that raised must not turn up as the number of the next."""

    @function
    def f(x: Any, k: Any) -> Any:
        try:
            gt.where(x, x, k)  # no condition: refused
        except TypeError:
            pass
        return x * 3.0

    return [f(gt.ones(2), 7.0 + i) for i in range(4)]


# --- arguments and results ---------------------------------------------------------------------------------


@scenario(replays=2)
def structures(function: Decorator) -> Any:
    Pair = namedtuple("Pair", ["first", "second"])

    @function
    def f(batch: dict[str, Any], pair: Any, *, scale: Any = 1.0) -> Any:
        y = batch["x"] * scale + pair.first - pair.second[0]
        return {"y": y, "pair": Pair(y + 1.0, [y, (y * 2.0,)])}

    results = []
    for i in range(3):
        r = f({"x": gt.ones(2) * i}, Pair(gt.ones(2), [gt.zeros(2)]), scale=2.0 + i)
        assert type(r["pair"]).__name__ == "Pair"
        assert r["pair"].second[0] is r["y"]
        results.append([r["y"], r["pair"].first, r["pair"].second[1]])
    return results


@scenario(replays=1)
def one_tensor_twice(function: Decorator) -> Any:
    f = function(lambda x, y: x - y * 2.0)
    a, b = gt.ones(2), gt.ones(2) * 5.0
    return f(a, a), f(a, b), f(b, b)


@scenario(replays=1)
def copies_of_one_value(function: Decorator) -> Any:
    f = function(lambda x, y: x - y * 2.0)
    a, b = gt.ones(2), gt.ones(2) * 5.0
    return f(a, a.clone()), f(a, b), f(b, a)


@scenario(replays=2)
def written_arguments(function: Decorator) -> Any:
    @function
    def f(x: Any, y: Any) -> Any:
        x.add_(y)
        x[0] = 9.0
        return x

    a, b, c = gt.ones(2), gt.ones(2) * 5.0, gt.ones(2) * 7.0
    same = f(a, b) is a, f(b, c) is b, f(b, c) is b
    return a, b, c, [np.asarray(s) for s in same]


@scenario(replays=1)
def arguments_that_share_memory(function: Decorator) -> Any:
    @function
    def f(x: Any, y: Any) -> Any:
        x.add_(1.0)
        return y * 2.0

    a, b = gt.ones(2), gt.ones(2) * 5.0
    return f(a, b), f(a, a.detach()), f(a, b), a


@scenario(replays=0)
def views_written_as_arguments(function: Decorator) -> Any:
    """The base of the view is not known: such a function runs as Python."""

    @function
    def f(row: Any) -> None:
        row.mul_(2.0)

    x, y = gt.ones(2, 2), gt.ones(2, 2)
    for t in (x[0], y[1], y[1]):
        f(t)
    return x, y


@scenario(replays=2)
def an_argument_returned(function: Decorator) -> Any:
    @function
    def f(x: Any) -> Any:
        y = x * 2.0
        return y, x, y

    rows = [f(gt.ones(2) * i) for i in range(3)]
    assert all(r[0] is r[2] for r in rows)
    return rows


# --- state: closures, parameters, gradients ------------------------------------------------------------------


@scenario(replays=3)
def a_counter(function: Decorator) -> Any:
    count, log = gt.zeros(2), gt.zeros(4)

    @function
    def f(x: Any) -> Any:
        count.add_(x)
        log[1:3] = count
        return count * 10.0

    return [f(gt.ones(2) * i) for i in range(4)], count, log


@scenario(replays=3)
def a_written_view_stays_a_view(function: Decorator) -> Any:
    table = gt.zeros(3, 2)
    row = table[1]

    @function
    def f(x: Any) -> None:
        row.add_(x)

    for i in range(4):
        f(gt.ones(2) * i)
        table.add_(1.0)
        row[0] = 5.0
    return table, row


@scenario(replays=4)
def a_base_changed_outside(function: Decorator) -> Any:
    table = gt.zeros(3, 2)
    row = table[1]

    f = function(lambda: row * 2.0)
    results = []
    for _ in range(5):
        results.append(f())
        table.add_(1.0)
    return results


@scenario(replays=4)
def a_closure_rebound_by_data(function: Decorator) -> Any:
    w = gt.ones(2)

    f = function(lambda: w * 2.0)
    results = []
    for i in range(5):
        results.append(f())
        w.data = gt.ones(2) * i
    return results


@scenario(replays=2)
def gradients_accumulate(function: Decorator) -> Any:
    w = gt.ones(2, requires_grad=True)

    @function
    def f(x: Any) -> None:
        (w * x).sum().backward()

    for i in range(4):
        f(gt.ones(2) * i)  # without a gradient before, then with one: traced twice
    return w.grad


@scenario(replays=2)
def gradients_of_arguments(function: Decorator) -> Any:
    """Each call's argument gets its own gradient."""

    @function
    def f(x: Any, k: Any) -> None:
        (x * x * k).sum().backward()

    xs = [(gt.ones(2) * i).requires_grad_() for i in range(3)]
    for i, x in enumerate(xs):
        f(x, 1.0 + i)
    return [x.grad for x in xs]


@scenario(replays=0)
def arguments_with_a_history(function: Decorator) -> Any:
    """Backward walks a graph made outside: the Python runs."""
    w = gt.ones(2, requires_grad=True)

    @function
    def f(h: Any) -> Any:
        h.sum().backward()
        return h.detach() * 2.0

    results = [f(w * w * float(i)) for i in range(3)]
    return results, w.grad


@scenario(replays=0)
def results_with_a_history(function: Decorator) -> Any:
    w = gt.ones(2, requires_grad=True)

    f = function(lambda x: (w * x).sum())
    for i in range(3):
        f(gt.ones(2) * i).backward()
    return w.grad


@scenario(replays=4)
def histories_are_fine_without_gradients(function: Decorator) -> Any:
    w = gt.ones(2, requires_grad=True)

    f = function(lambda x: (w * x).sum())
    results = []
    for i in range(5):
        with gt.no_grad():
            results.append(f(gt.ones(2) * i))
    return results


@scenario(replays=3)
def clipped_gradients(function: Decorator) -> Any:
    w = gt.ones(3, dtype=gt.float64, requires_grad=True)
    opt = gt.optim.SGD([w], lr=0.1)

    @function
    def f(x: Any) -> Any:
        opt.zero_grad()
        loss = (w * x).sum() ** 2
        loss.backward()
        w.grad.mul_((0.5 / w.grad.norm()).clamp(max=1.0))
        opt.step()
        return w.grad.norm()

    return [f(gt.ones(3, dtype=gt.float64) * (1.0 + i)) for i in range(5)][2:], w


@scenario(replays=9)
def a_changing_learning_rate(function: Decorator) -> Any:
    w = gt.ones(3, dtype=gt.float64, requires_grad=True)
    opt = gt.optim.AdamW([w], lr=0.1)

    @function
    def f(x: Any) -> None:
        (w * x).sum().backward()
        opt.step()
        opt.zero_grad()

    for i in range(10):
        opt.param_groups[0]["lr"] = 0.1 / (1 + i)
        f(gt.ones(3, dtype=gt.float64) * float(i))
    return w, opt.state[w]["exp_avg"], np.asarray(opt.state[w]["step"])


@scenario(replays=6)
def a_target_network(function: Decorator) -> Any:
    """A deepcopy has the same values at first; they part at the first step."""
    gt.manual_seed(1)
    model = gt.nn.Linear(3, 2, dtype=gt.float64)
    target = copy.deepcopy(model)
    opt = gt.optim.SGD(model.parameters(), lr=0.1)

    @function
    def f(x: Any) -> Any:
        loss = ((model(x) - target(x).detach() - 1.0) ** 2).mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        return loss.detach()

    losses = [f(gt.ones(4, 3, dtype=gt.float64)) for _ in range(8)]
    return losses, model, target


@scenario(replays=3)
def a_copy_inside(function: Decorator) -> Any:
    w = gt.ones(2)

    @function
    def f(x: Any) -> Any:
        old = w.clone()
        w.add_(x)
        return old * 1.0, old

    return [f(gt.ones(2)) for _ in range(4)], w


@scenario(replays=4)
def tensors_made_inside(function: Decorator) -> Any:
    @function
    def f(x: Any) -> Any:
        buffer = gt.zeros(3, 2)
        for i in range(3):
            buffer[i] = x * float(i)
        return buffer

    return [f(gt.ones(2) * i) for i in range(5)]


@scenario(replays=1)
def modes_are_part_of_it(function: Decorator) -> Any:
    """Without dropout nothing is recorded, so there is nothing to replay."""
    drop = gt.nn.Dropout(0.5)

    f = function(lambda x: drop(x))
    results = []
    for training in (True, False, True, False):
        drop.train(training)
        gt.manual_seed(4)
        results.append(f(gt.ones(8)))
    return results


@scenario(replays=6)
def seeds_advance(function: Decorator) -> Any:
    """Random numbers inside, outside and dropped; dropout's gradient uses its own mask."""
    gt.manual_seed(3)
    w = gt.ones(6, requires_grad=True)

    @function
    def f(x: Any) -> Any:
        gt.randn(2)  # nobody reads it, but it draws
        y = gt.nn.functional.dropout(w * x, 0.5)
        w.grad = None
        y.sum().backward()
        return y.detach(), gt.rand(3)

    results = []
    for i in range(8):
        results.append((f(gt.ones(6) + float(i)), gt.rand(2), w.grad.clone()))
    return results


@scenario(replays=3)
def a_function_inside_a_function(function: Decorator) -> Any:
    @function
    def inner(x: Any) -> Any:
        return x * 2.0

    @function
    def outer(x: Any) -> Any:
        return inner(x) + inner(x + 1.0)

    return [outer(gt.ones(2) * i) for i in range(4)]
