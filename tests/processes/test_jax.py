"""Workers on jax: by hand, behind a private server, and where jax is not installed."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from .running import Serve, Start

pytestmark = pytest.mark.processes

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "mlp.py"
needs_jax = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")


def losses(start: Start, engine: str) -> list[float]:
    out = start(str(EXAMPLE), "20", GT_ENGINE=engine, GT_DEVICE="cpu").output(90)
    return [float(x) for x in re.findall(r"loss (\d+\.\d+)", out)]


@needs_jax
def test_an_example_trains_as_on_numpy(start: Start) -> None:
    ours, theirs = losses(start, "jax"), losses(start, "numpy")
    assert len(ours) == 10
    assert ours == pytest.approx(theirs, abs=2e-3)


@needs_jax
def test_a_worker_joins_by_hand(serve: Serve, start: Start) -> None:
    _, address = serve()
    host, _, port = address.rpartition(":")
    worker = start("-m", "gt.worker", "--host", host, "-p", port, "--engine", "jax", "--device", "cpu", GT_VERBOSE="1")
    assert worker.line("stderr").endswith("as worker 1, jax on cpu")
    client = start(
        "-c", "import gt; x = gt.arange(4).float(); print((x @ x).item(), x[[1, 3]].tolist())", GT_SERVER=address
    )
    assert client.end() == (0, "14.0 [1.0, 3.0]\n", "")
    wrong = "import gt; print(gt.nn.functional.embedding(gt.tensor([0, 7]), gt.ones(5, 2)).sum().item())"
    code, _, err = start("-c", wrong, GT_SERVER=address).end()
    assert code == 1
    assert "embedding: index 7 is out of range for size 5" in err


def test_without_jax_one_line_says_what_to_do(start: Start, tmp_path: Path) -> None:
    (tmp_path / "jax.py").write_text("raise ImportError\n")
    client = start("-c", "import gt; gt.ones(2)", GT_ENGINE="jax", PYTHONPATH=str(tmp_path))
    code, _, err = client.end()
    assert code == 1
    assert err.splitlines()[-1].endswith(
        "cannot start a private server: the jax engine needs jax: pip install 'gt[jax]'"
    )
