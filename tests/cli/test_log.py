"""`gt log`: what it finds in the logs of real sessions, and what it says where there is nothing to find."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import gt
from gt.cli.log import main
from gt.dispatcher.lines import LogLines
from gt.dispatcher.log import InstructionLog
from gt.errors import ServerError
from gt.transport.messages import Free, pack_ids
from tests.sim.cluster import Cluster, using


class Logged:
    """A cluster whose instruction log is written to a file."""

    def __init__(self, path: Path, workers: int = 1) -> None:
        self.path = path
        self.cluster = Cluster()
        for _ in range(workers - 1):
            self.cluster.add_worker()
        self.lines = LogLines()
        self.log = InstructionLog(self.write, held=self.cluster.machine.state)
        self.cluster.watch = lambda event, actions: [self.log(each) for each in (event, *actions)]

    def write(self, packed: bytes) -> None:
        with self.path.open("a") as file:
            file.write(self.lines.text(packed) if packed else "")

    def ask(self, capsys: pytest.CaptureFixture[str], *options: str) -> str:
        self.log.flush()
        capsys.readouterr()
        assert main([str(self.path), *options]) == 0
        return capsys.readouterr().out


@pytest.fixture
def logged(tmp_path: Path) -> Logged:
    return Logged(tmp_path / "log")


def id_of(tensor: gt.Tensor) -> int:
    handle = (tensor._v or tensor._read()).handle
    assert handle is not None
    return int(handle.id)


def test_a_tensor_from_its_upload_to_its_end(logged: Logged, capsys: pytest.CaptureFixture[str]) -> None:
    with using(logged.cluster.client()):
        x = gt.from_numpy(np.ones((200, 10), np.float32))
        y = (x * 2).sum()
        assert y.item() == 4000
        number, result = id_of(x), id_of(y)
        del x, y
        gt.ones(3).sum().item()  # takes what is to be freed along
    story = logged.ask(capsys, "--tensor", str(number))
    assert f"tensor {number} of session 1" in story
    order = [story.index(word) for word in ("  uploaded ", "  used ", "  freed ")]
    assert order == sorted(order)
    assert "(mul sum) at test_log.py:" in story
    story = logged.ask(capsys, "--tensor", str(result))
    order = [story.index(word) for word in ("  made ", "  fetched ", "  computed ", "  freed ")]
    assert order == sorted(order)
    assert "as f32[]" in story


def test_a_parameter_is_replaced_step_by_step(logged: Logged, capsys: pytest.CaptureFixture[str]) -> None:
    with using(logged.cluster.client()):
        w = gt.ones(4, requires_grad=True)
        optimizer = gt.optim.SGD([w], lr=0.1)
        gt.zeros(1).item()
        for _ in range(3):
            (w * w).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        w.detach().numpy()
        number = id_of(w)
    story = logged.ask(capsys, "--tensor", str(number))
    (line,) = [line for line in story.splitlines() if "  replaces " in line]
    before = line.split()[-1]
    assert f"by tensor {number} in call" in logged.ask(capsys, "--tensor", before)


def test_layouts_and_collectives_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logged = Logged(tmp_path / "log", workers=2)
    with using(logged.cluster.client()):
        gt.mesh(x=2)
        x = gt.shard(gt.ones(8, 4), {0: "x"})
        total = x.sum()
        total.item()
        number = id_of(x)
    story = logged.ask(capsys, "--tensor", str(number))
    assert "f32[8,4], layout [8@x] on x=2: workers 1 2" in story
    text = logged.path.read_text()
    assert "collective: all_reduce sum of workers 1-2" in text
    (plan,) = [line for line in text.splitlines() if "  PLAN " in line and "results [8@x] []" in line]
    program = plan.split("  ")[-1].split()[0]
    shown = logged.ask(capsys, "--program", program)
    assert "collective: all_reduce sum of workers 1-2" in shown
    assert "shard %0  {layout=[8@x]}" in shown


def test_a_failed_call(logged: Logged, capsys: pytest.CaptureFixture[str]) -> None:
    with using(logged.cluster.client()):
        table = gt.from_numpy(np.ones((300, 2), np.float32))
        bad = table[gt.from_numpy(np.array([1, 999]))]
        with pytest.raises(IndexError):
            bad.numpy()
        number = id_of(bad)
    errors = logged.ask(capsys, "--errors")
    assert "index 999 is out of range for size 300" in errors
    assert all("  ERROR " in line for line in errors.splitlines())
    story = logged.ask(capsys, "--tensor", str(number))
    assert "  ERROR " in story
    assert "index 999 is out of range for size 300" in story
    assert logged.ask(capsys, "--session", "1", "--errors") == errors
    assert re.search(r"\(test_log\.py:\d+, instruction \d+ of ", errors)
    found = re.search(r"the first, in line (\d+): session 1 (.*)", logged.ask(capsys))
    assert found is not None
    number, reason = found.groups()
    assert errors.splitlines()[0].split()[2] == number
    assert reason in errors.splitlines()[0]


def test_a_tensor_that_was_freed_too_early(logged: Logged, capsys: pytest.CaptureFixture[str]) -> None:
    with using(logged.cluster.client()) as session:
        x = gt.ones(5) + 1
        x.sum().item()
        number = id_of(x)
        session.send(Free(0, pack_ids([number])))  # the bug
        with pytest.raises(ServerError, match="does not exist"):
            (x + 1).numpy()
    story = logged.ask(capsys, "--tensor", str(number))
    order = [story.index(word) for word in ("  made ", "  freed ", "  ERROR ")]
    assert order == sorted(order)
    assert f"tensor {number} does not exist" in story


def test_sessions_and_runs_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        logged = Logged(tmp_path / "log")
        for _ in range(2):
            with using(logged.cluster.client()):
                (gt.ones(2) + 1).numpy()
        logged.log.flush()
    file = str(logged.path)
    assert main([file, "--tensor", "1"]) == 1
    assert "tensor 1 exists in the sessions 1, 2; choose one with --session" in capsys.readouterr().err
    assert "tensor 1 of session 2" in logged.ask(capsys, "--tensor", "1", "--session", "2")
    summary = logged.ask(capsys)
    assert summary.count("1 calls of 1 programs, 1 fetches, 0 errors") == 2
    assert logged.ask(capsys, "--run", "1") != summary
    assert main([file, "--run", "3"]) == 1
    assert "there is no run 3; it has 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--tensor", "99"], "nothing is told of tensor 99; results of calls have the ids 1 to 1"),
        (["--session", "9"], "there is no session 9; it has 1"),
        (["--program", "abcdef"], "there is no program abcdef"),
        (["--tensor", "-3"], "nothing is told of tensor -3"),
    ],
)
def test_what_is_not_there(logged: Logged, capsys: pytest.CaptureFixture[str], options: list[str], said: str) -> None:
    with using(logged.cluster.client()):
        gt.ones(2).numpy()
    logged.log.flush()
    assert main([str(logged.path), *options]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


def test_files_that_are_no_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nowhere")]) == 2
    assert capsys.readouterr().err.endswith("nowhere: No such file or directory\n")
    assert main([str(tmp_path)]) == 2
    (tmp_path / "other").write_bytes(b"\xff\x00 some text\n\n  a  b  c  d  e  f  g  h\n")
    assert main([str(tmp_path / "other")]) == 1
    assert "there is no instruction log in this file" in capsys.readouterr().err


def test_a_log_that_was_cut_off(logged: Logged, capsys: pytest.CaptureFixture[str]) -> None:
    with using(logged.cluster.client()):
        (gt.ones(2) + 1).numpy()
    logged.log.flush()
    text = logged.path.read_text()
    for cut in range(len(text) - 400, len(text), 7):
        logged.path.write_text(text[:cut])
        assert main([str(logged.path), "--tensor", "1"]) == 0
    capsys.readouterr()
