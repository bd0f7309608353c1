"""How exactly float32 is computed: torch's switches, and the programs that carry them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import gt
from gt.client.programs.tree import current_precision
from gt.client.record.recorder import recorder
from gt.client.session.connecting import choose_precision
from gt.client.session.session import Session
from gt.errors import ArgumentError
from gt.program import DEFAULT_PRECISION, PRODUCTS, Precision
from tests.sim.cluster import Cluster, using


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    choose_precision(*DEFAULT_PRECISION)


@pytest.fixture
def torchs_flags() -> Iterator[None]:
    """torch in this process is the worker's too."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]


def sent(session: Session) -> list[Precision]:
    """The precisions of the programs that were sent, in the order of their last use."""
    recorder().settle()
    return [v.program.precision for v in session.variants.values()]


def test_the_switches_are_one_as_in_torch(torchs_flags: None) -> None:
    for lib in (torch, gt):
        cuda, cudnn = lib.backends.cuda.matmul, lib.backends.cudnn
        seen: list[Any] = []
        for word in reversed(PRODUCTS):
            lib.set_float32_matmul_precision(word)
            seen.append((lib.get_float32_matmul_precision(), cuda.allow_tf32, cudnn.allow_tf32))
        cuda.allow_tf32 = True
        seen.append((lib.get_float32_matmul_precision(), cuda.fp32_precision))
        cuda.allow_tf32 = False
        seen.append((lib.get_float32_matmul_precision(), cuda.fp32_precision))
        cudnn.allow_tf32 = False
        with cudnn.flags(enabled=True, allow_tf32=True):
            seen.append(cudnn.allow_tf32)
        seen.append(cudnn.allow_tf32)
        assert seen == [
            ("medium", True, True), ("high", True, True), ("highest", False, True),
            ("high", "tf32"), ("highest", "ieee"), True, False,
        ], lib.__name__  # fmt: skip


def test_other_words_are_refused() -> None:
    with pytest.raises(ArgumentError, match="precision must be one of 'highest', 'high',"):
        gt.set_float32_matmul_precision("low")
    with pytest.raises(ArgumentError, match=r"fp32_precision must be .*, got 'exact'"):
        gt.backends.cuda.matmul.fp32_precision = "exact"
    assert current_precision() == DEFAULT_PRECISION


def test_programs_recorded_afterwards_have_the_precision(session: Session) -> None:
    x = gt.ones(2, 2)
    y = x @ x
    gt.set_float32_matmul_precision("high")
    z = y @ x
    gt.backends.cudnn.allow_tf32 = False
    w = z @ x
    assert sent(session) == [DEFAULT_PRECISION, Precision("high"), Precision("high", False)]
    assert w.tolist() == [[8.0, 8.0], [8.0, 8.0]]


def test_setting_the_same_precision_again_ends_no_program(session: Session) -> None:
    x = gt.ones(2)
    gt.set_float32_matmul_precision("highest")
    y = x + 1
    recorder().settle()
    assert len(session.variants) == 1
    assert y.sum().item() == 4


def test_each_precision_has_its_own_programs_and_knows_them(session: Session) -> None:
    x = gt.ones(2, 2)
    recorder().settle()
    for _ in range(3):
        for word in PRODUCTS:
            gt.set_float32_matmul_precision(word)
            y = x @ x
            recorder().settle()
    assert session.defined == 4
    assert sent(session)[1:] == [Precision(word) for word in PRODUCTS]
    assert len({v.hash for v in session.variants.values()}) == 4
    assert y.tolist() == [[2.0, 2.0], [2.0, 2.0]]


def test_another_threads_program_ends_too(session: Session) -> None:
    steps = [threading.Event() for _ in range(3)]
    kept: list[Any] = []

    def work() -> None:
        kept.append(gt.ones(2) + 1)
        steps[0].set()
        steps[1].wait(10)
        kept.append(kept[0] * 2)
        recorder().settle()
        steps[2].set()

    thread = threading.Thread(target=work)
    thread.start()
    assert steps[0].wait(10)
    gt.set_float32_matmul_precision("medium")
    assert sent(session) == [DEFAULT_PRECISION]
    steps[1].set()
    assert steps[2].wait(10)
    thread.join()
    assert sent(session) == [DEFAULT_PRECISION, Precision("medium")]


def test_a_function_is_traced_anew_and_replayed_with_its_own(session: Session) -> None:
    runs: list[str] = []

    @gt.function
    def f(x: Any) -> Any:
        runs.append(gt.get_float32_matmul_precision())
        return x @ x

    x = gt.ones(2, 2)
    for word in ("highest", "high", "highest", "high"):
        gt.set_float32_matmul_precision(word)
        y = f(x)
        assert y.tolist() == [[2.0, 2.0], [2.0, 2.0]]
    assert runs == ["highest", "high"]
    assert f.replays == 2
    with_products = [v.program for v in session.variants.values() if v.program.code[-1].op == "matmul"]
    assert [p.precision for p in with_products] == [DEFAULT_PRECISION, Precision("high")]


def test_a_change_inside_a_function_gives_two_programs_and_no_replay(session: Session) -> None:
    @gt.function
    def f(x: Any) -> Any:
        y = x @ x
        with gt.backends.cudnn.flags(allow_tf32=False):
            z = y @ x
        return z + 1

    for _ in range(3):
        assert f(gt.ones(2, 2)).tolist() == [[5.0, 5.0], [5.0, 5.0]]
    assert f.replays == 0
    assert Precision("highest", False) in sent(session)


def test_no_session_begins_for_a_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    from gt.client.session import connecting as sessions

    monkeypatch.setattr(sessions, "_current", None)
    gt.set_float32_matmul_precision("high")
    assert sessions._current is None


def test_the_worker_computes_with_the_precision_of_the_program(torchs_flags: None) -> None:
    """A session's programs set the engine; another session's set it back."""
    cluster = Cluster(engine="torch")
    a, b = cluster.client(), cluster.client()
    with using(a):
        gt.set_float32_matmul_precision("medium")
        gt.backends.cudnn.allow_tf32 = False
        (gt.ones(2) + 1).sum().item()
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == ("medium", False)
    choose_precision(*DEFAULT_PRECISION)
    with using(b):
        (gt.ones(2) + 1).sum().item()
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == ("highest", True)
    for session in (a, b):
        session.close()
