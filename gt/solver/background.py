"""The search for a better plan of a program that is running: a `Solve` in, a `PlanSolved` out, as MessagePack.

A server starts this as a process of its own (gt/dispatcher/solving.py). It joins the server as any client does, to
measure its workers once (calibrate.py), and then prices what runs now and what could run with the same figures.
"""

from __future__ import annotations

import math
import os
import resource
import sys

import msgspec

from gt import config
from gt.dispatcher.events import FoundPlan, PlanSolved, Solve
from gt.dispatcher.planner.plan import plan_program
from gt.errors import GTError
from gt.layout import layout, mesh, parse
from gt.ops.check import check
from gt.program import Program
from gt.solver.calibrate import hardware_for, kept, note_step
from gt.solver.hardware import Hardware, hardware_named
from gt.solver.plan import plan_of, plans_on
from gt.solver.pricing import price_plan
from gt.solver.solve import Limits, candidate_meshes
from gt.solver.units import time_text

MEMORY_NBYTES = 8 << 30  #: Address space of this process.
SEARCH_S = 20.0
TEXT = 20_000  #: Characters of the reasons that are sent.


def solve(job: Solve, hardware: Hardware) -> PlanSolved:
    """The best plan of a program on at most as many workers as it may use, and what else may turn out to be faster."""
    count = math.prod(n for _, n in job.most)
    meshes = [job.most] if job.fixed else [m.axes for m in candidate_meshes(count, hardware)]
    updated = {i for _, i in job.text.updates}
    named = [(f"%{k}", "parameter" if k in updated else "data") for k in range(len(job.text.inputs))]
    memory = job.memory or hardware.memory_nbytes
    limits = Limits(SEARCH_S, memory_nbytes=memory)
    pins = {f"%{k}": text for k, text in job.pins.items()}
    found = plans_on(job.text, named, list(dict.fromkeys(meshes)), hardware, pins, limits, alike=job.alike)
    plans: dict[int, FoundPlan] = {}  # the best for each number of workers,
    others: list[FoundPlan] = []  # and what is predicted to be nearly as fast as that
    for k, each in enumerate(found):
        if not each.error and (n := math.prod(n for _, n in each.axes)) not in plans:
            one = plan_of([each, *found[:k], *found[k + 1 :]], job.text, named, (), hardware, memory)
            words = ", ".join(one.reasons.words)
            plans[n] = FoundPlan(each.axes, each.inputs, each.ways, each.time_us, words, one.explain()[:TEXT])
            for other in each.others:
                text = f"<plan on {' '.join(f'{a}={n}' for a, n in each.axes)}: {time_text(other.time_us)} a step>"
                others.append(FoundPlan(each.axes, other.inputs, other.ways, other.time_us, other.name, text))
    whole = ("[]",) * len(named)
    alone_us = price_now(job.text, (("x", 1),), whole, hardware)
    if not job.fixed and 1 not in plans:  # nothing is left out because it is predicted to be slower: that may be wrong
        text = f"<plan on one worker: {time_text(alone_us)} a step>, {hardware.name}"
        plans[1] = FoundPlan((("x", 1),), whole, {}, alone_us, "one worker", text)
    current_us = price_now(job.text, job.axes, job.layouts, hardware)
    told = (*plans.values(), *sorted(others, key=lambda each: each.time_us))
    return PlanSolved(job.session, job.program, told, current_us, alone_us if job.pins else 0.0)


def price_now(
    program: Program, axes: tuple[tuple[str, int], ...], layouts: tuple[str, ...], hardware: Hardware
) -> float:
    """What a call takes now, by the same prices; 0 if its inputs are on several meshes."""
    if "" in layouts:
        return 0.0
    m = mesh(None, **dict(axes))
    inputs = [parse(text, m) if text != "[]" else layout(m) for text in layouts]
    checked = check(program)
    return price_plan(plan_program(checked, inputs, m, {}), checked, inputs, hardware).time_us


def _hardware(job: Solve, settings: config.Config) -> Hardware:
    """What plans are priced for: the workers as they were measured, or hardware by name. Where they cannot be measured
    it is the kind that they are of."""
    if settings.hardware != "measured":
        return hardware_named(settings.hardware)
    count = math.prod(n for _, n in job.most)
    try:
        found = hardware_for(settings.server, count, token=settings.token)
        if _note(job, found):
            found = hardware_for(settings.server, count, again=True, token=settings.token)
            _note(job, found)
        return kept(found.name) or found  # with the correction that the step has just shown
    except GTError:
        return hardware_named("h100" if job.device.startswith("cuda") else "cpu-gloo")


def _note(job: Solve, hardware: Hardware) -> bool:
    """Compare what a call takes with what is predicted. Returns whether to measure the workers again."""
    current_us = price_now(job.text, job.axes, job.layouts, hardware) if job.measured_us else 0.0
    return note_step(hardware, current_us, job.measured_us, math.prod(n for _, n in job.axes))


def main() -> int:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_NBYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    job = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Solve)
    settings = config.load()
    try:
        hardware = _hardware(job, settings)
        os.nice(19)  # now, and not before: a loop that never pauses would let nobody measure
        answer = solve(job, hardware)
    except GTError as e:
        answer = PlanSolved(job.session, job.program, error=f"{type(e).__name__}: {e}")
    sys.stdout.buffer.write(msgspec.msgpack.encode(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
