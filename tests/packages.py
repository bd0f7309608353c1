"""Which part of gt/ imports which, read off the source: `python tests/packages.py` draws docs/figures/packages.svg.

Imports count wherever they are written: at the top of a file, inside of a function, for type checkers alone.
"""

from __future__ import annotations

import ast
from collections.abc import Container, Iterable, Iterator, Mapping
from functools import cache
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


def imports(text: str, modules: Container[str] = ()) -> list[Import]:
    """Every import in a file. `from a import b` is of `a.b` if that is one of the modules, else of `a`."""
    return [Import(inner if inner in modules else outer, line, local) for outer, inner, line, local in _read(text)]


@cache
def _read(text: str) -> list[tuple[str, str, int, bool]]:
    """Of every import in a file: `a` and `a.b` of `from a import b`, its line, and whether it is in a function."""
    walked = _walk(ast.parse(text), False)
    return [(outer, inner, node.lineno, local) for node, local in walked for outer, inner in _named(node)]


def _walk(node: ast.AST, local: bool) -> Iterator[tuple[ast.AST, bool]]:
    for child in ast.iter_child_nodes(node):
        inside = local or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        yield child, inside
        yield from _walk(child, inside)


def _named(node: ast.AST) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Import):
        yield from ((each.name, each.name) for each in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"a relative import in line {node.lineno}"
        assert node.module is not None
        yield from ((node.module, f"{node.module}.{each.name}") for each in node.names)
    elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
        yield from ((a.value, a.value) for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str))


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


# --- the picture -------------------------------------------------------------------------------------


class Box(NamedTuple):
    """A part of gt/ in the picture."""

    name: str
    about: str
    column: float
    parts: tuple[str, ...]  #: its modules and packages; of several boxes that fit a module, the most specific counts


BASE = "errors, config"  #: Stands below all: no arrows lead there.
PUBLIC = tuple(
    f"gt.{m}" for m in "amp autograd backends cuda debug fft func linalg random signal special utils".split()
)
BOXES = [
    Box("gt", "public names", 1.5, PUBLIC),
    Box("optim", "optimizers, schedules", 2.5, ("gt.optim",)),
    Box("nn", "modules", 2.5, ("gt.nn",)),
    Box("client/methods", "methods, debug", 0.5, ("gt.client.methods", "gt.client.debug")),
    Box("client/arguments", "what users type", 0, ("gt.client.compat.arguments", "gt.client.compat.dims")),
    Box("client/functions", "the function library", 0, ("gt.client.functions",)),
    Box("client/compat", "torch, autocast, devices", 1, ("gt.client.compat",)),
    Box("client/mesh", "layouts, signals", 2, ("gt.client.mesh",)),
    Box("client/replay", "@gt.function", 3.5, ("gt.client.replay",)),
    Box("client/views", "aliasing", 1.5, ("gt.client.views",)),
    Box("client/grad", "backward", 1.5, ("gt.client.grad",)),
    Box("client/record", "recording an op", 1.5, ("gt.client.record",)),
    Box("client/session", "the connection", 2, ("gt.client.session",)),
    Box("client/tensor", "what a tensor is", 1, ("gt.client.tensor",)),
    Box("client/programs", "tree, pending program", 1.5, ("gt.client.programs",)),
    Box("solver", "the best layouts", 4, ("gt.solver",)),
    Box("cli", "commands", 5, ("gt.cli", "gt.server.__main__")),
    Box("server", "private servers", 4, ("gt.server",)),
    Box("dispatcher", "sessions and workers", 5, ("gt.dispatcher",)),
    Box("dispatcher/planner", "programs on meshes", 5, ("gt.dispatcher.planner",)),
    Box("worker", "messages", 6, ("gt.worker",)),
    Box("worker/run", "running programs", 6, ("gt.worker.run",)),
    Box("worker/engines", "torch, jax, numpy", 7, ("gt.worker.engines",)),
    Box("transport", "messages, sockets", 4, ("gt.transport",)),
    Box("ops/families", "the table of ops", 3, ("gt.ops.families",)),
    Box("ops", "what an op is", 3, ("gt.ops",)),
    Box("layout", "shards of a tensor", 4, ("gt.layout",)),
    Box("program", "what travels", 3, ("gt.program",)),
    Box("dtypes", "", 2, ("gt.dtypes",)),
    Box(BASE, "imported by all", 1, ("gt.config", "gt.command_line", "gt.errors")),
]


def box_of(modules: Iterable[str]) -> dict[str, str]:
    """The name of each module's box."""
    found = {}
    for module in modules:
        fits = [(len(part), box.name) for box in BOXES for part in box.parts if within(module, part)]
        if fits:
            found[module] = max(fits)[1]
    # The files of the packages themselves: gt has the public names, gt.ops the table once all families are imported.
    return {**found, "gt": "gt", "gt.ops": "ops/families"}


def groups(edges: Graph) -> dict[str, frozenset[str]]:
    """The boxes that import each other, of each box; most are alone."""
    after = {name: reached(edges, edges[name]) for name in edges}
    return {name: frozenset({m for m in after[name] if name in after[m]} | {name}) for name in edges}


