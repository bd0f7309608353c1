"""What the benchmarks share: rounds in turn, medians, a table, and figures as JSON.

Rivals are measured in turn, a round of each after the other, so that what else runs on the machine slows
all of them alike. What is compared is the medians over the rounds.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import statistics
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    parser = argparse.ArgumentParser(description=(doc or "").split("\n")[0])
    parser.add_argument("--json", metavar="FILE", help="also write the figures to this file")
    parser.add_argument("--quick", action="store_true", help="few rounds: whether it runs, not how fast")
    return parser


def in_turn(rounds: int, *rivals: Callable[[], float]) -> list[float]:
    """The median of what each rival returns, over rounds in which each has its turn."""
    found: list[list[float]] = [[] for _ in rivals]
    for _ in range(rounds):
        for seconds, rival in zip(found, rivals, strict=True):
            seconds.append(rival())
    return [statistics.median(each) for each in found]


def quantile(samples: list[float], q: float) -> float:
    """The smallest sample that at least this part of the samples does not exceed."""
    return sorted(samples)[max(0, math.ceil(q * len(samples)) - 1)]


class Report:
    """The figures of one benchmark. A ratio is the first column over the second: smaller is better."""

    def __init__(self, name: str, columns: tuple[str, str] = ("GT", "rival")) -> None:
        self.name = name
        self.ratios: dict[str, float] = {}
        self.targets: dict[str, float] = {}
        self.figures: dict[str, float] = {}
        self._rows: list[tuple[str, str, str, str, str]] = [("", *columns, "ratio", "target")]

    def compare(
        self, key: str, what: str, ours: float, rival: float, unit: str, target: float | None = None, digits: int = 2
    ) -> None:
        """A row with two figures, and their ratio under the name `key`."""
        ratio = self.ratios[key] = round(ours / rival, 4)
        if target is not None:
            self.targets[key] = target
        goal = "" if target is None else f"<= {target:g}" + ("" if ratio <= target else "  missed")
        self._rows.append((what, f"{ours:.{digits}f} {unit}", f"{rival:.{digits}f} {unit}", f"{ratio:.2f}", goal))

    def figure(self, key: str, what: str, value: float, unit: str, digits: int = 0) -> None:
        """A row with a figure that has no rival."""
        self.figures[key] = round(value, 4)
        self._rows.append((what, f"{value:,.{digits}f} {unit}", "", "", ""))

    def finish(self, path: str | None) -> None:
        """Print the table, and write the figures to the file if one is named."""
        print_table(self.name, self._rows)
        if path:
            write(path, self.name, {"ratios": self.ratios, "targets": self.targets, "figures": self.figures})


def versions() -> dict[str, str]:
    """What the figures depend on, beside the machine."""
    return {"python": platform.python_version(), "torch": _version("torch"), "pyzmq": _version("pyzmq")}


def print_table(name: str, rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows under each other, the first of them the heading: what it is at the left, the last cell as it comes."""
    print(f"{name}: " + ", ".join(f"{k} {v}" for k, v in versions().items()) + f", {os.cpu_count()} CPUs")
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for what, *cells, last in rows:
        line = [what.ljust(widths[0]), *(c.rjust(w) for c, w in zip(cells, widths[1:-1], strict=True)), last]
        print("  " + "  ".join(line).rstrip(), flush=True)


def write(path: str, name: str, found: dict[str, Any]) -> None:
    """Write figures to a file, with their date and what they depend on."""
    data = {
        "benchmark": name,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **versions(),
        "cpu_count": os.cpu_count(),
        **found,
    }
    with open(path, "w", encoding="utf-8") as file:
        json.dump(data, file, indent=2)
        file.write("\n")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
