"""How long the dispatcher plans a training step for several workers, in ms of CPU time per 100 instructions.

Cold: nothing is remembered. Seen: every instruction was planned before, in another program or another plan. Steps of
an MLP, a CNN and a GPT on 2, 4 and 2x2 workers, the batch split ("data") or the parameters too ("both").
`python benchmarks/planning.py [--quick] [--json FILE]`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from measuring import arguments, print_table, write

sys.path.insert(0, str(Path(__file__).parent.parent))  # the steps are those that tests/sharding plans

from tests.sharding.timing import cases, step_of, timed

MODELS = ("mlp", "cnn", "gpt")
COLD_MS, SEEN_MS = 30.0, 1.0  #: what they may take


def main() -> None:
    args = arguments(__doc__).parse_args()
    rows: list[tuple[str, ...]] = [("", "cold", "seen", "local instructions", f"target {COLD_MS:g}, {SEEN_MS:g}")]
    figures: dict[str, dict[str, float]] = {}
    for model in MODELS:
        checked = step_of(model)
        for name, m, layouts in cases(checked):
            found = timed(checked, m, layouts, *((1, 1) if args.quick else (5, 40)))
            missed = [
                what for what, ms, most in (("cold", found.cold, COLD_MS), ("seen", found.seen, SEEN_MS)) if ms > most
            ]
            what = f"{model}, {len(checked.program.code)} instructions, {name}"
            verdict = f"missed: {', '.join(missed)}" if missed else ""
            rows.append((what, f"{found.cold:.1f}", f"{found.seen:.2f}", str(found.local), verdict))
            figures[f"{model}, {name}"] = {"cold_ms": round(found.cold, 2), "seen_ms": round(found.seen, 3)}
    print_table("planning", rows)
    if args.json:
        write(args.json, "planning", {"targets": {"cold_ms": COLD_MS, "seen_ms": SEEN_MS}, "figures": figures})


if __name__ == "__main__":
    main()
