"""What the worker says while it trains: which program is the hot one, on which tier it runs, what memory it takes.

Workers compile what proves hot in the background, so a loop becomes faster while it runs. `settle` runs it until that
is over: what is timed afterwards is one tier.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

TOP = 3  #: The highest tier: compiled.
TRIED = 30  #: Calls on it after which the worker has made up its mind whether it is faster.
SMALL = 4  #: Programs of fewer instructions are never compiled.


def worker() -> dict[str, Any]:
    """What the session's only worker says about itself, and about the session's programs."""
    import gt

    (found,) = gt.debug.get_worker_stats()["workers"].values()
    return dict(found)


def hottest(run: Callable[[], object]) -> dict[str, Any]:
    """The facts of the program that was called most often while this ran."""
    before = {key: facts["hits"] for key, facts in worker()["programs"].items()}
    run()
    programs = {k: facts for k, facts in worker()["programs"].items() if facts["instructions"] >= SMALL}
    return dict(programs[max(programs, key=lambda key: programs[key]["hits"] - before.get(key, 0))])


def compiled(facts: dict[str, Any]) -> bool:
    """Whether the compiled program runs."""
    return bool(facts["tier"] == TOP)


def given_up(facts: dict[str, Any]) -> str:
    """Why the program is not compiled, and will not be; empty if it may be one day."""
    return str(facts["given_up"].get(str(TOP), ""))


def settled(facts: dict[str, Any]) -> bool:
    """Whether a program will stay on its tier."""
    tried = facts["tiers"].get(str(TOP), {}).get("hits", 0)
    return tried >= TRIED or bool(given_up(facts))


def settle(run: Callable[[], object], limit_s: float) -> tuple[dict[str, Any], float]:
    """Run this until its hot program stays on its tier, or time is up: its facts, and the seconds that took."""
    begin = time.monotonic()
    while True:
        facts = hottest(run)
        took = time.monotonic() - begin
        if settled(facts) or took > limit_s:
            return facts, took


def memory() -> tuple[int, int] | None:
    """Bytes that the worker has of its device's memory, now and at most so far; None: it does not say."""
    facts = worker()
    now, most = facts.get("reserved"), facts.get("peak_reserved")
    return None if now is None or most is None else (int(now), int(most))
