"""A plan as a picture: where the time of a step goes, and how data and parameters are split over the workers.

Every worker has a colour. A cell of a tensor is the part that one worker stores, in the colour of the first worker that
stores it; what every worker stores is grey. SVG is written here; PNG needs the package cairosvg.
"""

from __future__ import annotations

import colorsys
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gt.drawing import page, save
from gt.drawing import rect as _rect
from gt.drawing import text as _text
from gt.layout import Layout, Mesh, parse, shards
from gt.layout import mesh as make_mesh
from gt.solver.reasons import InputClass, PlannedInput, Reasons, input_classes, shape_of
from gt.solver.units import size_text, time_text

_WIDTH = 1000
_COLUMNS = 4  #: of drawn tensors
_SIDE = 120  #: of the longest side of a drawn tensor
_STRIP = 14  #: the height of a drawn tensor with one dimension
_MOST = 24  #: tensors
_COMPUTE, _MOVING, _GREY = "#4e79a7", "#e15759", "#666"
_EVERYWHERE = "#c4c4c4"  #: the colour of a tensor that every worker has


@dataclass(frozen=True, slots=True)
class Bar:
    """Equal instructions, and what they take."""

    name: str
    purpose: str
    time_us: float
    moving_us: float  #: the part of it in which data is moved between workers


def draw(
    path: Path, title: str, axes: Mapping[str, int], reasons: Reasons, bars: Sequence[Bar],
    inputs: Sequence[PlannedInput],
) -> Path:  # fmt: skip
    """Write the picture of a plan to a file."""
    return save(path, svg(title, make_mesh(None, **axes), reasons, bars, inputs))


def svg(title: str, m: Mesh, reasons: Reasons, bars: Sequence[Bar], inputs: Sequence[PlannedInput]) -> str:
    """The picture."""
    body: list[str] = [_text(20, 30, title, 16, bold=True)]
    y = 30.0
    for words in reasons.words:
        y += 20
        body.append(_text(20, y, words, 13))
    y = _heading(body, y, "Time of a step: the most expensive instructions, without overlap")
    for k, (colour, words) in enumerate(((_COMPUTE, "computation"), (_MOVING, "moving data between workers"))):
        body.append(_rect(600 + 120 * k, y - 26, 11, 11, colour))
        body.append(_text(616 + 120 * k, y - 16, words, 11))
    y = _bars(bars, body, y)
    if reasons.collectives:
        y = _heading(body, y, "Collectives")
        for c in reasons.collectives[:8]:
            body.append(_text(20, y + 10, f"{c.count} x {c.kind} over {c.axes}"))
            body.append(_text(250, y + 10, f"{size_text(c.nbytes)} received"))
            body.append(_text(370, y + 10, time_text(c.time_us)))
            y += 18
    y = _heading(body, y, "Layouts: a cell is what one worker stores, in its colour; grey is on every worker")
    y = _workers(m, body, y)
    classes = [each for each in input_classes(inputs) if shape_of(each.spec)]
    largest = sorted(classes, key=lambda each: -each.nbytes)[:_MOST]
    shown = [each for each in classes if each in largest]
    for flat in (False, True):
        y = _tensors([each for each in shown if (len(shape_of(each.spec)) == 1) is flat], m, body, y)
    height = math.ceil(y)
    return page(_WIDTH, height, body)


def _heading(body: list[str], y: float, text: str) -> float:
    body.append(_text(20, y + 40, text, 13, bold=True))
    return y + 56


def _bars(bars: Sequence[Bar], body: list[str], y: float) -> float:
    """One bar a row."""
    scale = 400 / (max([bar.time_us for bar in bars], default=0.0) or 1.0)
    for bar in bars:
        still = scale * (bar.time_us - bar.moving_us)
        body.append(_text(20, y + 11, bar.name))
        body.append(_text(260, y + 11, bar.purpose if len(bar.purpose) <= 34 else "..." + bar.purpose[-31:], 11))
        body.append(_rect(490, y, max(still, 0.5), 14, _COMPUTE))
        if bar.moving_us > 0:
            body.append(_rect(490 + still, y, max(scale * bar.moving_us, 0.5), 14, _MOVING))
        body.append(_text(496 + scale * bar.time_us, y + 11, time_text(bar.time_us)))
        y += 19
    return y


# -- tensors ---------------------------------------------------------------------------------


