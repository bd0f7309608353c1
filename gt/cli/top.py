"""`gt top`: what a server is doing, live in a terminal: workers, sessions, and the hottest programs with their lines.

The screen is a function of two overviews (gt/dispatcher/overview.py) and of the time between them. It is drawn with
plain ANSI sequences, so any terminal of at least 60 columns will do, over ssh too.

Law: what others wrote (names of sessions and files) is printed without control characters.
"""

from __future__ import annotations

import os
import select
import shutil
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gt import config
from gt.cli.asking import Asker, add_options
from gt.command_line import Parser
from gt.errors import GTError, ServerError
from gt.transport.messages import GetStats, Stats

ANSWER_S = 10.0
KEYS = {"b": "busy", "m": "memory", "c": "calls", "n": "name"}  #: What may be sorted by.
BOLD, REVERSE, PLAIN = "\x1b[1m", "\x1b[7m", "\x1b[0m"

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rates:
    """Two overviews, and the seconds between them."""

    now: Row
    before: Row
    seconds: float

    def per_s(self, table: str, key: str, figure: str) -> float:
        """How fast a counter of a row grows. A row that was not there before began at 0."""
        after = self.now[table][key].get(figure, 0)
        return max(0.0, float(after - self.before[table].get(key, {}).get(figure, 0)) / max(self.seconds, 1e-3))

    def busy(self, table: str, key: str) -> float:
        """The part of the time in which it ran, 0 to 1."""
        return self.per_s(table, key, "run_us") / 1e6

    def tiers(self, key: str) -> list[float]:
        """Of a worker: the parts of its run time on tiers 1, 2 and 3; since it began if it is idle."""
        now, before = self.now["workers"][key]["tiers"], self.before["workers"].get(key, {}).get("tiers", {})
        spent = [now.get(t, 0) - before.get(t, 0) for t in "123"]
        if sum(spent) <= 0:
            spent = [now.get(t, 0) for t in "123"]
        total = sum(spent)
        return [each / total if total else 0.0 for each in spent]


# --- the screen ------------------------------------------------------------------------------------------------------


def plain(text: object) -> str:
    """Text that cannot move the cursor.

    >>> plain("a\\x1b[2Jb")
    'a?[2Jb'
    """
    return "".join(c if c.isprintable() else "?" for c in str(text))


def size(n: float) -> str:
    """Bytes as people read them, in at most 6 characters.

    >>> size(512), size(3 << 20), size(25 << 30)
    ('512B', '3.0M', '25.0G')
    """
    for unit in "BKMGT":
        if n < 1000 or unit == "T":
            return f"{n:.0f}{unit}" if unit == "B" else f"{n:.1f}{unit}"
        n /= 1024
    raise AssertionError


def bar(part: float, width: int) -> str:
    """`[|||   ]`"""
    full = round(min(max(part, 0.0), 1.0) * width)
    return f"[{'|' * full}{' ' * (width - full)}]"


#: A column: its heading, its width (0: what is left), whether it is only shown on wide screens, the text of a row.
Column = tuple[str, int, bool, Callable[[str, Row], str]]


def table(columns: list[Column], rows: list[tuple[str, Row]], width: int) -> list[str]:
    """Lines of the same width. Columns of numbers are on the right of theirs. What a row waits for is below it."""
    used = [c for c in columns if width >= 120 or not c[2]]
    rest = max(8, width - sum(c[1] + 1 for c in used if c[1]) - sum(not c[1] for c in used) + 1)

    def line(cells: list[str]) -> str:
        parts = []
        for (_, w, _, _), cell in zip(used, cells, strict=True):
            parts.append(cell[:rest].ljust(rest) if not w else cell[:w].rjust(w))
        return " ".join(parts)[:width].ljust(width)

    lines = [line([c[0] for c in used])]
    for key, row in rows:
        lines.append(line([plain(c[3](key, row)) for c in used]))
        if row.get("waits"):
            lines.append(f"        waits {plain(row['waits'])}"[:width].ljust(width))
    return lines


