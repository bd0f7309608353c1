"""The command-line parser of all `gt` commands: argparse, with errors of one line."""

from __future__ import annotations

import argparse
import re
from typing import NoReturn

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)


def nbytes(text: str) -> int:
    """A size as people write it.

    >>> nbytes("40G"), nbytes("1.5k"), nbytes("100")
    (42949672960, 1536, 100)
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; expected a number with K, M, G or T")
    return int(float(found[1]) * 1024 ** " kmgt".index(found[2].lower() or " "))


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that reports a wrong argument in one line, with exit code 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; {self.prog} --help shows the options\n")
