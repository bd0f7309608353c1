"""Lowers the peak memory of a compiled program: cheap values are recomputed where they are needed late.

A program holds forward, backward and the optimizer's step. A value that one matmul reads in forward and another in
backward would stay in memory all the time between: outputs of norms, of activations, casts of weights. Recomputing such
a value from values that are in memory anyway costs one pass over them, usually in a kernel that reads them already.

Law 1: the same ops on the same values: results are bitwise the same. Nothing with a state is recomputed.
Law 2: only pointwise ops, casts and views are recomputed: no matmul, attention, convolution, reduction or scatter.
Law 3: a value is recomputed only if that lowers the peak.

Inductor computes pointwise ops inside the kernels that read them. What takes memory (a *buffer*) is what an outside
kernel reads or makes, what a reduction makes, what is returned, and pointwise values that would read too many buffers
or take too many ops. `Buffers` has these rules, and computes when each buffer is alive. `recompute` takes the peak:
a buffer that is alive there, was read before and is read after, can be recomputed for its later readers. It takes
the largest and longest of these, again and again, until there is none at the peak or the bytes moved for them reach a
limit.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.fx import Graph, Node

SMALL = 2000  #: Buffers smaller than the peak divided by this are left alone.
LONG = 40  #: Ops that recomputing one value may take,
DEAR = 3  #: and bytes that may be moved per byte saved. What a kernel nearby reads anyway is free,
NEAR = 64  #: where nearby means within so many nodes.
ROUNDS = 8  #: The buffers are computed anew after each round.
READS, READS_REUSED, OPS = 8, 4, 30  #: Inductor's limits: beyond these a pointwise value is a buffer.

_VIEWS = {
    "alias", "detach", "expand", "permute", "reshape", "select", "slice", "split", "split_with_sizes", "squeeze", "t",
    "transpose", "unsqueeze", "view", "_unsafe_view",
}  # fmt: skip
#: Besides those that torch tags as pointwise. Gathers are computed inside their readers, too.
_POINTWISE = {
    "clone", "convert_element_type", "embedding", "full", "full_like", "gather", "index", "index_select", "iota",
    "scalar_tensor", "where", "_to_copy",
}  # fmt: skip
#: Made by a kernel of Inductor, which computes the operands inside.
_INSIDE = {
    "all", "amax", "amin", "any", "argmax", "argmin", "avg_pool2d", "avg_pool2d_backward", "cat", "constant_pad_nd",
    "max", "mean", "min", "prod", "sum", "var", "var_mean", "_low_memory_max_pool_with_offsets",
    "_low_memory_max_pool_offsets_to_indices",
}  # fmt: skip

INPUT, VIEW, POINTWISE, INSIDE, OUTSIDE, PART, WRITE, END = range(8)


@dataclass(frozen=True)
class Bounds:
    """When recomputing is worth it."""

    peak: int = 512 << 20  #: Programs with a lower peak are left alone,
    least: int = 1 << 20  #: and so are smaller buffers: launching a kernel costs more than they are worth.
    spend: float = 0.005  #: The bytes moved for recomputing, at most, as a share of all bytes that the program moves.


@dataclass(frozen=True)
class Report:
    """What was done to a graph."""

    before: int  #: Bytes at the peak, without the inputs.
    after: int
    remade: list[str] = field(default_factory=list)  #: The values that are recomputed, by the names of their nodes.
    spent: int = 0  #: Bytes that are moved for that.
    peaks: set[Node] = field(default_factory=set)  #: The nodes at which a peak was lowered.

    def __str__(self) -> str:
        mib = 1 << 20
        return f"{self.before / mib:.1f} to {self.after / mib:.1f} MiB by recomputing {len(self.remade)} values"


def estimate(graph: Graph) -> int:
    """Bytes of all buffers at the peak. Inputs do not count, outputs do."""
    return Buffers(graph).peak()


def recompute(graph: Graph, bounds: Bounds = Bounds()) -> Report:  # it cannot be changed
    """Recompute cheap values where that lowers the peak."""
    buffers = Buffers(graph)
    before = after = buffers.peak()
    budget = int(bounds.spend * buffers.moved())
    remade: list[str] = []
    spent = 0
    peaks: set[Node] = set()
    for _ in range(ROUNDS):
        chosen = _choose(buffers, bounds.least, budget - spent) if before >= bounds.peak else []
        if not chosen:
            break
        for again in chosen:
            _make_again(graph, buffers, again)
        spent += sum(again.cost for again in chosen)
        remade += [buffers.nodes[again.buffer].name for again in chosen]
        peaks |= {buffers.nodes[again.peak] for again in chosen}
        _drop_unread(graph)
        buffers = Buffers(graph)
        after = buffers.peak()
    return Report(before, after, remade, spent, peaks)


# --- what is in memory ---------------------------------------------------------------------------------------


class Buffers:
    """Which values of a graph are buffers, their sizes, and their readers. Nodes are named by their positions."""

    def __init__(self, graph: Graph) -> None:
        self.nodes: list[Node] = list(graph.nodes)
        self.position = {node: i for i, node in enumerate(self.nodes)}
        self.kind = [_kind(node) for node in self.nodes]
        self.args = [[self.position[a] for a in node.all_input_nodes] for node in self.nodes]
        self.real = [False] * len(self.nodes)  #: It is a buffer, or an input.
        self.inside: list[frozenset[int]] = []  #: The buffers that computing it reads.
        self.reads: list[frozenset[int]] = []  #: The same, or if it is a buffer, itself.
        self.uses: dict[int, list[int]] = {}  #: The kernels that read a buffer, in order.
        self.written: dict[int, int] = {}  #: Inputs that are written to, and where first.
        #: What outside kernels read. These values must be buffers.
        self.outside = {self._base(a) for i, k in enumerate(self.kind) if k == OUTSIDE for a in self.args[i]}
        self._settle()
        self.nbytes = [_nbytes(n) if r and k != INPUT else 0
                       for n, r, k in zip(self.nodes, self.real, self.kind, strict=True)]  # fmt: skip
        #: When it is made and when it is last read. Parts of a result begin with it.
        self.start = [args[0] if k == PART else i
                      for i, (k, args) in enumerate(zip(self.kind, self.args, strict=True))]  # fmt: skip
        self.end = [self.uses.get(i, [i])[-1] for i in range(len(self.nodes))]
        self._write_in_place()

    def _settle(self) -> None:
        returned = {self._base(a) for i, k in enumerate(self.kind) if k == END for a in self.args[i]}
        ops = [0] * len(self.nodes)  # ops that are computed inside its readers
        for i, (node, kind) in enumerate(zip(self.nodes, self.kind, strict=True)):
            args = self.args[i]
            inside = frozenset[int]().union(*[self.reads[a] for a in args]) if args else frozenset[int]()
            if kind == POINTWISE:
                ops[i] = 1 + sum(ops[a] for a in args)
                reused = len(node.users) > 1 and (len(inside) > READS_REUSED or ops[i] > OPS)
                self.real[i] = i in self.outside or i in returned or reused or len(inside) > READS or ops[i] > 2 * OPS
            elif kind == VIEW:
                ops[i] = sum(ops[a] for a in args)
            else:
                self.real[i] = kind not in (WRITE, END)
            if kind == WRITE:
                target = self._base(args[0])
                self.written.setdefault(target, i)
            if self.real[i] or kind in (WRITE, END):  # it is computed here, and reads what it needs
                for b in inside:
                    self.uses.setdefault(b, []).append(i)
                ops[i] = 0
            self.inside.append(inside)
            self.reads.append(frozenset([i]) if self.real[i] else inside)

    def _write_in_place(self) -> None:
        """A pointwise value may reuse the memory of an operand of its size that is not read later."""
        for i, kind in enumerate(self.kind):
            if kind == POINTWISE and self.real[i]:
                for b in self.inside[i]:
                    if self.end[b] == i and self.nbytes[b] == self.nbytes[i] > 0 and self.start[b] < i:
                        self.end[b] = i - 1
                        break

    def _base(self, i: int) -> int:
        while self.kind[i] == VIEW:
            i = self.args[i][0]
        return i

    def in_use(self) -> np.ndarray[Any, Any]:
        """Bytes of the buffers that are alive while each node runs."""
        change = np.zeros(len(self.nodes) + 1, np.int64)
        np.add.at(change, self.start, self.nbytes)
        np.subtract.at(change, np.array(self.end) + 1, self.nbytes)
        return np.cumsum(change[:-1])

    def peak(self) -> int:
        return int(self.in_use().max(initial=0))

    def moved(self) -> int:
        """Bytes that all kernels together read and write."""
        written = sum(self.nbytes) + sum(_nbytes(n) for n, k in zip(self.nodes, self.kind, strict=True) if k == WRITE)
        return written + sum(len(uses) * _nbytes(self.nodes[b]) for b, uses in self.uses.items())


def _kind(node: Node) -> int:
    if node.op in ("placeholder", "get_attr"):
        return INPUT
    if node.op == "output":
        return END
    if node.target is operator.getitem:
        made_by = node.args[0]
        assert isinstance(made_by, Node)
        return VIEW if _kind(made_by) == VIEW else PART
    if not isinstance(node.target, torch._ops.OpOverload):
        return OUTSIDE
    name, tags = node.target.overloadpacket.__name__, node.target.tags
    if name == "copy_":
        return WRITE
    if torch.Tag.nondeterministic_seeded in tags or node.target._schema.is_mutable:
        return OUTSIDE
    if name in _VIEWS:
        return VIEW
    if name in _POINTWISE or torch.Tag.pointwise in tags:
        return POINTWISE
    return INSIDE if name in _INSIDE else OUTSIDE


def _nbytes(node: Node) -> int:
    value = node.meta.get("val")
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else 0


# --- what is recomputed --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Again:
    """A buffer that is recomputed for its readers after the peak."""

    buffer: int
    peak: int
    late: tuple[int, ...]  #: The kernels that read the new one.
    chain: frozenset[int]  #: The nodes that are copied to make it.
    held: dict[int, int]  #: Buffers that must stay alive longer for it, and until when.
    cost: int  #: Bytes that are moved for it.


def _choose(buffers: Buffers, least: int, budget: int) -> list[Again]:
    """The buffers to recompute, as far as they do not depend on each other."""
    in_use = buffers.in_use()
    least = max(least, 1, int(in_use.max(initial=0)) // SMALL)
    cheap = [i for i in sorted(buffers.outside) if buffers.nbytes[i] >= least and buffers.kind[i] == POINTWISE]
    large = np.array(cheap, np.int64)
    start, end = np.array(buffers.start), np.array(buffers.end)
    chosen: list[Again] = []
    used: set[int] = set()  # buffers whose readers have changed
    while True:
        peak = int(in_use.argmax())
        alive = large[(start[large] < peak) & (end[large] > peak)]
        found: list[tuple[float, Again]] = []
        for i in alive.tolist():
            if i in used or (again := _again(buffers, i, peak)) is None or used & (again.chain | again.held.keys()):
                continue
            won = buffers.nbytes[i] - sum(buffers.nbytes[b] for b in again.held if buffers.end[b] < peak)
            if won >= least and again.cost <= min(DEAR * won, budget):
                # Large and long-lived ones first, and of these the cheap ones.
                found.append((won * (again.late[0] - peak) / max(again.cost / won, 1 / 8), again))
        if not found:
            return chosen
        _, best = max(found, key=lambda f: f[0])
        budget -= best.cost
        chosen.append(best)
        before = [u for u in buffers.uses[best.buffer] if u <= peak]
        in_use[(before[-1] if before else buffers.start[best.buffer]) + 1 : best.late[0]] -= buffers.nbytes[best.buffer]
        for b, until in best.held.items():
            in_use[buffers.end[b] + 1 : until + 1] += buffers.nbytes[b]
        # The buffers that it is made of are not recomputed: they have a later reader now.
        used |= {best.buffer, *best.held} | {b for c in best.chain for a in buffers.args[c] for b in buffers.reads[a]}


def _again(buffers: Buffers, i: int, peak: int) -> Again | None:
    """How a buffer could be recomputed after the peak; None: not by cheap ops."""
    uses = buffers.uses[i]
    late = tuple(u for u in uses if u > peak)
    if not late or late[0] - peak <= 1 or peak in uses or buffers.kind[late[-1]] == END:
        return None  # it is returned, or read at the peak
    chain: set[int] = set()
    held: dict[int, int] = {}
    fresh = 0
    waiting = [i]
    seen: set[int] = set()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if node != i and buffers.real[node] and not (buffers.kind[node] == POINTWISE and buffers.end[node] < late[0]):
            if buffers.kind[node] == INPUT and buffers.written.get(node, late[0]) < late[0]:
                return None
            if buffers.kind[node] != INPUT and buffers.end[node] < late[0]:
                held[node] = late[0]
            if not any(abs(u - late[0]) <= NEAR for u in buffers.uses[node]):
                fresh += _nbytes(buffers.nodes[node])
            continue
        if buffers.kind[node] not in (POINTWISE, VIEW):
            return None
        chain.add(node)
        waiting += buffers.args[node]
        if len(chain) > LONG:
            return None
    written = buffers.nbytes[i] if any(buffers.kind[u] == OUTSIDE for u in late) else 0
    return Again(i, peak, late, frozenset(chain), held, fresh + written)


def _make_again(graph: Graph, buffers: Buffers, again: Again) -> None:
    """Copy the nodes that make a buffer before its first late reader; all late readers read the copy."""
    nodes = buffers.nodes
    copies: dict[Node, Node] = {}

    def copy(i: int) -> None:
        copies[nodes[i]] = graph.node_copy(nodes[i], lambda n: copies.get(n, n))

    with graph.inserting_before(nodes[again.late[0]]):
        for i in sorted(again.chain):
            copy(i)
    copies = {nodes[again.buffer]: copies[nodes[again.buffer]]}
    for reader in again.late:
        path = _between(buffers, again.buffer, reader)
        with graph.inserting_before(nodes[reader]):
            for i in path:
                if nodes[i] not in copies:
                    copy(i)
        nodes[reader].args = torch.fx.map_arg(nodes[reader].args, lambda n: copies.get(n, n))
        nodes[reader].kwargs = torch.fx.map_arg(nodes[reader].kwargs, lambda n: copies.get(n, n))


def _drop_unread(graph: Graph) -> None:
    for node in reversed(list(graph.nodes)):
        if not node.users and _kind(node) in (VIEW, POINTWISE):
            graph.erase_node(node)


def _between(buffers: Buffers, buffer: int, reader: int) -> list[int]:
    """The nodes that are computed inside the reader and read the buffer, in order."""
    found: set[int] = set()
    waiting = list(buffers.args[reader])
    while waiting:
        i = waiting.pop()
        if i not in found and not buffers.real[i] and buffer in buffers.reads[i]:
            found.add(i)
            waiting += buffers.args[i]
    return sorted(found)


# --- inside Inductor -----------------------------------------------------------------------------------------


@contextmanager
def recomputing(
    done: Callable[[Report], object] = lambda report: None,
    bounds: Bounds = Bounds(),  # it cannot be changed
) -> Iterator[None]:
    """A context in which Inductor runs `recompute` on what it compiles, and does not undo it by fusing kernels."""
    from torch._inductor import config
    from torch._inductor.choices import InductorChoices
    from torch._inductor.virtualized import V

    crosses = _crossing(Graph(), Report(0, 0), 0)

    def change(graph: Graph) -> None:
        nonlocal crosses
        report = recompute(graph, bounds)
        crosses = _crossing(graph, report, bounds.least)
        done(report)

    class Choices(InductorChoices):  # type: ignore[misc]  # mypy does not look into Inductor
        @staticmethod
        def can_fuse_vertical(scheduler: Any, one: Any, other: Any, score: int) -> bool:
            return not crosses(one, other) and InductorChoices.can_fuse_vertical(scheduler, one, other, score)

        @staticmethod
        def can_fuse_horizontal(scheduler: Any, one: Any, other: Any, score: int) -> bool:
            return not crosses(one, other) and InductorChoices.can_fuse_horizontal(scheduler, one, other, score)

    # Otherwise a weight's gradient is computed only when the optimizer reads it, and its operands are kept until then.
    settings = {"reorder_for_locality": False, "post_grad_custom_post_pass": change}
    with config.patch(settings), V.set_choices_handler(Choices()):
        yield


def _crossing(graph: Graph, report: Report, least: int) -> Callable[[Any, Any], bool]:
    """A function that tells whether one of two kernels runs before a peak, and the other one after it and makes
    something large: fused, that would be alive at the peak."""
    nodes = list(graph.nodes)
    position = {node: i for i, node in enumerate(nodes)}
    large = {i for i, node in enumerate(nodes) if _nbytes(node) >= least and _kind(node) != WRITE}
    peaks = [position[node] for node in report.peaks if node in position]

    def crosses(one: Any, other: Any) -> bool:
        # A kernel may compute its operands too: its place is that of its last node.
        made = [[position[node] for node in part.node.get_origins() if node in position]
                for kernel in (one, other) for part in kernel.get_nodes() if part.node is not None]  # fmt: skip
        places = [max(part) for part in made if part]
        return any(min(places) <= peak < place for place in places if place in large for peak in peaks)

    return crosses
