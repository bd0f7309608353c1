"""Layers that are alike: instructions that repeat in the same order are one class, and share one choice.

A program of 32 equal layers is 32 times the same stretch of instructions forward, 32 times another one backward, and
32 times a third one in the optimizer. `find_classes` finds such stretches as runs in which every instruction equals the
one a period later: the same op, attributes and specs. Sharing a choice is a restriction and never an error, so what the
operands of equal instructions are does not matter here.

Law: two or three equal layers share nothing. The first and the last of equal layers are classes of their own, because
     what comes before and after them is different: nobody wants the gradient of the data, for instance, so the first
     layer may be split in a way that the others cannot afford. With `are_ends_apart=False` all equal layers share their
     choices, and a large problem is three times smaller.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from gt.ops.check import Checked
from gt.repeats import runs


@dataclass(frozen=True, slots=True)
class Classes:
    """Which instructions and inputs share a choice. Each class is known by its first member."""

    instructions: tuple[int, ...]  #: of each instruction: the first one of its class
    inputs: tuple[int, ...]  #: of each input: the first one of its class


def alone(checked: Checked) -> Classes:
    """Every instruction and every input in a class of its own."""
    return Classes(tuple(range(len(checked.program.code))), tuple(range(len(checked.program.inputs))))


def find_classes(checked: Checked, are_ends_apart: bool = True) -> Classes:
    """The classes of a program."""
    known: dict[Hashable, int] = {}
    tokens = []
    for ins, made in checked.program.numbered():
        specs = tuple([checked.specs[a] if a >= 0 else None for a in ins.args])
        key = (ins.op, repr(sorted(ins.attrs.items())), specs, checked.specs[made.start : made.stop])
        tokens.append(known.setdefault(key, len(known)))
    same = list(range(len(tokens)))
    ends = int(are_ends_apart)
    for start, period, stop in runs(tokens):
        for i in range(start + (1 + ends) * period, stop - ends * period):
            same[i] = same[i - period]
    # Layers may begin elsewhere in the run of the optimizer than in that of the model, or be alike there alone.
    inputs = _input_classes(checked, same)
    while True:
        finer = _by_inputs(checked, same, inputs)
        if finer == same:
            return Classes(tuple(same), inputs)
        same, inputs = finer, _input_classes(checked, finer)


def together(classes: Classes, alike: Iterable[Sequence[int]]) -> Classes:
    """The same classes, in which each of these groups of inputs shares a choice as well.

    >>> together(Classes((0, 1), (0, 1, 1, 3)), [(0, 2)]).inputs
    (0, 0, 0, 3)
    """
    inputs = list(classes.inputs)
    for group in alike:
        mine = {inputs[j] for j in group}
        inputs = [min(mine) if c in mine else c for c in inputs]
    return Classes(classes.instructions, tuple(inputs))


def _by_inputs(checked: Checked, same: Sequence[int], inputs: Sequence[int]) -> list[int]:
    """Classes whose members read inputs of the same classes."""
    first: dict[Hashable, int] = {}
    return [
        first.setdefault((same[i], *[inputs[a] for a in ins.args if 0 <= a < len(inputs)]), i)
        for i, ins in enumerate(checked.program.code)
    ]


def _input_classes(checked: Checked, same: Sequence[int]) -> tuple[int, ...]:
    """Inputs are alike if equal instructions read them in the same places, and equal ones make what replaces them."""
    program = checked.program
    uses: list[set[tuple[int, int]]] = [set() for _ in program.inputs]
    maker: dict[int, tuple[int, int]] = {}
    for i, (ins, made) in enumerate(program.numbered()):
        for k, a in enumerate(ins.args):
            if 0 <= a < len(program.inputs):
                uses[a].add((same[i], k))
        for r, v in enumerate(made):
            maker[v] = (same[i], r)
    replaced = {i: maker.get(program.outputs[o]) for o, i in program.updates}
    first: dict[Hashable, int] = {}
    return tuple([
        first.setdefault((checked.specs[j], frozenset(uses[j]), replaced.get(j)), j) for j in range(len(program.inputs))
    ])  # fmt: skip
