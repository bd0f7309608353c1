"""The laws of the solver on many random programs: like the tests here, with more draws.

python -m tests.solver               500 programs: the search against all assignments, and what is emitted
python -m tests.solver COUNT         so many
python -m tests.solver --propagate   10,000 programs: propagation ends, is idempotent and keeps pins; its gap for 1,000
"""

from __future__ import annotations

import statistics
import sys
import time
from itertools import count

from .exhaustive import TooMany
from .graphs import graph
from .judging import gap_of_propagation, judged, mistakes_propagated


def main(arguments: list[str]) -> int:
    if arguments[:1] in (["--help"], ["-h"]):
        print(__doc__)
        return 0
    if arguments[:1] == ["--propagate"]:
        return propagate(int(arguments[1]) if arguments[1:] else 10_000)
    return compare(int(arguments[0]) if arguments else 500)


def compare(wanted: int) -> int:
    began, wrong, passed_over = time.monotonic(), 0, 0
    seen = []
    for seed in count():
        if len(seen) == wanted:
            break
        made = graph(seed)
        try:
            seen.append(judged(made))
        except TooMany:
            passed_over += 1
            continue
        if seen[-1].wrong:
            wrong += 1
            print(made, *seen[-1].wrong, sep="\n", flush=True)
    merging = [each.merging for each in seen]
    print(
        f"{wanted} programs ({passed_over} passed over, with too many assignments), {wrong} of them wrong, "
        f"{time.monotonic() - began:.0f} s\n"
        f"sharing a conversion: in {sum(each.shares for each in seen)} best assignments; it decides which one is best "
        f"in {sum(each.sharing_decides for each in seen)}\n"
        f"merged followers: dearer in {sum(m > 1e-6 for m in merging)}, by {max(merging):.2%} at most"
    )
    return int(wrong > 0)


def propagate(wanted: int) -> int:
    began, wrong = time.monotonic(), 0
    for seed in range(wanted):
        mistakes = mistakes_propagated(graph(seed))
        wrong += bool(mistakes)
        if mistakes:
            print(graph(seed), *mistakes, sep="\n", flush=True)
    gaps = sorted(gap_of_propagation(graph(seed)) for seed in range(min(wanted, 1000)))
    print(
        f"{wanted} programs, propagation is wrong for {wrong}, {time.monotonic() - began:.0f} s\n"
        f"dearer than the best: median {statistics.median(gaps):.1%}, nine in ten below "
        f"{gaps[len(gaps) * 9 // 10]:.1%}, worst {gaps[-1]:.1%}; the best itself in {sum(g < 1e-6 for g in gaps)} of "
        f"{len(gaps)}"
    )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
