"""Places: which lines of the user's code the instructions of a program come from.

A client sends them with the text of a program, once. The log, the statistics, `gt top` and `gt trace` show them. They
are base names of files, line numbers, and the names of GT's functions that were called there; never the code itself.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

NAME = 200  #: Characters of a name.


class Place(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A line, and how many instructions in a row come from it."""

    file: str
    line: int
    called: str  #: GT's function that the line calls: backward, step, relu.
    instructions: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def by_instruction(found: Iterable[Place]) -> list[Place]:
    """The place of each instruction."""
    return [p for p in found for _ in range(p.instructions)]


def show(found: Iterable[Place], files: int = 2) -> str:
    """Where a program comes from, in a few words: of each file the first and the last line, the file with the most
    instructions first.

    >>> show([Place("train.py", 8, "matmul", 3), Place("net.py", 5, "relu", 1), Place("train.py", 12, "step", 4)])
    'train.py:8-12 net.py:5'
    """
    lines: dict[str, list[int]] = {}
    weight: dict[str, int] = {}
    for p in (p for p in found if p.file):
        lines.setdefault(p.file, []).append(p.line)
        weight[p.file] = weight.get(p.file, 0) + p.instructions
    shown = []
    for file in sorted(lines, key=lambda f: -weight[f])[:files]:
        first, last = min(lines[file]), max(lines[file])
        shown.append(f"{file}:{first}" + (f"-{last}" if last > first else ""))
    return " ".join(shown) + (" ..." if len(lines) > files else "")
