"""`@gt.function`: a replay does what running the Python again would have done.

Most tests run the same code with the decorator and without (`gt.function` or nothing) and compare.
"""

from __future__ import annotations

import copy
import functools
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gt
from gt.client.record.recorder import recorder
from gt.client.session import waiting
from gt.client.session.session import Session
from gt.errors import ArgumentError, FunctionError, ShapeError
from tests.beside_torch import arrays, same
from tests.sim.cluster import Cluster, using

Decorator = Callable[[Callable[..., Any]], Any]
Scenario = Callable[[Decorator], Any]
SCENARIOS: list[tuple[Scenario, int]] = []


def scenario(replays: int) -> Callable[[Scenario], Scenario]:
    """Code that makes a function with the decorator it is given; so many of its calls must be replays."""

    def add(f: Scenario) -> Scenario:
        SCENARIOS.append((f, replays))
        return f

    return add


# --- functions without state ------------------------------------------------------------------------------

#: What is tested: (how many calls are replays, the function, makes the arguments of its calls)
CALLS: dict[str, tuple[int, Callable[..., Any], Callable[[], list[tuple[Any, ...]]]]] = {
    "floats by value": (
        4, lambda x, k: x * k + (2 * k - 1) / (k + 1), lambda: [(gt.ones(3), 0.5 * i) for i in range(5)]
    ),
    "ints by value": (
        4, lambda x, k: (x * k, x + k // 2, x - k % 3, gt.full((2,), k), x * 2**k),
        lambda: [(gt.arange(3), i) for i in range(5)],
    ),
    "numpy's numbers by value": (4, lambda x, k: x * k, lambda: [(gt.ones(3), np.float32(i)) for i in range(5)]),
    # A comparison is fixed, not the number: new outcomes are traced, known ones replayed.
    "numbers that decide": (
        3, lambda x, k: x * k if k > 2 else x + k, lambda: [(gt.ones(2), k) for k in (1, 2, 3, 4, 0)]
    ),
    "numbers and texts returned": (
        4, lambda x, k: (x * 2.0, k + 1, "text", None), lambda: [(gt.ones(1), k) for k in range(5)]
    ),
    "views as arguments": (
        2, lambda x, y: x @ y.t(), lambda: [(table()[i : i + 2], table()[i + 1 : i + 3]) for i in range(3)]
    ),
    "detached arguments": (
        2, lambda x: (x.detach() * 2.0, x.data + 1.0), lambda: [(gt.ones(2) * i,) for i in range(3)]
    ),
    "an argument returned under another name": (
        0, lambda x: (x * 2.0, x.detach()), lambda: [(gt.ones(2) * i,) for i in range(3)]
    ),
    "a view returned": (
        2, lambda x: ((x * 2.0)[1:], x.t()), lambda: [(gt.arange(6).reshape(2, 3) * i,) for i in range(3)]
    ),
    # Their content may be anything: the Python runs.
    "arrays as arguments": (
        0, lambda x: gt.from_numpy(x) * 2.0, lambda: [(np.full(3, float(i)),) for i in range(3)]
    ),
    "other shapes are other functions": (2, lambda x: x.sum(0), lambda: [(gt.ones(n, 2),) for n in (3, 4, 3, 4)]),
    "flags and texts are structure": (
        3, lambda x, up, how, things: (x + 1 if up else x - 1).sum() if how == "sum" else x.mean() * float(len(things)),
        lambda: [(gt.ones(2), up, "sum" if up else "mean", [1, 2]) for up in (True, False, True, False, True)],
    ),
}  # fmt: skip


def table() -> Any:
    return gt.arange(24, dtype=gt.float32).reshape(6, 4)


@pytest.mark.parametrize("name", CALLS)
def test_a_replayed_call_gives_what_the_python_gives(name: str, session: Session) -> None:
    replays, f, arguments = CALLS[name]
    traced = gt.function(f)
    same([traced(*given) for given in arguments()], [f(*given) for given in arguments()], rtol=1e-6)
    assert traced.replays == replays


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
    """Where the base lies is not known: such a function runs as Python."""

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


@pytest.mark.parametrize(("scenario", "replays"), SCENARIOS, ids=[s.__name__ for s, _ in SCENARIOS])
def test_a_replay_is_what_the_python_would_have_done(scenario: Scenario, replays: int, session: Session) -> None:
    functions: list[Any] = []

    def keep(f: Callable[..., Any]) -> Any:
        functions.append(gt.function(f))
        return functions[-1]

    with using(Cluster().client()):
        gt.manual_seed(0)
        want = arrays(scenario(lambda f: f))
    gt.manual_seed(0)
    got = arrays(scenario(keep))
    same(got, want, rtol=1e-6)
    assert sum(f.replays for f in functions) == replays


# --- what is refused, what is sent, what is kept ---------------------------------------------------------------


READS = {
    "item": lambda x: x.item(),
    "float": lambda x: float(x + 1.0),
    "bool": bool,
    "numpy": lambda x: (x * 2.0).numpy(),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_reading_a_value_inside_names_the_line(read: Callable[[Any], Any], session: Session) -> None:
    @gt.function
    def step(x: Any) -> Any:
        read(x)
        return x * 2.0

    with pytest.raises(FunctionError, match=r"^step: .*test_traced\.py:\d+ reads a value inside a @gt\.function"):
        step(gt.ones(1))
    assert recorder().trace is None
    assert (gt.ones(1) * 3.0).item() == 3.0


def test_an_error_inside_leaves_everything_usable(session: Session) -> None:
    w = gt.ones(2)

    @gt.function
    def step(x: Any, bad: bool) -> Any:
        w.add_(x)
        if bad:
            x @ gt.ones(5)
        return w * 2.0

    with pytest.raises(ShapeError):
        step(gt.ones(2), True)
    assert w.tolist() == [2.0, 2.0]
    assert [step(gt.ones(2), False).tolist() for _ in range(3)] == [[6.0, 6.0], [8.0, 8.0], [10.0, 10.0]]
    assert step.replays == 2


def test_a_number_that_no_call_could_carry_is_refused_in_a_replay_too(session: Session) -> None:
    f = gt.function(lambda x, k: x * k)
    assert [f(gt.arange(3), k).tolist() for k in (2, 3)] == [[0, 2, 4], [0, 3, 6]]
    with pytest.raises(ArgumentError, match="mul: a number of 71 bits does not fit into int64"):
        f(gt.arange(3), 2**70)
    assert f(gt.arange(3), 4).tolist() == [0, 4, 8]
    assert f.replays == 2


def test_a_known_call_runs_no_python_and_is_one_message(session: Session) -> None:
    ran = []

    @gt.function
    def step(x: Any, k: float) -> Any:
        ran.append(1)
        for _ in range(20):
            x = x * k
        return x

    x = gt.ones(2)
    for _ in range(3):
        step(x, 2.0)
    defined, calls = session.defined, session.seq
    for i in range(10):
        y = step(x, 1.0 + i)
    assert ran == [1]
    assert session.defined == defined
    assert session.seq == calls + 10
    assert y.tolist() == pytest.approx([1e20, 1e20])


def test_replays_hold_one_copy_of_what_they_update(cluster: Cluster, session: Session) -> None:
    """Parameters and state are given away to each call; neither the trace nor a replay keeps the old ones."""
    model = gt.nn.Linear(4, 4)
    opt = gt.optim.AdamW(model.parameters(), lr=0.01)

    @gt.function
    def step(x: Any) -> Any:
        opt.zero_grad()
        loss = (model(x) ** 2).mean()
        loss.backward()
        opt.step()
        return loss.detach()

    def entries() -> int:
        session.flush_frees()
        cluster.run()
        ((_, store),) = ((k, s.store) for k, s in cluster.workers[0].core.sessions.items())
        return len(store.entries)

    x = gt.ones(8, 4)
    for _ in range(3):
        loss = step(x)
    steady = entries()
    # x, the loss, and for two parameters: value, gradient, two moments.
    assert steady == 2 + 2 * 4
    program = next(reversed(session.variants.values())).program
    assert len(program.donate) >= 6  # parameters and moments; the old gradients were never read
    for _ in range(30):
        loss = step(x)
    assert entries() == steady
    assert loss.item() < 1.0
    assert step.replays >= 30


def test_a_failed_replay_keeps_the_model(session: Session) -> None:
    w = gt.zeros(4)

    @gt.function
    def step(i: Any) -> None:
        w.add_(gt.arange(4).gather(0, i).float().sum())

    good, bad = gt.tensor([1, 2]), gt.tensor([9, 0])
    for _ in range(3):
        step(good)
    before = w.numpy()
    step(bad)
    step(good)
    with pytest.raises(IndexError, match=r"test_traced\.py:\d+"):
        w.numpy()
    np.testing.assert_array_equal(w.numpy(), before)
    step(good)
    np.testing.assert_array_equal(w.numpy(), before + 3)


@pytest.mark.parametrize("clear", [True, False], ids=["cleared", "added to"])
def test_a_gradient_that_is_held_is_as_in_plain_python(clear: bool, session: Session) -> None:
    """Cleared and made anew it is another tensor; added to, it is the same one."""
    w = gt.ones(2, requires_grad=True)

    def step(x: Any) -> None:
        if clear:
            w.grad = None
        (w * x).sum().backward()

    held: dict[bool, list[Any]] = {}
    for replayed in (False, True):
        w.grad = gt.zeros(2)
        run = gt.function(step) if replayed else step
        grads = []
        for k in range(1, 5):
            run(gt.full((2,), float(k)))
            grads.append(w.grad)
        held[replayed] = [g.tolist() for g in grads]
    assert held[True] == held[False] == [[float(k if clear else 10)] * 2 for k in range(1, 5)]
    assert run.replays == 3


def test_the_timer_leaves_a_trace_alone(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has decided to end what was recorded before, and to fall asleep; both happen when the trace has begun."""
    rec = recorder()
    x = gt.ones(2)

    @gt.function
    def f(x: Any) -> Any:
        waiting._fall_asleep(session)
        y = x * 2
        late()
        return y + 1

    def trace_first(session: Session, rec: Any, timed: bool, *seen: Any) -> None:
        late = functools.partial(steal, session, rec, timed, *seen)
        monkeypatch.setitem(globals(), "late", late)
        f(x)

    steal = waiting._steal
    monkeypatch.setattr(waiting, "_steal", trace_first)
    before = x + 1
    rec.seen = (id(rec.pending), rec.pending.node.depth, 0.0)
    waiting.tick(session, 10.0)
    assert f(x).tolist() == [3.0, 3.0]
    assert f.replays == 1
    assert before.tolist() == [2.0, 2.0]


def late() -> None:
    """What the timer does in the middle of a trace; see above."""
