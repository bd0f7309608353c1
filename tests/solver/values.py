"""Plans of the solver, followed, give the values that one worker gives.

python -m tests.solver.values                every case in float64 on every mesh, some in narrower dtypes, and every op
python -m tests.solver.values --cases        the cases only
python -m tests.solver.values --ops [OP ..]  every use of every op (or of these) in every option that it has on x=2
python -m tests.solver.values --list [OP ..] the collectives of each option of one use of every op (or of these)

All workers' programs run in numpy in this process (tests/sharding/planned.py). The hardware of these plans computes
slowly and communicates fast, and a kernel costs nothing to start: so a solver splits what is small, too.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

import gt
from gt import config
from gt.dispatcher.planner.plan import Planned, plan_program
from gt.dispatcher.planner.ways import use_of
from gt.layout import Mesh, layout, mesh
from gt.ops import TABLE, Op
from gt.ops.check import Checked
from gt.solver.facts import numbers
from gt.solver.hardware import Hardware, Link
from gt.solver.options import Option, options_of
from gt.solver.solve import Limits, Solved, solve_on
from tests.sessions import default_dtype, session_on
from tests.sharding.cases import OPS, uses
from tests.sharding.planned import collectives, one_op, run_planned, unsharded
from tests.sharding.recorded import Called, Recording, Upload, is_update
from tests.sharding.simulate import close, place, read, spec_of
from tests.sharding.table import sample
from tests.sim.cluster import Cluster

from .cases import CASES

SPLITS = Hardware(
    name="splits", workers_per_node=8, flops={2: 1e9, 4: 1e9, 8: 1e9}, memory_bandwidth=1e9, launch_us=0.0,
    inside=Link(0.0, 1e12), between=Link(0.0, 1e12), memory_nbytes=10**12,
)  # fmt: skip
MESHES = [mesh(x=2), mesh(x=3), mesh(x=2, y=2), mesh(x=2, y=3)]
#: Two values are equal if they differ at most by this share of: their own, the largest value of the tensor, and TINY.
TOLERANCES = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
#: Gradients that are zero but for rounding (of a bias before a batch norm) have no digits that agree.
TINY = 1e-6
#: However small a gradient is, AdamW may take a step of the learning rate. Where gradients are zero but for rounding in
#: float32 (of the bias of keys), new parameters differ by so much.
STEP = 1e-3
#: Cases that are run in the narrower dtypes, too.
NARROW = ["mlp 16x8192", "6 heads", "eight experts", "clipped gradients", "vocabulary 50,257"]
LIMITS = Limits(search_s=5.0)


# -- the cases -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """One call of a training step, and what it gives on one worker."""

    checked: Checked
    arrays: list[np.ndarray]
    scalars: Sequence[Any]
    wanted: list[np.ndarray]


@cache
def step_of(name: str, dtype: str = "float64") -> Step:
    """The third step of a case with small sizes, on data that is drawn. float16 and bfloat16 mean autocast, with
    float32 parameters, as in training."""
    recording = Recording()
    cluster = Cluster(engine="numpy", settings=config.load())
    cluster.watch = recording.see
    with default_dtype(gt.float64 if dtype == "float64" else gt.float32), session_on(cluster):
        gt.manual_seed(0)
        training = CASES[name].build(**CASES[name].small)
        narrow = gt.autocast(dtype=getattr(gt, dtype)) if dtype.endswith("16") else nullcontext()
        with narrow:
            for _ in range(3):
                training.step(*training.batch).item()
    return last_step(recording, {i.shape for i in training.batch})


def last_step(recording: Recording, batch: set[tuple[int, ...]]) -> Step:
    """The last update, with drawn values for what has the shape of a batch and is not replaced."""
    values: dict[int, np.ndarray] = {}
    last = [event for event in recording.events if isinstance(event, Called) and is_update(event)][-1]
    for event in recording.events:
        if isinstance(event, Upload):
            values[event.id] = event.array
        elif event is not last:
            made = unsharded(event.checked, [values[i] for i in event.inputs], event.scalars)
            values.update(zip(event.outputs, made, strict=True))
        else:
            break
    rng = np.random.default_rng(0)
    replaced = {i for _, i in last.checked.program.updates}
    arrays = []
    for k, id in enumerate(last.inputs):
        a = values[id]
        if k not in replaced and a.shape in batch:
            a = rng.integers(0, 5, a.shape) if a.dtype.kind == "i" else rng.normal(size=a.shape).astype(a.dtype)
        arrays.append(a)
    return Step(last.checked, arrays, last.scalars, unsharded(last.checked, arrays, last.scalars))


def solved_step(name: str, m: Mesh, dtype: str = "float64") -> Solved:
    return solve_on(step_of(name, dtype).checked, m, SPLITS, {}, LIMITS)


def differences(step: Step, inputs: Sequence[Any], planned: Planned, tolerance: float) -> list[str]:
    """Which outputs are not those of one worker."""
    draws = np.random.default_rng(0)
    values = [place(a, one, draws) for a, one in zip(step.arrays, inputs, strict=True)]
    program = step.checked.program
    stepped = {n for n, ins in zip(numbers(step.checked), program.code, strict=True) if TABLE[ins.op].inplace}
    found = []
    made = run_planned(planned, step.checked, values, step.scalars)
    for k, (value, whole) in enumerate(zip(made, step.wanted, strict=True)):
        have, want = (np.asarray(a, np.float64) for a in (read(value), whole))
        assert np.isfinite(want).all()
        most = float(np.abs(want).max(initial=0.0))
        slack = STEP if program.outputs[k] in stepped and tolerance > 1e-6 else 0.0
        off = np.abs(have - want)
        if not (off <= slack + tolerance * (np.abs(want) + most + TINY)).all():
            found.append(f"output {k} {value.spec!r} {value.layout!r}: off by {off.max():.2e} of {most:.2e}")
    return found


def check_case(name: str, m: Mesh, dtype: str = "float64") -> tuple[Solved, list[str]]:
    """The plan of a case, and what is wrong with its values."""
    step, solved = step_of(name, dtype), solved_step(name, m, dtype)
    refused = [note for note in solved.planned.notes if "not followed" in note]
    return solved, refused + differences(step, solved.inputs, solved.planned, TOLERANCES[dtype])


# -- one op ----------------------------------------------------------------------------------


def followed(
    op: Op, args: Sequence[Any], attrs: dict[str, Any], m: Mesh, most: int = 10**9
) -> Iterator[tuple[Option, Planned | None, list[str]]]:
    """Each option of one use of an op (or so many, drawn by a seed), its plan, and what is wrong with it."""
    checked, arrays, scalars = one_op(op, args, attrs)
    every = list(options_of(use_of(op, [spec_of(a) for a in args], attrs), m, SPLITS))
    if len(every) > most:
        every = random.Random(f"{op.name} {m!r}").sample(every, most)
    wanted = unsharded(checked, arrays, scalars)
    draws = np.random.default_rng(0)
    for option in every:
        layouts = [one for one in option.wants if one is not None]
        planned = None
        try:
            planned = plan_program(checked, layouts, m, {}, {0: option.chosen})
            wrong = [note for note in planned.notes if "not followed" in note]
            for give, have in zip(option.gives, planned.outputs, strict=True) if layouts else ():
                if have is not give and have is not layout(m, give.dims):  # an output is reduced
                    wrong.append(f"gives {have!r}, not {give!r}")
            values = [place(a, one, draws) for a, one in zip(arrays, layouts, strict=True)]
            for k, (v, w) in enumerate(zip(run_planned(planned, checked, values, scalars), wanted, strict=True)):
                if v.spec.shape != w.shape or not close(read(v), w, v.spec.dtype):
                    wrong.append(f"result {k} differs")
        except Exception as e:  # whatever a wrong option leads to is a finding
            wrong = [f"{type(e).__name__}: {str(e)[:200]}"]
        yield option, planned, [f"{op.name} {attrs} on {m!r}: {option!r}: {line}" for line in wrong]


def listing(op: Op, m: Mesh) -> Iterator[str]:
    """The options of one use of an op, each with its collectives."""
    args, attrs = sample(op)
    yield f"{op.name} ({' '.join('x'.join(map(str, np.shape(a))) or '()' for a in args if isinstance(a, np.ndarray))})"
    for option, planned, wrong in followed(op, args, attrs, m):
        moved = " ".join(collectives(planned)) if planned is not None else ""
        yield f"    {moved or '-':40}  {option!r}" + ("  WRONG" if wrong else "")


# -- by command ------------------------------------------------------------------------------


def check_cases() -> int:
    wrong = 0
    jobs = [(name, m, "float64") for name in CASES for m in MESHES]
    jobs += [(name, m, dtype) for name in NARROW for m in MESHES[::2] for dtype in ("float32", "float16", "bfloat16")]
    for name, m, dtype in jobs:
        began = time.monotonic()
        try:
            solved, lines = check_case(name, m, dtype)
            moved = {kind for kind, _ in solved.price.collectives}
            split = sum(bool(one.axes()) for one in solved.inputs)
            say = f"{split} of {len(solved.inputs)} inputs split, {', '.join(sorted(moved)) or 'nothing moves'}"
        except Exception as e:  # a finding
            lines, say = [f"{type(e).__name__}: {str(e)[:300]}"], ""
        wrong += bool(lines)
        print(f"{name}, {m!r}, {dtype}: {'WRONG' if lines else 'right'}, {say}, {time.monotonic() - began:.1f} s",
              *lines[:3], sep="\n    ", flush=True)  # fmt: skip
    print(f"{len(jobs)} followed plans, {wrong} wrong")
    return wrong


def check_ops(names: Sequence[str], meshes: Sequence[Mesh] = MESHES[:1], most: int = 10**9) -> int:
    count = wrong = 0
    for name in names:
        for args, attrs in uses(TABLE[name]):
            for m in meshes:
                for _, _, lines in followed(TABLE[name], args, attrs, m, most):
                    count, wrong = count + 1, wrong + bool(lines)
                    print(*lines, sep="\n", end="\n" if lines else "", flush=True)
    print(f"{count} options of {len(names)} ops, {wrong} wrong")
    return wrong


def main(arguments: list[str]) -> int:
    names = arguments[1:] or [op.name for op in OPS if not op.pins]  # what pins a layout has no options
    if arguments[:1] == ["--list"]:
        for name in sorted(names):
            print(*listing(TABLE[name], MESHES[0]), sep="\n", flush=True)
        return 0
    wrong = 0
    if arguments[:1] != ["--ops"]:
        wrong += check_cases()
    if arguments[:1] != ["--cases"]:
        wrong += check_ops(names)
        wrong += check_ops(names, MESHES[1:], 20)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
