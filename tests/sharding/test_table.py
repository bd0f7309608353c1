"""The table of what splits cost is the one that is written down."""

from __future__ import annotations

from dataclasses import replace

from gt.ops import TABLE
from tests.sharding.table import EXPECTED, lines, table


def test_collectives_are_those_written_down() -> None:
    """If a change is meant: `python -m tests.sharding --table`, and read the difference."""
    assert table() == EXPECTED.read_text()


def test_the_table_knows_a_lost_rule() -> None:
    """With "must be whole" everywhere it would be another one."""
    for name in ("matmul", "softmax", "conv"):
        mine = "\n".join(lines(TABLE[name]))
        assert mine in EXPECTED.read_text()
        assert "\n".join(lines(replace(TABLE[name], factors=None, compose=None))) not in EXPECTED.read_text()
