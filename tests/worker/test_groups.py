"""How a worker waits for others in a collective of torch's."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gt.errors import PeerFailed
from gt.worker.engines.groups import _GlooGroup
from gt.worker.run.collectives import GroupKey


class Everybody:
    """All workers are there."""

    def missing(self, workers: tuple[int, ...]) -> list[int]:
        return []


class Work:
    """A collective that ends just after somebody has stopped waiting for it, well or with an error."""

    def __init__(self, error: str = "") -> None:
        self.error = error
        self.over = False

    def wait(self, timeout: timedelta) -> None:
        if not self.over:
            self.over = True
            raise RuntimeError("Operation timed out!")
        if self.error:
            raise RuntimeError(self.error)

    def is_completed(self) -> bool:
        return self.over


def group() -> _GlooGroup:
    return _GlooGroup(GroupKey(1, (1, 2), 0), None, None, Everybody())  # type: ignore[arg-type]


def test_one_that_ends_while_nobody_waits_has_not_timed_out() -> None:
    group().wait(Work())


def test_one_that_fails_while_nobody_waits_says_why() -> None:
    made = group()
    with pytest.raises(RuntimeError, match="closed by peer") as caught:
        made.wait(Work("Connection closed by peer"))
    assert isinstance(made.failure(caught.value), PeerFailed)
