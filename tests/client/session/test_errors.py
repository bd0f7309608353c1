"""Errors: one clear sentence, at the user's line; a failed call changes nothing; the session goes on."""

from __future__ import annotations

import copy
import inspect
import os
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import gt
from gt import config
from gt.client.programs.pending import use
from gt.client.record import recorder as recording
from gt.client.session.session import Session
from gt.errors import (
    ArgumentError,
    AutogradError,
    DimError,
    DTypeError,
    ForkError,
    IndexOutOfRange,
    OutOfMemory,
    ServerError,
    ShapeError,
)  # fmt: skip
from gt.transport.messages import GetStats
from tests.beside_torch import arrays, same
from tests.client.conftest import in_turn, run_threads
from tests.client.mistakes import Mistakes, refused
from tests.sessions import raising, session_on
from tests.sim.cluster import Cluster, using


def x34() -> Any:
    return gt.ones(3, 4)


MISTAKES: Mistakes = {
    "add": (lambda: x34() + gt.ones(3), ShapeError, r"add: .*\(3, 4\).*\(3,\)"),
    "matmul": (lambda: x34() @ gt.ones(5, 2), ShapeError, r"matmul: \(3, 4\) @ \(5, 2\): inner sizes 4 and 5 differ"),
    "matmul of a number": (lambda: x34() @ gt.ones(()), ShapeError, "matmul"),
    "linear": (lambda: gt.nn.Linear(5, 2)(x34()), ShapeError, "linear"),
    "reshape": (lambda: x34().reshape(5, 2), ShapeError, r"reshape: .*\(3, 4\).*\(5, 2\)"),
    "view": (lambda: x34().view(7), ShapeError, r"\(3, 4\)"),
    "expand": (lambda: x34().expand(2, 4), ShapeError, "expand"),
    "cat": (lambda: gt.cat([x34(), gt.ones(3, 5)]), ShapeError, "cat"),
    "chunk": (lambda: x34().chunk(0), ArgumentError, "chunk: chunks must be > 0, got 0"),
    "sum": (lambda: x34().sum(2), DimError, r"sum: dim 2 is out of range for a tensor of 2 dimensions \(expected -2"),
    "sum twice": (lambda: x34().sum((0, -2)), DimError, r"sum: dimensions \(0, -2\) contain a dimension twice"),
    "softmax": (lambda: x34().softmax(5), DimError, "softmax: dim 5 is out of range"),
    "dim": (lambda: x34().sum("rows"), ArgumentError, "sum: dim must be an int, got 'rows'"),
    "transpose": (lambda: x34().transpose(0, 3), DimError, "transpose: dim 3"),
    "permute": (lambda: x34().permute(0, 0), DimError, "permute"),
    "squeeze": (lambda: x34().squeeze(4), DimError, "squeeze: dim 4"),
    "gather": (lambda: x34().gather(1, gt.zeros(3, 1)), DTypeError, "gather"),
    "embedding": (lambda: gt.nn.functional.embedding(gt.zeros(2), x34()), DTypeError, "embedding"),
    "where": (lambda: gt.where(x34(), x34(), x34()), DTypeError, "where"),
    "and": (lambda: x34() & x34(), DTypeError, "bitwise_and: expected integers or bools, got float32; cast first"),
    "invert": (lambda: ~x34(), DTypeError, "bitwise_not: expected integers or bools, got float32; cast first"),
    "text operand": (lambda: x34() + "a", DTypeError, "add: expected a tensor or a number, got 'a'"),
    "none operand": (lambda: x34() * None, DTypeError, "mul: expected a tensor or a number, got None"),
    "objects": (lambda: gt.tensor(["a"]), DTypeError, "tensor: expected numbers or nested lists of numbers, got 'a'"),
    "dtype": (lambda: x34().to(dtype="complex32"), DTypeError, "dtype 'complex32' is not one of GT's: float64"),
    "too many elements": (lambda: gt.ones(1 << 20, 1).expand(-1, 1 << 30) + 1, ShapeError, r"expand: .* has more than"),
    "too many dimensions": (lambda: gt.ones([1] * 65), ShapeError, "full: .* at most 64 sizes"),
    "a long number": (lambda: gt.arange(3) + 2**63, ArgumentError, "add: the number does not fit .* 64 bits"),
    "another": (lambda: x34().clamp(0, -(2**70)), ArgumentError, "clamp: the number does not fit .* 71 bits"),
    "float size": (lambda: gt.zeros(2, 2.5), ArgumentError, r"zeros: sizes must be ints, got \(2, 2\.5\)"),
    "text size": (lambda: gt.zeros("ab"), ArgumentError, "zeros: sizes must be ints"),
    "no size": (lambda: gt.zeros(2.5), ArgumentError, r"zeros: sizes must be ints, got 2\.5"),
    "in place too wide": (lambda: gt.ones(4).add_(x34()), ShapeError, r"add_: the result has shape \(3, 4\)"),
    "in place into ints": (lambda: gt.ones(4, dtype=gt.int64).add_(0.5), DTypeError, "add_: the result is float32"),
    "item": (lambda: x34().item(), ShapeError, r"item: expected a tensor of one element, got shape \(3, 4\)"),
    "number": (lambda: float(x34()), ArgumentError, r"of one element can become a number, got shape \(3, 4\)"),
    "truth": (lambda: bool(x34()), ShapeError, r"ambiguous; use any\(\) or all\(\)"),
    "gradient": (lambda: setattr(x34().requires_grad_(), "grad", gt.ones(2)), ShapeError, r"of shape \(3, 4\), got"),
}  # fmt: skip