def screen(rates: Rates, address: str, width: int, height: int, sort: str) -> list[str]:
    """The lines of the screen, headings marked with REVERSE."""
    now = rates.now
    calls_s = (now["calls"] - rates.before["calls"]) / max(rates.seconds, 1e-3)
    workers, sessions, programs = (_sorted(rates, name, sort) for name in ("workers", "sessions", "programs"))
    counted = (("worker", workers), ("session", sessions))
    wide = width >= 120
    blocks = [
        table(_worker_columns(rates, wide), workers, width),
        table(_session_columns(rates), sessions, width),
        table(_program_columns(rates), programs, width),
    ]
    left = height - 3 - 2 * len(blocks)  # the first line, the keys; a heading and an empty line for each
    shares = [max(1, left * n // 6) for n in (2, 2, 2)]
    spare = sum(max(0, share - (len(block) - 1)) for share, block in zip(shares, blocks, strict=True))
    told = "  ".join(f"{len(rows)} {what}{'s' * (len(rows) != 1)}" for what, rows in counted)
    head = f"gt top  {plain(address)}  {told}  {calls_s:,.0f} calls/s"
    lines = [(head + time.strftime("%H:%M:%S").rjust(max(1, width - len(head))))[:width], ""]
    for block, share in zip(blocks, shares, strict=True):
        rows = block[1:]
        more = max(0, min(spare, len(rows) - share))
        spare -= more
        shown = rows[: share + more]
        if len(shown) < len(rows):
            shown[-1:] = [f"... {len(rows) - len(shown) + 1} more"]
        lines += [REVERSE + block[0] + PLAIN, *shown, ""]
    keys = "  ".join(f"{BOLD}{key}{PLAIN} {name}" for key, name in KEYS.items())
    return [*lines[: height - 1], f"sorted by {sort};  sort by:  {keys};  {BOLD}q{PLAIN} quit"]


def _sorted(rates: Rates, name: str, sort: str) -> list[tuple[str, Row]]:
    rows = rates.now[name]

    def order(key: str) -> Any:
        if sort == "name":
            return rows[key].get("name") or rows[key].get("lines") or int(key) if name == "workers" else str(rows[key])
        figure = {"busy": "run_us", "memory": "nbytes", "calls": "calls"}[sort]
        if figure == "nbytes" and name != "programs":
            return -rows[key]["nbytes"]
        return -rates.per_s(name, key, "calls" if figure == "calls" else "run_us"), -rows[key].get("run_us", 0)

    return [(key, rows[key]) for key in sorted(rows, key=order)]


def _percent(part: float) -> str:
    return f"{100 * min(part, 1.0):.0f}%"


def _worker_columns(rates: Rates, wide: bool) -> list[Column]:
    width = 20 if wide else 8

    def tiers(key: str) -> str:
        return " ".join(_percent(t).rjust(4) for t in rates.tiers(key))

    def memory(row: Row) -> str:
        return f"{size(row['nbytes'])}/{size(row['memory'])}" if row["memory"] else size(row["nbytes"])

    return [
        ("WORKER", 6, False, lambda key, row: key),
        ("DEVICE", 0, False, lambda key, row: row["device"] + ("" if row["answered"] else " (no answer)")),
        ("HOST", 16, True, lambda key, row: row["host"]),
        ("ENGINE", 7, True, lambda key, row: row["engine"]),
        ("BUSY", width + 7, False, lambda key, row: f"{bar(rates.busy('workers', key), width)}"
                                                     f"{_percent(rates.busy('workers', key)):>5}"),
        ("MEMORY", 13, False, lambda key, row: memory(row)),
        ("SPILLED", 7, True, lambda key, row: size(row.get("spilled", 0))),
        ("TIER 1    2    3", 16, False, lambda key, row: tiers(key)),
        ("CALLS/S", 8, False, lambda key, row: f"{rates.per_s('workers', key, 'calls'):,.0f}"),
        ("QUEUE", 5, False, lambda key, row: str(row["under_way"])),
        ("PEERS/S", 8, True, lambda key, row: size(rates.per_s("workers", key, "sent_to_peers"))),
        ("MOVED/S", 8, True, lambda key, row: size(rates.per_s("workers", key, "uploaded")
                                                  + rates.per_s("workers", key, "fetched"))),
        ("COMPILED", 9, True, lambda key, row: f"{row.get('compile_us', 0) / 1e6:,.0f} s"),
    ]  # fmt: skip


def _session_columns(rates: Rates) -> list[Column]:
    return [
        ("SESSION", 7, False, lambda key, row: key),
        ("NAME", 0, False, lambda key, row: row["name"]),
        ("ON", 8, False, lambda key, row: _numbers(row["workers"])),
        ("BUSY", 5, False, lambda key, row: _percent(rates.busy("sessions", key))),
        ("MEMORY", 7, False, lambda key, row: size(row["nbytes"])),
        ("SPILLED", 7, False, lambda key, row: size(row.get("spilled", 0))),
        ("TENSORS", 8, True, lambda key, row: f"{row['tensors']:,}"),
        ("CALLS", 10, True, lambda key, row: f"{row['calls']:,}"),
        ("CALLS/S", 8, False, lambda key, row: f"{rates.per_s('sessions', key, 'calls'):,.0f}"),
        ("QUEUE", 5, False, lambda key, row: str(row["queue"])),
    ]


def _program_columns(rates: Rates) -> list[Column]:
    return [
        ("PROGRAM", 8, False, lambda key, row: key),
        ("LINES", 0, False, lambda key, row: row["lines"]),
        ("SESSIONS", 9, True, lambda key, row: _numbers(row["sessions"])),
        ("INSTR", 6, False, lambda key, row: str(row["instructions"])),
        ("BUSY", 5, False, lambda key, row: _percent(rates.busy("programs", key) / max(1, row["workers"]))),
        ("CALLS", 10, True, lambda key, row: f"{row['calls']:,}"),
        ("CALLS/S", 8, False, lambda key, row: f"{rates.per_s('programs', key, 'calls'):,.0f}"),
        ("US/CALL", 9, False, lambda key, row: f"{row['run_us'] / max(1, row['calls'] * row['workers']):,.0f}"),
        ("TIER", 4, False, lambda key, row: str(row["tier"])),
    ]


def _numbers(found: list[int]) -> str:
    """A list of numbers in a few characters."""
    text = " ".join(map(str, found))
    return text if len(text) <= 8 else f"{len(found)}"


# --- the terminal ----------------------------------------------------------------------------------------------------


@contextmanager
def keyboard() -> Iterator[None]:
    """Keys come at once and are not shown; the screen before is back at the end."""
    before = termios.tcgetattr(0)
    sys.stdout.write("\x1b[?1049h\x1b[?25l")
    try:
        tty.setcbreak(0)
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
        sys.stdout.write("\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()


def overview(asker: Asker, number: int) -> Row:
    """What the server is doing now."""
    asker.send(GetStats(number, True))
    while True:
        answer = asker.next(ANSWER_S)
        if isinstance(answer, Stats) and answer.request == number:
            return answer.data


def watch(asker: Asker, interval_s: float) -> None:
    """Draw until somebody presses q."""
    sort, number = "busy", 1
    before, before_s = overview(asker, number), time.monotonic()
    rates = Rates(before, before, 1.0)
    wait_s = min(interval_s, 0.5)  # the first figures come soon
    while True:
        width, height = os.get_terminal_size(sys.stdout.fileno())  # not COLUMNS: windows change
        lines = screen(rates, asker.address, width, height, sort)
        sys.stdout.write("\x1b[H" + "\r\n".join(line + "\x1b[K" for line in lines) + "\x1b[J")
        sys.stdout.flush()
        if select.select([0], [], [], wait_s)[0]:
            pressed = os.read(0, 64).decode(errors="replace")
            if not pressed or "q" in pressed or "\x03" in pressed or "\x04" in pressed:
                return
            sort = next((KEYS[key] for key in pressed if key in KEYS), sort)
            wait_s = max(0.05, wait_s - (time.monotonic() - before_s))
            continue
        number += 1
        now, now_s = overview(asker, number), time.monotonic()
        rates = Rates(now, before, now_s - before_s)
        before, before_s, wait_s = now, now_s, interval_s


def once(asker: Asker, interval_s: float) -> None:
    """Print one screen, for pipes: as many rows as there are."""
    before, before_s = overview(asker, 1), time.monotonic()
    time.sleep(interval_s)
    now = overview(asker, 2)
    width = shutil.get_terminal_size().columns
    for line in screen(Rates(now, before, time.monotonic() - before_s), asker.address, width, 10_000, "busy")[:-1]:
        print(line.replace(REVERSE, "").replace(PLAIN, "").rstrip())


def main(argv: list[str] | None = None) -> int:
    """Show a server's work; returns the exit code."""
    settings = config.load()
    p = Parser(prog="gt top", description="Show what a server is doing: workers, sessions, and the hottest programs.")
    add_options(p, settings)
    p.add_argument("--once", action="store_true", help="print it once and exit, as is done where there is no terminal")
    p.add_argument("--interval", type=float, default=1.0, metavar="S", help="seconds between screens (%(default)g)")
    args = p.parse_args(argv)
    try:
        with Asker(args.server, args.token, "gt top", settings.connect_timeout_s) as asker:
            interval_s = min(max(args.interval, 0.1), 60.0)
            if args.once or not (sys.stdout.isatty() and sys.stdin.isatty()):
                once(asker, interval_s)
            else:
                with keyboard():
                    watch(asker, interval_s)
    except KeyboardInterrupt:
        pass
    except (GTError, ServerError) as e:
        print(f"gt top: {e}", file=sys.stderr)
        return 1
    return 0
