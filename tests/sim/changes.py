"""How often what happened while plans of sessions changed, in a simulated world."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from gt.dispatcher.session import Session


class Changes(Counter[str]):
    """Counts by what happened, and at which stage."""

    def during(self, sessions: Iterable[Session], what: str) -> None:
        """This happens while plans of sessions may be changing."""
        self.update(f"{what} while {each.switch.stage.value}" for each in sessions if each.switch is not None)

    def decided(self, text: str) -> None:
        """The dispatcher has decided about a plan; times and sizes are not told apart."""
        head, _, rest = text.partition(":")
        why = re.split(" of | took |, but |[(:]", rest)[0].strip() if head == "stays" else ""
        self[re.sub(r"[\d,.]*\d", "N", f"{head}: {why}" if why else head)] += 1