test_mistakes = refused(MISTAKES)


def test_mistakes_are_found_without_a_call(session: Session) -> None:
    calls = session.seq
    for mistake, kind, _ in MISTAKES.values():
        with pytest.raises(kind):
            mistake()
    assert session.seq == calls  # nothing was sent to find out


def test_errors_are_pythons_own_kinds_too(session: Session) -> None:
    """Code written for torch catches RuntimeError, IndexError, TypeError, ValueError."""
    for mistake, kind in ((MISTAKES["matmul"][0], RuntimeError), (MISTAKES["sum"][0], IndexError),
                          (MISTAKES["and"][0], TypeError), (lambda: gt.arange(3, 0), ValueError)):  # fmt: skip
        with pytest.raises(kind):
            mistake()


def made(x: Any) -> Any:
    """The tensor, in a program of its own: what is made in a call that fails is lost with it."""
    recording.recorder().settle()
    return x


# --- what only a worker can know ---------------------------------------------------------------------------------


def here() -> int:
    """The line of the caller."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def test_a_bad_index_names_the_users_line(session: Session) -> None:
    table, index = made(gt.ones(4, 2)), gt.tensor([1, 9])
    rows, line = gt.nn.functional.embedding(index, table), here()
    total = rows.sum() * 2.0
    with pytest.raises(IndexOutOfRange, match="9") as raised:
        total.item()
    assert f"made by embedding at {__file__}:{line}" in str(raised.value)
    assert table.tolist() == [[1.0, 1.0]] * 4


BAD_INDICES: dict[str, Callable[[Any, Any], Any]] = {
    "index": lambda x, i: x[i],
    "gather": lambda x, i: x.gather(0, i.reshape(2, 1)),
    "index_select": lambda x, i: x.index_select(0, i),
    "index_add": lambda x, i: x.index_add(0, i, x[:2]),
    "scatter_add": lambda x, i: x.scatter_add(0, i.reshape(2, 1), x[:2, :1]),
    "assignment": lambda x, i: x.__setitem__(i, 0.0) or x,
    "one_hot": lambda x, i: gt.nn.functional.one_hot(i, 4),
    "cross entropy": lambda x, i: gt.nn.functional.cross_entropy(x[:2], i),
}


@pytest.mark.parametrize("use", BAD_INDICES.values(), ids=BAD_INDICES.keys())
@pytest.mark.parametrize("bad", [4, -5, 1 << 40])
def test_every_indexing_op_refuses(use: Callable[[Any, Any], Any], bad: int, session: Session) -> None:
    x = gt.arange(16, dtype=gt.float32).reshape(4, 4)
    x.numpy()
    with pytest.raises(IndexOutOfRange, match=r"test_errors\.py:\d+"):
        use(x, gt.tensor([0, bad])).numpy()
    # An in-place write that failed has left the old value; anything else never touched it.
    np.testing.assert_array_equal(x.numpy(), np.arange(16, dtype=np.float32).reshape(4, 4))


def test_a_failure_is_raised_once_with_all_that_followed(session: Session) -> None:
    """Ten calls in flight use what failed: one error, then everything works again."""
    x = made(gt.ones(4))
    bad = x[gt.tensor([7])]
    later = []
    for _ in range(10):
        bad = bad * 2.0
        recording.recorder().settle()
        later.append(bad)
    with pytest.raises(IndexOutOfRange):
        later[-1].numpy()
    assert (x + 1.0).tolist() == [2.0] * 4
    with pytest.raises(IndexOutOfRange):
        later[3].numpy()  # its value was never made: reading it says why, again
    assert (x + 2.0).tolist() == [3.0] * 4


def test_two_failures_are_two_errors(session: Session) -> None:
    x = made(gt.ones(4))
    a = x[gt.tensor([7])]
    recording.recorder().settle()
    b = x[gt.tensor([8])]
    with pytest.raises(IndexOutOfRange):
        a.numpy()
    with pytest.raises(IndexOutOfRange):
        b.numpy()
    assert x.tolist() == [1.0] * 4


def test_a_failure_of_which_nothing_is_read_arrives_at_the_next_step(cluster: Cluster, session: Session) -> None:
    w = gt.ones(4, requires_grad=True)
    opt = gt.optim.SGD([w], lr=0.1)
    w[gt.tensor([9])].sum().backward()
    opt.step()
    opt.zero_grad()
    recording.recorder().settle()
    cluster.run()
    (w * w).sum().backward()
    with pytest.raises(IndexOutOfRange, match=r"test_errors\.py:\d+"):
        opt.step()
    assert w.tolist() == [1.0] * 4  # that step used the failed one's result, and failed with it
    opt.zero_grad()
    (w * w).sum().backward()
    opt.step()
    assert w.tolist() == pytest.approx([0.8] * 4)


# --- out of memory -------------------------------------------------------------------------------------------------


class Run:
    """A model, its optimizer, and steps of any batch size."""

    def __init__(self) -> None:
        gt.manual_seed(0)
        self.model = gt.nn.Sequential(gt.nn.Linear(8, 16), gt.nn.Tanh(), gt.nn.Linear(16, 4))
        self.opt = gt.optim.AdamW(self.model.parameters(), lr=0.01)
        rng = np.random.default_rng(0)
        self.x = gt.from_numpy(rng.normal(size=(4096, 8)).astype(np.float32))
        self.y = gt.from_numpy(rng.integers(0, 4, 4096))

    def step(self, batch: int, at: int = 0) -> None:
        self.opt.zero_grad()
        out = self.model(self.x[at : at + batch])
        gt.nn.functional.cross_entropy(out, self.y[at : at + batch]).backward()
        self.opt.step()

    def state(self) -> list[np.ndarray[Any, Any]]:
        moments = [s[k] for s in self.opt.state.values() for k in ("exp_avg", "exp_avg_sq")]
        return arrays([list(self.model.parameters()), moments])


@pytest.fixture
def scarce() -> Iterator[Session]:
    """A cluster whose worker has room for a batch of 64 and not for one of 2048."""
    settings = config.replace(config.load(), fake_memory=200_000)
    with session_on(in_turn(Cluster(settings=settings))) as session:
        yield session


@pytest.mark.parametrize("k", [0, 1, 5])
def test_out_of_memory_keeps_the_model_and_the_session(k: int, scarce: Session) -> None:
    with using(Cluster().client()):
        good = Run()
        for i in range(k):
            good.step(64, 64 * i)
        want = good.state()
        for i in range(3):
            good.step(32, 32 * i)
        after = good.state()

    run = Run()
    for i in range(k):
        run.step(64, 64 * i)
    raised = None
    try:
        run.step(2048)  # step k: fails on the worker
        run.step(64)  # the next one: by its end the error is here
    except OutOfMemory as e:
        raised = e
    assert raised is not None
    assert "test_errors.py:" in str(raised)
    same(run.state(), want, rtol=0)
    assert [s["step"] for s in run.opt.state.values()] == [k] * 4  # what failed was not counted either
    for i in range(3):
        run.step(32, 32 * i)
    same(run.state(), after, rtol=0)


def test_out_of_memory_arrives_by_the_end_of_the_next_step(scarce: Session) -> None:
    """Nothing is read, however far the client could run ahead: the next step raises, and is not done either."""
    run = Run()
    run.step(64)
    good = run.state()
    run.step(2048)
    with pytest.raises(OutOfMemory, match=r"bytes.*\n  made by \w+ at .*test_errors\.py:\d+"):
        run.step(64)
    same(run.state(), good, rtol=0)


def test_a_step_that_was_marked_before_the_failure_is_known_fails_too(scarce: Session) -> None:
    run = Run()
    run.step(64)
    run.step(64)
    good = run.state()
    old, labels = made(gt.ones(2)), run.y
    run.y = gt.from_numpy(np.full(4096, 99))
    run.step(64)  # a program that went well before: nobody waits for it
    run.step(64)  # ended, not sent
    scarce.channel.cluster.run()
    with pytest.raises(IndexOutOfRange):
        old.numpy()
    same(run.state(), good, rtol=0)
    run.y = labels
    run.step(64)
    assert all((a != b).any() for a, b in zip(run.state(), good, strict=True))


# --- forks, copies, pickles, other sessions ---------------------------------------------------------------------------


def test_pickling_names_the_cure(session: Session) -> None:
    with pytest.raises(TypeError, match=r"cannot be pickled; use gt\.save\(\), or pickle tensor\.numpy\(\)"):
        pickle.dumps(gt.ones(2))
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps({"model": gt.nn.Linear(2, 2)})
    assert pickle.loads(pickle.dumps(gt.float32)) is gt.float32


def test_deepcopy(session: Session) -> None:
    w = gt.ones(2, requires_grad=True)
    (w * 3.0).sum().backward()
    twin = copy.deepcopy({"w": w, "again": w})
    assert twin["w"] is twin["again"]
    assert twin["w"].requires_grad
    assert twin["w"].grad.tolist() == [3.0, 3.0]
    twin["w"].grad.zero_()
    assert w.grad.tolist() == [3.0, 3.0]
    w.tag = "mine"
    assert copy.deepcopy(w).tag == "mine"
    with pytest.raises(AutogradError, match=r"deepcopy: the tensor must be a leaf; copy tensor\.detach\(\) instead"):
        copy.deepcopy(w * 2.0)


# Others warn of forks too: jax, if another test has loaded it into this process, and Python 3.12 if there are threads.
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning", "ignore:.*fork:DeprecationWarning")
def test_a_forked_child_gets_an_error(session: Session) -> None:
    """The child's first use raises one clear line, and its finalizers do nothing."""
    x = gt.ones(3)
    x.numpy()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:  # pragma: no cover - in the child
        text = "no error"
        try:
            x * 2.0
        except ForkError as e:
            text = str(e)
        except BaseException as e:
            text = repr(e)
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as f:
        said = f.read()
    os.waitpid(pid, 0)
    assert "GT cannot be used in a forked child" in said
    assert "\n" not in said
    assert (x * 2.0).tolist() == [2.0] * 3  # the parent is as it was


