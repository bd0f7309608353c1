"""The journeys that docs/map.md tells: which files a statement visits, and how many at most."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from . import journeys


def test_recording_an_op_stays_in_the_client() -> None:
    files = list(journeys.add())
    assert files[:2] == ["gt/client/functions/operators.py", "gt/client/record/recorder.py"]
    assert len(files) <= 11
    assert not any(file.startswith(("gt/dispatcher/", "gt/worker/", "gt/transport/")) for file in files)


def test_printing_goes_to_a_worker_and_back() -> None:
    files = list(journeys.show())
    assert files.index("gt/dispatcher/machine.py") < files.index("gt/worker/run/executor.py")
    assert "gt/client/functions/reading.py" in files
    assert len(files) <= 30
    assert not any(file.startswith("gt/dispatcher/planner/") for file in files)  # one worker: nothing is sharded


def test_a_sharded_product_is_planned() -> None:
    journey = journeys.sharded_matmul()
    files = list(journey)
    planned = [file for file in files if file.startswith("gt/dispatcher/planner/")]
    assert planned
    assert files.index(planned[-1]) < files.index("gt/worker/run/executor.py")
    assert len(files) <= 45
    assert "assemble" in journey["gt/client/session/transfers.py"]


def test_journeys_stay_short() -> None:
    assert len(journeys.backward()) <= 18
    assert len(journeys.failure()) <= 35


def test_the_map_tells_the_journeys() -> None:
    """docs/map.md lists, for each journey, exactly the files that a real run visits, in its order.

    The runs are those of a fresh process: what is remembered (plans, kinds of ops) shortens a journey.
    """
    root = Path(__file__).parent.parent
    _, *sections = (root / "docs" / "map.md").read_text().split("\n## ")
    told = [re.findall(r"^\d+\. `(gt/[\w/]+\.py)`: \S", section, re.MULTILINE) for section in sections]
    command = [sys.executable, "-m", "tests.journeys"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    followed = re.split(r"^.*: \d+ files$", done.stdout, flags=re.MULTILINE)[1:]
    assert told == [files.split() for files in followed]
    assert [int(n) for n in re.findall(r" (\d+) files\.\n", "".join(sections))] == list(map(len, told))
