"""Reading a configuration of signals from a file: YAML, JSON or Python.

Of YAML this is the plain part, read without another package: mappings by indentation, mappings and lists in braces and
brackets, lists of dashes, quoted and bare words, numbers, true, false, null, comments. A Python file is run; what it
calls `signals` is the configuration.
"""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

from gt.errors import ArgumentError

_TOKEN = re.compile(
    r"""\s*("(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[{}\[\],:]|(?!["'])(?:[^\s{}\[\],:#]|:(?=\S)|(?<=\S)\#)+)"""
)
_KEY = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^\s{}\[\],#:"'][^#:]*?)\s*:(?:\s+|$)""")
_WORDS: dict[str, Any] = {"true": True, "false": False, "null": None, "~": None}


def read(path: str) -> Any:
    """What a file says."""
    file = Path(path)
    try:
        if file.suffix == ".py":
            found = runpy.run_path(str(file))
            if "signals" not in found:
                raise ArgumentError(f"{path}: defines no `signals`")
            return found["signals"]
        text = file.read_text()
    except OSError as e:
        raise ArgumentError(f"{path}: {e.strerror or e}") from None
    try:
        return json.loads(text) if file.suffix == ".json" else parse(text)
    except ValueError as e:
        raise ArgumentError(f"{path}: {e}") from None


def parse(text: str) -> Any:
    """The plain part of YAML.

    >>> parse("stage1:\\n  mesh: first   # two workers\\n  split: {0: x, -1: [y, z]}\\nops: [linear, 'mat mul']")
    {'stage1': {'mesh': 'first', 'split': {0: 'x', -1: ['y', 'z']}}, 'ops': ['linear', 'mat mul']}
    """
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.lstrip(" ")
        if bare.startswith("\t"):
            raise ValueError(f"line {number}: indent with spaces, not tabs")
        if bare.strip() and not bare.startswith(("#", "---")):
            lines.append((number, len(line) - len(bare), bare.rstrip()))
    if not lines:
        return {}
    found, rest = _block(lines, lines[0][1])
    if rest:
        raise ValueError(f"line {rest[0][0]}: {rest[0][2]!r} is indented like nothing before it")
    return found


Lines = list[tuple[int, int, str]]  #: number, indentation, text


def _block(lines: Lines, indent: int) -> tuple[Any, Lines]:
    """The mapping or list that begins here, and the lines behind it."""
    listed: list[Any] = []
    mapped: dict[Any, Any] = {}
    dashes = lines[0][2].startswith("- ") or lines[0][2] == "-"
    while lines and lines[0][1] == indent and (lines[0][2][:2].rstrip() == "-") == dashes:
        number, _, text = lines[0]
        if dashes:
            inner = text[1:].lstrip()
            value, lines = _value(lines, indent + len(text) - len(inner), inner)
            listed.append(value)
            continue
        match = _KEY.match(text)
        if match is None:
            raise ValueError(f"line {number}: {text!r} is not like 'name: value'")
        key = _scalar(match[1])
        if key in mapped:
            raise ValueError(f"line {number}: {key!r} stands here twice")
        mapped[key], lines = _value(lines, indent, text[match.end() :])
    return (listed if dashes else mapped), lines


def _value(lines: Lines, indent: int, text: str) -> tuple[Any, Lines]:
    """A value on the first of these lines, from `text` on, or below it."""
    number, outer, _ = lines[0]
    if text and not text.startswith("#"):
        if indent > outer and _KEY.match(text) and text[0] not in "{[":  # a mapping that begins behind a dash
            return _block([(number, indent, text), *lines[1:]], indent)
        tokens = _tokens(number, text)
        value = _flow(number, tokens)
        if tokens:
            raise ValueError(f"line {number}: {' '.join(tokens)!r} is too much; quote what has spaces in it")
        return value, lines[1:]
    if len(lines) > 1 and lines[1][1] > outer:
        return _block(lines[1:], lines[1][1])
    return None, lines[1:]


def _tokens(number: int, text: str) -> list[str]:
    tokens, at = [], 0
    while at < len(text.rstrip()):
        if re.match(r"\s*#", text[at:]) and (at == 0 or text[at].isspace()):
            break
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"line {number}: cannot read {text[at:]!r}")
        tokens.append(match[1])
        at = match.end()
    return tokens


def _flow(number: int, tokens: list[str]) -> Any:
    """The value that begins with the first token; what is read is taken off."""
    if not tokens:
        raise ValueError(f"line {number}: a value is missing")
    first = tokens.pop(0)
    if first not in "{[":
        if first in "}],:":
            raise ValueError(f"line {number}: {first!r} where a value should be")
        return _scalar(first)
    items: list[Any] = []
    pairs: dict[Any, Any] = {}
    close = "}" if first == "{" else "]"
    while tokens and tokens[0] != close:
        item = _flow(number, tokens)
        if first == "{":
            if not tokens or tokens.pop(0) != ":":
                raise ValueError(f"line {number}: {item!r} in braces needs ': ' and a value")
            pairs[item] = _flow(number, tokens)
        else:
            items.append(item)
        if tokens and tokens[0] == ",":
            tokens.pop(0)
        elif not tokens or tokens[0] != close:
            break
    if not tokens or tokens.pop(0) != close:
        raise ValueError(f"line {number}: {close!r} is missing; braces and brackets end on their line")
    return pairs if first == "{" else items


def _scalar(token: str) -> Any:
    if token[0] == '"':
        return json.loads(token)
    if token[0] == "'":
        return token[1:-1].replace("''", "'")
    if re.fullmatch(r"[-+]?\d+", token):
        return int(token)
    if re.fullmatch(r"[-+]?(\d+\.\d*|\.\d+)([eE][-+]?\d+)?", token):
        return float(token)
    return _WORDS.get(token, token)