def test_a_tensor_of_another_session(session: Session) -> None:
    with using(Cluster().client()):
        settled, pending = gt.ones(2), gt.ones(2) * 2.0
        settled.numpy()
        pending = settled * 2.0
    for other in (settled, pending):
        with pytest.raises(ServerError, match="session"):
            gt.ones(2) + other
    assert (gt.ones(2) + 1.0).tolist() == [2.0, 2.0]


def test_a_tensor_of_an_old_session_is_not_mistaken_for_one_of_the_new(cluster: Cluster) -> None:
    """Both may have the same id."""
    with using(cluster.client()):
        old, pending = made(gt.ones(3)), gt.ones(3) + 1
    with using(cluster.client()):
        new = made(gt.zeros(3))
        twice = gt.function(lambda x: (x * 2).sum())
        assert [twice(new).item() for _ in range(3)] == [0.0] * 3
        uses = (old.numpy, pending.numpy, old.tolist, lambda: new + old, lambda: twice(old), lambda: old.sum().item())
        for use in uses:
            with pytest.raises(ServerError, match="belongs to another session, or to one that is closed"):
                use()
        assert new.tolist() == [0.0] * 3


def test_a_closed_session(cluster: Cluster) -> None:
    with using(cluster.client()) as session:
        x = gt.ones(2)
        x.numpy()
        fd = session._sleeper().fd
        os.fstat(fd)
        session.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
        with pytest.raises(ServerError, match="closed"):
            session.fetch(x._v)


def test_a_lost_server_is_reported(cluster: Cluster) -> None:
    with using(cluster.client()) as session:
        x = gt.ones(2)
        x.numpy()
        session.channel.cut = True
        for _ in range(2):
            with pytest.raises(ServerError, match="the connection to the server is gone"):
                (x * 2.0).numpy()


def test_errors_of_a_thread_stay_usable(session: Session) -> None:
    """A thread that dies in the middle of an op leaves the others alone."""
    x = gt.ones(2)
    said: list[str] = []

    def work() -> None:
        use(recording.new_recorder(session))
        y = x * 2.0
        try:
            y @ gt.ones(5, 5)
        except ShapeError as e:
            said.append(str(e))

    run_threads(work)
    assert len(said) == 1
    assert (x * 3.0).tolist() == [3.0, 3.0]


def test_what_was_held_back_when_the_connection_broke_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    with session_on() as session:
        gt.ones(2).sum().item()
        session._out.append((GetStats(1), None))
        session.give_up("the server is gone")
        monkeypatch.setattr(session.channel, "send_all", raising(RuntimeError("the channel is closed")))
        session.send_held()  # the timer does this
        monkeypatch.undo()
        session._out.clear()
