"""Which part of gt/ imports which, read off the source: `python tests/packages.py` draws docs/figures/packages.svg.

Imports count wherever they are written: at the top of a file, inside of a function, for type checkers alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "figures" / "packages.svg"

Graph = dict[str, set[str]]


def sources(root: Path = ROOT) -> dict[str, str]:
    """The text of every module of gt/, by its name: `gt.client.tensor`."""
    found = {}
    for file in sorted((root / "gt").rglob("*.py")):
        parts = file.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file.read_text()
    return found


class Import(NamedTuple):
    """One import in a file."""

    module: str  #: as far as it is known to be a module
    line: int
    local: bool  #: it is inside of a function


def imports(text: str, modules: Iterable[str] = ()) -> list[Import]:
    """Every import in a file. `from a import b` is of `a.b` if that is one of the modules, else of `a`."""
    known = set(modules)
    return [
        Import(module, node.lineno, local)
        for node, local in _walk(ast.parse(text), False)
        for module in _named(node, known)
    ]


def _walk(node: ast.AST, local: bool) -> Iterator[tuple[ast.AST, bool]]:
    for child in ast.iter_child_nodes(node):
        inside = local or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        yield child, inside
        yield from _walk(child, inside)


def _named(node: ast.AST, known: set[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (each.name for each in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"a relative import in line {node.lineno}"
        assert node.module is not None
        for each in node.names:
            inner = f"{node.module}.{each.name}"
            yield inner if inner in known else node.module
    elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
        yield from (a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str))


def graph(texts: Mapping[str, str]) -> Graph:
    """Which of these modules imports which."""
    return {name: {i.module for i in imports(text, texts)} & texts.keys() - {name} for name, text in texts.items()}


def within(module: str, *packages: str) -> bool:
    """Whether a module is one of these, or in one of these packages."""
    return any(module == p or module.startswith(p + ".") for p in packages)


def reached(edges: Graph, starts: Iterable[str]) -> set[str]:
    """These modules, and all that they import, directly or not."""
    found: set[str] = set()
    stack = list(starts)
    while stack:
        name = stack.pop()
        if name not in found:
            found.add(name)
            stack.extend(edges.get(name, ()))
    return found


def cycles(edges: Graph) -> list[list[str]]:
    """The groups of nodes that reach each other, each sorted."""
    after = {name: reached(edges, edges[name]) for name in edges}
    groups = {tuple(sorted(m for m in after[n] if n in after.get(m, ()))) for n in edges if n in after[n]}
    return sorted(map(list, groups))


def grouped(edges: Graph, group: Mapping[str, str]) -> Graph:
    """The same graph between groups of modules; modules without a group are left out."""
    found: Graph = {name: set() for name in group.values()}
    for name, targets in edges.items():
        for target in targets:
            if name in group and target in group and group[name] != group[target]:
                found[group[name]].add(group[target])
    return found


def package_of(module: str) -> str:
    """The folder of a module: `gt.client.record.tree` -> `gt.client.record`; a file of gt/ or gt/client/ is itself."""
    parts = module.split(".")
    depth = 3 if parts[:2] in (["gt", "client"], ["gt", "ops"], ["gt", "dispatcher"], ["gt", "worker"]) else 2
    return ".".join(parts[:depth])
