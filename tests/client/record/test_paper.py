"""On paper: models of any size are built and their steps are recorded without a server; nothing leaks out."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gt
from gt import nn
from gt.client.programs.pending import in_use
from gt.client.record.recorder import recorder
from gt.client.session.session import Session
from gt.errors import ArgumentError, FunctionError, PaperError, ServerError, ShapeError
from tests.client.conftest import run_threads

F = nn.functional
HUGE = 1_000_000

pytestmark = pytest.mark.usefixtures("session")


def test_tensors_have_shape_and_dtype_and_no_data() -> None:
    with gt.on_paper():
        x = gt.randn(HUGE, HUGE, dtype=gt.bfloat16, requires_grad=True)
        y = (x @ x.t()).relu().float().mean(dim=0)
        y.sum().backward()
        assert (y.shape, y.dtype) == ((HUGE,), gt.float32)
        assert x.grad is not None
        assert (x.grad.shape, x.grad.dtype) == ((HUGE, HUGE), gt.bfloat16)
        with pytest.raises(ShapeError, match="matmul"):
            x.float() @ y.view(10, -1)


READS: dict[str, Callable[[Any], Any]] = {
    "item": lambda x: x.sum().item(),
    "numpy": lambda x: x.detach().numpy(),
    "tolist": lambda x: x.tolist(),
    "if": lambda x: 1 if x.sum() > 0 else 0,
    "float": lambda x: float(x[0, 0]),
    "format": lambda x: f"{x.sum():.3f}",
    "mask": lambda x: x[x > 0],
    "array": lambda x: np.asarray(x),
    "unique": lambda x: x.unique(),
}


@pytest.mark.parametrize("name", READS)
def test_reading_a_value_names_the_line(name: str) -> None:
    with gt.on_paper():
        x = gt.ones(3, 4)
        with pytest.raises(PaperError, match=rf"{__file__}:\d+: the value of a tensor cannot be read on paper") as e:
            READS[name](x)
        assert "\n" not in str(e.value)
        assert (x + 1).shape == (3, 4)  # recording goes on


def test_printing_shows_the_line_instead_of_numbers() -> None:
    """As everywhere, the text of a tensor that cannot be read says why: a debugger shows it, and does not fail."""
    with gt.on_paper():
        assert str(gt.ones(3)).startswith(f"<tensor f32[3]: {__file__}:")
        assert "Linear" in str(nn.Linear(2, 3))


def test_uploads_keep_no_bytes() -> None:
    with gt.on_paper():
        rows = np.zeros((1000, 1000), np.float32)
        before = sys.getrefcount(rows)
        x, small = gt.from_numpy(rows), gt.tensor([1.0, 2.0])
        assert x.shape == rows.shape
        assert small.shape == (2,)
        session = recorder().session
        assert not session.transfers.uploads
        assert sys.getrefcount(rows) == before


def test_the_earlier_session_continues(session: Session) -> None:
    x = gt.ones(3)
    y = x + 1  # pending
    mine = in_use()
    calls = session.seq
    with gt.on_paper():
        gt.zeros(5).relu()
        with gt.on_paper():  # part of the outer block
            z = gt.zeros(5)
        assert (z + 1).shape == (5,)
    assert in_use() is mine
    assert session.seq == calls  # nothing was sent
    assert y.tolist() == [2.0] * 3


def test_the_earlier_session_continues_after_an_error() -> None:
    mine = recorder()
    with pytest.raises(ShapeError), gt.on_paper():
        gt.ones(3) @ gt.ones(4)
    assert in_use() is mine


def test_modes_go_in_and_come_out() -> None:
    with gt.no_grad(), gt.on_paper():
        assert not gt.is_grad_enabled()
        x = gt.ones(3, requires_grad=True)
        assert (x * 2).grad_fn is None
    assert gt.is_grad_enabled()
    with gt.autocast(dtype=gt.bfloat16):
        with gt.on_paper():
            assert (gt.ones(2, 2) @ gt.ones(2, 2)).dtype is gt.bfloat16
        assert (gt.ones(2, 2) @ gt.ones(2, 2)).dtype is gt.bfloat16
    assert (gt.ones(2, 2) @ gt.ones(2, 2)).dtype is gt.float32


def test_tensors_of_one_side_are_refused_on_the_other() -> None:
    live, pending = gt.from_numpy(np.ones(2000, np.float32)), gt.ones(3) + 1
    with gt.on_paper():
        for t in (live, pending):
            with pytest.raises(ServerError, match=r"made outside of the gt\.on_paper\(\) block"):
                t.relu()
            with pytest.raises(ServerError, match=r"made outside of the gt\.on_paper\(\) block"):
                t.numpy()
        made, recorded = gt.from_numpy(np.ones(2000, np.float32)), gt.ones(3) + 1
    for t in (made, recorded):
        for use in (lambda t: t + 1, lambda t: t.numpy(), lambda t: t.add_(1)):
            with pytest.raises(ServerError, match="was made on paper"):
                use(t)
    with gt.on_paper(), pytest.raises(ServerError, match="was made on paper"):
        made + 1  # a new block is new paper
    assert (live.sum() + pending.sum()).item() == 2006.0


def test_other_threads_are_not_on_paper() -> None:
    found: list[Any] = []

    def work() -> None:
        found.append(in_use())

    with gt.on_paper():
        run_threads(work)
    assert found == [None]


def test_a_mesh_on_paper_needs_no_workers() -> None:
    with gt.on_paper():
        assert gt.mesh(x=9, y=8).axes == {"x": 9, "y": 8}
        w = gt.shard(gt.zeros(4096, 4096), {0: "y"})
        with pytest.raises(PaperError, match="the layout of a tensor"):
            w.layout  # noqa: B018 - it is a read
        assert gt.mesh("stage", x=2, workers=[1, 2]).workers == (2, 3)
    with pytest.raises(ArgumentError, match="no default mesh"):
        gt.mesh()


def test_what_has_no_place_on_paper() -> None:
    with gt.on_paper():
        for leave in (lambda: gt.connect("localhost:1"), gt.disconnect):
            with pytest.raises(ArgumentError, match=r"not inside of a gt\.on_paper\(\) block"):
                leave()

    @gt.function
    def f(x: Any) -> Any:
        with gt.on_paper():
            return x + 1

    with pytest.raises(FunctionError, match=r"gt\.on_paper\(\) cannot begin inside"):
        f(gt.ones(2))


def test_a_traced_function_on_paper() -> None:
    @gt.function
    def f(x: Any) -> Any:
        return (x * 2).relu()

    assert f(gt.ones(2)).tolist() == [2.0, 2.0]
    with gt.on_paper():
        x = gt.ones(HUGE, HUGE)
        assert f(x).shape == f(x).shape == (HUGE, HUGE)
    assert f(gt.ones(2)).tolist() == [2.0, 2.0]


OPTIMIZERS = [
    gt.optim.SGD, gt.optim.Adam, gt.optim.AdamW, gt.optim.Adagrad, gt.optim.RMSprop, gt.optim.NAdam, gt.optim.RAdam,
    gt.optim.Adadelta, gt.optim.Adamax, gt.optim.Rprop, gt.optim.ASGD,
]  # fmt: skip


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_steps_of_optimizers_repeat(optimizer: Any) -> None:
    with gt.on_paper():
        model = nn.Sequential(nn.Linear(HUGE, 100), nn.LayerNorm(100), nn.Dropout(0.1), nn.Linear(100, HUGE))
        chosen = optimizer(model.parameters(), lr=0.1)
        schedule = gt.optim.lr_scheduler.CosineAnnealingLR(chosen, T_max=100)
        x = gt.zeros(64, HUGE)
        sent = []
        for _ in range(4):
            chosen.zero_grad()
            with gt.autocast(dtype=gt.bfloat16):
                loss = gt.checkpoint(model, x, use_reentrant=False).square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            chosen.step()
            schedule.step()
            sent.append(gt.debug.get_client_stats()["programs_sent"])
        assert sent[3] == sent[2]


INITS: dict[str, Callable[[Any], Any]] = {
    "uniform": nn.init.uniform_, "normal": nn.init.normal_, "trunc_normal": nn.init.trunc_normal_,
    "xavier_uniform": nn.init.xavier_uniform_, "kaiming_normal": nn.init.kaiming_normal_,
    "orthogonal": nn.init.orthogonal_, "constant": lambda w: nn.init.constant_(w, 0.5), "zeros": nn.init.zeros_,
}  # fmt: skip


@pytest.mark.parametrize("name", INITS)
def test_initializers(name: str) -> None:
    with gt.on_paper():
        w = nn.Parameter(gt.empty(100_000, 100_000))
        assert INITS[name](w) is w


def test_nothing_is_started(tmp_path: Path) -> None:
    """A script that works on paper only has one thread, no child process, and loads neither dispatcher nor worker."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys, threading, gt\n"
        "with gt.on_paper():\n"
        "    model = gt.nn.Linear(100_000, 100_000)\n"
        "    optimizer = gt.optim.AdamW(model.parameters())\n"
        "    model(gt.zeros(8, 100_000)).sum().backward()\n"
        "    optimizer.step()\n"
        "children = open(f'/proc/self/task/{os.getpid()}/children').read().split()\n"
        "heavy = [m for m in ('torch', 'gt.dispatcher', 'gt.worker', 'gt.server.workers') if m in sys.modules]\n"
        "print(threading.active_count(), children, heavy)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("1 [] []", "")
