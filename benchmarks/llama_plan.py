"""The plan of Llama-8B for 72 GPUs, made from nothing: `python benchmarks/plans.py --llama`. No workers are needed.

Forward, backward, clipping and AdamW with 72 sequences of 4096 tokens; bfloat16 compute, float32 parameters and state;
9 nodes of 8 H100s of 80 GB; every mesh that 72 workers can form. Recording the step is part of the time. What people do
by hand is priced by the same code, and the plan with a second one is entered into a cache as the dispatcher has it.
"""

from __future__ import annotations

import resource
import sys
import time

from measuring import print_table, write

import gt
from gt import config
from gt.dispatcher.planner.plan import Planned, plan_program
from gt.dispatcher.plans import ProgramCache, plan_together, tensor_at
from gt.layout import Layout, mesh, parse
from gt.ops.check import check_client
from gt.solver.hardware import HARDWARE
from gt.solver.recorded import record_step
from gt.solver.units import size_text, time_text
from tests.solver import models
from tests.solver.pins import priced

HARDWARE_NAME, WORKERS, MEMORY_NBYTES = "h100-ib", 72, 80 * 10**9
#: What the plan must keep.
LIMIT_S, LIMIT_GAP, LIMIT_RSS = 30.0, 0.01, 4 * 10**9


def cpu_s() -> float:
    """CPU seconds of this process and of those that it has started and that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def peak_rss() -> int:
    """The memory of the process that had the most: this one, or one that it has started."""
    return 1024 * max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def main(path: str | None = None) -> int:
    with gt.on_paper():
        training = models.llama(**models.LLAMA_8B)
        began, cpu_began = time.monotonic(), cpu_s()
        plan = gt.plan(training.step, *training.batch, workers=WORKERS, hardware=HARDWARE_NAME, memory=MEMORY_NBYTES)
        wall_s, used_s = time.monotonic() - began, cpu_s() - cpu_began
        rss = peak_rss()
        recorded = record_step(training.step, *training.batch).largest
    m = mesh(None, **plan.mesh)
    gap = 1 - plan.best.bound_us / plan.best.objective_us
    rows = [
        ("", "figure", "must be"),
        ("planning, wall", f"{wall_s:.1f} s", _at_most(f"{LIMIT_S:g} s", wall_s <= LIMIT_S)),
        ("planning, CPU", f"{used_s:.1f} s", ""),
        ("memory of the solve", size_text(rss), _at_most(size_text(LIMIT_RSS), rss <= LIMIT_RSS)),
        ("a step", f"{time_text(plan.time_us)} on {' '.join(f'{a}={n}' for a, n in m.axes)}", ""),
        ("gap", f"{gap:.2%} ({plan.best.note})", _at_most(f"{LIMIT_GAP:.0%}", gap <= LIMIT_GAP)),
    ]
    rows += [(f"another mesh: {each.mesh}", each.note or time_text(each.time_us), "") for each in plan.alternatives[1:]]
    hardware = HARDWARE[HARDWARE_NAME]
    by_hand = priced(recorded, m, hardware, float("inf"))
    for each in by_hand:
        fits = "" if each.price.peak_nbytes <= MEMORY_NBYTES else f", does not fit: {size_text(each.price.peak_nbytes)}"
        is_met = plan.time_us <= each.price.time_us or bool(fits)
        needed = "" if fits else f"at least {time_text(plan.time_us)}" + ("" if is_met else "  missed")
        rows.append((f"by hand: {each.name}", time_text(each.price.time_us) + fits, needed))

    inputs = [parse(one.layout, m) for one in plan.inputs]
    followed = plan_program(recorded.checked, inputs, m, {}, plan.ways)
    other = next(each for each in by_hand if each.price.peak_nbytes <= MEMORY_NBYTES)
    second = plan_program(recorded.checked, other.inputs, m, {})
    cache = ProgramCache(config.load().cache_bytes)
    taken = entered(cache, plan.program, [(inputs, followed), (other.inputs, second)])
    fits = plan.peak_nbytes <= MEMORY_NBYTES and taken == plan.peak_nbytes
    rows += [
        ("memory of a worker", size_text(plan.peak_nbytes), _at_most(size_text(MEMORY_NBYTES), fits)),
        ("the same as the dispatcher counts it", f"{taken:,} bytes",
         f"{plan.peak_nbytes:,} bytes" + ("" if taken == plan.peak_nbytes else "  missed")),
        ("two plans in the dispatcher's cache", size_text(cache.nbytes),
         _at_most(size_text(cache.limit_nbytes), not cache.evict())),
    ]  # fmt: skip
    print_table("the plan of Llama-8B for 72 GPUs", rows)
    if path:
        figures = {"wall_s": round(wall_s, 2), "cpu_s": round(used_s, 2), "rss": rss, "step_us": round(plan.time_us, 1),
                   "gap": round(gap, 4), "peak_nbytes": plan.peak_nbytes, "cache_nbytes": cache.nbytes}  # fmt: skip
        write(path, "llama plan", {"figures": figures})
    return int(any("missed" in row[2] for row in rows))


def _at_most(limit: str, is_met: bool) -> str:
    return f"at most {limit}" + ("" if is_met else "  missed")


def entered(cache: ProgramCache, program: gt.program.Program, plans: list[tuple[list[Layout], Planned]]) -> int:
    """Enter a program with its plans into a cache, as the dispatcher does when a client calls it; the memory that the
    first plan takes of the worker that needs the most: inputs, and what the dispatcher reserves for a call."""
    entry = cache.add(program.hash(), program, timed=False)
    cache.finish(entry, check_client(program), "")
    for k, (inputs, planned) in enumerate(plans):
        cache.add_plan((k, *inputs), plan_together(entry, inputs, planned))
    inputs, first = plans[0][0], next(iter(entry.plans.values()))
    tensors = [tensor_at(s, at) for s, at in zip(entry.inputs, inputs, strict=True)]
    return max(local.need_nbytes + sum(t.parts[w] for t in tensors) for w, local in first.locals.items())


if __name__ == "__main__":
    sys.exit(main())
