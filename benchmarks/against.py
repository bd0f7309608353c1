"""Compare this working tree with another revision: one benchmark, run alternately in both.

`python benchmarks/against.py [--rounds N] [--old] REV overhead.py [ARGUMENTS OF THE BENCHMARK]`. The revision is
checked out into a temporary folder. A benchmark may have changed too, and measure something else: with `--old` the
revision's own runs in both trees. Each figure that the benchmark writes as JSON is compared by its median over the
rounds: the ratio is this tree over the other revision. Runs alternate, so that other load on the machine affects both
alike.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from measuring import print_table

ROOT = Path(__file__).resolve().parent.parent


def figures(found: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """The numbers in a benchmark's JSON file, by their path in it."""
    for key, value in found.items():
        if isinstance(value, dict) and key != "targets":
            yield from figures(value, f"{path}{key}.")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield path + key, float(value)


def run(tree: Path, benchmark: list[str], file: Path, text: Path) -> dict[str, float]:
    """Run a benchmark of the tree `text` with the package of this one; its figures."""
    command = [sys.executable, str(text / "benchmarks" / benchmark[0]), *benchmark[1:], "--json", str(file)]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    subprocess.run(command, cwd=tree, env=environment, check=True, stdout=subprocess.DEVNULL)
    return dict(figures(json.loads(file.read_text())))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="runs in each tree (%(default)s)")
    parser.add_argument("--json", metavar="FILE", help="also write the ratios to this file")
    parser.add_argument("--old", action="store_true", help="run the revision's own benchmark in both trees")
    parser.add_argument("revision", metavar="REV", help="what to compare with")
    parser.add_argument("benchmark", nargs=argparse.REMAINDER, help="a file of benchmarks/, and its arguments")
    args = parser.parse_args()
    here: list[dict[str, float]] = []
    there: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        other, file = Path(folder) / "other", Path(folder) / "figures.json"
        subprocess.run(["git", "worktree", "add", "-q", "--detach", other, args.revision], cwd=ROOT, check=True)
        try:
            for _ in range(args.rounds):
                there.append(run(other, args.benchmark, file, other))
                here.append(run(ROOT, args.benchmark, file, other if args.old else ROOT))
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", other], cwd=ROOT, check=True)
    rows: list[tuple[str, ...]] = [("", "this tree", args.revision, "ratio", "spread")]
    ratios: dict[str, float] = {}
    for key in here[0].keys() & there[0].keys():
        ours, theirs = ([found[key] for found in runs if key in found] for runs in (here, there))
        if statistics.median(theirs):
            ratios[key] = statistics.median(ours) / statistics.median(theirs)
            spread = f"{min(ours):.4g}-{max(ours):.4g} / {min(theirs):.4g}-{max(theirs):.4g}"
            cells = (f"{statistics.median(ours):.4g}", f"{statistics.median(theirs):.4g}", f"{ratios[key]:.3f}")
            rows.append((key, *cells, spread))
    print_table(" ".join(args.benchmark), [rows[0], *sorted(rows[1:])])
    if args.json:
        Path(args.json).write_text(json.dumps({"benchmark": args.benchmark, "ratios": ratios}, indent=2) + "\n")


if __name__ == "__main__":
    main()
