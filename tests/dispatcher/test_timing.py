"""What calls take, and which of two plans is faster, on a machine on which others compute too."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from gt.dispatcher.timing import ENOUGH, PATIENCE_S, WATCH, WATCH_S, WINDOW, Times, call_us, compare


def timed(us: Iterable[int]) -> Times:
    made = Times()
    for each in us:
        made.note(each)
    return made


def test_the_best_window_counts() -> None:
    assert timed([700] * WINDOW + [100] * WINDOW + [900] * WINDOW).us == 100
    assert timed([100, 700, 700]).us == 100
    few = timed([50] + [100] * (WINDOW - 1))  # one call alone may be a mistake of the clock
    assert (few.us, few.windows) == (100, 1)
    assert not timed([1] * (ENOUGH - 1)).is_known
    assert timed([1] * ENOUGH).is_known
    assert call_us({}) == 0
    assert call_us({1: timed([200] * WINDOW), 3: timed([100])}) == 200
    assert call_us({1: timed([200] * WINDOW), 3: timed([100] * WINDOW)}) == 100


@pytest.mark.parametrize(
    ("us", "windows", "watched_s", "over", "slower"),
    [
        pytest.param(90, 1, 0.0, True, False, id="a faster plan is kept at once"),
        pytest.param(120, 1, 99.0, False, True, id="one that seems slower is watched: too few windows"),
        pytest.param(120, WATCH, 0.0, False, True, id="one that seems slower is watched: too short a time"),
        pytest.param(120, WATCH, 99.0, True, True, id="one that is slower"),
        pytest.param(102, WATCH, WATCH_S, True, False, id="what is as fast stays"),
    ],
)
def test_a_plan_is_judged(us: int, windows: int, watched_s: float, over: bool, slower: bool) -> None:
    found = compare({1: timed([100] * WINDOW)}, {1: timed([us] * WINDOW * windows)}, watched_s)
    assert found is not None
    assert (found.over, found.is_slower) == (over, slower)
    assert found.text == f"{us} us a call, 100 before (tier 1, best of {windows} and 1 windows)"


def test_only_the_same_tier_is_compared() -> None:
    old, new = {1: timed([100] * WINDOW), 3: timed([30] * WINDOW)}, {1: timed([50] * WINDOW)}
    both = compare(old, new, 0.0)
    assert both is not None
    assert (both.old_us, both.new_us) == (100, 50)
    assert compare({3: timed([30] * WINDOW)}, new, PATIENCE_S) is None
    late = compare({3: timed([30] * WINDOW)}, new, PATIENCE_S + 1)  # it is never compiled: what runs is what counts
    assert late is not None
    assert (late.old_us, late.new_us, late.is_slower) == (30, 50, True)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("ratio", "slower"), [(0.8, False), (1.25, True)])
def test_load_that_comes_and_goes_decides_nothing(seed: int, ratio: float, slower: bool) -> None:
    """Others slow calls down for a while, up to five times. Each plan has calm moments."""
    rng = random.Random(seed)

    def calls(us: float) -> list[int]:
        made: list[int] = []
        while len(made) < 20 * WINDOW:
            load = rng.choice([1.0, 1.0, rng.uniform(1.0, 5.0)])
            made += [round(us * load * rng.uniform(1.0, 1.1)) for _ in range(rng.randrange(1, 3 * WINDOW))]
        return made

    old, new, times, watched_s = {1: timed(calls(1000.0))}, Times(), calls(1000.0 * ratio), 0.0
    for us in times:
        new.note(us)
        watched_s += us * 1e-6 * 100  # a tenth of a second each
        found = compare(old, {1: new}, watched_s)
        if found is not None and found.over:
            break
    assert found is not None
    assert found.over
    assert found.is_slower is slower
