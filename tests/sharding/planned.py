"""All workers' local programs together, in one process: each worker is a generator that stops at its collectives.

Collectives are done in numpy on what the workers of a group bring. The engine is numpy. Indices are checked as on a
worker.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import numpy as np

from gt.dispatcher.planner.plan import Planned, plan_program
from gt.dispatcher.planner.ways import all_ways
from gt.layout import Layout, Mesh
from gt.ops import TABLE, check
from gt.ops.check import Checked
from gt.ops.evaluate import KernelOf, apply, evaluate
from gt.ops.record import Op
from gt.ops.trace import OpTrace, Symbol, scalar_kind
from gt.program import SCALARS, Instruction, Program, Spec
from tests.ops.cases import program_of
from tests.sharding.checking import Example, kinds_of
from tests.sharding.layouts import drawn
from tests.sharding.simulate import COMBINE, ENGINE, Value, place, spec_of

#: (op, attributes, array) goes out, what came of it comes in.
Worker = Generator[tuple[str, dict[str, Any], np.ndarray], np.ndarray, list[np.ndarray]]


def checked_kernel(op: Op, attrs: dict[str, Any], specs: Sequence[Spec]) -> Any:
    """The engine's kernel, after a check of its indices."""
    kernel = ENGINE.kernel(op, attrs, specs)
    if op.indices is None or kernel is None:
        return kernel
    wanted = op.indices(*specs, **attrs)

    def run(*args: Any) -> Any:
        for k, (n, extra) in wanted.items():
            ENGINE.check(op.name, np.asarray(args[k]), n, extra, None)
        return kernel(*args)

    return run


def working(checked: Checked, inputs: Sequence[np.ndarray], scalars: Sequence[Any], kernel_of: KernelOf) -> Worker:
    """One worker at its local program."""
    values: list[Any] = list(inputs)
    for ins in checked.program.code:
        args = [values[a] if a >= 0 else scalars[~a] for a in ins.args]
        specs = [checked.specs[a] if a >= 0 else SCALARS[checked.program.scalars[~a]] for a in ins.args]
        op = TABLE[ins.op]
        if op.collective:
            values.append((yield ins.op, ins.attrs, np.asarray(args[0])))
        else:
            values.extend(apply(op, args, specs, ins.attrs, kernel_of))
    return [np.asarray(values[o]) for o in checked.program.outputs]


def met(name: str, rows: list[tuple[dict[str, Any], np.ndarray]]) -> list[np.ndarray]:
    """The result of a collective for each member of its group."""
    arrays = [a for _, a in rows]
    assert len({a.dtype for a in arrays}) == 1
    if name == "all_reduce":
        assert arrays[0].dtype.kind in "fiu", "no other dtype can be reduced on the wire"
        assert arrays[0].dtype.itemsize > 2 or arrays[0].dtype.kind == "u"
        total = arrays[0]
        for a in arrays[1:]:
            assert a.shape == total.shape
            # A max on the wire loses a NaN on some ranks.
            assert rows[0][0]["kind"] == "sum" or total.dtype.kind != "f" or not np.isnan(a).any()
            total = np.asarray(COMBINE[rows[0][0]["kind"]](total, a), total.dtype)
        return [total] * len(arrays)
    if name == "all_gather":
        return [np.concatenate(arrays)] * len(arrays)
    cuts = [np.split(a, np.cumsum(attrs["sends"])[:-1]) for attrs, a in rows]
    return [np.concatenate([mine[k] for mine in cuts]) for k in range(len(rows))]


def run_together(workers: Mapping[int, Worker]) -> dict[int, list[np.ndarray]]:
    """Run until all have returned. Raises if some would wait for ever."""
    done: dict[int, list[np.ndarray]] = {}
    asks: dict[int, tuple[str, dict[str, Any], np.ndarray]] = {}

    def go(worker: int, value: Any) -> None:
        try:
            asks[worker] = workers[worker].send(value)
        except StopIteration as e:
            done[worker] = e.value

    for worker in workers:
        go(worker, None)
    while asks:
        for worker in list(asks):
            name, attrs, _ = asks[worker]
            group = tuple(attrs["workers"])
            if all(w in asks and tuple(asks[w][1]["workers"]) == group and asks[w][0] == name for w in group):
                results = met(name, [(asks[w][1], asks[w][2]) for w in group])
                for w in group:
                    del asks[w]
                for w, array in zip(group, results, strict=True):
                    go(w, array)
                break
        else:
            raise AssertionError(
                f"workers wait for each other: {[(w, a[0], a[1]['workers']) for w, a in asks.items()]}"
            )
    return done


