"""A long program of one worker, cut where its layers begin: layers that are alike are compiled once.

A step of a transformer has the same stretch of instructions once for each layer forward, another one backward, and a
third one where gradients are clipped. Such stretches are found as runs in which every instruction equals the one a
period later. Each repetition becomes a segment; so does each stretch between two runs. Segments are compiled by as many
compilers as there are, and all of them are captured in one graph.

Law 1: a segment is a run of instructions without optimizer steps: those are kernels of their own, at the end.
Law 2: cutting costs no memory traffic where that can be avoided. A segment begins at a product (or an attention, ...):
       what a product reads is in memory anyway.
Law 3: repetitions return the same of their values, if any of them does: so they are the same program.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import pairwise

from gt.ops.check import Checked
from gt.ops.record import TABLE
from gt.ops.work import flops
from gt.program import SCALARS
from gt.repeats import runs
from gt.worker.run.segments import LEAST, Cutting, Segment

SHORT = 200  #: Programs of fewer instructions are compiled as a whole,
LONG = 20_000  #: and so are longer ones: to look for layers would take too long.
PERIOD = 2_000  #: The longest layer that is looked for.
TIMES = 3  #: A run has at least so many layers.
WORTH = 0.6  #: Cutting must leave at most this share of the instructions to be compiled.
HEAVY = 16  #: Floating-point operations per element of a product: its operands and results are in memory.


def cut_layers(checked: Checked) -> list[Segment]:
    """The segments of a program whose layers repeat; none if it is better compiled as a whole."""
    code = checked.program.code
    if not SHORT <= len(code) <= LONG or any(TABLE[ins.op].resumes for ins in code):
        return []
    found = [(a, p, b) for a, p, b in runs(_tokens(checked), PERIOD, saving=True) if b - a >= TIMES * p and p >= LEAST]
    if sum(b - a - p for a, p, b in found) < (1 - WORTH) * len(code):
        return []
    cutting = Cutting(checked, widening=True)
    heavy = [_is_heavy(checked, i) for i in range(len(code))]
    places = {0, len(code)}  # where segments begin
    layer: dict[int, int] = {}  # of an instruction in a run: where it stands in the first layer
    for start, period, stop in found:
        first = start + _shift(cutting, heavy, start, period)
        times = (stop - first) // period
        places.update(range(first, first + times * period + 1, period))
        layer.update({i: first + (i - first) % period for i in range(first, first + times * period)})
    stretches = [
        [i for i in range(a, b) if not cutting.is_view(i) and not cutting.writes(i)]
        for a, b in pairwise(sorted(places))
    ]
    left = {(layer[i], k) for here in stretches for i, k in _leaving(cutting, here) if i in layer}
    segments = []
    for here in stretches:
        wanted = {
            cutting.first[i] + k for i in here if i in layer for k in range(code[i].results) if (layer[i], k) in left
        }
        segments += cutting.closed(here, wanted)
    different = {s.checked.program.hash(): len(s.checked.program.code) for s in segments}
    return segments if sum(different.values()) <= WORTH * len(code) else []


def _tokens(checked: Checked) -> list[int]:
    """A number for each instruction: the same for equal ones. Which values they read does not matter."""
    known: dict[Hashable, int] = {}
    tokens = []
    for ins, made in checked.program.numbered():
        operands = tuple([checked.specs[a] if a >= 0 else checked.program.scalars[~a] for a in ins.args])
        key = (ins.op, repr(sorted(ins.attrs.items())), operands, checked.specs[made.start : made.stop])
        tokens.append(known.setdefault(key, len(known)))
    return tokens


def _is_heavy(checked: Checked, i: int) -> bool:
    program = checked.program
    ins = program.code[i]
    op = TABLE[ins.op]
    if op.flops is None and op.compose is None:
        return False
    specs = [checked.specs[a] if a >= 0 else SCALARS[program.scalars[~a]] for a in ins.args]
    largest = max((s.size for s in specs), default=0)
    return flops(op, specs, ins.attrs) >= HEAVY * max(1, largest)


def _shift(cutting: Cutting, heavy: list[bool], start: int, period: int) -> int:
    """Where in a run its layers are cut: at the product before which the fewest bytes are made and read again by
    instructions that a kernel could do at once."""
    costs = []
    for shift in range(period):
        at = start + shift
        if not heavy[at]:
            continue
        cost = 0
        for i in range(at, at + period):
            if heavy[i] or cutting.is_view(i):
                continue
            for v in cutting.reads(cutting.program.code[i]):
                maker = cutting.maker[v]
                if at - period <= maker < at and not heavy[maker]:
                    cost += cutting.checked.specs[v].nbytes
        costs.append((cost, shift))
    return min(costs, default=(0, 0))[1]


def _leaving(cutting: Cutting, here: list[int]) -> list[tuple[int, int]]:
    """Which results of these instructions others read: the instruction, and which one of its results."""
    members = set(here)
    return [
        (i, k)
        for i in here
        for k in range(cutting.program.code[i].results)
        if cutting.readers.get(cutting.first[i] + k, members) - members
    ]
