"""Hardware as data: what a worker computes, what its memory and the links between workers move, and how long a
collective takes.

Rates are what programs reach, not what data sheets promise. `HARDWARE` lists the kinds that are known by name; a
`Hardware` of your own serves as well. calibrate.py measures that of the workers of a server: it has curves in place of
some rates, and one record for each number of workers, because workers that share cores, memory and links slow each
other down.

Law: the time of a collective depends on its kind, its bytes and the workers that meet, and on nothing else. Workers are
numbered node by node.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from gt.dtypes import DType
from gt.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class Link:
    """What connects workers."""

    latency_us: float  #: of one collective
    bandwidth: float  #: bytes per second that one worker receives, while all do


#: (bytes, microseconds), by increasing bytes: times that were measured.
Curve = tuple[tuple[float, float], ...]


def read_off(curve: Curve, nbytes: float) -> float:
    """A time between two measured ones. More bytes than the last take as many times as long, fewer than the first take
    as long as those.

    >>> read_off(((1e3, 10.0), (1e6, 20.0), (2e6, 40.0)), 4e6), read_off(((1e3, 10.0), (1e6, 20.0)), 1.0)
    (80.0, 10.0)
    """
    if nbytes <= curve[0][0]:
        return curve[0][1]
    if nbytes >= curve[-1][0]:
        return curve[-1][1] * nbytes / curve[-1][0]
    k = bisect.bisect_left(curve, (nbytes, 0.0))
    (a, low), (b, high) = curve[k - 1], curve[k]
    return low + (high - low) * (nbytes - a) / (b - a)


def rising(points: Sequence[tuple[float, float]], steepest: float = 3.0) -> Curve:
    """A curve through points. Fewer bytes take no more time than more, and n times as many at most `steepest` times n
    times as long: what was measured so was disturbed.

    >>> rising([(2.0, 5.0), (1.0, 7.0), (4.0, 9.0), (8.0, 99.0)])
    ((1.0, 5.0), (2.0, 5.0), (4.0, 9.0), (8.0, 54.0))
    """
    found: list[tuple[float, float]] = []
    for nbytes, us in sorted(points, reverse=True):
        if not found or nbytes < found[-1][0]:
            found.append((nbytes, max(min(us, found[-1][1] if found else us), 0.01)))
    found.reverse()
    for k in range(1, len(found)):
        (n, us), (more, longer) = found[k - 1], found[k]
        found[k] = more, min(longer, max(steepest * us * more / n, us))
    return tuple(found)


@dataclass(frozen=True, eq=False)
class Hardware:
    """See the file's header."""

    name: str
    workers_per_node: int
    #: Floating-point operations per second, by the bytes of an element: of matrix products, convolutions, attention.
    flops: Mapping[int, float]
    memory_bandwidth: float  #: bytes per second that a kernel reads and writes
    launch_us: float  #: the least that a kernel takes
    inside: Link  #: between workers of one node
    between: Link  #: between nodes, for each worker
    memory_nbytes: int  #: of a worker
    #: Reductions of gradients are hidden behind this share of the computation of the backward pass.
    overlap: float = 0.0
    #: How many times as long as by bytes and bandwidth a collective takes, by its kind.
    factors: Mapping[str, float] = field(default_factory=dict)

    # What is measured, and otherwise not there.
    #: How long a kernel takes for the bytes that it reads and writes. Its operations come on top of it: a CPU does not
    #: load the next operands while it multiplies. Empty: by `memory_bandwidth`, and operations at the same time.
    memory: Curve = ()
    #: How much longer it takes if a result has so many bytes: the system clears new memory for large ones.
    new_memory: Curve = ()
    #: How long a collective takes, by "kind members stride": members of a group, and from one to the next of them.
    collectives: Mapping[str, Curve] = field(default_factory=dict)
    #: How long an op takes, by what another kernel would take for its work in a core's cache (see `op_us`).
    ops: Mapping[str, Curve] = field(default_factory=dict)
    #: While a collective runs, computation stands still for this share of its time.
    blocking: float = 0.0
    call_us: float = 0.0  #: of a call, beside its instructions
    among: Mapping[int, Hardware] = field(default_factory=dict)  #: if only so many of the workers are busy
    correction: float = 1.0  #: how many times as long as predicted steps on so many workers were seen to take

    def busy(self, workers: int) -> Hardware:
        """The hardware as it is if so many workers are busy at once."""
        return self.among.get(workers, self)

    def compute_us(self, flops: float, nbytes: float, dtype: DType | None) -> float:
        """How long a kernel takes: by its operations or by its memory, whichever is longer (a roofline)."""
        size = min(dtype.itemsize if dtype is not None else 4, 8)
        rate = self.flops.get(size) or self.flops[max(self.flops)]
        if self.memory:
            return flops / rate * 1e6 + read_off(self.memory, nbytes)
        return max(flops / rate * 1e6, nbytes / self.memory_bandwidth * 1e6, self.launch_us)

    def cached_us(self, flops: float, nbytes: float, dtype: DType | None) -> float:
        """How long a kernel would take if all that it reads and writes were in a cache. Only where it was measured."""
        size = min(dtype.itemsize if dtype is not None else 4, 8)
        rate = self.flops.get(size) or self.flops[max(self.flops)]
        return self.launch_us + flops / rate * 1e6 + nbytes * min(us / n for n, us in self.memory[1:] or self.memory)

    def op_us(self, name: str, flops: float, nbytes: float, dtype: DType | None) -> float:
        """How long an op takes: as a kernel does, unless it was measured."""
        curve = self.ops.get(name)
        if not curve:
            return self.compute_us(flops, nbytes, dtype)
        time_us, memory_us = read_off(curve, self.cached_us(flops, nbytes, dtype)), read_off(self.memory, nbytes)
        if not flops:  # it computes while operands are loaded,
            return max(time_us, memory_us)
        return time_us + max(memory_us - self.cached_us(0, nbytes, dtype), 0.0)  # and does not while it multiplies

    def collective_us(self, kind: str, nbytes: float, workers: Sequence[int]) -> float:
        """How long a collective takes. `nbytes`: of an all_reduce the bytes of the array, of an all_gather those of the
        result, of an all_to_all those that a worker receives from the others.

        >>> h = HARDWARE["h100-ib"]
        >>> inside, across = h.collective_us("all_reduce", 1e9, range(8)), h.collective_us("all_reduce", 1e9, (0, 8))
        >>> across > 4 * inside
        True
        """
        p = len(workers)
        if p == 1:
            return 0.0
        if self.collectives:
            curve = self.collectives.get(f"{kind} {p} {workers[1] - workers[0]}")
            if curve:
                return read_off(curve, nbytes)
        most, nodes = members_per_node(tuple(workers), self.workers_per_node)
        factor = self.factors.get(kind, 1.0)
        if kind == "all_to_all":
            away, near = nbytes * (p - most) / (p - 1), nbytes * (most - 1) / (p - 1)
            seconds = max(away / self.between.bandwidth, near / self.inside.bandwidth)
        else:
            # A ring: each node is entered as often as it has members, over a link of its own each time.
            rate = self.inside.bandwidth if nodes == 1 else min(self.inside.bandwidth, most * self.between.bandwidth)
            seconds = (2 if kind == "all_reduce" else 1) * nbytes * (p - 1) / p / rate
        latency = self.inside.latency_us if nodes == 1 else self.between.latency_us
        return latency + factor * seconds * 1e6


