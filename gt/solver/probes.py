"""Programs that measure workers: each takes most of its time for the one thing that is to be known.

Law 1: a session of a client runs them, as any other; the workers' own clocks say how long they took (`Clocks`).
Law 2: all workers of a mesh are busy at once, because they share cores, memory and links. How much that slows down
       their kernels is measured in turn with one worker alone. Where there are fewer cores than threads, they take
       turns.
Law 3: what is divided by is what the planner emits: the collectives of a probe are counted in its plan.
Law 4: others use the machine too, and can only make it slower. Of several runs the fastest counts. On CPUs kernels are
       timed by the time for which the worker's thread has a core: how many others wait for one has no part in it. What
       workers wait for, each other or a device, is timed by the clock; such a program takes one or two milliseconds
       where that is possible, because longer ones are interrupted on a busy machine.

The fixed time of a call, which every probe has too, is measured by itself and taken off.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import gt
from gt.client.programs.tree import Variant
from gt.client.record.recorder import recorder
from gt.client.session.placing import set_mesh
from gt.dispatcher.planner.plan import plan_program
from gt.dispatcher.planner.ways import Use, uses_of
from gt.dtypes import DType
from gt.errors import GTError
from gt.layout import Layout, split
from gt.ops.check import check
from gt.ops.record import TABLE
from gt.solver.hardware import Curve, Hardware, rising
from gt.solver.pricing import cached_us
from gt.solver.recorded import RecordedProgram
from gt.solver.samples import sample_program

#: A result of so many bytes and more is new memory every time, which the system clears (gt/worker/heap.py).
LARGE_NBYTES = 32 << 20
KINDS = ("all_reduce", "all_gather", "all_to_all")


CALLS, ROUNDS = 3, 5  #: Calls of each worker, where time is measured from outside, and how often that is done.
CLOSE = 1.04  #: The three fastest runs of a program are as close as that, or it is run for longer.


Body = Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured."""

    repeats: int  #: of each program; the fastest counts
    patience_s: float  #: for each program, if its three fastest runs are not close to each other
    sizes: tuple[int, ...]  #: bytes of the arrays that collectives work on
    traffic: tuple[int, ...]  #: bytes that kernels read and write
    width: int  #: of the matrices that are multiplied
    scales: tuple[int, ...]  #: of the samples whose ops are timed (see samples.py)


FULL = Effort(
    4, 0.15, (256, 1 << 16, 1 << 18, 1 << 20, 1 << 22), (1 << 7, 1 << 17, 1 << 20, 1 << 23, 1 << 25), 256, (1, 16, 32)
)
QUICK = Effort(3, 0.0, (256, 1 << 16, 1 << 20), (1 << 7, 1 << 17, 1 << 22), 128, ())


@dataclass(frozen=True, slots=True)
class Clocks:
    """What the calls of a session took so far."""

    calls: int  #: how many there were
    run_us: int  #: by the clock; of several workers the slowest
    cpu_us: list[int]  #: of each worker: for so long its thread had a core

    def since(self, before: Clocks, waiting: bool) -> int:
        """What they took since then: by the clock, or of a core."""
        if waiting:
            return self.run_us - before.run_us
        return max(now - us for now, us in zip(self.cpu_us, before.cpu_us, strict=True))


