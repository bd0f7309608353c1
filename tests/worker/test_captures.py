"""Programs as graphs: what is replayed, what is not, and that nobody's values change under his hands."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import gt
from gt import config, nn
from gt.client.record.recorder import recorder
from gt.errors import IndexOutOfRange
from gt.ops import TABLE
from gt.worker.calls import Calls
from tests.sessions import raising
from tests.sim.cluster import Cluster, using
from tests.worker.pretend import Pretend


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    for name in ("SLOWER", "BUSY"):  # to play a replay takes longer than to run plain code
        monkeypatch.setattr(f"gt.worker.run.tiers.{name}", 1e9)
    return Cluster(engine=Pretend(), settings=config.replace(config.load(), auto_compile=True))


@pytest.fixture
def device(cluster: Cluster) -> Iterator[Pretend]:
    with using(cluster.client()):
        yield cluster.engine


class Trainer:
    """A small network with all that makes captures hard: dropout, numbers by value, slices, an index check."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.x = gt.from_numpy(rng.normal(size=(64, 8)).astype(np.float32))
        self.y = gt.from_numpy(rng.integers(0, 4, 64))
        gt.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.LayerNorm(16), nn.Linear(16, 4))
        self.optimizer = gt.optim.AdamW(self.model.parameters(), lr=1e-2)

    def step(self, i: int, lr: float = 1e-2, rows: int = 4) -> tuple[Any, Any]:
        self.optimizer.param_groups[0]["lr"] = lr
        at = i * 4 % 56
        logits = self.model(self.x[at : at + rows])
        loss = nn.functional.cross_entropy(logits, self.y[at : at + rows])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach(), logits.detach()

    def losses(self, *steps: int, lr: float = 1e-2) -> list[float]:
        """Of these steps: range(*steps)."""
        return [self.step(i, lr)[0].item() for i in range(*steps)]


def hottest() -> dict[str, Any]:
    """What the worker says of the program that was called most."""
    (worker,) = gt.debug.get_worker_stats()["workers"].values()
    return max(worker["programs"].values(), key=lambda p: p["hits"])


def replays() -> int:
    return int(hottest()["tiers"]["2"]["hits"])


def plainly(run: Callable[[], Any]) -> Any:
    """What this returns on a worker that captures nothing."""
    with using(Cluster(engine="torch").client()):
        return run()


def plain_losses(steps: int) -> list[float]:
    return plainly(lambda: Trainer().losses(steps))


def test_replays_train_as_plain_code_does(device: Pretend) -> None:
    def run() -> list[float]:
        trainer = Trainer()
        return [trainer.step(i, 1e-2 / (1 + i))[0].item() for i in range(40)]

    losses = run()
    assert replays() > 30
    np.testing.assert_allclose(losses, plainly(run), rtol=1e-5)


