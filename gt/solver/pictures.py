"""A plan as a picture: how parameters and data are cut, and where the time of a step goes.

SVG is written here; PNG needs the package cairosvg.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

from gt.errors import ArgumentError
from gt.layout import Layout, Mesh, parse, shards
from gt.layout import mesh as make_mesh
from gt.solver.reasons import PlannedInput, Reasons

_WIDTH = 960
_COLUMNS = 4  #: of drawn tensors
_SIDE = 110  #: of the longest side of a drawn tensor
_COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#edc948", "#b07aa1", "#9c755f")
_COMPUTE, _EXCHANGE = "#4e79a7", "#e15759"


def draw(path: Path, title: str, axes: Mapping[str, int], reasons: Reasons, inputs: Sequence[PlannedInput]) -> Path:
    """Write the picture of a plan to a file."""
    text = svg(title, make_mesh(None, **axes), reasons, inputs)
    if path.suffix == ".png":
        try:
            import cairosvg
        except ImportError:
            raise ArgumentError(
                f"picture: PNG needs the package cairosvg (pip install cairosvg); {path.with_suffix('.svg')} does not"
            ) from None
        cairosvg.svg2png(bytestring=text.encode(), write_to=str(path), scale=2, background_color="white")
    elif path.suffix == ".svg":
        path.write_text(text)
    else:
        raise ArgumentError(f"picture: expected a path that ends in .svg or .png, got {path.name!r}")
    return path


def svg(title: str, m: Mesh, reasons: Reasons, inputs: Sequence[PlannedInput]) -> str:
    """The picture."""
    body: list[str] = []
    y = 30
    body.append(_text(20, y, title, 16, bold=True))
    for words in reasons.words:
        y += 20
        body.append(_text(20, y, words, 13))
    y += 40
    body.append(
        _text(20, y, "Time of a step: computation of each class of instructions, and collectives", 13, bold=True)
    )
    y = _bars(reasons, body, y + 12)
    y += 36
    body.append(
        _text(20, y, "Layouts: a cell is a shard; equal colours are replicas on several workers", 13, bold=True)
    )
    y = _tensors(inputs, m, body, y + 16)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{y + 20}" '
        f'viewBox="0 0 {_WIDTH} {y + 20}" font-family="DejaVu Sans, Helvetica, sans-serif">\n'
        f'<rect width="{_WIDTH}" height="{y + 20}" fill="white"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def _text(x: float, y: float, text: str, size: int = 11, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}"{weight} fill="#222">{escape(text)}</text>'


def _bars(reasons: Reasons, body: list[str], y: float) -> int:
    """One bar a row: the most expensive classes, then the collectives."""
    rows = [(f"{c.count} x {c.ops}" if c.count > 1 else c.ops, c.time_us, _COMPUTE) for c in reasons.classes[:10]]
    rows += [(f"{c.count} x {c.kind} over {c.axes}", c.time_us, _EXCHANGE) for c in reasons.collectives[:5]]
    most = max([us for _, us, _ in rows], default=1.0) or 1.0
    for name, us, colour in rows:
        width = 480 * us / most
        body.append(_text(20, y + 11, name if len(name) < 44 else name[:41] + "...", 11))
        body.append(f'<rect x="320" y="{y:.1f}" width="{max(width, 1):.1f}" height="13" fill="{colour}"/>')
        body.append(_text(326 + max(width, 1), y + 11, f"{us / 1e3:.2f} ms", 10))
        y += 18
    return int(y)


def _tensors(inputs: Sequence[PlannedInput], m: Mesh, body: list[str], y: float) -> int:
    """The layouts of data and parameters, each class of equal ones once."""
    column, top, tallest = 0, y, 0.0
    for name, one in _classes(inputs):
        shape = tuple(map(int, re.findall(r"\d+", one.spec.partition("[")[2])))
        if not shape:
            continue
        x = 20 + column * (_WIDTH - 40) / _COLUMNS
        height = _tensor(body, parse(one.layout, m), shape, x, top + 30)
        label = name if len(name) < 30 else "..." + name[-27:]
        body.append(_text(x, top + 12, label, 10, bold=True))
        body.append(_text(x, top + 25, f"{one.spec} {one.layout}"[:40], 9))
        tallest = max(tallest, height + 48)
        column += 1
        if column == _COLUMNS:
            column, top, tallest = 0, top + tallest, 0.0
    return int(top + tallest)


def _classes(inputs: Sequence[PlannedInput]) -> Iterator[tuple[str, PlannedInput]]:
    seen: set[tuple[str, str]] = set()
    for one in inputs:
        name = re.sub(r"\.\d+\.", ".*.", one.name)
        if one.role != "state" and (name, one.layout) not in seen and len(seen) < 24:
            seen.add((name, one.layout))
            yield name, one


def _tensor(body: list[str], one: Layout, shape: tuple[int, ...], x: float, y: float) -> float:
    """Draw the last two dimensions that are cut (or the last two); its height."""
    cut = [d for d in range(len(shape)) if one.pieces(d)]
    dims = sorted({*cut[:2], *[d for d in range(len(shape) - 1, -1, -1) if d not in cut][: max(0, 2 - len(cut))]})[:2]
    rows, columns = (shape[dims[0]], shape[dims[1]]) if len(dims) == 2 else (shape[dims[0]], 1)
    across = max(_SIDE * min(1.0, (columns / max(rows, 1)) ** 0.5), 22)
    down = max(_SIDE * min(1.0, (rows / max(columns, 1)) ** 0.5), 22)
    seen: dict[tuple[object, ...], str] = {}
    for runs in shards(one, shape).values():
        mine = [runs[d] for d in dims] if len(dims) == 2 else [runs[dims[0]], ((0, 1),)]
        key = tuple(mine)
        if key in seen or len(seen) > 144:
            continue
        seen[key] = _COLOURS[len(seen) % len(_COLOURS)]
        for a, b in mine[0]:
            for c, d in mine[1]:
                body.append(
                    f'<rect x="{x + across * c / columns:.1f}" y="{y + down * a / rows:.1f}" '
                    f'width="{across * (d - c) / columns:.1f}" height="{down * (b - a) / rows:.1f}" '
                    f'fill="{seen[key]}" stroke="white" stroke-width="0.7"/>'
                )
    return down
