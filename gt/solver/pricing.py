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
from gt.dispatcher.planner.ways import Use, uses_of
from gt.layout import Layout, largest
from gt.ops.check import Checked, alive_nbytes, check
from gt.ops.record import TABLE
from gt.ops.work import flops, traffic
from gt.program import Spec
from gt.solver.hardware import Hardware, read_off


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
    hardware = hardware.busy(len(planned.workers))
    worker = planned.workers[-1]
    local = planned.locals[worker]
    mine = check(local.program)
    found = Price()
    ready = [0.0] * len(mine.program.inputs)  # of each value: when it is there
    computing = communicating = 0.0
    for i, (ins, use) in enumerate(zip(mine.program.code, uses_of(mine), strict=True)):
        at = max([ready[a] for a in ins.args if a >= 0], default=0.0)
        origin = local.origins[i] if i < len(local.origins) else -1
        compute, exchange = found.by_instruction.get(origin, (0.0, 0.0))
        if use.op.collective:
            nbytes, received = exchanged_nbytes(ins.op, ins.attrs, use.results[0])
            time_us = hardware.collective_us(ins.op, nbytes, ins.attrs["workers"])
            tally = found.collectives.setdefault((ins.op, tuple(ins.attrs["workers"])), Tally())
            tally.count, tally.nbytes, tally.time_us = tally.count + 1, tally.nbytes + received, tally.time_us + time_us
            found.communication_us += time_us
            found.received_nbytes += received
            at = communicating = max(communicating, at) + time_us
            computing += hardware.blocking * time_us  # what it is slowed down by
            found.by_instruction[origin] = compute, exchange + time_us
        else:
            time_us = use_us(use, hardware)
            if time_us:
                at = computing = max(computing, at) + time_us
                found.compute_us += time_us
                found.by_instruction[origin] = compute + time_us, exchange
        ready += [at] * ins.results
    found.time_us = (max(computing, communicating) + hardware.call_us) * hardware.correction
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
    time_us = hardware.op_us(use.op.name, work, nbytes, _dtype(use))
    if hardware.new_memory and not use.op.inplace:
        time_us += sum(read_off(hardware.new_memory, s.nbytes) for s in use.results)
    return time_us


def arithmetic_us(use: Use, workers: int, hardware: Hardware) -> float:
    """The time of one use of an op if so many workers share its arithmetic equally, and reading and writing take
    none."""
    if use.op.aliases:
        return 0.0
    return hardware.op_us(use.op.name, work_of(use)[0] / workers, 0, _dtype(use))


def cached_us(use: Use, hardware: Hardware) -> float:
    """What another kernel would take for the work of one use of an op: see `Hardware.ops`."""
    work, nbytes = work_of(use)
    return hardware.cached_us(work, nbytes, _dtype(use))


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
    over = {mine.program.outputs[o] for o, _ in mine.program.updates}
    nbytes = [s.nbytes for s in mine.specs]
    for ins, made in mine.program.numbered():
        op = TABLE[ins.op]
        for v in made:
            if op.aliases or (op.inplace and v in over):
                nbytes[v] = 0
    most, where = 0, -1
    for i, alive in enumerate(alive_nbytes(mine.program, nbytes, mine.last_use, set(local.program.outputs))):
        if alive > most:
            most, where = alive, local.origins[i] if i < len(local.origins) else -1
    return where, most
