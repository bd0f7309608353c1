"""Hardware as data: what a worker computes, what its memory and the links between workers move, and how long a
collective takes.

Rates are what programs reach, not what data sheets promise. `HARDWARE` lists the kinds that are known by name; a
`Hardware` of your own serves as well.

Law: the time of a collective depends on its kind, its bytes and the workers that meet, and on nothing else. Workers are
numbered node by node.
"""

from __future__ import annotations

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

    def compute_us(self, flops: float, nbytes: float, dtype: DType | None) -> float:
        """How long a kernel takes: by its operations or by its memory, whichever is longer (a roofline)."""
        size = min(dtype.itemsize if dtype is not None else 4, 8)
        rate = self.flops.get(size) or self.flops[max(self.flops)]
        return max(flops / rate * 1e6, nbytes / self.memory_bandwidth * 1e6, self.launch_us)

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
        raise ArgumentError(f"hardware: unknown {given!r}; expected one of {', '.join(HARDWARE)}, or a gt.Hardware")
    return found
