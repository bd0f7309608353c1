"""Training steps on real workers: what they take beside what their instructions take by themselves.

Workers that meet in a collective wait for the slower one, and client, server and workers share cores. So a collective
in a step takes longer than it does where nothing else is done, and so does a call. How much longer is learned from
steps of the sample (samples.py) with many collectives, with few, and with none, in a loop that does not wait, as a
user's does.

Law 1: only this is learned: by how many times as long as predicted a step on one worker takes, and, for several
       workers, how much time is added by each collective and by each call.
Law 2: what counts is the time for which workers run a call, of one worker that for which its thread has a core. What
       other sessions run between calls has no part in it.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import gt
from gt.chosen import Chosen
from gt.dispatcher.planner.plan import plan_program
from gt.layout import Layout, Mesh, layout, mesh, split
from gt.solver.hardware import Hardware
from gt.solver.pricing import price_plan
from gt.solver.probes import Probes
from gt.solver.recorded import RecordedProgram
from gt.solver.samples import sample_program, sample_step

SCALE = 16  #: Of the sample: its steps take ten to fifty milliseconds.
WARM, STEPS = 16, 8  #: Steps before the code of a program is written, and those that are timed.
ODD = 3.0  #: If one worker takes so many times as long as predicted, or so much less, that says nothing.


@dataclass(frozen=True, slots=True)
class _Rehearsed:
    """A plan as `gt.use_plan` takes it."""

    mesh: Mapping[str, int]
    layouts: Mapping[str, str]
    body: str
    ways: Mapping[int, Chosen]


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A step on some workers."""

    predicted_us: float  #: by its instructions
    collectives: int
    took_us: float


def rehearse(probes: Probes, known: Hardware, workers: int) -> list[TimedStep]:
    """Run steps on so many workers, of which `known` is known."""
    program, m = sample_program(SCALE), mesh(x=workers)
    known = dataclasses.replace(known, call_us=0.0, correction=1.0, among={})
    found = []
    for inputs in _arranged(program, m):
        price = price_plan(plan_program(program.checked, inputs, m, {}), program.checked, inputs, known)
        count = sum(tally.count for tally in price.collectives.values())
        found.append(TimedStep(price.time_us, count, _took_us(probes, program, m, inputs)))
    return found


def _arranged(program: RecordedProgram, m: Mesh) -> Iterator[list[Layout]]:
    """Layouts of the inputs: nothing is split, the batch is, all is."""

    def over(*roles: str) -> list[Layout]:
        return [
            split(m, one.spec.shape, {0: "x"})
            if one.role in roles and one.spec.shape and one.spec.shape[0] >= len(m.workers) else layout(m)
            for one in program.inputs
        ]  # fmt: skip

    yield over()
    if len(m.workers) > 1:
        yield over("data")
        yield over("data", "parameter", "state")


def _took_us(probes: Probes, program: RecordedProgram, m: Mesh, inputs: Sequence[Layout]) -> float:
    """How long workers run such a step, typically."""
    layouts = {one.name: repr(at) for one, at in zip(program.inputs, inputs, strict=True)}
    with gt.enable_grad():
        step, arguments = sample_step(SCALE)
        gt.use_plan(_Rehearsed(m.sizes, layouts, program.body, {}), step, *arguments)
        for _ in range(WARM):
            step(*arguments)
        probes.finish()
        first = probes.session.seq
        for _ in range(STEPS):
            step(*arguments)
        probes.finish()
    calls = probes.calls_since(first, waiting=len(m.workers) > 1)
    each = len(calls) // STEPS  # of one step
    return statistics.median(sum(calls[k : k + each]) for k in range(0, each * STEPS, each))


def learned(known: Hardware, steps: Sequence[TimedStep], one: Hardware | None) -> Hardware:
    """The hardware with what steps have shown. On one worker (`one` is None): by how many times as long as predicted
    they take. On several: what a collective and a call add to that, as the least squares relative to their times."""
    if one is None:
        ratio = steps[0].took_us / steps[0].predicted_us
        return dataclasses.replace(known, correction=ratio if 1 / ODD < ratio < ODD else 1.0)
    slower = one.correction
    rows = [(each.collectives / each.took_us, 1 / each.took_us, 1 - slower * each.predicted_us / each.took_us)
            for each in steps]  # fmt: skip
    aa, ab, bb = (sum(r[i] * r[j] for r in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    a, b = sum(r[0] * r[2] for r in rows), sum(r[1] * r[2] for r in rows)
    det = aa * bb - ab * ab
    waits, call = (bb * a - ab * b) / det, (aa * b - ab * a) / det
    if waits < 0 or call < 0:  # neither makes a step faster
        waits, call = (0.0, b / bb) if waits < 0 else (a / aa, 0.0)
    waits, call = max(waits, 0.0) / slower, max(call, 0.0) / slower
    curves = {key: tuple([(n, us + waits) for n, us in curve]) for key, curve in known.collectives.items()}
    link = dataclasses.replace(known.inside, latency_us=known.inside.latency_us + waits)
    return dataclasses.replace(
        known, collectives=curves, inside=link, between=link, call_us=known.call_us + call, correction=slower
    )
