"""A few seconds of what load.py does for ten minutes: right results, clients that are killed, nothing left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from .load import Load, arguments

pytestmark = pytest.mark.processes


def test_a_short_load(tmp_path: Path) -> None:
    """Over a Unix socket, with shared memory; with keys and shares it is run by hand."""
    options = ["--minutes", "0.04", "--clients", "6", "--workers", "2", "--engine", "numpy", "--lease", "0.5"]
    load = Load(arguments([*options, "--kills", "2", "--unix"]), tmp_path)
    try:
        load.run()
    finally:
        load.end()
    assert load.problems == []
    assert len(load.lines()) >= 3