def layers(edges: Graph) -> dict[str, int]:
    """The layer of each box, below all that import it and above all that it imports. A group is in one layer. The
    client begins at the top; what stands to its right is as low as possible."""
    group = groups(edges)
    depth: dict[frozenset[str], int] = {}

    def find(mine: frozenset[str]) -> int:
        if mine not in depth:
            importers = {group[n] for n, targets in edges.items() if targets & mine} - {mine}
            depth[mine] = max((find(g) + 1 for g in sorted(importers, key=sorted)), default=0)
        return depth[mine]

    found = {name: find(group[name]) for name in edges}
    right = {box.name for box in BOXES if box.column >= 3} & edges.keys()
    for mine in sorted({group[name] for name in right}, key=lambda g: (-depth[g], sorted(g))):
        targets = {m for name in mine for m in edges[name]} - mine
        if targets:
            found.update(dict.fromkeys(mine, min(found[m] for m in targets) - 1))
    return found


def reduced(edges: Graph) -> Graph:
    """Without the arrows that follow from others (`a -> c` where there is `a -> b -> c`) and those inside of groups."""
    group = groups(edges)
    after = {name: reached(edges, edges[name]) for name in edges}
    below = {name: {m for each in group[name] for m in edges[each]} - group[name] for name in edges}
    return {
        name: {m for m in edges[name] & below[name] if not any(m in after[n] - group[n] for n in below[name])}
        for name in edges
    }


WIDTH, HEIGHT, GAP, RISE = 148, 40, 22, 38  #: Of a box; between columns; between layers.
COLORS = {"client": "#dbe9f6", "dispatcher": "#fde3c8", "worker": "#d9efd5", "ops": "#eadff1"}


def picture(texts: Mapping[str, str]) -> str:
    """The boxes in layers, each above what it imports, as SVG. Arrows that follow from others are left out."""
    edges = grouped(graph(texts), box_of(texts))
    edges = {name: targets - {BASE} for name, targets in edges.items() if name != BASE}
    layer = layers(edges)
    place: dict[str, tuple[float, float]] = {}
    taken: dict[int, list[float]] = {}
    for box in sorted((b for b in BOXES if b.name in edges), key=lambda b: (b.column, b.name)):
        column, row = box.column, layer[box.name]
        while any(abs(column - c) < 1 for c in taken.get(row, [])):
            column += 1
        taken.setdefault(row, []).append(column)
        place[box.name] = (20 + column * (WIDTH + GAP), 20 + row * (HEIGHT + RISE))
    width = max(x for x, _ in place.values()) + WIDTH + 20
    bottom = 20 + (max(layer.values()) + 1) * (HEIGHT + RISE)
    tall = bottom + HEIGHT + 20
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {tall:g}" font-family="sans-serif">',
        "<title>The packages of gt/ and their imports. Generated by `python -m tests.packages`.</title>",
        '<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#555"/></marker></defs>',
        f'<rect width="{width:g}" height="{tall:g}" fill="white"/>',
    ]
    for group in cycles(edges):
        xs, ys = [place[n][0] for n in group], [place[n][1] for n in group]
        lines.append(
            f'<rect x="{min(xs) - 8:g}" y="{min(ys) - 8:g}" width="{max(xs) - min(xs) + WIDTH + 16:g}" '
            f'height="{max(ys) - min(ys) + HEIGHT + 16:g}" rx="8" fill="none" stroke="#999" stroke-dasharray="5 4"/>'
        )
    for name, targets in sorted(reduced(edges).items()):
        for target in sorted(targets):
            lines.append(_arrow(place[name], place[target], place.values()))
    for box in BOXES:
        if box.name in place:
            lines += _drawn(box, *place[box.name])
        elif box.name == BASE:
            lines += _drawn(box, 20, bottom, width - 40)
    return "\n".join([*lines, "</svg>", ""])


Point = tuple[float, float]


def _arrow(start: Point, end: Point, others: Iterable[Point]) -> str:
    """A curve from the bottom of one box to the top of another, past a box that is straight between them."""
    x1, y1, x2, y2 = start[0] + WIDTH / 2, start[1] + HEIGHT, end[0] + WIDTH / 2, end[1] - 1
    between = start[0] == end[0] and any(x == start[0] and start[1] < y < end[1] for x, y in others)
    bow = WIDTH / 2 + GAP if between else 0
    bend = min(60.0, (y2 - y1) / 2)
    curve = f"M{x1:g},{y1:g} C{x1 + bow:g},{y1 + bend:g} {x2 + bow:g},{y2 - bend:g} {x2:g},{y2:g}"
    return f'<path d="{curve}" fill="none" stroke="#777" stroke-width="1.1" marker-end="url(#a)"/>'


def _drawn(box: Box, x: float, y: float, width: float = WIDTH) -> Iterator[str]:
    color = COLORS.get(box.name.split("/")[0], "#f0f0f0")
    middle = x + width / 2
    yield f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{HEIGHT}" rx="5" fill="{color}" stroke="#555"/>'
    up = 17 if box.about else 25
    yield f'<text x="{middle:g}" y="{y + up:g}" text-anchor="middle" font-size="13">{box.name}</text>'
    if box.about:
        small = f'text-anchor="middle" font-size="10" fill="#555">{box.about}'
        yield f'<text x="{middle:g}" y="{y + 32:g}" {small}</text>'


if __name__ == "__main__":
    PICTURE.write_text(picture(sources()))
