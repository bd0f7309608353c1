"""The rooms of the worker: messages above, what runs programs below, engines beside it; no cycle between modules.

Every import counts: those inside functions, and those for the type checker alone.
"""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODULES = {
    ".".join(f.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): f
    for part in ("worker", "transport")
    for f in (ROOT / "gt" / part).rglob("*.py")
}


def imports(file: Path) -> set[str]:
    """The modules of MODULES that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found.update(a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = {f"{node.module}.{a.name}" for a in node.names}
            found.update(names & MODULES.keys() or {node.module})
    return found & MODULES.keys()


IMPORTS = {name: imports(file) for name, file in MODULES.items()}


def reaches(importers: str, allowed: tuple[str, ...]) -> list[str]:
    """Which imports from one room into the worker go anywhere but to these."""
    return sorted(
        f"{name} -> {other}"
        for name, others in IMPORTS.items()
        if name.startswith(importers)
        for other in others
        if other.startswith("gt.worker") and not other.startswith(allowed)
    )


def test_what_runs_programs_knows_neither_messages_nor_engines() -> None:
    assert reaches("gt.worker.run", ("gt.worker.run",)) == []


def test_engines_know_only_what_runs_programs() -> None:
    assert reaches("gt.worker.engines", ("gt.worker.engines", "gt.worker.run")) == []


def test_no_module_imports_itself_by_a_detour() -> None:
    TopologicalSorter(IMPORTS).prepare()  # raises CycleError, which names the cycle
