"""What an instruction is for: the parameter that it reads, or the one whose gradient it makes.

Most instructions of a step are called matmul. A reader knows them by the names of the parameters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property

from gt.ops.check import Checked, check
from gt.program import Program

#: How many instructions are followed from a gradient to the update of its parameter: casts, clipping, decay.
_FAR = 6


class Purposes:
    """The purposes of the instructions of one program. `named`: name and role of each input."""

    def __init__(self, program: Program, named: Sequence[tuple[str, str]]) -> None:
        self.program = program
        self.parameters = {i: name for i, (name, role) in enumerate(named) if role == "parameter"}

    @cached_property
    def _checked(self) -> Checked:
        return check(self.program)

    @cached_property
    def _made_by(self) -> list[int]:
        """Of each value: the instruction that makes it, -1 for an input."""
        return [-1] * len(self.program.inputs) + [k for k, i in enumerate(self.program.code) for _ in range(i.results)]

    @cached_property
    def _results(self) -> list[range]:
        """Of each instruction: the numbers of its results."""
        return [made for _, made in self.program.numbered()]

    @cached_property
    def _readers(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for k, i in enumerate(self.program.code):
            for a in i.args:
                if a >= 0:
                    found.setdefault(a, []).append(k)
        return found

    def of(self, instruction: int) -> str:
        """The name of the parameter that is read, or with ".grad" of the one whose gradient is made; "" if the
        instruction belongs to none."""
        read = {self._source(a) for a in self.program.code[instruction].args if a >= 0} & set(self.parameters)
        made = set() if read else self._updated(instruction)
        largest = max(sorted(read | made), key=lambda i: self._checked.specs[i].size, default=None)
        return "" if largest is None else self.parameters[largest] + (".grad" if made else "")

    def _source(self, value: int) -> int:
        """The value that this one is a cast, a view or the like of."""
        while (maker := self._made_by[value]) >= 0:
            tensors = [a for a in self.program.code[maker].args if a >= 0]
            if len(tensors) != 1 or self._checked.specs[tensors[0]].size != self._checked.specs[value].size:
                break
            value = tensors[0]
        return value

    def _updated(self, instruction: int) -> set[int]:
        """The parameters that are updated with a result of the instruction, through values of the same size."""
        results = {self.program.outputs[o]: i for o, i in self.program.updates if i in self.parameters}
        specs, found = self._checked.specs, set()
        for made in self._results[instruction]:
            todo, seen = [made], {made}
            for _ in range(_FAR):
                mine = {k for v in todo for k in self._readers.get(v, ())}
                todo = []
                for k in mine:
                    for v in self._results[k]:
                        if v in results and specs[v].size == specs[made].size:
                            found.add(results[v])
                        elif v not in seen and specs[v].size == specs[made].size:
                            seen.add(v)
                            todo.append(v)
                if found:
                    break
        return found


def class_name(name: str) -> str:
    """The name that equal layers have in common.

    >>> class_name("model.layers.7.up.weight")
    'model.layers.*.up.weight'
    """
    return re.sub(r"\.\d+(?=\.)", ".*", name)
