"""What the planner and the simulation remember of thousands of small plans is let go of behind each file: the collector
would look at it all through the tests after that."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gt.dispatcher.planner.memo import forget
from tests.sharding import simulate


@pytest.fixture(autouse=True, scope="module")
def forgotten() -> Iterator[None]:
    yield
    forget()
    for memo in (simulate.held_at, simulate.index, simulate.common, simulate.group, simulate.holders, simulate.window):
        memo.cache_clear()