def test_an_index_that_was_uploaded_is_looked_at_once(device: Pretend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is in range is known when it comes: no call has to wait for a check on the device."""
    checks = []
    monkeypatch.setattr(device, "check", lambda *a: checks.append(a) or Pretend.check(device, *a))
    trainer = Trainer()
    trainer.y = gt.from_numpy(np.tile(np.arange(4), 256))  # more than comes by value
    trainer.losses(10)
    assert not checks
    trainer.y = gt.from_numpy(np.tile(np.arange(4), 256)) * 1  # computed: nobody knows
    trainer.step(0)[0].item()
    assert checks


def test_what_is_kept_stays_as_it_was(device: Pretend) -> None:
    """400 steps with random keeping and dropping of losses, logits and gradients. What is read at once must be the
    same bits whenever it is read again; what is read late must be what a plain run has."""
    rng, steps = random.Random(0), 400
    with using(Cluster(engine="torch").client()):
        twin = Trainer()
        plain = [[v.numpy() for v in twin.step(i, 1e-4)] for i in range(steps)]
    trainer = Trainer()
    read: list[tuple[Any, Any]] = []
    unread: list[tuple[Any, Any]] = []
    for i in range(steps):
        loss, logits = trainer.step(i, 1e-4)
        values = [loss, logits, *[p.grad for p in trainer.model.parameters()]]
        read += [(v, v.numpy().copy()) for v in rng.sample(values, rng.choice([0, 0, 1, 2]))]
        unread += [(v, was) for v, was in zip(values[:2], plain[i], strict=True) if rng.random() < 0.2]
        del loss, logits, values
        if rng.random() < 0.2:
            for v, was in rng.sample(read, min(len(read), 4)):
                assert np.array_equal(v.numpy(), was)
            for some in (read, unread):
                rng.shuffle(some)
                del some[rng.randrange(20, 40) :]
    for v, was in read:
        assert np.array_equal(v.numpy(), was)
    for v, was in unread:
        np.testing.assert_allclose(v.numpy(), was, rtol=1e-3, atol=1e-4)
    assert replays() > 100


def test_a_bad_index_changes_nothing(device: Pretend) -> None:
    trainer = Trainer()
    for i in range(10):
        trainer.step(i)
    before = [p.detach().numpy().copy() for p in trainer.model.parameters()]
    good = trainer.y
    trainer.y = gt.from_numpy(np.full(64, 7))
    for _ in range(4):  # the first calls with another array are not replayed, the later ones are
        with pytest.raises(IndexOutOfRange):
            trainer.step(0)[0].item()
        gt.zeros(1).item()
    for p, was in zip(trainer.model.parameters(), before, strict=True):
        assert np.array_equal(p.detach().numpy(), was)
    trainer.y = good
    assert np.isfinite(trainer.step(11)[0].item())


def test_a_bad_index_changes_nothing_of_what_somebody_else_has_too(device: Pretend) -> None:
    """So the step does not write over it."""
    good, bad, one = (gt.from_numpy(np.full(8, k)) for k in (0, 8, 1))
    w, value = gt.ones(8, dtype=gt.float64), np.ones(8)
    for _ in range(12):
        for index in (good, bad):
            twin = copy.deepcopy(w)
            w._write(TABLE["sgd"](w, gt.gather(w, 0, index * one) * 2, 0.125, 0.5))
            recorder().settle()
            if index is bad:
                with pytest.raises(IndexOutOfRange):
                    gt.zeros(1).item()
            assert np.array_equal(twin.numpy(), value)
            value = w.numpy() if index is good else value
            assert np.array_equal(w.numpy(), value)
    assert replays() > 8


def test_a_number_that_is_an_index_out_of_range_names_its_line(device: Pretend) -> None:
    @gt.function
    def pick(x: Any, i: int) -> Any:
        return (x.exp() + 1).log().sqrt()[i]

    x = gt.ones(5)
    for i in range(8):
        pick(x, i % 5).item()
    with pytest.raises(Exception, match="out of range"):
        pick(x, 7).item()
    assert pick(x, 4).item() > 0


def test_two_programs_take_turns_on_the_same_parameters(device: Pretend) -> None:
    """Gradients are accumulated over two programs; both write what the other reads."""

    def run() -> list[float]:
        trainer, out = Trainer(), []
        for i in range(40):
            if i % 3 == 0:
                with gt.no_grad():
                    for p in trainer.model.parameters():
                        p.mul_(0.99)
            out.append(trainer.step(i)[0].item())
        return out

    np.testing.assert_allclose(run(), plainly(run), rtol=1e-5)


def test_graphs_share_their_memory(device: Pretend) -> None:
    """What one program has made is held while another one runs in the same memory."""

    def one(x: Any, a: float) -> Any:
        return ((x * a).sin() + 1).abs().sqrt()

    def two(x: Any, a: float) -> Any:
        return ((x + a).cos() - 1).abs().sqrt() * 2

    def run() -> list[Any]:
        x = gt.from_numpy(np.arange(512, dtype=np.float32).reshape(64, 8))
        first, second = gt.function(one), gt.function(two)
        both = [(first(x, 0.1 * i), second(x, 0.1 * i)) for i in range(20)]
        return [value.numpy() for pair in both for value in pair]

    np.testing.assert_allclose(run(), plainly(run), rtol=1e-5)
    assert replays() > 10


def test_a_result_of_a_graph_is_read_again_and_again_by_another_one(device: Pretend) -> None:
    """The graph that reads it was captured on the memory of the graph that made it, which then is used for others."""

    def one(x: Any, a: float) -> Any:
        return ((x * a).sin() + 1).abs().sqrt()

    def two(x: Any) -> Any:
        return (((x + 1).cos() - 1).abs().sqrt() * 2).sum()

    first, second = gt.function(one), gt.function(two)
    data = np.arange(512, dtype=np.float32).reshape(64, 8)
    x = gt.from_numpy(data)
    made = [first(x, 0.1 * i) for i in range(20)][-1]
    read = [second(made).item() for _ in range(20)]
    first(x, 5.0)
    assert {*read, second(made).item(), second(made).item()} == {read[0]}
    assert read[0] == pytest.approx(plainly(lambda: two(one(gt.from_numpy(data), 1.9)).item()), rel=1e-5)


@pytest.mark.parametrize("n", [4, 512])  # a small result has a place of its own, a large one is in shared memory
@pytest.mark.parametrize("fails", [False, True])
def test_a_result_that_another_program_updates_stays_as_that_left_it(device: Pretend, n: int, fails: bool) -> None:
    """That one is too short for a graph: it writes over the array, or fails and keeps it under another id."""

    def made(x: Any, a: float) -> Any:
        return ((x * a).sin() + 1).abs().sqrt()

    def run() -> list[Any]:
        x, function = gt.from_numpy(np.arange(n, dtype=np.float32)), gt.function(made)
        values, twins = [], []
        for i in range(40):
            value = function(x, 0.1 * i)
            twins.append(copy.deepcopy(value) if i % 2 else None)  # the array is another one's too
            g = value + gt.linalg.inv(gt.zeros(1, 1)).reshape(1) if fails else value
            value._write(TABLE["sgd"](value, g, 0.5, 0.0))
            del g
            recorder().settle()
            with suppress(RuntimeError):
                gt.zeros(1).item()  # raises it. What was read itself would be known
            values.append(value)
        return [v.numpy() for v in (*values, *twins) if v is not None]

    np.testing.assert_allclose(run(), plainly(run), rtol=1e-5)
    assert replays() > 20


def test_a_loss_that_is_held_for_long_stays_as_it_was(device: Pretend) -> None:
    """Small results go round in the graph's own places: who holds one when its place comes round keeps his value."""
    trainer = Trainer()
    plain = plain_losses(80)
    kept = [trainer.step(i)[0] for i in range(80)]
    np.testing.assert_allclose([loss.item() for loss in kept], plain, rtol=1e-5)
    assert replays() > 60


def test_the_same_call_again_is_known_as_such(device: Pretend, monkeypatch: pytest.MonkeyPatch) -> None:
    again: list[bool] = []
    run_again = Calls._run_again
    monkeypatch.setattr(Calls, "_run_again", lambda *a: again.append(run_again(*a)) or again[-1])
    trainer = Trainer()
    losses = trainer.losses(20)
    assert again.count(True) > 10
    # Another array in place of a parameter: it is not the same call, and must not run on the old memory.
    before = len(again)
    trainer.model[0].weight.data = trainer.model[0].weight.data * 2.0
    trainer.model[0].weight.detach().numpy()  # a program of its own
    other = trainer.step(20)[0].item()
    assert not again[before]
    with using(Cluster(engine="torch").client()):
        twin = Trainer()
        plain = twin.losses(20)
        twin.model[0].weight.data = twin.model[0].weight.data * 2.0
        np.testing.assert_allclose([*losses, other], [*plain, twin.step(20)[0].item()], rtol=1e-5)


def test_what_was_held_at_times_is_not_copied_at_every_call(device: Pretend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients are held from one step to the next, and let go in time. That two programs took turns, each finding the
    other's gradients held, says nothing of the calls after that."""
    import torch

    one, two = Trainer(), Trainer(1)
    for i in range(40):
        one.step(i) if i // 4 % 2 else two.step(i, rows=5)
    one.step(40)[0].item()
    copies: list[str] = []
    clone = torch.Tensor.clone

    def seen(t: Any, **how: Any) -> Any:
        copies.append(sys._getframe(1).f_code.co_name)
        return clone(t, **how)

    monkeypatch.setattr(torch.Tensor, "clone", seen)
    for i in range(41, 61):
        one.step(i)
    one.step(61)[0].item()
    moved = [name for name in copies if name in ("replay", "take_back")]  # not what the function itself copies
    assert copies
    assert len(moved) < 10


def test_programs_in_turn_that_update_the_same_statistics(device: Pretend) -> None:
    """A loop that reads its loss now and then calls other programs: some run as plain code, and the graphs go on."""

    def train() -> list[float]:
        gt.manual_seed(0)
        x = gt.from_numpy(np.random.default_rng(0).normal(size=(64, 6)).astype(np.float32))
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = gt.optim.Adam(model.parameters(), lr=1e-2)
        losses = []
        for i in range(60):
            loss = model(x).square().mean()
            if i % 7 == 6:
                losses.append(loss.item())  # which ends a program in the middle of the step
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return losses

    losses = train()
    facts = hottest()
    assert facts["tiers"]["2"]["hits"] > 40
    assert not facts["given_up"]
    np.testing.assert_allclose(losses, plainly(train), rtol=1e-5)


@pytest.mark.parametrize("turns", ["AAAAAAAABABABABABABA", "AAAAABBBBBCCCCCDDDDD", "AAAAABCABCABCABCABCA", "new ones"])
def test_inputs_that_change_are_copied_in(device: Pretend, turns: str) -> None:
    """Whatever the order of batches, the program is captured again once or twice, and then every call is a replay."""
    w = gt.ones(8)
    batches = [gt.from_numpy(np.full((64, 8), float(k), np.float32)) for k in range(4)]
    for i in range(100):
        k = i % 30 if turns == "new ones" else "ABCD".index(turns[i % len(turns)])
        x = gt.from_numpy(np.full((64, 8), float(k), np.float32)) if turns == "new ones" else batches[k]
        y = ((x * w).exp().log() + 1).sum()
        assert y.item() == pytest.approx(64 * 8 * (k + 1), rel=1e-4)
    assert replays() > 85
    assert device.captured <= 3


def test_a_capture_that_fails_is_tried_again(device: Pretend, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program runs on as plain code, its statistics say why, and it is captured when the cause has passed."""
    monkeypatch.setattr("gt.worker.run.tiers.FAILED_US", 1)
    device.refuses = raising(RuntimeError("no memory for this graph"))
    trainer, plain = Trainer(), plain_losses(60)
    losses = trainer.losses(20)
    assert hottest()["given_up"] == {"2": "RuntimeError: no memory for this graph"}
    assert "2" not in hottest()["tiers"]
    assert device.captured > 1
    device.refuses = None
    losses += trainer.losses(20, 60)
    np.testing.assert_allclose(losses, plain, rtol=1e-5)
    assert replays() > 10
    assert hottest()["given_up"] == {}


def test_a_capture_that_fails_concerns_its_session_only(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sessions train with the same program; in one of them most captures fail. All values are right, and the other
    session replays its graph from beginning to end."""
    monkeypatch.setattr("gt.worker.run.tiers.FAILED_US", 1)
    engine, rng = cluster.engine, random.Random(0)
    plain, refuse, clients = plain_losses(50), raising(RuntimeError("not this time")), []
    for _ in range(2):
        with using(cluster.client()) as session:
            clients.append((session, Trainer()))
    for i in range(50):
        for k, (session, trainer) in enumerate(clients):
            with using(session):
                engine.refuses = refuse if k and rng.random() < 0.9 else None
                assert trainer.step(i)[0].item() == pytest.approx(plain[i], rel=1e-5)
    with using(clients[0][0]):
        assert replays() > 40
