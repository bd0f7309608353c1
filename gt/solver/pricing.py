"""What a planned program costs: time, bytes between workers, and memory. It knows nothing of how the plan was found.

Law 1: only what is emitted counts: the instructions of the local programs, whatever was chosen or predicted.
Law 2: the last worker of the mesh has the largest shards (Law 1 of gt/layout.py), so its program is the one that is
       priced. Collectives take all their members the same time.

`time_us` is that of a timeline: a worker computes one instruction after the other and communicates one collective after
the other; both go on at once until an instruction reads a result that has not arrived. `busy_us` is the sum of all of
it, without overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gt.dispatcher.planner.memo import memo
from gt.dispatcher.planner.plan import Planned
from gt.dispatcher.planner.ways import Attrs, Use
from gt.layout import Layout, largest
from gt.ops.check import Checked, check
from gt.ops.record import TABLE, Op
from gt.ops.work import flops, traffic
from gt.program import SCALARS, Spec
from gt.solver.hardware import Hardware


@dataclass(slots=True)
class Tally:
    """Collectives of one kind over one set of workers."""

    count: int = 0
    nbytes: float = 0.0  #: that the worker receives
    time_us: float = 0.0


@dataclass(slots=True)
class Price:
    """What one call of a plan costs a worker."""

    time_us: float = 0.0  #: with overlap
    compute_us: float = 0.0
    communication_us: float = 0.0
    received_nbytes: float = 0.0  #: from other workers
    input_nbytes: int = 0  #: memory of the inputs
    peak_nbytes: int = 0  #: memory of inputs and of everything else, at the peak
    collectives: dict[tuple[str, tuple[int, ...]], Tally] = field(default_factory=dict)  #: by (kind, workers)
    #: Of each instruction of the client's program: time of computation and of communication. -1: of several.
    by_instruction: dict[int, tuple[float, float]] = field(default_factory=dict)

    @property
    def busy_us(self) -> float:
        """Computation and communication, one after the other."""
        return self.compute_us + self.communication_us


def price_plan(planned: Planned, checked: Checked, inputs: Sequence[Layout], hardware: Hardware) -> Price:
    """The price of a plan of a program whose inputs have these layouts."""
    worker = planned.workers[-1]
    local = planned.locals[worker]
    mine = check(local.program)
    found = Price()
    ready = [0.0] * len(mine.program.inputs)  # of each value: when it is there
    computing = communicating = 0.0
    for i, ins in enumerate(mine.program.code):
        op = TABLE[ins.op]
        specs = [mine.specs[a] if a >= 0 else SCALARS[mine.program.scalars[~a]] for a in ins.args]
        at = max([ready[a] for a in ins.args if a >= 0], default=0.0)
        results = mine.specs[len(ready) : len(ready) + ins.results]
        origin = local.origins[i] if i < len(local.origins) else -1
        compute, exchange = found.by_instruction.get(origin, (0.0, 0.0))
        if op.collective:
            nbytes, received = exchanged_nbytes(ins.op, ins.attrs, results[0])
            time_us = hardware.collective_us(ins.op, nbytes, ins.attrs["workers"])
            tally = found.collectives.setdefault((ins.op, tuple(ins.attrs["workers"])), Tally())
            tally.count, tally.nbytes, tally.time_us = tally.count + 1, tally.nbytes + received, tally.time_us + time_us
            found.communication_us += time_us
            found.received_nbytes += received
            at = communicating = max(communicating, at) + time_us
            found.by_instruction[origin] = compute, exchange + time_us
        else:
            time_us = use_us(Use(op, Attrs.of(ins.attrs), tuple(specs), tuple(results)), hardware)
            if time_us:
                at = computing = max(computing, at) + time_us
                found.compute_us += time_us
                found.by_instruction[origin] = compute + time_us, exchange
        ready += [at] * ins.results
    found.time_us = max(computing, communicating)
    found.input_nbytes = sum(
        largest(one, s.shape) * s.dtype.itemsize for one, s in zip(inputs, checked.specs, strict=False)
    )
    found.peak_nbytes = found.input_nbytes + max(planned.nbytes.values())
    return found


def exchanged_nbytes(name: str, attrs: dict[str, Any], result: Spec) -> tuple[float, float]:
    """Of a collective: its bytes as `Hardware.collective_us` takes them, and those that a worker receives, if the
    collective is implemented optimally."""
    n, rank = len(attrs["workers"]), attrs["rank"]
    if name == "all_reduce":
        return result.nbytes, 2 * result.nbytes * (n - 1) / n
    sizes = attrs["sizes"] if name == "all_gather" else attrs["takes"]
    received = (sum(sizes) - sizes[rank]) * result.dtype.itemsize
    return (result.nbytes if name == "all_gather" else received), received


@memo(1 << 16)
def use_us(use: Use, hardware: Hardware) -> float:
    """The time of one use of an op on one worker, on all of its operands. A view takes none."""
    if use.op.aliases:
        return 0.0
    work, nbytes = work_of(use)
    return hardware.compute_us(work, nbytes, _dtype(use))


@memo(1 << 16)
def work_of(use: Use) -> tuple[int, int]:
    """Floating-point operations, and bytes read and written."""
    return flops(use.op, use.specs, use.attrs.value), traffic(use.op, use.specs, use.results)


def _dtype(use: Use) -> Any:
    """The dtype that an op computes in: that of its operands."""
    found = [s.dtype for s in use.specs if not s.weak and s.dtype.is_floating_point]
    return max(found, key=lambda d: d.itemsize, default=None)


def peak_of(planned: Planned) -> tuple[int, int]:
    """The instruction of the client's program at which the last worker needs the most memory beside its inputs, and how
    much that is: by the lifetimes in its own program."""
    local = planned.locals[planned.workers[-1]]
    mine = check(local.program)
    kept = set(local.program.outputs)
    alive = most = 0
    where = -1
    number = len(mine.program.inputs)
    dies: dict[int, int] = {}
    over = {mine.program.outputs[o] for o, _ in mine.program.updates}
    for i, ins in enumerate(mine.program.code):
        op: Op = TABLE[ins.op]
        for v in range(number, number + ins.results):
            nbytes = 0 if op.aliases or (op.inplace and v in over) else mine.specs[v].nbytes
            alive += nbytes
            if v not in kept:
                at = max(mine.last_use[v], i)
                dies[at] = dies.get(at, 0) + nbytes
        number += ins.results
        if alive > most:
            most, where = alive, local.origins[i] if i < len(local.origins) else -1
        alive -= dies.pop(i, 0)
    return where, most
