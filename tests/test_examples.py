"""The examples run, learn, and leave nothing behind."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes.running import DEADLINE_S, environment

pytestmark = pytest.mark.processes

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(example: str, steps: int, tmp_path: Path) -> str:
    """What the example prints with so few steps, on the numpy engine."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / example), str(steps)],
        env=environment(GT_ENGINE="numpy", TMPDIR=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert not list(tmp_path.iterdir()), "a private server left its directory"
    return done.stdout


def losses(output: str) -> list[float]:
    return [float(x) for x in re.findall(r"loss (\d+\.\d+)", output)]


def test_mlp_learns(tmp_path: Path) -> None:
    output = run("mlp.py", 200, tmp_path)
    found = losses(output)
    assert len(found) == 10
    assert found[-1] < 0.5 * found[0]
    before, after = (float(x) for x in re.findall(r"accuracy (\d+\.\d)%", output))
    assert after > 80 > before


def test_transformer_learns(tmp_path: Path) -> None:
    output = run("transformer.py", 12, tmp_path)
    found = losses(output)
    assert found[-1] < 0.95 * found[0]
    assert "of 200 new sequences" in output


def test_every_example_is_tested() -> None:
    tested = set(re.findall(r'run\("(\w+\.py)"', Path(__file__).read_text()))
    assert tested == {path.name for path in EXAMPLES.glob("*.py")}
