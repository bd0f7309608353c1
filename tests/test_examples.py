"""The examples run, learn, and leave nothing behind."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

from tests.processes.running import output_of

pytestmark = pytest.mark.processes

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(example: str, steps: int, tmp_path: Path, *more: str, engine: str = "numpy") -> str:
    """What the example prints with so few steps."""
    arguments = [str(EXAMPLES / example), str(steps), *more]
    output = output_of(arguments, GT_ENGINE=engine, GT_THREADS="1", TMPDIR=str(tmp_path))
    assert not list(tmp_path.iterdir()), "a private server left its directory"
    return output


def losses(output: str) -> list[float]:
    return [float(x) for x in re.findall(r"loss (\d+\.\d+)", output)]


def test_mlp_learns(tmp_path: Path) -> None:
    output = run("mlp.py", 200, tmp_path)
    found = losses(output)
    assert len(found) == 10
    assert found[-1] < 0.5 * found[0]
    before, after = (float(x) for x in re.findall(r"accuracy (\d+\.\d)%", output))
    assert after > 80 > before


#: Steps, engine, by how much the loss falls, and what is printed besides.
LEARNING: dict[str, tuple[int, str, float, str]] = {
    "transformer.py": (12, "numpy", 0.95, "of 200 new sequences"),
    "gpt.py": (20, "torch", 0.8, "\nThe "),  # what it writes begins with what it was given
    "cnn.py": (40, "torch", 0.7, "##"),  # what it saw is drawn
}


@pytest.mark.parametrize("example", LEARNING)
def test_an_example_learns(example: str, tmp_path: Path) -> None:
    steps, engine, share, shown = LEARNING[example]
    output = run(example, steps, tmp_path, engine=engine)
    found = losses(output)
    assert found[-1] < share * found[0]
    assert shown in output


def test_diffusion_draws_a_picture(tmp_path: Path) -> None:
    picture = tmp_path.parent / f"{tmp_path.name}.png"
    output = run("diffusion.py", 100, tmp_path, str(picture), engine="torch")
    found = losses(output)
    assert found[-1] < 0.8 * found[0]
    data = picture.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert struct.unpack(">II", data[16:24]) == (1200, 240)
    picture.unlink()


def test_sharded_ways_agree(tmp_path: Path) -> None:
    output = run("sharded.py", 10, tmp_path, engine="torch")
    found = losses(output)
    assert len(found) == 10
    assert len({round(loss, 4) for loss in found[::2]}) == len({round(loss, 4) for loss in found[1::2]}) == 1
    assert found[1] < found[0]
    assert "has layout [128@x,y]" in output
    assert "worker" in output.splitlines()[-2]


def test_stats_are_shown(tmp_path: Path) -> None:
    output = run("show_stats.py", 20, tmp_path)
    assert re.search(r"calls +21\n", output)
    assert re.search(r"worker 1: numpy on cpu, 21 calls", output)


def test_every_example_is_tested() -> None:
    """(One that needs a server is tested in processes/test_named.py.)"""
    tested = {"reattach.py", *LEARNING, *re.findall(r'run\("(\w+\.py)"', Path(__file__).read_text())}
    assert tested == {path.name for path in EXAMPLES.glob("*.py")}
