"""Which workers can run calls together: those that reach each other. They try it themselves, and say so (Reached)."""

from __future__ import annotations

from gt.dispatcher.state import Worker


def between(a: Worker, b: Worker) -> str | None:
    """ "": the two reach each other; None: not known yet; else which of them does not reach the other, and how."""
    for one, other in ((a, b), (b, a)):
        if one.tries and other.tries:
            said = one.reached.get(other.number)
            if said:
                who = f"worker {one.number} ({one}, at {_shown(one)})"
                return f"{who} cannot reach worker {other.number} ({other}): {said}"
    unknown = any(one.tries and other.tries and other.number not in one.reached for one, other in ((a, b), (b, a)))
    return None if unknown else ""


def team(mine: list[Worker], others: list[Worker], needed: int) -> list[Worker] | str | None:
    """Which of the others to take to `mine` so that there are enough, and all of them reach each other. None: that is
    not known yet. A text: why there are none."""
    wrong, unknown = "", False
    for first in range(1 if mine else max(1, len(others))):
        chosen = list(mine)
        for worker in others[first:] + others[:first]:
            if len(chosen) >= needed:
                break
            verdicts = [between(worker, each) for each in chosen]
            bad = next((text for text in verdicts if text), "")
            if bad:
                wrong = wrong or bad
            elif None in verdicts:
                unknown = True
            else:
                chosen.append(worker)
        if len(chosen) >= needed:
            return chosen[len(mine) :]
    if unknown or not wrong:
        return None
    return f"a mesh of {needed} workers: {wrong}"


def _shown(worker: Worker) -> str:
    """Its addresses that other machines can use."""
    found = [a for a in worker.peers.split() if not a.startswith("127.")]
    return " ".join(found) or worker.peers
