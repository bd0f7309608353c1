"""`@gt.function`: a replay does what running the Python again would have done.

Most tests run the same code with the decorator and without (`gt.function` or nothing) and compare.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gt
from gt.client.record.recorder import recorder
from gt.client.session import timer
from gt.client.session.session import Session
from gt.errors import ArgumentError, FunctionError, ShapeError
from tests.beside_torch import arrays, same
from tests.client.record.scenarios import SCENARIOS, Scenario
from tests.sim.cluster import Cluster, using

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


@pytest.mark.parametrize(("replays", "f", "arguments"), CALLS.values(), ids=CALLS)
def test_a_replayed_call_gives_what_the_python_gives(replays: Any, f: Any, arguments: Any, session: Session) -> None:
    traced = gt.function(f)
    same([traced(*given) for given in arguments()], [f(*given) for given in arguments()], rtol=1e-6)
    assert traced.replays == replays


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


READS = [lambda x: x.item(), lambda x: float(x + 1.0), bool, lambda x: (x * 2.0).numpy()]


@pytest.mark.parametrize("read", READS, ids=["item", "float", "bool", "numpy"])
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
    with pytest.raises(ArgumentError, match="mul: the number does not fit into int64; it has 71 bits"):
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
        timer._fall_asleep(session)
        y = x * 2
        late()
        return y + 1

    def trace_first(session: Session, rec: Any, timed: bool, *seen: Any) -> None:
        late = functools.partial(steal, session, rec, timed, *seen)
        monkeypatch.setitem(globals(), "late", late)
        f(x)

    steal = timer._steal
    monkeypatch.setattr(timer, "_steal", trace_first)
    before = x + 1
    rec.seen = (id(rec.pending), rec.pending.node.depth, 0.0)
    timer.tick(session, 10.0)
    assert f(x).tolist() == [3.0, 3.0]
    assert f.replays == 1
    assert before.tolist() == [2.0, 2.0]


def late() -> None:
    """What the timer does in the middle of a trace; see above."""
