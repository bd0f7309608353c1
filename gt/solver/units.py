"""Times and sizes as text, and sizes from text."""

from __future__ import annotations

import re

from gt.errors import ArgumentError


def parse_size(given: str | int) -> int:
    """A number of bytes, or "80GB", "512MB", "139GiB".

    >>> parse_size("80GB"), parse_size("1.5 GiB"), parse_size(1000)
    (80000000000, 1610612736, 1000)
    """
    if type(given) is int and given > 0:
        return given
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGT])(i?))?B?\s*", given) if isinstance(given, str) else None
    if found is None or not float(found[1]):
        raise ArgumentError(f"memory: expected bytes > 0 or a size such as '80GB', got {given!r}")
    return int(float(found[1]) * (1024 if found[3] else 1000) ** " KMGT".index(found[2] or " "))


def time_text(us: float) -> str:
    """Three digits or more, in the unit that fits.

    >>> time_text(0.0), time_text(3.14159), time_text(930.4), time_text(6814.4), time_text(669_620.0), time_text(2.5e6)
    ('0 us', '3.1 us', '930 us', '6.81 ms', '670 ms', '2.50 s')
    """
    for unit, scale in (("us", 1.0), ("ms", 1e3), ("s", 1e6)):
        if us < 999.5 * scale or unit == "s":
            return f"{_three(us / scale, unit)} {unit}"
    return ""


def _three(number: float, unit: str) -> str:
    if not number:
        return "0"
    if unit == "us" and number < 99.95:
        return f"{number:.1f}"  # nothing is known to less than a tenth of a microsecond
    return f"{number:.2f}" if number < 9.995 else f"{number:.1f}" if number < 99.95 else f"{number:.0f}"


def size_text(nbytes: float) -> str:
    """In units of 1000.

    >>> size_text(512), size_text(671_400_000), size_text(80e9), size_text(2.5e12)
    ('512 B', '671 MB', '80.0 GB', '2500 GB')
    """
    for k, unit in enumerate(("B", "KB", "MB", "GB")):
        if nbytes < 999.5 * 1000**k or unit == "GB":
            return f"{nbytes:.0f} B" if not k else f"{_three(nbytes / 1000**k, unit)} {unit}"
    return ""
