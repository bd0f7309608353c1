"""When it pays to look for a message for a moment before sleeping until one comes."""

from __future__ import annotations


class Patience:
    """Whether to look for an answer for a moment before sleeping. That pays where the other side answers at once, from
    another CPU; where it waits for this very CPU, looking only keeps it from it. So: as long as it finds something,
    else ever more rarely, but never not at all."""

    MOST = 31  #: Turns to pass over at most after one that found nothing.

    def __init__(self) -> None:
        self._pass = 0  #: Turns to pass over now,
        self._next = 1  #: and after the next one that finds nothing.

    def wanted(self) -> bool:
        """Whether to look this time."""
        if self._pass:
            self._pass -= 1
            return False
        return True

    def looked(self, found: bool) -> None:
        """What came of looking."""
        if found:
            self._next = 1
        else:
            self._pass, self._next = self._next, min(2 * self._next + 1, self.MOST)
