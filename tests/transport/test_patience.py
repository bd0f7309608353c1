"""Looking before sleeping: as long as it pays."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from gt.transport import listen
from gt.transport.channel import Patience
from gt.transport.plain_router import PlainRouter


def looks(patience: Patience, turns: int, found: bool) -> list[int]:
    """In which of these turns it looks, if that ends so each time."""
    made = []
    for turn in range(turns):
        if patience.wanted():
            made.append(turn)
            patience.looked(found)
    return made


def test_it_looks_each_time_while_that_finds_something() -> None:
    assert looks(Patience(), 5, found=True) == [0, 1, 2, 3, 4]


def test_it_looks_ever_more_rarely_while_that_finds_nothing_and_never_stops() -> None:
    patience = Patience()
    turns = looks(patience, 1000, found=False)
    gaps = [b - a - 1 for a, b in pairwise(turns)]
    assert gaps[:5] == [1, 3, 7, 15, 31]
    assert set(gaps[5:]) == {Patience.MOST}


def test_one_find_and_it_looks_each_time_again() -> None:
    patience = Patience()
    looks(patience, 100, found=False)
    while not patience.wanted():
        pass
    patience.looked(True)
    assert looks(patience, 3, found=True) == [0, 1, 2]


def test_a_router_that_finds_nothing_looks_no_more_for_a_while(tmp_path: Path) -> None:
    router = listen(f"ipc://{tmp_path}/s")
    assert isinstance(router, PlainRouter)
    looked = 0
    take_in = router._take_in

    def counting(timeout_s: float) -> bool:
        nonlocal looked
        looked += timeout_s == 0.0
        return take_in(timeout_s)

    router._take_in = counting  # type: ignore[method-assign]
    try:
        router.wait(0.01, spin_s=0.001)
        assert looked > 0
        before = looked
        router.wait(0.001, spin_s=60.0)  # it would take a minute, if it looked
        assert looked == before
    finally:
        router.close()
