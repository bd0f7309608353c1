"""Plans of the solver beside what people do by hand, priced by the same code. No workers are needed.

The cases are those of tests/solver/cases.py, at real sizes, without hints, on 4 workers. `python benchmarks/plans.py
[--case NAME ...] [--json FILE]`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from measuring import arguments, print_table, write

sys.path.insert(0, str(Path(__file__).parent.parent))  # the cases are those that tests/solver plans

from gt.layout import mesh
from gt.solver.hardware import HARDWARE
from gt.solver.solve import Limits, solve_on
from tests.solver.cases import CASES, recorded
from tests.solver.pins import priced

MESHES = ({"x": 4}, {"x": 2, "y": 2})
QUICK = ("mlp 16x8192", "batch 7")


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--case", action="append", choices=CASES, help="only these cases")
    args = parser.parse_args()
    hardware = HARDWARE["h100"]
    rows: list[tuple[str, ...]] = [("", "mesh", "best by hand", "us", "solver, us", "ratio", "gap", "s")]
    figures: dict[str, dict[str, float | str]] = {}
    dearer = 0
    for name in args.case or (QUICK if args.quick else CASES):
        case, program = CASES[name], recorded(name)
        memory = case.memory_nbytes or hardware.memory_nbytes
        for axes in MESHES:
            m = mesh(None, **axes)
            by_hand = priced(program, m, hardware, memory)
            began = time.monotonic()
            solved = solve_on(program.checked, m, hardware, {}, Limits(memory_nbytes=memory))
            seconds = time.monotonic() - began
            price = solved.price.time_us
            best, best_us = ("none fits", float("inf")) if not by_hand else (by_hand[0].name, by_hand[0].price.time_us)
            dearer += price > best_us
            shape = "x".join(str(n) for n in axes.values())
            ratio = price / best_us
            rows.append((
                name, shape, best, f"{best_us:,.0f}", f"{price:,.0f}",
                f"{ratio:.3f}" + (" dearer" if ratio > 1 else ""),
                f"{solved.gap:.1%}", f"{seconds:.1f}",
            ))  # fmt: skip
            figures[f"{name}, {shape}"] = {
                "best": best, "by_hand_us": round(best_us, 1), "solver_us": round(price, 1),
                "gap": round(solved.gap, 4), "seconds": round(seconds, 2),
            }  # fmt: skip
            print(*rows[-1], sep="  ", file=sys.stderr, flush=True)
    print_table("plans", rows)
    if args.json:
        write(args.json, "plans", {"figures": figures})
    return int(dearer > 0)


if __name__ == "__main__":
    sys.exit(main())
