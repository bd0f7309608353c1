"""`gt ops`: the table of ops, as their records have it."""

from __future__ import annotations

import sys

import gt.ops  # noqa: F401  # fills the table
from gt.command_line import Parser
from gt.ops.engines import ENGINES, EXCEPTIONS, runs, shown
from gt.ops.record import TABLE, Op


def kind(op: Op) -> str:
    """How the op is computed: by a kernel, or written in other ops; and whether its result is a view."""
    return ("composed" if op.compose is not None else "kernel") + (", view" if op.put is not None else "")


def main(argv: list[str] | None = None) -> int:
    """Print the table, or the rows of the ops named."""
    p = Parser(prog="gt ops", description="List the ops.")
    p.add_argument("names", nargs="*", metavar="OP", help="only these")
    names = p.parse_args(argv).names
    unknown = [n for n in names if n not in TABLE]
    if unknown:
        print(f"gt: no op {unknown[0]!r}; gt ops lists them all", file=sys.stderr)
        return 2
    chosen = [TABLE[n] for n in names or sorted(TABLE)]
    rows = [("op", "kind", "gradient", "engines", "")]
    for op in chosen:
        has_gradient = op.vjp is not None or op.compose is not None
        rows.append((op.name, kind(op), "yes" if has_gradient else "no", shown(op), op.doc))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    for row in rows:
        print("  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[4]]).rstrip())
    for op in chosen:
        if op.name in EXCEPTIONS:
            missing = ", ".join(e for e in ENGINES if runs(op, e) == "borrowed")
            print(f"{op.name} needs torch on {missing} workers too: {EXCEPTIONS[op.name]}.")
    return 0
