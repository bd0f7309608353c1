"""Plans of the solver beside what people do by hand, priced by the same code. No workers are needed.

The cases are those of tests/solver/cases.py, at real sizes, without hints, on 4 workers. `python benchmarks/plans.py
[--case NAME ...] [--json FILE]`. A second table compares five of them with an integer program without restrictions
(tests/solver/full.py): one choice for each instruction, nothing merged. `--llama`: Llama-8B instead
(llama_plan.py).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from measuring import arguments, print_table, write

sys.path.insert(0, str(Path(__file__).parent.parent))  # the cases are those that tests/solver plans

import llama_plan

from gt.dispatcher.planner.plan import plan_program
from gt.layout import mesh
from gt.solver.hardware import HARDWARE
from gt.solver.pricing import price_plan
from gt.solver.solve import Limits, solve_on
from tests.solver.cases import CASES, FIVE, recorded
from tests.solver.full import Full
from tests.solver.pins import priced

MESHES = ({"x": 4}, {"x": 2, "y": 2})
QUICK = ("mlp 16x8192", "batch 7")


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--case", action="append", choices=CASES, help="only these cases")
    parser.add_argument("--llama", action="store_true", help="plan Llama-8B for 72 GPUs instead")
    args = parser.parse_args()
    if args.llama:
        return llama_plan.main(args.json)
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
    five = [name for name in args.case or (QUICK if args.quick else FIVE) if name in FIVE]
    rows = [("", "sizes", "ILP, us", "solver, us", "ratio", "ILP emitted, us", "solver emitted, us", "ratio")]
    for name in five:
        rows.append(beside_ilp(name, figures))
        print(*rows[-1], sep="  ", file=sys.stderr, flush=True)
    if five:
        print_table("plans beside an integer program without restrictions", rows)
    if args.json:
        write(args.json, "plans", {"figures": figures})
    return int(dearer > 0)


def beside_ilp(name: str, figures: dict[str, dict[str, float | str]]) -> tuple[str, ...]:
    """A case on 4 workers: what the search adds up, and what is emitted."""
    case, program, hardware, m = CASES[name], recorded(name), HARDWARE["h100"], mesh(x=4)
    full = Full(program.checked, m, hardware)
    price, _, assigned = full.solve()
    ways, inputs = full.problem.chosen(assigned), full.problem.inputs(assigned)
    planned = plan_program(program.checked, inputs, m, {}, ways)
    emitted = price_plan(planned, program.checked, inputs, hardware).time_us
    solved = solve_on(program.checked, m, hardware, {}, Limits())
    mine = solved.price.time_us
    figures[f"{name}, ILP"] = {
        "ilp_us": round(price, 1), "solver_us": round(solved.objective_us, 1), "ilp_emitted_us": round(emitted, 1),
        "solver_emitted_us": round(mine, 1),
    }  # fmt: skip
    sizes = " ".join(f"{key}={value}" for key, value in case.sizes.items())
    return (name, sizes, f"{price:,.0f}", f"{solved.objective_us:,.0f}", f"{solved.objective_us / price:.4f}",
            f"{emitted:,.0f}", f"{mine:,.0f}", f"{mine / emitted:.4f}")  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
