"""With how many threads a program computes on a CPU: as many as make it fast, on this machine, now.

Threads of one computation wait for each other many times per call, and they spin while they wait. If another process
has the core of one of them, all of them wait for it: two threads on two busy cores are twenty times slower than one.
And small programs are faster on one thread on an idle machine too. So nothing is assumed, and each program is timed.

Law 1: a program runs with more threads than one only if that many cores are free (`Load`) and it was measured to be
       faster with them (`Pace`). A program that is not known yet gets all free cores at its first calls.
Law 2: a number of threads that turns out much slower is left at once, and tried again ever more rarely. But a slow call
       now and then, because somebody else had the core of a thread for a moment, costs less than to leave: as long
       as more threads have saved more time than such calls took, they stay.
Law 3: what was measured is forgotten when conditions change: when the time of a call does, or the number of free cores.
Law 4: the number of threads that the user chose (GT_THREADS) is never changed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from gt.awake import Load

TRIES = 3  #: Calls with each number of threads before they are compared, by the fastest of each.
LONG_S = 0.05  #: Of a program that takes longer, fewer threads are not tried: waiting for each other costs it little.
WORTH = 1.05  #: How much faster it must be to use more threads.
MUCH = 2.0  #: A call that takes so many times as long, or so much less, was run under other conditions.
ODD = 3  #: So many such calls in a row are no accident.
REST_S = 0.5  #: How long more threads are not tried after they were much slower; twice that the next time,
MOST_REST_S = 60.0  #: and at most so long.
SAVED_S = 0.05  #: So much of the time that more threads have saved is remembered.
AGAIN_S = 30.0  #: What has been measured is measured again after this time; twice that the next time,
MOST_AGAIN_S = 600.0  #: and at most so long.


def ladder(most: int) -> list[int]:
    """The numbers of threads that are tried, the largest first.

    >>> ladder(2), ladder(16), ladder(48)
    ([2, 1], [16, 4, 1], [48, 12, 3, 1])
    """
    found = [most]
    while found[-1] > 1:
        found.append(max(1, found[-1] // 4))
    return found


class Pace:
    """How fast one program is, on one tier, with each number of threads."""

    def __init__(self) -> None:
        self._times: dict[int, deque[float]] = {}
        self._free = 0  #: When these were measured.
        self._odd = 0  #: Calls in a row whose time was another one than usual.
        self._chosen = 0  #: The number that was found best.
        self._saved_s = 0.0  #: What more threads than one have saved lately, less what they cost.
        self._rest_s, self._rest_until_s = REST_S, 0.0
        self._rest_with = 1  #: The most threads until then.
        self._again_s, self._again_at_s = AGAIN_S, 0.0

    def choose(self, numbers: list[int], free: int, now_s: float) -> int:
        """The number of threads for the next call."""
        if free != self._free:
            if free < self._free:
                self._times.clear()  # else what was measured with fewer threads is still true
            self._free, self._chosen = free, 0
        elif self._again_at_s and now_s >= self._again_at_s:
            self._times.clear()
            self._again_s, self._again_at_s = min(2 * self._again_s, MOST_AGAIN_S), 0.0
        most = min(free, self._rest_with) if now_s < self._rest_until_s else free
        best, best_s = 1, 0.0
        for n in numbers:
            if n > most:
                continue
            times = self._times.get(n)
            if times is None or len(times) < TRIES:
                if times and best_s and min(times) > MUCH * best_s:
                    continue  # one call has told enough
                return n
            took_s = min(times)
            if not best_s or took_s < WORTH * best_s:
                best, best_s = n, took_s
            if took_s > LONG_S:
                break
        if not self._again_at_s:
            self._again_at_s = now_s + self._again_s
        if best < self._chosen:  # more were better until now, and may be soon again
            self._leave(now_s, best)
        self._chosen = best
        return best

    def note(self, threads: int, took_s: float, now_s: float) -> None:
        """A call took so long."""
        times = self._times.setdefault(threads, deque(maxlen=TRIES))
        one = self._times.get(1) if threads > 1 else None
        one_s = min(one) if one else 0.0
        slower = False
        if len(times) == TRIES:
            usual_s = sorted(times)[TRIES // 2]
            slower = took_s > MUCH * usual_s
            self._odd = self._odd + 1 if slower or MUCH * took_s < usual_s else 0
            one_s = one_s or MUCH * usual_s  # not known: it would hardly be worse than that
        elif one_s:
            slower = took_s > MUCH * one_s
        if threads > 1 and one_s:
            self._saved_s = min(SAVED_S, self._saved_s + one_s - took_s)
            if self._saved_s == SAVED_S:
                self._rest_s = REST_S
            if slower and self._saved_s < 0.0:
                self._leave(now_s, 1)
                return
        if self._odd < ODD:
            times.append(took_s)
            return
        self._odd = 0
        self._times.clear()

    def _leave(self, now_s: float, most: int) -> None:
        """Use no more threads than so many for a while."""
        self._rest_until_s, self._rest_with = now_s + self._rest_s, most
        self._rest_s = min(2 * self._rest_s, MOST_REST_S)
        self._odd = self._chosen = 0
        # What is known of them holds, unless something has changed so much that even one call showed it.
        self._times = {n: times for n, times in self._times.items() if n <= most} if most > 1 else {}


class Threads:
    """The threads of an engine that has several; used by the runner alone."""

    def __init__(self, most: int, use: Callable[[int], None], load: Load | None = None) -> None:
        self._use, self._load = use, load or Load(most)
        self._numbers = ladder(most)
        self._now = most
        self._begun_s = 0.0

    def begin(self, pace: Pace) -> None:
        """A call is about to run."""
        now_s = time.monotonic()
        n = pace.choose(self._numbers, self._load.look(), now_s)
        if n != self._now:
            self._use(n)
            self._now = n
        self._begun_s = time.monotonic()

    def end(self, pace: Pace) -> None:
        """It has run."""
        now_s = time.monotonic()
        pace.note(self._now, now_s - self._begun_s, now_s)
