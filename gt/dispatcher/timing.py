"""What calls of a plan take.

Law 1: other programs on a machine can only make a call slower. So the time of a window of calls is one among its
       better ones, and the time of a plan is that of its better windows.
Law 2: what users wait for is not what workers run: client, server and workers share cores, and several workers wait for
       each other. So the time of a step is counted from the end of one call to the end of the next, on average, and
       plans are compared by their steps. Where these are alike, the plan that takes less of the workers' time is the
       better one.
Law 3: two plans are compared on the same tier (`compare`). What was timed while the server searched or prepared a plan
       counts only if there is nothing else. The new plan is given up only after it had time enough to meet a calm
       moment, as the old one had.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

WINDOW = 12  #: Calls of a window, at least,
WINDOW_US = 500_000  #: and how long they take, at least.
WINDOWS = 64  #: Windows that are remembered.
ENOUGH = 8  #: Calls whose times say something, before the first window is full.
WATCH_S = 20.0  #: A new plan that seems slower is watched for so long,
WATCH = 6  #: and for so many windows,
SOON = 3  #: and one that seems faster for so many, unless it is
MUCH = 0.9  #: much faster: it takes at most this part of the time.
PATIENCE_S = 60.0  #: After so long plans that have no tier in common are compared by the tiers that they have.
BACK = 1.03  #: A new plan that takes more than this part of the old one's time is given up. Less is no difference.


@dataclass(frozen=True, slots=True)
class TimedCalls:
    """A window: calls one after the other."""

    run_us: int  #: how long workers run one of the better ones
    step_us: int  #: how long each of them takes, from the end of the one before
    calm: bool  #: nothing was searched for or prepared meanwhile


class Times:
    """The times of a plan's calls on one tier."""

    __slots__ = ("_calls", "_is_calm", "_passed_us", "_windows")

    def __init__(self) -> None:
        self._windows: deque[TimedCalls] = deque(maxlen=WINDOWS)
        self._begin()

    def _begin(self) -> None:
        self._calls: list[int] = []  #: of the window that is not full yet: what workers ran,
        self._passed_us = 0  #: how long all of them took, one after the other
        self._is_calm = True

    def note(self, run_us: int, step_us: int = 0, calm: bool = True) -> None:
        """Workers ran a call for so long, and it ended so long after the one before."""
        self._calls.append(run_us)
        self._passed_us += step_us
        self._is_calm = self._is_calm and calm
        if len(self._calls) >= WINDOW and max(self._passed_us, sum(self._calls)) >= WINDOW_US:
            self._windows.append(self._here)
            self._begin()

    @property
    def _here(self) -> TimedCalls:
        """The window that is not full yet."""
        run_us = _good(self._calls)
        return TimedCalls(run_us, max(self._passed_us // len(self._calls), run_us), self._is_calm)

    @property
    def _known(self) -> list[TimedCalls]:
        """The windows that count."""
        return [each for each in self._windows if each.calm] or list(self._windows) or [self._here]

    @property
    def windows(self) -> int:
        """How many of those that count are full."""
        return len(self._known) if self._windows else 0

    @property
    def is_known(self) -> bool:
        """Whether there were enough calls."""
        return bool(self._windows) or len(self._calls) >= ENOUGH

    @property
    def is_calm(self) -> bool:
        """Whether something was timed while nothing was searched for or prepared."""
        return not self._windows or any(each.calm for each in self._windows)

    @property
    def us(self) -> int:
        """How long workers run a call."""
        return _good([each.run_us for each in self._known])

    @property
    def step_us(self) -> int:
        """How long a step takes."""
        return _good([each.step_us for each in self._known])


def _good(times: list[int]) -> int:
    return sorted(times)[len(times) // 4]


def top(times: Mapping[int, Times]) -> int:
    """The highest tier of which enough is known; 0: no call was timed."""
    return max([tier for tier, each in times.items() if each.is_known] or times, default=0)


def call_us(times: Mapping[int, Times]) -> int:
    """What a call takes on the highest tier of which enough is known; 0: no call was timed."""
    return times[top(times)].us if times else 0


def step_us(times: Mapping[int, Times]) -> int:
    """What a step takes on that tier."""
    return times[top(times)].step_us if times else 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """An old and a new plan of a program."""

    is_slower: bool  #: the new one is worse: its steps take longer, or as long, and more of the workers' time
    text: str  #: what was compared
    over: bool  #: nothing more has to be measured


def compare(
    old: Mapping[int, Times], new: Mapping[int, Times], watched_s: float, more: float = 1.0
) -> Comparison | None:
    """Compare a plan that has run for so long with the one before; None if there is nothing to compare yet. The new one
    takes `more` times as many workers."""
    tier = max((t for t in new if t in old and new[t].windows and old[t].is_known), default=0)
    if tier:
        before, now = old[tier], new[tier]
        watched = watched_s >= WATCH_S and now.windows >= WATCH
        on = f"tier {tier}, better ones of {now.windows} and {before.windows} windows"
    elif watched_s > PATIENCE_S and old and new:
        before, now, watched = old[top(old)], new[top(new)], True
        on = f"tier {top(new)} after tier {top(old)}"
    else:
        return None
    old_us, new_us = before.step_us, now.step_us
    is_alike = new_us <= BACK * old_us and old_us <= BACK * new_us
    is_slower = now.us * more > BACK * before.us if is_alike else new_us > old_us
    is_clear = not is_slower and new_us <= old_us and (new_us <= MUCH * old_us or now.windows >= SOON)
    return Comparison(is_slower, f"{new_us:,} us a call, {old_us:,} before ({on})", watched or is_clear)
