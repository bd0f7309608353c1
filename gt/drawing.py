"""Pictures: SVG is written as text; PNG needs the package cairosvg."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from gt.errors import ArgumentError

FONT = "DejaVu Sans, Helvetica, sans-serif"


def text(x: float, y: float, words: str, size: int = 11, bold: bool = False, colour: str = "#222") -> str:
    """Words, beginning at a point of their base line."""
    weight = ' font-weight="bold"' if bold else ""
    words = "".join(c if c.isprintable() else "?" for c in words)  # XML has no control characters
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}"{weight} fill="{colour}">{escape(words)}</text>'


def rect(x: float, y: float, width: float, height: float, colour: str) -> str:
    """A filled rectangle."""
    # A line around a cell that is hardly wider than the line would hide the cell.
    stroke = ' stroke="white" stroke-width="0.8"' if min(width, height) > 4 else ""
    return (
        f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{max(height, 0.1):.2f}" fill="{colour}"{stroke}/>'
    )


def page(width: int, height: int, body: Sequence[str]) -> str:
    """A picture on white."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="{FONT}">\n'
        f'<rect width="{width}" height="{height}" fill="white"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def save(path: Path, svg: str) -> Path:
    """Write a picture to a file that ends in .svg or .png."""
    if path.suffix not in (".svg", ".png"):
        raise ArgumentError(f"picture: expected a path that ends in .svg or .png, got {path.name!r}")
    if path.suffix == ".svg":
        path.write_text(svg)
        return path
    try:
        import cairosvg
    except ImportError:
        raise ArgumentError(
            f"picture: PNG needs the package cairosvg (pip install cairosvg); {path.with_suffix('.svg')} does not"
        ) from None
    cairosvg.svg2png(bytestring=svg.encode(), write_to=str(path), scale=2, background_color="white")
    return path