def is_off(predicted_us: float, measured_us: float) -> bool:
    """Whether a step took so much more or less time than predicted that the hardware should be measured again: the
    prediction is off by more than half.

    >>> is_off(100.0, 140.0), is_off(100.0, 210.0), is_off(100.0, 60.0)
    (False, True, True)
    """
    return abs(predicted_us - measured_us) > 0.5 * measured_us


@lru_cache(4096)
def members_per_node(workers: tuple[int, ...], per_node: int) -> tuple[int, int]:
    """The most members of a group that one node has, and the number of nodes."""
    counts: dict[int, int] = {}
    for w in workers:
        counts[w // per_node] = counts.get(w // per_node, 0) + 1
    return max(counts.values()), len(counts)


_H100 = Hardware(
    name="h100-ib",
    workers_per_node=8,
    flops={2: 600e12, 4: 300e12, 8: 45e12},
    memory_bandwidth=2.8e12,
    launch_us=2.0,
    inside=Link(8.0, 370e9),
    between=Link(20.0, 45e9),
    memory_nbytes=80 * 10**9,
    overlap=0.0,
)
_CPU = Hardware(
    name="cpu-gloo",
    workers_per_node=2,
    flops={2: 20e9, 4: 60e9, 8: 30e9},
    memory_bandwidth=8e9,
    launch_us=5.0,
    # 32 MiB on two workers: all-reduce 31 ms, all-gather 39, all-to-all (of the half that leaves) 14.
    inside=Link(300.0, 1.1e9),
    between=Link(600.0, 1.1e9),
    memory_nbytes=8 * 10**9,
    factors={"all_reduce": 1.0, "all_gather": 2.6, "all_to_all": 0.9},
)

#: By name. "h100" and "h200" are machines with NVLink inside a node; "-ib": nodes with one InfiniBand port per GPU.
HARDWARE: dict[str, Hardware] = {
    h.name: h
    for h in (
        _H100,
        dataclasses.replace(_H100, name="h100"),
        dataclasses.replace(_H100, name="h200-ib", memory_bandwidth=4.0e12, memory_nbytes=139 * 2**30),
        dataclasses.replace(_H100, name="h200", memory_bandwidth=4.0e12, memory_nbytes=139 * 2**30),
        dataclasses.replace(
            _H100, name="pcie", flops={2: 120e12, 4: 60e12, 8: 1e12}, memory_bandwidth=1.5e12, inside=Link(15.0, 20e9),
            between=Link(30.0, 10e9), memory_nbytes=24 * 10**9,
        ),
        _CPU,
    )
}  # fmt: skip


def hardware_named(given: str | Hardware) -> Hardware:
    """The hardware of a name; a `Hardware` is returned as it is.

    >>> hardware_named("h100").memory_nbytes
    80000000000
    """
    if isinstance(given, Hardware):
        return given
    found = HARDWARE.get(given)
    if found is None:
        raise ArgumentError(
            f"hardware: unknown {given!r}; expected one of {', '.join(HARDWARE)}, measured, or a gt.Hardware"
        )
    return found
