"""The benchmarks run, agree with PyTorch, and leave nothing behind. How fast anything is, no test says."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.processes.running import DEADLINE_S, alive, environment

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def _beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmarks import each other by their file names."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def run(tmp_path: Path, benchmark: str, *arguments: str) -> str:
    """What a benchmark prints."""
    (tmp_path / "tmp").mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / benchmark), *arguments],
        env=environment(GT_AUTO_COMPILE="0", GT_CACHE_DIR=str(tmp_path / "cache"), TMPDIR=str(tmp_path / "tmp")),
        capture_output=True,
        text=True,
        timeout=8 * DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.processes
def test_steps_are_compared_timed_and_drawn(tmp_path: Path) -> None:
    file, picture = tmp_path / "steps.json", tmp_path / "steps.svg"
    output = run(tmp_path, "steps.py", "--quick", "--model", "mlp", "--rivals", "eager", "--json", str(file))
    assert "over eager" in output
    facts = json.loads(file.read_text())["models"]["mlp"]
    assert facts["errors"] == {}
    assert set(facts["step_ms"]) == {"gt", "gt_function", "eager"}
    assert 0 <= max(facts["losses_apart"].values()) < 1e-3
    assert not list((tmp_path / "tmp").glob("gt-*")), "a private server left its directory"

    run(tmp_path, "plot.py", "--results", str(tmp_path), "--out", str(picture))
    drawn = ElementTree.fromstring(picture.read_text())
    hints = [title.text or "" for title in drawn.iter("{http://www.w3.org/2000/svg}title")]
    of = ("PyTorch eager", "GT, plain loop", "GT, @gt.function")
    assert [hint.partition(":")[0] for hint in hints] == [f"mlp, {each}" for each in of]


@pytest.mark.processes
def test_clients_have_a_worker_beside_pytorch(tmp_path: Path) -> None:
    file = tmp_path / "sharing.json"
    run(tmp_path, "sharing.py", "--quick", "--device", "cpu", "--clients", "1", "--json", str(file))
    per_s = json.loads(file.read_text())["steps_per_s"]
    assert min(per_s["gt"], per_s["gt_function"], per_s["torch"]) > 0
    assert not list((tmp_path / "tmp").glob("gt-*"))


@pytest.mark.processes
def test_planning_is_timed_for_every_model_and_mesh(tmp_path: Path) -> None:
    file = tmp_path / "planning.json"
    run(tmp_path, "planning.py", "--quick", "--json", str(file))
    figures = json.loads(file.read_text())["figures"]
    assert {key.partition(",")[0] for key in figures} == {"mlp", "cnn", "gpt"}
    assert len(figures) == 18
    assert all(each["cold_ms"] > 0 for each in figures.values())


# --- rivals -------------------------------------------------------------------------------------------


class Pupil:
    """What a rival has in its process here."""

    def add(self, a: int, b: int) -> int:
        return a + b

    def stumble(self) -> None:
        raise ValueError("no such step\nand more")

    def die(self) -> None:
        sys.exit(3)


@pytest.mark.usefixtures("_beside")
def test_a_rival_answers_and_fails_in_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    from processes import Failed, Rival

    with Rival(Pupil) as rival:
        assert rival.ask("add", 2, 3) == 5
        with pytest.raises(Failed, match=r"^ValueError: no such step$"):
            rival.ask("stumble")
    assert "and more" in capfd.readouterr().err  # the whole of it is there to be read
    with Rival(Pupil) as rival, pytest.raises(Failed, match="ended with code 3"):
        rival.ask("die")


@pytest.mark.usefixtures("_beside")
def test_a_rival_that_takes_too_long_has_failed_and_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    import processes

    monkeypatch.setattr(processes, "END_S", 0.2)
    with processes.Rival(time.sleep, (600.0,)) as rival:
        with pytest.raises(processes.Failed, match="no answer within 0 s"):
            rival.answer(0.0)
        assert alive(rival.pid)
    assert not alive(rival.pid)


@pytest.mark.processes
def test_sharded(tmp_path: Path) -> None:
    """Two workers train as DDP and DTensor do, and move as many bytes as DDP does."""
    run(tmp_path, "sharded.py", "--model", "mlp", "--quick", "--json", str(tmp_path / "found.json"))
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["mlp_data"]["sent_bytes"] <= 1.001 * found["mlp_data"]["textbook_bytes"]
    assert found["mlp_tensor"]["losses_apart"] < 1e-3


@pytest.mark.processes
def test_ops_are_compared_one_by_one(tmp_path: Path) -> None:
    file = tmp_path / "compare.json"
    run(tmp_path, "compare.py", "--quick", "--json", str(file))
    ratios = json.loads(file.read_text())["ratios"]
    assert {key.partition(" ")[0] for key in ratios} >= set("matmul linear mse backward relu sigmoid tanh".split())
    assert min(ratios.values()) > 0


def test_the_readme_names_every_benchmark() -> None:
    text = (BENCHMARKS / "README.md").read_text()
    assert [file.name for file in BENCHMARKS.glob("*.py") if f"`{file.name}`" not in text] == []
