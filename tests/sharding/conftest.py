"""After each file, forget what the planner and the simulation remember of thousands of small plans. Otherwise the
garbage collector would look at all of it during later tests."""

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