def run_planned(planned: Planned, checked: Checked, inputs: Sequence[Value], scalars: Sequence[Any]) -> list[Value]:
    """The outputs of a plan on values in the layouts that it was made for."""
    workers = {}
    for worker, local in planned.locals.items():
        mine = check(local.program)
        assert local.program.workers == (planned.workers if len(planned.workers) > 1 else ())
        arrays = []
        for i, value in enumerate(inputs):
            at = value.mesh.workers.index(worker) if worker in value.mesh.workers else -1
            arrays.append(np.asarray(value.parts[at]) if at >= 0 else np.zeros((0,), np.uint8))
            shape, dtype = local.program.inputs[i]
            assert (tuple(shape), dtype) == (arrays[-1].shape, str(spec_of(arrays[-1]).dtype.name))
        workers[worker] = working(mine, arrays, [*scalars, *local.constants], checked_kernel)
    made = run_together(workers)
    outputs = []
    for k, (number, one) in enumerate(zip(checked.program.outputs, planned.outputs, strict=True)):
        for worker in planned.workers:
            if worker not in one.mesh.workers:
                assert made[worker][k].shape == (0,)
        outputs.append(Value(one, checked.specs[number], [made[w][k] for w in one.mesh.workers]))
    return outputs


def one_op(op: Op, args: Sequence[Any], attrs: dict[str, Any]) -> tuple[Checked, list[np.ndarray], list[Any]]:
    """A program of one instruction, its inputs and its scalars."""
    program, arrays, numbers = program_of(op, args, attrs)
    return check(program), arrays, list(numbers)


def written_down(
    trace: OpTrace, inputs: Sequence[Symbol], results: Sequence[Symbol], updates: Mapping[int, int] | None = None
) -> tuple[Checked, list[Any]]:
    """A trace as a program, and its scalars. `updates`: place among the results -> the input it replaces."""
    numbers: dict[int, int] = {s.number: i for i, s in enumerate(inputs)}
    scalars: list[Any] = []
    code, count = [], len(inputs)
    for op, args, attrs, made in trace.code:
        refs = []
        for a in args:
            if isinstance(a, Symbol):
                refs.append(numbers[a.number])
            else:
                scalars.append(a)
                refs.append(~(len(scalars) - 1))
        code.append(Instruction(op.name, tuple(refs), attrs, len(made)))
        for n in made:
            numbers[n] = count
            count += 1
    replaced = tuple((updates or {}).items())
    program = Program(
        tuple((s.shape, s.dtype.name) for s in inputs), "".join(map(scalar_kind, scalars)), tuple(code),
        tuple(numbers[r.number] for r in results), tuple(i for _, i in replaced), replaced,
    )  # fmt: skip
    return check(program), scalars


def collectives(planned: Planned, worker: int | None = None) -> list[str]:
    """The collectives that a worker runs, in order."""
    code = planned.locals[planned.workers[0] if worker is None else worker].program.code
    return [ins.op for ins in code if TABLE[ins.op].collective]


def received_nbytes(planned: Planned, worker: int) -> float:
    """The bytes that a worker receives, if each collective is implemented optimally."""
    checked, total = check(planned.locals[worker].program), 0.0
    number = len(checked.program.inputs)
    for ins in checked.program.code:
        if TABLE[ins.op].collective:
            n, rank = len(ins.attrs["workers"]), ins.attrs["rank"]
            made = checked.specs[number]
            if ins.op == "all_reduce":
                total += 2 * made.nbytes * (n - 1) / n
            else:
                sizes = ins.attrs["sizes"] if ins.op == "all_gather" else ins.attrs["takes"]
                total += (sum(sizes) - sizes[rank]) * made.dtype.itemsize
        number += ins.results
    return total


def planned_values(
    checked: Checked, arrays: Sequence[np.ndarray], numbers: Sequence[Any], layouts: Sequence[Layout], home: Mesh,
    draws: np.random.Generator, meshes: Mapping[str, Mesh] | None = None,
) -> tuple[Planned, list[Value]]:  # fmt: skip
    planned = plan_program(checked, layouts, home, meshes or {})
    values = [place(a, one, draws) for a, one in zip(arrays, layouts, strict=True)]
    return planned, run_planned(planned, checked, values, numbers)


def unsharded(checked: Checked, arrays: Sequence[Any], numbers: Sequence[Any]) -> list[np.ndarray]:
    return [np.asarray(a) for a in evaluate(checked, arrays, numbers, ENGINE.kernel)]


def mistakes_planned(example: Example, m: Mesh, rng: random.Random, count: int = 1) -> list[str]:
    """What went wrong with a program of this one instruction: on inputs in layouts drawn at random, and as often on
    inputs in the layouts that one of the op's ways wants."""
    checked, arrays, numbers = one_op(example.op, example.args, example.attrs)
    every, found = list(all_ways(example.use, m)), []
    draws = np.random.default_rng(rng.randrange(1 << 30))
    for i in range(2 * count):
        if i % 2:
            layouts = [one for one in rng.choice(every).wants if one is not None]
        else:
            layouts = [drawn(rng, m, a.shape, kinds_of(a)) for a in arrays]
        try:
            said: list[Any] = example.wrong(planned_values(checked, arrays, numbers, layouts, m, draws)[1])
        except Exception as e:  # whatever a wrong plan leads to is a finding
            said = [f"{type(e).__name__}: {str(e)[:200]}"]
        if said:
            found.append(f"planned {example!r} on {m!r}: {layouts}: {said}")
    return found
