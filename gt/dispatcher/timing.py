"""What calls of a plan take.

Law 1: other programs on a machine can only make a call slower. So the time of a window of calls is one among its
       better ones, and the time of a plan is that of its best window.
Law 2: two plans are compared by their best windows on the same tier (`Comparison`). The new one is given up only after
       it had time enough to meet a calm moment, as the old one had.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

WINDOW = 12  #: Calls of a window.
WINDOWS = 64  #: Windows that are remembered.
ENOUGH = 8  #: Calls whose times say something, before the first window is full.
WATCH_S = 20.0  #: A new plan that seems slower is watched for so long,
WATCH = 6  #: and for so many windows.
PATIENCE_S = 60.0  #: After so long plans that have no tier in common are compared by the tiers that they have.
BACK = 1.03  #: A new plan that takes more than this part of the old one's time is given up.


class Times:
    """The times of a plan's calls on one tier."""

    __slots__ = ("_calls", "_windows")

    def __init__(self) -> None:
        self._calls: list[int] = []  #: of the window that is not full yet
        self._windows: deque[int] = deque(maxlen=WINDOWS)

    def note(self, run_us: int) -> None:
        """A call took so long."""
        self._calls.append(run_us)
        if len(self._calls) == WINDOW:
            self._windows.append(_good(self._calls))
            self._calls.clear()

    @property
    def windows(self) -> int:
        """How many are full."""
        return len(self._windows)

    @property
    def is_known(self) -> bool:
        """Whether there were calls enough."""
        return bool(self._windows) or len(self._calls) >= ENOUGH

    @property
    def us(self) -> int:
        """What a call takes: in the best window, or of the few calls that there were."""
        return min(self._windows) if self._windows else _good(self._calls)


def _good(times: list[int]) -> int:
    return sorted(times)[len(times) // 4]


def call_us(times: Mapping[int, Times]) -> int:
    """What a call takes on the highest tier of which enough is known; 0: no call was timed."""
    known = [tier for tier, each in times.items() if each.is_known]
    return times[max(known or times)].us if times else 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """An old and a new plan of a program."""

    old_us: int
    new_us: int
    text: str  #: what was compared
    over: bool  #: nothing more has to be measured

    @property
    def is_slower(self) -> bool:
        return self.new_us > BACK * self.old_us


def compare(old: Mapping[int, Times], new: Mapping[int, Times], watched_s: float) -> Comparison | None:
    """Compare a plan that has run for so long with the one before; None if there is nothing to compare yet."""
    tier = max((t for t in new if t in old and new[t].windows and old[t].is_known), default=0)
    if tier:
        before, now = old[tier], new[tier]
        over = now.us <= before.us or (watched_s >= WATCH_S and now.windows >= WATCH)
        on = f"tier {tier}, best of {now.windows} and {before.windows} windows"
    elif watched_s > PATIENCE_S and old and new:
        tiers = [max([t for t in times if times[t].is_known] or times) for times in (old, new)]
        before, now, over = old[tiers[0]], new[tiers[1]], True
        on = f"tier {tiers[1]} after tier {tiers[0]}"
    else:
        return None
    return Comparison(before.us, now.us, f"{now.us:,} us a call, {before.us:,} before ({on})", over)
