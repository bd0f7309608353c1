"""What calls take, and which of two plans is faster, on a machine on which others compute too."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from gt.dispatcher.timing import ENOUGH, PATIENCE_S, SOON, WATCH, WATCH_S, WINDOW, WINDOW_US, Times, call_us, compare

MS = 1000


def timed(ms: Iterable[int], calm: bool = True) -> Times:
    made = Times()
    for each in ms:
        made.note(each * MS, calm=calm)
    return made


def test_the_better_windows_count() -> None:
    assert timed([700] * WINDOW + [100] * WINDOW + [900] * WINDOW).us == 100 * MS
    lucky = timed([20] * WINDOW + [100] * 7 * WINDOW)  # one of eight
    assert (lucky.us, lucky.step_us) == (100 * MS, 100 * MS)
    assert timed([100, 700, 700]).us == 100 * MS
    few = timed([50] + [100] * (WINDOW - 1))  # one call alone may be a mistake of the clock
    assert (few.us, few.windows) == (100 * MS, 1)
    assert not timed([1] * (ENOUGH - 1)).is_known
    assert timed([1] * ENOUGH).is_known
    assert call_us({}) == 0
    assert call_us({1: timed([200] * WINDOW), 3: timed([100])}) == 200 * MS
    assert call_us({1: timed([200] * WINDOW), 3: timed([100] * WINDOW)}) == 100 * MS


def test_short_calls_fill_a_window_after_some_time() -> None:
    made = Times()
    calls = 0
    while not made.windows:
        made.note(10, 20)
        calls += 1
    assert calls == WINDOW_US // 20


def test_what_was_timed_while_the_server_searched_counts_only_if_there_is_nothing_else() -> None:
    made = timed([300] * WINDOW, calm=False)
    assert (made.us, made.windows, made.is_calm) == (300 * MS, 1, False)
    for k in range(2 * WINDOW):
        made.note(400 * MS, calm=k > 0)
    assert (made.us, made.windows, made.is_calm) == (400 * MS, 1, True)


@pytest.mark.parametrize(
    ("ms", "windows", "watched_s", "over", "slower"),
    [
        pytest.param(90, 1, 0.0, True, False, id="a much faster plan is kept at once"),
        pytest.param(95, SOON - 1, 0.0, False, False, id="one that seems faster is watched for a moment"),
        pytest.param(95, SOON, 0.0, True, False, id="and then kept"),
        pytest.param(120, 1, 99.0, False, True, id="one that seems slower is watched: too few windows"),
        pytest.param(120, WATCH, 0.0, False, True, id="one that seems slower is watched: too short a time"),
        pytest.param(120, WATCH, 99.0, True, True, id="one that is slower"),
        pytest.param(102, WATCH, WATCH_S, True, False, id="what is as fast stays"),
    ],
)
def test_a_plan_is_judged(ms: int, windows: int, watched_s: float, over: bool, slower: bool) -> None:
    found = compare({1: timed([100] * WINDOW)}, {1: timed([ms] * WINDOW * windows)}, watched_s)
    assert found is not None
    assert (found.over, found.is_slower) == (over, slower)
    assert found.text == f"{ms},000 us a call, 100,000 before (tier 1, better ones of {windows} and 1 windows)"


def in_steps(run_ms: int, step_ms: int) -> Times:
    """Of a loop with a pause, as one for an evaluation."""
    made = Times()
    for k in range(4 * WINDOW):
        made.note(run_ms * MS, (50 * step_ms if k == 1 else step_ms) * MS)
    return made


@pytest.mark.parametrize(
    ("run_ms", "step_ms", "more", "over", "slower"),
    [
        pytest.param(140, 170, 0.5, True, False, id="calls take longer, but steps do not"),
        pytest.param(60, 210, 1.0, False, True, id="calls are shorter, and steps are longer"),
        pytest.param(140, 200, 1.0, False, True, id="steps are as long: workers have more to do"),
        pytest.param(140, 201, 0.5, False, False, id="steps are as long: one worker has less to do than two"),
        pytest.param(60, 199, 1.0, True, False, id="steps are as long, and workers have less to do"),
        pytest.param(60, 199, 2.0, False, True, id="steps are as long: two workers have more to do than one"),
    ],
)
def test_steps_are_compared_and_then_what_workers_have_to_do(
    run_ms: int, step_ms: int, more: float, over: bool, slower: bool
) -> None:
    found = compare({1: in_steps(100, 200)}, {1: in_steps(run_ms, step_ms)}, 0.0, more)
    assert found is not None
    assert (found.over, found.is_slower) == (over, slower)
    assert found.text.startswith(f"{step_ms},000 us a call, 200,000 before")


def test_a_step_takes_no_less_than_its_call() -> None:
    """Ends of calls are noticed several at a time."""
    assert in_steps(300, 200).step_us == 300 * MS


def test_only_the_same_tier_is_compared() -> None:
    old, new = {1: timed([100] * WINDOW), 3: timed([30] * WINDOW)}, {1: timed([50] * WINDOW)}
    both = compare(old, new, 0.0)
    assert both is not None
    assert both.text == "50,000 us a call, 100,000 before (tier 1, better ones of 1 and 1 windows)"
    assert compare({3: timed([30] * WINDOW)}, new, PATIENCE_S) is None
    late = compare({3: timed([30] * WINDOW)}, new, PATIENCE_S + 1)  # it is never compiled: what runs is what counts
    assert late is not None
    assert (late.text, late.is_slower) == ("50,000 us a call, 30,000 before (tier 1 after tier 3)", True)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("ratio", "slower"), [(0.8, False), (1.25, True)])
def test_load_that_comes_and_goes_decides_nothing(seed: int, ratio: float, slower: bool) -> None:
    """Others slow calls down for a while, up to five times. Each plan has calm moments."""
    rng = random.Random(seed)

    def calls(ms: float) -> list[int]:
        made: list[int] = []
        while len(made) < 20 * WINDOW:
            load = rng.choice([1.0, 1.0, rng.uniform(1.0, 5.0)])
            made += [round(ms * load * rng.uniform(1.0, 1.1)) for _ in range(rng.randrange(1, 3 * WINDOW))]
        return made

    old, new, times, watched_s = {1: timed(calls(100.0))}, Times(), calls(100.0 * ratio), 0.0
    for ms in times:
        new.note(ms * MS)
        watched_s += ms * 1e-3
        found = compare(old, {1: new}, watched_s)
        if found is not None and found.over:
            break
    assert found is not None
    assert found.over
    assert found.is_slower is slower