def _colour(k: int, workers: int, minor: int) -> str:
    """The colour of a worker: neighbours along the last axis differ a little, along the first one more."""
    major = k // minor
    hue = 210 + 360 * major / max(workers // minor, 1)
    light = 40 + 38 * (k % minor) / minor
    parts = colorsys.hls_to_rgb(hue % 360 / 360, light / 100, 0.55)
    return "#" + "".join(f"{round(255 * part):02x}" for part in parts)


def _colours(m: Mesh) -> list[str]:
    sizes = list(m.sizes.values())
    minor = sizes[-1] if len(sizes) > 1 else 1
    return [_colour(k, len(m.workers), minor) for k in range(len(m.workers))]


def _workers(m: Mesh, body: list[str], y: float) -> float:
    """The mesh, every worker in its colour: the last axis to the right, the others downwards."""
    sizes = list(m.sizes.items())
    columns = sizes[-1][1]
    rows = len(m.workers) // columns
    side = min(16.0, 400 / columns)
    name = " ".join(a for a, _ in sizes[:-1])
    body.append(
        _text(20, y + 11, f"the workers: {sizes[-1][0]} to the right" + (f", {name} downwards" if name else ""))
    )
    for k, colour in enumerate(_colours(m)):
        body.append(_rect(260 + side * (k % columns), y + side * (k // columns), side, side, colour))
    return y + side * rows + 22


def _tensors(classes: Sequence[InputClass], m: Mesh, body: list[str], y: float) -> float:
    """A row for every few tensors."""
    for start in range(0, len(classes), _COLUMNS):
        tallest = 0.0
        for column, each in enumerate(classes[start : start + _COLUMNS]):
            x = 20 + column * (_WIDTH - 20) / _COLUMNS
            name = f"{each.count} x {each.name}" if each.count > 1 else each.name
            body.append(_text(x, y + 12, name if len(name) <= 32 else "..." + name[-29:], 10, bold=True))
            body.append(_text(x, y + 25, _short(f"{each.spec} {each.layout}"), 9))
            one = parse(each.layout, m)
            body.append(_text(x, y + 37, _short(_told(one, each)), 9, colour=_GREY))
            tallest = max(tallest, _tensor(body, one, shape_of(each.spec), x, y + 43))
        y += 43 + tallest + 20
    return y


def _short(text: str) -> str:
    return text if len(text) <= 42 else text[:39] + "..."


def _told(one: Layout, each: InputClass) -> str:
    """How much of it a worker stores, and where its state is."""
    over = one.mesh.size(tuple(one.axes()))
    text = "whole on every worker" if over == 1 else f"1/{over} on a worker"
    return text if each.state in ("", each.layout) else f"{text}; its state {each.state}"


def _tensor(body: list[str], one: Layout, shape: tuple[int, ...], x: float, y: float) -> float:
    """Draw a tensor; its height. Of more than two dimensions those that are split are drawn, then the last ones."""
    split = [d for d in range(len(shape)) if one.pieces(d)]
    rest = [d for d in range(len(shape) - 1, -1, -1) if d not in split]
    dims = sorted((split + rest)[:2])
    rows, columns = (shape[dims[0]], shape[dims[1]]) if len(dims) == 2 else (1, shape[dims[0]])
    if len(dims) == 2:  # roots: a tensor that is long and thin would otherwise be a line
        across = max(_SIDE * min(1.0, (columns / max(rows, 1)) ** 0.5), 24)
        down = max(_SIDE * min(1.0, (rows / max(columns, 1)) ** 0.5), 24)
    else:
        across, down = _SIDE, _STRIP
    colours = _colours(one.mesh) if one.axes() else [_EVERYWHERE] * len(one.mesh.workers)
    seen: set[tuple[object, ...]] = set()
    for k, runs in enumerate(shards(one, shape).values()):
        mine = (runs[dims[0]], runs[dims[1]]) if len(dims) == 2 else (((0, 1),), runs[dims[0]])
        if mine in seen:
            continue
        seen.add(mine)
        for a, b in mine[0]:
            for c, d in mine[1]:
                body.append(_rect(x + across * c / max(columns, 1), y + down * a / max(rows, 1),
                                  across * (d - c) / max(columns, 1), down * (b - a) / max(rows, 1),
                                  colours[k]))  # fmt: skip
    return float(down)
