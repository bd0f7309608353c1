"""Draws a screenshot of a real `gt top` as SVG: `python docs/screens.py HOST:PORT COLUMNS ROWS FILE.svg`.

It runs `gt top` in a terminal of its own (a pty), lets it draw a few times, presses q, and draws the last screen.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import sys
import termios
import time
from contextlib import suppress
from html import escape
from pathlib import Path

CELL, LINE = 7.826, 17  #: The size of a character of DejaVu Sans Mono of 13 pixels: not all programs stretch text.


def capture(address: str, columns: int, rows: int, seconds: float = 5.0) -> list[str]:
    """The lines of the last screen, with their sequences for bold and reverse."""
    pid, fd = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-m", "gt.cli.main", "top", "--server", address])
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    end_s, text = time.monotonic() + seconds, b""
    while time.monotonic() < end_s:
        text += os.read(fd, 1 << 16)
    os.write(fd, b"q")
    with suppress(OSError):  # the other end is closed when it has ended
        while os.read(fd, 1 << 16):
            pass
    os.waitpid(pid, 0)
    os.close(fd)
    screens = text.decode().split("\x1b[H")
    whole = next(screen for screen in reversed(screens) if screen.endswith("\x1b[J"))
    return [line.replace("\x1b[K", "") for line in whole.removesuffix("\x1b[J").split("\r\n")]


def draw(lines: list[str], columns: int) -> str:
    """The screen as a picture."""
    width, height = round(columns * CELL + 24), len(lines) * LINE + 24
    body = [f'<rect width="{width}" height="{height}" rx="6" fill="#1e1e1e"/>']
    for k, line in enumerate(lines):
        y, column, style = 12 + k * LINE, 0, ""
        for part in re.split(r"(\x1b\[\d*m)", line):
            if part.startswith("\x1b["):
                style = part[2:-1]
            elif part:
                x = 12 + column * CELL
                if style == "7":
                    size = f'width="{len(part) * CELL:.1f}" height="{LINE}"'
                    body.append(f'<rect x="{x:.1f}" y="{y}" {size} fill="#c8c8c8"/>')
                look = 'fill="#1e1e1e"' if style == "7" else 'fill="#dddddd"'
                look += ' font-weight="bold"' if style == "1" else ""
                length = f'textLength="{len(part) * CELL:.1f}" lengthAdjust="spacingAndGlyphs"'
                body.append(
                    f'<text x="{x:.1f}" y="{y + 13}" {look} {length} xml:space="preserve">{escape(part)}</text>'
                )
                column += len(part)
    font = 'font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="13"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
    return f'{head}viewBox="0 0 {width} {height}" {font}>\n' + "\n".join(body) + "\n</svg>\n"


if __name__ == "__main__":
    where, columns, rows, file = sys.argv[1:]
    Path(file).write_text(draw(capture(where, int(columns), int(rows)), int(columns)))
