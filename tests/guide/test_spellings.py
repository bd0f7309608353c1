"""Every line of the guide works, typed into a script, with a server and a worker started as the guide says."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.running import DEADLINE_S, Process, environment, output_of, until

from .spellings import SCRIPTS

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """`python -m gt.server -p PORT` and `python -m gt.worker --host HOST -p PORT`: the server's address."""
    dispatcher = Process(["-m", "gt.server", "-p", "0"], environment())
    found = re.fullmatch(r"gt: serving on (127\.0\.0\.1):(\d+), start workers with: (.*)", dispatcher.line())
    assert found is not None
    assert found[3] == f"gt worker --host 127.0.0.1 -p {found[2]}"
    command = ["-m", "gt.worker", "--host", "localhost", "-p", found[2], "--engine", "numpy"]
    worker = Process(command, environment(GT_VERBOSE="1"))
    until(lambda: "joined" in worker.line("stderr"), "the worker joins")
    try:
        yield f"localhost:{found[2]}"
    finally:
        dispatcher.stop()
        worker.end()


@pytest.mark.parametrize("line", SCRIPTS)
def test_the_line_works(line: str, server: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPTS[line].text)
    assert output_of([str(script)], GT_SERVER=server) == SCRIPTS[line].output


@pytest.mark.parametrize("how", ["GT_ENGINE", "--engine"])
def test_the_engine_may_be_called_pytorch(how: str) -> None:
    if how == "GT_ENGINE":
        code = "import gt; gt.ones(1).item(); print(gt.debug.get_worker_stats()['workers']['1']['engine'])"
        assert output_of(["-c", code], GT_ENGINE="pytorch", GT_THREADS="1") == "torch\n"
        return
    started = Process(["-m", "gt.server", "-p", "0", "--workers", "1", "--engine", "pytorch"], environment())
    assert started.line().startswith("gt: serving on")
    started.stop()


def test_a_fixture_for_the_users_own_tests(tmp_path: Path) -> None:
    """Each test has a session of its own; all share one server, which ends with the process."""
    (tmp_path / "conftest.py").write_text("from gt.testing import client\n")
    (tmp_path / "test_mine.py").write_text(
        "import gt, pytest\n"
        "seen = []\n"
        "@pytest.mark.parametrize('k', [1, 2])\n"
        "def test_sum(client, k):\n"
        "    gt.testing.assert_close(gt.ones(3).sum() * k, gt.tensor(3.0 * k))\n"
        "    stats = gt.debug.get_worker_stats()\n"
        "    seen.append((stats['session']['number'], stats['workers']['1']['pid']))\n"
        "    assert stats['dispatcher']['sessions'] == 1\n"
        "    assert len({pid for _, pid in seen}) == 1\n"
        "    assert len({number for number, _ in seen}) == len(seen)\n"
        "def test_failure(client):\n"
        "    gt.testing.assert_close(gt.ones(2), gt.zeros(2))\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        env=environment(GT_ENGINE="numpy", TMPDIR=str(tmp_path)), capture_output=True, text=True, timeout=DEADLINE_S,
        check=False,
    )  # fmt: skip
    assert "1 failed, 2 passed" in done.stdout, done.stdout + done.stderr
    assert "2 of 2 elements (100.0%) are not close: at index (0,) 1.0 is not 0.0" in done.stdout
    assert not list(tmp_path.glob("gt-*")), "the server left its directory"