class Probes:
    """The session of this process, while it measures."""

    def __init__(self, effort: Effort) -> None:
        self.effort = effort
        self.session = recorder().session
        self.axes: dict[str, int] = {}
        self.on_cpus = all(w["device"] == "cpu" for w in self._workers())
        self.fixed_us = 0.0  #: of a call on these workers,
        self.fixed_busy_us = 0.0  #: and without what they wait for
        self._read: Clocks | None = None  #: the latest

    def arrange(self, **axes: int) -> None:
        """Take so many workers, in this grid."""
        set_mesh(self.session, "", axes)
        self.axes = axes
        if "alone" not in self.session.meshes.by_name:
            set_mesh(self.session, "alone", {"x": 1}, [0])
        x = self.whole((4,))
        self.fixed_us = min(self.time_us(lambda: x.relu(), waiting=True) for _ in range(3))
        self.fixed_busy_us = min(self.time_us(lambda: x.relu()) for _ in range(3))

    # -- time ------------------------------------------------------------------------------------

    def finish(self) -> None:
        """End the program that is being recorded, and wait until all calls are done."""
        recorder().settle()
        sent = self.session.seq
        self.session.wait(lambda: self.session.done >= sent)

    def clocks(self) -> Clocks:
        """What the calls of this session took so far. All of them are finished."""
        sent = self.session.seq
        if self._read is None or self._read.calls != sent:  # to ask all workers takes longer than most programs
            stats = self.session.stats(programs=False)
            workers = [stats["workers"][number] for number in sorted(stats["workers"], key=int)]
            cpu_us = [w.get("session", {}).get("cpu_us", 0) for w in workers]
            self._read = Clocks(sent, stats["session"]["run_us"], cpu_us)
        return self._read

    def time_us(self, program: Callable[[], Any], patience: float = 1.0, waiting: bool = False) -> float:
        """How long a program takes on the workers. `waiting`: with the time for which they wait for each other."""
        until_s = time.monotonic() + patience * self.effort.patience_s
        # The first is not counted: its code is made, and groups.
        found = sorted(self._each_us(program, 1 + self.effort.repeats, waiting)[1:])
        while found[2] >= CLOSE * found[0] and time.monotonic() <= until_s:
            found = sorted([*found, *self._each_us(program, self.effort.repeats, waiting)])
        return float(found[0])

    def _each_us(self, program: Callable[[], Any], times: int, waiting: bool) -> list[int]:
        """How long a program takes, so many times: see `time_us`."""
        if not self.on_cpus:
            return [self._taken_us(program) for _ in range(times)]
        recorder().settle()
        marks = [self.session.seq]
        # One is sent while the one before runs: beside a busy session each wait is long, and others wait for all that
        # the workers were sent.
        for _ in range(times):
            results = program()
            recorder().settle()
            del results
            before = marks[-1]
            marks.append(self.session.seq)
            self.session.wait(partial(self._has_done, before))
        self.finish()
        us = self.calls_since(marks[0], waiting)
        return [sum(us[a - marks[0] : b - marks[0]]) for a, b in pairwise(marks)]

    def _has_done(self, seq: int) -> bool:
        return self.session.done >= seq

    def calls_since(self, first: int, waiting: bool) -> list[int]:
        """How long each call after that one took, on the slowest worker: see `time_us`."""
        rows = [w.get("session", {}).get("recent", ()) for w in self._workers()]
        each = [{seq: took_us if waiting else cpu_us for seq, cpu_us, took_us, _ in row} for row in rows]
        return [max(row.get(seq, 0) for row in each) for seq in range(first + 1, self.session.seq + 1)]

    def _taken_us(self, program: Callable[[], Any]) -> int:
        before = self.clocks()
        results = program()
        self.finish()
        del results
        return self.clocks().since(before, True)

    # -- computation -----------------------------------------------------------------------------

    def whole(self, shape: Sequence[int], value: float = 1.0, dtype: DType = gt.float32, mesh: str = "") -> Any:
        """A tensor that every worker of a mesh has."""
        made = gt.replicate(gt.full(tuple(shape), value, dtype=dtype), mesh)
        recorder().settle()
        return made

    def each_us(
        self, body: Body, start: Sequence[int], other: Sequence[int], count: int, dtype: DType = gt.float32
    ) -> float:
        """How long `body` takes on one worker, which makes a value like the first one that it gets: of a chain of so
        many. The two values that it gets have these shapes."""
        first, second = self._operands("", start, other, dtype)
        return max(self.time_us(lambda: _chain(body, first, second, count)) - self.fixed_busy_us, 0.0) / count

    def slowdown(self, body: Body, start: Sequence[int], other: Sequence[int], count: int) -> float:
        """How many times as long as one worker alone all workers take for it together: see Law 2. Both are measured in
        turn, so that what else runs slows both down."""
        homes = ("alone", "")
        operands = {home: self._operands(home, start, other, gt.float32) for home in homes}

        def taken_us(home: str) -> float:
            """How long several calls take: on this process's clock, or of the busiest worker's core."""
            before, began, results = self.clocks(), time.perf_counter(), []
            for _ in range(CALLS):
                results.append(_chain(body, *operands[home], count))
                recorder().settle()  # a call of its own
            self.finish()
            taken_s = time.perf_counter() - began
            return self.clocks().since(before, False) if self.on_cpus else taken_s * 1e6

        for home in homes:
            taken_us(home)
        taken: dict[str, list[float]] = {home: [] for home in homes}
        for _ in range(ROUNDS):
            for home in homes:
                taken[home].append(taken_us(home))
        if self.on_cpus:
            return min(taken[""]) / max(min(taken["alone"]), 1.0) * self._turns()
        return statistics.median([a / b for a, b in zip(taken[""], taken["alone"], strict=True)])

    def _workers(self) -> list[dict[str, Any]]:
        """What workers say of themselves, in the order of their numbers."""
        stats = self.session.stats(programs=False)["workers"]
        return [stats[number] for number in sorted(stats, key=int)]

    def _turns(self) -> float:
        """How many turns the threads of these workers take on the cores of a host, over those of one worker alone."""
        wanted: dict[str, float] = {}
        alone = 1.0
        for w in self._workers()[: math.prod(self.axes.values())]:
            share = w["threads"] / max(w["cpus"], 1e-3)
            wanted[w["host"]] = wanted.get(w["host"], 0.0) + share
            alone = max(alone, share)
        return max(1.0, *wanted.values()) / alone

    def _operands(self, home: str, start: Sequence[int], other: Sequence[int], dtype: DType) -> tuple[Any, Any]:
        return self.whole(start, 1.0, dtype, home), self.whole(other, 1 / max(other[0], 1), dtype, home)

    def slowdowns(self) -> tuple[float, float]:
        """How many times as long kernels take while all workers compute: those that multiply, and those that read and
        write much memory."""
        width, n = 2 * self.effort.width, self.effort.traffic[-1] // 8
        products, kernels = (2, 2) if self.on_cpus else (8, 6)  # on CPUs calls of other sessions wait for these
        return (
            self.slowdown(lambda x, w: x @ w, (width, width), (width, width), products),
            self.slowdown(lambda x, _: x.relu(), (n,), (1,), kernels),
        )

    def kernel_us(self, nbytes: int) -> float:
        """A kernel that reads and writes so many bytes."""
        count = 160 if nbytes < 1 << 18 else 48 if nbytes < 1 << 21 else 8 if nbytes < 1 << 25 else 1
        return self.each_us(lambda x, _: x.relu(), (nbytes // 8,), (1,), count)

    def new_memory_us(self, known: Hardware) -> float:
        """How much longer a kernel takes whose result is in new memory."""
        nbytes = 2 * LARGE_NBYTES + (2 << 20)
        return max(self.kernel_us(nbytes) - known.compute_us(0, nbytes, None), 0.0)

    def matmul_us(self, dtype: DType, rows: int, width: int) -> float:
        """A product of (rows, width) and (width, width)."""
        return self.each_us(lambda x, w: x @ w, (rows, width), (width, width), 4, dtype)

    def call_us(self, calls: int = 12) -> float:
        """A call that does next to nothing, in a loop that does not wait for it. On CPUs from the end of one to the end
        of the next: what other sessions run between some of them has no part in it. They wait behind a longer call, so
        that it does not matter how fast this process sends them."""
        x, width = self.whole((4,)), 2 * self.effort.width
        before, second = self._operands("", (width, width), (width, width), gt.float32)
        best, gaps = math.inf, []
        for _ in range(3 * self.effort.repeats):
            began, first = time.perf_counter(), self.session.seq + 1
            if self.on_cpus:
                longer = before @ second
                recorder().settle()
                del longer
            for _ in range(calls):
                x = x.relu()
                recorder().settle()
            self.finish()
            best = min(best, (time.perf_counter() - began) / calls * 1e6)
            if self.on_cpus:
                for w in self._workers()[: math.prod(self.axes.values())]:
                    ends = [end_us for seq, _, _, end_us in w.get("session", {}).get("recent", ()) if seq >= first]
                    gaps += [b - a for a, b in pairwise(ends)]
        return min(statistics.quantiles(gaps, n=4)[0], best) if gaps else best

    # -- collectives -----------------------------------------------------------------------------

    def collective_us(self, kind: str, axis: str, nbytes: int, known: Hardware) -> tuple[float, float]:
        """The bytes that an all_reduce, all_gather or all_to_all over an axis is said to have (as in
        `Hardware.collective_us`), and how long it takes. Of kernels that is `known`."""
        p = self.axes[axis]
        n = max(nbytes // 4 // p // p, 1)  # of each block
        count = 4 if nbytes <= 1 << 18 else 2 if nbytes <= 1 << 22 else 1
        if kind == "all_reduce":
            whole = self.whole((n * p * p,))
            rows = (p, *whole.shape)
            start, layout, moved, local = whole, {}, 4.0 * n * p * p, 8.0 * n * p * p

            def body(x: Any) -> Any:
                return gt.replicate(gt.shard(x[None].expand(*rows), {0: axis}).sum(0))
        else:
            start, layout = gt.shard(gt.full((p, p, n), 1.0), {0: axis}), {0: axis}
            self.finish()
            local = 8.0 * n * p * (2 if kind == "all_gather" else 1)
            moved = 4.0 * n * p * p if kind == "all_gather" else 4.0 * n * (p - 1)
            turn = [0]

            def body(x: Any) -> Any:
                if kind == "all_gather":  # what is computed from the copy is split again: else it is not gathered twice
                    return gt.shard(gt.replicate(x.relu()).relu(), {0: axis})
                turn[0] = 1 - turn[0]
                return gt.shard(x.relu(), {turn[0]: axis})

        def program(length: int) -> Any:
            if kind == "all_to_all":
                turn[0] = 0
            value = start
            for _ in range(length):
                value = body(value)
            return value

        seen: list[Variant] = []
        self.session.watch = lambda variant, ids, first: seen.append(variant)
        try:
            keep = program(count)
            self.finish()
            del keep
        finally:
            self.session.watch = None
        emitted = self._emitted(seen[-1], layout, kind)
        took = self.time_us(lambda: program(count), waiting=True) - self.fixed_us
        if not emitted:
            return moved, math.nan
        return moved, max(took - count * known.compute_us(0, local, None), 0.0) / emitted

    def blocking(self) -> float:
        """The share of a collective's time by which computation beside it takes longer."""
        axis, p = next(iter(self.axes.items()))
        n, width = min(self.effort.sizes[-1], 1 << 20) // 4, self.effort.width
        x = self.whole((n,))
        a, w = self.whole((width, width)), self.whole((width, width), 1 / width)

        def reduced() -> Any:
            return gt.replicate(gt.shard(x[None].expand(p, n), {0: axis}).sum(0))

        moving = self.time_us(reduced, waiting=True) - self.fixed_us
        each = self.matmul_us(gt.float32, width, width)
        count = max(2, min(40, math.ceil(1.5 * moving / max(each, 1.0))))

        def product() -> Any:
            value = a
            for _ in range(count):
                value = value @ w
            return value

        def both() -> Any:
            return reduced(), product()

        times: dict[Callable[[], Any], list[int]] = {reduced: [], product: [], both: []}
        for program in (*times, *times):
            times[program] += self._each_us(program, ROUNDS, True)
        alone, beside = (min(times[program][1:]) for program in (product, both))
        collective = min(times[reduced][1:]) - self.fixed_us
        return min(max((beside - alone) / max(collective, 1.0), 0.0), 1.0)

    # -- ops -------------------------------------------------------------------------------------

    def op_times(self, known: Hardware) -> dict[str, Curve]:
        """How long ops take, by their work: `Hardware.ops`. Of each op of a training step the use with the most work is
        timed, in steps of several sizes. On one worker."""
        found: dict[str, list[tuple[float, float]]] = {}
        for scale in self.effort.scales:
            for name, use in _largest_uses(sample_program(scale), known).items():
                work_us = cached_us(use, known)
                with suppress(GTError):  # an op that cannot be run by itself takes as long as `known` says
                    took_us = self.use_us(use, min(8, max(1, round(300 / work_us))))
                    found.setdefault(name, []).append((work_us, max(took_us, 0.1)))
        return {name: rising(points) for name, points in found.items()}

    def use_us(self, use: Use, count: int) -> float:
        """One use of an op of so many, on numbers that are all alike."""
        operands: list[Any] = []
        for s in use.specs:
            if s.weak:
                operands.append(1.0 if s.dtype.is_floating_point else 1)
            else:
                operands.append(gt.full(s.shape, 0.5 if s.dtype.is_floating_point else 0, dtype=s.dtype))
        operands = [gt.replicate(x) if isinstance(x, gt.Tensor) else x for x in operands]
        recorder().settle()

        def program() -> Any:
            return [gt.Tensor._apply(use.op, tuple(operands), use.attrs.value) for _ in range(count)]

        return max(self.time_us(program, 0.2) - self.fixed_busy_us, 0.0) / count

    def _emitted(self, variant: Variant, layout: dict[int, str], kind: str) -> int:
        """How many collectives of this kind the plan of a program has, whose one input has this layout."""
        checked = check(variant.program)
        mesh = self.session.meshes.find("")
        inputs: list[Layout] = [split(mesh, tuple(shape), layout) for shape, _ in variant.program.inputs]
        planned = plan_program(checked, inputs, mesh, {})
        local = planned.locals[planned.workers[-1]].program
        found = [ins.op for ins in local.code if TABLE[ins.op].collective]
        return len(found) if all(name == kind for name in found) else 0


def _chain(body: Body, first: Any, second: Any, count: int) -> Any:
    for _ in range(count):
        first = body(first, second)
    return first


def _largest_uses(sample: RecordedProgram, known: Hardware) -> dict[str, Use]:
    """Of each op of a program: its use with the most work."""
    largest: dict[str, tuple[float, Use]] = {}
    for use in uses_of(sample.checked):
        work_us = 0.0 if use.op.aliases else cached_us(use, known)
        if work_us > largest.get(use.op.name, (0.0,))[0]:
            largest[use.op.name] = work_us, use
    return {name: use for name, (_, use) in largest.items()}
